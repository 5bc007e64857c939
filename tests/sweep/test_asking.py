"""Settings suggested by Optuna depend only on finished trials, and pruning follows its rules."""

from __future__ import annotations

import importlib
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError
from continual_petl.banks.config import presets
from continual_petl.banks.config.presets import RECIPES, Recipe
from continual_petl.sweep import runner, sweep, trial
from continual_petl.sweep.study import Outcome, Record, should_prune, study_of, suggested
from tests.streams_in_code import regression_task, stream
from tests.sweep.sweeps import TRAINING, ended, small_stream, small_sweep

Folder = Callable[..., Path]
DRAWN: dict[str, Any] = {
    "bank": ["layernorm", {"preset": "lora", "rank": 2}],
    "training.learning_rate": {"low": 1e-4, "high": 1e-1, "log": True},
    "training.epochs": {"low": 1, "high": 9},
}


def record(number: int, scores: Sequence[float | None], state: str = "complete", **settings: Any) -> Record:
    return Record.model_validate(
        {
            "task": "one",
            "role": "search",
            "number": number,
            "seed": 3,
            "settings": settings,
            "metric": "accuracy",
            "state": state,
            "scores": scores,
            "score": scores[-1] if state == "complete" else None,
        }
    )


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_sampler_is_deterministic_given_the_history(sampler: str) -> None:
    spec = small_sweep(space=DRAWN, sampler=sampler, trials=30)

    def asked(task: str) -> list[dict[str, Any]]:
        past: list[Record] = []
        for number in range(14):
            found = suggested(spec, task, number, past)
            past.append(record(number, [found["training.learning_rate"]], **found))
        return [each.settings for each in past]

    first = asked("one")
    assert first == asked("one")
    assert first != asked("two")
    for each in first:
        assert each["bank"] in DRAWN["bank"]
        assert 1e-4 <= each["training.learning_rate"] <= 1e-1
        assert each["training.epochs"] in range(1, 10)
    assert len({str(each["bank"]) for each in first}) == 2


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_draws_do_not_depend_on_the_order_of_the_keys(sampler: str) -> None:
    found: list[list[dict[str, Any]]] = []
    for space in (DRAWN, dict(reversed(DRAWN.items()))):
        spec, past = small_sweep(space=space, sampler=sampler, trials=30), list[Record]()
        for number in range(14):
            settings = suggested(spec, "one", number, past)
            assert [*settings] == [*space], "settings are shown in the order of the file"
            past.append(record(number, [settings["training.learning_rate"]], **settings))
        found.append([each.settings for each in past])
    assert found[0] == found[1]


def test_median_prunes_trials_below_the_median_of_the_epoch() -> None:
    others = [record(number, [0.5, 0.6, 0.7, 0.8]) for number in range(5)]
    assert should_prune("median", [0.4], 4, 0.1, others)
    assert not should_prune("median", [0.5], 4, 0.1, others)
    assert not should_prune("median", [0.4], 4, 0.1, others[:4]), "must not prune before five others are complete"
    assert not should_prune("median", [0.6, 0.1], 4, 0.1, others), "the best score so far must count, not the last"
    assert should_prune("median", [None], 4, 0.1, others), "an undefined score must count as worse than any other"
    assert not should_prune("median", [0.6, 0.6, 0.7, 0.1], 4, 0.1, others), (
        "must not prune after the last epoch, which would save nothing"
    )
    assert not should_prune("median", [0.4], 4, 0.5, others), "must not prune while the learning rate is still rising"
    assert should_prune("median", [0.4, 0.4], 4, 0.5, others)


def test_halving_keeps_the_best_third_of_each_stage() -> None:
    others = [record(number, [0.1 * number], "pruned") for number in range(5)]
    assert not should_prune("halving", [0.6], 9, 0.0, others)
    assert should_prune("halving", [0.25], 9, 0.0, others)
    assert not should_prune("halving", [0.6, 0.0], 9, 0.0, others), "must not prune at epoch 2, where no stage ends"
    reached = [record(5 + number, [0.6, 0.6, 0.8], "pruned") for number in range(3)]
    assert should_prune("halving", [0.7, 0.7, 0.7], 9, 0.0, others + reached)
    assert not should_prune("halving", [0.7, 0.7, 0.9], 9, 0.0, others + reached)


def test_study_has_every_trial_and_optuna_logging_is_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    optuna = importlib.import_module("optuna")
    before = optuna.logging.get_verbosity()
    spec = small_sweep(space={"bank": DRAWN["bank"]}, sampler="random", trials=3)
    trials = [
        record(0, [0.1, 0.5], bank="layernorm"),
        record(1, [0.2], "pruned", bank={"preset": "lora", "rank": 2}),
        record(2, [], "failed", bank="layernorm"),
    ]
    study = study_of(spec, trials)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED", "FAIL"]
    assert study.best_value == 0.5
    assert optuna.logging.get_verbosity() == before
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_pruning_follows_the_rule(backbone_folder: Folder, tmp_path: Path) -> None:
    # Rank correlations are seldom equal, so about half of the later trials are below the median.
    tasks = stream(backbone_folder(), [regression_task("one", num_rows=20)], training=TRAINING)
    space = {"training.epochs": [2], "training.learning_rate": [0.05, 0.04, 1e-9, 0.03, 1e-8, 1e-7, 0.06, 1e-6, 1e-5]}
    result = sweep(tasks, small_sweep(space=space, prune="median"), folder=tmp_path)
    complete: list[Any] = []
    for line in ended(tmp_path):
        worst = len(complete) >= 5 and line["scores"][0] < statistics.median(each["scores"][0] for each in complete)
        assert (line["state"], len(line["scores"])) == (("pruned", 1) if worst else ("complete", 2))
        complete += [] if worst else [line]
    assert result.tasks["one"].count("pruned") == 9 - len(complete) > 0
    assert result.study("one").trials[8].state.name in ("COMPLETE", "PRUNED")
    with pytest.raises(InputError, match=r"the sweep has no task 'on' \(did you mean 'one'\?\)"):
        result.study("on")


@pytest.mark.slow
def test_trials_with_other_epochs_are_not_compared(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int, list[int]]] = []

    def ask(prune: str, scores: Sequence[float | None], epochs: int, warmup: float, others: Sequence[Record]) -> bool:
        asked.append((epochs, len(scores), [each.settings["training.epochs"] for each in others]))
        return epochs == 3 and len(scores) == 2

    monkeypatch.setattr(trial, "should_prune", ask)
    space = {"bank.bottleneck": [2, 4], "training.epochs": [1, 3]}
    sweep(small_stream(backbone_folder()), small_sweep(space=space, prune="halving"), folder=tmp_path)
    assert asked == [(1, 1, []), (3, 1, []), (3, 2, []), (1, 1, [1]), (3, 1, [3]), (3, 2, [3])]
    assert [line["state"] for line in ended(tmp_path)] == ["complete", "pruned", "complete", "pruned"]
    assert [len(line["scores"]) for line in ended(tmp_path)] == [1, 2, 1, 2], (
        "the score that led to pruning must be included"
    )


@pytest.mark.slow
def test_unset_epochs_are_those_of_the_preset(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []

    def ask(prune: str, scores: Sequence[float | None], epochs: int, warmup: float, others: Sequence[Record]) -> bool:
        asked.append((epochs, len(others)))
        return bool(others)

    monkeypatch.setattr(trial, "should_prune", ask)
    monkeypatch.setattr(presets, "RECIPES", RECIPES | {"bitfit": Recipe(1e-3, 3), "layernorm": Recipe(1e-3, 3)})
    tasks = small_stream(backbone_folder(), training={"epochs": None, "learning_rate": None})
    banks = ["bitfit", "full", "layernorm"]
    sweep(tasks, small_sweep(space={"bank": banks}, prune="halving"), folder=tmp_path)
    assert list(dict.fromkeys(asked)) == [(3, 0), (RECIPES["full"].epochs, 0), (3, 1)]


@pytest.mark.slow
def test_epochs_of_a_number_of_steps_are_known_from_the_trials_with_as_many(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int, list[int]]] = []

    def ask(prune: str, scores: Sequence[float | None], epochs: int, warmup: float, others: Sequence[Record]) -> bool:
        asked.append((epochs, len(scores), [each.settings["training.max_steps"] for each in others]))
        return False

    monkeypatch.setattr(trial, "should_prune", ask)
    space = {"bank.bottleneck": [2, 4], "training.max_steps": [1, 4]}
    tasks = small_stream(backbone_folder(), training={"epochs": None, "batch_size": 8})
    sweep(tasks, small_sweep(space=space, prune="halving"), folder=tmp_path)
    assert asked == [(0, 1, []), (0, 1, []), (0, 2, []), (1, 1, [1]), (2, 1, [4]), (2, 2, [4])]


def test_tried_settings_are_not_repeated(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[dict[str, Any]] = []

    def as_if(setup: Any, record: Record) -> Outcome:
        learned.append(record.settings)
        return Outcome(state="complete", score=record.settings["bank.bottleneck"] / 10, seconds=5.0)

    monkeypatch.setattr(runner, "carried_out", as_if)
    spec = small_sweep(space={"bank.bottleneck": [2, 4]}, sampler="random", trials=5)
    sweep(small_stream(backbone_folder()), spec, folder=tmp_path)
    found = ended(tmp_path)
    assert sorted(str(settings) for settings in learned) == ["{'bank.bottleneck': 2}", "{'bank.bottleneck': 4}"]
    assert [line["score"] for line in found] == [line["settings"]["bank.bottleneck"] / 10 for line in found]
    assert [line["seconds"] for line in found].count(0.0) == 3
    first = {str(line["settings"]): line["number"] for line in reversed(found)}
    same = [line["number"] if line["same_as"] is None else line["same_as"] for line in found]
    assert same == [first[str(line["settings"])] for line in found]
    assert [line["same_as"] is None for line in found] == [line["seconds"] > 0 for line in found]


def test_missing_optuna_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "continual_petl.sweep.study")
    with pytest.raises(InputError, match=r"needs Optuna, .* not installed here: pip install 'continual-petl\[sweep\]'"):
        importlib.import_module("continual_petl.sweep.study")
