"""Labels of rows without a task in a class-incremental stream, and vectors of banks, computed once more in numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from continual_petl import Run
from continual_petl.heads.predictions import Prediction
from continual_petl.predictor.predictor import Predictor
from continual_petl.predictor.task_finder import task_finder
from continual_petl.router.discriminant import shrinkage
from continual_petl.router.totals import read_sums
from tests.learned import LearnedRuns
from tests.router.rows import labelled_task, routed_stream, rows_of
from tests.router.test_clusters import dense

Folder = Callable[..., Path]


def _class_task(name: str, labels: dict[str, str]) -> dict[str, Any]:
    task = labelled_task(name)
    task["data"] = {
        split: [row | {"label": labels[row["label"]]} for row in rows] for split, rows in task["data"].items()
    }
    return task


@pytest.fixture(scope="module")
def run(backbone_folder: Folder, learned_runs: LearnedRuns) -> Run:
    tasks = [_class_task("low", {"no": "a", "yes": "b"}), _class_task("high", {"no": "c", "yes": "d"})]
    return Run(learned_runs(routed_stream(backbone_folder(), tasks, protocol="class", routing="auto")))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [row["text"] for name in ("low", "high") for row in rows_of(name, 8, 5)]


@pytest.fixture(scope="module")
def joined(run: Run, texts: list[str]) -> Callable[[int, str], dict[str, float]]:
    """Return a function that computes, in numpy, the labels' probabilities of a text by a task."""
    finder = task_finder(run.session.models)
    (states,) = finder.states(run.session.models, texts).values()
    sums = {task: read_sums(run.store, task) for task in run.store.tasks}
    parts = [(own.count, dense(own.covariance)) for own in sums.values() if own is not None]
    total = sum(count for count, _ in parts)
    weight, width = shrinkage(total, len(parts[0][1])), len(parts[0][1])
    shared = sum(count / total * covariance for count, covariance in parts)
    mixed = (1 - weight) * shared + weight * np.trace(shared) / width * np.eye(width)

    def of(index: int, task: str) -> dict[str, float]:
        named, own = run.predict(texts[index], task).probabilities, sums[task]
        assert named is not None
        assert own is not None
        assert own.label_weight == 0.2
        apart = states[index].features_F - own.means_CF
        distances = np.einsum("cf,cf->c", apart, np.linalg.solve(mixed, apart.T).T)
        found = np.fromiter(named.values(), float) * (own.counts_C / own.count * np.exp(-0.5 * distances)) ** 0.2
        return dict(zip(named, (found / found.sum()).tolist(), strict=True))

    return of


Joined = Callable[[int, str], dict[str, float]]


def _is(found: Prediction, wanted: dict[str, float]) -> None:
    assert found.probabilities is not None
    assert list(found.probabilities) == list(wanted)
    assert dict(found.probabilities) == pytest.approx(wanted, rel=1e-3, abs=1e-5)  # the bank's rounding in a batch
    assert found.value == max(wanted, key=wanted.__getitem__)


def test_label_is_the_banks_times_a_fifth_of_the_frozen_states_log_probability(
    run: Run, texts: list[str], joined: Joined
) -> None:
    found = run.predict(texts, reject="never")
    for index, prediction in enumerate(found):
        assert prediction.task is not None
        _is(prediction, joined(index, prediction.task))
    assert any(
        one.probabilities != run.predict(text, one.task).probabilities for one, text in zip(found, texts, strict=True)
    )


@pytest.mark.parametrize("reject", ["never", 0.999])  # with the second one, nearly all rows are unknown
def test_each_candidate_answers_as_if_its_task_had_been_found(
    run: Run, texts: list[str], joined: Joined, reject: Any
) -> None:
    found = run.predict(texts, reject=reject, candidates=2)
    for index, prediction in enumerate(found):
        assert {each.task for each in prediction.candidates} == {"low", "high"}
        for each in prediction.candidates:
            assert each.task is not None
            _is(each, joined(index, each.task))


def test_stream_of_classes_keeps_the_whole_covariance_unless_it_is_told_otherwise(run: Run) -> None:
    stored = load_file(run.store.folder / "banks" / "low" / "router.safetensors")
    assert "covariance_U" in stored
    assert "factor_FR" not in stored


def test_vectors_are_what_the_banks_give_to_their_heads(run: Run, texts: list[str]) -> None:
    models, tasks = run.session.models, dict(enumerate(["low", "high"] * 8))
    vectors: dict[int, Any] = {}
    Predictor(models).resume(texts, tasks, None, vectors=vectors)
    for task in run.store.tasks:
        seen: list[torch.Tensor] = []
        hook = models.held(task).head.register_forward_pre_hook(lambda module, given, seen=seen: seen.append(given[0]))
        own = [index for index, name in tasks.items() if name == task]
        for index in own:
            run.predict(texts[index], task)
        hook.remove()
        alone = torch.cat(seen).double().numpy()
        np.testing.assert_allclose(np.stack([vectors[index] for index in own]), alone, rtol=1e-4, atol=1e-5)


def test_known_does_not_depend_on_the_batch_up_to_rounding(run: Run, texts: list[str]) -> None:
    together = run.predict(texts, batch_size=16)
    for text, one in zip(texts, together, strict=True):
        alone = run.predict([text])[0]
        assert one.known is not None
        assert alone.known == pytest.approx(one.known, abs=1e-3)
        assert (alone.task, alone.value) == (one.task, one.value) or one.task_near_tie or one.near_tie
    limited = run.predict(texts, reject=0.5)
    assert [one.task is None for one in limited] == [one.known is not None and one.known < 0.5 for one in together]
