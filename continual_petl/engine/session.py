"""A stream and its run folder, opened for learning: task plans, and the splits of earlier tasks that R is measured on."""

from __future__ import annotations

import math
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from continual_petl.backbones.auto_defaults import Fastest, fastest, resolve_precision, select_as
from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.config.spec import BankSpec
from continual_petl.engine.signals import StopRequest, listening
from continual_petl.errors import InputError
from continual_petl.heads.metric_code import load_metric
from continual_petl.kind_registry import import_kind, kind_of
from continual_petl.learner.plan import NO_ROWS, RowFacts, check_kind, plan_task
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.own_code import is_own
from continual_petl.store.bank_cache import RESIDENT_BYTES
from continual_petl.store.certificate.environment import arithmetic, compute_as
from continual_petl.store.model_cache import ModelCache
from continual_petl.store.store import Store
from continual_petl.streams.encoding.chat_template import chat_of
from continual_petl.streams.schema.stream_spec import ResolvedTraining, SplitName, StreamSpec, TaskSpec, TrainingSpec

if TYPE_CHECKING:
    import lightning as L

    from continual_petl.callbacks.base import StreamCallback, WatchedRun
    from continual_petl.streams.batches.datamodule import TaskDataModule
    from continual_petl.streams.preparation.checked_rows import Checked
    from continual_petl.streams.preparation.prepare import SplitData, TaskData

_DEFAULTS = re.compile(rb"^defaults:[ \t]*([23])\b", re.MULTILINE)
_KEPT_SPLITS = 20


@dataclass(frozen=True, kw_only=True)
class ProcessSettings:
    """What another process needs to compute the same bits as this one: folder, stream and arithmetic settings."""

    folder: str
    """As given, relative to the working directory, so that all processes name its files in the same way."""
    spec: StreamSpec
    num_threads: int
    """Number of threads in this process; the last bits of a matrix product depend on it."""
    arithmetic: tuple[str, bool, bool]
    """Torch settings that change the arithmetic; see `arithmetic`."""
    fastest: Fastest
    """The attention and precision that ``auto`` selected here; another machine might select others."""
    working_directory: str
    """Base folder for paths in the stream."""

    @classmethod
    def here(cls, folder: str | Path, spec: StreamSpec, **more: Any) -> Self:
        """Return the settings of this process; ``more``: further fields, or other values."""
        own: dict[str, Any] = {"num_threads": torch.get_num_threads(), "arithmetic": arithmetic(), "fastest": fastest()}
        return cls(folder=str(folder), spec=spec, working_directory=os.getcwd(), **own | more)

    def enter(self, what: str, file: str) -> None:
        """Adopt the settings of the process that made them, after checking that the folder is visible here.

        Args:
            what: type of folder, for the message.
            file: a file that the folder has to contain; "." if any folder will do.

        Raises:
            InputError: if the folder is not visible.
        """
        os.chdir(self.working_directory)
        if not Path(self.folder, file).exists():
            raise InputError(
                f"{self.folder}: a worker on {os.uname().nodename} sees no {what} folder here. Workers on several machines "
                "need it, and the data, at the same path on a shared file system."
            )
        compute_as(self.num_threads, self.arithmetic)
        select_as(self.fastest)

    def opened(self, signals: tuple[int, ...]) -> Callable[[Any], Any]:
        """Open in this process what it will work on, and return what it does with each task that it is given.

        Args:
            signals: the signals by which the process is asked to stop.

        Raises:
            InputError: if the folder is not visible.
        """
        raise NotImplementedError


class Session:
    """A stream and its run folder, opened in one process.

    Args:
        spec: the stream.
        store: its run folder, which may not exist yet.
        consent: whether the user allows the remote code that the stream requests; see `ModelCache`.
        resident_bytes: memory limit for all banks together, in bytes; see `ModelCache`.
        reads_test: whether test splits are read when tasks are learned.
    """

    def __init__(
        self,
        spec: StreamSpec,
        store: Store,
        *,
        consent: bool = True,
        resident_bytes: int = RESIDENT_BYTES,
        reads_test: bool = True,
    ) -> None:
        if consent:  # in a process that was given the stream
            for task in spec.tasks:
                import_kind({"kind": task.kind, "remote_code": task.remote_code})
        self.spec = spec.model_copy(update={"defaults": defaults_in(store.stream_file) or spec.defaults})
        self.store = store
        self.reads_test = reads_test
        self.replacing: frozenset[str] = frozenset()
        """Learned tasks that the command learns again."""
        self.discards_progress = False
        """Whether saved progress may be discarded if what determines its bank has changed."""
        self.notices: tuple[str, ...] = ()
        """Notices about the run, for its callbacks."""
        self.num_new = 0
        """Number of tasks that the command learns, or finishes."""
        self.callbacks: Sequence[L.Callback] = ()
        """The callbacks of the command; see `learning`."""
        self.request = StopRequest()
        """The stop request of the command."""
        self.models = ModelCache(
            store, spec.backbone, consent=consent, resident_bytes=resident_bytes, trainer=spec.trainer
        )
        self._splits: OrderedDict[tuple[str, SplitName], SplitData] = OrderedDict()

    @property
    def folder(self) -> str:
        """The run folder as a string, which Lightning expects."""
        return str(self.store.folder)

    def task(self, name: str) -> TaskSpec:
        """Return a task of the stream."""
        return next(task for task in self.spec.tasks if task.name == name)

    @property
    def watched(self) -> WatchedRun:
        """The run, as callbacks see it."""
        from continual_petl.callbacks.base import WatchedRun  # imports Lightning, which predictions do not need

        return WatchedRun(store=self.store, stream=tuple(task.name for task in self.spec.tasks), notices=self.notices)

    @contextmanager
    def learning(
        self, callbacks: Sequence[L.Callback] = (), *, first_of: Collection[int] | None = None
    ) -> Iterator[StopRequest]:
        """Give all steps inside the ``with`` block these callbacks and a stop request; see `listening`."""
        with listening(first_of=first_of) as request:
            self.callbacks, self.request = callbacks, request
            try:
                yield request
            finally:
                self.callbacks, self.request = (), StopRequest()

    @property
    def observers(self) -> list[StreamCallback]:
        """The callbacks that observe the run and its tasks."""
        from continual_petl.callbacks.base import StreamCallback  # imports Lightning, which predictions do not need

        return [callback for callback in self.callbacks if isinstance(callback, StreamCallback)]

    def check_code(self) -> None:
        """Raise `InputError` if the stream requests code of the backbone or of a metric that the user has not allowed."""
        self.models.check_code()
        for task in self.spec.tasks:
            self._check_metric(task)

    def load_metric(self, task: str) -> None:
        """Import the code of a learned task's own metric; do nothing if it has none.

        Raises:
            InputError: if the user has not allowed this code, or it is missing or differs from the certified code.
        """
        certificate = self.store.certificate(task)
        if certificate.metric_code is None:
            return
        if not is_own(certificate.metric):
            load_metric(certificate.metric, certificate.metric_code)
            return
        if not self.models.consent:
            raise InputError(
                f"its metric {certificate.metric!r} is not imported without your permission, since a run folder may "
                "come from anyone: read that code, then pass --remote-code, or Run(folder, remote_code=True)."
            )
        if not any(spec.name == task and spec.remote_code for spec in self.spec.tasks):
            raise InputError(
                f"its metric {certificate.metric!r} is not imported, because the stream does not allow it: write "
                "remote_code: true in this task."
            )
        load_metric(certificate.metric, certificate.metric_code)

    def _check_metric(self, task: TaskSpec) -> None:
        if task.remote_code and not self.models.consent:
            raise InputError(
                f"{self.store.stream_file}: task {task.name!r}, key remote_code: true: it asks to import "
                f"{task.resolved_metric!r}, which can do whatever you can. A run folder may come from anyone, so it cannot "
                "give that permission. Read the code, then pass --remote-code, or Run(folder, remote_code=True)."
            )

    def check_backbone(self) -> None:
        """Raise `StoreError` if the run folder's banks were learned on a backbone other than the stream's.

        Called before anything is written: a stream.yaml with another backbone would make the banks unusable.
        """
        tasks = self.store.tasks
        if tasks:
            self.store.write_backbone(self.models.backbone_of(tasks[0]))

    def forget_split(self, task: str) -> None:
        """Release a task's rows: if it was replaced, they may now be prepared differently."""
        for key in [key for key in self._splits if key[0] == task]:
            del self._splits[key]

    def prepare(self, task: TaskSpec) -> TaskData:
        """Read, check and tokenise the splits that a task is learned from."""
        from continual_petl.streams.preparation.prepare import prepare_task  # data libraries take seconds to import

        models, backbone = self.models, self.backbone(task)
        return prepare_task(
            self.spec, task, models.tokenizer, backbone.max_length, images=models.images, test=self.reads_test
        )

    def remarks(self, data: TaskData) -> tuple[str, ...]:
        """Return remarks on a task, before it is learned: on its columns, and on settings without an effect."""
        training = self.spec.merged_training(data.task)
        if training.max_steps is None or training.epochs is None:
            return data.remarks
        return (
            *data.remarks,
            f"task {data.task.name!r}: training.epochs ({training.epochs}) has no effect, because training.max_steps "
            f"({training.max_steps}) decides when training ends",
        )

    def loaders(self, data: TaskData, training: TrainingSpec) -> TaskDataModule:
        """Return the batches of a prepared task."""
        from continual_petl.streams.batches.datamodule import TaskDataModule  # imports Lightning

        return TaskDataModule(
            data,
            training,
            pad_token_id=self.models.pad_token_id,
            seed=self.spec.seed,
            max_length=self.backbone(data.task).max_length,
        )

    def num_steps(self, data: TaskData, training: ResolvedTraining) -> int:
        """Return the number of optimizer steps in which a prepared task is learned on one device."""
        return training.num_steps(self.steps_of_epoch(data, training))

    def steps_of_epoch(self, data: TaskData, training: TrainingSpec) -> int:
        """Return the number of optimizer steps in which all rows of a prepared task are learned once on one device."""
        return math.ceil(self.loaders(data, training).num_batches / training.accumulate)

    def backbone(self, task: TaskSpec) -> Backbone:
        """Return the backbone in the precision that a task is learned in."""
        return self.models.backbone(resolve_precision(self.spec.merged_training(task).precision))

    def plan(self, task: TaskSpec, rows: RowFacts = NO_ROWS) -> TaskPlan:
        """Resolve a task against its stream, its data and the backbone; see `plan_task`."""
        self._check_metric(task)
        backbone = self.backbone(task)
        check_kind(task, backbone)
        chat = chat_of(task.name, self.spec.resolved_chat(task), self.models.tokenizer) if task.reads_chats else None
        return plan_task(self.spec, task, backbone, rows, bank=self.bank(task), chat=chat)

    def bank(self, task: TaskSpec) -> BankSpec:
        """Return a task's complete bank configuration, with the settings inherited from the banks it starts from or reads."""
        choice = task.bank or self.spec.bank
        if choice.inherits and choice.fuse is None and self.store.has(task.name):
            # A learned task keeps its configuration, even if the parent task has changed since.
            return self.store.certificate(task.name).bank.model_copy(update={"start_from": choice.start_from})
        return self.spec.resolved_bank(
            task, lambda name: self.store.certificate(name).bank if self.store.has(name) else None
        )

    def split(self, task: TaskSpec, name: SplitName | None = None) -> SplitData:
        """Return the rows of a split of a learned task, as they were when it was learned.

        Args:
            task: the task's entry in the stream.
            name: the split; None means the one used for the task's column of R: test if there is one, else validation.

        Raises:
            InputError: if the rows cannot be read, or the task now has a different kind.
        """
        from continual_petl.streams.preparation.prepare import SplitData

        certificate, models = self.store.certificate(task.name), self.models
        name = name or certificate.counted_split
        if (task.name, name) not in self._splits:
            checked = self.rows(task, name)
            rows = checked.encode(models.tokenizer, certificate.max_length, models.images)
            self._splits[task.name, name] = SplitData(rows=rows, digest=checked.digest)
            while len(self._splits) > _KEPT_SPLITS:
                self._splits.popitem(last=False)
        return self._splits[task.name, name]

    def rows(self, task: TaskSpec, name: SplitName | None = None) -> Checked:
        """Return the rows of a split before tokenisation; see `split`. They are not kept in memory."""
        from continual_petl.streams.preparation.prepare import check_again

        certificate = self.store.certificate(task.name)
        name = name or certificate.counted_split
        if task.kind != certificate.kind:
            raise InputError(
                f"task {task.name!r}: it was learned with kind {certificate.kind}, but the stream now has "
                f"{task.kind}; restore the old kind, or give the new task another name."
            )
        # The settings that the task was learned with, even if the stream has changed.
        settings: dict[str, object] = {"kind_settings": certificate.kind_settings}
        if kind_of(certificate).generates:
            settings |= {
                "max_target_length": certificate.max_target_length,
                "generation": certificate.generation,
                "chat": None if certificate.chat is None else certificate.chat.spec,
                "options": certificate.options,
            }
        learned = task.model_copy(update=settings)
        return check_again(
            self.spec,
            learned,
            split=name,
            labels=certificate.labels,
            single_precision=certificate.single_precision,
        )


def defaults_in(file: Path) -> int | None:
    """Return the version of the defaults in a stream that `dump_stream` wrote, even if it was edited, or None."""
    # Parsing a stream of thousands of tasks would take seconds.
    found = _DEFAULTS.search(file.read_bytes()) if file.is_file() else None
    return None if found is None else int(found[1])
