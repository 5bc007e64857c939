"""Turns the JSON of a request into rows, after checking the form and size of each.

A request that does not match the schema of requests is refused with status 422. What the schema cannot say, such as that the
form of a row is that of its own task, and not that of another one, is refused with 409.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from continual_petl.errors import InputError, counted, did_you_mean
from continual_petl.predictor.generate import check_generates
from continual_petl.predictor.records import Row, RowForm, standard_columns
from continual_petl.predictor.routes import MAX_CANDIDATES
from continual_petl.predictor.row_checks import check_request
from continual_petl.serve.accepted_rows import IMAGE, PAIR, TEXT, UNNAMED, AcceptedRows, Form, bare, in_words
from continual_petl.serve.catalog import Catalog
from continual_petl.serve.problems import Problem, bad_row, no_routing
from continual_petl.serve.settings import ServeSettings
from continual_petl.streams.encoding.images import pillow
from continual_petl.streams.schema.routing_spec import Reject
from continual_petl.streams.sources.conversations import messages_of

_IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Only formats that browsers and cameras write: Pillow starts other programs to read some of the other formats."""
_MAX_PIXELS = 2**25
"""A file of a few bytes can expand to gigabytes of pixels; this number of pixels takes about 400 MB during resizing."""


def _whole(value: Any) -> Any:
    """Return 3 for 3.0, which is the same number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class PredictRequest(BaseModel):
    """Rows to predict; `continual_petl.serve.request_schema` describes them completely."""

    model_config = ConfigDict(extra="forbid", strict=True)

    inputs: str | dict[str, Any] | list[Any]
    task: str | list[str | None] | None = None
    reject: Reject = None
    candidates: Annotated[Annotated[int, Field(ge=1, le=MAX_CANDIDATES)] | None, BeforeValidator(_whole)] = None
    stream: bool = False


_KEYS = {
    "inputs": "one row (a text or an object), or a list of rows",
    "task": "the name of a task, a list with a name or null for each row, or null",
    "reject": "a number above 0 and below 1, 'never' or null",
    "candidates": f"a whole number from 1 to {MAX_CANDIDATES}, or null",
    "stream": "true or false",
}


def fault_of(body: Any, place: Sequence[Any]) -> str:
    """Return what is wrong with the body of a request, in words.

    Args:
        body: the body; None if it is empty.
        place: the keys and indices that lead to the first value that `PredictRequest` does not allow.

    Example:
        >>> fault_of({"inputs": 5}, ("inputs",))
        'inputs: it is a number; give one row (a text or an object), or a list of rows'
    """
    if not isinstance(body, dict):
        got = "empty, or null" if body is None else in_json(body)
        return (
            f"the body is {got}; send an object with the key inputs, and optionally task, reject, candidates and stream"
        )
    key = str(place[0]) if place else ""
    if key not in _KEYS:
        return f"{key!r:.80} is not a key of a request{did_you_mean(key, _KEYS)}; allowed: {', '.join(_KEYS)}"
    if key not in body:
        return f"{key}: it is missing; give {_KEYS[key]}"
    value = body[key]
    if key == "task" and isinstance(value, list):
        number = next(n for n, name in enumerate(value, 1) if not isinstance(name, str | None))
        return f"task: element {number} of the list is {in_json(value[number - 1])}; give {_KEYS[key]}"
    number = key in ("reject", "candidates") and in_json(value) == "a number"
    shown = f"{value!r:.80}" if isinstance(value, str) or number else in_json(value)
    return f"{key}: it is {shown}; give {_KEYS[key]}"


@dataclass(frozen=True)
class Asked:
    """Rows of one request, each with its task; None if the task has to be found."""

    rows: Sequence[Row]
    tasks: Sequence[str | None]
    reject: Reject
    """The limit below which rows without a task get no prediction; None: that of each task."""
    numbers: Sequence[int]
    """1-based number of each row in the request."""
    candidates: int | None = None
    """Of each row without a task, the number of tasks that also predict it."""
    put: Callable[[str], None] | None = None
    """For one row of a task that generates text: called with each piece; an exception that it raises ends the generation."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @property
    def alone(self) -> bool:
        """Whether it must run in a batch of its own."""
        return self.put is not None

    def part(self, indices: Sequence[int]) -> Asked:
        """Return some of the rows."""
        return Asked(
            rows=[self.rows[index] for index in indices],
            tasks=[self.tasks[index] for index in indices],
            reject=self.reject,
            numbers=[self.numbers[index] for index in indices],
            candidates=self.candidates,
            put=self.put,
        )


def asked_of(request: PredictRequest, catalog: Catalog, settings: ServeSettings) -> Asked:
    """Return the rows of a request, after checking all of them.

    Raises:
        Problem: if there are too many rows, a task has not been learned, or a row is too long or has the wrong form.
    """
    values = request.inputs if isinstance(request.inputs, list) else [request.inputs]
    if not values:
        raise Problem(422, "no_rows", "inputs: the list is empty; give at least one row")
    if len(values) > settings.max_rows:
        raise _too_many_rows(f"{len(values):,} rows", settings.max_rows)
    tasks = request.task if isinstance(request.task, list) else [request.task] * len(values)
    if len(tasks) != len(values):
        what = f"task: {len(tasks):,} tasks for {len(values):,} rows"
        raise Problem(409, "bad_request", f"{what}; give one per row, or one for all")
    _check_options(values, tasks, catalog, settings.max_rows)
    for key, only in {"reject": "are rejected", "candidates": "have candidates"}.items():
        if getattr(request, key) is not None and None not in tasks:
            what = f"{key}: the request names the task of every row; only rows without a task {only}: leave it out"
            raise Problem(409, "bad_request", what)
    num_predictions = len(tasks) + ((request.candidates or 1) - 1) * tasks.count(None)
    if len(tasks) > 1 and num_predictions > settings.max_rows:
        what = f"{len(tasks):,} rows, which count as {num_predictions:,}, each once per candidate"
        raise _too_many_rows(what, settings.max_rows)
    rows: list[Row] = []
    taken, most = catalog.taken(), settings.max_characters
    for number, (value, task) in enumerate(zip(values, tasks, strict=True), 1):
        certificate = None if task is None else catalog.certificate(task)
        try:
            rows.append(
                _read(value, None if certificate is None else standard_columns(certificate), number, taken, most)
            )
        except Problem as problem:
            if problem.status != 422 or not _is_valid(value, tasks, taken, most):
                raise
            raise Problem(409, problem.code, problem.message, row=number) from problem
    for index, task in enumerate(tasks):
        try:
            if task is not None:
                check_request(rows, [index], catalog.certificate(task))
        except InputError as error:
            raise Problem(409, "bad_row", str(error), row=index + 1) from error
    if request.stream:
        _check_stream(tasks, catalog, settings)
    numbers = range(1, len(rows) + 1)
    reject = settings.reject if request.reject is None else request.reject
    return Asked(rows, tasks, reject, numbers, request.candidates)


def _check_options(values: Sequence[Any], tasks: Sequence[str | None], catalog: Catalog, max_rows: int) -> None:
    """Refuse several rows if they exceed the row limit, with each row counted once per option."""
    if len(tasks) == 1:
        return
    num_options = {task: len(catalog.certificate(task).options or (0,)) for task in {*tasks} if task is not None}
    total = 0
    for value, task in zip(values, tasks, strict=True):
        own = value.get("options") if isinstance(value, dict) else None
        total += len(own) if isinstance(own, list) else 1 if task is None else num_options[task]
    if total > max_rows:
        counts = f"which count as {total:,}, each row once per option of its task"
        raise _too_many_rows(f"{len(tasks):,} rows, {counts}", max_rows)


def _too_many_rows(rows: str, most: int) -> Problem:
    return Problem(413, "too_many_rows", f"inputs: {rows}; at most {most:,} are allowed: send several requests")


def _check_stream(tasks: Sequence[str | None], catalog: Catalog, settings: ServeSettings) -> None:
    if len(tasks) != 1 or tasks[0] is None:
        got = "a row without a task" if len(tasks) == 1 else counted(len(tasks), "row")
        raise Problem(422, "no_stream", f"stream: got {got}; give one row and the name of its task")
    try:
        check_generates(catalog.certificate(tasks[0]))
    except InputError as error:
        status = 409 if catalog.taken().streams and settings.streams else 422
        raise Problem(status, "no_stream", f"stream: {error}") from error


def _is_valid(value: Any, tasks: Sequence[str | None], taken: AcceptedRows, most: int) -> bool:
    """Return whether the schema allows a row in a request with these tasks, though it may not fit its own task."""
    if None in tasks and not taken.unnamed:
        return False
    forms: list[Form | None] = [None] if None in tasks else []
    if any(task is not None for task in tasks):
        forms += taken.named
    for form in forms:
        try:
            _read(value, form, 1, taken, most)
        except Problem as problem:
            if problem.status == 422:
                continue
        return True
    return False


def _read(value: Any, form: Form | None, number: int, taken: AcceptedRows, most: int) -> Row:
    """Return one row in the form that `Run.predict` takes; checks that depend on the bank come later.

    Args:
        value: the row in JSON.
        form: the form of the rows of its task; None: the task has to be found.
        number: 1-based number of the row.
        taken: what the tasks of the run take.
        most: maximum number of characters.
    """
    if form is None and not taken.unnamed:
        raise no_routing()
    named = form is not None
    must = f"each row must be {taken.in_words() if form is None else in_words(form, named=True)}"
    columns = _columns(value, form, number, taken, must)
    if form is None and (found := taken.objects()[columns]) not in taken.unnamed:
        reason = "no task that can be found without a name accepts such rows: name the task; without it"
        raise bad_row(number, f"it is {UNNAMED[found][0]}, and {reason}, {must}")
    if columns == IMAGE:
        return _image(value["image"], number)
    record = (
        value if isinstance(value, dict) else dict(zip(columns, [value] if len(columns) == 1 else value, strict=True))
    )
    is_text = named and isinstance(
        record[columns[0]], str
    )  # words and a conversation may be a text if the task is known
    holds = columns[0] if columns[0] in ("tokens", "messages") and not is_text else "text"
    reads, parts = RowForm("a request", columns, holds, options=columns[-1] == "options"), []
    for place, name in enumerate(columns):
        if name == "options" and not isinstance(record[name], list):
            raise bad_row(number, f"{name}: it is {in_json(record[name])}, not a list; {must}")
        try:
            found = reads.read(place, record[name])
        except ValueError as error:
            raise bad_row(number, f"{name}: {error}; {must}") from error
        as_sent = holds == name == "messages" and isinstance(record[name], list)  # an answer has the row as it was sent
        parts.append(record[name] if as_sent else found)
    row = parts[0] if len(parts) == 1 else tuple(parts)
    if (length := sum(map(len, _texts(row)))) > most:
        what = f"{length:,} characters; at most {most:,} are allowed: shorten it"
        raise bad_row(number, what, status=413, code="too_many_characters")
    return row


def _columns(value: Any, form: Form | None, number: int, taken: AcceptedRows, must: str) -> Form:
    """Return the keys that a row has, or those that a text or a list stands for."""
    if form is not None and (form[-1] == "options") != (beside := isinstance(value, dict) and "options" in value):
        raise bad_row(number, f"it has {'options' if beside else 'no options'}; {must}")
    if isinstance(value, dict):
        for columns in taken.objects() if form is None else (form,):
            if {*columns} == {*value}:
                return columns
        raise bad_row(number, f"it has the keys {', '.join(map(repr, sorted(value))) or 'none'}; {must}")
    ways = {"Text": TEXT, "Pair": PAIR} if form is None else dict.fromkeys(bare(form, named=True), form)
    written = ["Text"] if isinstance(value, str) else ["Words", "Messages"] if isinstance(value, list) else []
    if isinstance(value, list) and len(value) == 2 and all(isinstance(text, str) for text in value):
        written.append("Pair")
    for way in written:
        if way in ways:
            return ways[way]
    raise bad_row(number, f"it is {in_json(value)}; {must}")


def _texts(row: Row) -> Iterator[str]:
    """Yield all texts of a row."""
    if isinstance(row, str):
        yield row
    elif any(isinstance(part, dict) for part in row):
        yield from (message["content"] for message in messages_of(row))
    else:
        yield from chain.from_iterable(map(_texts, row))


_JSON = {str: "a text", list: "a list", dict: "an object", int: "a number", float: "a number", type(None): "null"}


def in_json(value: Any) -> str:
    """Return what a value is in JSON, for messages."""
    return str(value).lower() if isinstance(value, bool) else _JSON[type(value)]


def _image(value: Any, number: int) -> Row:
    try:
        # Tools that write base64 end it with a line feed.
        content = base64.b64decode(value.removesuffix("\n") if isinstance(value, str) else value, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise bad_row(number, "image: it is not base64; give the bytes of an image file in base64") from error
    try:
        with pillow().open(io.BytesIO(content), formats=_IMAGE_FORMATS) as opened:  # reads its size, not its pixels
            width, height = opened.size
    except Exception as error:  # Pillow raises many kinds of exceptions for broken files
        reason = f"image: it cannot be read; allowed formats are {', '.join(_IMAGE_FORMATS)}"
        raise bad_row(number, reason, status=409) from error
    if width * height > _MAX_PIXELS:
        what = f"image: it has {width:,} x {height:,} pixels; at most {_MAX_PIXELS:,} are allowed: make it smaller"
        raise bad_row(number, what, status=413, code="too_many_pixels")
    return {"bytes": content}
