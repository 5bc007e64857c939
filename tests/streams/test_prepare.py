"""From a task to tokenised splits: rows, labels and notices."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from continual_petl.errors import InputError
from continual_petl.streams.encoding.tokenise import TokenisedRows
from continual_petl.streams.preparation.prepare import SplitData, TaskData, check_again, prepare_task
from continual_petl.streams.schema.stream_spec import StreamSpec

TRAIN = [{"text": f"w{number % 40} w{number // 40}", "label": "ab"[number % 2]} for number in range(80)]
TEST = [{"text": f"w{number} w9 w9", "label": "ab"[number % 2]} for number in range(10)]


def _spec(data: Any, **task: Any) -> StreamSpec:
    seed = task.pop("seed", 0)
    name = task.pop("name", "toy")
    more = {"defaults": task.pop("defaults")} if "defaults" in task else {}
    tasks = [{"name": name, "kind": "classification", "data": data} | task]
    return StreamSpec.model_validate({"name": "s", "seed": seed, "backbone": "minilm", "tasks": tasks} | more)


def _prepare(tokenizer: PreTrainedTokenizerFast, data: Any, **task: Any) -> TaskData:
    spec = _spec(data, **task)
    return prepare_task(spec, spec.tasks[0], tokenizer, 16)


def _content(rows: TokenisedRows) -> list[tuple[int, ...]]:
    return [(*rows.row(index).ids.tolist(), int(rows.row(index).label or 0)) for index in range(len(rows))]


def test_all_splits_are_prepared(tokenizer: PreTrainedTokenizerFast) -> None:
    data = _prepare(tokenizer, {"train": TRAIN, "validation": TEST[:4], "test": TEST[4:]})
    assert data.test is not None
    assert (len(data.train), len(data.validation), len(data.test)) == (80, 4, 6)
    assert data.labels == ("a", "b")
    (few,) = data.notices
    assert few.startswith("task 'toy': its score is measured on only 6 test rows, which says little")
    assert data.num_truncated == {"train": 0, "validation": 0, "test": 0}
    assert data.test.row(0).ids.tolist() == tokenizer("w4 w9 w9")["input_ids"]
    assert data.test.labels is not None
    assert data.test.labels.tolist() == [0, 1] * 3


def test_regression_pairs_are_prepared_and_truncation_counted(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [{"text": "w1 " * 20, "text_pair": f"w{number}", "label": number / 4} for number in range(8)]
    spec = _spec(
        {"train": rows, "test": rows[:3]}, kind="regression", columns={"text_pair": "text_pair"}, validation=0.4
    )
    data = prepare_task(spec, spec.tasks[0], tokenizer, 10)
    assert data.labels is None
    assert data.test is not None
    assert data.test.labels is not None
    assert data.test.labels.tolist() == [0, 0.25, 0.5]
    assert data.num_truncated["test"] == 3
    assert (len(data.train), len(data.validation)) == (5, 3)


def test_validation_is_held_out_and_reported(tokenizer: PreTrainedTokenizerFast) -> None:
    data = _prepare(tokenizer, {"train": TRAIN, "test": TEST}, validation=0.25)
    assert (len(data.train), len(data.validation)) == (60, 20)
    assert sorted(_content(data.train) + _content(data.validation)) == sorted(
        _content(_prepare(tokenizer, {"train": TRAIN, "validation": TEST}).train)
    )
    assert data.notices == (
        "task 'toy': no validation split is given; 20 training rows were held out for validation (label a: 10, b: 10).",
        "task 'toy': its score is measured on only 10 test rows, which says little about other rows.",
    )


def test_missing_test_split_is_reported(tokenizer: PreTrainedTokenizerFast) -> None:
    data = _prepare(tokenizer, {"train": TRAIN, "validation": TEST})
    assert data.test is None
    assert "test" not in data.digests
    assert any("no test split" in notice for notice in data.notices)


def test_file_order_does_not_matter(tokenizer: PreTrainedTokenizerFast) -> None:
    shuffled = random.Random(0).sample(TRAIN, len(TRAIN))
    options = {"limits": {"train": 30, "validation": 5}, "validation": 0.2}
    one, other = (_prepare(tokenizer, {"train": rows, "test": TEST}, **options) for rows in (TRAIN, shuffled))
    assert _content(one.train) != _content(other.train)
    assert sorted(_content(one.train)) == sorted(_content(other.train))
    assert sorted(_content(one.validation)) == sorted(_content(other.validation))
    assert (len(one.train), len(one.validation)) == (30, 5)


@pytest.mark.parametrize(
    ("changed", "same"),
    [({"seed": 1}, False), ({"name": "other"}, True), ({"name": "other", "defaults": 2}, False)],
)
def test_chosen_rows_depend_on_the_seed_and_not_on_the_name(
    tokenizer: PreTrainedTokenizerFast, changed: dict[str, Any], same: bool
) -> None:
    """With defaults: 2, which older runs recorded, they depend on the task's name too."""
    options: dict[str, Any] = {"limits": {"train": 50, "test": 5}, "validation": 0.2}
    kept = {key: value for key, value in changed.items() if key == "defaults"}
    one = _prepare(tokenizer, {"train": TRAIN, "test": TEST}, **(options | kept))
    again = _prepare(tokenizer, {"train": TRAIN, "test": TEST}, **(options | kept))
    other = _prepare(tokenizer, {"train": TRAIN, "test": TEST}, **(options | changed))
    assert one.digests == again.digests
    for split in ("train", "validation", "test"):
        assert (one.digests[split] == other.digests[split]) is same


@pytest.mark.parametrize(("defaults", "names"), [(2, ["toy", "limit", "test"]), (3, ["limit", "test"])])
def test_limits_keep_the_rows_with_the_smallest_hash(
    tokenizer: PreTrainedTokenizerFast, defaults: int, names: list[str]
) -> None:
    """The hash is computed here from its description: SHA-256 of seed and names is the key of BLAKE2b over the row."""
    text = "\x1f".join(["int:7", *(f"str:{name}" for name in names)])
    key = (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1).to_bytes(8, "big")
    from continual_petl.streams.preparation import dividing
    from continual_petl.streams.preparation.checked_rows import check_split
    from continual_petl.streams.sources.read_splits import read_splits

    spec = _spec({"train": TRAIN, "test": TEST}, seed=7, defaults=defaults, limits={"test": 4})
    task = spec.tasks[0]
    raw = read_splits("toy", spec.resolved_data(task), task.columns, ("test",), kind=task.kind, limits=task.limits)
    rows = check_split(spec, task, raw["test"], ("a", "b"), False)
    contents = [f"{text}\t{label}" for text, label in zip(rows.keys, rows.names, strict=True)]
    ranks = [hashlib.blake2b(content.encode(), digest_size=8, key=key).digest() for content in contents]
    expected = [rows.keys[row] for row in sorted(sorted(range(len(ranks)), key=ranks.__getitem__)[:4])]
    assert dividing.limited(spec, task, "test", rows).keys == expected


def test_limited_rows_keep_their_order(tokenizer: PreTrainedTokenizerFast) -> None:
    whole = _content(_prepare(tokenizer, {"train": TRAIN, "validation": TEST}).train)
    limited = _content(_prepare(tokenizer, {"train": TRAIN, "validation": TEST}, limits={"train": 20}).train)
    places = [whole.index(row) for row in limited]
    assert places == sorted(places)
    assert places != list(range(20))


@pytest.mark.parametrize("more", [{}, {"train": 9}])
def test_rows_can_be_limited_per_label(tokenizer: PreTrainedTokenizerFast, more: dict[str, int]) -> None:
    limits = {"per_label": 5} | more
    data = _prepare(tokenizer, {"train": TRAIN, "validation": TEST}, limits=limits)
    assert data.train.labels is not None
    assert len(data.train) == more.get("train", 10)
    assert np.bincount(data.train.labels).max() == 5
    assert len(data.validation) == len(TEST)
    # Which rows are kept depends on the seed, not on the order of the rows.
    again = _prepare(tokenizer, {"train": TRAIN[::-1], "validation": TEST}, limits=limits)
    other = _prepare(tokenizer, {"train": TRAIN, "validation": TEST}, limits=limits, seed=1)
    assert sorted(_content(data.train)) == sorted(_content(again.train))
    assert sorted(_content(data.train)) != sorted(_content(other.train))


def test_limit_per_label_needs_one_label_per_row(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ValueError, match=r"per_label[\s\S]*has no effect on a regression"):
        _prepare(tokenizer, {"train": TRAIN, "validation": TEST}, kind="regression", limits={"per_label": 5})


def test_duplicate_texts_stay_in_one_split(tokenizer: PreTrainedTokenizerFast) -> None:
    data = _prepare(tokenizer, {"train": [row for row in TRAIN for _ in range(3)], "test": TEST})
    assert not {row[:-1] for row in _content(data.train)} & {row[:-1] for row in _content(data.validation)}
    assert len(data.validation) == 24


def test_score_on_model_selection_rows_is_reported_as_such(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = {"train": TRAIN, "validation": TRAIN[:20]}
    told = "no test split is given; the result matrix R holds its validation score"
    (notice, *_) = _prepare(tokenizer, rows, training={"select": "best"}).notices
    assert notice == f"task 'toy': {told}, measured on the rows that also choose the epoch."
    (notice, *_) = _prepare(tokenizer, rows, training={"select": "last"}).notices
    assert notice == f"task 'toy': {told}."


def test_too_few_rows_are_reported(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = {"train": TRAIN, "validation": TRAIN[:1], "test": TRAIN[:20]}
    assert not any("says little" in notice for notice in _prepare(tokenizer, rows).notices)
    rows["test"] = TRAIN[:19]
    assert any("on only 19 test rows, which says little" in notice for notice in _prepare(tokenizer, rows).notices)
    del rows["test"]
    assert any("on only 1 validation row, which says little" in notice for notice in _prepare(tokenizer, rows).notices)


def test_too_few_rows_to_hold_out_are_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [{"text": "w1", "label": "a"}, {"text": "w1", "label": "b"}]
    with pytest.raises(InputError, match=r"none can be held out from 2 training rows with 1 different texts"):
        _prepare(tokenizer, {"train": rows})


def test_overlap_between_splits_is_reported(tokenizer: PreTrainedTokenizerFast) -> None:
    data = _prepare(tokenizer, {"train": TRAIN, "validation": TRAIN[:2], "test": [*TEST, TRAIN[0]]})
    assert [notice.split(": ")[1].split(";")[0] for notice in data.notices] == [
        "its score is measured on only 11 test rows, which says little about other rows.",
        "2 of 2 validation rows have the text of a training row",
        "1 of 11 test rows have the text of a training row",
    ]


def test_digests_depend_on_content_not_format(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    for split, rows in (("train", TRAIN), ("test", TEST)):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    inline, files = _prepare(tokenizer, {"train": TRAIN, "test": TEST}), _prepare(tokenizer, str(tmp_path))
    assert inline.digests == files.digests
    changed = [*TEST[:-1], TEST[-1] | {"label": "a"}]
    other = _prepare(tokenizer, {"train": TRAIN, "test": changed})
    assert other.digests["train"] == inline.digests["train"]
    assert other.digests["test"] != inline.digests["test"]


@pytest.mark.parametrize("as_file", [True, False])
def test_numeric_labels_with_names(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, as_file: bool) -> None:
    rows = [row | {"label": "ab".index(row["label"])} for row in TRAIN]
    (tmp_path / "names.json").write_text('["yes", "no"]')
    data = _prepare(tokenizer, {"train": rows}, labels=str(tmp_path / "names.json") if as_file else ["yes", "no"])
    assert data.labels == ("yes", "no")
    numbers = _prepare(tokenizer, {"train": rows})
    assert numbers.labels == ("0", "1")
    assert _content(numbers.train) == _content(data.train)


def test_label_missing_from_train_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError, match=r"task 'toy', split test \(rows given in the task\), column 'label': .*'c'"):
        _prepare(tokenizer, {"train": TRAIN, "test": [{"text": "w1", "label": "c"}]})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "w1", "label": "a"}, {"label": "b"}], r"column 'text': 1 row cannot be used: row 2: missing"),
        ([], r"split train \(rows given in the task\): it has 0 rows but needs at least 1"),
    ],
)
def test_invalid_rows_are_refused(tokenizer: PreTrainedTokenizerFast, rows: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _prepare(tokenizer, {"train": rows})


def _again(tokenizer: PreTrainedTokenizerFast, data: Any, labels: tuple[str, ...] | None, **options: Any) -> SplitData:
    split = options.pop("split", "test")
    spec = _spec(data, **options)
    checked = check_again(spec, spec.tasks[0], split=split, labels=labels)
    return SplitData(rows=checked.encode(tokenizer, 16, None), digest=checked.digest)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_given_split_is_prepared_again_the_same_way(tokenizer: PreTrainedTokenizerFast, split: str) -> None:
    data: Any = {"train": TRAIN, "validation": TEST, "test": TEST[:7]}
    limits = {"limits": {"train": 9, "validation": 4, "test": 5}}
    first = _prepare(tokenizer, data, **limits)
    again = _again(tokenizer, data, first.labels, split=split, **limits)
    assert again.digest == first.digests[split]
    assert _content(again.rows) == _content(getattr(first, split))


def test_held_out_split_is_reproduced(tokenizer: PreTrainedTokenizerFast) -> None:
    first = _prepare(tokenizer, {"train": TRAIN})
    assert _again(tokenizer, {"train": TRAIN}, first.labels, split="validation").digest == first.digests["validation"]
    assert _again(tokenizer, {"train": TRAIN}, first.labels, split="train").digest == first.digests["train"]


def test_labels_of_the_bank_are_used(tokenizer: PreTrainedTokenizerFast) -> None:
    again = _again(tokenizer, {"train": TRAIN, "test": TEST}, ("b", "a"))
    assert again.rows.labels is not None
    assert again.rows.labels.tolist() == [1, 0] * 5
    with pytest.raises(InputError, match="label 'b' is unknown"):
        _again(tokenizer, {"train": TRAIN, "test": TEST}, ("a", "c"))


def test_missing_split_is_reported(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(InputError, match="no longer has a test split"):
        _again(tokenizer, {"train": TRAIN}, ("a", "b"))


def test_labels_must_fit_the_kind(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ValueError, match=r"labels: got None, but task .* needs the labels"):
        _again(tokenizer, {"train": TRAIN, "test": TEST}, None)
