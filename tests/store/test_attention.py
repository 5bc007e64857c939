"""A run keeps two attention implementations, for training and for predictions; its certificates record both.

A certificate is verified, and its bank predicts, with the implementation it records, whatever the rest of the run uses.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from transformers import PreTrainedModel

from continual_petl import Run, StreamCallback, learn
from continual_petl.backbones.auto_defaults import FASTEST, select_as, this_device
from continual_petl.backbones.backbone import Backbone
from continual_petl.callbacks import WatchedRun, WatchedTask
from continual_petl.cli.main import main
from continual_petl.engine.parallel.worker import commit_staged, setup_of, stage
from continual_petl.engine.scoring.result_row import _measure
from continual_petl.engine.session import Session
from continual_petl.engine.task.learn_task import learn_bank
from continual_petl.engine.task.state_cache import fill_state_cache
from continual_petl.errors import Interrupted
from continual_petl.predictor.batching import groups
from continual_petl.store.certificate.certificate import read_certificate
from continual_petl.store.certificate.values import Origin
from continual_petl.store.store import Store
from continual_petl.streams.batches.datamodule import Split
from tests.engine.kept_states import Open, tasks_of
from tests.engine.test_resume import SignalAt
from tests.store.tampering import QUICK, change_tensors, edit
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
BIT_FOR_BIT = "digests and probe, bit for bit"
ATTENTIONS: tuple[Literal["eager", "sdpa"], ...] = ("eager", "sdpa")
ROWS = ["w11 w12 w13", "w14"]
Passes = set[tuple[bool, str]]
"""For forward passes of a backbone: whether gradients were enabled, and the attention implementation."""


@contextmanager
def auto(attention: Literal["eager", "sdpa"], training_attention: Literal["eager", "sdpa"]) -> Iterator[None]:
    """Make `auto` select these attention implementations on this machine."""
    row = replace(FASTEST[this_device()], attention=attention, training_attention=training_attention)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FASTEST, this_device(), row)
        yield


@contextmanager
def passes() -> Iterator[Passes]:
    """Record the forward passes of all backbones inside the block."""
    seen: Passes = set()

    def note(module: nn.Module, _: object) -> None:
        if isinstance(module, PreTrainedModel):
            seen.add((torch.is_grad_enabled(), str(module.config._attn_implementation)))

    handle = register_module_forward_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


@pytest.fixture(autouse=True)
def eager_here() -> Iterator[None]:
    with auto("eager", "eager"):
        yield


@pytest.fixture(scope="module")
def sdpa_run(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was learned while `auto` selected another attention implementation than it does in the tests."""
    with auto("sdpa", "sdpa"), passes() as seen:
        run = learn(_stream(backbone_folder()), tmp_path_factory.mktemp("learned") / "run")
    assert run.store.certificate("one").environment.attention == "sdpa"
    assert {attention for _, attention in seen} == {"sdpa"}
    return run.store.folder


@pytest.fixture(scope="module")
def split_run(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was trained with one attention implementation and predicts with another."""
    with auto("sdpa", "eager"), passes() as seen:
        run = learn(_stream(backbone_folder()), tmp_path_factory.mktemp("learned") / "run")
    # Validation, scores and probe need no gradients.
    assert seen == {(True, "eager"), (False, "sdpa")}
    return run.store.folder


@pytest.fixture
def folder(sdpa_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sdpa_run, tmp_path / "run")


def _stream(backbone: Path, *more: str, attention: str = "auto") -> Any:
    tasks = [task(name, num_rows=16) for name in ("one", *more)]
    training = QUICK | {"epochs": 2}  # so that training continues after a validation
    return stream(backbone, tasks, backbone={"name": str(backbone), "attention": attention}, training=training)


def _ways(run: Run) -> list[str]:
    checks = run.verify(data=True)
    assert all(check.ok for check in checks)
    return [check.how for check in checks]


def test_verify_and_predict_use_the_certified_attention(folder: Path) -> None:
    run = Run(folder)
    assert _ways(run) == [f"{BIT_FOR_BIT}, test rows"]
    assert run.session.models.backbone("fp32").attention == "sdpa"


def test_unknown_attention_changes_nothing(folder: Path) -> None:
    path = folder / "banks" / "one" / "bank.json"
    environment = read_certificate(path).environment.model_copy(update={"attention": "flash_attention_9"})
    edit(path, sealed=True, environment=environment)
    run = Run(folder)
    assert run.session.models.backbone("fp32").attention == "eager"
    assert "attention was flash_attention_9, is eager" in run.verify("one")[0].how


def test_later_task_uses_the_same_attention(folder: Path, backbone_folder: Folder) -> None:
    run = learn(_stream(backbone_folder(), "two"), folder)
    assert run.store.certificate("two").environment.attention == "sdpa"
    assert _ways(Run(folder)) == [f"{BIT_FOR_BIT}, test rows"] * 2


def test_changed_stream_attention_does_not_affect_certificates_and_answers(
    folder: Path, sdpa_run: Path, backbone_folder: Folder
) -> None:
    run = learn(_stream(backbone_folder(), "two", attention="eager"), folder)
    assert {name: run.store.certificate(name).environment.attention for name in ("one", "two")} == {
        "one": "sdpa",
        "two": "eager",
    }
    again = Run(folder)
    assert _ways(again) == [f"{BIT_FOR_BIT}, test rows"] * 2
    with passes() as seen:
        alone = {name: again.predict(ROWS, name) for name in ("one", "two")}
    assert seen == {(False, "sdpa"), (False, "eager")}
    assert alone["one"] == Run(sdpa_run).predict(ROWS, "one")
    assert again.predict([*ROWS, *ROWS], ["one", "one", "two", "two"]) == [*alone["one"], *alone["two"]]
    assert again.predict_all(ROWS, ["one", "two"]) == alone
    certificates = {"two": run.store.certificate("two")} | dict.fromkeys("ab", run.store.certificate("one"))
    for same_rows in (False, True):
        found = groups(certificates, lambda _: again.session.models.backbone("fp32"), 2**30, same_rows=same_rows)
        assert found == [["two"], ["a", "b"]]
    assert again.session.models.backbone("fp32").attention == "eager"
    assert again.session.models.backbone("fp32").model.config._attn_implementation == "eager"


def test_banks_that_share_passes_use_their_attention(folder: Path, backbone_folder: Folder) -> None:
    learn(_stream(backbone_folder(), "two", "three", attention="eager"), folder)
    run = Run(folder)
    run.session.models.spec = run.session.models.spec.model_copy(update={"attention": "sdpa"})
    assert run.session.models.backbone("fp32").attention == "sdpa"
    with passes() as seen:
        run.predict([*ROWS, *ROWS], ["two", "three"] * len(ROWS))
        run.predict_all(ROWS, ["two", "three"])
    assert seen == {(False, "eager")}


def test_scores_that_are_measured_again_use_the_certified_attention(folder: Path, backbone_folder: Folder) -> None:
    learn(_stream(backbone_folder(), "two", attention="eager"), folder)
    session = Run(folder).session
    assert session.models.backbone("fp32").attention == "eager"
    with passes() as seen:
        _measure(session, "one")
    assert seen == {(False, "sdpa")}


def test_worker_on_another_kind_of_machine_uses_the_attention_of_the_run(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    tasks, folder = _stream(backbone_folder()), tmp_path / "run"
    folder.mkdir()
    (folder / "stream.yaml").write_text("")
    with auto("sdpa", "eager"):
        head = Session(tasks.spec, Store(folder))
        setup = setup_of(head)
    try:
        with auto("eager", "eager"):
            setup.enter("run", "stream.yaml")
            worker = Session(tasks.spec, Store(folder))
            stage(worker.store, learn_bank(worker, tasks.spec.tasks[0]))
    finally:
        select_as(None)
    with auto("sdpa", "eager"), passes() as seen:
        commit_staged(head, tasks.spec.tasks[0], ())
    assert not any(fitted for fitted, _ in seen)
    certificate = head.store.certificate("one")
    assert (certificate.environment.attention, certificate.training_attention) == ("sdpa", "eager")


def test_other_attention_matches_only_within_tolerance(
    folder: Path, backbone_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def not_attending(backbone: Backbone, implementation: str) -> Iterator[Backbone]:
        yield backbone

    monkeypatch.setattr("continual_petl.store.verify.compare_probe.attending", not_attending)
    run = learn(_stream(backbone_folder(), attention="eager"), folder)
    (check,) = run.verify()
    assert "attention was sdpa, is eager" in check.how


def test_damaged_bank_is_reported_with_its_certified_attention(
    folder: Path, backbone_folder: Folder, tmp_path: Path
) -> None:
    other, told = shutil.copytree(folder, tmp_path / "other"), []
    learn(_stream(backbone_folder(), attention="eager"), other)
    for place in (folder, other):
        (check,) = _damaged(place).verify("one")
        told.append(check.problems[0].replace(str(place), ""))
    assert "The probe's outputs are still the certified ones" in told[0]
    assert told[1] == told[0]


def test_certificate_names_both_attentions(
    split_run: Path, sdpa_run: Path, backbone_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate = Run(split_run).store.certificate("one")
    assert (certificate.environment.attention, certificate.training_attention) == ("sdpa", "eager")
    assert _ways(Run(split_run)) == [f"{BIT_FOR_BIT}, test rows"]
    with auto("sdpa", "sdpa"), passes() as seen:
        explicit = learn(_stream(backbone_folder(), attention="eager"), tmp_path / "run").store.certificate("one")
    assert main(["show", str(split_run), "one"]) == 0
    assert "eager attention" in capsys.readouterr().out
    # An explicit setting is used for training and predictions, and gives the same bank, bit for bit.
    assert {attention for _, attention in seen} == {"eager"}
    assert explicit.environment.attention == "eager"
    assert explicit.digest == certificate.digest
    for folder in (tmp_path / "run", sdpa_run):  # not stored if both are the same, as in earlier releases
        assert "training_attention" not in json.loads((folder / "banks" / "one" / "bank.json").read_text())


def test_later_task_keeps_both_attentions(split_run: Path, backbone_folder: Folder, tmp_path: Path) -> None:
    folder = shutil.copytree(split_run, tmp_path / "run")
    with auto("eager", "sdpa"), passes() as seen:
        run = learn(_stream(backbone_folder(), "two"), folder)
    assert seen == {(True, "eager"), (False, "sdpa")}
    certificate = run.store.certificate("two")
    assert (certificate.environment.attention, certificate.training_attention) == ("sdpa", "eager")


def test_imported_bank_does_not_determine_the_training_attention(folder: Path) -> None:
    origin = Origin(format="peft", method="lora", base=None, files={})
    edit(folder / "banks" / "one" / "bank.json", sealed=True, origin=origin)
    models = Run(folder).session.models
    backbone = models.backbone("fp32")
    assert (backbone.attention, models.training_attention(backbone)) == ("sdpa", "eager")


@settings(max_examples=8, deadline=None)
@given(
    split=st.booleans(),
    here=st.tuples(st.sampled_from(ATTENTIONS), st.sampled_from(ATTENTIONS)),
    asked=st.sampled_from(("auto", *ATTENTIONS)),
)
def test_certificate_is_replayed_with_its_attention(
    split_run: Path, sdpa_run: Path, split: bool, here: tuple[Any, Any], asked: str
) -> None:
    folder = split_run if split else sdpa_run
    with auto(*here):
        run = Run(folder)
        models = run.session.models
        models.spec = models.spec.model_copy(update={"attention": asked})
        with passes() as seen:
            assert _ways(run) == [f"{BIT_FOR_BIT}, test rows"]
            run.predict(ROWS, "one")
            assert models.tokenizer is not None
            run.model("one")(**models.tokenizer(ROWS[:1], return_tensors="pt"))
    assert {attention for _, attention in seen} == {"sdpa"}


def test_resume_keeps_both_attentions_or_starts_over(split_run: Path, backbone_folder: Folder, tmp_path: Path) -> None:
    class Notices(StreamCallback):
        def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
            found.extend(task.notices)

    tasks, digest = _stream(backbone_folder()), Run(split_run).store.certificate("one").digest
    for now in ATTENTIONS:
        told = "resumes at" if now == "sdpa" else "(the attention that the bank predicts with changed)"
        found: list[str] = []
        folder = tmp_path / now
        with auto("sdpa", "eager"), pytest.raises(Interrupted):
            learn(tasks, folder, callbacks=[SignalAt(0)])
        with auto(now, "eager"):
            run = learn(tasks, folder, callbacks=[Notices()], discard_progress=True)
            assert run.store.certificate("one").digest == digest
        assert any(told in notice for notice in found)


def test_cached_states_have_the_attention_of_the_passes_that_read_them(backbone_folder: Folder, tmp_path: Path) -> None:
    with auto("sdpa", "eager"), passes() as seen:
        opened = Open(tasks_of(backbone_folder()), tmp_path / "run")
        cache = opened.decide()
        assert cache is not None
        attentions: dict[Split, str] = {"train": "eager", "validation": "sdpa"}
        for split, attention in attentions.items():
            seen.clear()
            fill_state_cache(opened.run, replace(cache, splits={split: cache.splits[split]}))
            assert seen == {(False, attention)}
        cache.close()


def _damaged(folder: Path) -> Run:
    path = folder / "banks" / "one" / "bank.safetensors"
    # The change is too small to affect an answer.
    change_tensors(path, lambda tensors: _smallest(tensors).mul_(1 + 2**-22))
    return Run(folder)


def _smallest(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    weights = max((tensor for name, tensor in tensors.items() if "modifications" in name), key=torch.Tensor.numel).view(
        -1
    )
    return weights[weights.abs().argmin()]
