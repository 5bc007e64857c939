"""``start_from``: a bank starts as a copy of an earlier one, which is unchanged; the certificate records it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch

from continual_petl import Run, learn
from continual_petl.banks.config.presets import PRESETS
from continual_petl.digests import tensor_digests
from continual_petl.engine.checks.other_banks import parent_bank
from continual_petl.engine.dry_run import dry_run
from continual_petl.engine.session import Session
from continual_petl.engine.task.checkpoint import LAST
from continual_petl.errors import InputError, StreamFileError
from continual_petl.learner.plan import RowFacts
from continual_petl.store.store import Store
from continual_petl.streams.stream_file.yaml_file import load_stream, load_task
from tests.desk import bank_digests
from tests.learned import LearnedRuns
from tests.small import small
from tests.streams_in_code import regression_task, stream, task

Folder = Callable[..., Path]
QUICK = {"epochs": 1, "learning_rate": 0.02}
STILL = QUICK | {"optimizer": "sgd", "learning_rate": 1e-30, "weight_decay": 0.0, "select": "last"}
"""The steps are too small to change any value, so a bank stays as it was at the start."""
FITTING = [name for name, spec in PRESETS.items() if not any(m.folds for m in spec.modifications)]
ONE = task("one", num_rows=16)


def two(**bank: Any) -> dict[str, Any]:
    return task("two", num_rows=16, bank={"start_from": "one"} | bank)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def tensors_of(run: Run | Path, name: str) -> dict[str, str]:
    folder = run if isinstance(run, Path) else run.store.folder
    return tensor_digests(Store(folder).tensors(name))


@pytest.fixture(scope="module")
def first(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    """Return a run that has learned the first task; tests copy it."""
    return learned_runs(stream(backbone_folder(), [ONE], training=QUICK))


@pytest.fixture
def folder(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "run"))


def with_two(backbone: Path, child: dict[str, Any], **more: Any) -> Any:
    return stream(backbone, [ONE, child], **({"training": QUICK} | more))


def test_bank_starts_as_a_copy_and_parent_is_unchanged(backbone_folder: Folder, folder: Path) -> None:
    before = files_of(folder / "banks" / "one")
    child = two() | {"training": STILL}
    run = learn(with_two(backbone_folder(), child), folder)
    # Kind and labels are the same, so the head is copied too.
    assert tensors_of(run, "two") == tensors_of(run, "one")
    assert files_of(folder / "banks" / "one") == before
    certificate, parent = run.store.certificate("two"), run.store.certificate("one")
    assert certificate.parent is not None
    assert (certificate.parent.task, certificate.parent.digest) == ("one", parent.digest)
    assert certificate.bank == parent.bank.model_copy(update={"start_from": "one"})
    assert parent.parent is None
    assert all(check.ok for check in run.verify(data=True))


@pytest.mark.slow
def test_warm_started_bank_differs_from_a_fresh_one(backbone_folder: Folder, folder: Path, tmp_path: Path) -> None:
    warm = learn(with_two(backbone_folder(), two()), folder)
    fresh = learn(with_two(backbone_folder(), task("two", num_rows=16)), tmp_path / "fresh")
    assert tensors_of(fresh, "one") == tensors_of(warm, "one")
    assert not set(tensors_of(fresh, "two").values()) & set(tensors_of(warm, "two").values())
    # The bank depends on its seed, name and parent, not on which other tasks were learned.
    between = task("between", num_rows=16, bank="lora")
    other = learn(stream(backbone_folder(), [ONE, between, two()], training=QUICK), tmp_path / "other")
    assert bank_digests(other)["two"] == bank_digests(warm)["two"]


def test_head_is_initialised_if_kind_or_labels_differ(backbone_folder: Folder, folder: Path) -> None:
    child = regression_task("two", num_rows=16, bank={"start_from": "one"}, training=STILL)
    run = learn(with_two(backbone_folder(), child), folder)
    mine, parents = tensors_of(run, "two"), tensors_of(run, "one")
    assert {name for name in parents if mine[name] != parents[name]} >= {n for n in parents if "head" in n and "w" in n}
    assert all(mine[name] == parents[name] for name in parents if not name.startswith("head."))


@pytest.mark.slow
@pytest.mark.parametrize("preset", FITTING)
def test_unfolded_banks_can_be_started_from(backbone_folder: Folder, tmp_path: Path, preset: str) -> None:
    parent = ONE | {"bank": small(preset)}
    for number, bank in enumerate(({}, small(preset))):
        child = two(**bank) | {"training": STILL}
        run = learn(stream(backbone_folder(), [parent, child], training=QUICK), tmp_path / str(number))
        assert tensors_of(run, "two") == tensors_of(run, "one")
        assert all(check.ok for check in run.verify())


def test_settings_are_inherited_along_a_chain(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [ONE | {"bank": {"preset": "lora", "rank": 3}}, two(), task("three", bank={"start_from": "two"})]
    spec = stream(backbone_folder(), tasks).spec
    banks = [spec.resolved_bank(each) for each in spec.tasks]
    assert [bank.start_from for bank in banks] == [None, "one", "two"]
    assert {bank.model_copy(update={"start_from": None}) for bank in banks} == {banks[0]}
    # A child inherits the settings with which its parent was learned, not the stream's current ones.
    session = Session(stream(backbone_folder(), [ONE, two()], bank="lora", training=QUICK).spec, Store(tmp_path))
    learn(stream(backbone_folder(), [ONE], training=QUICK), tmp_path)
    assert session.bank(session.spec.tasks[1]).modifications[0].form == "bottleneck"


def test_another_activation_may_start_from_the_same_tensors(backbone_folder: Folder, folder: Path) -> None:
    child = two(preset="houlsby", bottleneck=4, activation="tanh")
    run = learn(with_two(backbone_folder(), child), folder)
    assert run.store.certificate("two").bank.modifications[0].activation == "tanh"


class Stop(L.Callback):
    """Abort the second task's training halfway, as if the process were lost."""

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if module.active == "two" and batch_idx == 1:
            raise ConnectionError("stop")


@pytest.mark.slow
def test_warm_start_resumes_to_the_same_bank_unless_the_parent_changed(
    backbone_folder: Folder, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tasks(first: dict[str, Any] = ONE) -> Any:
        return stream(backbone_folder(), [first, two()], training=QUICK | {"batch_size": 4, "checkpoint_every": 1})

    whole = learn(tasks(), Path(shutil.copytree(folder, tmp_path / "whole")))
    with pytest.raises(ConnectionError):
        learn(tasks(), folder, callbacks=[Stop()])
    assert (folder / ".progress" / "two" / LAST).exists()
    stopped = Path(shutil.copytree(folder, tmp_path / "stopped"))
    assert bank_digests(learn(tasks(), folder)) == bank_digests(whole)
    # If the parent was learned again with other settings, the task starts over.
    shutil.rmtree(stopped / "banks" / "one")
    (stopped / "ledger.jsonl").unlink()
    run = learn(tasks(ONE | {"training": {"learning_rate": 0.01}}), stopped, discard_progress=True)
    assert run.store.certificate("two").digest != whole.store.certificate("two").digest
    parent = run.store.certificate("two").parent
    assert parent is not None
    assert parent.digest == run.store.certificate("one").digest != whole.store.certificate("one").digest


PROMPT = {"preset": "p_tuning", "length": 3, "hidden": 6}
REFUSED = {
    "unknown": (ONE, two(start_from="onw"), r"there is no task 'onw' \(did you mean 'one'\?\), neither learned in the run"),
    "later": (task("zero", bank={"start_from": "two"}), two(preset="lora"), "'two' does not come before this task"),
    "sizes": (ONE, two(preset="houlsby", bottleneck=5), r"'one' has a different bank: tensor modifications\..* has shape"),
    "layers": (ONE, two(preset="houlsby", bottleneck=4, layers=0), r"tensor .* and no such tensor here\. Only a bank with"),
    "prompt": (ONE | {"bank": PROMPT}, two(), "cannot be started from: its prompt was trained through an lstm that"),
    "sparse": (ONE | {"bank": "diff_pruning"}, two(), "its sparse was trained through a mask over all weights"),
    "prefix": (ONE | {"bank": small("prefix")}, two(), "its attention was trained through an mlp that computes its vectors"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("act", [learn, lambda tasks, folder: dry_run(Session(tasks.spec, Store(folder)))])
def test_impossible_copy_is_refused_before_training(
    backbone_folder: Folder, tmp_path: Path, case: str, act: Any
) -> None:
    parent, child, says = REFUSED[case]
    tasks = stream(backbone_folder(), [parent, child] if parent is ONE or "bank" in parent else [parent])
    with pytest.raises(InputError, match=says):
        act(tasks, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("bank", "says"),
    [
        ({"start_from": "two"}, "a task cannot start from its own bank: name an earlier task"),
        (
            {"start_from": "one", "rank": 4},
            "start_from without a preset takes all settings .* so rank cannot be given as well",
        ),
        ({"start_from": "one", "scope": "shared"}, "so scope cannot be given as well"),
        (
            {"preset": "lora", "start_from": "one", "scope": "shared"},
            "continues the newest shared bank, so it cannot",
        ),
        ({"start_from": 3}, "start_from"),
        ({"start_from": ""}, "start_from"),
        ({"start_from": "a" * 65}, "start_from"),
    ],
)
def test_invalid_start_from_is_refused(backbone_folder: Folder, bank: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        stream(backbone_folder(), [ONE, task("two", bank=bank)])


def test_circular_start_from_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    circle = [task("a", bank={"start_from": "b"}), task("b", bank={"start_from": "a"})]
    tasks = stream(backbone_folder(), circle)
    with pytest.raises(InputError, match="'a' starts from 'b' starts from 'a'"):
        tasks.spec.resolved_bank(tasks["a"])
    with pytest.raises((InputError, StreamFileError), match="does not come before this task"):
        learn(tasks, tmp_path / "run")


def test_mistake_is_reported_with_its_line(backbone_folder: Folder, tmp_path: Path) -> None:
    task_of_a = "  - name: a\n    kind: regression\n    data: x.csv\n    bank: {start_from: a}\n"
    text = f"name: s\nbackbone: minilm\ntasks:\n{task_of_a}"
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(StreamFileError, match=r"s\.yaml:7: key tasks\.0\.bank\.start_from \(task a\): a task cannot"):
        load_stream(tmp_path / "s.yaml")


def test_start_from_override_inherits_the_settings(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("{name: two, kind: regression, data: x.csv}")
    task = load_task(tmp_path / "t.yaml", [("bank.start_from", "one")])
    assert task.bank is not None
    assert task.bank.inherits


def test_dry_run_shows_start_from(backbone_folder: Folder, folder: Path) -> None:
    facts = dry_run(Session(with_two(backbone_folder(), two()).spec, Store(folder)))
    assert [fact.plan.bank.start_from for fact in facts] == [None, "one"]
    assert facts[1].parameters["modifications"] == facts[0].parameters["modifications"]


def test_run_with_missing_parent_can_be_opened(backbone_folder: Folder, folder: Path) -> None:
    learn(with_two(backbone_folder(), two()), folder)
    shutil.rmtree(folder / "banks" / "one")
    run = Run(folder)
    bank = run.session.bank(run.session.spec.tasks[1])
    assert bank.modifications == run.store.certificate("two").bank.modifications
    assert torch.is_tensor(next(iter(run.store.tensors("two").values())))


def test_parent_with_another_form_is_refused_at_training_time(folder: Path, backbone_folder: Folder) -> None:
    tasks = stream(backbone_folder(), [ONE, two(preset="lora")], training=QUICK)
    session = Session(tasks.spec, Store(folder))
    plan = session.plan(tasks["two"], RowFacts(("no", "yes")))
    with pytest.raises(InputError, match=r"task 'two', bank\.start_from: 'one' has a different bank"):
        parent_bank(session, plan, session.models.backbone("fp32"))
