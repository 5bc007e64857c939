"""The metrics of a task, and how a bank's outputs update them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torchmetrics import Metric, MetricCollection
from transformers import PreTrainedTokenizerBase

from continual_petl.heads.tag_scheme import TagReading
from continual_petl.heads.task_metrics import OwnMetric
from continual_petl.kind_registry import find_kind
from continual_petl.learner.generate import decode
from continual_petl.learner.respond import Outputs
from continual_petl.learner.task_bank import TaskBank
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.streams.encoding.rows import Texts


def make_metrics(
    kind: str,
    labels: Sequence[str] | None,
    metric: str | None = None,
    code: str | None = None,
    reading: TagReading | None = None,
    *,
    single_precision: bool = False,
) -> MetricCollection:
    """Return fresh metric objects for one split of one task.

    Each is updated with predictions and targets: the result of `Head.predictions` and the labels. For a generative task,
    they are the generated texts and the references, both lists of strings, together with ``sources=``, the source texts.

    Accuracy is micro-averaged: the share of rows (of words, for token-classification) predicted correctly. The default of
    torchmetrics is macro.

    Args:
        kind: name of the kind.
        labels: names in the order of the head's outputs, or the options of a generative task; None for tasks without either.
        metric: the metric that the task reports; added if it is one of `continual_petl.heads.metric_names.IF_CHOSEN`.
        code: for a user-defined function, the digest of its module's file; None leaves its score out.
        reading: how tags mark entities; without entities, there are no entity scores. None for banks learned before this was
            known.
        single_precision: see `TaskPlan.single_precision`.

    Raises:
        InputError: if the user has not allowed the function in this process; see `metric_code.load_metric`.
    """
    task_kind = find_kind(kind)
    scores: dict[str, Metric | MetricCollection] = task_kind.scores(
        labels, metric, reading=reading, single_precision=single_precision
    )
    if metric is not None and code is not None:
        scores["own"] = OwnMetric(task_kind, labels, metric, code)
    # torchmetrics guesses from the first batch which metrics can share state; separate states cost little.
    return MetricCollection(scores, compute_groups=False)


def metrics_of(plan: TaskPlan, *, own_metric: bool = True, alone: bool = False) -> MetricCollection:
    """Return fresh metrics for a split of a task.

    Args:
        plan: the task.
        own_metric: whether to also compute the user's own metric, if the task has one.
        alone: whether each process of a fit scores all rows, which must then not count twice.
    """
    code = plan.metric_code if own_metric else None
    scores = make_metrics(plan.kind, plan.labels, plan.metric, code, plan.tags, single_precision=plan.single_precision)
    if alone:
        for metric in scores.values():
            metric.distributed_available_fn = _alone
    return scores


def _alone() -> bool:
    return False


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
        metrics: from `metrics_of`.
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
