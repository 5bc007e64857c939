"""Every format that people have becomes a draft that passes a dry run, is learned, and predicts its own rows."""

from __future__ import annotations

import csv
import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from continual_petl.cli.main import main
from continual_petl.streams.schema.stream_spec import DataSpec, TaskSpec
from continual_petl.streams.stream_file.yaml_file import load_stream
from tests.tiny import WORDS

Folder = Callable[..., Path]


def zipped(name: str) -> bytes:
    """Return a zip archive with one file."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr(name, "text,label\n")
    return made.getvalue()


DRAW = random.Random(1)


def words(number: int) -> list[str]:
    return DRAW.choices(WORDS, k=number)


def text(number: int = 5) -> str:
    return " ".join(words(number))


def conll(number: int, columns: int = 4) -> str:
    lines = ["-DOCSTART- -X- -X- O", ""]
    for size in DRAW.choices(range(1, 6), k=number):
        for word in words(size):
            lines.append(" ".join([*[word, "NN", "B-NP"][: columns - 1], DRAW.choice(["O", "B-PER", "I-PER"])]))
        lines.append("")
    return "\n".join(lines)


def conllu(number: int) -> str:
    lines = []
    for sentence in range(number):
        lines += [f"# sent_id = s-{sentence}", "# text = anything", "1-2\tw1w2" + "\t_" * 8]
        for place, word in enumerate(words(3), 1):
            lines.append(f"{place}\t{word}\t{word}\t{DRAW.choice(['NOUN', 'VERB'])}\t_\t_\t0\troot\t_\t_")
            lines += ["1.1\tghost" + "\t_" * 8] if place == 1 else []
        lines.append("")
    return "\n".join(lines)


def images(folder: Path, number: int = 8) -> None:
    pillow = pytest.importorskip("PIL.Image")
    for name, shade in (("cat", 10), ("dog", 200)):
        (folder / name).mkdir(parents=True)
        for each in range(number):
            pillow.fromarray(np.full((8, 8, 3), shade + each, np.uint8)).save(folder / name / f"{each}.png")


def paragraph() -> dict[str, Any]:
    found = words(8)
    start = len(" ".join(found[:3])) + 1
    asked = {"id": text(1), "question": text(2), "answers": [{"text": found[3], "answer_start": start}]}
    return {"context": " ".join(found), "qas": [asked, {"question": text(2), "answers": [], "is_impossible": True}]}


def rows() -> list[dict[str, Any]]:
    return [{"text": text(), "label": DRAW.choice(["no", "yes"])} for _ in range(40)]


def written(path: Path, content: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)


def squad(path: Path) -> None:
    written(path, json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": [paragraph()] * 9}] * 3}))


def saved(path: Path) -> None:
    known = datasets.Dataset.from_list(rows()).class_encode_column("label")
    datasets.DatasetDict(train=known, test=known.select(range(9))).save_to_disk(path)


def both(path: Path, make: Callable[[Path], None]) -> None:
    for split in ("train", "test"):
        make(path / split)


NAMES = ["sport", "world news", "art"]


def table(path: Path, number: int = 60, **cells: Any) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, cells)
        writer.writeheader()
        writer.writerows({name: cell() for name, cell in cells.items()} for _ in range(number))


def flag() -> int:
    return DRAW.choice([0, 1])


FLAGS: dict[str, Any] = dict.fromkeys(NAMES, flag)


def several() -> list[str]:
    return DRAW.sample(NAMES, DRAW.randint(0, 3))


def json_lines(path: Path, row: Callable[[], dict[str, Any]], number: int = 40) -> None:
    written(path, "".join(json.dumps(row()) + "\n" for _ in range(number)))


MAKE: dict[str, Callable[[Path], None]] = {
    "ner/train.conll": lambda path: written(path, conll(40)),
    "ner.bio": lambda path: written(path, conll(40, columns=2)),
    "ud/en_x-ud-train.conllu": lambda path: written(path, conllu(40)),
    "pets": images,
    "pets-by-split": lambda path: both(path, images),
    "squad.json": squad,
    "saved": saved,
    "dict.json": lambda path: written(
        path, json.dumps({key: [row[key] for row in rows()] for key in ("text", "label")})
    ),
    "data.json": lambda path: written(path, json.dumps({"version": "1", "data": rows()})),
    "bars.csv": lambda path: table(path, text=text, labels=lambda: "|".join(several())),
    "flags.csv": lambda path: table(path, id=text, text=text, **FLAGS),
    "alpaca.jsonl": lambda path: json_lines(
        path, lambda: {"instruction": text(), "input": DRAW.choice(["", text(2)]), "output": text(2)}
    ),
}
CASES: list[tuple[str, str, str, dict[str, str], str]] = [
    ("ner/train.conll", "ner", "token-classification", {"tokens": "tokens", "tags": "tags"}, "ner/train.conll"),
    ("ner.bio", "ner.bio", "token-classification", {"tokens": "tokens", "tags": "tags"}, "ner.bio"),
    ("ud/en_x-ud-train.conllu", "ud", "token-classification", {"tags": "upos"}, "ud/en_x-ud-train.conllu"),
    ("pets", "pets", "image-classification", {"image": "image", "label": "label"}, "pets"),
    ("pets-by-split", "pets-by-split", "image-classification", {"image": "image"}, "pets-by-split/test/cat"),
    ("squad.json", "squad.json", "question-answering", {"answers": "answers"}, "squad.json"),
    ("saved", "saved", "classification", {"text": "text", "label": "label"}, "saved/test"),
    ("dict.json", "dict.json", "classification", {"text": "text", "label": "label"}, "dict.json"),
    ("bars.csv", "bars.csv", "multilabel", {"label": "labels"}, "bars.csv"),
    ("flags.csv", "flags.csv", "multilabel", {"label": ", ".join(NAMES)}, "flags.csv"),
    ("alpaca.jsonl", "alpaca.jsonl", "seq2seq", {"source": "source", "target": "output"}, "alpaca.jsonl"),
    ("data.json", "data.json", "classification", {"text": "text", "label": "label"}, "data.json"),
]


SLOW = ("ner.bio", "pets", "dict.json", "data.json", "alpaca.jsonl")


@pytest.mark.parametrize(
    ("make", "data", "kind", "columns", "rows"),
    [pytest.param(*case, id=case[0], marks=[pytest.mark.slow] * (case[0] in SLOW)) for case in CASES],
)
def test_from_draft_to_predictions(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backbone_folder: Folder,
    capsys: Any,
    make: str,
    data: str,
    kind: str,
    columns: dict[str, str],
    rows: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    MAKE[make](tmp_path / make)
    task = drafted(data, backbone_folder({"image-classification": "vit", "seq2seq": "bart"}.get(kind, "bert")))
    assert task.kind == kind
    assert columns.items() <= task.columns.read_by(kind).items()
    assert predicted(task.name, rows, capsys) > 4


def drafted(data: str, backbone: Path) -> TaskSpec:
    """Return the task that `init` drafts, after a dry run and a run of it."""
    assert main(["init", data, "--backbone", str(backbone)]) == 0
    options = ["--training.epochs", "1", "--bank", "lora", "--quiet"]
    options += [] if backbone.name == "bart" else ["--backbone.pooling", "mean"]
    assert main(["run", "stream.yaml", "--dry-run", *options]) == 0
    assert main(["run", "stream.yaml", "--run-dir", "run", *options]) == 0
    return load_stream("stream.yaml").tasks[0]


def predicted(task: str, rows: str, capsys: Any) -> int:
    """Return the number of predictions for the rows of a file or folder."""
    capsys.readouterr()
    assert main(["predict", "run", "--task", task, "--input", rows, "--output", "answers.jsonl"]) == 0
    return len(Path("answers.jsonl").read_text().splitlines())


def test_tagged_words_are_recognised_whatever_the_name_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backbone_folder: Folder, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for split in ("train", "valid", "test"):
        written(tmp_path / "ner" / f"{split}.txt", conll(30))
    task = drafted("ner", backbone_folder())
    assert isinstance(task.data, DataSpec)
    assert (task.data.path, task.data.data_files) == (
        "conll",
        {"train": "ner/train.txt", "validation": "ner/valid.txt", "test": "ner/test.txt"},
    )
    capsys.readouterr()
    assert main(["predict", "run", "--task", "ner", "--input", "ner/test.txt"]) == 2
    assert "looks like a word and its tag, as in CoNLL files, but in a .txt file" in capsys.readouterr().err
    (tmp_path / "ner/test.txt").rename("test.conll")
    assert predicted("ner", "test.conll", capsys) == 30
    written(tmp_path / "eng.testa", conll(30))
    assert main(["init", "eng.testa", "--force"]) == 0
    assert "data: {path: conll, data_files: {train: eng.testa}}" in (tmp_path / "stream.yaml").read_text()
    written(tmp_path / "pos.txt", "".join(f"The DT\ncat{n} NN\nsleeps VB\n\n" for n in range(20)))  # no entities
    assert main(["init", "pos.txt", "--force"]) == 0
    assert "data: {path: conll, data_files: {train: pos.txt}}" in (tmp_path / "stream.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.xlsx", zipped("xl/workbook.xml"), "this is a spreadsheet of Excel: save its sheet as csv (UTF-8) there"),
        ("a.csv", zipped("xl/workbook.xml"), "this is a spreadsheet of Excel: save its sheet as csv (UTF-8) there"),
        ("a.xls", b"\xd0\xcf\x11\xe0" + bytes(600), "this is a spreadsheet of Excel"),
        (
            "a.zip",
            zipped("train.csv"),
            "this is a zip file, which is not supported: unpack it, and give the file inside",
        ),
        (
            "a.jsonl",
            zipped("train.csv"),
            "this is a zip file, which is not supported: unpack it, and give the file inside",
        ),
        (
            "a.dat",
            b"version https://git-lfs.github.com/spec/v1\n",
            "this is a pointer of Git LFS and not the file itself",
        ),
        (
            "a.conll",
            b"version https://git-lfs.github.com/spec/v1\n",
            "this is a pointer of Git LFS and not the file itself",
        ),
        (
            "a.parquet",
            b"/annex/objects/SHA256E-s1--ab.parquet\n",
            "git-annex and not the file itself: run `git annex get`",
        ),
        ("a.csv", b"404: Not Found", "this file says '404: Not Found' and nothing else, which servers send in place"),
        ("a.json", b"Entry not found\n", "this file says 'Entry not found' and nothing else"),
        ("a.csv", b"\n <!DOCTYPE html><html>", "this is an HTML page, which servers send in place of a file"),
        ("a.conllu", b"", "this file is empty (0 bytes): download or write it again, or leave it out"),
        ("a.bin", b"some text", "the format of a.bin is not recognised by its name"),
    ],
)
def test_what_is_no_data_is_named_for_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, name: str, content: bytes, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_bytes(content)
    assert main(["init", name]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert name in told
    assert not (tmp_path / "stream.yaml").exists()


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["a|b", "a", "b|c", "c", "a|b|c"], "multilabel"),
        (["a; b", "a", "b; c", "c", "a; b; c"], "multilabel"),
        (["a", "b", "c", "a", "a|b"], "multilabel"),
        (["a", "b", "c", "a", "b"], "classification"),
        (["a|b", "c|d", "a|b", "c|d", "a|b"], "classification"),
        (["a|a", "b", "b|a", "b", "a"], "classification"),
    ],
)
def test_cells_are_lists_only_if_their_entries_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: list[str], kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    given = iter(cells * 10)
    table(tmp_path / "rows.csv", number=len(cells) * 10, text=text, genre=lambda: next(given))
    assert main(["init", "rows.csv"]) == 0
    assert load_stream("stream.yaml").tasks[0].kind == kind


@pytest.mark.parametrize(
    ("cells", "kind", "label"),
    [
        (
            {"label": lambda: DRAW.choice(["yes", "no"]), "tags": lambda: "; ".join(several())},
            "classification",
            "label",
        ),
        ({"score": DRAW.random, **FLAGS}, "regression", "score"),
        ({"note": lambda: "the same", **FLAGS}, "multilabel", ", ".join(NAMES)),
        ({name: FLAGS[name] for name in NAMES[:2]}, "classification", NAMES[1]),
    ],
)
def test_a_column_named_like_a_label_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: dict[str, Any], kind: str, label: str
) -> None:
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "rows.csv", text=text, **cells)
    assert main(["init", "rows.csv"]) == 0
    task = load_stream("stream.yaml").tasks[0]
    assert (task.kind, task.columns.read_by(kind)["label"]) == (kind, label)
