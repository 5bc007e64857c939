"""``predict`` from and to files: equal answers in every format, rows of several tasks, invalid input, streaming."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from continual_petl.cli import predicting as command
from continual_petl.cli.main import main
from continual_petl.engine.run import Run
from tests.cli.formats import read, write
from tests.learned import LearnedRuns
from tests.streams_in_code import regression_task, stream, task, task_of_kind

ROWS: dict[str, list[Any]] = {
    "yesno": ["w10 w11", "w2", 'w1, "w2"\nw3', "Zürich 東京 \U0001f600 w4"],
    "number": ["w12 w13", "w5"],
    "many": ["w14", "w15 w16"],
    "pair": [("w17", "w18"), ("w1\tw2", "w3")],
    "words": [["w10", "w11"], ["[w12]"]],
}
MIXED = [
    (name, row)
    for pair in zip(*([(n, r) for r in rows[:2]] for n, rows in ROWS.items()), strict=True)
    for name, row in pair
]


@pytest.fixture(scope="module")
def run(backbone_folder: Callable[..., Path], learned_runs: LearnedRuns) -> Path:
    few: dict[str, Any] = {"num_rows": 16}
    tasks = [
        task("yesno", **few),
        regression_task("number", **few),
        task_of_kind("multilabel", "many", **few),
        task("pair", pairs=True, **few),
        task_of_kind("token-classification", "words", **few),
    ]
    return learned_runs(stream(backbone_folder(), tasks, training={"epochs": 1}))


def record_of(name: str, row: Any) -> dict[str, Any]:
    if name == "pair":
        return {"text": row[0], "text_pair": row[1]}
    return {"tokens" if name == "words" else "text": row}


def wanted(run: Path, rows: Sequence[Any], tasks: str | Sequence[str]) -> list[tuple[Any, Any]]:
    opened = Run(run)
    names = [tasks] * len(rows) if isinstance(tasks, str) else tasks
    found = []
    for _, answer in zip(names, opened.predict(rows, tasks), strict=True):
        found.append((answer.value, answer.probabilities))
    return found


@pytest.mark.parametrize(
    ("name", "suffix", "out"),
    [
        ("yesno", ".csv", ".parquet"),
        pytest.param("number", ".jsonl", ".csv", marks=pytest.mark.slow),
        pytest.param("many", ".parquet", ".jsonl", marks=pytest.mark.slow),
        pytest.param("pair", ".jsonl.gz", ".parquet", marks=pytest.mark.slow),
        ("words", ".csv", ".csv"),
    ],
)
def test_all_formats_match_python_to_the_last_digit(
    run: Path, name: str, suffix: str, out: str, tmp_path: Path, capsys: Any
) -> None:
    rows = ROWS[name]
    expected = wanted(run, rows, name)
    source, target = tmp_path / f"rows{suffix}", tmp_path / f"answers{out}"
    write(source, [record_of(name, row) for row in rows])
    assert main(["predict", str(run), "--task", name, "--input", str(source), "--output", str(target)]) == 0
    assert read(target) == expected
    assert f"wrote {len(rows)} predictions" in capsys.readouterr().out
    if name != "pair":
        words = [" ".join(row) if isinstance(row, list) else row for row in rows]
        assert main(["predict", str(run), "--task", name, "--json", *words]) == 0
        printed = json.loads(capsys.readouterr().out)
        assert [(row["answer"], row.get("probabilities")) for row in printed] == expected


def test_a_single_prediction_is_counted_in_the_singular(run: Path, tmp_path: Path, capsys: Any) -> None:
    source = tmp_path / "rows.csv"
    write(source, [record_of("yesno", ROWS["yesno"][0])])
    for named in (["--task", "yesno"], []):
        assert main(["predict", str(run), *named, "--input", str(source), "--output", str(tmp_path / "out.csv")]) == 0
        assert "wrote 1 prediction to " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("suffix", "out"),
    [
        (".jsonl", ".parquet"),
        pytest.param(".csv", ".jsonl", marks=pytest.mark.slow),
        pytest.param(".parquet", ".csv", marks=pytest.mark.slow),
    ],
)
def test_rows_of_several_tasks_keep_their_order(run: Path, suffix: str, out: str, tmp_path: Path) -> None:
    source, target = tmp_path / f"rows{suffix}", tmp_path / f"answers{out}"
    write(source, [{"which": name} | record_of(name, row) for name, row in MIXED])
    argv = ["predict", str(run), "--task-column", "which", "--input", str(source), "--output", str(target)]
    assert main(argv) == 0
    expected = wanted(run, [row for _, row in MIXED], [name for name, _ in MIXED])
    assert read(target) == expected


def rows_file(folder: Path, name: str, content: str) -> list[str]:
    (folder / name).write_text(content, encoding="utf-8")
    return ["--input", str(folder / name)]


@pytest.mark.parametrize(
    ("name", "content", "options", "says"),
    [
        ("r.csv", "text,t\nw1,yesno\nw2,yseno\n", ["--task-column", "t"], "r.csv:3: task 'yseno' is not learned in"),
        ("r.csv", "text,t\nw1,yesno\nw2,\n", ["--task-column", "t"], "r.csv:3: --task-column t: it holds ''"),
        ("r.csv", "text\nw1\n", ["--task-column", "t"], "r.csv:2: --task-column t: there is no such column, only 'text'"),
        ("r.txt", "w1\n", ["--task-column", "t"], "r.txt has no columns"),
        ("r.csv", "text\nw1\n", ["--task-column", "text"], "this name is reserved"),
        ("r.csv", "text,n\nw1,1\n ,2\n", ["--task", "yesno"],
         "r.csv:3: task 'yesno' reads the column 'text', which is empty here: fill it"),
        ("r.csv", "text,text_pair\nw1,\n", ["--task", "pair"],
         "r.csv:2: task 'pair' reads the column 'text_pair', which is empty here: fill it"),
        ("r.jsonl", '{"tokens": []}\n', ["--task", "words"],
         "r.jsonl:1: task 'words' reads the column 'tokens', which is empty here: fill it"),
        ("r.txt", "w1\n\nw2\n", ["--task", "yesno"], "r.txt:2: this text is empty, and every row needs a text"),
        ("r.jsonl", '{"text": "w1"}\n{"text": null}\n', ["--task", "yesno"],
         "r.jsonl:2: task 'yesno' reads the column 'text', which is null here: fill it"),
        ("r.jsonl", '{"text": "a\\ud800"}\n', ["--task", "yesno"], r"r.jsonl:1: column 'text' holds '\ud800', an unpaired"),
        ("r.csv", "text;label\na;b\n", ["--task", "yesno"], "Are these several columns? .csv files use commas"),
        ("r.csv", "text;label\na, b;c\n", ["--task", "yesno"],
         "r.csv:2: 2 fields instead of 1. The header names 1 column ('text;label'). Are these several columns? .csv"),
        ("r.csv", "text,text\na,b\n", ["--task", "yesno"], "names column 'text' twice"),
        ("r.csv", "", ["--task", "yesno"], "r.csv: this file is empty (0 bytes)"),
        ("r.csv", "text\n", ["--task", "yesno"], "r.csv: it has no rows"),
        ("r.parquet", "PAR", ["--task", "yesno"], "r.parquet: cannot be read as parquet"),
        ("r.csv.gz", "text\n", ["--task", "yesno"], "the name ends in .gz, but the file is not compressed with gzip"),
        ("r.csv", "text\nw1\n", ["--task", "yesno", "--task-column", "t"], "both were given"),
        ("r.csv", "text\nw1\n", ["--task", "yesno", "--batch-size", "0"], "--batch-size: got 0"),
        ("r.csv", "text\nw1\n", ["--task", "yesno", "w1"], "texts and --input were both given"),
    ],
)  # fmt: skip
def test_invalid_input_is_reported_before_predicting(
    run: Path, tmp_path: Path, capsys: Any, name: str, content: str, options: list[str], says: str
) -> None:
    output = tmp_path / "answers.csv"
    output.write_text("as it was")
    argv = ["predict", str(run), *rows_file(tmp_path, name, content), *options, "--output", str(output)]
    assert main(argv) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert "Traceback" not in shown.err
    assert output.read_text() == "as it was"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({name, "answers.csv"})


@pytest.mark.parametrize(
    ("task", "words", "says"),
    [
        ("yesno", ["w1", ""], "text 2: this text is empty, and every row needs a text; fill it, or leave the row out."),
        ("yesno", ["  \t "], "text 1: this text is empty"),
        ("words", [" "], "text 1: this text is empty"),
        ("pair", ["w1\t "], "text 1: the second text of this pair is empty"),
        ("pair", [""], "text 1: the first text of this pair is empty"),
    ],
)
def test_empty_text_is_refused(run: Path, task: str, words: list[str], says: str, capsys: Any) -> None:
    assert main(["predict", str(run), "--task", task, *words]) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(("given", "lines"), [("w1\nw2\n\n \n", 2), ("w1\n\nw2\n", 0), ("\n", 0)])
def test_blank_lines_are_ignored_only_at_the_end_of_standard_input(
    run: Path, given: str, lines: int, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
    assert main(["predict", str(run), "--task", "yesno"]) == (0 if lines else 2)
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == lines
    if not lines:
        assert ("text 2: this text is empty" if "w1" in given else "there are no rows to predict") in shown.err


@pytest.mark.parametrize("link", [None, "symlink_to", "hardlink_to"])
def test_input_is_not_overwritten(run: Path, tmp_path: Path, link: str | None, capsys: Any) -> None:
    source = target = tmp_path / "rows.csv"
    source.write_text("text\nw1\n")
    if link is not None:
        target = tmp_path / "answers.csv"
        getattr(target, link)(source)
    assert main(["predict", str(run), "--task", "yesno", "--input", str(source), "--output", str(target)]) == 2
    assert (
        f"--output {target}: this is the file given with --input, which would be overwritten" in capsys.readouterr().err
    )
    assert source.read_text() == target.read_text() == "text\nw1\n"


def test_task_column_requires_an_input_file(run: Path, capsys: Any) -> None:
    assert main(["predict", str(run), "--task-column", "t", "w1"]) == 2
    assert "names a column of a file" in capsys.readouterr().err


def test_rows_are_read_lazily(run: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input may be of any length, as only one window of it is in memory."""
    taken, asked = [0], []

    def lines() -> Iterator[str]:
        for number in range(300):
            taken[0] += 1
            yield f"w{number % 100}\n"

    class Input:
        def __iter__(self) -> Iterator[str]:
            return lines()

        def isatty(self) -> bool:
            return False

    answer = Run.predict

    def spy(self: Run, rows: Sequence[Any], *more: Any, **options: Any) -> Any:
        asked.append((len(rows), taken[0]))
        return answer(self, rows, *more, **options)

    monkeypatch.setattr("sys.stdin", Input())
    monkeypatch.setattr(Run, "predict", spy)
    assert main(["predict", str(run), "--task", "yesno", "--batch-size", "4"]) == 0
    window = 4 * command.NUM_BATCHES
    assert asked == [(window, window), (window, 2 * window), (300 - 2 * window, 300)]
    assert len(capsys.readouterr().out.splitlines()) == 300


def test_mistake_after_the_first_window_leaves_no_output(run: Path, tmp_path: Path, capsys: Any) -> None:
    """A row with too many words for the backbone is only noticed when it is tokenised."""
    rows = [["w1"]] * 40 + [["w1"] * 2000]
    source, target = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl"
    write(source, [{"tokens": row} for row in rows])
    argv = ["predict", str(run), "--task", "words", "--input", str(source), "--output", str(target)]
    assert main([*argv, "--batch-size", "1"]) == 2
    said = capsys.readouterr().err
    assert f"--input {source}:41: task 'words': it has 2000 words" in said
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def test_json_reports_the_written_file(run: Path, tmp_path: Path, capsys: Any) -> None:
    target = tmp_path / "answers.csv"
    assert main(["predict", str(run), "--task", "yesno", "--json", "--output", str(target), "w1", "w2"]) == 0
    assert json.loads(capsys.readouterr().out) == {"output": str(target), "answers": {"yesno": 2}}


def test_numbers_have_six_digits_in_text_and_all_in_json(run: Path, capsys: Any) -> None:
    argv = ["predict", str(run), "--task", "number", *ROWS["number"]]
    values = [value for value, _ in wanted(run, ROWS["number"], "number")]
    assert main(argv) == 0
    assert capsys.readouterr().out.splitlines() == [f"{value:.6g}" for value in values]
    assert main([*argv, "--json"]) == 0
    assert [record["answer"] for record in json.loads(capsys.readouterr().out)] == values


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (["--task", "yesno", "--", "--w1", "-w2"], ["--w1", "-w2"]),
        (["w1", "--task", "yesno", "w2", "--json"], ["w1", "w2"]),
        (["--task", "yesno", "-5 degrees", "-w3"], ["-5 degrees", "-w3"]),
    ],
)
def test_texts_may_be_anywhere_and_look_like_options(
    run: Path, words: list[str], texts: list[str], capsys: Any
) -> None:
    assert main(["predict", str(run), "--json", *words]) == 0
    assert [record["text"] for record in json.loads(capsys.readouterr().out)] == texts


@pytest.mark.parametrize("terminal", [False, True])
def test_standard_input_is_utf_8_with_any_line_end(
    run: Path, terminal: bool, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\ufeffw1\r\nw2\u2028é\nw3".encode()), "ascii"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: terminal, raising=False)
    assert main(["predict", str(run), "--task", "yesno", "--json"]) == 0
    shown = capsys.readouterr()
    assert [record["text"] for record in json.loads(shown.out)] == ["w1", "w2\u2028é", "w3"]
    assert ("Ctrl-D" in shown.err) == terminal
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"w1\n\xff\n"), "utf-8"))
    assert main(["predict", str(run), "--task", "yesno"]) == 2
    assert "standard input: not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("named", [True, False])
def test_formulas_in_csv_are_escaped_unless_raw(run: Path, tmp_path: Path, named: bool) -> None:
    source, task = tmp_path / "rows.csv", ["--task", "yesno"] if named else ["--reject", "never"]
    write(source, [{"text": "=w1", "@note": "-2+3", "share": "-0.5"}])
    for raw, begin in ((["--raw-csv"], ""), ([], "'")):
        target = tmp_path / f"answers{len(raw)}.csv"
        assert main(["predict", str(run), *task, "--input", str(source), "--output", str(target), *raw]) == 0
        (record,) = csv.DictReader(io.StringIO(target.read_text("utf-8")))
        assert (record["text"], record["share"]) == (f"{begin}=w1", "-0.5")
        assert record[f"{begin}@note"] == f"{begin}-2+3"


BAD_ROWS = (
    '{"text": "w1", "n": 1}\nnot json\n{"text": "  ", "n": 2}\n{"text": null}\n{"text": "w2", "n": 3}\n{"n": 4}\n'
)


@pytest.mark.parametrize("named", [["--task", "yesno"], []])
def test_bad_rows_are_left_out_and_written_with_the_reasons(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], named: list[str]
) -> None:
    output = tmp_path / "out.jsonl"
    argv = ["predict", str(run), *named, *rows_file(tmp_path, "r.jsonl", BAD_ROWS), "--output", str(output)]
    assert main([*argv, "--bad-rows", "skip"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"; 4 of the input's rows cannot be used and are left out: {output}.bad-rows.jsonl says why" in shown
    assert [json.loads(line)["n"] for line in output.read_text().splitlines()] == [1, 3]
    left = [json.loads(line) for line in Path(f"{output}.bad-rows.jsonl").read_text().splitlines()]
    assert [row["row"] for row in left] == [2, 3, 4, 6]
    assert left[0]["reason"] == "not JSON (Expecting value, at character 1). Repair it, or leave it out."
    assert "empty here: fill it" in left[1]["reason"]
    assert left[1]["record"] == {"text": "  ", "n": 2}
    assert main([*argv, "--bad-rows", "skip", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bad_rows"] == 4


def test_all_bad_rows_are_reported_at_once_with_the_ids_of_the_user(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = "".join(
        f'{{"text": {json.dumps("" if n % 2 else None if n == 4 else "w1")}, "id": "q{n}", "idx": {n}}}\n'
        for n in range(20)
    )
    rows = rows_file(tmp_path, "r.jsonl", content + "no json\n")
    place = rows[1]
    for named, reads in ((["--task", "yesno"], "task 'yesno' reads"), ([], "a row without a task name reads")):
        assert main(["predict", str(run), *named, *rows]) == 2
        said = capsys.readouterr()
        assert said.out == "", "nothing is predicted"
        assert said.err.removeprefix("continual-petl: ").splitlines() == [
            f"--input {place}: 12 rows cannot be used:",
            f"--input {place}:2 (id 'q1'), 4 (id 'q3'), 6 (id 'q5'), 8 (id 'q7'), 10 (id 'q9') and 5 more: {reads} the "
            "column 'text', which is empty here: fill it, or leave the row out.",
            f"--input {place}:5 (id 'q4'): {reads} the column 'text', which is null here: fill it, or leave the row out.",
            f"--input {place}:21: not JSON (Expecting value, at character 1). Repair it, or leave it out.",
        ]


def test_the_id_of_a_row_is_named_far_down_in_a_table(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = "guid,text\n" + "".join(f"g{n},{'' if n == 1500 else 'w1'}\n" for n in range(1600))
    assert main(["predict", str(run), "--task", "yesno", *rows_file(tmp_path, "r.csv", content)]) == 2
    assert "r.csv:1502 (guid 'g1500'): task 'yesno' reads the column 'text', which is empty" in capsys.readouterr().err


def test_many_reasons_are_counted(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = "".join(f'{{"text": {n}}}\n' for n in range(30))
    assert main(["predict", str(run), "--task", "yesno", *rows_file(tmp_path, "r.jsonl", content)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].endswith("r.jsonl: 30 rows cannot be used:")
    assert (
        "r.jsonl:5: task 'yesno' reads the column 'text' as a text; here it holds 4. Write it in this form" in said[5]
    )
    assert said[6] == "and 25 more rows for other reasons"


def test_similar_reports_faults_also_beyond_the_rows_it_takes(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from continual_petl.cli.commands import similar

    monkeypatch.setattr(similar, "MAX_ROWS", 3)
    for bad in (1, 8):
        lines = ['{"text": "w1"}'] * 10
        lines[bad] = "no json"
        _, path = rows_file(tmp_path, "r.jsonl", "\n".join(lines))
        assert main(["similar", str(run), path]) == 2
        assert f"r.jsonl:{bad + 1}: not JSON (Expecting value" in capsys.readouterr().err


def test_bad_rows_are_refused_unless_they_are_to_be_left_out(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = rows_file(tmp_path, "r.jsonl", BAD_ROWS)
    assert main(["predict", str(run), "--task", "yesno", *rows, "--output", str(tmp_path / "out.csv")]) == 2
    assert main(["predict", str(run), "--task", "yesno", *rows, "--bad-rows", "skip"]) == 2
    assert "--bad-rows skip: needs --input and --output" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["r.jsonl"]


def test_blank_lines_between_texts_are_bad_rows(run: Path, tmp_path: Path) -> None:
    rows = rows_file(tmp_path, "r.txt", "w1\n\n \nw2\n\n")
    output = tmp_path / "out.jsonl"
    argv = ["predict", str(run), "--task", "yesno", *rows, "--output", str(output), "--bad-rows", "skip"]
    assert main(argv) == 0
    assert len(output.read_text().splitlines()) == 2
    left = [json.loads(line) for line in Path(f"{output}.bad-rows.jsonl").read_text().splitlines()]
    assert [row["row"] for row in left] == [2, 3]


@pytest.mark.parametrize("name", ["r.json", "r.ndjson", "r.arrow", "r.feather", "r.csv.zst"])
def test_every_format_that_is_learned_from_is_predicted(run: Path, tmp_path: Path, name: str, capsys: Any) -> None:
    import pyarrow as pa
    import pyarrow.feather

    path, rows = tmp_path / name, [{"text": "w1"}, {"text": "w2"}]
    if name in ("r.arrow", "r.feather"):
        pyarrow.feather.write_feather(pa.Table.from_pylist(rows), str(path))
    elif name == "r.csv.zst":
        path.write_bytes(pa.Codec("zstd").compress(b"text\nw1\nw2\n", asbytes=True))
    else:
        path.write_text(json.dumps(rows) if name == "r.json" else "".join(json.dumps(row) + "\n" for row in rows))
    assert main(["predict", str(run), "--task", "yesno", "--json", "--input", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["answer"], row["probabilities"]) for row in found] == wanted(run, ["w1", "w2"], "yesno")


def test_a_row_of_words_in_a_json_file_is_one_row(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A single object of lists is otherwise read as columns."""
    rows = rows_file(tmp_path, "r.json", '{"tokens": ["w1", "w2", "w3"]}\n')
    assert main(["predict", str(run), "--task", "words", *rows, "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert len(record["answer"]) == 3
    rows = rows_file(tmp_path, "r.json", '{"text": ["w1", "w2", "w3"]}\n')
    assert main(["predict", str(run), "--task", "yesno", *rows, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 3


@pytest.mark.parametrize("named", [["--task", "yesno"], ["--reject", "never"]])
@pytest.mark.parametrize("out", [".jsonl", ".csv", ".parquet"])
def test_dates_are_texts_to_predict_and_keep_their_type_where_they_are_copied(
    run: Path, tmp_path: Path, named: list[str], out: str
) -> None:
    from datetime import date

    import pyarrow as pa
    import pyarrow.parquet as pq

    source, target = tmp_path / "rows.parquet", tmp_path / f"out{out}"
    pq.write_table(
        pa.table({"text": pa.array([date(2024, 1, 2), date(2024, 5, 6)]), "more": [[date(2024, 1, 2)]] * 2}), source
    )
    assert main(["predict", str(run), *named, "--input", str(source), "--output", str(target)]) == 0
    texts = ["2024-01-02", "2024-05-06"]
    opened = Run(run)
    nearest = len(named) == 2 and named[0] == "--reject"
    predictions = opened.predict(texts, reject="never") if nearest else opened.predict(texts, task="yesno")
    expected = [prediction.value for prediction in predictions]
    assert [value for value, _ in read(target)] == expected
    if out == ".parquet":
        assert pq.read_table(target).select(["text", "more"]).equals(pq.read_table(source))
