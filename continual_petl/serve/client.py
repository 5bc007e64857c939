"""A client for the endpoint that `continual-petl serve` starts, based on httpx2."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx2

from continual_petl.errors import InputError
from continual_petl.predictor.records import UNNAMED, Record
from continual_petl.streams.schema.containers import plain, record_of, rows_in
from continual_petl.streams.schema.routing_spec import Reject, check_reject

_log = logging.getLogger(__name__)


class EndpointError(RuntimeError):
    """The endpoint refused a request, or failed to answer it.

    Args:
        status: the HTTP status.
        code: one word, such as ``unknown_task``, ``busy`` or ``bad_row``.
        message: what is wrong, in one paragraph.
        row: 1-based number of the row that the error is about; None if it is about the whole request.
        retry_after: seconds after which the same request may be sent again.
    """

    def __init__(
        self, status: int, code: str, message: str, *, row: int | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.row, self.retry_after = status, code, row, retry_after


class Client(httpx2.Client):
    """Requests predictions from an endpoint; its other paths, such as ``/metrics``, are read by the methods of httpx2.

    Args:
        url: the endpoint's address.
        token: the endpoint's token, if it requires one; it is part of every request that this client sends.
        timeout: seconds to wait for a response.
        transport: sends the requests; for tests.

    Example::

        with Client("http://127.0.0.1:8000") as client:
            client.predict("How far is the moon?")["answer"]
            client.predict(["one text", "another"], task=["trec", "sst2"])
    """

    def __init__(
        self, url: str, *, token: str | None = None, timeout: float = 60, transport: httpx2.BaseTransport | None = None
    ) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        super().__init__(base_url=url, headers=headers, timeout=timeout, transport=transport)

    def predict(
        self,
        inputs: Any,
        task: str | Sequence[str | None] | None = None,
        *,
        reject: Reject = None,
        candidates: int | None = None,
    ) -> Any:
        """Return the record of one row, or a list with one record per row.

        Args:
            inputs: a text, a tuple, or an object such as ``{"text": ..., "text_pair": ...}``, is one row; a list holds
                several. In a list, a pair may be a list of two texts; an image is ``{"image": BASE64}``. Instead of a list,
                any container that `streams.schema.containers.rows_in` reads; the rows of a table are objects with all of its
                columns.
            task: the task of all rows, or one per row; None: the endpoint finds the task of each row.
            reject: rows without a task get no prediction if their share ``known`` is below this number; ``never``: every row
                gets one; None: the endpoint's setting.
            candidates: of each row without a task, also return the predictions of so many of its most probable tasks.

        Raises:
            InputError: if ``inputs`` cannot be sent as JSON, or ``reject`` is not a limit.
            EndpointError: if the endpoint refuses the request.
            httpx2.TransportError: if the endpoint cannot be reached.
        """
        single = isinstance(inputs, str | tuple | Mapping) or _is_record(inputs)
        rows = _row(inputs) if single else [_row(row) for row in rows_in(inputs, "inputs")]
        if isinstance(inputs, tuple):
            rows = [rows]  # as JSON, a tuple is a list, which would be several rows
        check_reject(reject)
        body = {"inputs": rows, "task": task if isinstance(task, str | None) else rows_in(task, "task")}
        body |= {key: value for key, value in {"reject": reject, "candidates": candidates}.items() if value is not None}
        records: list[Record] = self._answer(self.post("/v1/predict", json=_plain(body)))["predictions"]
        return records[0] if single else records

    def generate(self, row: Any, task: str) -> Iterator[str]:
        """Yield the text that a task generates for one row, in pieces, as it is generated.

        If the row is too long, so that only a part of it was read, a warning is logged at the end.

        Args:
            row: one row; see `predict`.
            task: a task that generates text without beam search.

        Raises:
            EndpointError: if the endpoint refuses the request, or the text is cut off.
            httpx2.TransportError: if the endpoint cannot be reached.
        """
        body = {"inputs": [row], "task": task, "stream": True}
        with self.sse("/v1/predict", method="POST", json=_plain(body)) as events:
            if not events.response.is_success:
                events.response.read()
                self._answer(events.response)
            for event in events:
                data: Any = event.json()
                if event.event == "end":
                    if data["predictions"][0].get("truncated"):
                        _log.warning(
                            "the row is longer than the tokens that task %r reads, so only a part was read", task
                        )
                    return
                if event.event == "error":
                    error = data["error"]
                    raise EndpointError(200, error["code"], error["message"], row=error.get("row"))
                yield data["text"]
        raise EndpointError(200, "cut_off", "the connection was closed before the text ended: send the request again")

    def tasks(self) -> list[dict[str, Any]]:
        """Return the learned tasks: name, kind, labels, metric, score, size and seal of each.

        Raises:
            EndpointError: if the endpoint refuses the request.
        """
        tasks: list[dict[str, Any]] = self._answer(self.get("/v1/tasks"))["tasks"]
        return tasks

    def task(self, name: str) -> dict[str, Any]:
        """Return one task with its certificate.

        Raises:
            EndpointError: if the task has not been learned, or was forgotten.
        """
        task: dict[str, Any] = self._answer(self.get(f"/v1/tasks/{name}"))
        return task

    @staticmethod
    def _answer(response: httpx2.Response) -> Any:
        if response.is_success:
            return response.json()
        try:
            error = response.json()["error"]
            code, message, row = error["code"], error["message"], error.get("row")
        except (ValueError, KeyError, TypeError):
            code, message, row = "http", response.text[:500], None
        after = response.headers.get("retry-after", "")
        raise EndpointError(
            response.status_code, code, message, row=row, retry_after=int(after) if after.isdigit() else None
        )


def _is_record(inputs: Any) -> bool:
    """Return whether this is a named tuple or the like, which is one row.

    Raises:
        InputError: for a Series of pandas that may as well be several rows.
    """
    record = None if isinstance(inputs, list) else record_of(inputs)
    if record is not None and hasattr(inputs, "isna") and {*UNNAMED} & {*record}:
        raise InputError(
            "inputs: got a Series of pandas whose index names columns, so that it may be one row or several: give "
            "series.to_dict() for one row, or series.tolist() for several"
        )
    return record is not None and not hasattr(inputs, "isna")


def _row(row: Any) -> Any:
    record = record_of(row)
    return plain(row) if record is None else {name: plain(cell) for name, cell in record.items()}


def _plain(body: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a request, after checking that it can be written as JSON."""
    try:
        json.dumps(body)
    except (TypeError, ValueError) as error:
        raise InputError(f"inputs: {error}; give texts, lists and mappings of texts") from error
    return body
