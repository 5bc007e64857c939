"""All guarantees hold for random short streams that are learned, continued and verified."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from continual_petl import Run, learn
from continual_petl.banks.config.presets import PRESETS
from continual_petl.errors import Interrupted
from tests.desk import bank_digests
from tests.engine.test_resume import SignalAt
from tests.small import small
from tests.streams_in_code import regression_task, stream, task

Folder = Callable[..., Path]


@st.composite
def tasks(draw: st.DrawFn) -> list[dict[str, Any]]:
    names = draw(st.lists(st.sampled_from(["a", "b.c", "train", "D", "e-1", "0"]), min_size=2, max_size=4, unique=True))
    made = []
    for name in names:
        kind = draw(st.sampled_from(["single", "pair", "number"]))
        num_rows = draw(st.integers(8, 20))
        more: dict[str, Any] = {
            "bank": draw(st.sampled_from([small(preset) for preset in sorted(PRESETS)])),
            "training": draw(
                st.fixed_dictionaries(
                    {},
                    optional={
                        "epochs": st.just(2),
                        "batch_size": st.integers(1, 24),
                        "accumulate": st.integers(1, 3),
                        "backbone_dropout": st.booleans(),
                        "select": st.sampled_from(["best", "last"]),
                        "optimizer": st.sampled_from(["adamw", "adam", "sgd"]),
                        "precision": st.sampled_from(["fp32", "bf16"]),
                    },
                )
            ),
        }
        if kind == "number":
            made.append(regression_task(name, num_rows=num_rows, **more))
        else:
            made.append(task(name, num_rows=num_rows, pairs=kind == "pair", **more))
    return made


def any_stream(num_examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that runs a test on this many random streams, the same ones every time."""
    setting = settings(
        max_examples=num_examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    return lambda test: setting(given(tasks=tasks(), stop=st.integers(0, 5), data=st.data())(test))


@any_stream(1)
def test_random_streams_few_examples(
    backbone_folder: Folder, tasks: list[dict[str, Any]], stop: int, data: st.DataObject
) -> None:
    check(backbone_folder(), tasks, stop, data)


@pytest.mark.slow
@any_stream(15)
def test_random_streams(backbone_folder: Folder, tasks: list[dict[str, Any]], stop: int, data: st.DataObject) -> None:
    check(backbone_folder(), tasks, stop, data)


def check(backbone: Path, tasks: list[dict[str, Any]], stop: int, data: st.DataObject) -> None:
    """Learn a stream in one go, then in another order with the last task appended and interrupted; compare and verify."""
    training = {"epochs": 1, "learning_rate": 0.01, "checkpoint_every": 2}

    def stream_of(which: list[dict[str, Any]], **more: Any) -> Any:
        return stream(backbone, which, training=training, **more)

    with tempfile.TemporaryDirectory() as folder:
        whole = learn(stream_of(tasks), Path(folder, "whole"))
        expected = bank_digests(whole)
        # The tasks in another order; the last one is appended later, and interrupted.
        shuffled = data.draw(st.permutations(tasks))
        policy = data.draw(st.sampled_from(["all", "sample", "certified", "auto"]))
        learn(stream_of(shuffled[:-1]), Path(folder, "other"))
        with suppress(Interrupted):  # not raised if the last task has too few batches
            learn(stream_of(shuffled, evaluate=policy), Path(folder, "other"), callbacks=[SignalAt(stop)])
        run = learn(stream_of(shuffled, evaluate=policy), Path(folder, "other"))
        assert bank_digests(run) == expected
        for folder_name in ("whole", "other"):
            again = Run(Path(folder, folder_name))
            for found in again.verify(data=True):
                assert found.problems == ()
                assert found.how == "digests and probe, bit for bit, test rows"
            R = again.results.R
            assert all(R[i, j] == R[j, j] for i in range(len(R)) for j in range(i + 1) if not R[i, j].isnan())
            assert again.results.forgetting == 0.0
