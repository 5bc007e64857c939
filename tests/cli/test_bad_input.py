"""Mistakes in stream files and commands are refused with position and remedy; learned tasks are untouched."""

from __future__ import annotations

import json

import pytest

from tests.cli.bench import DATA, ROWS, Bench, Case, json_lines

NAME, KIND = "- name: other", "kind: classification\n"


def bank(text: str) -> list[tuple[str, str]]:
    """Return the edit that gives the second task its own bank."""
    return [(DATA, f"{DATA}\n    bank: {text}")]


LEGAL = (
    "nearest are {form: bottleneck, modifies: attention | heads | ffn, insertion: parallel, composition: add | scaled"
)
IN_THE_FILE = [
    Case("key", ["stream.yaml:2: key sead: unknown key 'sead' (did you mean 'seed'?)"], [("seed: 1", "sead: 1")]),
    Case(
        "preset", ["stream.yaml:11: key tasks.1.bank.preset (task other)", "known presets are houlsby"], bank("housby")
    ),
    Case(
        "kind",
        ["stream.yaml:9: key tasks.1.kind (task other): got 'clasification'", "allowed: causal-lm, classification"],
        [(KIND, "kind: clasification\n")],
    ),
    Case("duplicate", ["stream.yaml:8", "'Single' is already the name of tasks.0"], [(NAME, "- name: Single")]),
    Case("up", ["stream.yaml:8: key tasks.1.name: '../x'", "use 1 to 64 letters"], [(NAME, "- name: ../x")]),
    Case("slash", ["stream.yaml:8: key tasks.1.name: 'a/b'", "use 1 to 64 letters"], [(NAME, "- name: a/b")]),
    Case("device", ["stream.yaml:8", "'CON' is a reserved device name", "another name"], [(NAME, "- name: CON")]),
    Case(
        "bank option without effect",
        ["stream.yaml:11: key tasks.1.bank (task other): bottleneck has no effect in preset 'bitfit': remove it"],
        bank("{preset: bitfit, bottleneck: 4}"),
    ),
    Case(
        "illegal combination",
        ["stream.yaml:11: key tasks.1.bank.modifications.0", "no method has bottleneck on query", LEGAL],
        bank("{modifications: [{form: bottleneck, modifies: query, insertion: parallel, bottleneck: 4}]}"),
    ),
    Case(
        "one column twice",
        ["stream.yaml:11: key tasks.1.columns (task other): got text: label, label: label; text, text_pair and label"],
        [(DATA, f"{DATA}\n    columns: {{text: label}}")],
    ),
    Case("variable", ["stream.yaml:10", "environment variable NOWHERE_SET"], [(DATA, "data: ${NOWHERE_SET}/x")]),
    Case(
        "trainer argument set elsewhere",
        ["stream.yaml:6: key trainer.max_epochs: this is", "training.epochs"],
        [("tasks:\n", "trainer: {max_epochs: 3}\ntasks:\n")],
    ),
    Case("syntax", ["stream.yaml:3: this is not readable as YAML", "begins on line 2"], [("seed: 1", "seed: [1")]),
    Case(
        "all at once",
        [
            "stream.yaml:2: key seed: got 'x'",
            "stream.yaml:5: key training.epochs: got 0",
            "stream.yaml:9: key tasks.1.kind",
        ],
        [("seed: 1", "seed: x"), ("epochs: 1", "epochs: 0"), (KIND, "kind: clas\n")],
    ),
]
OF_THE_COMMAND = [
    Case("no value", ["--training.epochs: a value is missing; write"], options=["--training.epochs"]),
    Case(
        "misspelt switch",
        ["--dry-runn: there is no such option (did you mean '--dry-run'?); continual-petl run --help lists them"],
        options=["--dry-runn"],
    ),
    Case("misspelt option", ["--jobz: there is no such option (did you mean '--jobs'?)"], options=["--jobz", "3"]),
    Case("unlike any option", ["--foo: unknown key 'foo'"], options=["--foo", "3"]),
    Case("misspelt key", ["--seeed: there is no such option (did you mean '--seed'?)"], options=["--seeed"]),
    Case("key without value", ["--seed: a value is missing; write --seed VALUE"], options=["--seed"]),
    Case("unknown option", ["--trainig.epochs: unknown key 'trainig'"], options=["--trainig.epochs", "3"]),
    Case("value", ["--training.epochs: got 'many'; allowed: a whole number"], options=["--training.epochs", "many"]),
    Case("task", ["--tasks.nope.bank: there is no task 'nope'", "1 other"], options=["--tasks.nope.bank", "lora"]),
    Case(
        "rows as stream",
        [
            "a stream is a YAML file, but this one holds rows; `continual-petl init FOLDER/data/other/train.jsonl` drafts"
        ],
        command=["run", "FOLDER/data/other/train.jsonl"],
    ),
    Case("folder as stream", ["FOLDER: this is a folder; give the stream file"], command=["run", "FOLDER"]),
    Case("no stream", ["nope.yaml: there is no such file", "Check the path"], command=["run", "FOLDER/nope.yaml"]),
    Case(
        "binary stream",
        ["b.yaml: byte 128 is not UTF-8: save"],
        files={"b.yaml": bytes(range(256))},
        command=["run", "FOLDER/b.yaml"],
    ),
    Case(
        "run-dir is a file",
        ["--run-dir FOLDER/first.yaml: FOLDER/first.yaml is a file, not a folder; give another"],
        command=["run", "FOLDER/stream.yaml", "--run-dir", "FOLDER/first.yaml"],
    ),
    Case(
        "run-dir below a file",
        ["--run-dir FOLDER/first.yaml/x: FOLDER/first.yaml is a file"],
        command=["run", "FOLDER/stream.yaml", "--run-dir", "FOLDER/first.yaml/x", "--dry-run"],
    ),
    Case(
        "other name", ["holds the stream 'files' with seed 1, but the one given is 'x'"], [("name: files", "name: x")]
    ),
    Case("other seed", ["'files' with seed 2", "give another --run-dir"], options=["--seed", "2"]),
    Case(
        "other seed, dry run", ["'files' with seed 2", "give another --run-dir"], options=["--seed", "2", "--dry-run"]
    ),
]


@pytest.mark.parametrize("case", IN_THE_FILE, ids=lambda case: case.name)
def test_invalid_stream_file_is_refused(bench: Bench, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    first = bench.refuses(case, capsys)
    assert bench.main(*case.command, "--dry-run") == 2
    assert capsys.readouterr().err == first


@pytest.mark.parametrize("case", OF_THE_COMMAND, ids=lambda case: case.name.replace(" ", "-"))
def test_invalid_command_is_refused(bench: Bench, case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    bench.refuses(case, capsys)


def test_invalid_later_task_is_refused_before_training(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Two of four tasks are wrong: both are reported, and the valid task before them is not learned."""
    bench.stream += "  - {name: third, kind: classification, data: data/single, columns: {text: body}}\n"
    bench.stream += "  - {name: fourth, kind: classification, data: data/nope}\n"
    says = [
        "task 'third', split train (FOLDER/data/single/train.jsonl): columns.text is 'body', but there is no such column",
        "task 'fourth', data FOLDER/data/nope: there is no such file or folder",
    ]
    bench.refuses(Case("run", says), capsys)
    bench.refuses(Case("dry run", says[:2], options=["--dry-run"]), capsys)
    bench.stream += "  - {name: fifth, kind: classification, data: data/neither}\n"
    assert bench.main("run", "FOLDER/stream.yaml", "--dry-run") == 2
    assert capsys.readouterr().err.count("Relative paths are relative to data_dir") == 1
    # A new run folder is not even created.
    assert bench.main("run", "FOLDER/stream.yaml", "--run-dir", "FOLDER/new") == 2
    assert not (bench.folder / "new").exists()


@pytest.mark.slow
def test_suspicious_input_is_reported_but_accepted(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """Long texts, rows in both train and test, and a class without rows are reported by dry run, progress and bank.json."""
    edits = [(", pooling: mean", ", pooling: mean, max_length: 6"), (DATA, f"{DATA}\n    labels: [no, yes, 'may[b]e']")]
    bench.apply(Case("", [], edits, {"data/other/test.jsonl": json_lines(ROWS[:5])}))
    cut = [sum(len(row["text"].split()) > 4 for row in rows) for rows in (ROWS[:16], ROWS[16:20], ROWS[:5])]
    told = [
        f"{cut[0]} of 16 train, {cut[1]} of 4 validation, {cut[2]} of 5 test rows are longer than 6 tokens and were "
        "truncated",
        "5 of 5 test rows have the text of a training row",
        "no training row has the label 'may[b]e'",
    ]
    command = ("run", "FOLDER/stream.yaml", "--run-dir", "FOLDER/run")
    assert bench.main(*command, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in told)
    assert bench.main(*command, "--dry-run", "--json") == 0
    facts = json.loads(capsys.readouterr().out)[1]
    assert [facts["splits"][split]["truncated"] for split in ("train", "validation", "test")] == cut
    assert bench.main(*command) == 0
    shown = capsys.readouterr().err
    notices = json.loads((bench.folder / "run" / "banks" / "other" / "bank.json").read_text())["notices"]
    for text in told:
        assert text in shown
        assert any(text in notice for notice in notices)
        assert any(text in notice for notice in facts["notices"])
