"""The schema of a stream file, checked before anything heavy is imported.

The docstrings of the fields become the descriptions of the JSON Schema. `streams.stream_file.yaml_file` reads these
models from files and turns errors into paragraphs with line numbers. Needs pydantic only.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from continual_petl._frozen import FrozenModel
from continual_petl.backbones.anatomy import Pooling as Pooling
from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.inherit import Learned, none_is_learned, resolve_bank
from continual_petl.banks.config.recipes import recipe_of
from continual_petl.banks.config.spec import BankSpec
from continual_petl.heads.kinds import GENERATIVE, LABELLED
from continual_petl.heads.kinds import METRICS as METRICS
from continual_petl.heads.kinds import Kind as Kind
from continual_petl.streams.protocols.rules import JUDGED_BY_LABEL
from continual_petl.streams.protocols.rules import Protocol as Protocol
from continual_petl.streams.protocols.splitting import check_division
from continual_petl.streams.schema.backbone_spec import BackboneSpec as BackboneSpec
from continual_petl.streams.schema.chat_spec import ChatSpec as ChatSpec
from continual_petl.streams.schema.chat_spec import is_template
from continual_petl.streams.schema.consistency import Inconsistent, contradictions
from continual_petl.streams.schema.data_spec import SPLITS as SPLITS
from continual_petl.streams.schema.data_spec import Data as Data
from continual_petl.streams.schema.data_spec import DataSpec as DataSpec
from continual_petl.streams.schema.data_spec import Rows as Rows
from continual_petl.streams.schema.data_spec import SplitName as SplitName
from continual_petl.streams.schema.data_spec import Text, join_path, locate, looks_like_path, without_copy
from continual_petl.streams.schema.field_types import Labels, Name
from continual_petl.streams.schema.generation import GenerationSpec as GenerationSpec
from continual_petl.streams.schema.limits_spec import LimitsSpec as LimitsSpec
from continual_petl.streams.schema.of_kind import (
    COLUMNS,
    POOLED,
    TRAINING,
    idle,
    misplaced,
    only_for,
    without_idle_options,
)
from continual_petl.streams.schema.of_kind import ColumnsSpec as ColumnsSpec
from continual_petl.streams.schema.split_spec import SplitSpec as SplitSpec
from continual_petl.streams.schema.training_spec import Count, Float, Int
from continual_petl.streams.schema.training_spec import ResolvedTraining as ResolvedTraining
from continual_petl.streams.schema.training_spec import TrainingOverride as TrainingOverride
from continual_petl.streams.schema.training_spec import TrainingSpec as TrainingSpec

_V = TypeVar("_V")
Probe = Literal["random", "validation"]
Routing = Literal["full", "small", "off"]


_TASKS = [{"name": "topics", "kind": "classification", "data": "data/topics.csv"}]


class TaskSpec(FrozenModel):
    """One task of a stream."""

    name: Annotated[Name, Field(examples=["topics"])]
    """Unique in the stream; also the name of the bank's folder."""
    kind: Annotated[Kind, Field(examples=["classification"])]
    """The kind of prediction. A task on pairs of texts has one of these kinds, and sets columns.text_pair."""
    data: Annotated[Data, Field(examples=["data/topics.csv"])]
    """A path (file, folder with train/validation/test files, glob), what datasets.load_dataset takes, or rows."""
    columns: ColumnsSpec = ColumnsSpec()
    """The meaning of the columns of the data."""
    labels: Labels | None = None
    """The labels in the order of the classes, or a JSON file with them; null means sorted as found in train."""
    all_labels: Labels | None = None
    """All labels of the data, or a JSON file with them, if this task uses only some of them (labels): rows with other labels
    are left out of every split. null means that there are no other labels. (classification, image-classification)"""
    split: SplitSpec | None = None
    """Split this entry by label into the tasks NAME-01, NAME-02, ...; requires the key labels. (classification,
    image-classification)"""
    bank: BankChoice | None = None
    """The bank of this task; null means the stream's. Replaces the stream's bank completely."""
    training: TrainingOverride = TrainingOverride()
    """Training settings of this task that differ from the stream's: keys of training, each optional."""
    metric: str | None = None
    """The metric in R and for select: best. Null means the first of its kind: accuracy, spearman, micro_f1, entity_f1,
    rougeL."""
    pooling: Pooling | None = None
    """How token states become one vector for this task; null means the backbone's setting in the stream."""
    probe: Probe | None = None
    """The inputs of this task's certificate; null means the stream's setting."""
    routing: Literal["off"] | None = None
    """off: no data is stored for recognising rows that belong to this task; null means the stream's setting."""
    limits: LimitsSpec = LimitsSpec()
    """Use only this many rows of a split."""
    validation: Annotated[Float, Field(gt=0, lt=1)] = 0.1
    """Share of train to hold out for validation if the data has no validation split, stratified by label or, for
    regression, by quantile of the target."""
    generation: GenerationSpec = GenerationSpec()
    """How text is generated (seq2seq, causal-lm)."""
    max_target_length: Count | None = None
    """Tokens after which a training target is cut; null means 128, or less if the backbone takes no more."""
    chat: ChatSpec | None = None
    """Learn conversations, rendered by a chat template (causal-lm); implied by columns.messages. With it, a source is a
    message of the user, or a list of messages, and a target is the answer."""

    @field_validator("columns")
    @classmethod
    def _columns_fit_kind(cls, value: ColumnsSpec, info: ValidationInfo) -> ColumnsSpec:
        if (kind := info.data.get("kind")) is None:
            return value
        read = COLUMNS[kind]
        text = f"is not read by a {kind}, which reads {', '.join(read)}: remove it"
        if kind == "causal-lm" and value.messages is not None:
            read, text = ("messages",), "is not read next to messages: remove it"
        elif kind == "causal-lm":
            read, text = (*read, "messages"), text.replace(":", ", or only messages:")
        misplaced("columns", [(k, getattr(value, k), text) for k in value.model_fields_set if k not in read])
        named = {key: name for key, name in value.read_by(kind).items() if name is not None}
        if len(set(named.values())) < len(named):
            given = ", ".join(f"{key}: {name}" for key, name in named.items())
            read = tuple(value.read_by(kind))
            number = ("two", "three")[len(read) - 2]
            raise ValueError(
                f"got {given}; {', '.join(read[:-1])} and {read[-1]} must be {number} different columns: name each one"
            )
        return value

    @field_validator("generation", "max_target_length", "pooling")
    @classmethod
    def _option_fits_kind(cls, value: _V, info: ValidationInfo) -> _V:
        kinds = POOLED if info.field_name == "pooling" else GENERATIVE
        if value is not None and info.data.get("kind", next(iter(kinds))) not in kinds:
            raise ValueError(only_for(kinds, info.data["kind"]))
        return value

    @field_validator("chat")
    @classmethod
    def _chat_fits_kind(cls, value: ChatSpec | None, info: ValidationInfo) -> ChatSpec | None:
        if value is not None and info.data.get("kind", "causal-lm") != "causal-lm":
            raise ValueError(only_for(("causal-lm",), info.data["kind"]))
        return value

    @field_validator("limits")
    @classmethod
    def _limits_fit_kind(cls, value: LimitsSpec, info: ValidationInfo) -> LimitsSpec:
        kind = info.data.get("kind", "classification")
        if value.per_label is not None and kind not in JUDGED_BY_LABEL:
            misplaced("limits", [("per_label", value.per_label, only_for(JUDGED_BY_LABEL, kind))])
        return value

    @field_validator("training")
    @classmethod
    def _training_fits_kind(cls, value: TrainingOverride, info: ValidationInfo) -> TrainingOverride:
        if (kind := info.data.get("kind")) is not None:
            unused = idle(value, kind)
            misplaced(
                "training", [(k, v, only_for(TRAINING[k], kind)) for k, v in value.given().items() if k in unused]
            )
        return value

    @field_validator("labels")
    @classmethod
    def _labels_fit_kind(
        cls, value: tuple[str, ...] | str | None, info: ValidationInfo
    ) -> tuple[str, ...] | str | None:
        kind = info.data.get("kind")
        if value is not None and kind is not None and kind not in LABELLED:
            raise ValueError(f"labels are for classification and have no effect on a {kind}: remove them")
        return value

    @field_validator("all_labels", "split")
    @classmethod
    def _labels_are_given(cls, value: _V, info: ValidationInfo) -> _V:
        if value is None:
            return value
        if info.data.get("kind", "classification") not in JUDGED_BY_LABEL:
            raise ValueError(only_for(JUDGED_BY_LABEL, info.data["kind"]))
        if info.data.get("labels", ()) is None:
            raise ValueError(
                f"{info.field_name} needs labels, before any data is read: write labels: [...] in this task, or labels: FILE "
                "with a JSON list of them; `continual-petl init DATA` shows which there are"
            )
        return value

    @field_validator("all_labels")
    @classmethod
    def _labels_are_among_all(
        cls, value: tuple[str, ...] | str | None, info: ValidationInfo
    ) -> tuple[str, ...] | str | None:
        own = info.data.get("labels")
        if isinstance(value, tuple) and isinstance(own, tuple) and (unknown := sorted(set(own).difference(value))):
            raise ValueError(f"the label {unknown[0]!r} of this task is missing here: list all labels of the data")
        return value

    @field_validator("split")
    @classmethod
    def _split_divides(cls, value: SplitSpec | None, info: ValidationInfo) -> SplitSpec | None:
        if value is not None and isinstance(labels := info.data.get("labels"), tuple):
            check_division(len(labels), value.classes_per_task)
        return value

    @field_validator("metric")
    @classmethod
    def _metric_fits_kind(cls, value: str | None, info: ValidationInfo) -> str | None:
        kinds: tuple[Kind, ...] = (info.data["kind"],) if "kind" in info.data else tuple(METRICS)
        if value is not None and not any(value in METRICS[kind] for kind in kinds):
            allowed = "; ".join(f"allowed for kind {kind}: {', '.join(METRICS[kind])}" for kind in kinds)
            raise ValueError(f"got {value!r}; {allowed}")
        return value

    @property
    def resolved_metric(self) -> str:
        """The metric that is reported: the given one, or the default of the kind."""
        return METRICS[self.kind][0] if self.metric is None else self.metric

    @property
    def reads_chats(self) -> bool:
        """Whether the rows are conversations."""
        return self.chat is not None or (self.kind == "causal-lm" and self.columns.messages is not None)

    @model_serializer(mode="wrap")
    def _without_idle_options(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        tree: dict[str, Any] = handler(self)
        return without_idle_options(self.kind, tree)


class StreamSpec(FrozenModel):
    """An ordered list of tasks on one frozen backbone.

    Paths: the data of tasks and label files are relative to `data_dir` (to the working directory if it is null;
    reading a stream file sets it to the file's folder). Use the ``resolved_...`` methods to read a task.
    """

    name: Annotated[Name, Field(examples=["support-desk"])]
    """Name of the stream; also the default name of its run folder."""
    seed: Annotated[Int, Field(ge=0, lt=2**63)] = 0
    """Source of all randomness; every task derives its own seed from this and its name."""
    backbone: Annotated[BackboneSpec, Field(examples=["minilm"])]
    """The frozen pre-trained transformer that all tasks share."""
    bank: BankChoice = BankChoice(preset="houlsby")
    """What each task adds to the backbone, unless the task has its own setting."""
    training: TrainingSpec = TrainingSpec()
    """How each bank is trained, unless the task has its own setting."""
    trainer: dict[str, Any] = Field(default_factory=dict)
    """Arguments of Lightning's Trainer, such as {devices: 1}."""
    defaults: Literal[2] = 2
    """Version of the defaults for omitted keys; a run records the version that it was learned with."""
    evaluate: Literal["auto", "all", "sample", "certified"] = "auto"
    """How earlier tasks are evaluated after a new one; auto means all for up to 20 tasks, and certified beyond that."""
    probe: Probe = "random"
    """Inputs whose outputs a task's certificate holds. random: tokens or pixels drawn with the task's seed, so that the
    certificate contains no data. validation: rows of the validation split, which everyone with the run folder can then
    read."""
    routing: Routing = "full"
    """The data that each task stores with its certificate, so that rows can be predicted without a task's name: mean and
    covariance of its training rows in three layers of the backbone (full), in one layer (small), or nothing (off)."""
    protocol: Protocol = "task"
    """How rows that name no task are judged, and which tasks are allowed. task: any; the right task must be found, and its
    prediction must be correct. class: classifications of text or images, with each label in one task only; domain:
    classifications with the same labels in all tasks; revisit: classifications whose labels may recur in any way. In these
    three, only the label must be correct."""
    data_dir: Text | None = None
    """Folder for relative data paths and local copies (data.local of a task); null means the folder of the stream file, and
    no copies."""
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
        backbone = {"name": join_path(os.getcwd(), os.path.expanduser(name))} if looks_like_path(name) else {}
        data_dir = join_path(os.getcwd(), self.data_dir or os.curdir)
        spec = self if self.data_dir is not None else self.without_copies()
        return spec.model_copy(update={"data_dir": data_dir, "backbone": self.backbone.model_copy(update=backbone)})

    def without_copies(self) -> StreamSpec:
        """Return the same stream with every task read from its source, whatever the data_dir."""
        tasks = tuple(task.model_copy(update={"data": without_copy(task.data)}) for task in self.tasks)
        return self.model_copy(update={"tasks": tasks})

    def merged_training(self, task: TaskSpec) -> TrainingSpec:
        """Return the stream's settings overridden by the task's; settings for other kinds of tasks are left out."""
        whole = task.training.over(self.training)
        return whole.model_copy(update=idle(whole, task.kind))

    def resolved_training(self, task: TaskSpec, bank: BankSpec | None = None) -> ResolvedTraining:
        """Return how ``task`` is trained; open settings come from a recipe, by default that of the bank in the stream."""
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

    def resolved_routing(self, task: TaskSpec) -> Routing:
        """Return the routing setting of ``task``."""
        return self.routing if task.routing is None else task.routing

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
        """Return how ``task`` reads conversations, with a template's path located; None if it reads none."""
        if task.chat is None:
            return ChatSpec() if task.reads_chats else None
        if task.chat.template is None or is_template(task.chat.template):
            return task.chat
        path = join_path(self.data_dir or os.curdir, os.path.expanduser(task.chat.template))
        return task.chat.model_copy(update={"template": path})

    def _located_labels(self, labels: tuple[str, ...] | str | None) -> tuple[str, ...] | str | None:
        return join_path(self.data_dir or os.curdir, labels) if isinstance(labels, str) else labels
