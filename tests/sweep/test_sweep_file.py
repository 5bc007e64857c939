"""All mistakes in a sweep file are reported at once, each with its line, the value, and what is allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl.errors import InputError, StreamFileError
from continual_petl.sweep.settings import Unfit, chosen_tasks, described, grid, load_sweep, with_settings
from continual_petl.sweep.spec import Range, SweepSpec
from tests.streams_in_code import regression_task, stream, task

NOWHERE = Path("nowhere")
WHOLE = """\
space:
  bank.bottleneck: [8, 64, 256]
  training.learning_rate: {low: 1.0e-5, high: 1.0e-2, log: true}
  training.epochs: [3, 20]
sampler: tpe
trials: 20
"""


def problems_of(tmp_path: Path, text: str, *tasks: dict[str, Any], **more: Any) -> tuple[str, ...]:
    (tmp_path / "sweep.yaml").write_text(text)
    with pytest.raises(StreamFileError) as found:
        load_sweep(tmp_path / "sweep.yaml", stream(NOWHERE, tasks or [task("one")]).spec, **more)
    return tuple(problem.replace(str(tmp_path / "sweep.yaml"), "FILE") for problem in found.value.problems)


def test_a_file_is_read_with_its_defaults(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(WHOLE)
    spec = load_sweep(tmp_path / "sweep.yaml", stream(NOWHERE, [task("one")]).spec)
    assert (spec.sampler, spec.prune, spec.seeds, spec.seed, spec.num_trials) == ("tpe", "median", 5, 0, 20)
    rate = spec.space["training.learning_rate"]
    assert rate == Range(low=1e-5, high=1e-2, log=True)
    assert spec == SweepSpec.model_validate(spec.model_dump(mode="json"))


def test_all_mistakes_are_reported_with_lines(tmp_path: Path) -> None:
    text = """\
space:
  bank.bottleneck: 8
  training.learning_rate: {low: 1.0, high: 0.1}
  training.epochs: []
sampler: bayes
trials: 0
seed: -1
prunes: median
"""
    found = problems_of(tmp_path, text)
    assert [problem.split(": ")[0] for problem in found] == [f"FILE:{line}" for line in (2, 3, 4, 5, 6, 7, 8)]
    for fragment, problem in zip(
        (
            "key space.bank.bottleneck: got 8; must be a list of values, or a mapping with low and high",
            "key space.training.learning_rate.high: got 0.1; it must be above low, which is 1.0",
            "key space.training.epochs: got a list of 0; allowed: a list, not empty",
            "key sampler: got 'bayes'; allowed: grid, tpe, random",
            "key trials: got 0; allowed: a whole number of at least 1",
            "key seed: got -1; allowed: a whole number of at least 0",
            "unknown key 'prunes' (did you mean 'prune'?)",
        ),
        found,
        strict=True,
    ):
        assert fragment in problem


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "FILE:1: got an empty file; a sweep needs at least space"),
        ("- a\n", "FILE:1: got a list of 1; a sweep needs at least space"),
        ("sampler: grid\n", "key space: is missing: add it, for instance"),
        ("space: [\n", "this is not readable as YAML"),
        ("space: {training.epochs: {low: 1, high: 3}}\n", "is a range, but a grid needs a list of values"),
        (
            "space: {training.epochs: [1]}\nsampler: tpe\n",
            "key trials: is missing, but sampler tpe does not stop by itself",
        ),
        ("space: {training.epochs: [1, 1]}\n", "key space.training.epochs.1: 1 is in the list twice"),
        (
            "space: {training.learning_rate: {low: 0.0, high: 0.1, log: true}}\nsampler: tpe\ntrials: 2\n",
            "key space.training.learning_rate.low: got 0.0; it must be above 0 with log: true",
        ),
        ("space: {bank: [lora], bank.bottleneck: [2]}\n", "is a part of bank, which is tried as well"),
        ("space: {training.epochs: [3, 0]}\n", "space.training.epochs.1: got 0; allowed: a whole number of at least 1"),
        ("space: {training.lr: [0.1]}\n", "unknown key 'lr'"),
        ("space: {bank.rank: [2, 4]}\n", "set the same size: give only one of them (task 'one')"),
        ("space: {bank: [hulsby]}\n", "unknown preset 'hulsby'"),
        ("space: {bank.bottleneck.deep: [2]}\n", "bank.bottleneck is 4 and has no keys below it"),
        ("space: {training.momentum: [0.5]}\n", "space.training.momentum.0"),
        ("space: {training: [1]}\n", "this is not a key"),
        ("space: {data: [a, b]}\n", "are measured on the same rows with the same backbone"),
        (
            "space: {max_length: [32]}\n",
            "are measured on the same rows with the same backbone",
        ),
        ("space: {trainin.epochs: [3]}\n", "is not a key that can be tried"),
        (
            "space: {training.optimizer: [sgd, adamw], training.momentum: [0.5]}\n",
            "training.momentum",
        ),
    ],
)
def test_mistake_is_reported_with_what_is_allowed(tmp_path: Path, text: str, says: str) -> None:
    assert says in "\n".join(problems_of(tmp_path, text))


def test_invalid_values_and_contradictions_are_reported_together(tmp_path: Path) -> None:
    text = "space:\n  bank: [layernorm, lorra]\n  training.learning_rate: {low: 1.0, high: 0.1}\nsampler: tpes\n"
    found = problems_of(tmp_path, text)
    assert [problem.split(": ")[0] for problem in found] == ["FILE:3", "FILE:4"]
    text = "space:\n  bank: [layernorm, lorra]\n  training.epochs: [3, 0]\n  data: [a]\n"
    found = problems_of(tmp_path, text)
    assert sorted(problem.split(": ")[0] for problem in found) == ["FILE:2", "FILE:3", "FILE:4"]
    assert any("unknown preset 'lorra'" in problem for problem in found)


def test_conflicting_settings_are_reported_together(tmp_path: Path) -> None:
    text = "space: {training.optimizer: [sgd, adamw], training.betas: [[0.8, 0.9]]}\n"
    (problem,) = problems_of(tmp_path, text)
    assert "betas" in problem


def test_value_invalid_for_one_task_names_the_task(tmp_path: Path) -> None:
    text = "space: {training.label_smoothing: [0.0, 0.1]}\n"
    found = problems_of(tmp_path, text, task("one"), regression_task("two"))
    assert all("(task 'two')" in problem for problem in found)
    (tmp_path / "sweep.yaml").write_text(text)
    spec = stream(NOWHERE, [task("one"), regression_task("two")]).spec
    assert load_sweep(tmp_path / "sweep.yaml", spec, tasks=spec.tasks[:1]).num_settings == 2


@pytest.mark.parametrize(
    ("bank", "says"),
    [
        (
            {"start_from": "one"},
            "bank of task 'two' depends on other tasks (start_from: one), but a sweep learns",
        ),
        (
            {"preset": "fusion", "fuse": ["one", "zero"]},
            "the bank of task 'two' depends on other tasks (fuse: [one, zero]), but a sweep learns",
        ),
        ({"preset": "lora", "scope": "shared"}, "the bank of task 'two' depends on other tasks (scope: shared)"),
    ],
)
def test_a_task_that_needs_another_one_is_refused(tmp_path: Path, bank: dict[str, Any], says: str) -> None:
    found = problems_of(tmp_path, "space: {training.epochs: [1]}\n", task("one"), task("two", bank=bank))
    assert says in "\n".join(found)


def test_command_line_trials_are_named_in_errors(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, "space: {training.epochs: [1]}\n", trials=0)
    assert problem.startswith("--trials: got 0; allowed: a whole number of at least 1")


def test_missing_or_binary_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StreamFileError, match="there is no such file"):
        load_sweep(tmp_path / "sweep.yaml")
    (tmp_path / "sweep.yaml").write_bytes(b"\xff")
    with pytest.raises(StreamFileError, match="byte 0 is not UTF-8"):
        load_sweep(tmp_path / "sweep.yaml")
    with pytest.raises(StreamFileError, match="cannot be read"):
        load_sweep(tmp_path)


def test_python_values_that_a_file_cannot_hold_are_refused() -> None:
    with pytest.raises(InputError, match=r"got \w+Path\('a'\); a sweep tries text, finite numbers"):
        SweepSpec.model_validate({"space": {"bank": [Path("a")]}})


def test_bounds_in_the_wrong_order_are_reported_by_their_key() -> None:
    with pytest.raises(InputError, match=r"^Range: key high: got 8; it must be above low, which is 10$"):
        Range(low=10, high=8)
    with pytest.raises(InputError, match=r"^SweepSpec: key space\.bank\.bottleneck\.high: got 8; it must be above low"):
        SweepSpec.model_validate({"space": {"bank.bottleneck": {"low": 10, "high": 8}}, "sampler": "tpe", "trials": 2})


def test_contradictions_are_reported_once_single_keys_are_right(tmp_path: Path) -> None:
    text = "space: {training.epochs: {low: 1, high: 3}}\nseeds: 0\n"
    assert [problem.split(": ")[1] for problem in problems_of(tmp_path, text)] == ["key seeds"]
    (problem,) = problems_of(tmp_path, text.replace("0", "1"))
    assert "is a range, but a grid needs a list of values" in problem


def test_an_unknown_task_lists_the_known_ones() -> None:
    spec = stream(NOWHERE, [task("one"), task("two")]).spec
    assert [each.name for each in chosen_tasks(spec, ["two"])] == ["two"]
    with pytest.raises(
        InputError, match=r"--task tow: .* no such task \(did you mean 'two'\?\); its tasks are one, two"
    ):
        chosen_tasks(spec, ["tow"])


def test_settings_replace_the_tasks_own_and_keep_the_rest() -> None:
    spec = stream(NOWHERE, [task("one", training={"epochs": 7, "batch_size": 3})]).spec
    found = with_settings(spec, spec.tasks[0], {"training.epochs": 2, "bank.bottleneck": 16, "pooling": "first"})
    assert spec.resolved_training(found).epochs == 2
    assert spec.resolved_training(found).batch_size == 3
    assert spec.resolved_bank(found).modifications[0].bottleneck == 16
    assert (found.pooling, found.data) == ("first", spec.tasks[0].data)
    written = {"modifications": [{"form": "lowrank", "modifies": "query", "insertion": "parallel", "bottleneck": 2}]}
    spec = stream(NOWHERE, [task("one", bank=written)]).spec
    with pytest.raises(Unfit, match=r"bank\.modifications is a list of 1 and has no keys below it"):
        with_settings(spec, spec.tasks[0], {"bank.modifications.0.bottleneck": 5})


def test_settings_are_described_in_one_line() -> None:
    settings = {"bank": {"preset": "lora", "rank": 8}, "training.learning_rate": 0.00012345}
    assert described(settings) == "bank {preset: lora, rank: 8}, training.learning_rate 0.0001234"


@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True), min_size=1
    )
)
@settings(max_examples=50, deadline=None, derandomize=True)
def test_grid_has_every_combination_once(space: dict[str, list[int]]) -> None:
    spec = SweepSpec.model_validate({"space": {f"training.{key}": values for key, values in space.items()}})
    found = grid(spec)
    assert len(found) == spec.num_settings == len({tuple(each.items()) for each in found})
    assert all(each[f"training.{key}"] in values for each in found for key, values in space.items())
