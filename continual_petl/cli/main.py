"""The command line: which commands there are, and what happens when one fails.

Nothing heavy is imported here; each command imports what it needs when it runs, so that --help answers at once.

Exit codes: 0 all is well; 1 a check failed (something was forgotten, a store is damaged or in use); 2 the input cannot
be used; 3 an internal error; 128 + n ended by signal n (130 for Ctrl-C), and the same command goes on.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from continual_petl._version import VERSION
from continual_petl.errors import (
    ForgettingError,
    InputError,
    Interrupted,
    IsolationError,
    StoreError,
    StreamFileError,
    printable,
)

_EXAMPLES = """examples:
  continual-petl run quickstart
  continual-petl run stream.yaml --run-dir runs/mine --training.learning_rate 3e-4
  continual-petl verify runs/mine
"""

_COMMANDS = {
    "run": "learn every task of a stream that its run folder does not have yet",
    "learn": "add one task to a run; needs none of the old data",
    "forget": "drop one task of a run, on purpose and on record; no other task is touched",
    "verify": "check that no learned task has changed",
    "predict": "answer rows with the bank of one task",
    "report": "show what a run has learned, forgotten and cost",
    "schema": "print the JSON Schema of stream files, for editors",
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="continual-petl",
        description="Continual learning that provably forgets nothing: a parameter-efficient bank per task.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"continual-petl {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=_EPILOGS.get(name),
        )
        _add_arguments(name, command)
    return parser


_OVERRIDES = """Any key of the stream file can be set: --training.epochs 1, --tasks.NAME.bank lora, --data_dir FOLDER.
"""
_EPILOGS = {
    "run": _OVERRIDES
    + """
examples:
  continual-petl run quickstart --dry-run
  continual-petl run stream.yaml --training.learning_rate 1e-3 --trainer.accelerator gpu
  continual-petl run stream.yaml --run-dir runs/mine --tasks.agnews.training.epochs 5
""",
    "learn": """The file holds one task, with the same keys as one entry of `tasks` in a stream file.

examples:
  continual-petl learn runs/mine trec.yaml
  continual-petl learn runs/mine trec.yaml --bank lora --training.epochs 5
""",
    "forget": """The task's bank is deleted. A tombstone takes its place in the chain of certificates, so that verify can tell
a task that was dropped on purpose from one that was lost.

examples:
  continual-petl forget runs/mine agnews
""",
    "verify": """Exit code 1 if anything is not as it was certified.

examples:
  continual-petl verify runs/mine
  continual-petl verify runs/mine --task agnews --data --json
""",
    "predict": """A row is what the task was learned on: a text; two texts with a tab between them (pairs); words with spaces
between them (token-classification); the path of an image. Files name it text, text_pair, source (seq2seq, causal-lm),
tokens or image; in .jsonl tokens may be a list of words. Paths count from the working directory.

Answers, one line a row: a label and its probability; a number; all labels that hold with their probabilities, or (none)
(multilabel); one tag per word; a text, with \\n for a line break.
--json and .jsonl: a list of, or one a line,
  {"text": ..., "answer": "sport", "probabilities": {"sport": 0.9, "world": 0.1}}    classification, images ("image")
  {"text": ..., "answer": 3.2}                                                       regression
  {"text": ..., "answer": ["a", "c"], "probabilities": {"a": 0.8, "b": 0.1, "c": 0.7}}  multilabel
  {"tokens": ["Ada", "slept"], "answer": ["B-PER", "O"]}                             token-classification
  {"source": ..., "answer": "a text"}                                                seq2seq, causal-lm
.csv: the same without probabilities; lists are JSON.

examples:
  continual-petl predict runs/mine --task agnews "Shares fell on Monday"
  continual-petl predict runs/mine --task agnews --input rows.jsonl --output answers.jsonl
  cut -f1 texts.tsv | continual-petl predict runs/mine --task agnews
""",
    "report": """examples:
  continual-petl report runs/mine
  continual-petl report runs/mine --json
""",
    "schema": """examples:
  continual-petl schema > stream.schema.json
""",
}


def _add_arguments(name: str, command: argparse.ArgumentParser) -> None:
    if name == "run":
        command.add_argument(
            "stream", metavar="STREAM", help="a stream file, or the name of a catalog stream (quickstart, digits)"
        )
        command.add_argument("--run-dir", metavar="DIR", help="where banks and results go (default: runs/NAME)")
        command.add_argument("--dry-run", action="store_true", help="resolve and show everything, without training")
    elif name != "schema":
        command.add_argument("run", metavar="RUN", help="a run folder")
    if name == "learn":
        command.add_argument("task_file", metavar="TASK.yaml", help="a file with one task")
    if name == "forget":
        command.add_argument("task", metavar="TASK", help="name of a learned task")
    if name in {"verify", "predict"}:
        command.add_argument("--task", metavar="T", required=name == "predict", help="name of a learned task")
    if name == "verify":
        command.add_argument("--data", action="store_true", help="also answer the test rows again")
    if name == "predict":
        command.add_argument("texts", metavar="TEXT", nargs="*", help="rows; none: one per line of standard input")
        command.add_argument("--input", metavar="FILE", help="rows from a .jsonl, .csv, .tsv or .txt file")
        command.add_argument("--output", metavar="FILE", help="write answers to a .jsonl or .csv file")
    if name in {"learn", "verify", "predict"}:
        text = "execute the backbone's own code where RUN asks for it; read it first"
        command.add_argument("--remote-code", action="store_true", help=text)
    if name == "run":
        command.add_argument(
            "--replace", metavar="TASK", action="append", default=[], help="learn a learned task again; may be repeated"
        )
    if name == "learn":
        command.add_argument("--replace", action="store_true", help="if the task is learned, learn it again")
    if name in {"run", "learn"}:
        command.add_argument(
            "--check",
            choices=("digests", "probe", "full"),
            default="probe",
            help="how earlier tasks are checked after each new one (default: probe; full answers their test rows again)",
        )
        if name == "run":
            text = "learn N tasks at once, in processes with a backbone each; the store ends the same, bit for bit"
            command.add_argument("--jobs", metavar="N", type=int, help=text)
            text = "what learns them: processes of this machine (default), or a Ray cluster"
            command.add_argument("--executor", choices=("processes", "ray"), default="processes", help=text)
        command.add_argument("--wait", action="store_true", help="wait for another process that writes to the run")
        command.add_argument("--quiet", action="store_true", help="print nothing but errors and the final report")
    if name != "schema":
        command.add_argument("--json", action="store_true", help="print the result as JSON on standard output")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    parser = build_parser()
    arguments, rest = parser.parse_known_args(argv)
    if arguments.command == "predict":
        # argparse hands over an optional list only in one piece; texts after --task T are left over.
        arguments.texts += [word for word in rest if not word.startswith("--")]
        rest = [word for word in rest if word.startswith("--")]
    try:
        overrides = parse_overrides(rest) if arguments.command in {"run", "learn"} else _none_left(parser, rest)
        with _ending_at_sigterm():
            module = importlib.import_module(f"continual_petl.cli.{arguments.command}")
            code: int = module.execute(arguments, overrides)
        return code
    except StreamFileError as error:
        what = "task" if arguments.command == "learn" else "stream"
        return _fail("\n".join([f"the {what} cannot be used:", *error.problems]), 2)
    except InputError as error:
        return _fail(str(error), 2)
    except (ForgettingError, IsolationError, StoreError) as error:
        return _fail(str(error), 1)
    except Interrupted as error:
        return _fail(str(error), 128 + error.signal_number)
    except KeyboardInterrupt:
        return _fail("stopped; what was saved stands, and the same command goes on from there", 130)
    except _Ended:
        return _fail("ended by SIGTERM; what was saved stands, and the same command goes on from there", 143)
    except BrokenPipeError:
        return 141  # the reader of our output went away, as in `| head`
    except Exception:
        print(printable(traceback.format_exc(), keep="\n"), file=sys.stderr, end="")
        return _fail("this is a fault of continual-petl, not of your input: please report it with the lines above", 3)


def parse_overrides(rest: Sequence[str]) -> list[tuple[str, str]]:
    """Turn ``--key value`` and ``--key=value`` into pairs; the stream's schema decides which keys there are."""
    overrides: list[tuple[str, str]] = []
    words = list(rest)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word == "--":
            raise InputError(f"{word!r} is not understood here; options are written --key VALUE, see --help")
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not words or words[0].startswith("--"):
                raise InputError(f"--{key}: a value is missing; write --{key} VALUE")
            value = words.pop(0)
        overrides.append((key, value))
    return overrides


class _Ended(BaseException):
    """SIGTERM, as KeyboardInterrupt is SIGINT: no one who catches errors catches this."""


@contextmanager
def _ending_at_sigterm() -> Iterator[None]:
    """End a command in order, with its exit code; while a course learns, its own handler stands in front."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        raise _Ended

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _none_left(parser: argparse.ArgumentParser, rest: Sequence[str]) -> list[tuple[str, str]]:
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return []


def _fail(message: str, code: int) -> int:
    print("continual-petl: " + printable(message, keep="\n"), file=sys.stderr)
    return code
