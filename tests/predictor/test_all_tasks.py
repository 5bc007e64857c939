"""Many tasks predict the same rows as each would alone, and frozen layers that they share are computed once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl import InputError, Run
from tests.learned import LearnedRuns
from tests.predictor.committed import Made, committed
from tests.predictor.test_mixed import same
from tests.small import small

Folder = Callable[..., Path]
TOP = {"layers": 1}
TASKS: dict[str, Made] = {
    **{f"top_{number}": Made({**small("houlsby"), **TOP}, "regression", None) for number in range(3)},
    "lora": Made({**small("lora"), **TOP}, labels=("a", "b", "c"), pooling="first"),
    "prefix": Made({**small("prefix"), **TOP}),
    "whole": Made({"preset": "full", **TOP}),
    "probe": Made("probe"),
    "low": Made("houlsby"),
    "prompt": Made("prompt"),
}
TEXTS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10", "w11 w12"]


@pytest.fixture(scope="module")
def run(learned_runs: LearnedRuns, backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run with all of TASKS, which have the same maximum length."""
    return committed(learned_runs, tmp_path_factory.mktemp("all") / "run", backbone_folder(), TASKS, shorter=0)


@pytest.mark.parametrize("num_rows", [1, 4])
def test_each_task_answers_as_if_alone(run: Run, num_rows: int) -> None:
    rows, tasks = TEXTS[:num_rows], ["one", *TASKS]
    found = run.predict_all(rows, tasks)
    assert list(found) == tasks
    for task in tasks:
        same(found[task], run.predict(rows, task))


def test_batch_size_limits_the_number_of_rows(run: Run) -> None:
    model: Any = run.session.models.backbone("fp32").model
    seen: list[int] = []
    handle = model.encoder.layer[0].register_forward_hook(lambda module, args, output: seen.append(len(output)))
    run.predict_all(TEXTS, ["one", "low"], batch_size=2)
    handle.remove()
    assert seen
    assert max(seen) <= 2


def test_shared_lower_layers_are_computed_once(run: Run) -> None:
    tasks = ["top_0", "top_1", "top_2", "lora"]
    run.predict_all(TEXTS, tasks)  # the first call also tests whether the pass can be cut
    model: Any = run.session.models.backbone("fp32").model
    seen = {0: 0, 1: 0}
    handles = [
        model.encoder.layer[layer].output.dense.register_forward_hook(
            lambda module, args, output, layer=layer: seen.update({layer: seen[layer] + len(output)})
        )
        for layer in seen
    ]
    run.predict_all(TEXTS, tasks)
    for handle in handles:
        handle.remove()
    assert seen == {0: len(TEXTS), 1: len(TEXTS) * len(tasks)}
    assert "forward" not in vars(model.encoder.layer[0])


def test_row_invalid_for_one_task_is_refused(run: Run) -> None:
    assert run.predict_all([], ["one", "low"]) == {"one": [], "low": []}
    with pytest.raises(InputError, match="task 'nine' is not learned"):
        run.predict_all(TEXTS, ["one", "nine"])
    with pytest.raises(InputError, match=r"task 'one': row 2 is \('w1', 'w2'\); each row of this task is a text"):
        run.predict_all(["w1", ("w1", "w2")], ["one", "low"])
    assert torch.is_grad_enabled()


def test_tasks_may_be_a_string_or_an_iterator(run: Run) -> None:
    wanted = run.predict_all(TEXTS, ["low"])
    assert run.predict_all(TEXTS, "low") == wanted, "a string must name one task, not one per character"
    assert run.predict_all(TEXTS, (name for name in ("low",))) == wanted
