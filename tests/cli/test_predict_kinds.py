"""``predict`` for every task kind: rows as arguments and in files; lines for people, JSON and tables for programs."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from continual_petl import Run, learn
from continual_petl.cli.main import main
from tests.streams_in_code import stream, task_of_kind, with_columns

Folder = Callable[..., Path]
KINDS = {"multilabel": "bart", "token-classification": "bart", "seq2seq": "bart", "causal-lm": "gpt2"}
IMAGES = "image-classification"
COLUMNS = {"seq2seq": {"source": "article", "target": "summary"}, IMAGES: {"image": "picture"}}
"""Kinds whose data has non-standard column names."""


@pytest.fixture(scope="module")
def runs(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the run folder of each kind; every task is named after its kind."""
    folder = tmp_path_factory.mktemp("runs")
    for family in ("bart", "gpt2", "vit"):
        kinds = [kind for kind, its in {**KINDS, IMAGES: "vit"}.items() if its == family]
        tasks = [with_columns(task_of_kind(kind, num_rows=16), **COLUMNS.get(kind, {})) for kind in kinds]
        learn(stream(backbone_folder(family), tasks, backbone={"name": str(backbone_folder(family))}), folder / family)
    return {kind: folder / family for kind, family in {**KINDS, IMAGES: "vit"}.items()}


@pytest.fixture
def predict(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def call(kind: str, *words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(["predict", str(runs[kind]), "--task", kind, *words]) == code
        shown = capsys.readouterr()
        return shown.err if code else shown.out

    return call


def records(predict: Callable[..., str], kind: str, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(predict(kind, *words, "--json"))
    return found


def test_predict_multilabel(predict: Callable[..., str]) -> None:
    one, two = records(predict, "multilabel", "w10 w11", "w12")
    assert set(one) == {"text", "answer", "probabilities", "truncated"}
    assert one["answer"] == [name for name, share in one["probabilities"].items() if share > 0.5]
    assert list(one["probabilities"]) == ["x", "y", "z"]
    lines = predict("multilabel", "w10 w11", "w12").splitlines()
    wanted = "\t".join(f"{name} {two['probabilities'][name]:.4f}" for name in two["answer"]) or "(none)"
    assert lines[1] == wanted


def test_predict_token_classification(predict: Callable[..., str], tmp_path: Path) -> None:
    (record,) = records(predict, "token-classification", "w10 w11 w12")
    assert record["tokens"] == ["w10", "w11", "w12"]
    assert len(record["answer"]) == 3
    assert set(record) == {"tokens", "answer", "truncated"}
    assert predict("token-classification", "w10 w11 w12") == " ".join(record["answer"]) + "\n"
    file = tmp_path / "rows.jsonl"
    as_json = json.dumps(json.dumps(record["tokens"]))  # as for training, whatever the format
    file.write_text(f'{{"tokens": ["w10", "w11", "w12"]}}\n{{"tokens": "w10 w11 w12"}}\n{{"tokens": {as_json}}}\n')
    assert records(predict, "token-classification", "--input", str(file)) == [record] * 3
    table = tmp_path / "answers.csv"
    predict("token-classification", "--input", str(file), "--output", str(table))
    with table.open() as handle:
        rows = list(csv.DictReader(handle))
    assert [json.loads(row["answer"]) for row in rows] == [record["answer"]] * 3


def test_rows_that_only_the_tokenizer_shows_to_be_unusable_are_named_or_left_out(
    predict: Callable[..., str], tmp_path: Path
) -> None:
    file, output = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    long = {40: 200, 41: 200, 55: 300}  # beyond the first portion of 32 rows
    rows = [{"id": f"q{at}", "tokens": ["w1"] * long.get(at, 3)} for at in range(70)]
    file.write_text("no json\n" + "".join(json.dumps(row) + "\n" for row in rows))
    words = ("token-classification", "--input", str(file), "--output", str(output), "--batch-size", "1")
    assert "left out" in " ".join(predict(*words, "--bad-rows", "skip").split())
    written = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["id"] for row in written] == [row["id"] for at, row in enumerate(rows) if at not in long]
    assert all(len(row["answer"]) == 3 for row in written)
    left = [json.loads(line) for line in Path(f"{output}.bad-rows.jsonl").read_text().splitlines()]
    assert [row["row"] for row in left] == [1, 42, 43, 57]
    assert left[3]["record"] == rows[55]
    assert "task 'token-classification': it has 300 words, but only the first " in left[3]["reason"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = predict(*words, code=2)
    assert f"--input {file}:41 (id 'q40'), 42 (id 'q41'): task 'token-classification': it has 200 words" in said
    assert f"--input {file}:56 (id 'q55'): task 'token-classification': it has 300 words" in said


def test_show_counts_wrong_tags_as_words(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    rows = task_of_kind("token-classification", num_rows=16)["data"]["test"]
    found: Any = Run(runs["token-classification"]).predict([row["tokens"] for row in rows], "token-classification")
    pairs = Counter(
        pair for row, each in zip(rows, found, strict=True) for pair in zip(row["tags"], each.value, strict=True)
    )
    (true, wrong), count = max(((pair, n) for pair, n in pairs.items() if pair[0] != pair[1]), key=lambda each: each[1])
    assert main(["show", str(runs["token-classification"]), "token-classification"]) == 0
    assert f"{true} predicted as {wrong}: {count} word" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("kind", ["seq2seq", "causal-lm"])
def test_predict_generated_texts(predict: Callable[..., str], tmp_path: Path, kind: str) -> None:
    (record,) = records(predict, kind, "w10 w11")
    assert set(record) == {"source", "answer", "truncated"}
    assert predict(kind, "w10 w11") == f"{record['answer']}\n"
    file, answers = tmp_path / "rows.tsv", tmp_path / "answers.jsonl"
    file.write_text("source\tmore\nw10 w11\tx\n")
    predict(kind, "--input", str(file), "--output", str(answers))
    assert [json.loads(line) for line in answers.read_text().splitlines()] == [{**record, "more": "x"}]
    file.write_text(f"more\t{COLUMNS.get(kind, {}).get('source', 'source')}\nx\tw10 w11\n")
    assert records(predict, kind, "--input", str(file)) == [record]


@pytest.mark.parametrize("kind", ["multilabel", "seq2seq", "causal-lm"])
def test_empty_text_is_refused(predict: Callable[..., str], kind: str) -> None:
    assert "text 2: this text is empty, and every row needs a text" in predict(kind, "w10", "", code=2)


def test_predict_images(predict: Callable[..., str], tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image")
    path = tmp_path / "light.png"
    Image.fromarray(np.full((6, 6, 3), 240, dtype=np.uint8)).save(path)
    (record,) = records(predict, IMAGES, str(path))
    assert record["image"] == str(path)
    assert record["answer"] in ("dark", "light")
    assert sum(record["probabilities"].values()) == pytest.approx(1)
    table = tmp_path / "rows.csv"
    for column in ("image", "picture"):
        table.write_text(f"{column}\n{path}\n")
        assert records(predict, IMAGES, "--input", str(table)) == [record]


@pytest.mark.parametrize("column", ["image", "picture"])
def test_images_within_a_file_are_predicted_as_they_are_learned_from(
    predict: Callable[..., str], tmp_path: Path, column: str
) -> None:
    Image = pytest.importorskip("PIL.Image")
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = [tmp_path / "light.png", tmp_path / "dark.png"]
    for path, level in zip(paths, (240, 3), strict=True):
        Image.fromarray(np.full((6, 6, 3), level, dtype=np.uint8)).save(path)
    answers = [(row["answer"], row["probabilities"]) for row in records(predict, IMAGES, *map(str, paths))]
    size = f"{paths[0].stat().st_size:,} bytes"
    held = [path.read_bytes() for path in paths]
    source, target = tmp_path / "rows.parquet", tmp_path / "out.parquet"
    for cells, names in (
        (held, [size, f"{len(held[1]):,} bytes"]),
        ([{"bytes": own, "path": None} for own in held], [size, f"{len(held[1]):,} bytes"]),
        ([{"bytes": own, "path": f"{at}.png"} for at, own in enumerate(held)], ["0.png", "1.png"]),
    ):
        table = pa.table({column: cells, "id": [1, 2]})
        pq.write_table(table, source)
        found = records(predict, IMAGES, "--input", str(source))
        assert [(row["answer"], row["probabilities"]) for row in found] == answers
        assert [row["image"] for row in found] == names
        predict(IMAGES, "--input", str(source), "--output", str(target))
        written = pq.read_table(target)
        assert written.select(table.column_names) == table
        assert written["answer"].to_pylist() == [answer for answer, _ in answers]
    pq.write_table(pa.table({column: [{"bytes": held[0], "path": None}, {"bytes": None, "path": None}]}), source)
    assert "rows.parquet:2: task 'image-classification' reads the column" in predict(
        IMAGES, "--input", str(source), code=2
    )
    says = predict(IMAGES, "--input", str(source), "--output", str(tmp_path / "out.jsonl"), code=2)
    assert "which .jsonl and .csv cannot hold; write --output as .parquet" in " ".join(says.split())
    pq.write_table(pa.table({column: [{"bytes": b"no image", "path": None}]}), source)
    assert "Traceback" not in predict(IMAGES, "--input", str(source), code=2)


def test_rows_are_not_left_out_because_a_package_is_missing(
    predict: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "light.png").touch()
    table, output = tmp_path / "rows.csv", tmp_path / "out.csv"
    table.write_text(f"image\n{tmp_path / 'light.png'}\n")
    for name in ("PIL", "PIL.Image"):
        monkeypatch.setitem(sys.modules, name, None)
    words = ("--input", str(table), "--output", str(output), "--bad-rows", "skip")
    assert "pip install continual-petl[image]" in " ".join(predict(IMAGES, *words, code=2).split())


def test_missing_image_is_reported(predict: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    shown = predict(IMAGES, str(tmp_path / "none.png"), code=2)
    assert "none.png" in shown


@pytest.mark.parametrize(
    ("kind", "line", "says"),
    [
        (
            "token-classification",
            '{"text": "w1"}',
            "reads the column 'tokens'; found 'text'. Rename the column to match.",
        ),
        (
            "token-classification",
            '{"tokens": [1]}',
            "'tokens' as a list of words, or a text with spaces between the words",
        ),
        (
            "seq2seq",
            '{"text": "w1"}',
            "reads the column 'article' (or 'source'); found 'text'. Rename the column to match.",
        ),
        (
            IMAGES,
            '{"picture": 3}',
            "'picture' as an image: its path, a PIL image, an array, or a mapping with its bytes; here it holds 3",
        ),
    ],
)
def test_rows_in_custom_columns(predict: Callable[..., str], tmp_path: Path, kind: str, line: str, says: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(line + "\n")
    told = " ".join(predict(kind, "--input", str(file), code=2).split())
    assert f"rows.jsonl:1: task '{kind}' reads " in told
    assert says in told


def test_line_breaks_in_texts_are_escaped(predict: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "continual_petl.predictor.row_checks.decode", lambda tokenizer, rows, stop: ["a\nb" for _ in rows]
    )
    assert predict("seq2seq", "w10") == "a\\nb\n"


def test_answer_formats_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["predict", "--help"])
    shown = capsys.readouterr().out
    for form in ('"answer": "sport"', '"answer": 3.2', '"answer": ["a", "c"]', '"answer": ["B-PER", "O"]', "a text"):
        assert form in shown
    assert r"with \n for a line break" in shown
