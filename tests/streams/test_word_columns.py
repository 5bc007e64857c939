"""Words in columns, one per line: values are those of straightforward readers, and faulty lines are named."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl.errors import InputError
from continual_petl.streams.reader.records import read_records
from continual_petl.streams.reader.wanted import Wanted
from continual_petl.streams.reader.word_columns import looks_like_columns
from continual_petl.streams.schema.data_spec import DataSpec
from continual_petl.streams.schema.limits_spec import DEFAULTS, LimitsSpec
from continual_petl.streams.schema.stream_spec import ColumnsSpec
from continual_petl.streams.sources.read_splits import read_splits

CONLL = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O

# # O O
New\u00a0York NNP B-NP B-LOC
"""
CONLLU = """# newdoc id = d1
# sent_id = s-1
# text = vámonos al mar
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\t_\tMood=Imp\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\tSpaceAfter=No
2.1\tghost\tghost\tVERB\t_\t_\t_\t_\t1:x\t_

# text = mar
1\tmar a b\tmar\tNOUN\t_\t_\t0\troot\t_\t_
"""


def rows_of(
    path: Path, limits: LimitsSpec = DEFAULTS, columns: set[str] | None = None, **more: Any
) -> list[tuple[int, dict[str, Any]]]:
    return [*read_records("here", path, limits, Wanted(columns), **more)]


def written(path: Path, content: str) -> Path:
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def by_builder(text: str) -> list[dict[str, Any]]:
    """Return the rows of the script for conll2003 on the Hub, which splits lines at single spaces."""
    found: list[dict[str, Any]] = []
    tokens: list[str] = []
    tags: list[str] = []
    for line in [*text.split("\n"), ""]:
        if line.startswith("-DOCSTART-") or line == "":
            if tokens:
                found.append({"tokens": tokens, "tags": tags})
                tokens, tags = [], []
        else:
            cells = line.split(" ")
            tokens.append(cells[0])
            tags.append(cells[3].rstrip())
    return found


@pytest.mark.parametrize("name", ["train.conll", "train.conll.gz", "train.iob", "train.bio", "train.iob2"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_conll_is_read_as_by_the_script_on_the_hub(tmp_path: Path, name: str, end: str) -> None:
    found = rows_of(written(tmp_path / name, CONLL.replace("\n", end)))
    assert [{"tokens": row["tokens"], "tags": row["tags"]} for _, row in found] == by_builder(CONLL)
    assert [number for number, _ in found] == [3, 6], "the line of the first word"
    assert found[0][1]["column3"] == ["B-NP", "B-VP"]


WORD = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=5).filter(
    lambda word: not word.startswith(("#", "-DOCSTART-"))
)
SENTENCES = st.lists(st.lists(st.tuples(WORD, WORD, WORD, WORD), min_size=1, max_size=4), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(SENTENCES)
def test_sentences_come_back(tmp_path_factory: pytest.TempPathFactory, sentences: list[list[tuple[str, ...]]]) -> None:
    folder = tmp_path_factory.getbasetemp()
    for between in (" ", "\t"):
        text = "\n\n".join("\n".join(map(between.join, words)) for words in sentences)
        found = rows_of(written(folder / "some.conll", text))
        assert [[*zip(*row.values(), strict=True)] for _, row in found] == [[*map(tuple, words)] for words in sentences]
        if between == " ":
            assert [{"tokens": row["tokens"], "tags": row["tags"]} for _, row in found] == by_builder(text)


@pytest.mark.parametrize("name", ["en-ud-train.conllu", "train.conll"])
def test_conllu_has_words_only(tmp_path: Path, name: str) -> None:
    (_, first), (start, second) = rows_of(written(tmp_path / name, CONLLU))
    assert first["tokens"] == ["vamos", "nos"], "neither the range 1-2 nor the empty word 2.1"
    assert (first["sent_id"], second["sent_id"]) == ("s-1", None)
    assert (first["upos"], first["feats"]) == (["VERB", "PRON"], ["Mood=Imp", "_"])
    assert (start, second["tokens"]) == (9, ["mar a b"])
    files = DataSpec(path="conll", data_files={"train": str(tmp_path / name)})
    columns = ColumnsSpec(tags="upos")
    train = read_splits("t", files, columns, ["train"], kind="token-classification")["train"]
    assert (train.inputs, train.answers) == ([["vamos", "nos"], ["mar a b"]], [["VERB", "PRON"], ["NOUN"]])


def test_comments_before_the_words_are_left_out(tmp_path: Path) -> None:
    text = (
        "#begin document (d); part 0\n# id 5 domain=en\n#win _ _ O\nw1 _ _ B-X\n\n#end document\n\n# 7 _ O\nw2 _ _ O\n"
    )
    found = rows_of(written(tmp_path / "a.conll", text))
    assert [row["tokens"] for _, row in found] == [["#win", "w1"], ["#", "w2"]]


@pytest.mark.parametrize(
    ("text", "tokens", "last"),
    [
        ("# sent_id = 1\nEU NNP B-NP B-ORG\n", ["EU"], ["B-ORG"]),
        ("#\tsent_id\t=\t1\nEU\tNNP\tB-NP\tB-ORG\n", ["EU"], ["B-ORG"]),
        ("# newpar\nEU B-ORG\n", ["EU"], ["B-ORG"]),
        ("# newdoc\nEU B-ORG\n", ["EU"], ["B-ORG"]),
        ("# newpar id = p1\nEU B-ORG\n", ["EU"], ["B-ORG"]),
        ("# text =\nEU NNP B-ORG\n", ["EU"], ["B-ORG"]),
        ("#1 NOUN X Case=Nom\nx VERB X Tense=Past\n", ["#1", "x"], ["Case=Nom", "Tense=Past"]),
        ("#win O\nw O\n", ["#win", "w"], ["O", "O"]),
        ("# O\nw O\n", ["#", "w"], ["O", "O"]),
        ("w O\n# newpar\n", ["w", "#"], ["O", "newpar"]),
        ("#a=1\nx\n", ["#a=1", "x"], None),
        ("#\nx\n", ["#", "x"], None),
    ],
)
def test_comments_are_told_from_words(tmp_path: Path, text: str, tokens: list[str], last: list[str] | None) -> None:
    ((_, row),) = rows_of(written(tmp_path / "a.conll", text))
    assert (row["tokens"], row.get("tags")) == (tokens, last)


@pytest.mark.parametrize("between", [" ", "\t"])
def test_spaces_beside_a_tag_make_no_other_tag(tmp_path: Path, between: str) -> None:
    lines = [("EU", "B-ORG"), ("x ", "O"), ("y", "O "), ("z", "  O  ")]
    ((_, row),) = rows_of(written(tmp_path / "a.conll", "\n".join(map(between.join, lines))))
    assert row == {"tokens": ["EU", "x", "y", "z"], "tags": ["B-ORG", "O", "O", "O"]}
    ((_, row),) = rows_of(written(tmp_path / "a.conllu", "\t".join(["1", "New York ", "w", " NOUN ", *"_" * 6])))
    assert (row["tokens"], row["upos"]) == (["New York"], ["NOUN"])


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\r\r\n"])
def test_a_document_ends_a_sentence_and_any_line_end_a_line(tmp_path: Path, end: str) -> None:
    text = CONLL.replace("\n\n", "\n") + "-DOCSTART- O\nlast X X O\n-DOCSTART-x X X O\n\n\nnext X X O"
    found = rows_of(written(tmp_path / "a.conll", text.replace("\n", end)))
    assert [(number, row["tokens"]) for number, row in found] == [
        (2, ["EU", "rejects", "#", "New\u00a0York"]),
        (7, ["last", "-DOCSTART-x"]),
        (11, ["next"]),
    ]
    path = written(tmp_path / "a.txt", text.replace("\n", end))
    assert looks_like_columns(str(path))


def test_words_without_tags_can_be_predicted(tmp_path: Path) -> None:
    assert [row for _, row in rows_of(written(tmp_path / "a.conll", "w1\nw2\n\nw3\n"))] == [
        {"tokens": ["w1", "w2"]},
        {"tokens": ["w3"]},
    ]


def test_columns_that_are_not_asked_for_are_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "a.conll", "w1 NN O\n\n" * 1200)
    found = [row for _, row in rows_of(path, columns={"tokens", "tags"})]
    assert [*found[0]] == ["tokens", "column2", "tags"]
    assert [*found[-1]] == ["tokens", "tags"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "a.conll",
            "w1 O\nw2\n\nw3 O\n\nw4 x O\n",
            "2 lines cannot be read: line 2: 1 column, but 2 are expected; line 6: 3",
        ),
        (
            "a.conll",
            "w1\tO\nw2\t\n",
            "line 2: column 2 is empty. Every word needs 2 columns, and every sentence a blank line",
        ),
        (
            "a.conllu",
            "1\tw1" + "\t_" * 8 + "\n3\tw2" + "\t_" * 8,
            "line 2: the id of the word is '3', but 2 was expected",
        ),
        ("a.conllu", "w1 O\n", "line 1: 1 column, but 10 are expected. Every word needs 10 columns, and every"),
        ("a.conll", "-DOCSTART- O\n\n# a\n", "here: there are no words in this file"),
        ("a.conll", "w1 O\n" * 3000, "the sentence that begins on line 1 has more than 0.01 million characters"),
    ],
)
def test_faulty_lines_are_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        rows_of(written(tmp_path / name, text), limits=LimitsSpec(cell_mb=0.01))
    assert says in str(caught.value)


def test_sentences_with_faulty_lines_can_be_left_out(tmp_path: Path) -> None:
    left: list[tuple[int, str, str]] = []
    path = written(tmp_path / "a.conll", "w1 O\n\nw2\nw3 O\n\nw4 O\n")
    found = rows_of(path, bad=lambda *what: left.append(what))
    assert [row["tokens"] for _, row in found] == [["w1"], ["w4"]]
    assert [(number, what) for number, what, _ in left] == [(3, "1 column, but 2 are expected")]


def test_only_tags_of_entities_are_recognised_without_the_suffix(tmp_path: Path) -> None:
    tagged = "EU B-ORG\nrejects O\n\nPeter B-PER\n"
    for text, is_so in ((tagged, True), (CONLL, True), ("a text\nO O\n\nI O\n", False), ("EU B-ORG\nis O\n", False)):
        assert looks_like_columns(str(written(tmp_path / "a.txt", text))) is is_so
    assert not looks_like_columns(str(tmp_path / "missing.txt"))
    (tmp_path / "binary.txt").write_bytes(b"\0\xff" * 99)
    assert not looks_like_columns(str(tmp_path / "binary.txt"))


def test_a_folder_of_txt_files_is_read_as_its_task_says(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        written(tmp_path / f"{split}.txt", CONLL)
    data = DataSpec(path="conll", data_dir=str(tmp_path))
    found = read_splits("t", data, ColumnsSpec(), kind="token-classification")
    assert {split: rows.inputs[0] for split, rows in found.items()} == {
        "train": ["EU", "rejects"],
        "validation": ["EU", "rejects"],
    }
