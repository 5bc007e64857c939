"""What happens to every request: its host and body are checked, its JSON is read, and it is logged and counted."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from fastapi import Request
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from continual_petl.serve.catalog import Catalog
from continual_petl.serve.local_engine import Engine
from continual_petl.serve.logs import EXTRA, num_dropped
from continual_petl.serve.problems import Problem, gone
from continual_petl.serve.request_rows import PredictRequest, fault_of
from continual_petl.serve.settings import ServeSettings
from continual_petl.streams.reader.json_records import RepeatedKeyError, unrepeated

_log = logging.getLogger("continual_petl.serve")
_MAX_BODIES = 32
"""The bodies of all unanswered requests may take the memory of this many of the largest size."""
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics(Collector):
    """The metrics of one endpoint, for Prometheus.

    Args:
        engine: computes the predictions.
        catalog: the learned tasks.
    """

    def __init__(self, engine: Engine, catalog: Catalog) -> None:
        self._engine, self._catalog, self._registry = engine, catalog, CollectorRegistry()
        counter, histogram = partial(Counter, registry=self._registry), partial(Histogram, registry=self._registry)
        self.requests = counter("continual_petl_requests", "Requests by path and status", ("path", "status"))
        self.seconds = histogram("continual_petl_request_seconds", "Seconds per request", ("path",), buckets=_SECONDS)
        self._rows = counter("continual_petl_rows", "Computed rows, by queue", ("queue",))
        self._batch_rows = histogram("continual_petl_batch_rows", "Rows per batch, by queue", ("queue",), buckets=_ROWS)
        self._registry.register(self)

    def seen(self, queue: str, rows: int) -> None:
        """Count a batch."""
        self._rows.labels(queue).inc(rows)
        self._batch_rows.labels(queue).observe(rows)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the values that are read from engine and catalog whenever the metrics are requested."""
        waiting = GaugeMetricFamily("continual_petl_waiting_rows", "Waiting rows, by queue", labels=("queue",))
        for queue, rows in self._engine.num_waiting.items():
            waiting.add_metric((queue,), rows)
        yield waiting
        banks, size = self._engine.num_held
        yield GaugeMetricFamily("continual_petl_banks_in_memory", "Banks in memory", banks)
        yield GaugeMetricFamily("continual_petl_bank_bytes_in_memory", "Bytes of the banks in memory", size)
        yield GaugeMetricFamily("continual_petl_tasks", "Learned tasks", len(self._catalog.seals))
        yield CounterMetricFamily("continual_petl_dropped_log_lines", "Lines that the log has dropped", num_dropped())


class Gate:
    """Logs and counts every request, and refuses those from other hosts, and bodies that are too large or too slow.

    A body is measured while it arrives, since the headers may give a smaller size. Other hosts are refused so that pages of
    other sites cannot reach the endpoint.

    Args:
        app: the application.
        settings: how the run is served; the bodies of all unanswered requests may have 32 times `max_body_bytes`.
        metrics: counts the requests.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; afterwards log and count it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, until = time.perf_counter(), asyncio.get_running_loop().time() + self._settings.client_s
        status, read, incomplete = 499, 0, True  # the status if the client disconnects before there is a response

        async def limited() -> Message:
            nonlocal read, incomplete
            try:
                async with asyncio.timeout_at(until if incomplete else None):
                    message = await receive()
            except TimeoutError as error:
                what = f"the body of the request did not arrive within {self._settings.client_s:g} s"
                raise Problem(408, "too_slow", f"{what}: send it again") from error
            incomplete = message.get("more_body", False)
            size = len(message.get("body", b""))
            read += size
            self._held += size
            self._check_size(read)
            if self._held > _MAX_BODIES * self._settings.max_body_bytes:
                raise Problem(503, "busy", "the endpoint holds too many large requests: try again later", retry_after=1)
            return message

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        # Request handlers add fields, such as the number of rows.
        fields: dict[str, object] = scope.setdefault("state", {}).setdefault("log", {})
        try:
            await self._check_head(scope, receive)
            await self._app(scope, limited, observed)
        except Problem as problem:
            await problem.response()(scope, receive, observed)
        except Exception:
            status = 500  # an outer middleware sends the response
            raise
        finally:
            self._held -= read
            seconds = time.perf_counter() - started
            path = getattr(scope.get("route"), "path", "(other)")
            self._metrics.requests.labels(path, status).inc()
            self._metrics.seconds.labels(path).observe(seconds)
            shown = {"method": scope["method"], "path": path, "status": status, "ms": round(1000 * seconds, 1)}
            _log.info("request", extra={EXTRA: shown | fields})

    async def _check_head(self, scope: Scope, receive: Receive) -> None:
        headers = Headers(scope=scope)

        async def refuse(_: Message) -> None:
            host = f"the header Host is {headers.get('host', '')!r:.100}, which this endpoint does not allow"
            raise Problem(400, "bad_host", f"{host}: use its own name, or start it with --allowed-host NAME")

        await TrustedHostMiddleware(_nothing, self._settings.hosts, www_redirect=False)(scope, receive, refuse)
        declared = headers.get("content-length", "")
        self._check_size(int(declared) if declared.isdecimal() else 0)

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self._settings.max_body_bytes:
            what = f"the body of the request is larger than {self._settings.max_body_bytes:,} bytes"
            raise Problem(413, "too_large", f"{what}: send several requests")


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Stand in for the application where only the head of a request is checked."""


async def read_request(request: Request) -> PredictRequest:
    """Return the body of a request for predictions; FastAPI's own reading keeps the last value of a repeated key.

    Raises:
        Problem: if it cannot be read, or is not the body of such a request.
    """
    try:
        content = await request.body()
    except ClientDisconnect as error:
        raise gone() from error
    if content and not re.match(r"application/([\w.-]+\+)?json\s*(;|$)", request.headers.get("content-type", ""), re.I):
        message = "the body is not declared as JSON: send the header Content-Type: application/json"
        raise Problem(415, "bad_request", message)
    body = _strict_json(content) if content else None
    try:
        return PredictRequest.model_validate(body)
    except ValidationError as error:
        fault = fault_of(body, error.errors()[0]["loc"])
        raise Problem(422, "bad_request", f"{fault}; /docs describes a request") from error


def _strict_json(content: bytes) -> Any:
    try:
        # `int` refuses the words NaN and Infinity, which Python's parser would read.
        return json.loads(content, object_pairs_hook=unrepeated, parse_constant=int)
    except RepeatedKeyError as error:
        what = f"the body has the key {error.key!r:.80} twice in one object"
        raise Problem(422, "bad_request", f"{what}: give it once") from None
    except RecursionError:
        reason = "its brackets are nested too deeply; a request needs at most six levels"
    except UnicodeDecodeError as error:
        reason = f"byte {error.start + 1:,} is not UTF-8; encode the text as UTF-8"
    except json.JSONDecodeError as error:
        reason = f"character {error.pos + 1:,} is not valid JSON ({error.msg}); write it with a JSON library"
    except ValueError:
        reason = "it has NaN, an infinity, or a number with too many digits; a request needs no numbers"
    raise Problem(400, "bad_request", f"the body cannot be read as JSON: {reason}")
