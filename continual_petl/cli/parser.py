"""The parser of all commands, with what each takes and an example; nothing heavy is imported for it."""

from __future__ import annotations

import argparse

from continual_petl._version import VERSION
from continual_petl.cli.options import add_arguments

_EXAMPLES = """examples:
  continual-petl run quickstart
  continual-petl run stream.yaml --run-dir runs/mine --training.learning_rate 3e-4
  continual-petl verify runs/mine

exit codes: 0 all is well; 1 a check failed, or the answer is no (something was forgotten or is damaged, two runs differ, rows
need to be corrected, a problem was found); 2 the input cannot be used; 3 an internal error of continual-petl; 4 another
process is writing to the run; 128 + n ended by signal n.
"""

_COMMANDS = {
    "init": "look at data files and write a first stream file",
    "run": "learn every task of a stream that is not in its run folder yet",
    "learn": "add one task to a run; needs none of the old data",
    "sweep": "choose the settings of every task of a stream on its validation split",
    "forget": "drop one task of a run, on purpose and on record; no other task is touched",
    "verify": "check that no learned task has changed",
    "reevaluate": "fill in scores of R that were not measured from certificates; needs none of the old data",
    "predict": "answer rows, each with the bank of its task",
    "ablate": "remove a bank's modifications from spans of layers, and measure how much its score drops",
    "report": "draw what a run has learned, forgotten and cost; several runs side by side",
    "list": "list the tasks of a run",
    "show": "show everything that is known about one task",
    "diff": "show how two runs differ, bank by bank",
    "doctor": "show what a run finds on this machine; paste it into a bug report",
    "streams": "list the streams that come with the package, for run NAME",
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
        add_arguments(name, command)
    return parser


_OVERRIDES = """Any key of the stream file can be set: --training.epochs 1, --tasks.NAME.bank lora, --seed 7.
"""
_EPILOGS = {
    "init": """DATA is a .csv, .tsv, .json, .jsonl or .parquet file (text also .gz), a folder with train, validation and
test files, or the name of a data set of the Hub (nyu-mll/glue:sst2 with its configuration). Each becomes one task; its kind
and columns are guessed from its rows, and comments in the file say why. Exit code 1 if some rows need to be corrected first.

examples:
  continual-petl init trec.csv stsb.csv
  continual-petl init data/agnews data/dbpedia --output news.yaml
""",
    "run": _OVERRIDES
    + """
examples:
  continual-petl run quickstart --dry-run
  continual-petl run stream.yaml --log wandb --log csv
  continual-petl run stream.yaml --training.learning_rate 1e-3 --trainer.accelerator gpu
  continual-petl run stream.yaml --run-dir runs/mine --tasks.agnews.training.epochs 5
""",
    "learn": """The file holds one task, with the same keys as one entry of `tasks` in a stream file.

examples:
  continual-petl learn runs/mine trec.yaml --dry-run
  continual-petl learn runs/mine trec.yaml
  continual-petl learn runs/mine trec.yaml --bank lora --training.epochs 5
  continual-petl learn runs/mine trec.yaml --evaluate certified
""",
    "sweep": """Each trial learns one task alone; test splits are not read. The sweep file says which settings are tried:

  space:
    bank.bottleneck: [8, 64, 256]
    training.learning_rate: [1.0e-4, 1.0e-3]
    training.epochs: [3, 20]
  prune: median
  seeds: 5

The chosen settings are written as chosen.yaml, a stream for `continual-petl run`. After a stop the same command resumes.
"""
    + _OVERRIDES
    + """
examples:
  continual-petl sweep stream.yaml sweep.yaml
  continual-petl sweep stream.yaml sweep.yaml --run-dir sweeps/mine --jobs 2 --minutes 60
  continual-petl sweep stream.yaml sweep.yaml --task agnews --trials 5 --tasks.*.limits.train 500
""",
    "forget": """The task's bank is deleted. A tombstone takes its place in the chain of certificates, so that verify can
distinguish a task that was dropped on purpose from one that was lost. A task whose bank is missing, and one side of a chain
that has forked, are dropped in the same way; until then no task is learned.

examples:
  continual-petl forget runs/mine agnews
  continual-petl forget runs/mine --entry 7
""",
    "verify": """Exit code 1 if anything is not as it was certified.

examples:
  continual-petl verify runs/mine
  continual-petl verify runs/mine --task agnews --data --json
""",
    "reevaluate": """Where the data of an earlier task was not available, its cell in R says "not measured", and ACC, BWT and
forgetting are n/a. The task's certificate is checked (digests and probe), and its certified score fills the cell, marked as
certified. What was measured is never replaced. Exit code 1 if a certificate does not hold; its cells stay as they are.

examples:
  continual-petl reevaluate runs/mine
""",
    "predict": """A row is what the task was learned on: a text; two texts with a tab between them (pairs); words with spaces
between them (token-classification); the path of an image. Paths count from the working directory.
In a file it is in the columns that the task was learned from (its `columns` in the stream.yaml of RUN), or in the
standard ones: text, text_pair, source (seq2seq, causal-lm), tokens or image. If a file has both, the former are read;
other columns are allowed. In .jsonl and .parquet tokens may be a list of words, in .csv and .tsv a JSON list.

Answers, one line per row: a label and its probability; a number; all labels that hold with their probabilities, or (none)
(multilabel); one tag per word; a text, with \\n for a line break. In these lines a number has at most 6 significant digits,
a probability 4 decimals; --json and files have them to the last digit.
--json: a list of, with the standard names whatever the file called its columns; .jsonl: one per line,
  {"text": ..., "answer": "sport", "probabilities": {"sport": 0.9, "world": 0.1}}    classification, images ("image")
  {"text": ..., "answer": 3.2}                                                       regression
  {"text": ..., "answer": ["a", "c"], "probabilities": {"a": 0.8, "b": 0.1, "c": 0.7}}  multilabel
  {"tokens": ["Ada", "slept"], "answer": ["B-PER", "O"]}                             token-classification
  {"source": ..., "answer": "a text"}                                                seq2seq, causal-lm
.csv and .parquet: the same keys as columns; in .csv lists and probabilities are JSON. Answers are in the order of the rows.
--output keeps all columns of --input under their names, and adds answer and probabilities; an input that has a column of one
of these two names is refused. .parquet keeps the types of .parquet; columns of .jsonl whose values are not all text, all
numbers, all truth values or all lists of texts are JSON there.
Rows are read and answered in portions: a file or pipe may be of any length.

examples:
  continual-petl predict runs/mine --task agnews "Shares fell on Monday"
  continual-petl predict runs/mine --task agnews --input rows.jsonl --output answers.jsonl
  continual-petl predict runs/mine --input rows.parquet --task-column task --output answers.parquet --batch-size 128
  cut -f1 texts.tsv | continual-petl predict runs/mine --task agnews
""",
    "ablate": """The trained modifications of a task are removed from every span of layers FIRST to LAST, and its rows are
answered again; nothing is trained (Houlsby et al. 2019, section 3.6). The bank's own LayerNorms, its head and what acts
outside of layers are kept. In the table, a row is the first layer of the span, a column the last; a cell is the change of
the score in percent of the whole bank's. If that score is zero, negative or undefined, scores are shown instead.
The run is only read. The rows of the task must be available.

--json and --output: {"run": ..., "ablations": [...], "left_out": {task: why}}; from Python, Run(folder).ablate(task).

examples:
  continual-petl ablate runs/mine --task agnews
  continual-petl ablate runs/mine --task agnews trec --spans single --html ablation.html
  continual-petl ablate runs/mine --task agnews --spans 0-5 6-11 --split test --output ablation.json
""",
    "report": """The page opens from disk in any browser, without a network. Exit code 1 if something was forgotten or
damaged.

examples:
  continual-petl report runs/mine --open
  continual-petl report runs/mine --serve
  continual-petl report runs/mine --rows
  continual-petl report runs/banks runs/sequential --output comparison
  continual-petl report runs/mine --json
""",
    "list": """examples:
  continual-petl list runs/mine
""",
    "show": """examples:
  continual-petl show runs/mine
  continual-petl show runs/mine agnews
""",
    "diff": """Compares backbone, tasks and their order, specifications, banks (by the digests of all their tensors), data
and scores. Exit code 0 if all are the same, 1 if anything differs. The machines they were learned on are
shown, but not compared.

examples:
  continual-petl diff runs/mine runs/again
""",
    "doctor": """Exit code 1 if a problem is found. No key, user or host is printed, and no folder except the one you give.

examples:
  continual-petl doctor
  continual-petl doctor --run-dir /data/runs --json
""",
    "streams": """examples:
  continual-petl streams
  continual-petl run classic5 --data-dir data --backbone minilm
""",
    "schema": """examples:
  continual-petl schema > stream.schema.json
""",
}
