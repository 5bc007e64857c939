"""A task of tags says how they are read, and is refused for entity scores if they mark no entities."""

from __future__ import annotations

from typing import Any

import pytest

from continual_petl.errors import InputError, StreamFileError
from continual_petl.heads.tag_scheme import TagReading
from continual_petl.streams.preparation.prepare import _read
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream_file.yaml_file import load_stream


def spec_of(*rows: list[Any], **more: Any) -> StreamSpec:
    data = [{"tokens": [f"w{n}{k}" for k in range(len(row))], "tags": row} for n, row in enumerate(rows)]
    task = {"name": "toy", "kind": "token-classification", "data": {"train": data, "validation": data}, **more}
    return StreamSpec.model_validate({"name": "s", "seed": 3, "backbone": "x", "tasks": [task]})


def read(spec: StreamSpec) -> tuple[TagReading | None, str, str]:
    _, _, notices, remarks, tags = _read(spec, spec.tasks[0], True)
    return tags, "\n".join(notices), "\n".join(remarks)


NOUNS = ["NOUN", "VERB", "NOUN"], ["VERB", "ADJ"]
BMES = ["b_x", "m_x", "e_x", "o"], ["s_x", "b_y", "e_y"]


def test_scheme_is_resolved_and_shown() -> None:
    tags, notices, remarks = read(spec_of(*BMES))
    assert tags == TagReading(scheme="BMES", separator="_", outside=("o",))
    assert "task 'toy': tags are read as BMES, as in B_TYPE; outside of entities: 'o'." in remarks
    assert "break the rules" not in notices
    tags, notices, _ = read(spec_of(["b_x", "m_x", "o"], *BMES))
    assert "the tags of 1 of 3 training rows break the rules of BMES" in notices
    tags, _, remarks = read(spec_of(["I-x", "B-x", "O"], ["I-y"]))
    assert tags is not None
    assert tags.scheme == "IOB1"


@pytest.mark.parametrize("metric", [None, "entity_f1", "entity_precision", "entity_recall"])
def test_tags_that_mark_no_entities_are_refused_for_entity_scores(metric: str | None) -> None:
    default = r" \(the default\)" if metric is None else ""
    says = rf"metric {metric or 'entity_f1'}{default} counts entities.*'NOUN', 'VERB'.*Write metric: accuracy"
    with pytest.raises(InputError, match=says):
        read(spec_of(*NOUNS, metric=metric))
    with pytest.raises(InputError, match=r"numbers without names \('0', '1', '2'\).*labels: \[O, B-PER, I-PER\]"):
        read(spec_of([0, 1, 2], [0], metric=metric))


def test_accuracy_remains() -> None:
    tags, _, remarks = read(spec_of(*NOUNS, metric="accuracy"))
    assert tags == TagReading(scheme="none")
    assert "there are no entity scores, because the tags do not fit" in remarks
    assert read(spec_of([0, 1, 2], [0], metric="accuracy"))[0] == TagReading(scheme="none")
    spec = spec_of(*NOUNS, tags={"scheme": "none"})
    assert spec.tasks[0].resolved_metric == "accuracy"
    assert read(spec)[0] == TagReading(scheme="none")


def test_named_numbers_are_tags() -> None:
    tags, _, _ = read(spec_of([0, 1, 2], [0, 1, 1], labels=["O", "B-x", "I-x"]))
    assert tags == TagReading(scheme="IOB2", separator="-", outside=("O",))


def test_scheme_can_be_written() -> None:
    spec = spec_of(["PER", "LOC", "O"], ["O"], tags={"scheme": "io", "outside": "O"})
    assert read(spec)[0] == TagReading(scheme="IO", outside=("O",))
    spec = spec_of(["B-x", "I-x", "X", 0], tags={"scheme": "BIO", "outside": ["X", 0]})
    assert read(spec)[0] == TagReading(scheme="IOB2", separator="-", outside=("X", "0"))
    _, notices, _ = read(spec_of(["B-x", "I-x"], ["O", "B-x"], tags={"scheme": "IOB1"}))
    assert "2 of 2 training rows break the rules of IOB1" in notices
    with pytest.raises(InputError, match=r"task 'toy', tags: the tags do not fit the scheme IOBES.*Correct `tags`"):
        read(spec_of(*BMES, tags={"scheme": "IOBES"}))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("kind: classification\n    tags: {scheme: IOB2}", "tags.*has no effect on a classification task"),
        ("kind: token-classification\n    tags: {scheme: IOB}", "tags.scheme.*IOB1"),
        ("kind: token-classification\n    tags: {scheme: none, outside: O}", "scheme none has no letters"),
        (
            "kind: token-classification\n    tags: {scheme: none}\n    metric: entity_f1",
            "there are no entities",
        ),
        ("kind: token-classification\n    tags: {outside: []}", "tags.outside"),
    ],
)
def test_what_is_written_is_checked(tmp_path: Any, line: str, says: str) -> None:
    file = tmp_path / "stream.yaml"
    file.write_text(f"name: s\nbackbone: minilm\ntasks:\n  - name: toy\n    data: data/toy\n    {line}\n")
    with pytest.raises(StreamFileError, match=f"(?s){says}"):
        load_stream(file)


IN_BOTH = ["B-E", "I-E", "O"], ["B-I", "I-I", "O", "B-E"]
"""The types I and E are letters of a scheme, but as suffixes they break its rules: no E-type continues in B-I, I-I."""


def test_rows_decide_where_the_letter_stands() -> None:
    tags, notices, remarks = read(spec_of(*IN_BOTH))
    assert tags == TagReading(scheme="IOB2", separator="-", outside=("O",))
    assert "tags are read as IOB2, as in B-TYPE" in remarks
    assert "break the rules" not in notices
    turned = [["-".join(tag.split("-")[::-1]) for tag in row] for row in IN_BOTH]
    tags, _, _ = read(spec_of(*turned))
    assert tags == TagReading(scheme="IOB2", position="suffix", separator="-", outside=("O",))


def test_tags_with_two_readings_are_refused_unless_written() -> None:
    rows = ["B-I", "I-I", "O"], ["B-I", "O", "O"]
    with pytest.raises(InputError, match=r"entity_f1 .* counts entities, but the tags .* two ways.*position: suffix"):
        read(spec_of(*rows))
    with pytest.raises(InputError, match=r"task 'toy', tags: the tags .* can be read in two ways"):
        read(spec_of(*rows, tags={"outside": "O"}))
    tags, _, _ = read(spec_of(*rows, tags={"position": "suffix"}))
    assert tags is not None
    assert (tags.position, tags.scheme) == ("suffix", "IOB1")
    tags, _, remarks = read(spec_of(*rows, metric="accuracy"))
    assert tags == TagReading(scheme="none")
    assert "there are no entity scores, because the tags 'B-I', 'I-I' can be read in two ways" in remarks
