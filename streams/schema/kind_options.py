"""Which options each kind of task uses; any other option is an error and never silently ignored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeAlias

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetJsonSchemaHandler,
    Tag,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails

from continual_petl._strict_model import UserSpec
from continual_petl.kind import MAX_OPTIONS, OwnColumn
from continual_petl.kind_registry import find_kind, kinds
from continual_petl.streams.schema.data_spec import AS_LIST, AS_TEXT, Text
from continual_petl.streams.schema.option_columns import OptionColumns
from continual_petl.streams.schema.training_spec import TrainingSpec

OF_SOME_KINDS = ("label_smoothing", "class_weights", "head_dropout", "packing")
"""The keys of ``training`` that only some kinds use; all kinds use the other keys."""


def _several(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) < 2:
        raise ValueError(
            f"got {list(names)}; allowed: the name of one column that holds lists, without brackets, or a list of at least "
            "two columns, each with one option or, for labels, with 0 or 1 for one label"
        )
    return names


_Several: TypeAlias = Annotated[
    Annotated[Text, Tag(AS_TEXT)]
    | Annotated[tuple[Text, ...], Field(max_length=MAX_OPTIONS), AfterValidator(_several), Tag(AS_LIST)],
    Discriminator(
        lambda value: AS_LIST if isinstance(value, list | tuple) else AS_TEXT if isinstance(value, str) else None,
        custom_error_type="shape",
        custom_error_message="must be the name of a column, or a list of the names of columns with one option or label each",
    ),
]


class ColumnsSpec(UserSpec):
    """The names of the columns in the data. Only keys that the task's kind reads are allowed."""

    text: Text = "text"
    """The column with the text (classification, regression, multilabel)."""
    text_pair: Text | None = None
    """The column with the second text, for tasks on pairs."""
    label: _Several = "label"
    """The column with the class, the number, (multilabel) the list of labels (in CSV, a JSON list), or (multiple-choice) the
    right option, as text or by its position from 0. In a multilabel task also a list of columns, each with 0 or 1 for the
    label of its name, such as [sport, news]."""
    source: Text = "source"
    """The column with the input text (seq2seq, causal-lm, multiple-choice), or with the messages of a prompt if the task sets
    chat."""
    target: Text = "target"
    """The column with the output text (seq2seq, causal-lm), or with the messages of an answer if the task sets chat."""
    options: _Several | None = None
    """The column with the list of texts to choose from in each row (multiple-choice, where null means options; seq2seq,
    causal-lm, in place of the task's options); in CSV, a JSON list. Or a list of columns with one option each, such as
    [choice1, choice2]."""
    messages: Text | None = None
    """The column with conversations (causal-lm), in place of source and target: lists of {role, content}, or of {from, value}
    as in ShareGPT; in CSV, JSON lists."""
    tokens: Text = "tokens"
    """The column with the list of words (token-classification); in CSV, a JSON list."""
    tags: Text = "tags"
    """The column with the list of tags, one per word (token-classification); in CSV, a JSON list."""
    image: Text = "image"
    """The column with the image (image-classification): a path, an image as read by datasets, or nested lists of grey or
    RGB values."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Text | None]

    @model_validator(mode="after")
    def _known(self) -> ColumnsSpec:
        added = self.__pydantic_extra__ or {}
        known = _own_columns() if added else {}  # kinds cannot be imported while this module is
        details = [
            InitErrorDetails(type="extra_forbidden", loc=(key,), input=value)
            for key, value in added.items()
            if key not in known
        ]
        if details:
            raise ValidationError.from_exception_data("columns", details)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema, with the columns that kinds add."""
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        own = {
            key: {
                "anyOf": [{"minLength": 1, "type": "string"}, {"type": "null"}],
                "default": column.default,
                "description": f"{column.about} ({kind})",
                "title": key.replace("_", " ").capitalize(),
            }
            for key, (kind, column) in _own_columns().items()
        }
        found = handler.resolve_ref_schema(schema)
        found["properties"] |= own
        found["additionalProperties"] = False
        return schema

    def column(self, key: str) -> str | None:
        """Return the column of a key; the default if the key was left out."""
        if key in type(self).model_fields or key in (self.__pydantic_extra__ or {}):
            named: str | None = getattr(self, key)
            return named
        return _own_columns()[key][1].default

    def read_by(self, kind: str) -> dict[str, str | None]:
        """Return the keys that a task of ``kind`` reads, with the column names; the last is the label or target."""
        found = find_kind(kind)
        if found.takes_chats and self.messages is not None:
            return {"messages": self.messages}
        given = {key: self.column(key) for key in found.columns}
        if isinstance(self.options, tuple) and "options" in given:
            given["options"] = OptionColumns(self.options)
        if found.chooses and self.options is None:
            given["options"] = "options"
        if isinstance(self.label, tuple) and "label" in given:
            given["label"] = OptionColumns(self.label)
        return {key: name for key, name in given.items() if name is not None or key == "text_pair"}


def _own_columns() -> dict[str, tuple[str, OwnColumn]]:
    """Return the columns that kinds add, each with the kind that adds it."""
    return {key: (kind.name, column) for kind in kinds() for key, column in kind.own_columns.items()}


def users_of(key: str) -> tuple[str, ...]:
    """Return the kinds that use a key of ``training`` that only some kinds use."""
    return tuple(kind.name for kind in kinds() if key in kind.trains_with)


def only_for(names: Iterable[str], kind: str) -> str:
    """Return the message saying that an option has no effect on a task of ``kind``; it names the kinds that use it."""
    return f"has no effect on a {kind} task (it is for {', '.join(names)}): remove it"


def misplaced(title: str, problems: Iterable[tuple[str, Any, str]]) -> None:
    """Raise one error with all ``problems`` of a mapping, each located at its key.

    Args:
        title: the key of the mapping.
        problems: triples of key, value and description of the problem.

    Raises:
        ValidationError: if there is a problem.
    """
    details = [
        InitErrorDetails(type="value_error", loc=(key,), input=value, ctx={"error": ValueError(text)})
        for key, value, text in problems
    ]
    if details:
        raise ValidationError.from_exception_data(title, details)


def without_idle_options(kind: str, tree: dict[str, Any]) -> dict[str, Any]:
    """Return the plain data of a task without the options that its kind does not allow."""
    found = find_kind(kind)
    generating = ("generation", "max_target_length", "normalise")
    tree = {key: v for key, v in tree.items() if found.generates or key not in generating}
    if "columns" in tree:
        chats = found.takes_chats and tree["columns"].get("messages") is not None
        kept = ("messages",) if chats else found.columns
        tree["columns"] = {key: name for key, name in tree["columns"].items() if key in kept}
    for key in ("chat", "remote_code", "tags", "kind_settings"):
        if not tree.get(key):
            tree.pop(key, None)  # streams without the key stay as they were before it existed
    own = "columns" in tree and tree["columns"].get("options") is not None
    if "columns" in tree and not own:
        tree["columns"].pop("options", None)
    unused = {"options"} if tree.get("options") is None else set()
    for key in unused | ({"normalise"} if unused and not own else {"generation"}):
        tree.pop(key, None)
    return tree


def idle(training: TrainingSpec, kind: str) -> dict[str, Any]:
    """Return the keys that are set but not used by the kind, each with its default value."""
    used = find_kind(kind).trains_with
    silent = {key: TrainingSpec.model_fields[key].default for key in OF_SOME_KINDS if key not in used}
    return {key: value for key, value in silent.items() if getattr(training, key) != value}
