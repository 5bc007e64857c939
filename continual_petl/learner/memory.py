"""Reports that memory ran out in a batch, with the size of the batch and the settings that reduce it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

from continual_petl.backbones.weights import ran_out
from continual_petl.errors import MemoryRanOutError
from continual_petl.kind_registry import kind_of
from continual_petl.learner.task_plan import TaskPlan

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def oom_reported(task: str, batch: Mapping[str, Tensor], lower: str) -> Iterator[None]:
    """Raise `MemoryRanOutError` if memory runs out inside the ``with`` block.

    Args:
        task: name of the task.
        batch: the batch being computed.
        lower: the settings that the user can lower.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise MemoryRanOutError(
            f"task {task!r}: memory ran out in a batch of {_size(batch)} ({reason}). Lower {lower}, or free memory that "
            "other processes hold. Everything learned and saved before is kept; the same command resumes from there."
        ) from error


def report_oom(step: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Wrap a hook of the learner that computes or moves a batch; without a batch argument, the last batch is reported.

    ``self`` is a `ContinualLearner`, with ``plan``, ``training`` and ``last_batch``.
    """

    @functools.wraps(step)
    def wrapped(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        batch = next((value for value in (*args, *kwargs.values()) if isinstance(value, dict)), None)
        if batch is not None:
            self.last_batch = batch
        with oom_reported(self.plan.name, self.last_batch, _lower(self.plan, training=self.training)):
            return step(self, *args, **kwargs)

    return wrapped


def _lower(plan: TaskPlan, *, training: bool) -> str:
    ours = plan.training
    length = "backbone.max_length" if not kind_of(plan).reads_images else "the backbone's size"
    batch_size, budget = (ours.batch_size, ours.max_tokens) if training else ours.evaluation
    tokens = "" if budget is None else f", training.{'' if training else 'eval_'}max_tokens (it is {budget})"
    if training:
        less = "" if ours.gradient_checkpointing else " or training.gradient_checkpointing: true"
        return (
            f"training.batch_size (it is {batch_size}; to keep the rows per step, raise training.accumulate, which is "
            f"{ours.accumulate}){tokens} or {length}, or write training.precision: bf16 (it is {ours.precision}){less}"
        )
    texts = ", generation.max_new_tokens" if plan.generation is not None else ""
    return (
        f"training.eval_batch_size (it is {batch_size}){tokens}{texts} or {length}, or write "
        f"training.precision: bf16 (it is {ours.precision})"
    )


def _size(batch: Mapping[str, Any]) -> str:
    if "pixel_values" in batch:
        rows, *shape = batch["pixel_values"].shape
        return f"{rows} images of {' x '.join(map(str, shape))}"
    if "input_ids" not in batch:
        return "unknown size"
    rows, *several, longest = batch["input_ids"].shape
    targets = batch.get("labels")
    width = longest if targets is None or targets.dim() < 2 or several else targets.shape[1]
    more = f", targets up to {width}" if width != longest else ""
    sequences = f" x {several[0]} sequences" if several else ""
    return f"{rows} rows{sequences} x {longest} tokens (the longest row{more})"
