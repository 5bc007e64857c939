"""Rows of different tasks can be predicted in one call, each by its own bank; invalid calls are refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl import InputError, Run, kind_registry, learn
from continual_petl.errors import StoreError
from continual_petl.heads.predictions import Prediction
from continual_petl.kind_registry import register_kind
from continual_petl.kinds import Classification
from continual_petl.predictor.predictor import Predictor
from continual_petl.store.model_cache import ModelCache
from tests.learned import LearnedRuns
from tests.predictor.committed import Made, committed
from tests.streams_in_code import stream, task
from tests.tiny import WORDS, make_tokenizer

Folder = Callable[..., Path]

# The tasks differ in bank, kind, pooling, length and number of texts; some cannot share a pass with others. Tasks that
# generate text are tested in `test_kinds`.
TASKS: dict[str, Made] = {
    "pairs": Made("houlsby", pair=True, pooling="pooler"),
    "wide": Made({"preset": "houlsby", "bottleneck": 5}),
    "number": Made("lora", "regression", None, pooling="first"),
    "tags": Made("houlsby", "token-classification", ("O", "B-P", "I-P")),
    "many": Made("bitfit", "multilabel", ("x", "y", "z")),
    "prefix": Made("prefix"),
    "mam": Made("mam", labels=("a", "b", "c")),
    "prompt": Made("prompt"),
    "whole": Made("full"),
}


def _rows(name: str) -> list[Any]:
    draw = random.Random(name)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 15))) for _ in range(12)]
    if name == "pairs":
        return [(text, " ".join(draw.choices(WORDS, k=4))) for text in texts]
    return [text.split() for text in texts] if name == "tags" else texts


ROWS = {name: _rows(name) for name in ("one", *TASKS)}


@pytest.fixture(scope="module")
def run(learned_runs: LearnedRuns, backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run with all of TASKS."""
    return committed(learned_runs, tmp_path_factory.mktemp("mixed") / "run", backbone_folder(), TASKS)


def same(found: Sequence[Prediction], expected: Sequence[Prediction]) -> None:
    """Check that answers are equal, with numbers equal up to rounding."""
    assert len(found) == len(expected)
    for mine, own in zip(found, expected, strict=True):
        if isinstance(own.value, float):
            assert mine.value == pytest.approx(own.value, abs=1e-6, rel=1e-6)
        else:
            assert mine.value == own.value
        if own.probabilities is not None:
            assert mine.probabilities == pytest.approx(own.probabilities, abs=1e-6)
        else:
            assert mine.probabilities is None


def expected_of(run: Run) -> dict[tuple[str, int], Prediction]:
    return {
        (name, number): answer for name, rows in ROWS.items() for number, answer in enumerate(run.predict(rows, name))
    }


def test_mixed_rows_are_answered_in_order_as_by_each_task_alone(run: Run) -> None:
    expected = expected_of(run)
    asked = [(name, number) for name, rows in ROWS.items() for number in range(len(rows))]
    random.Random(1).shuffle(asked)
    rows, names = [ROWS[name][number] for name, number in asked], [name for name, _ in asked]
    same(run.predict(rows, names), [expected[each] for each in asked])


@pytest.fixture(scope="module")
def answers(run: Run) -> dict[tuple[str, int], Prediction]:
    """Return each task's predictions for its own rows, computed without other tasks."""
    return expected_of(run)


@settings(derandomize=True, deadline=None, max_examples=8)
@given(data=st.data(), size=st.sampled_from([1, 2, 3, 7, 64]))
def test_any_mix_order_and_batch_size(
    run: Run, answers: dict[tuple[str, int], Prediction], data: st.DataObject, size: int
) -> None:
    asked = data.draw(st.lists(st.sampled_from(sorted(answers)), max_size=12))
    rows, names = [ROWS[name][number] for name, number in asked], [name for name, _ in asked]
    found = Predictor(run.session.models).predict_each(rows, names, batch_size=size)
    same(found, [answers[each] for each in asked])


def test_same_task_for_each_row_is_bit_identical(run: Run) -> None:
    assert run.predict(ROWS["one"], ["one"] * len(ROWS["one"])) == run.predict(ROWS["one"], "one")
    assert run.predict([], []) == []


def test_small_bank_budget_does_not_change_answers(run: Run, answers: dict[tuple[str, int], Prediction]) -> None:
    again = Run(run.store.folder, resident_bytes=0)
    names = ["one", "number", "wide", "pairs"]
    same(again.predict([ROWS[name][0] for name in names], names), [answers[name, 0] for name in names])
    assert len(again.session.models.held_banks) == 1


def test_invalid_request_is_refused_before_predicting(run: Run) -> None:
    with pytest.raises(
        InputError, match=r"task 'nine' is not learned in .*; learned tasks: one, pairs, wide, number, tags"
    ):
        run.predict(["w1", "w2"], ["one", "nine"])
    with pytest.raises(InputError, match=r"task 'nine' is not learned in .* \(the same goes for 1 other\)"):
        run.predict(["w1", "w2", "w3"], ["one", "nine", "ten"])
    with pytest.raises(InputError, match="task 7 is not learned"):
        run.predict(["w1", "w2"], ["one", 7])  # type: ignore[list-item]
    with pytest.raises(
        InputError, match="got 2 rows, but 1 task: give one task per row, in the same order, or a single task for all"
    ):
        run.predict(["w1", "w2"], ["one"])
    with pytest.raises(InputError, match=r"task 'pairs': row 3 is 'w3'; each row of this task is a pair of texts"):
        run.predict(["w1", ("w2", "w2"), "w3"], ["one", "pairs", "pairs"])
    with pytest.raises(
        InputError, match="task 'tags': row 2 has 70 words, but only the first 58 fit into the 60 tokens"
    ):
        run.predict(["w1", ["w2"] * 70, "w3"], ["one", "tags", "number"])


def test_replaced_bank_is_not_used(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    held = ModelCache.held
    store = run.store

    def replaced(self: ModelCache, name: str, **more: Any) -> Any:
        found = held(self, name, **more)
        if name == "wide":
            other = store.certificate("one").model_copy(update={"task": "wide"})
            monkeypatch.setattr(type(store), "certificate", lambda self, name: other)
        return found

    monkeypatch.setattr(ModelCache, "held", replaced)
    with pytest.raises(StoreError, match=r"task '.*' was replaced in .* while its rows were being prepared: try again"):
        run.predict(["w1", "w2", "w3"], ["one", "wide", "number"])


class LastWord(Classification):
    """A kind of one's own that reads only the last word of a text."""

    name = "last-word"

    def encode(self, inputs: Sequence[Any], how: Any, **more: Any) -> Any:
        return super().encode([text.split()[-1] for text in inputs], how, **more)


def test_kind_of_ones_own_encodes_its_rows_itself_beside_other_tasks(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind_registry.REGISTRY, "registered", {})
    register_kind(LastWord())
    tasks = [task("whole", num_rows=16), task("last", num_rows=16) | {"kind": "last-word"}]
    run = learn(stream(backbone_folder(), tasks, training={"epochs": 8, "learning_rate": 0.1}), tmp_path / "run")
    texts = ["w1 w2 w3 w4 w5 w0", "w20 w21 w22 w1"]
    words = make_tokenizer()(["w0", "w1"], return_tensors="pt")
    expected = run.model("last")(**words).softmax(-1).tolist()
    mixed = run.predict([*texts, *texts], ["whole", "whole", "last", "last"])
    every = run.predict_all(texts, ["whole", "last"])
    assert isinstance(every["last"], list)
    for answers in (mixed[2:], every["last"]):
        pairs = [(list((each.probabilities or {}).values()), own) for each, own in zip(answers, expected, strict=True)]
        assert all(shares == pytest.approx(own, abs=1e-6) for shares, own in pairs)
    whole = run.predict(texts, "whole")
    same(mixed[:2], whole)
    assert isinstance(every["whole"], list)
    same(every["whole"], whole)
    found = [each for text in texts for each in run.predict([text, text.split()[-1]], reject="never")]
    assert {each.task for each in found[1::2]} == {"last"}
    same(found[1::2], run.predict([text.split()[-1] for text in texts], "last"))
