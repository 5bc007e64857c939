"""Labels and numbers in several spellings are noticed with their counts, and unknown labels name the nearly equal one."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

import pytest

from continual_petl.errors import InputError
from continual_petl.spelling import likeness
from continual_petl.streams.preparation import spelling_notices
from continual_petl.streams.preparation.prepare import _read, column_remarks
from continual_petl.streams.schema.stream_spec import StreamSpec

NFD = unicodedata.normalize("NFD", "café")


def spec_of(kind: str, train: list[Any], test: list[Any] | None = None, **more: Any) -> StreamSpec:
    splits = {"train": train, "validation": train, **({} if test is None else {"test": test})}
    data = {split: [{"text": f"{split} {n}", "label": v} for n, v in enumerate(own)] for split, own in splits.items()}
    task = {"name": "toy", "kind": kind, "data": data, **more}
    return StreamSpec.model_validate({"name": "s", "seed": 3, "backbone": "x", "tasks": [task]})


def notices_of(spec: StreamSpec) -> str:
    return "\n".join(_read(spec, spec.tasks[0], True)[2])


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        ("good", "good ", "'good' (6) and 'good ' (2)"),
        ("good", "Good", "'good' (6) and 'Good' (2)"),
        ("good", "good\u200b", "'good' (6) and 'good\\u200b' (2)"),
        ("so good", "so\u00a0good", "'so good' (6) and 'so\\xa0good' (2)"),
        ("café", NFD, "'café' (6) and 'cafe\\u0301' (2)"),
        ("1", "\uff11", "'1' (6) and '\\uff11' (2)"),
        ("1000", "1_000", "'1000' (6) and '1_000' (2)"),
        ("1", "1.0", "'1' (6) and '1.0' (2)"),
        ("1", "true", "'1' (6) and 'true' (2)"),
        ("non-toxic", "non\u2013toxic", "'non-toxic' (6) and 'non\u2013toxic' (2)"),
    ],
)
def test_labels_that_differ_only_in_spelling_are_noticed_with_counts(one: str, other: str, shown: str) -> None:
    notices = notices_of(spec_of("classification", [one, one, one, other, "bad"]))
    first = min(one, other)
    wanted = shown if first == one else " and ".join(reversed(shown.split(" and ")))
    assert wanted in notices
    assert "bad" not in notices[notices.index("differ only") :].split(". The")[0]


def test_other_labels_are_not_noticed() -> None:
    large = [
        "12345678901234567890",
        "12345678901234567891",
        "10000000000000001.5",
        "10000000000000002.5",
        "1e400",
        "1e500",
    ]
    numbers = [*large, "v1", "v2", "good", "goods", "nan"]
    assert len({*map(likeness, numbers)}) == len(numbers)
    assert "differ only" not in notices_of(spec_of("classification", numbers))


def test_lists_of_labels_are_noticed() -> None:
    assert "'News' (2) and 'news' (4)" in notices_of(spec_of("multilabel", [["news"], ["news", "a"], ["News"], []]))


@pytest.mark.parametrize(
    ("test", "says"),
    [
        ("good ", "label 'good ' is unknown (nearly 'good': write both alike)"),
        ("GOOD", "label 'GOOD' is unknown (nearly 'good': write both alike)"),
        ("2.0", "label '2.0' is unknown (nearly '2': write both alike)"),
        ("\uff12", "is unknown (nearly '2': write both alike)"),
        ("godo", "label 'godo' is unknown (did you mean 'good'?). "),
        ("other", "label 'other' is unknown. "),
        ("22", "label '22' is unknown. "),
    ],
)
def test_unknown_label_of_a_split_names_the_nearly_equal_one(test: str, says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        notices_of(spec_of("classification", ["good", "2", "bad"], [test]))
    with pytest.raises(InputError, match=re.escape(says)):
        notices_of(spec_of("multilabel", [["good"], ["2"], ["bad"]], [[test]]))


def test_only_labels_that_a_message_shows_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def nearest(name: str, known: Any) -> str:
        asked.append(name)
        return " HINT"

    monkeypatch.setattr(spelling_notices, "nearest", nearest)
    faults = spelling_notices.unknown_faults(enumerate(["x"] * 40 + ["good"]), {"good": 0}, "label")
    assert [fault.row for fault in faults] == [*range(40)]
    assert asked == ["x"] * 5
    assert faults[4].what == "label 'x' is unknown HINT"
    assert faults[5].what == "label 'x' is unknown"


def test_numbers_that_only_python_reads_are_noticed_with_counts() -> None:
    train = ["1_000", "\uff11", "12", " 5", "1e3", "1_000", 7]
    notices = notices_of(spec_of("regression", train, ["2", "2_0"]))
    assert "3 of 7 train, 3 of 7 validation, 1 of 2 test targets are numbers in an unusual spelling" in notices
    assert "'1_000' as 1000.0, '\\uff11' as 1.0, '2_0' as 20.0" in notices
    assert "unusual" not in notices_of(spec_of("regression", ["12", " 5", "1e3", ".5", "-1.", 7]))


@pytest.mark.parametrize("target", ["0x10", "1,5", "nan", "NaN", "inf", "Infinity", "1e999", "1 000", "true", True])
def test_other_spellings_are_no_numbers(target: Any) -> None:
    with pytest.raises(InputError, match=r"row 2: .* is not a"):
        notices_of(spec_of("regression", ["1", target]))


def test_init_shows_the_notices_about_spellings() -> None:
    spec = spec_of("classification", ["good", "good ", "bad"])
    assert any("differ only in white space" in remark for remark in column_remarks(spec, spec.tasks[0]))
