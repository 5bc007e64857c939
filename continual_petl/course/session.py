"""A stream and its run folder, opened for learning: plans of tasks, and the earlier splits that R is measured on."""

from __future__ import annotations

from collections import OrderedDict

from continual_petl.learner.plan import TaskPlan, plan_task
from continual_petl.learner.precision import resolve_precision
from continual_petl.store.residents import Residents
from continual_petl.store.store import Store
from continual_petl.streams.prepare import SplitData, prepare_split
from continual_petl.streams.schema import StreamSpec, TaskSpec

_KEPT_SPLITS = 20


class Session:
    """One process's hold on a stream and its run folder.

    Args:
        spec: the stream.
        store: its run folder, which may not exist yet.
    """

    def __init__(self, spec: StreamSpec, store: Store) -> None:
        self.spec = spec
        self.store = store
        self.residents = Residents(store, spec.backbone)
        self._splits: OrderedDict[str, SplitData] = OrderedDict()

    @property
    def folder(self) -> str:
        """The run folder, as Lightning wants it."""
        return str(self.store.folder)

    def plan(self, task: TaskSpec, labels: tuple[str, ...] | None) -> TaskPlan:
        """Resolve a task against its stream, its labels and the backbone."""
        precision = resolve_precision(self.spec.resolved_training(task).precision)
        return plan_task(self.spec, task, labels, self.residents.backbone(precision))

    def split(self, task: TaskSpec) -> SplitData:
        """Return the rows that fill a learned task's column of R: its test split, else its validation split."""
        if task.name not in self._splits:
            manifest = self.store.manifest(task.name)
            self._splits[task.name] = prepare_split(
                self.spec,
                task,
                self.residents.tokenizer,
                manifest.max_length,
                split="test" if "test" in manifest.scores else "validation",
                labels=manifest.labels,
            )
            while len(self._splits) > _KEPT_SPLITS:
                self._splits.popitem(last=False)
        return self._splits[task.name]
