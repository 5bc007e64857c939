"""One model for all tasks: with one task it matches full fine-tuning, with several it forgets or replays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl import Run
from experiments.continual.memory import Memory
from experiments.continual.one_model import joint, replay, run_trial
from experiments.continual.shared_model import OneModel
from experiments.studies import learning
from experiments.studies.trial import Trial
from tests.streams_in_code import write_rows

Folder = Callable[..., Path]
FEW = settings(max_examples=25, deadline=None, derandomize=True)
NAMES = ("yelp", "agnews", "sst2")
TRAINING = {"epochs": 2, "batch_size": 8, "learning_rate": 2e-3, "precision": "fp32"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with the rows of three tasks, 40 for training each."""
    for name in NAMES:
        write_rows(tmp_path / "data" / name, name)
    return tmp_path / "data"


def _trial(*tasks: str, **more: Any) -> Trial:
    said: dict[str, Any] = {"bank": {"preset": "full", "scope": "shared"}, "training": TRAINING, "seed": 13}
    return Trial(tasks=tasks, **(said | {"options": {"memory": 0.1, "every": 2}} | more))


def _tensors(model: OneModel, task: str) -> dict[str, torch.Tensor]:
    model.body.head = model.parts[task].head
    return model.body.tensors()


@pytest.mark.parametrize("way", ["replay", "joint"])
def test_single_task_matches_full_fine_tuning_of_a_run(data: Path, backbone_folder: Folder, way: str) -> None:
    folder, learned = str(backbone_folder()), dict[str, torch.Tensor]()

    def look(run: Run) -> dict[str, Any]:
        learned.update(run.store.tensors("yelp"))
        return {}

    expected = learning.run_trial(_trial("yelp", options={}), data, folder, look)
    trial = _trial("yelp", method=way)
    model = OneModel(trial.stream(data, folder), trial.tasks)
    R_TT = joint(model, trial.tasks) if way == "joint" else replay(model, Memory(0.1), every=2)
    assert learning.plain(R_TT.item()) == expected["scores"]["yelp"]["test"]["score"]
    found = _tensors(model, "yelp")
    assert found.keys() == learned.keys()
    for name, tensor in learned.items():
        assert torch.equal(found[name], tensor), name
    outcome = run_trial(trial, data, folder)
    assert outcome["scores"] == expected["scores"]
    assert outcome["tasks"]["yelp"]["curve"] == expected["tasks"]["yelp"]["curve"]
    assert outcome["tasks"]["yelp"]["parameters"] == expected["tasks"]["yelp"]["parameters"]
    assert outcome.keys() - {"memory"} == expected.keys()


def test_no_replay_steps_match_the_librarys_sequential_fine_tuning(data: Path, backbone_folder: Folder) -> None:
    """This includes R: earlier tasks are predicted with the current shared body and their own heads."""
    folder = str(backbone_folder())
    expected = learning.run_trial(_trial("yelp", "agnews", options={}), data, folder)
    found = run_trial(_trial("yelp", "agnews", method="replay", options={"memory": 0.1, "every": 10**6}), data, folder)
    assert found["R"] == expected["R"]
    assert expected["R"][1][0] is not None
    assert found["memory"]["rows"] == {"yelp": 4, "agnews": 4}


def test_replay_changes_what_is_learned_and_trains_earlier_heads(data: Path, backbone_folder: Folder) -> None:
    trial, heads = _trial("yelp", "agnews", method="replay"), []
    for every in (2, 10**6):
        model = OneModel(trial.stream(data, str(backbone_folder())), trial.tasks)
        replay(model, Memory(0.1), every)
        heads.append({name: tensor.clone() for name, tensor in model.parts["yelp"].head.state_dict().items()})
    assert any(not torch.equal(heads[0][name], heads[1][name]) for name in heads[0])


def test_a_joint_model_does_not_depend_on_the_order(data: Path, backbone_folder: Folder) -> None:
    folder = str(backbone_folder())
    one, other = (run_trial(_trial(*tasks, method="joint"), data, folder) for tasks in (NAMES, NAMES[::-1]))
    assert one["scores"] == other["scores"]
    assert one["R"][-1] == other["R"][-1][::-1]
    assert one["R"][0] == [None] * 3
    assert (one["acc"], one["bwt"], one["unchanged"]) == (other["acc"], None, None)


def test_diverging_rate_is_a_failed_trial(data: Path, backbone_folder: Folder) -> None:
    trial = _trial("yelp", method="joint", training=TRAINING | {"learning_rate": 1e30, "gradient_clip": None})
    assert "learning diverged" in run_trial(trial, data, str(backbone_folder()))["failed"]


@FEW
@given(st.integers(1, 5000), st.sampled_from([0.01, 0.1, 1.0]), st.integers(0, 9))
def test_memory_has_its_share_and_at_least_one_row(num_rows: int, share: float, seed: int) -> None:
    memory = Memory(share)
    memory.keep("yelp", num_rows, seed)
    rows = memory.rows["yelp"]
    assert len(rows) == len(set(rows)) == max(1, round(share * num_rows))
    assert set(rows) <= set(range(num_rows))


@FEW
@given(st.integers(1, 40), st.integers(0, 9))
def test_replay_draws_kept_rows_without_replacement(most: int, seed: int) -> None:
    memory = Memory(0.01)
    for task, count in (("yelp", 500), ("rte", 32)):
        memory.keep(task, count, 13)
    drawn = memory.draw(most, seed)
    assert sum(map(len, drawn.values())) == min(most, len(memory)) == min(most, 6)
    for task, rows in drawn.items():
        assert len(rows) == len(set(rows))
        assert set(rows) <= set(memory.rows[task])


def test_memory_has_only_rows_of_earlier_tasks_during_training(data: Path, backbone_folder: Folder) -> None:
    class Watched(Memory):
        seen: list[tuple[str, ...]] = []  # noqa: RUF012

        def draw(self, most: int, seed: int) -> dict[str, list[int]]:
            self.seen.append(tuple(self.rows))
            return super().draw(most, seed)

    trial, memory = _trial(*NAMES, method="replay"), Watched(0.1)
    replay(OneModel(trial.stream(data, str(backbone_folder())), trial.tasks), memory, every=2)
    # Ten batches of eight rows per task, and a replay step after every second batch except in the first task.
    assert memory.seen == [("yelp",)] * 5 + [("yelp", "agnews")] * 5


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5])
def test_invalid_share_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=f"share: got {share}; it must be above 0 and at most 1"):
        Memory(share)
