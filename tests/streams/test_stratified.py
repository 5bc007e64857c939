"""Held-out validation rows: every label is included, and equal inputs stay in one split."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl.seeding import derive_seed
from continual_petl.streams.preparation.checked_rows import Checked, check_split, labels_of
from continual_petl.streams.preparation.dividing import hold_out
from continual_petl.streams.preparation.prepare import prepare_task
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.sources.read_splits import read_splits

Folder = Callable[..., Path]


def _divided(rows: list[dict[str, Any]], **task: Any) -> tuple[Checked, Checked]:
    seed = task.pop("seed", 0)
    tasks = [{"name": "toy", "kind": "classification", "data": {"train": rows}} | task]
    spec = StreamSpec.model_validate({"name": "s", "seed": seed, "backbone": "minilm", "tasks": tasks})
    (toy,) = spec.tasks
    raw = read_splits("toy", spec.resolved_data(toy), toy.columns, ("train",), kind=toy.kind, limits=toy.limits)
    labels, positions = labels_of(spec, toy, raw["train"])
    return hold_out(spec, toy, check_split(spec, toy, raw["train"], labels, positions))


def _rows(counts: dict[str, int]) -> list[dict[str, Any]]:
    return [{"text": f"{label} {number}", "label": label} for label, count in counts.items() for number in range(count)]


@pytest.mark.parametrize("seed", range(3))
def test_each_of_twenty_labels_is_held_out_in_proportion(seed: int) -> None:
    train, validation = _divided(_rows({f"intent {n}": 25 for n in range(20)}), seed=seed)
    counts = Counter(validation.names)
    assert (len(train), len(validation)) == (450, 50)
    assert len(counts) == 20
    assert set(counts.values()) == {2, 3}
    train, validation = _divided(_rows({"often": 900, "seldom": 90, "rare": 10}), seed=seed)
    assert Counter(validation.names) == {"often": 90, "seldom": 9, "rare": 1}


def test_a_rare_label_is_held_out_once_and_a_single_one_is_kept_for_training() -> None:
    train, validation = _divided(_rows({"often": 97, "rare": 2, "single": 1}))
    assert Counter(validation.names) == {"often": 9, "rare": 1}
    assert Counter(train.names) == {"often": 88, "rare": 1, "single": 1}


def test_with_fewer_rows_than_labels_as_many_rows_are_held_out_as_asked_for() -> None:
    train, validation = _divided(_rows({f"intent {n}": 2 for n in range(50)}))
    assert (len(train), len(validation)) == (90, 10)
    assert len(set(validation.names)) == 10


def test_labels_with_one_input_each_are_still_split() -> None:
    train, validation = _divided(_rows({"a": 1, "b": 1, "c": 1}))
    assert (len(train), len(validation)) == (2, 1)


@pytest.mark.parametrize("seed", range(3))
def test_equal_inputs_stay_in_one_split(seed: int) -> None:
    draw = random.Random(seed)
    rows = _rows({"a": 30, "b": 30, "c": 9})
    rows += [dict(draw.choice(rows)) for _ in range(60)]
    rows += [row | {"label": "c"} for row in draw.sample(rows, 5)]  # equal inputs with two answers
    pairs = [row | {"other": f"{draw.randrange(2)}"} for row in rows]
    for given, columns in ((rows, {}), (pairs, {"text_pair": "other"})):
        train, validation = _divided(given, seed=seed, columns=columns, validation=0.2)
        assert not set(train.keys) & set(validation.keys)
        assert len(train) + len(validation) == len(given)
        assert abs(len(validation) - len(given) / 5) <= 3
        assert set(validation.names) == {"a", "b", "c"}


def test_text_repeated_a_hundred_times_is_not_all_of_validation() -> None:
    rows = [{"text": "again", "label": "a"}] * 100 + _rows({"a": 50, "b": 50})
    for seed in range(5):
        _, validation = _divided(rows, seed=seed)
        assert Counter(validation.names) == {"a": 15, "b": 5}


def test_row_order_and_label_names_do_not_matter() -> None:
    rows = _rows({"a": 33, "b": 21, "c": 7})
    shuffled = random.Random(0).sample(rows, len(rows))
    renamed = [row | {"label": {"a": "z", "b": "y", "c": "x"}[row["label"]]} for row in rows]
    keys = [sorted(_divided(each)[1].keys) for each in (rows, shuffled, renamed)]
    assert keys[0] == keys[1] == keys[2]


def test_targets_of_a_regression_are_held_out_over_their_whole_range() -> None:
    rows = [{"text": f"w {number}", "label": float(number**3)} for number in range(200)]
    _, validation = _divided(rows, kind="regression")
    places = [round(value ** (1 / 3)) // 20 for value in validation.answers.tolist()]
    assert Counter(places) == dict.fromkeys(range(10), 2)
    _, validation = _divided([row | {"label": 1.0} for row in rows], kind="regression")
    assert len(validation) == 20


def test_rare_labels_of_a_multilabel_task_are_held_out() -> None:
    draw = random.Random(0)
    rows = [{"text": f"w {n}", "label": draw.sample(["x", "y", "z"], draw.randrange(4))} for n in range(180)]
    rows += [{"text": f"rare {n}", "label": ["x", f"rare {n % 4}"]} for n in range(20)]
    _, validation = _divided(rows, kind="multilabel")
    counts = Counter(label for labels in validation.names for label in labels)
    assert len(validation) == 20
    assert all(counts[f"rare {n}"] >= 1 for n in range(4))
    assert any(not labels for labels in validation.names)


@pytest.mark.parametrize("kind", ["seq2seq", "token-classification"])
def test_rows_without_one_answer_are_drawn_by_the_hash_of_their_inputs(kind: str) -> None:
    rows: list[dict[str, Any]] = [{"source": f"w {n}", "target": "x"} for n in range(40)]
    if kind == "token-classification":
        rows = [{"tokens": ["w", str(n)], "tags": ["O", "B-P"]} for n in range(40)]
    train, validation = _divided(rows, kind=kind)
    key = derive_seed(0, "validation").to_bytes(8, "big")
    drawn = {
        each: hashlib.blake2b(each.encode(), digest_size=8, key=key).digest() for each in train.keys + validation.keys
    }
    assert set(validation.keys) == set(sorted(drawn, key=lambda each: drawn[each])[:4])


@pytest.mark.parametrize(
    ("num_labels", "told"),
    [
        (2, "10 training rows were held out for validation (label l00: 5, l01: 5)."),
        (12, "60 training rows were held out for validation (label l00: 5, l01: 5, l02: 5, l03: 5, l04: 5, l05: 5, "
             "l06: 5, l07: 5, l08: 5, l09: 5, and 2 more labels with 5 each)."),
    ],
)  # fmt: skip
def test_notice_counts_held_out_rows(tokenizer: Any, num_labels: int, told: str) -> None:
    rows = [{"text": f"w1 w{n % 40} w{n // 40}", "label": f"l{n % num_labels:02}"} for n in range(50 * num_labels)]
    tasks = [{"name": "toy", "kind": "classification", "data": {"train": rows}}]
    spec = StreamSpec.model_validate({"name": "s", "backbone": "minilm", "tasks": tasks})
    notice = prepare_task(spec, spec.tasks[0], tokenizer, 16).notices[0]
    assert notice == f"task 'toy': no validation split is given; {told}"
