"""Updates the metrics of a task with a bank's outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from continual_petl.learner.generate import decode
from continual_petl.learner.respond import Outputs
from continual_petl.learner.task_bank import TaskBank
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.streams.encoding.rows import Texts

if TYPE_CHECKING:
    from torchmetrics import MetricCollection  # takes over a second to import, and is not needed for predictions


def count(
    metrics: MetricCollection,
    own: TaskBank,
    outputs: Outputs,
    labels: Tensor | None = None,
    texts: Texts | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> None:
    """Update the metrics of a task with a bank's outputs.

    Args:
        metrics: from `make_scores`.
        own: the task and its bank.
        outputs: its outputs for some rows; for token-classification, a tag index for every token.
        labels: labels of these rows; None for texts.
        texts: for generated and extracted texts, their references and sources.
        tokenizer: for generated texts, the backbone's tokenizer.
    """
    if isinstance(outputs, list):
        assert tokenizer is not None
        assert texts is not None
        assert own.plan.generation is not None
        generated = decode(tokenizer, outputs, own.plan.generation.stop)
        metrics.update(generated, list(texts.references), sources=texts.sources)
    elif texts is not None:
        metrics.update(own.kind.extracted(outputs.cpu(), texts), list(texts.references))
    else:
        metrics.update(outputs if own.kind.per_word else own.head.predictions(outputs), labels)


def texts_of(plan: TaskPlan, loader: Any, index_B: Tensor) -> Texts:
    """Return the full texts of a batch's rows; the batch itself may contain truncated ones.

    Args:
        plan: the task.
        loader: the loader of the batch; its ``rows`` must hold the texts, as with the loaders of `TaskDataModule`.
        index_B: indices of the rows.

    Raises:
        TypeError: if the loader has no such texts.
    """
    texts = getattr(getattr(loader, "rows", None), "texts", None)
    if texts is None:
        raise TypeError(
            f"task {plan.name!r}: texts are scored against the references of the rows, which this loader "
            f"({type(loader).__name__}) does not have: use the loaders of TaskDataModule."
        )
    assert isinstance(texts, Texts)
    return texts.take(index_B.tolist())
