"""The ASGI application: paths, errors and access. See `continual_petl.serve.server` for the server that runs it.

A text that is streamed is sent as server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html). Events
without a name hold ``{"text": PIECE}``; the last one is ``end``, with the predictions as in any other response, or ``error``,
with the problem.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi_offline import FastAPIOffline
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import StreamingResponse

from continual_petl._version import VERSION
from continual_petl.errors import StoreError
from continual_petl.serve import responses
from continual_petl.serve.catalog import Catalog, KnownTask
from continual_petl.serve.local_engine import Engine, LocalEngine
from continual_petl.serve.problems import Problem, as_problem, gone, refused
from continual_petl.serve.request_handling import Gate, Metrics, read_request
from continual_petl.serve.request_rows import Asked, asked_of
from continual_petl.serve.request_schema import BODY, add_reference
from continual_petl.serve.responses import EVENTS, METRICS, declared
from continual_petl.serve.settings import ServeSettings

_T = TypeVar("_T")
_log = logging.getLogger("continual_petl.serve")
_ABOUT = """Predictions for all tasks of one run, each made by the bank of its task. A row and its prediction have the same
fields as in the output of `continual-petl predict --json`."""


def event(data: Any, name: str | None = None) -> bytes:
    r"""Return one event; its data is JSON in ASCII, so it is a single line for every client.

    Example:
        >>> event({"text": "a b"}, "end")
        b'event: end\ndata: {"text": "a b"}\n\n'
    """
    first = "" if name is None else f"event: {name}\n"
    return f"{first}data: {json.dumps(data)}\n\n".encode("ascii")


async def streamed(events: AsyncGenerator[bytes]) -> StreamingResponse:
    """Return the response that sends events; errors before the first event are raised here."""
    first = await anext(events)

    async def all_events() -> AsyncGenerator[bytes]:
        async with aclosing(events):
            yield first
            async for each in events:
                yield each

    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(all_events(), headers=headers, media_type="text/event-stream")


def make_app(folder: str | Path, settings: ServeSettings | None = None, *, engine: Engine | None = None) -> FastAPI:
    """Return the application that serves a run, for any ASGI server with one worker.

    Args:
        folder: the run folder.
        settings: how the run is served; host and port are left to the server.
        engine: computes the predictions; by default, the one that the settings name.

    Raises:
        InputError: if the folder holds no run, or the token cannot be read.
        StoreError: if the run's chain is broken, or entries are missing.

    Example::

        uvicorn.run(make_app("runs/mine"), host="127.0.0.1", port=8000)
    """
    settings = settings or ServeSettings()
    endpoint = _Endpoint(folder, settings, engine or engine_of(folder, settings))
    app = FastAPIOffline(
        redoc_url=None,
        redirect_slashes=False,
        title="continual-petl",
        version=VERSION,
        description=_ABOUT,
        lifespan=endpoint.lifespan,
        generate_unique_id_function=lambda route: route.name.strip("_"),
        exception_handlers=dict.fromkeys((Problem, StoreError, HTTPException, Exception), refused),
        middleware=[Middleware(Gate, settings=settings, metrics=endpoint.metrics)],
    )
    endpoint.add_to(app)
    add_reference(app, settings, endpoint.catalog.taken)
    return app


def engine_of(folder: str | Path, settings: ServeSettings) -> Engine:
    """Return the engine that settings name."""
    if settings.engine == "ray":
        from continual_petl.serve.ray_engine import RayEngine  # imports Ray

        return RayEngine(folder, settings)
    return LocalEngine(folder, settings)


class _Endpoint:
    """The paths of one application."""

    def __init__(self, folder: str | Path, settings: ServeSettings, engine: Engine) -> None:
        self._settings, self._token, self._engine = settings, settings.token(), engine
        self.catalog = Catalog(folder)
        """The learned tasks."""
        self.metrics = Metrics(engine, self.catalog)
        """Its counters."""
        self._why_not_ready: str | None = "loading"

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Start the engine and watch the folder; on shutdown, answer the requests that were accepted."""
        await self._engine.start(self.metrics.seen)
        await asyncio.to_thread(self.catalog.taken)  # reads all certificates, once
        self._why_not_ready = None
        watching = asyncio.create_task(self._watch())
        yield
        self._why_not_ready = "stopping"
        watching.cancel()
        await self._engine.stop()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._settings.watch_s)
            try:
                before = self.catalog.seals
                if await asyncio.to_thread(self.catalog.refresh):  # takes a while with many tasks
                    now = self.catalog.seals
                    new = sorted(task for task, seal in now.items() if before.get(task) != seal)
                    _log.info("tasks changed: added %s, removed %s", new, sorted(set(before).difference(now)))
                self._why_not_ready = None
            except (StoreError, OSError) as error:
                self._why_not_ready = "the run folder is damaged: see the log"
                _log.error("the run folder cannot be read: %s", error)

    def add_to(self, app: FastAPI) -> None:
        """Add the paths to an application."""
        allowed, no_token = ([], ()) if self._token is None else ([Depends(self._allowed)], (401,))
        add = partial(app.add_api_route, response_model=None)
        private = partial(add, dependencies=allowed)
        predicted = declared(responses.Predictions, *no_token, 404, 408, 409, 410, 415, 422, 429, 504, texts=EVENTS)
        private(
            "/v1/predict",
            self._predict,
            methods=["POST"],
            summary="Predict rows",
            responses=predicted,
            openapi_extra=BODY,
        )
        tasks, task = declared(responses.Tasks, *no_token), declared(responses.Task, *no_token, 404, 410)
        private("/v1/tasks", self._tasks, summary="All learned tasks", responses=tasks)
        private("/v1/tasks/{task}", self._task, summary="One task", responses=task)
        counted = {"responses": declared(None, *no_token, texts=METRICS), "response_class": PlainTextResponse}
        private("/metrics", self._counted, summary="Metrics for Prometheus", **counted)
        live, ready = declared(responses.Live), declared(responses.Ready, unready=responses.Ready | responses.Refusal)
        add("/health/live", self._live, summary="Whether the process is running", responses=live)
        add("/health/ready", self._ready, summary="Whether the endpoint is ready to predict", responses=ready)
        add("/", _page, include_in_schema=False, response_class=HTMLResponse)

    async def _allowed(
        self, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]
    ) -> None:
        token = "" if credentials is None else credentials.credentials
        if self._token is not None and not secrets.compare_digest(token.encode(), self._token.encode()):
            raise Problem(401, "no_token", "send the endpoint's token in the header Authorization: Bearer TOKEN")

    async def _predict(self, request: Request) -> Response:
        log: dict[str, object] = request.scope["state"]["log"]
        if self._why_not_ready:
            raise Problem(503, "not_ready", f"the endpoint is not ready: {self._why_not_ready}", retry_after=5)
        body = await read_request(request)
        asked = asked_of(body, self.catalog, self._settings)
        log |= {"rows": len(asked.rows), "tasks": sorted({task or "(find)" for task in asked.tasks})[:20]}
        if body.stream:
            return await streamed(self._events(asked, request))
        answer = asyncio.ensure_future(self._engine.answer(asked, self.catalog))
        predictions = await self._unless_gone(answer, request, self._settings.timeout_s)
        if self._settings.log_texts:
            log["predictions"] = predictions
        return _json({"predictions": predictions})

    async def _events(self, asked: Asked, request: Request) -> AsyncGenerator[bytes]:
        """Yield the pieces of a text as events, then its record, or the problem if one occurs after the first event."""
        loop, until, closed = asyncio.get_running_loop(), time.monotonic() + self._settings.timeout_s, False
        pieces: asyncio.Queue[str | None] = asyncio.Queue()

        def put(piece: str) -> None:
            """Pass on a piece from the thread that generates it; the exception ends the generation."""
            if closed:
                raise gone()
            if piece:
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        answer = asyncio.ensure_future(self._engine.answer(replace(asked, put=put), self.catalog))
        answer.add_done_callback(lambda _: pieces.put_nowait(None))
        begun = False
        try:
            while True:
                next_piece = asyncio.ensure_future(pieces.get())
                piece = await self._unless_gone(next_piece, request, until - time.monotonic())
                if piece is None:
                    break
                yield event({"text": piece})
                begun = True
            predictions = answer.result()
            if self._settings.log_texts:
                request.scope["state"]["log"]["predictions"] = predictions
            yield event({"predictions": predictions}, "end")
        except Exception as error:  # once the first event is sent, the status code cannot be changed
            if not begun:
                raise
            yield event(as_problem(error).to_json(), "error")
        finally:
            closed = True
            answer.cancel()

    async def _unless_gone(self, answer: asyncio.Future[_T], request: Request, seconds: float) -> _T:
        """Return the result of a future; cancel it and raise `Problem` if the client disconnects or time runs out."""
        left = asyncio.ensure_future(_gone(request))
        either: set[asyncio.Future[Any]] = {answer, left}
        try:
            await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            if left.done():
                raise gone()
            what = f"no prediction within {self._settings.timeout_s:g} s"
            raise Problem(504, "timed_out", f"{what}: send fewer rows, or try again when the load is lower")
        finally:
            answer.cancel()
            left.cancel()

    async def _tasks(self) -> Response:
        entries = []
        for task in list(self.catalog.seals):
            with suppress(Problem):  # it was forgotten meanwhile
                entries.append((await self._known(task)).entry)
            await asyncio.sleep(0)  # reading certificates takes a while, so other requests get a turn in between
        return _json({"tasks": entries})

    async def _known(self, task: str) -> KnownTask:
        """Return what is known of a task; if it cannot be read, the folder is read again, since it may be forgotten."""
        try:
            return self.catalog.task(task)
        except StoreError:
            if not await asyncio.to_thread(self.catalog.refresh):
                raise
            return self.catalog.task(task)

    async def _task(self, task: str) -> Response:
        known = await self._known(task)
        certificate = known.certificate.model_dump(mode="json", exclude={"tensors"})
        return _json(known.entry | {"certificate": certificate})

    async def _counted(self) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _live(self) -> Response:
        return _json({"live": True})

    async def _ready(self) -> Response:
        why = self._why_not_ready
        body = {"ready": why is None, "tasks": len(self.catalog.seals)}
        return _json(body if why is None else body | {"why_not": why}, 200 if why is None else 503)


def _json(value: Any, status: int = 200) -> Response:
    return Response(to_json(value, inf_nan_mode="null"), status, media_type="application/json")


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _page() -> HTMLResponse:
    return HTMLResponse(files("continual_petl.serve.pages").joinpath("index.html").read_text("utf-8"))
