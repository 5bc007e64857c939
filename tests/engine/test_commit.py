"""A bank trained with one's own Trainer is committed into a run folder, and is then like one that `learn` has trained."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from continual_petl import (
    ContinualLearner,
    ForgettingError,
    InputError,
    NoForgetting,
    Run,
    StoreError,
    TaskStream,
    commit,
    forget,
    learn,
    load_backbone,
    reevaluate,
)
from continual_petl.digests import tensor_digests
from continual_petl.engine.task import finish_task, own_trainer
from continual_petl.report.task_settings import settings_in_words
from continual_petl.store.ledger.lines import FinishedLine
from continual_petl.store.model_cache import ModelCache
from continual_petl.streams.batches.datamodule import TaskDataModule
from tests.callbacks.test_stream_callbacks import Ends
from tests.desk import SILENT
from tests.streams_in_code import classification_rows, stream, task, task_of_kind

Folder = Callable[..., Path]
NAMES = ("one", "two", "three")


def tasks_of(backbone: Path, *names: str, **more: Any) -> TaskStream:
    banks: dict[str, Any] = {"two": {"bank": {"preset": "lora", "rank": 2}}}
    return stream(backbone, [task(name, num_rows=16, **banks.get(name, {})) for name in names or NAMES], **more)


def fitted(learner: ContinualLearner, tasks: TaskStream, name: str, **arguments: Any) -> TaskDataModule:
    """Begin a task and train its bank."""
    data = learner.begin(tasks, name)
    torch.manual_seed(0)
    L.Trainer(**SILENT, **({"max_epochs": 1} | arguments)).fit(learner, datamodule=data)
    return data


def learner_on(folder: Path, **more: Any) -> ContinualLearner:
    return ContinualLearner(load_backbone(str(folder), **more))


def outputs(learner: ContinualLearner, task: str, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    learner.eval()
    learner.activate(task)
    with torch.inference_mode():
        found: torch.Tensor = learner(batch)
    return found


@pytest.fixture(scope="module")
def own(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with the first two of three tasks, trained with a Trainer of one's own."""
    folder = tmp_path_factory.mktemp("own") / "run"
    learner, tasks = learner_on(backbone_folder()), tasks_of(backbone_folder())
    for name in ("one", "two"):
        commit(learner, fitted(learner, tasks, name), folder)
    return folder


def test_committed_bank_is_verified_predicts_and_is_measured(
    own: Path, backbone_folder: Folder, tmp_path: Path
) -> None:
    run = Run(own)
    assert [check.how for check in run.verify(data=True)] == ["digests and probe, bit for bit, test rows"] * 2
    assert [check.problems for check in run.verify(data=True)] == [(), ()]
    assert run.results.status == (("measured", "not measured"), ("measured", "measured"))
    assert run.results.R[1].tolist() == run.results.own.tolist()
    lines = [line for line in run.store.results() if isinstance(line, FinishedLine)]
    assert [(line.task, line.checks) for line in lines] == [("one", {}), ("two", {"probe": 1})]
    # The same training again, in memory only.
    learner, tasks = learner_on(backbone_folder()), tasks_of(backbone_folder())
    data = fitted(learner, tasks, "one")
    learner.bank("one").fold()
    assert tensor_digests(learner.bank("one").tensors()) == {
        name: entry.digest for name, entry in run.store.certificate("one").tensors.items()
    }
    batch = next(iter(data.test_dataloader()))
    texts = [row["text"] for row in tasks["one"].data["test"]]  # type: ignore[index]
    labels = run.store.certificate("one").labels
    assert labels is not None
    found = outputs(learner, "one", batch).argmax(-1).tolist()
    answers = run.predict([texts[number] for number in batch["index"].tolist()], task="one")
    assert [answer.value for answer in answers] == [labels[number] for number in found]
    assert torch.equal(run.model("one")(**{name: batch[name] for name in ("input_ids", "attention_mask")}),
                       outputs(learner, "one", batch))  # fmt: skip
    assert (run.export("two", "peft", tmp_path / "exported") / "adapter_model.safetensors").is_file()


def test_certificate_says_how_the_bank_was_trained(own: Path, backbone_folder: Folder) -> None:
    """The stream asks for two epochs, clipped gradients and the best bank; the Trainer had one epoch and none of these."""
    certificate = Run(own).store.certificate("one")
    origin, training = certificate.origin, certificate.training
    assert origin is not None
    assert (origin.format, origin.method) == ("trainer", "ContinualLearner: 2 steps, precision 32-true")
    assert (training.epochs, training.gradient_clip, training.select, training.accumulate) == (1, None, "last", 1)
    asked = tasks_of(backbone_folder()).spec.training
    assert (asked.epochs, asked.gradient_clip, asked.select) == (2, 1.0, "best")
    assert certificate.notices[-1].startswith(
        "task 'one': not learned by a run, but by its own Trainer (ContinualLearner: 2"
    )
    assert certificate.started_from == "a fresh bank"
    settings = settings_in_words(certificate, None)
    assert (settings["learning rate"], settings["epochs"]) == ("0.02", "1 epoch")
    assert settings["trained by"] == origin.in_words
    assert origin.in_words.startswith("its own Trainer (ContinualLearner: 2 steps")


def test_two_fits_and_their_settings_add_up(backbone_folder: Folder, tmp_path: Path) -> None:
    class Mine(ContinualLearner):
        pass

    learner, tasks = Mine(load_backbone(str(backbone_folder()))), tasks_of(backbone_folder(), "one")
    data = learner.begin(tasks, "one")
    for more in ({"max_epochs": 2}, {"max_epochs": 1, "accumulate_grad_batches": 2, "gradient_clip_val": 0.5}):
        L.Trainer(**SILENT, **more).fit(learner, datamodule=data)
    certificate = commit(learner, data, tmp_path / "run").store.certificate("one")
    assert certificate.origin is not None
    assert certificate.origin.method == "Mine: 5 steps, precision 32-true"
    training = certificate.training
    assert (training.epochs, training.accumulate, training.gradient_clip) == (3, 2, 0.5)


def test_continued_fit_counts_its_steps_once(backbone_folder: Folder, tmp_path: Path) -> None:
    learner, tasks = learner_on(backbone_folder()), tasks_of(backbone_folder(), "one")
    data = learner.begin(tasks, "one")
    first = L.Trainer(**SILENT, max_epochs=1)
    first.fit(learner, datamodule=data)
    first.save_checkpoint(tmp_path / "one.ckpt")
    L.Trainer(**SILENT, max_epochs=3).fit(learner, datamodule=data, ckpt_path=tmp_path / "one.ckpt", weights_only=True)
    certificate = commit(learner, data, tmp_path / "run").store.certificate("one")
    assert certificate.origin is not None
    assert certificate.origin.method.startswith("ContinualLearner: 6 steps")
    assert certificate.training.epochs == 3


@pytest.mark.parametrize(("trained", "predicts"), [("eager", "sdpa"), ("sdpa", "sdpa"), ("sdpa", "eager")])
def test_both_attentions_are_recorded(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: str, predicts: str
) -> None:
    monkeypatch.setattr(ModelCache, "_attention", lambda *_: predicts)
    learner, tasks = learner_on(backbone_folder(), attention=trained), tasks_of(backbone_folder(), "one")
    run = commit(learner, fitted(learner, tasks, "one"), tmp_path / "run")
    certificate = run.store.certificate("one")
    assert certificate.environment.attention == predicts
    assert certificate.training_attention == (None if trained == predicts else trained)
    assert learner.model.config._attn_implementation == trained
    assert [check.how for check in run.verify(data=True)] == ["digests and probe, bit for bit, test rows"]


def test_learn_continues_the_stream(own: Path, backbone_folder: Folder, tmp_path: Path) -> None:
    folder = shutil.copytree(own, tmp_path / "run")
    before = {name: (folder / "banks" / name / "bank.json").read_bytes() for name in ("one", "two")}
    ends = Ends()
    run = learn(tasks_of(backbone_folder()), folder, callbacks=[NoForgetting("full"), ends])
    assert run.session.notices == (), "settings of training that no run used are not compared"
    assert run.store.tasks == ["one", "two", "three"]
    assert [ends.tasks["three"].num_checks, [*ends.tasks]] == [{"full": 2}, ["three"]]
    assert {name: (folder / "banks" / name / "bank.json").read_bytes() for name in before} == before
    assert all(check.ok for check in run.verify(data=True))
    alone = learn(tasks_of(backbone_folder(), "three"), tmp_path / "alone")
    assert run.store.certificate("three").digest == alone.store.certificate("three").digest
    # The other commands that change a run.
    assert reevaluate(folder).ok
    forget(folder, "two")
    assert Run(folder).store.tasks == ["one", "three"]


@pytest.mark.parametrize("at", ["commit_bank", "finish_task", "keep_totals"])
def test_killed_commit_leaves_a_whole_run(
    own: Path, backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    folder = shutil.copytree(own, tmp_path / "run")
    learner, tasks = learner_on(backbone_folder()), tasks_of(backbone_folder())
    data = fitted(learner, tasks, "three")

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    where = finish_task if at == "keep_totals" else own_trainer
    with monkeypatch.context() as patch:
        patch.setattr(where, at, stop)
        with pytest.raises(KeyboardInterrupt):
            commit(learner, data, folder)
    learned = ["one", "two"] if at == "commit_bank" else ["one", "two", "three"]
    assert Run(folder).store.tasks == learned
    assert all(check.ok for check in Run(folder).verify())
    if at == "commit_bank":
        commit(learner, data, folder)
    else:
        with pytest.raises(InputError, match=r"task 'three': the run .* has it already, and `commit` never replaces a"):
            commit(learner, data, folder)
    run = Run(folder)
    assert [line.task for line in run.store.results() if isinstance(line, FinishedLine)] == ["one", "two", "three"]
    assert run.results.status[2] == ("measured", "measured", "measured")
    assert not (folder / ".progress" / "three").exists()


def test_run_commits_and_refreshes(own: Path, backbone_folder: Folder, tmp_path: Path) -> None:
    run = Run(shutil.copytree(own, tmp_path / "run"))
    learner, tasks = learner_on(backbone_folder()), tasks_of(backbone_folder())
    text = "w30 w0"
    first = run.predict(text, task="one")
    run.commit(learner, fitted(learner, tasks, "three"))
    assert run.predict(text, task="one") == first
    assert run.store.tasks == ["one", "two", "three"]
    assert run.predict(text, task="three").value in ("no", "yes")
    assert all(check.ok for check in run.verify())


def test_learner_is_as_before_and_goes_on(backbone_folder: Folder, tmp_path: Path) -> None:
    """Commit after all tasks are trained; the learner's active task and attention are its own."""
    learner, tasks = learner_on(backbone_folder(), attention="eager"), tasks_of(backbone_folder(), "one", "two")
    watch = NoForgetting()
    modules = {name: fitted(learner, tasks, name, callbacks=[watch]) for name in ("one", "two")}
    batch = next(iter(modules["one"].test_dataloader()))
    for name in ("one", "two"):
        commit(learner, modules[name], tmp_path / "run")
    assert learner.active == "two"
    assert learner.model.config._attn_implementation == "eager"
    expected = outputs(learner, "one", batch)
    run = Run(tmp_path / "run")
    tensors = run.store.load_bank("one", learner.backbone).tensors()
    assert tensor_digests(tensors) == tensor_digests(learner.bank("one").tensors())
    assert torch.equal(expected, outputs(learner, "one", batch))
    third = tasks_of(backbone_folder())
    commit(learner, fitted(learner, third, "three", callbacks=[watch]), tmp_path / "run")
    assert all(check.ok for check in Run(tmp_path / "run").verify())


@pytest.mark.parametrize("bank", ["prefix", "p_tuning", "diff_pruning", "bitfit"])
def test_trained_form_is_folded(backbone_folder: Folder, tmp_path: Path, bank: str) -> None:
    tasks = stream(backbone_folder(), [task("one", num_rows=16)], bank=bank)
    learner = learner_on(backbone_folder())
    data = fitted(learner, tasks, "one")
    run = commit(learner, data, tmp_path / "run")
    assert learner.bank("one").is_folded()
    assert [check.how for check in run.verify(data=True)] == ["digests and probe, bit for bit, test rows"]
    again = learner_on(backbone_folder())
    data = fitted(again, tasks, "one")
    again.bank("one").fold()  # folding twice changes nothing
    commit(again, data, tmp_path / "again")
    assert Run(tmp_path / "again").store.certificate("one").digest == run.store.certificate("one").digest


@pytest.mark.parametrize(
    ("family", "kind"),
    [("gpt2", "causal-lm"), ("bert", "regression"),
     *(pytest.param(*each, marks=pytest.mark.slow) for each in
       (("bart", "seq2seq"), ("vit", "image-classification"), ("bert", "token-classification"), ("bert", "multilabel")))],
)  # fmt: skip
def test_every_kind_is_committed(backbone_folder: Folder, tmp_path: Path, family: str, kind: str) -> None:
    backbone = {"name": str(backbone_folder(family))}
    tasks = stream(backbone_folder(family), [task_of_kind(kind, "one")], backbone=backbone)
    learner = learner_on(backbone_folder(family))
    run = commit(learner, fitted(learner, tasks, "one"), tmp_path / "run")
    assert [check.problems for check in run.verify(data=True)] == [()]
    assert run.results.R.shape == (1, 1)


def test_bank_that_starts_from_another_is_committed_after_it(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = stream(backbone_folder(), [task("one", num_rows=16), task("two", num_rows=16, bank={"start_from": "one"})])
    learner = learner_on(backbone_folder())
    first = fitted(learner, tasks, "one")
    second = fitted(learner, tasks, "two")
    with pytest.raises(
        InputError, match=r"task 'two': its bank starts from or reads the bank of 'one' .* does not have it"
    ):
        commit(learner, second, tmp_path / "run")
    commit(learner, first, tmp_path / "run")
    run = commit(learner, second, tmp_path / "run")
    certificate = run.store.certificate("two")
    assert certificate.parent is not None
    assert (certificate.parent.task, certificate.parent.digest) == ("one", run.store.certificate("one").digest)
    assert certificate.started_from == "a copy of 'one'"
    assert all(check.ok for check in run.verify())


def test_fused_bank_reads_committed_banks(backbone_folder: Folder, tmp_path: Path) -> None:
    names, read = ("one", "two"), {"preset": "pfeiffer", "bottleneck": 4}
    given = [task(name, num_rows=16, bank=read) for name in names]
    given.append(task("f", num_rows=16, bank={"preset": "fusion", "fuse": list(names)}))
    tasks = stream(backbone_folder(), given)
    learner = learner_on(backbone_folder())
    for name in (*names, "f"):
        run = commit(learner, fitted(learner, tasks, name), tmp_path / "run")
    assert [parent.task for parent in run.store.certificate("f").reads] == [*names]
    assert [check.problems for check in run.verify(data=True)] == [()] * 3


def test_other_backbone_is_refused(own: Path, backbone_folder: Folder, tmp_path: Path) -> None:
    folder = shutil.copytree(own, tmp_path / "run")
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    learner = learner_on(backbone_folder("distilbert"))
    data = fitted(learner, tasks_of(backbone_folder("distilbert")), "three")
    with pytest.raises(StoreError, match=r"this run was learned on backbone .* with digest .*; .*distilbert.* has"):
        commit(learner, data, folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == files


def _unlike(backbone: Path, **more: Any) -> tuple[ContinualLearner, TaskDataModule]:
    learner = learner_on(backbone)
    return learner, fitted(learner, tasks_of(backbone, **more), "one")


def test_what_cannot_be_committed_is_refused(
    own: Path, backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, tasks, folder = learner_on(backbone_folder()), tasks_of(backbone_folder()), tmp_path / "run"

    def refused(
        match: str, learner: Any, data: Any, run_dir: Path = folder, error: type[Exception] = InputError
    ) -> None:
        with pytest.raises(error, match=match):
            commit(learner, data, run_dir)
        assert not (folder / "banks").exists()

    refused("learner: got a str; give the ContinualLearner", "learner", None)
    refused(r"data: got a NoneType; give what learner\.begin\(stream, task\) returned", learner, None)
    data = learner.begin(tasks, "one")
    refused("task 'one': its bank is not trained: no Trainer has finished a fit", learner, data)

    class Stops(L.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            raise RuntimeError

    with pytest.raises(RuntimeError):
        L.Trainer(**SILENT, max_epochs=1, callbacks=[Stops()]).fit(learner, datamodule=data)
    refused("task 'one': its bank is not trained", learner, data)
    L.Trainer(**SILENT, max_epochs=1).fit(learner, data.train_dataloader(), data.val_dataloader())
    refused("task 'one': the Trainer was not given the rows", learner, data)
    L.Trainer(**SILENT, max_epochs=1).fit(learner, datamodule=data)
    other = learner_on(backbone_folder())
    refused(r"task 'one': the learner did not begin it \(it began none\)", other, data)
    monkeypatch.setattr(ContinualLearner, "global_rank", 1)
    refused(r"task 'one': this is process 1 of 1 .*commit under `if trainer\.is_global_zero:`", learner, data)
    monkeypatch.undo()
    refused("task 'one': the run .* has it already", learner, data, own)
    refused("One run is one stream", *_unlike(backbone_folder(), seed=4), own)
    refused("stream 'tiny' with seed 3, but the one given is 'other'", *_unlike(backbone_folder(), name="other"), own)
    refused(
        "'one': its bank has scope: shared", *_unlike(backbone_folder(), bank={"preset": "lora", "scope": "shared"})
    )
    with torch.no_grad():
        next(learner.model.parameters()).add_(1.0)
    refused("backbone .*: 1 tensor differs from what was loaded", learner, data, error=ForgettingError)


def test_trainer_that_converts_the_backbone_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    learner = learner_on(backbone_folder("gpt2"))
    tasks = stream(backbone_folder("gpt2"), [task_of_kind("causal-lm", "one")])
    data = fitted(learner, tasks, "one", precision="bf16-true")
    with pytest.raises(InputError, match="task 'one': the Trainer's precision bf16-true has converted the backbone"):
        commit(learner, data, tmp_path / "run")


def test_mixed_precision_is_recorded(backbone_folder: Folder, tmp_path: Path) -> None:
    learner = learner_on(backbone_folder())
    data = fitted(learner, tasks_of(backbone_folder()), "one", precision="bf16-mixed")
    certificate = commit(learner, data, tmp_path / "run").store.certificate("one")
    assert certificate.origin is not None
    assert certificate.origin.method.endswith("2 steps, precision bf16-mixed")
    assert certificate.environment.precision == "fp32"


def test_saved_progress_is_not_discarded(own: Path, backbone_folder: Folder, tmp_path: Path) -> None:
    folder = shutil.copytree(own, tmp_path / "run")
    (folder / ".progress" / "three").mkdir(parents=True)
    learner, tasks = learner_on(backbone_folder()), tasks_of(backbone_folder())
    with pytest.raises(
        InputError, match=r"task 'three': the run .* has saved progress of it, which `commit` would discard"
    ):
        commit(learner, fitted(learner, tasks, "three"), folder)


def test_protocol_of_the_stream_is_checked(backbone_folder: Folder, tmp_path: Path) -> None:
    rows = {"train": classification_rows("x", 16), "validation": classification_rows("y", 16)}
    given = [{"name": name, "kind": "classification", "data": rows} for name in ("one", "two")]
    tasks = stream(backbone_folder(), given, protocol="class")
    learner = learner_on(backbone_folder())
    commit(learner, fitted(learner, tasks, "one"), tmp_path / "run")
    data = fitted(learner, tasks, "two")
    with pytest.raises(InputError, match="label"):
        commit(learner, data, tmp_path / "run")
