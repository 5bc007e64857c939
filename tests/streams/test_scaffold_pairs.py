"""Drafting a stream file for text pairs: which columns form a pair, and unused text columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from continual_petl.streams.scaffold.choose_backbone import choose_backbone
from continual_petl.streams.scaffold.draft import draft
from continual_petl.streams.scaffold.guess import Guess, guess
from continual_petl.streams.scaffold.inspect_data import inspect_data
from continual_petl.streams.scaffold.profile import profile
from continual_petl.streams.stream_file.yaml_file import load_stream

ONE = [f"a dog number {number} runs over the grass" for number in range(40)]
OTHER = [f"the brown dog {number} is running over it" for number in range(40)]
LONG = [" ".join([text] * 5) for text in OTHER]
SCORES = [number / 7 for number in range(40)]
LABELS = ["no", "yes"] * 20


def _guess(**table: Any) -> Guess:
    return guess("here", profile(table))


@pytest.mark.parametrize(
    "names",
    [
        "sent_a sent_b", "q1 q2", "sent1 sent2", "query passage", "left right", "anchor candidate", "title body",
        "premise hypothesis", "textA textB", "left_text right_text", "first_message second_message", "s0 s1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("answers", [SCORES, LABELS])
def test_pairs_are_recognised_by_column_names(names: str, answers: list[Any]) -> None:
    one, other = names.split()
    found = _guess(**{one: ONE, other: LONG, "score": answers})
    assert found.columns == {"text": one, "text_pair": other, "label": "score"}
    assert found.words.endswith(" of pairs")
    assert f"columns {one} and {other} were taken as the two texts of a pair, because of their names" in found.pairing
    assert not found.unread


def test_repeated_query_is_a_text_not_a_label() -> None:
    queries = [f"where do the dogs run {number // 8}" for number in range(40)]
    found = _guess(relevant=[0, 1] * 20, query=queries, passage=LONG)
    assert found.columns == {"text": "query", "text_pair": "passage", "label": "relevant"}


def test_pairs_are_recognised_by_similarity_or_elimination() -> None:
    assert "share words" in _guess(utterance=ONE, reply=OTHER, label=LABELS).pairing
    # The two columns differ in length, but neither name shows that it is the main text.
    assert "the only texts" in _guess(remark=ONE, background=LONG, label=LABELS).pairing


@pytest.mark.parametrize(
    "other",
    [
        [f"2024-01-{number:02}" for number in range(40)],
        [f"https://example.org/{number}" for number in range(40)],
        [f"{number:x}f3a" for number in range(40)],
    ],
)
def test_dates_addresses_and_codes_are_not_texts(other: list[str]) -> None:
    found = _guess(review=ONE, other=other, label=LABELS)
    assert found.columns == {"text": "review", "label": "label"}
    assert (found.unread, found.texts_left) == (("other",), ())


def test_unused_text_is_reported() -> None:
    table = {"review": ONE, "about": LONG, "label": LABELS}
    columns = profile(table)
    found = guess("here", columns)
    assert found.columns == {"text": "review", "label": "label"}
    assert found.texts_left == ("about",)


def _write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize("inputs", [[""] * 40, ["", "some words more"] * 20, ["one", "two words", "", "x"] * 10, OTHER])
def test_instruction_and_input_form_the_source(tmp_path: Path, inputs: list[str]) -> None:
    rows = [
        {"instruction": one, "input": more, "output": f"It is a dog, and its number is {number}."}
        for number, (one, more) in enumerate(zip(ONE, inputs, strict=True))
    ]
    for data in (_write(tmp_path, rows), tmp_path / "folder"):
        if data.suffix == "":
            data.mkdir()
            _write(data, rows).rename(data / "train.jsonl")
        seen = inspect_data(str(data))
        found = guess("rows", profile(seen.table))
        assert found.kind == "seq2seq"
        file = tmp_path / "stream.yaml"
        file.write_text(
            draft("stream.yaml", "s", [(seen, found)], str(tmp_path), backbone=choose_backbone({"a": found.kind}, None))
        )
        (task,) = load_stream(file).tasks
        if inputs[1]:
            assert task.data.templates == {"source": "{instruction}\n{input}"}  # type: ignore[union-attr]
            assert (task.columns.source, task.columns.target) == ("source", "output")
        else:  # empty in every row
            assert (task.columns.source, task.columns.target) == ("instruction", "output")
