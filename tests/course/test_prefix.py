"""What is kept of the frozen layers changes no answer, is the same whenever it is made, and goes with the task's progress."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from continual_petl import InputError, StreamCallback, learn
from continual_petl.banks.split import states_below
from continual_petl.callbacks import TaskEvent
from continual_petl.course import prefix, prefix_files
from continual_petl.course.prefix import Prefix, decide_prefix
from continual_petl.course.prefix_files import fill_prefix
from continual_petl.course.session import Session
from continual_petl.course.signals import StopRequest
from continual_petl.errors import Interrupted
from continual_petl.learner import ContinualLearner
from continual_petl.learner.answer import STATES, answer, backbone_inputs
from continual_petl.learner.frozen import num_uses
from continual_petl.store.states_file import StatesFile
from continual_petl.store.store import Store
from continual_petl.streams.batches.batching import evaluation_batches
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.batches.loaders import EvaluationLoader
from continual_petl.streams.schema.stream_spec import TrainingSpec
from continual_petl.streams.stream import TaskStream
from tests.course.test_resume import Count, SignalAt
from tests.desk import bank_digests
from tests.streams_in_code import stream, task, task_of_kind
from tests.usual import few

Folder = Callable[..., Path]
TOP: dict[str, Any] = {"preset": "houlsby", "bottleneck": 4, "layers": "top-1"}
TRAINING = {"batch_size": 5, "learning_rate": 0.05, "head_dropout": 0.3}
# 24 rows in batches of 5: ten batches in two epochs; 16 rows of validation.
ROWS = 24


def tasks_of(place: Path, /, *, bank: dict[str, Any] = TOP, rows: int = ROWS, **more: Any) -> TaskStream:
    training = TRAINING | more.pop("training", {})
    return stream(place, [task("one", num_rows=rows)], bank=bank, training=training, **more)


class Open:
    """A session with one task begun, its bank fresh."""

    def __init__(self, tasks: TaskStream, folder: Path) -> None:
        self.session = Session(tasks.spec, Store(folder))
        self.data = self.session.prepare(tasks.spec.tasks[0])
        self.plan = self.session.plan(tasks.spec.tasks[0], self.data.labels, self.data.train)
        self.learner = ContinualLearner(self.session.backbone(tasks.spec.tasks[0]))
        self.learner.add_task(self.plan, tokenizer=self.session.residents.tokenizer)

    def decide(self) -> Prefix | None:
        decided, self.told = decide_prefix(self.session, self.plan, self.data, self.learner)
        return decided

    def filled(self) -> Prefix:
        """Return what is kept, with its files open."""
        decided = self.decide()
        assert decided is not None
        fill_prefix(self.session, self.plan, self.data, self.learner, decided, StopRequest())
        return decided

    def validation(self) -> EvaluationLoader:
        training = self.plan.training
        size = training.eval_batch_size or training.batch_size
        return EvaluationLoader(self.data.validation, size, self.session.residents.pad_token_id, kind=self.plan.kind)


@pytest.fixture(scope="module")
def whole(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the digest of the bank of a course that nothing interrupts."""
    return bank_digests(learn(tasks_of(backbone_folder()), tmp_path_factory.mktemp("whole")))


class Recomputed:
    """Plain restatement of what is kept: the states of each row, computed anew in each step, in its canonical batch."""

    def __init__(self, course: Open) -> None:
        self._course = course

    def __call__(self, batch: dict[str, Tensor], split: str) -> dict[str, Tensor]:
        course, training = self._course, self._course.plan.training
        rows = course.data.train if split == "train" else course.data.validation
        pad, backbone = course.session.residents.pad_token_id, course.learner.backbone
        made = torch.zeros(*batch["input_ids"].shape, backbone.hidden_size)
        for place, number in enumerate(batch["index"].tolist()):
            (of,) = [b for b in evaluation_batches(rows.lengths, training.batch_size) if number in b]
            canonical = collate(rows, of, pad, course.plan.kind)
            states = states_below(backbone.model, backbone.sites, backbone_inputs(backbone, canonical), 1)
            length = int(rows.lengths[number])
            made[place, :length] = states[of.tolist().index(number), :length]
        return {**batch, STATES: made}


def test_learning_from_kept_states_is_learning_with_them_computed_in_every_step(
    backbone_folder: Folder, tmp_path: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tasks_of(backbone_folder())
    course = Open(tasks, tmp_path / "by hand")

    recomputed = Recomputed(course)
    monkeypatch.setattr(Prefix, "__call__", lambda self, batch, split: recomputed(batch, split))
    assert bank_digests(learn(tasks, tmp_path / "run")) == whole


@pytest.mark.slow
def test_the_bank_is_that_of_plain_learning_but_for_rounding_and_says_so(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    runs = [learn(tasks_of(backbone_folder(), training={"prefix_cache": way}), tmp_path / way) for way in ("on", "off")]
    scores = [run.store.manifest("one").scores["test"].scores["accuracy"] for run in runs]
    # The same batches but other paddings of the frozen half: rounding of 1e-7 a step.
    assert scores[0] == pytest.approx(scores[1], abs=0.07)
    assert [run.store.manifest("one").training.prefix_cache for run in runs] == ["on", "off"]
    assert all(check.ok for run in runs for check in run.verify(data=True))
    assert not (tmp_path / "on" / ".progress" / "one").exists()


KINDS = [("bert", "classification")]
MORE_KINDS = [
    ("gpt2", "classification"),
    ("vit", "image-classification"),
    ("deberta", "token-classification"),
    ("modernbert", "multilabel"),
    ("llama", "regression"),
]


@pytest.mark.parametrize(("family", "kind"), [*KINDS, *(pytest.param(*k, marks=pytest.mark.slow) for k in MORE_KINDS)])
def test_kept_states_give_the_answers_of_validation_bit_for_bit(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str
) -> None:
    tasks = stream(
        backbone_folder(family), [task_of_kind(kind, "one")], bank=TOP, backbone={"name": str(backbone_folder(family))}
    )
    course = Open(tasks, tmp_path)
    kept, learner = course.filled(), course.learner.eval()
    assert set(kept.files) == {"train", "validation"}
    for batch in course.validation():
        outputs = [
            answer(learner.backbone, learner.active_bank, course.plan.pooling, b)
            for b in (batch, kept(batch, "validation"))
        ]
        if kind == "token-classification":
            outputs = [output[batch["attention_mask"].bool()] for output in outputs]
        assert torch.equal(*outputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kind"), [*MORE_KINDS, ("gpt2", "causal-lm"), ("qwen3", "causal-lm"), ("vit", "image-classification")]
)
def test_every_kind_learns_from_kept_states_and_is_certified(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str
) -> None:
    tasks = stream(
        backbone_folder(family), [task_of_kind(kind, "one")], bank=TOP, backbone={"name": str(backbone_folder(family))},
        training={"prefix_cache": "on"},
    )  # fmt: skip
    run = learn(tasks, tmp_path)
    assert all(check.ok for check in run.verify(data=True))


@pytest.mark.slow
def test_a_probe_reads_what_comes_out_of_the_last_layer(backbone_folder: Folder, tmp_path: Path) -> None:
    course = Open(tasks_of(backbone_folder(), bank={"preset": "probe"}), tmp_path)
    kept = course.filled()
    assert kept.layer == 2
    for batch in course.validation():
        outputs = [
            answer(course.learner.backbone, course.learner.active_bank.eval(), "mean", b)
            for b in (batch, kept(batch, "validation"))
        ]
        assert torch.equal(*outputs)


@pytest.mark.parametrize(
    ("changed", "kept"),
    few(
        [
            ({}, True),
            ({"training": {"prefix_cache": "off"}}, False),
            ({"training": {"epochs": 1}}, False),
            ({"training": {"epochs": 1, "prefix_cache": "on"}}, True),
            ({"training": {"backbone_dropout": True}}, False),
            ({"training": {"prefix_cache_bytes": 100}}, False),
            ({"bank": {**TOP, "layers": "all"}}, False),
            ({"bank": {**TOP, "layers": "0"}}, False),
            ({"bank": {"preset": "prompt", "length": 3}}, False),
            ({"bank": {"preset": "probe"}}, True),
            ({"trainer": {"limit_train_batches": 0.5}}, False),
            ({"trainer": {"limit_train_batches": 0.5}, "training": {"epochs": 4}}, True),
            ({"trainer": {"max_steps": 3}}, False),
        ],
        4,
    ),
)
def test_states_are_kept_by_themselves_where_it_can_be_done_and_pays(
    backbone_folder: Folder, tmp_path: Path, changed: dict[str, Any], kept: bool
) -> None:
    assert (Open(tasks_of(backbone_folder(), **changed), tmp_path).decide() is not None) == kept


def test_on_a_device_that_may_compute_faster_than_it_reads_states_are_kept_only_if_asked_for(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix, "device_of", lambda session: torch.device("cuda"))
    assert Open(tasks_of(backbone_folder()), tmp_path).decide() is None
    assert Open(tasks_of(backbone_folder(), training={"prefix_cache": "on"}), tmp_path).decide() is not None


@pytest.mark.parametrize(
    ("training", "arguments", "uses"),
    [
        ({"epochs": 3}, {}, 3.0),
        ({"epochs": 3}, {"limit_train_batches": 0.5}, 1.5),
        ({"epochs": 3}, {"limit_train_batches": 1}, 0.3),
        ({"epochs": 3}, {"limit_train_batches": 1.0}, 3.0),
        ({"epochs": 3}, {"limit_train_batches": 0}, 0.0),
        ({"epochs": 3}, {"limit_train_batches": 100}, 3.0),
        ({"epochs": 3}, {"limit_train_batches": None}, 3.0),
        ({"epochs": 3}, {"overfit_batches": 0}, 3.0),
        ({"epochs": 3}, {"overfit_batches": 2}, 0.6),
        ({"epochs": 3, "accumulate": 2}, {"max_steps": 5}, 1.0),
        ({"epochs": 3}, {"max_steps": -1}, 3.0),
    ],
)
def test_uses_of_a_row_are_counted_as_lightning_counts_batches(
    training: dict[str, Any], arguments: dict[str, Any], uses: float
) -> None:
    assert num_uses(TrainingSpec.model_validate({"batch_size": 5, **training}), arguments, 10) == pytest.approx(uses)


@pytest.mark.parametrize(
    ("changed", "why"),
    few(
        [
            ({"bank": {**TOP, "layers": "all"}}, "changes the lowest layer"),
            ({"bank": {"preset": "prompt", "length": 3}}, "has a prompt"),
            ({"training": {"backbone_dropout": True}}, "training.backbone_dropout makes the states"),
        ],
    ),
)
def test_asking_for_what_cannot_be_had_is_an_error_before_anything_is_learned(
    backbone_folder: Folder, tmp_path: Path, changed: dict[str, Any], why: str
) -> None:
    training = {"prefix_cache": "on", **changed.get("training", {})}
    with pytest.raises(
        InputError, match=rf"task 'one': training.prefix_cache is 'on', but .*{why}.*Write prefix_cache: auto"
    ):
        learn(tasks_of(backbone_folder(), **changed | {"training": training}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_two_stacks_are_an_error_where_states_are_asked_for_and_plain_where_not(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    backbone = backbone_folder("bart")
    course = Open(tasks_of(backbone, backbone={"name": str(backbone)}), tmp_path)
    assert course.decide() is None
    with pytest.raises(InputError, match="goes through two stacks"):
        learn(tasks_of(backbone, backbone={"name": str(backbone)}, training={"prefix_cache": "on"}), tmp_path / "run")


def test_processes_that_share_a_fit_keep_nothing(backbone_folder: Folder, tmp_path: Path) -> None:
    def decided(way: str) -> Prefix | None:
        course = Open(tasks_of(backbone_folder(), training={"prefix_cache": way}), tmp_path)
        return decide_prefix(course.session, course.plan, course.data, course.learner, num_processes=2)[0]

    assert decided("auto") is None
    with pytest.raises(InputError, match=r"2 processes share its fit \(trainer.devices\)"):
        decided("on")


def test_a_split_is_kept_whole_or_not_at_all_within_the_budget(backbone_folder: Folder, tmp_path: Path) -> None:
    course = Open(tasks_of(backbone_folder()), tmp_path)
    train, validation = (int(rows.lengths.sum()) * 16 * 4 for rows in (course.data.train, course.data.validation))

    def within(budget: int, way: str = "auto") -> list[str] | None:
        training = {"prefix_cache_bytes": budget, "prefix_cache": way}
        course = Open(tasks_of(backbone_folder(), training=training), tmp_path)
        decided = course.decide()
        if decided is None:
            assert f"computed anew in every epoch: they are {train:,} bytes" in course.told[0]
            return None
        assert decided.num_bytes <= budget
        assert f"{train / 1e6:.1f} MB of the train split" in course.told[0]
        return list(decided.splits)

    assert within(train + validation) == ["train", "validation"]
    assert within(train + validation - 1) == within(train) == ["train"]
    assert within(train - 1) is None
    with pytest.raises(
        InputError, match=rf"they are {train:,} bytes, and training.prefix_cache_bytes allows {train - 1:,}"
    ):
        within(train - 1, "on")


@pytest.fixture
def fills(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of files that are made, as they are made."""
    made: list[str] = []
    real = StatesFile.fill

    def fill(self: StatesFile, make: Any) -> None:
        made.append(self.path.name)
        real(self, make)

    monkeypatch.setattr(StatesFile, "fill", fill)
    return made


@pytest.mark.parametrize("batch", [4, pytest.param(0, marks=pytest.mark.slow), pytest.param(7, marks=pytest.mark.slow)])
def test_a_course_that_was_stopped_goes_on_from_the_same_states(
    backbone_folder: Folder, tmp_path: Path, whole: dict[str, str], fills: list[str], batch: int
) -> None:
    tasks = tasks_of(backbone_folder())
    with pytest.raises(Interrupted):
        learn(tasks, tmp_path, callbacks=[SignalAt(batch, signal.SIGTERM)])
    assert fills == ["train.states", "validation.states"]
    count = Count()
    assert bank_digests(learn(tasks, tmp_path, callbacks=[count])) == whole
    assert fills == ["train.states", "validation.states"]
    assert count.batches == 10 - (batch + 1)


@pytest.mark.slow
def test_states_that_were_lost_or_damaged_are_made_again_and_are_the_same(
    backbone_folder: Folder, tmp_path: Path, whole: dict[str, str], fills: list[str]
) -> None:
    tasks = tasks_of(backbone_folder())
    with pytest.raises(Interrupted):
        learn(tasks, tmp_path, callbacks=[SignalAt(4)])
    folder = tmp_path / ".progress" / "one" / prefix_files.FOLDER
    os.truncate(folder / "train.states", 1000)
    (folder / "validation.json").unlink()
    assert bank_digests(learn(tasks, tmp_path)) == whole
    assert fills == 2 * ["train.states", "validation.states"]


class Nth:
    """Does something at the n-th batch whose states are computed."""

    def __init__(self, number: int, act: Callable[[], Any]) -> None:
        self._left, self._act = number, act

    def __call__(self, *args: Any) -> Tensor:
        self._left -= 1
        if self._left == 0:
            self._act()
        return states_below(*args)


@pytest.mark.slow
def test_a_stop_while_states_are_made_is_heeded_at_once(
    backbone_folder: Folder, tmp_path: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tasks_of(backbone_folder())
    with monkeypatch.context() as patch:
        patch.setattr(prefix_files, "states_below", Nth(2, lambda: signal.raise_signal(signal.SIGTERM)))
        with pytest.raises(Interrupted, match="while the frozen states of task 'one' were computed"):
            learn(tasks, tmp_path)
    assert list((tmp_path / ".progress" / "one" / prefix_files.FOLDER).iterdir()) == []
    assert bank_digests(learn(tasks, tmp_path)) == whole


@pytest.mark.slow
def test_a_kill_while_states_are_made_leaves_a_half_that_is_never_used(
    backbone_folder: Folder, tmp_path: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tasks_of(backbone_folder())
    child = os.fork()
    if child == 0:
        monkeypatch.setattr(prefix_files, "states_below", Nth(3, lambda: os.kill(os.getpid(), signal.SIGKILL)))
        learn(tasks, tmp_path)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    folder = tmp_path / ".progress" / "one" / prefix_files.FOLDER
    assert [path.name for path in folder.iterdir()] == [f".train.states.{child}.new"]
    seen: list[list[str]] = []

    class Look(StreamCallback):
        def on_train_start(self, *args: Any) -> None:
            seen.append(sorted(path.name for path in folder.iterdir()))

    assert bank_digests(learn(tasks, tmp_path, callbacks=[Look()])) == whole
    assert seen == [["train.json", "train.states", "validation.json", "validation.states"]]


CHANGES: dict[str, dict[str, Any]] = {
    "data": {"rows": ROWS + 1},
    "layer": {"bank": {"preset": "probe"}},
    "max_length": {"backbone": {"max_length": 6}},
    "batch_size": {"training": {"batch_size": 4}},
    "precision": {"training": {"precision": "bf16"}},
    "attention": {"backbone": {"attention": "sdpa"}},
    "backbone": {"family": "electra"},
}


@pytest.mark.parametrize("change", few([*CHANGES, "tokenizer"]))
def test_states_of_anything_else_are_made_again(
    backbone_folder: Folder, tmp_path: Path, fills: list[str], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Without the check of the half-learned task, which discards them before."""
    more = dict(CHANGES.get(change, {}))
    place = backbone_folder(more.pop("family", "bert"))
    more["backbone"] = {"name": str(place), "pooling": "mean"} | more.get("backbone", {})

    def fill(tasks: TaskStream) -> int:
        fills.clear()
        course = Open(tasks, tmp_path)
        if change == "tokenizer" and tasks is other:
            monkeypatch.setattr(type(course.session.residents), "preparation", "another")
        course.filled().close()
        return len(fills)

    same, other = tasks_of(backbone_folder()), tasks_of(place, **more)
    assert [fill(same), fill(same)] == [2, 0]
    assert [fill(other) > 0, fill(other)] == [True, 0]


def test_a_batch_of_other_rows_gets_no_states(backbone_folder: Folder, tmp_path: Path) -> None:
    course = Open(tasks_of(backbone_folder()), tmp_path)
    kept, batch = course.filled(), next(iter(course.validation()))
    kept(batch, "validation")
    with pytest.raises(
        ValueError, match="a batch of the train split has rows that are not those whose states are kept"
    ):
        kept(
            {**batch, "index": torch.from_numpy(np.argsort(course.data.train.lengths)[: len(batch["index"])])}, "train"
        )


def test_only_a_fit_reads_states(backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Final scores and certificates take the plain way, so that they hold where nothing is kept."""
    read: list[str] = []
    real = Prefix.__call__

    def call(self: Prefix, batch: Any, split: Any) -> Any:
        read.append(split)
        return real(self, batch, split)

    heard: list[str] = []

    class Listener(StreamCallback):
        def on_task_start(self, event: TaskEvent) -> None:
            heard.extend(event.notices)

    monkeypatch.setattr(Prefix, "__call__", call)
    run = learn(tasks_of(backbone_folder()), tmp_path, callbacks=[Listener()])
    assert any("states below layer 1 are computed once and kept on disk" in notice for notice in heard)
    # Two epochs of five batches, and of four of validation.
    assert [read.count("train"), read.count("validation")] == [10, 8]
    assert all(check.ok for check in run.verify(data=True))
    assert len(read) == 18
