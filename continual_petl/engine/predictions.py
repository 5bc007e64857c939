"""How an opened run predicts rows, with or without a task name, and finds similar tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from continual_petl._process import heavy_imports
from continual_petl.errors import InputError

# Opening a run needs no torch; see `continual_petl.engine.run`.
if TYPE_CHECKING:
    from continual_petl.engine.session import Session
    from continual_petl.heads.words import Answer
    from continual_petl.predictor.one_or_many import OneOrSeveral, OneRow, Row
    from continual_petl.predictor.routed import RoutedAnswer, Unknown


class Predictions(ABC):
    """The methods of `Run` that predict rows and find similar tasks."""

    @property
    @abstractmethod
    def session(self) -> Session:
        """The session: the stream and its run folder, with backbones and banks in memory."""

    @abstractmethod
    def check_learned(self, task: str) -> None:
        """Raise `InputError` unless the task is learned."""

    @overload
    def predict(
        self, rows: OneRow, task: None = None, *, batch_size: int = 32, unknown: Unknown = "reject"
    ) -> RoutedAnswer: ...
    @overload
    def predict(
        self, rows: Row | Sequence[Row], task: None = None, *, batch_size: int = 32, unknown: Unknown = "reject"
    ) -> RoutedAnswer | list[RoutedAnswer]: ...
    @overload
    def predict(self, rows: OneRow, task: str, *, batch_size: int = 32) -> Answer: ...
    @overload
    def predict(self, rows: OneOrSeveral, task: str, *, batch_size: int = 32) -> Answer | list[Answer]: ...
    @overload
    def predict(self, rows: Sequence[Row], task: str | Sequence[str], *, batch_size: int = 32) -> list[Answer]: ...
    def predict(
        self,
        rows: Row | Sequence[Row],
        task: str | Sequence[str] | None = None,
        *,
        batch_size: int = 32,
        unknown: Unknown | None = None,
    ) -> Answer | list[Answer] | RoutedAnswer | list[RoutedAnswer]:
        """Return the prediction for one row, or a list of predictions for several rows, each by the bank of its row's task.

        Without a task, the run finds the task of each row and also returns its probability; see
        `predictor.routed`.

        Args:
            rows: texts, pairs of texts, conversations, lists of words or images in a list or another container, a table with
                the columns of the task (such as a DataFrame), or a single row; see `Predictor.predict`. The predictions are
                in the order of the rows.
            task: the learned task whose bank predicts, or a list with one task per row; None lets the run find the task of
                each row, among the tasks that were learned with ``routing``.
            batch_size: rows per batch.
            unknown: allowed only without a task. ``reject``, the default: a row that does not resemble the rows of any task
                gets no prediction; ``nearest``: the bank of the most probable task predicts it.

        Example::

            run.predict("How far is the moon?", task="topics").value
            [answer.value for answer in run.predict(["one text", "and another"], task="topics")]
            run.predict("How far is the moon?").task  # found by the run
        """
        if task is None:
            with heavy_imports():
                from continual_petl.predictor.routed import predict_routed

            return predict_routed(self.session.models, rows, batch_size=batch_size, unknown=unknown or "reject")
        if unknown is not None:
            raise InputError(f"unknown: got {unknown!r}, but a task was named: leave one of the two out")
        with heavy_imports():
            from continual_petl.predictor.predictor import Predictor  # imports torch and transformers

        return Predictor(self.session.models).predict(rows, task, batch_size=batch_size)

    def stream(self, row: OneRow | OneOrSeveral, task: str) -> Iterator[str]:
        """Return the text that a task generates for one row, in pieces, while it is generated.

        Joined together, the pieces are exactly the text that `predict` returns, without a stop string and without leading or
        trailing spaces. Closing the iterator stops the generation.

        Args:
            row: a single row; see `predict`.
            task: a learned seq2seq or causal-lm task that generates without beams.

        Raises:
            InputError: if the task is not learned, generates no text or uses beams, or the row cannot be used; raised here,
                before the first piece.

        Example::

            for piece in run.stream("How far is the moon?", task="answers"):
                print(piece, end="", flush=True)
        """
        self.check_learned(task)
        with heavy_imports():
            from continual_petl.predictor.streamed import stream

        return stream(self.session.models, row, task)

    def similar(self, target: str | Sequence[Row]) -> dict[str, float]:
        """Return the distance of each learned task from the given task or rows, nearest first.

        Args:
            target: a learned task, which is left out of the result, or rows, all of one type, as in `predict`.

        Example::

            run.similar("sst2")  # {"yelp": 21.3, "trec": 34.0}
            run.similar(["some new text", "and another"])
        """
        with heavy_imports():
            from continual_petl.predictor.similar import similar_tasks

        return similar_tasks(self.session.models, target)

    @overload
    def predict_all(self, rows: OneRow, tasks: Sequence[str], *, batch_size: int = 32) -> dict[str, Answer]: ...
    @overload
    def predict_all(
        self, rows: OneOrSeveral, tasks: Sequence[str], *, batch_size: int = 32
    ) -> dict[str, Answer] | dict[str, list[Answer]]: ...
    @overload
    def predict_all(
        self, rows: Sequence[Row], tasks: Sequence[str], *, batch_size: int = 32
    ) -> dict[str, list[Answer]]: ...
    def predict_all(
        self, rows: Row | Sequence[Row], tasks: Sequence[str], *, batch_size: int = 32
    ) -> dict[str, Answer] | dict[str, list[Answer]]:
        """Return the predictions of several tasks for the same row or rows; see `Predictor.predict_all`."""
        with heavy_imports():
            from continual_petl.predictor.predictor import Predictor

        return Predictor(self.session.models).predict_all(rows, tasks, batch_size=batch_size)

    def pipeline(self, task: str) -> Callable[..., Any]:
        """Return a function that maps one row or a list of rows to the task's predictions; see `Predictor.predict`.

        Args:
            task: a learned task.

        Raises:
            InputError: if the task is not learned.

        Example::

            classify = run.pipeline("agnews")
            classify("some text").value
        """
        self.check_learned(task)
        return partial(self.predict, task=task)
