"""The schema of a stream file, checked before anything heavy is imported.

The docstrings of the fields become the descriptions of the JSON Schema. `streams.stream_file.yaml_file` reads these
models from files and turns errors into paragraphs with line numbers. Needs pydantic only.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    model_validator,
)

from continual_petl._strict_model import UserSpec
from continual_petl.backbones.anatomy import Pooling as Pooling
from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.inherit import Learned, none_is_learned, resolve_bank
from continual_petl.banks.config.presets import recipe_of
from continual_petl.banks.config.spec import BankSpec
from continual_petl.streams.protocols.rules import Protocol as Protocol
from continual_petl.streams.schema.backbone_spec import BackboneSpec as BackboneSpec
from continual_petl.streams.schema.chat_spec import ChatSpec as ChatSpec
from continual_petl.streams.schema.chat_spec import is_template
from continual_petl.streams.schema.consistency import Inconsistent, contradictions
from continual_petl.streams.schema.data_spec import SPLITS as SPLITS
from continual_petl.streams.schema.data_spec import Data as Data
from continual_petl.streams.schema.data_spec import DataSpec as DataSpec
from continual_petl.streams.schema.data_spec import Rows as Rows
from continual_petl.streams.schema.data_spec import SplitName as SplitName
from continual_petl.streams.schema.data_spec import (
    Text,
    join_path,
    local_path,
    locate,
    looks_like_path,
    short_path,
    without_copy,
)
from continual_petl.streams.schema.field_types import Name
from continual_petl.streams.schema.generation import GenerationSpec as GenerationSpec
from continual_petl.streams.schema.kind_options import ColumnsSpec as ColumnsSpec
from continual_petl.streams.schema.kind_options import (
    idle,
)
from continual_petl.streams.schema.limits_spec import LimitsSpec as LimitsSpec
from continual_petl.streams.schema.routing_spec import ResolvedRouting as ResolvedRouting
from continual_petl.streams.schema.routing_spec import RoutingSpec as RoutingSpec
from continual_petl.streams.schema.split_spec import SplitSpec as SplitSpec
from continual_petl.streams.schema.task_spec import Probe as Probe
from continual_petl.streams.schema.task_spec import TaskSpec as TaskSpec
from continual_petl.streams.schema.training_spec import Int
from continual_petl.streams.schema.training_spec import ResolvedTraining as ResolvedTraining
from continual_petl.streams.schema.training_spec import TrainingOverride as TrainingOverride
from continual_petl.streams.schema.training_spec import TrainingSpec as TrainingSpec

_TASKS = [{"name": "topics", "kind": "classification", "data": "data/topics.csv"}]


class StreamSpec(UserSpec):
    """An ordered list of tasks on one frozen backbone.

    Paths of data and of label files are relative to `data_dir` (to the working directory if it is null; reading a stream
    file sets it to the file's folder). Use the ``resolved_...`` methods to read a task.
    """

    name: Annotated[Name, Field(examples=["support-desk"])]
    """Name of the stream; also the default name of its run folder."""
    seed: Annotated[Int, Field(ge=0, lt=2**63)] = 0
    """The seed of all randomness; the seed of each task is derived from it and the task's name."""
    backbone: Annotated[BackboneSpec, Field(examples=["minilm"])]
    """The frozen pre-trained transformer that all tasks share."""
    bank: BankChoice = BankChoice(preset="houlsby")
    """What each task adds to the backbone, unless the task has its own setting."""
    training: TrainingSpec = TrainingSpec()
    """How each bank is trained, unless the task has its own setting."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Arguments of Lightning's Trainer, such as {devices: 1}."""
    defaults: Literal[2, 3] = 3
    """Version of the defaults for omitted keys; a run records the version that it was started with, and keeps it. 3: the rows
    that are held out for validation, or kept by limits, depend on the seed and the data. 2: on the task's name too."""
    evaluate: Literal["auto", "all", "sample", "certified"] = "auto"
    """How earlier tasks are evaluated after a new one: measure all of them again (all), measure a few and check the
    certificates of others (sample), or only check certificates (certified). auto: all for up to 20 tasks, then certified."""
    probe: Probe = "random"
    """Inputs whose outputs are stored in a task's certificate. random: tokens or pixels drawn with the task's seed, so that
    the certificate contains no data. validation: rows of the validation split, which anyone who has the run folder can then
    read."""
    routing: RoutingSpec = RoutingSpec()
    """The data that each task stores, so that rows can be predicted without a task's name (auto, compact, full, small, off),
    and the limit below which such a row is unknown (reject)."""
    protocol: Protocol = "task"
    """How rows without a task name are evaluated, and which tasks are allowed. task: any tasks; the right task must be found,
    and its prediction must be correct. class: classifications of text or images, with each label in one task only; domain:
    classifications with the same labels in all tasks; revisit: classifications whose labels may recur in any way. With these
    three, only the label must be correct."""
    data_dir: Text | None = None
    """Folder for relative data paths and local copies (data.local of a task); null means the folder of the stream file,
    and local copies are then not used."""
    tasks: Annotated[tuple[TaskSpec, ...], Field(min_length=1, examples=[_TASKS])]
    """The tasks, in the order in which they arrive."""

    @model_validator(mode="after")
    def _consistent(self) -> StreamSpec:
        tree = {
            "training": {key: getattr(self.training, key) for key in self.training.model_fields_set},
            "trainer": self.trainer,
            "protocol": self.protocol,
            "tasks": [
                {
                    "name": t.name,
                    "kind": t.kind,
                    "labels": t.labels,
                    "split": t.split,
                    "training": t.training.given(),
                    "bank": {key: getattr(t.bank or self.bank, key) for key in ("start_from", "fuse")},
                }
                for t in self.tasks
            ],
        }
        if problems := contradictions(tree):
            raise Inconsistent(problems)
        return self

    def anchored(self) -> StreamSpec:
        """Return the same stream with paths that are valid from every working directory."""
        name = self.backbone.name
        backbone = {"name": join_path(os.getcwd(), local_path(name))} if looks_like_path(name) else {}
        data_dir = join_path(os.getcwd(), self.data_dir or os.curdir)
        spec = self if self.data_dir is not None else self.without_copies()
        return spec.model_copy(update={"data_dir": data_dir, "backbone": self.backbone.model_copy(update=backbone)})

    def without_copies(self) -> StreamSpec:
        """Return the same stream with every task read from its source, regardless of data_dir."""
        tasks = tuple(task.model_copy(update={"data": without_copy(task.data)}) for task in self.tasks)
        return self.model_copy(update={"tasks": tasks})

    def merged_training(self, task: TaskSpec) -> TrainingSpec:
        """Return the stream's settings overridden by the task's; settings for other kinds of tasks are left out."""
        whole = task.training.over(self.training)
        return whole.model_copy(update=idle(whole, task.kind))

    def resolved_training(self, task: TaskSpec, bank: BankSpec | None = None) -> ResolvedTraining:
        """Return how ``task`` is trained; missing settings come from a recipe, by default that of the stream's bank."""
        bank = bank or self.resolved_bank(task)
        recipe = recipe_of(bank, (task.bank or self.bank).preset)
        return ResolvedTraining.of(self.merged_training(task), bank, recipe)

    def resolved_bank(self, task: TaskSpec, learned: Learned = none_is_learned) -> BankSpec:
        """Return the complete bank configuration of ``task``: its own, or the stream's; see `resolve_bank`."""
        choice = task.bank or self.bank
        known = (*self.tasks, task) if choice.inherits else (task,)
        return resolve_bank(task.name, {each.name: each.bank or self.bank for each in known}, learned)

    def resolved_pooling(self, task: TaskSpec) -> Pooling | None:
        """Return the pooling that was set for ``task``; None means the default of the backbone's family."""
        return self.backbone.pooling if task.pooling is None else task.pooling

    def resolved_probe(self, task: TaskSpec) -> Probe:
        """Return the probe setting of ``task``."""
        return self.probe if task.probe is None else task.probe

    def resolved_routing(self, task: TaskSpec) -> ResolvedRouting:
        """Return the routing setting of ``task``, never auto."""
        routing = (task.routing and task.routing.statistics) or self.routing.statistics
        return ("full" if self.protocol == "class" else "compact") if routing == "auto" else routing

    def resolved_reject(self, task: TaskSpec) -> float:
        """Return the limit below which rows of ``task`` are unknown, unless whoever asks gives another one."""
        return (task.routing and task.routing.reject) or self.routing.reject

    def resolved_data(self, task: TaskSpec) -> str | DataSpec | Rows:
        """Return the data of ``task`` with relative paths resolved against `data_dir`."""
        return locate(task.data, self.data_dir)

    def resolved_labels(self, task: TaskSpec) -> tuple[str, ...] | str | None:
        """Return the labels of ``task``; the path of a label file is relative to `data_dir`."""
        return self._located_labels(task.labels)

    def resolved_all_labels(self, task: TaskSpec) -> tuple[str, ...] | str | None:
        """Return all labels of the data of ``task``; the path of a label file is relative to `data_dir`."""
        return self._located_labels(task.all_labels)

    def resolved_chat(self, task: TaskSpec) -> ChatSpec | None:
        """Return how ``task`` reads conversations, with the path of a template resolved; None if it reads none."""
        if task.chat is None:
            return ChatSpec() if task.reads_chats else None
        if task.chat.template is None or is_template(task.chat.template):
            return task.chat
        path = short_path(local_path(task.chat.template, self.data_dir or os.curdir))
        return task.chat.model_copy(update={"template": path})

    def _located_labels(self, labels: tuple[str, ...] | str | None) -> tuple[str, ...] | str | None:
        return join_path(self.data_dir or os.curdir, labels) if isinstance(labels, str) else labels
