r"""Predict rows, each with the bank of its task.

Without --task and --task-column, the run finds the task of each row, among the tasks that were not learned with
`routing: off`, and prints the task with its probability before the prediction. A row that does not resemble the rows of any
task is printed as (unknown). After the probability comes how well known the row is: the share of the task's own rows that
lie at least as far from the task. Below the limit that the task stored, by default 0.01, the row is unknown. --reject 0.05
sets another limit; with --reject never, the most probable task predicts every row. Where tasks read the same texts and ask
different questions, no probability can tell which one is meant: --candidates 3 also prints what each of the three most
probable tasks predicts. With --json and --output, records also have task (empty if unknown), task_probability, known,
runners_up and, if asked for, candidates; the rows of a file are in the columns text (and text_pair), source or messages (and
options, if each row has its own), tokens or image.

A row has the same form as the task's training rows: a text; two texts separated by a tab (pairs); words separated by spaces
(token-classification); the path of an image. Paths are relative to the working directory. In a file, a row is in the columns
that the task was learned from (its `columns` in the stream.yaml of RUN), or in the standard ones: text, text_pair, source
(seq2seq, causal-lm; with options, if each row has its own), tokens or image. If a file has both, the task's own columns are
read; other columns are allowed. In .jsonl and .parquet tokens may be a list of words, and options are a list of texts; in
.csv and .tsv they are JSON lists.

Predictions, one line per row: a label and its probability; a number; all labels that apply, with their probabilities,
or (none) (multilabel); one tag per word; a text, with \n for a line break. In these lines a number has at most 6
significant digits, a probability 4 decimals; --json and files have all digits.
--json prints a list of records, .jsonl has one record per line. Both use the standard key names, whatever the columns of the
input file are called:
  {"text": ..., "answer": "sport", "probabilities": {"sport": 0.9, "world": 0.1}}    classification, images ("image")
  {"text": ..., "answer": 3.2}                                                       regression
  {"text": ..., "answer": ["a", "c"], "probabilities": {"a": 0.8, "b": 0.1, "c": 0.7}}  multilabel
  {"tokens": ["Ada", "slept"], "answer": ["B-PER", "O"]}                             token-classification
  {"source": ..., "answer": "a text"}                                                seq2seq, causal-lm
Records of texts also have "truncated": whether the row was longer than the tokens that its task reads (max_length in the
stream file), so that only a part of it was read. Lines of such rows end in truncated, and one line on standard error says
how many there are.
With --stream, the text that the task generates for one TEXT is printed piece by piece; it is the same text as without
--stream. Tasks that generate with beams (num_beams above 1) cannot be streamed.

.csv and .parquet: the same keys as columns; in .csv lists and probabilities are JSON. Predictions are in the order of the
rows. --output keeps all columns of --input under their names, and adds answer, probabilities and truncated; an input that
already has such a column is refused. From .parquet to .parquet, columns keep their types; columns of .jsonl whose values are
not all text, all numbers, all booleans or all lists of strings are written as JSON. Rows are read and predicted in portions,
so a file or pipe may be of any length. If a row cannot be used, the file is refused; with --bad-rows skip it is left out,
and written with its line and the reason to a file beside the output.

In .csv, a text (or the name of a column) that a spreadsheet would execute as a formula, since it begins with =, +, -, @, a
tab or a line break, gets a ' in front, unless it is a plain number such as -0.5; control characters are written as \u001b
and the like. --raw-csv keeps them. Nothing is changed back when such a file is read: to use it as data, write .jsonl,
.parquet, or --raw-csv.

examples:
  continual-petl predict runs/mine "Shares fell on Monday"
  continual-petl predict runs/mine --input rows.jsonl --output predictions.jsonl
  continual-petl predict runs/mine --task agnews "Shares fell on Monday"
  continual-petl predict runs/mine --task agnews --input rows.jsonl --output answers.jsonl
  continual-petl predict runs/mine --input rows.parquet --task-column task --output answers.parquet --batch-size 128
  continual-petl predict runs/mine --task answers --stream "How far is the moon?"
  cut -f1 texts.tsv | continual-petl predict runs/mine --task agnews
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from continual_petl.cli.shared_options import (
    add_json,
    add_limits,
    add_reject,
    add_remote_code,
    add_run,
    add_task_option,
)
from continual_petl.errors import InputError, counted, printable, quoted

PLACE = 210


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_run(command, hub=True)
    add_task_option(command)
    text = "rows (default: one per line of standard input)"
    command.add_argument("texts", metavar="TEXT", nargs="*", help=text)
    text = "rows from a csv, tsv, json, jsonl, parquet, arrow, feather or txt file, perhaps compressed"
    command.add_argument("--input", metavar="FILE", help=text)
    text = "write rows and predictions to a .jsonl, .csv or .parquet file"
    command.add_argument("--output", metavar="FILE", help=text)
    text = "keep texts that a spreadsheet would execute, and control characters, in --output FILE.csv"
    command.add_argument("--raw-csv", action="store_true", help=text)
    text = "rows of --input that cannot be used: refuse the file (default), or leave them out and write them, with the "
    text += "reasons, to OUTPUT.bad-rows.jsonl"
    command.add_argument("--bad-rows", choices=("refuse", "skip"), default="refuse", help=text)
    text = "the column of --input that names the task of each row"
    command.add_argument("--task-column", metavar="NAME", help=text)
    command.add_argument("--batch-size", metavar="N", type=int, default=32, help="rows per batch (default: 32)")
    add_reject(command, "the limit that its task stored when it was learned")
    text = "for rows without a task name: also print the predictions of the N most probable tasks of each row (1 to 4)"
    command.add_argument("--candidates", metavar="N", type=int, help=text)
    text = "print the text that the task given by --task generates for one TEXT, piece by piece"
    command.add_argument("--stream", action="store_true", help=text)
    add_remote_code(command)
    add_json(command)
    add_limits(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.engine.run import Run

    _check(arguments)
    run = Run(arguments.run, remote_code=arguments.remote_code)
    from continual_petl.cli.predicting import PredictedRows, show, write
    from continual_petl.cli.predictions_out import check_output

    rows = PredictedRows(run, arguments)
    if arguments.stream:
        for piece in rows.generate():
            print(printable(piece), end="", flush=True)
        print()
        return 0
    if arguments.output:
        check_output(Path(arguments.output), Path(arguments.input) if arguments.input else None)
        write(rows)
    else:
        show(rows)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that cannot be combined."""
    from continual_petl.predictor.records import ADDED
    from continual_petl.streams.reader.records import reader_of
    from continual_petl.streams.schema.data_spec import is_url
    from continual_petl.streams.schema.routing_spec import check_reject

    for text in arguments.texts:
        if reader_of(text) is not None and os.path.isfile(text):
            raise InputError(
                f"{text}: this is a file, but a text is expected here; `--input {quoted(text)}` predicts the rows in it"
            )
    if arguments.texts and arguments.input:
        raise InputError("texts and --input were both given; give one of them")
    if arguments.input and is_url(arguments.input):
        raise InputError(f"--input {arguments.input}: URLs are not supported here; download the file and give its path")
    if arguments.task is not None and arguments.task_column is not None:
        raise InputError(
            "--task, --task-column: both were given; give the task of all rows, or the column that names the task of each row"
        )
    check_reject(arguments.reject, "--reject")
    for name in ("reject", "candidates"):
        if getattr(arguments, name) is not None and (arguments.task is not None or arguments.task_column is not None):
            raise InputError(f"--{name}: only for rows whose task is not named; leave it out")
    if arguments.task_column is not None and not arguments.input:
        raise InputError("--task-column: names a column of a file; give the file with --input")
    if arguments.task_column in {"text", "text_pair", "source", "tokens", "image", *ADDED}:
        raise InputError(
            f"--task-column {arguments.task_column}: this name is reserved for rows and predictions; rename the column"
        )
    if arguments.raw_csv and Path(arguments.output or "").suffix != ".csv":
        raise InputError(
            "--raw-csv: only for --output FILE.csv; other formats keep all texts as they are, so leave it out"
        )
    if arguments.bad_rows == "skip" and not (arguments.input and arguments.output):
        raise InputError("--bad-rows skip: needs --input and --output, beside which the rows left out are written")
    if arguments.stream:
        _check_stream(arguments)
    if arguments.batch_size < 1:
        raise InputError(f"--batch-size: got {arguments.batch_size}; must be at least 1")


def _check_stream(arguments: argparse.Namespace) -> None:
    for name in ("json", "output", "input"):
        if getattr(arguments, name):
            raise InputError(
                f"--stream, --{name}: both were given; --stream prints one text as it is generated, and --{name} is for "
                "complete predictions: leave one of the two out"
            )
    if arguments.task is None:
        raise InputError("--stream: the task is not named; give the task that generates the text with --task")
    if len(arguments.texts) != 1:
        raise InputError(f"--stream: got {counted(len(arguments.texts), 'text')} as arguments; give exactly one TEXT")
