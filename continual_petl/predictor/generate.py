"""The text that a task generates for one row, piece by piece, while it is generated."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from continual_petl.errors import InputError, counted
from continual_petl.kind_registry import names_where
from continual_petl.learner.generate import Decoding
from continual_petl.learner.memory import oom_reported
from continual_petl.learner.respond import respond
from continual_petl.learner.streaming import Put
from continual_petl.predictor.given import Given
from continual_petl.predictor.records import Row, truncation_notice
from continual_petl.predictor.row_checks import Request, check_request
from continual_petl.store.bank_cache import CachedBank
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.model_cache import ModelCache
from continual_petl.streams.batches.loaders import EvaluationLoader

_log = logging.getLogger(__name__)


def check_generates(certificate: Certificate) -> None:
    """Raise `InputError` unless a task generates its texts from beginning to end, so that they can be shown in pieces."""
    if certificate.generation is None:
        reason = (
            f"is a {certificate.kind} task, which"
            if certificate.options_from is None
            else "chooses among its options, and"
        )
        raise InputError(
            f"task {certificate.task!r} {reason} generates no text; only texts of "
            f"{' and '.join(sorted(names_where('generates')))} tasks can be shown while they are generated: use predict"
        )
    if certificate.generation.num_beams > 1:
        raise InputError(
            f"task {certificate.task!r} generates with {certificate.generation.num_beams} beams, and only at the end "
            "is it known which one becomes the text: use predict, or learn the task with num_beams: 1"
        )


def generation_of(models: ModelCache, row: Row, task: str) -> tuple[bool, Callable[[Put], bool]]:
    """Check and encode a row, load the bank, and return the function that generates the text.

    Args:
        models: the run's backbone and banks.
        row: one row; see `Predictor.predict`.
        task: a learned task.

    Returns:
        Whether the row was truncated; and a function that calls its argument after every token with the next piece, which may
        be empty, and returns whether the text was nearly another one; an exception raised by the argument ends the
        generation.

    Raises:
        InputError: if the row cannot be used, or the task's texts cannot be shown in pieces.
    """

    def checked() -> tuple[Request, CachedBank]:
        certificate = models.store.certificate(task)
        check_generates(certificate)
        given = Given(models.store, row, [task], single=True)
        if not given.one:
            raise InputError(f"row: got a list of {counted(len(given), 'row')}; give a single row without a list")
        return check_request(given.rows(task), [0], certificate), models.held(task)

    asked, held = models.store.consistently(checked, task)
    device = held.backbone.model.device
    encoded = asked.encoded(models)
    (batch,) = EvaluationLoader(encoded, 1, models.pad_token_id, kind=asked.certificate.kind)

    def generated(put: Put) -> bool:
        near = list[bool]()
        held.backbone.model.train(False)
        with oom_reported(task, batch, "max_new_tokens, or shorten the row"), held.attending():
            tensors = {name: tensor.to(device) for name, tensor in batch.items()}
            respond([held], tensors, decoding=Decoding(tokenizer=models.tokenizer, put=put, near_ties=near))
        return near[0]

    return encoded.is_truncated(0), generated


def generate(models: ModelCache, row: Row, task: str) -> Iterator[str]:
    """Return an iterator over the pieces of the text; see `continual_petl.engine.run.Run.generate`."""
    truncated, generated = generation_of(models, row, task)
    if truncated:  # pieces of a text cannot say it
        _log.warning("%s", truncation_notice(1, 1, [models.store.certificate(task)]))
    return _pieces(generated)


class _Closed(Exception):
    """Ends the generation when the pieces are no longer read."""


def _pieces(generated: Callable[[Put], bool]) -> Iterator[str]:
    queue: SimpleQueue[str | BaseException | None] = SimpleQueue()
    closed = threading.Event()

    def put(piece: str) -> None:
        if closed.is_set():
            raise _Closed
        queue.put(piece)

    def work() -> None:
        try:
            generated(put)
            queue.put(None)
        except BaseException as error:  # raised again where the pieces are read
            queue.put(error)

    thread = threading.Thread(target=work, name="generate", daemon=True)
    thread.start()
    try:
        while (piece := queue.get()) is not None:
            if isinstance(piece, BaseException):
                raise piece
            if piece:
                yield piece
    finally:
        closed.set()
        thread.join()
