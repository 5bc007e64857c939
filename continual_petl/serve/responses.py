"""Every status, media type and type with which each path answers, for the OpenAPI reference and clients generated from it.

The responses themselves are not made from these types; the tests compare each response with the declared one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, Union, get_type_hints

from pydantic import ConfigDict, Field
from pydantic.types import JsonValue

# pydantic needs this one before Python 3.12.
from typing_extensions import TypedDict

from continual_petl.kind import Kind
from continual_petl.kind_registry import KindName, kinds

_PROBLEMS = {
    400: "The request is not HTTP or not JSON, or its Host header is not allowed",
    401: "The token is missing or wrong",
    404: "No task has this name",
    405: "The path has no such method",
    408: "The body did not arrive in time",
    409: "The request has the form below, but its parts do not fit each other or its tasks: a row does not have the form "
    "that its own task takes, a conversation does not end with a user message, an image cannot be read, a row is too long "
    "for the backbone, or there is not one task per row",
    410: "The task was forgotten on purpose",
    413: "The request has too many rows, characters, pixels or bytes",
    415: "The body is not declared as JSON",
    422: "The request does not have the form below, which follows what the learned tasks take",
    429: "Too many rows are waiting",
    500: "Internal error",
    503: "The endpoint cannot answer at the moment",
    504: "There was no prediction in time",
}
_HEADERS = {
    401: ("WWW-Authenticate", "Bearer"),
    405: ("Allow", "The methods that the path has"),
    429: ("Retry-After", "Seconds after which the request may be sent again"),
    503: ("Retry-After", "Seconds after which the request may be sent again, if that is known"),
}
_ALWAYS = (400, 405, 413, 500, 503)
"""Statuses with which every path may answer."""
EVENTS = {
    "text/event-stream": 'Events `data: {"text": PIECE}` while the text is generated; then `event: end`, whose data is the '
    "response as JSON, or `event: error`, whose data is a Refusal."
}
METRICS = {"text/plain": "Prometheus's text format"}

Share = Annotated[float, Field(ge=0, le=1)] | None
_Shares = Annotated[
    dict[str, Share], Field(description="Probability by label or option; null if the bank's output is not a number.")
]


_IN_BATCH = "Whether rounding, which depends on the other rows of a batch, could change"
_NearTie = Annotated[bool, Field(description=f"{_IN_BATCH} the label; only for tasks that predict in bf16.")]
_Truncated = Annotated[
    bool,
    Field(description="Whether the row is longer than the tokens that its task reads, so that only a part was read."),
]
_TOKENS = f"{_IN_BATCH} one of the tokens; only for tasks that generate in bf16; with beams always true."


class _Closed(TypedDict):
    """Has no keys beside those that are declared."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]


class Candidate(TypedDict):
    """The prediction of one of the most probable tasks; it has the other keys of a prediction of the task's kind, too."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    task: str
    task_probability: Share
    answer: str | float | list[str] | None


_Known = Annotated[
    Share,
    Field(
        description="The share of the task's own rows that lie at least as far away: 1 as near as any, 0 beyond all."
    ),
]
_Candidates = Annotated[list[Candidate], Field(description="The most probable first; only if they were asked for.")]


class _Found(_Closed):
    """What every record has. The keys after the task are there if the request did not name it."""

    task: str
    task_probability: NotRequired[Share]
    known: NotRequired[_Known]
    task_near_tie: NotRequired[Annotated[bool, Field(description=f"{_IN_BATCH} which task is found.")]]
    runners_up: NotRequired[Annotated[dict[str, Share], Field(description="The next most probable tasks.")]]
    candidates: NotRequired[_Candidates]


class _Text(_Found):
    text: str
    text_pair: NotRequired[str]
    truncated: _Truncated


class LabelPrediction(_Text):
    """The label of a text or of a pair (classification)."""

    answer: str
    probabilities: _Shares
    near_tie: NotRequired[_NearTie]


class LabelsPrediction(_Text):
    """All labels that apply to a text or to a pair (multilabel)."""

    answer: list[str]
    probabilities: _Shares
    near_tie: NotRequired[_NearTie]


class NumberPrediction(_Text):
    """The number of a text or of a pair (regression); null if the bank's output is not a number."""

    answer: float | None


class TagsPrediction(_Found):
    """One tag per word (token-classification)."""

    tokens: str | list[str]
    answer: list[str]
    near_tie: NotRequired[_NearTie]
    truncated: _Truncated


class ImagePrediction(_Found):
    """The label of an image (image-classification); the image is not repeated."""

    answer: str
    probabilities: _Shares
    near_tie: NotRequired[_NearTie]


class _Source(_Found):
    source: NotRequired[str]
    messages: NotRequired[str | list[dict[str, Any]]]
    answer: str
    truncated: _Truncated


class TextPrediction(_Source):
    """A generated text (seq2seq, causal-lm)."""

    near_tie: NotRequired[Annotated[bool, Field(description=_TOKENS)]]


class OptionPrediction(_Source):
    """One of the options of a task or of a row (seq2seq, causal-lm)."""

    options: NotRequired[list[str]]
    probabilities: _Shares
    near_tie: NotRequired[_NearTie]


def _prediction_of(kind: Kind) -> Any:
    """Return the type of the predictions of a kind that has columns of its own."""
    types: dict[str, Any] = {"text": str | None, "int": int | None, "float": Share}
    parts = {key: str for key in kind.row_columns(pair=kind.always_pairs, options=False)}
    details = {name: types[detail] for name, detail in kind.details.items()}
    fields = {**get_type_hints(_Found, include_extras=True), **parts, "answer": str, **details}
    name = "".join(word.capitalize() for word in kind.name.split("-"))
    fields |= {"near_tie": NotRequired[_NearTie], "truncated": _Truncated}
    prediction_type: Any = TypedDict(f"{name}Prediction", fields)  # type: ignore[misc]
    setattr(prediction_type, "__pydantic_config__", ConfigDict(extra="forbid"))  # noqa: B010
    prediction_type.__doc__ = f"An answer and what is known of it ({kind.name})."
    return prediction_type


class NoPrediction(TypedDict):
    """A row that resembles no task's rows; beside these keys, it may have those of its nearest task's kind."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    task: None
    task_probability: Share
    known: _Known
    task_near_tie: bool
    runners_up: dict[str, Share]
    candidates: NotRequired[_Candidates]
    text: NotRequired[str]
    text_pair: NotRequired[str]
    tokens: NotRequired[str | list[str]]
    source: NotRequired[str]
    messages: NotRequired[str | list[dict[str, Any]]]
    options: NotRequired[list[str]]
    answer: None
    near_tie: NotRequired[None]
    truncated: NotRequired[_Truncated]


if TYPE_CHECKING:
    _Prediction = dict[str, Any]
else:
    _Prediction = Union[
        (
            *(LabelPrediction, LabelsPrediction, NumberPrediction, TagsPrediction, TextPrediction, OptionPrediction),
            *(ImagePrediction, *(_prediction_of(kind) for kind in kinds() if kind.details), NoPrediction),
        )
    ]


class Predictions(_Closed):
    """One record per row, in the order of the rows."""

    predictions: list[_Prediction]


class TaskEntry(_Closed):
    """A learned task."""

    task: str
    index: Annotated[int, Field(ge=0, description="Position in the chain of certificates.")]
    kind: KindName
    bank: str
    preset: str | None
    short: Annotated[str, Field(description="Short description of the bank.")]
    metric: str
    score: float | None
    split: Literal["validation", "test"]
    parameters: Annotated[int, Field(ge=0)]
    bytes: Annotated[int, Field(ge=0, description="Size on disk, certificate and routing statistics included.")]
    routing_bytes: Annotated[int, Field(ge=0, description="Size of its routing statistics, which is part of it.")]
    digest: str
    labels: list[str] | None
    pair: Annotated[bool, Field(description="Whether its rows are pairs of texts.")]
    routing: Annotated[bool, Field(description="Whether it can be found for rows without a task name.")]
    seal: str


class Task(TaskEntry):
    """A learned task with its certificate."""

    certificate: Annotated[dict[str, JsonValue], Field(description="The certificate, without the list of tensors.")]


class Tasks(_Closed):
    """All learned tasks, in the order of learning."""

    tasks: list[TaskEntry]


class Live(TypedDict):
    """The process is running."""

    live: Literal[True]


class Ready(_Closed):
    """Whether predictions are possible."""

    ready: bool
    tasks: Annotated[int, Field(ge=0, description="Number of learned tasks.")]
    why_not: NotRequired[str]


class Error(_Closed):
    """What is wrong."""

    code: Annotated[str, Field(description="One word for programs, such as unknown_task, busy or bad_row.")]
    message: str
    row: NotRequired[Annotated[int, Field(ge=1, description="1-based number of the row that the error is about.")]]


class Refusal(_Closed):
    """Why a request got no answer."""

    error: Error


def declared(
    answer: Any, *refusals: int, texts: dict[str, str] | None = None, unready: Any = Refusal
) -> dict[int | str, dict[str, Any]]:
    """Return the responses of a path, for FastAPI.

    Args:
        answer: the type of the JSON with which it answers; None if it answers only with texts.
        refusals: the statuses with which it may refuse a request, beside those of every path.
        texts: what it may answer instead of JSON, by media type.
        unready: the type of its response with status 503.
    """
    content = {media: {"schema": {"type": "string", "description": about}} for media, about in (texts or {}).items()}
    found: dict[int | str, dict[str, Any]] = {200: {"description": "The answer", "content": content, "model": answer}}
    for status in sorted({*refusals, *_ALWAYS}):
        found[status] = {"description": _PROBLEMS[status], "model": unready if status == 503 else Refusal}
        if answer is None:  # FastAPI would declare the model as a text
            del found[status]["model"]
            found[status]["content"] = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
        if about := _HEADERS.get(status):
            name, meaning = about
            schema = {"type": "integer" if name == "Retry-After" else "string"}
            found[status]["headers"] = {name: {"description": meaning, "schema": schema}}
    return found
