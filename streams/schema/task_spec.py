"""The schema of one task of a stream file; see `continual_petl.streams.schema.stream_spec`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from continual_petl._strict_model import UserSpec
from continual_petl.backbones.anatomy import Pooling
from continual_petl.banks.config.choice import BankChoice
from continual_petl.errors import did_you_mean
from continual_petl.heads.metric_code import is_own, path_of
from continual_petl.heads.metric_names import ERROR_NAMES, is_of_entities
from continual_petl.kind import Options as OptionsFrom
from continual_petl.kind_registry import KindName, find_kind, import_kind, kind_names, kind_of, names_where
from continual_petl.streams.protocols.splitting import check_division
from continual_petl.streams.schema.chat_spec import ChatSpec
from continual_petl.streams.schema.data_spec import Data
from continual_petl.streams.schema.field_types import Labels, Name, Normalise, Options
from continual_petl.streams.schema.generation import GenerationSpec
from continual_petl.streams.schema.kind_options import (
    ColumnsSpec,
    idle,
    misplaced,
    only_for,
    users_of,
    without_idle_options,
)
from continual_petl.streams.schema.limits_spec import LimitsSpec
from continual_petl.streams.schema.option_columns import names_of
from continual_petl.streams.schema.routing_spec import TaskRoutingSpec
from continual_petl.streams.schema.split_spec import SplitSpec
from continual_petl.streams.schema.tags_spec import TagsSpec
from continual_petl.streams.schema.training_spec import Bool, Count, Float, TrainingOverride

_V = TypeVar("_V")
Probe = Literal["random", "validation"]
_USED_BY = {
    "labels": "has_labels",
    "all_labels": "has_one_label",
    "split": "has_one_label",
    "options": "generates",
    "normalise": "generates",
    "tags": "per_word",
    "kind_settings": "own_settings",
    "pooling": "pools",
    "generation": "generates",
    "max_target_length": "generates",
    "chat": "takes_chats",
}
"""The keys that only some kinds use, each with the fact that holds for these kinds."""


def _options(given: dict[str, Any]) -> OptionsFrom | None:
    """Return where the options of a task come from, according to the keys that have been validated so far."""
    columns, kind = given.get("columns"), given.get("kind")
    if kind is not None and find_kind(kind).chooses:
        return "row"
    return "task" if given.get("options") is not None else "row" if columns is not None and columns.options else None


def _own_names(given: dict[str, Any]) -> tuple[str, str]:
    return given["kind"], given["metric"] or ""


class TaskSpec(UserSpec):
    """One task of a stream."""

    name: Annotated[Name, Field(examples=["topics"])]
    """Unique in the stream; also the name of the bank's folder."""
    kind: Annotated[KindName, Field(examples=["classification"])]
    """The kind of prediction. A task on pairs of texts has one of these kinds and also sets columns.text_pair.
    package.module.Name is a class of your own, derived from continual_petl.kind.Kind, which needs remote_code: true."""
    data: Annotated[Data, Field(examples=["data/topics.csv"])]
    """A path (file, folder with train/validation/test files, glob), arguments of datasets.load_dataset, or rows."""
    columns: ColumnsSpec = ColumnsSpec()
    """The meaning of the columns of the data."""
    labels: Labels | None = None
    """The labels in the order of the classes, or a JSON file with them; null means the labels in train, sorted."""
    all_labels: Labels | None = None
    """All labels of the data, or a JSON file with them, if this task uses only some of them (labels): rows with other labels
    are left out of every split. null means that there are no other labels. (classification, image-classification)"""
    split: SplitSpec | None = None
    """Split this entry by label into the tasks NAME-01, NAME-02, ...; requires the key labels. (classification,
    image-classification)"""
    options: Options | None = None
    """Choose one of these texts, by likelihood, instead of generating text: every target is one of them, and the prediction
    is the option with the highest log-probability after the source. columns.options gives each row its own. (causal-lm,
    seq2seq)"""
    normalise: Normalise = "none"
    """With options: divide the log-probability of each option by its number of tokens or characters, so that long options are
    not at a disadvantage. none: compare the log-probabilities as they are."""
    tags: TagsSpec | None = None
    """How tags mark entities (token-classification); null means recognised from all tags of the task."""
    bank: BankChoice | None = None
    """The bank of this task; null means the stream's. Replaces the stream's bank completely."""
    training: TrainingOverride = TrainingOverride()
    """Training settings of this task that differ from the stream's: keys of training, each optional."""
    metric: str | None = None
    """The metric reported in the result matrix R and used by select: best. null means the default of the kind: accuracy,
    spearman, micro_f1, entity_f1 or rougeL; with options, accuracy. package.module.name is a function of your own
    (predictions, references) -> float, which needs remote_code: true; an installed package may add one by its name."""
    remote_code: Bool = False
    """Whether to import the modules of the function that metric names, and of the class that kind names. They can do anything
    that you can: read them first."""
    pooling: Pooling | None = None
    """How token states become one vector for this task; null means the backbone's setting in the stream."""
    probe: Probe | None = None
    """The inputs of this task's certificate; null means the stream's setting."""
    routing: TaskRoutingSpec | None = None
    """off: no data is stored for recognising rows of this task. {reject: 0.05}: the limit below which its rows are unknown.
    null means the stream's setting."""
    limits: LimitsSpec = LimitsSpec()
    """How many rows of each split to use, and how large files may be."""
    validation: Annotated[Float, Field(gt=0, lt=1)] = 0.1
    """Share of train to hold out for validation if the data has no validation split, stratified by label or, for
    regression, by quantile of the target."""
    kind_settings: dict[str, Any] | None = None
    """Settings that only this kind of task has, such as the stride of question-answering; null means their defaults."""
    generation: GenerationSpec = GenerationSpec()
    """How text is generated (seq2seq, causal-lm)."""
    max_target_length: Count | None = None
    """Maximum tokens of a training target; the rest is cut off. null means 128, or less if the backbone supports fewer."""
    chat: ChatSpec | None = None
    """Learn conversations, rendered by a chat template (causal-lm); implied by columns.messages. If it is set, a
    source is a user message or a list of messages, and a target is the answer."""

    @model_validator(mode="before")
    @classmethod
    def _kind_is_imported(cls, tree: object) -> object:
        import_kind(tree)
        return tree

    @field_validator(*_USED_BY)
    @classmethod
    def _kind_uses_it(cls, value: _V, info: ValidationInfo) -> _V:
        kind, fact = info.data.get("kind"), _USED_BY[str(info.field_name)]
        if value is not None and kind is not None and not getattr(find_kind(kind), fact):
            raise ValueError(only_for(names_where(fact), kind))
        return value

    @field_validator("columns")
    @classmethod
    def _columns_fit_kind(cls, value: ColumnsSpec, info: ValidationInfo) -> ColumnsSpec:
        if (kind := info.data.get("kind")) is None:
            return value
        found = find_kind(kind)
        read = found.columns
        text = f"is not read by a {kind} task, which reads {', '.join(read)}: remove it"
        if found.takes_chats and value.messages is not None:
            read, text = ("messages",), "is not read if messages is given: remove it"
        elif found.takes_chats:
            read, text = (*read, "messages"), text.replace(":", ", or only messages:")
        misplaced("columns", [(k, getattr(value, k), text) for k in value.model_fields_set if k not in read])
        if isinstance(value.label, tuple) and not found.labels_in_columns:
            several = (
                f"is a list, but a {kind} task reads one column: {only_for(names_where('labels_in_columns'), kind)}"
            )
            misplaced("columns", [("label", value.label, several.replace("remove it", "name one column"))])
        named = {key: name for key, name in value.read_by(kind).items() if name is not None}
        there = [name for column in named.values() for name in names_of(column)]
        if len(set(there)) < len(there):
            given = ", ".join(f"{key}: {name}" for key, name in named.items())
            read = tuple(value.read_by(kind))
            number = ("two", "three", "four")[len(read) - 2]
            raise ValueError(
                f"got {given}; {', '.join(read[:-1])} and {read[-1]} must be {number} different columns: name each one"
            )
        return value

    @field_validator("kind_settings")
    @classmethod
    def _settings_fit_kind(cls, value: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        if (kind := info.data.get("kind")) is not None:
            find_kind(kind).settings_of(value)
        return value

    @field_validator("options")
    @classmethod
    def _options_fit_kind(cls, value: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        if value is not None and "columns" in info.data and info.data["columns"].options is not None:
            raise ValueError("columns.options gives each row its own options: remove one of the two")
        return value

    @field_validator("normalise", "generation")
    @classmethod
    def _used_with_or_without_options(cls, value: _V, info: ValidationInfo) -> _V:
        if {"options", "columns"} <= info.data.keys() and (_options(info.data) is None) == (
            info.field_name == "normalise"
        ):
            if info.field_name == "normalise":
                raise ValueError("has no effect without options: remove it, or list the texts to choose from")
            raise ValueError("has no effect with options, since no text is generated: remove one of the two")
        return value

    @field_validator("limits")
    @classmethod
    def _limits_fit_kind(cls, value: LimitsSpec, info: ValidationInfo) -> LimitsSpec:
        kind = info.data.get("kind")
        if value.per_label is not None and kind is not None and not find_kind(kind).has_one_label:
            misplaced("limits", [("per_label", value.per_label, only_for(names_where("has_one_label"), kind))])
        return value

    @field_validator("training")
    @classmethod
    def _training_fits_kind(cls, value: TrainingOverride, info: ValidationInfo) -> TrainingOverride:
        if (kind := info.data.get("kind")) is not None:
            unused = idle(value, kind)
            misplaced(
                "training", [(k, v, only_for(users_of(k), kind)) for k, v in value.given().items() if k in unused]
            )
        return value

    @field_validator("all_labels", "split")
    @classmethod
    def _labels_are_given(cls, value: _V, info: ValidationInfo) -> _V:
        if value is not None and info.data.get("labels", ()) is None:
            raise ValueError(
                f"{info.field_name} needs labels, before any data is read: write labels: [...] in this task, or labels: FILE "
                "with a JSON list of them; `continual-petl init DATA` lists the labels found"
            )
        return value

    @field_validator("all_labels")
    @classmethod
    def _labels_are_among_all(
        cls, value: tuple[str, ...] | str | None, info: ValidationInfo
    ) -> tuple[str, ...] | str | None:
        own = info.data.get("labels")
        if isinstance(value, tuple) and isinstance(own, tuple) and (unknown := sorted(set(own).difference(value))):
            hint = did_you_mean(unknown[0], value)
            raise ValueError(
                f"the label {unknown[0]!r} of this task is missing here{hint}: list all labels of the data"
            )
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
        names = (info.data["kind"],) if "kind" in info.data else kind_names()
        options = _options(info.data)
        known = {name: find_kind(name).metrics_with(options) for name in names}
        if value is not None and options != "row" and path_of(value) is not None:
            return value
        if value is not None and not any(value in metrics for metrics in known.values()):
            which = "" if options is None else " with options" if options == "task" else " with columns.options"
            allowed = "; ".join(f"allowed for kind {kind}{which}: {', '.join(own)}" for kind, own in known.items())
            own = "" if options == "row" else "; or a function of your own: package.module.name"
            shown = f". {value} is shown for every regression, but lower is better" if value in ERROR_NAMES else ""
            raise ValueError(f"got {value!r}; {allowed}{own}{shown}")
        tags = info.data.get("tags")
        if tags is not None and tags.scheme == "none" and is_of_entities(value):
            raise ValueError(
                f"got {value!r}, but with tags: {{scheme: none}} there are no entities: write metric: accuracy"
            )
        return value

    @field_validator("remote_code")
    @classmethod
    def _code_is_used(cls, value: bool, info: ValidationInfo) -> bool:
        if value and {"kind", "metric"} <= info.data.keys() and not any(map(is_own, _own_names(info.data))):
            raise ValueError(
                "has no effect without a metric of your own, such as metric: package.module.name, or a kind: remove it"
            )
        return value

    @property
    def resolved_metric(self) -> str:
        """The metric that is reported: the given one, or the default of the kind."""
        if self.metric is not None:
            return self.metric
        if self.tags is not None and self.tags.scheme == "none":
            return "accuracy"
        return kind_of(self).metrics_with(self.options_from)[0]

    @property
    def options_from(self) -> OptionsFrom | None:
        """Where the options come from; None if the task has none."""
        return _options({"kind": self.kind, "options": self.options, "columns": self.columns})

    @property
    def resolved_normalise(self) -> Normalise | None:
        """How the likelihoods of options are normalised; None if options are not chosen by likelihood."""
        return self.normalise if self.options_from is not None and kind_of(self).generates else None

    @property
    def has_pairs(self) -> bool:
        """Whether every row is a pair of texts."""
        return kind_of(self).always_pairs or self.columns.text_pair is not None

    @property
    def reads_chats(self) -> bool:
        """Whether the rows are conversations."""
        return self.chat is not None or (kind_of(self).takes_chats and self.columns.messages is not None)

    @model_serializer(mode="wrap")
    def _without_idle_options(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        tree: dict[str, Any] = handler(self)
        return without_idle_options(self.kind, tree)
