"""A run keeps the defaults that it was begun with: what a stream leaves open means tomorrow what it meant then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from continual_petl import Run, learn
from continual_petl.banks.config.presets import RECIPES, preset_of
from continual_petl.cli.main import main
from continual_petl.engine.session import settings_that_differ
from continual_petl.errors import Interrupted
from continual_petl.report.facts import read_facts
from continual_petl.report.inventory import entry_of
from continual_petl.store.folder.stream_seal import begun_with, stream_problem
from continual_petl.streams.stream import TaskStream
from continual_petl.sweep import sweep
from tests.engine.test_resume import SignalAt
from tests.store.older import without_defaults
from tests.streams_in_code import stream, task
from tests.sweep.sweeps import ended, small_stream, small_sweep

Folder = Callable[..., Path]
THEN = RECIPES["prefix_flat"]
"""By the first defaults, any option but the size made `prefix` nobody's preset."""
BANK = {"preset": "prefix", "length": 2, "hidden": 6}
TRAINING = {"learning_rate": None, "epochs": None, "batch_size": 20}


def tasks_of(backbone: Path, *names: str, **more: Any) -> TaskStream:
    return stream(backbone, [task(name, num_rows=20) for name in names], **{"bank": BANK, "training": TRAINING, **more})


def used(run: Run, name: str) -> tuple[float, int]:
    training = run.store.manifest(name).training
    return training.learning_rate, training.epochs


@pytest.fixture
def stopped(backbone_folder: Folder, tmp_path: Path) -> Path:
    """Return the folder of a run of an earlier release that was stopped while it learned its only task."""
    folder = tmp_path / "run"
    with pytest.raises(Interrupted):
        learn(tasks_of(backbone_folder(), "one", defaults=1), folder, callbacks=[SignalAt(5)])
    without_defaults(folder / "stream.yaml")
    return folder


def test_a_task_stopped_by_an_earlier_release_resumes_at_its_rate(
    stopped: Path, backbone_folder: Folder, tmp_path: Path
) -> None:
    assert begun_with(stopped / "stream.yaml") == 1
    assert Run(stopped).session.spec.defaults == 1
    told: list[str] = []

    class Listen(SignalAt):
        def on_train_start(self, trainer: Any, module: Any) -> None:
            told.append(f"epoch {trainer.current_epoch}")

    run = learn(tasks_of(backbone_folder(), "one"), stopped, callbacks=[Listen(10**6)])
    assert told == ["epoch 6"]
    assert used(run, "one") == (THEN.learning_rate, THEN.epochs)
    whole = learn(tasks_of(backbone_folder(), "one", defaults=1), tmp_path / "whole")
    assert run.store.manifest("one").digest == whole.store.manifest("one").digest
    # From now on the file says it, and neither the same command nor a later task is read otherwise.
    assert "\ndefaults: 1\n" in (stopped / "stream.yaml").read_text()
    assert settings_that_differ(Run(stopped).session) == {}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(task("two", num_rows=20)))
    assert main(["learn", str(stopped), str(tmp_path / "two.yaml"), "--quiet"]) == 0
    assert used(Run(stopped), "two") == (THEN.learning_rate, THEN.epochs)
    assert [facts.name for facts in read_facts(stopped).tasks] == ["one", "two"]


def test_mam_of_an_earlier_release_is_mam_flat(backbone_folder: Folder, tmp_path: Path) -> None:
    folder, mam = tmp_path / "run", {"preset": "mam", "length": 2, "bottleneck": 3}
    shared = task("two", num_rows=20, bank={**mam, "scope": "shared"})
    then = stream(backbone_folder(), [task("one", num_rows=20), shared], bank=mam, training=TRAINING, defaults=1)
    learn(then, folder)
    file = folder / "stream.yaml"
    text = file.read_text()
    assert text.count("preset: mam_flat") == 2
    file.write_text(text.replace("preset: mam_flat", "preset: mam"))
    without_defaults(file)
    run = Run(folder)
    assert stream_problem(run.store) is None
    assert [preset_of(run.store.manifest(name).bank) for name in run.store.tasks] == ["mam_flat", "mam_flat"]
    assert [each["preset"] for each in (entry_of(run.store, name) for name in run.store.tasks)] == [
        "mam_flat",
        "mam_flat",
    ]
    assert settings_that_differ(run.session) == {}
    # The user's own file still says mam, and means what was learned, in the run and in a task that is added to it.
    again = learn(tasks_of(backbone_folder(), "one", "three", bank=mam), folder)
    assert settings_that_differ(again.session) == {}
    (tmp_path / "four.yaml").write_text(yaml.safe_dump(task("four", num_rows=20, bank={**mam, "length": 1})))
    assert main(["learn", str(folder), str(tmp_path / "four.yaml"), "--quiet"]) == 0
    assert main(["learn", str(folder), str(tmp_path / "four.yaml"), "--quiet"]) == 0
    manifests = [Run(folder).store.manifest(name) for name in ("three", "four")]
    assert [preset_of(each.bank) for each in manifests] == ["mam_flat", "mam_flat"]
    new = learn(tasks_of(backbone_folder(), "one", bank=mam), tmp_path / "new")
    assert preset_of(new.store.manifest("one").bank) == "mam"


def test_a_new_run_says_its_defaults_and_a_stream_may_choose_them(backbone_folder: Folder, tmp_path: Path) -> None:
    run = learn(tasks_of(backbone_folder(), "one"), tmp_path / "new")
    assert used(run, "one") == (RECIPES["prefix"].learning_rate, RECIPES["prefix"].epochs)
    assert begun_with(tmp_path / "new" / "stream.yaml") == 2
    assert begun_with(tmp_path / "none.yaml") is None
    again = learn(tasks_of(backbone_folder(), "one", "two", defaults=1), tmp_path / "new")
    assert used(again, "two") == (THEN.learning_rate, THEN.epochs)


def test_a_sweep_of_an_earlier_release_goes_on(backbone_folder: Folder, tmp_path: Path) -> None:
    bank, space = {"preset": "prefix", "length": 2}, {"bank.hidden": [4, 6]}
    training = {"learning_rate": None}
    then = small_stream(backbone_folder(), bank=bank, training=training, defaults=1)
    sweep(then, small_sweep(space=space), folder=tmp_path)
    without_defaults(tmp_path / "swept.yaml")
    before = ended(tmp_path)
    sweep(small_stream(backbone_folder(), bank=bank, training=training), small_sweep(space=space), folder=tmp_path)
    assert ended(tmp_path) == before
