"""SQuAD's files have the rows of the data sets on the Hub, and what is out of place is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from continual_petl.errors import InputError
from continual_petl.streams.reader.records import read_records
from continual_petl.streams.schema.limits_spec import DEFAULTS

NESTED = {
    "version": "v2.0",
    "data": [
        {
            "title": "One",
            "paragraphs": [
                {
                    "context": "Ada slept.",
                    "qas": [
                        {"id": "1", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}] * 2},
                        {"id": "2", "question": "Why?", "answers": [], "is_impossible": True},
                    ],
                },
                {"context": "No questions.", "qas": []},
            ],
        },
        {"title": "Two", "paragraphs": [{"context": "c", "qas": [{"id": "3", "question": "Unanswered?"}]}]},
    ],
}


def by_builder(squad: Any) -> list[dict[str, Any]]:
    """Return the rows of the scripts for squad and squad_v2 on the Hub."""
    found = []
    for article in squad["data"]:
        for paragraph in article["paragraphs"]:
            for qa in paragraph["qas"]:
                texts = [answer["text"] for answer in qa.get("answers", [])]
                starts = [answer["answer_start"] for answer in qa.get("answers", [])]
                row = {"title": article["title"], "context": paragraph["context"], "question": qa["question"]}
                found.append(row | {"id": qa["id"], "answers": {"text": texts, "answer_start": starts}})
    return found


@pytest.mark.parametrize("indent", [None, 2])
def test_rows_are_those_of_the_script_on_the_hub(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "train-v2.0.json"
    path.write_text(json.dumps(NESTED, indent=indent))
    found = [*read_records("here", path, DEFAULTS)]
    assert [number for number, _ in found] == [1, 2, 3]
    assert found[1][1].pop("is_impossible") is True
    assert [row for _, row in found] == by_builder(NESTED)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([{"paragraphs": 3}], "here: data[0].paragraphs is 3, not a list as in SQuAD"),
        ([{"paragraphs": []}, {"paragraphs": ["x"]}], "data[1].paragraphs[0] is 'x', not an object ({...}): repair it"),
        ([{"paragraphs": [{"context": "c"}]}], "data[0].paragraphs[0].qas is None, not a list"),
        (
            [{"paragraphs": [{"qas": [{"answers": {"text": []}}]}]}],
            "data[0].paragraphs[0].qas[0].answers is {'text': []}",
        ),
    ],
)
def test_what_is_out_of_place_is_named(tmp_path: Path, data: Any, says: str) -> None:
    (tmp_path / "dev.json").write_text(json.dumps({"data": data}))
    with pytest.raises(InputError) as caught:
        [*read_records("here", tmp_path / "dev.json", DEFAULTS)]
    assert says in str(caught.value)


def test_a_value_without_a_meaning_is_named_as_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text('{"data": [{"paragraphs": 1e999}]}')
    with pytest.raises(InputError) as caught:
        [*read_records("here", tmp_path / "dev.json", DEFAULTS)]
    assert "data[0].paragraphs is not JSON (the number 1e999 is too large), not a list as in SQuAD" in str(caught.value)
