"""Score one bank on one split: every row is predicted once; scores, digest and a summary are made from the predictions.

The summary is compact: a confusion matrix, pairs of numbers, or some texts.

Shape suffixes: N rows (in a confusion matrix of tags: words), W words of the longest row, C outputs or labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from continual_petl.backbones.attention_switch import attending
from continual_petl.backbones.backbone import Backbone
from continual_petl.backbones.device import staying
from continual_petl.digests import combined_digest, tensor_digest
from continual_petl.engine.session import Session
from continual_petl.engine.trainers import predicting_trainer, predicts_here, quiet
from continual_petl.errors import InputError, why_unavailable
from continual_petl.heads.calibration import calibration_errors
from continual_petl.heads.head import IGNORED
from continual_petl.kind_registry import kind_of
from continual_petl.learner import ContinualLearner
from continual_petl.learner.generate import decode
from continual_petl.learner.metrics import count, metrics_of
from continual_petl.learner.respond import Outputs
from continual_petl.learner.task_bank import head_of
from continual_petl.store.certificate.environment import current_environment
from continual_petl.store.certificate.finding import Finding
from continual_petl.store.certificate.history import Answered, Confusion, PerLabel, Points, Sample, Samples
from continual_petl.store.certificate.values import SplitScores
from continual_petl.store.model_cache import ModelCache
from continual_petl.streams.batches.loaders import EvaluationLoader
from continual_petl.streams.encoding.tokenise import TokenisedRows
from continual_petl.streams.schema.data_spec import SplitName
from continual_petl.streams.schema.stream_spec import TaskSpec


@contextmanager
def predicting(
    models: ModelCache, task: str, *, as_committed: bool = False
) -> Iterator[tuple[ContinualLearner, Backbone]]:
    """Activate a learned task's bank inside the ``with`` block, with the attention implementation that its certificate names.

    Args:
        models: the run's backbone and banks.
        task: a learned task.
        as_committed: see `ModelCache.held`.

    Yields:
        The learner, and its backbone with this attention implementation.
    """
    learner = models.resident(task, as_committed=as_committed)
    with attending(learner.backbone, models.store.certificate(task).environment.attention) as backbone:
        yield learner, backbone


def outputs_of(session: Session, learner: ContinualLearner, rows: TokenisedRows) -> list[Any]:
    """Return the active bank's output for each row, in the order of the rows.

    Args:
        session: the run; its stream says on which device rows are predicted.
        learner: the learner, with the bank active.
        rows: the split.

    Returns:
        Outputs (C,); for token-classification the tag index of every word; for generative tasks a list of token ids; if each
        row has its own options, their scores, padded with -inf to the largest number of options in any row; for kinds that
        extract, what `Kind.kept` returns.
    """
    arguments, (batch_size, max_tokens) = session.spec.trainer, learner.plan.training.evaluation
    loader = EvaluationLoader(
        rows, batch_size, session.models.pad_token_id, kind=learner.plan.kind, max_tokens=max_tokens
    )
    if predicts_here(arguments):
        batches = _plainly(learner, loader)
    else:
        with quiet(), staying(learner, learner.model.device):
            trainer = predicting_trainer(arguments, session.folder)
            batches = cast(list[tuple[Outputs, Tensor]], trainer.predict(learner, dataloaders=loader))
    row_outputs: list[Any] = [None] * len(rows)
    for outputs, index in batches:
        for row, number in zip(outputs if isinstance(outputs, list) else outputs.cpu(), index.tolist(), strict=True):
            row_outputs[number] = row if rows.first_piece is None else row[rows.places_of_words(number)]
    if rows.option_texts is not None:
        return list(pad_sequence(row_outputs, batch_first=True, padding_value=-torch.inf))
    return row_outputs


@torch.inference_mode()
def _plainly(learner: ContinualLearner, loader: EvaluationLoader) -> list[tuple[Outputs, Tensor]]:
    """Predict as Lightning's ``predict`` does, but without a Trainer, which takes longer to create than to run."""
    with learner.evaluating():
        return [(_predicted(learner, batch, number), batch["index"]) for number, batch in enumerate(loader)]


def _predicted(learner: ContinualLearner, batch: dict[str, Tensor], number: int) -> Outputs:
    """Return the outputs for one batch, on the CPU."""
    there = learner.transfer_batch_to_device(batch, learner.model.device, dataloader_idx=0)
    outputs, _ = learner.predict_step(there, number)
    return outputs if isinstance(outputs, list) else outputs.cpu()


def evaluate(
    session: Session, learner: ContinualLearner, rows: TokenisedRows, *, own_metric: bool = True
) -> SplitScores:
    """Score the active bank on a split; ``own_metric``: also by the user's own metric, if the task has one."""
    return score(learner, rows, outputs_of(session, learner, rows), own_metric=own_metric)


def score(learner: ContinualLearner, rows: TokenisedRows, found: list[Any], *, own_metric: bool = True) -> SplitScores:
    """Score the active bank's outputs for the rows of a split; see `outputs_of` and `evaluate`."""
    plan, own = learner.plan, learner.task_bank(learner.plan.name)
    scores = metrics_of(plan, own_metric=own_metric, alone=True)  # other processes of a fit do not take part
    errors: dict[str, float] = {}
    if plan.generation is not None:
        count(scores, own, found, None, rows.texts, learner.tokenizer)
        digest = combined_digest({"token_ids": found})
    elif kind_of(plan).per_word:
        count(scores, own, pad_sequence(found, batch_first=True), _padded(labels_of_words(rows)))
        digest = tensor_digest(torch.cat(found))
    else:
        outputs_NC, texts = torch.stack(found), rows.texts if plan.predicts_texts else None
        labels = None if texts else torch.tensor(rows.labels)
        count(scores, own, outputs_NC, labels, texts)
        errors = calibration_errors(own.head.decision, outputs_NC, labels)
        digest = tensor_digest(own.head.predictions(outputs_NC))
    values = {name: float(value) for name, value in scores.compute().items()}
    values |= errors
    return SplitScores(
        num_examples=len(rows),
        # A correlation of constant predictions is undefined; JSON and the schema have no NaN and no infinity.
        scores={name: value for name, value in values.items() if math.isfinite(value)},
        predictions=digest,
    )


def labels_of_words(rows: TokenisedRows) -> list[Tensor]:
    """Return the true tag indices of every row's words."""
    assert rows.labels is not None
    return [torch.tensor(rows.row(number).label)[rows.places_of_words(number)] for number in range(len(rows))]


def _padded(labels: list[Tensor]) -> Tensor:
    """Stack labels into (N, W), with -100 after the last word of each row."""
    return pad_sequence(labels, batch_first=True, padding_value=IGNORED)


MAX_CELLS = 2_000
MAX_POINTS = 500
MAX_TEXTS = 5
MAX_CHARACTERS = 400


def answered(learner: ContinualLearner, rows: TokenisedRows, found: Sequence[Any], *, references: bool) -> Answered:
    """Return a summary of a bank's predictions.

    Args:
        learner: the learner, with the bank active.
        rows: the rows of the split.
        found: the bank's output for each row; see `outputs_of`.
        references: whether the store may keep text from the data.
    """
    plan, head = learner.plan, head_of(learner.active_bank)
    if plan.generation is not None:
        assert learner.tokenizer is not None
        indices = _spaced(len(rows), MAX_TEXTS)
        texts = decode(learner.tokenizer, [found[index] for index in indices], plan.generation.stop)
        return Samples(
            texts=tuple(
                Sample(row=index, text=clipped(text), reference=_reference(rows, index) if references else None)
                for index, text in zip(indices, texts, strict=True)
            )
        )
    kind = kind_of(plan)
    if kind.extracts or plan.options_from == "row":
        # The position of an option in its row means nothing across rows, and the options themselves are text from the data,
        # as are extracted answers.
        return Samples(texts=())
    num_labels = len(plan.labels or ())
    if kind.per_word:
        labels = labels_of_words(rows)
        return _confusion(torch.cat(labels), torch.cat([row.cpu() for row in found]), num_labels)
    predicted = head.predictions(torch.stack(list(found)))
    labels_N = torch.tensor(rows.labels)
    if kind.summary == "points":
        return _points(labels_N, predicted)
    if kind.summary == "per label":
        return _per_label(labels_N.bool(), predicted.bool())
    return _confusion(labels_N, predicted, num_labels)


def _spaced(count: int, limit: int) -> list[int]:
    """Return up to ``limit`` evenly spaced positions."""
    return [index * count // min(count, limit) for index in range(min(count, limit))]


def _confusion(labels_N: Tensor, predicted_N: Tensor, num_labels: int) -> Confusion:
    counts = torch.bincount(labels_N * num_labels + predicted_N, minlength=num_labels**2)
    indices = counts.nonzero().squeeze(-1)
    order = indices[counts[indices].argsort(descending=True, stable=True)]
    kept = sorted(order[:MAX_CELLS].tolist())
    cells = tuple((index // num_labels, index % num_labels, int(counts[index])) for index in kept)
    return Confusion(cells=cells, others=int(counts[order[MAX_CELLS:]].sum()))


def _points(labels_N: Tensor, predicted_N: Tensor) -> Points:
    indices = _spaced(len(labels_N), MAX_POINTS)
    predicted = [number if math.isfinite(number) else None for number in predicted_N[indices].tolist()]
    return Points(pairs=tuple(zip(labels_N[indices].tolist(), predicted, strict=True)))


def _per_label(labels_NC: Tensor, predicted_NC: Tensor) -> PerLabel:
    both, only, missed = labels_NC & predicted_NC, predicted_NC & ~labels_NC, labels_NC & ~predicted_NC
    counted = [part.sum(0).tolist() for part in (both, only, missed)]
    return PerLabel(counts=tuple(zip(*counted, strict=True)))


def _reference(rows: TokenisedRows, index: int) -> str | None:
    return None if rows.texts is None else clipped(rows.texts.references[index])


def clipped(text: str) -> str:
    """Return a text shortened for storage; if it was cut, it ends in an ellipsis."""
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


NO_TEST = "this run does not read test splits"


class _Digested(Protocol):
    @property
    def digest(self) -> str: ...


_Rows = TypeVar("_Rows", bound=_Digested)


@dataclass(frozen=True)
class RowsCheck:
    """The result of predicting rows again."""

    findings: tuple[Finding, ...] = ()
    unreachable: str | None = None
    """Why the rows are not available; None if they were predicted."""
    split: SplitName = "test"
    """The split that was predicted."""


def certified_rows(
    session: Session, task: str, read: Callable[[TaskSpec, SplitName], _Rows], name: SplitName | None = None
) -> _Rows | str:
    """Return a task's rows if they are the certified ones, else why they are not available ("it ...", "its ...").

    Args:
        session: the run.
        task: a learned task.
        read: reads the split, such as `Session.split` or `Session.rows`.
        name: the split; None means the reported one.
    """
    certificate = session.store.certificate(task)
    if not certificate.is_measured:
        return "it was imported without rows"
    name = name or certificate.counted_split
    if name == "test" and not session.reads_test:
        return NO_TEST
    spec = next((spec for spec in session.spec.tasks if spec.name == task), None)
    if spec is None:
        return "it is no longer in the stream, so its rows are unknown"
    try:
        rows = read(spec, name)
    except InputError as error:
        return f"its {name} rows are not available: {why_unavailable(error)}"
    if rows.digest != certificate.data[name]:
        return f"its {name} rows are not those it was certified on"
    return rows


def check_rows(session: Session, task: str) -> RowsCheck:
    """Predict a task's test rows (or validation rows) again with the bank as it was committed.

    The scores and every prediction have to equal the certified ones. In a different environment the scores may differ by up
    to 0.01: rounding may move a row across the decision boundary.

    Raises:
        StoreError: if the bank cannot be loaded.
    """
    split = certified_rows(session, task, session.split)
    certificate = session.store.certificate(task)
    name: SplitName = certificate.counted_split
    if isinstance(split, str):
        return RowsCheck(unreachable=f"task {task!r}: {split}", split=name)
    models, certified = session.models, certificate.scores[name]
    unscored: tuple[Finding, ...] = ()
    try:
        session.load_metric(task)
    except InputError as error:
        # All predictions and the other scores are compared nevertheless.
        unscored = (Finding(message=f"task {task!r}: {error}", unchecked="score"),)
        others = {key: value for key, value in certified.scores.items() if key != certificate.metric}
        certified = certified.model_copy(update={"scores": others})
    with predicting(models, task, as_committed=True) as (learner, backbone):
        measured = evaluate(session, learner, split.rows, own_metric=not unscored)
        now = current_environment(backbone.model.device, backbone.precision, backbone.attention)
    differs = certificate.environment.differences(now)
    if measured == certified or (differs and _close(measured.scores, certified.scores)):
        return RowsCheck(unscored, split=name)
    metric = certificate.metric
    cause = "how it is measured: the Trainer's arguments, the library or the function that computes the scores"
    message = (
        f"task {task!r}: its {name} rows now score {measured.scores}, but {certified.scores} were certified"
        if measured.scores != certified.scores
        else f"task {task!r}: some predictions for its {name} rows differ from those certified, although all scores are equal"
    )
    return RowsCheck(
        (
            Finding(
                message=message,
                found=measured.scores.get(metric),
                certified=certified.scores.get(metric),
                cause=f"the differences in the environment: {'; '.join(differs)}" if differs else cause,
            ),
        ),
        split=name,
    )


def _close(found: dict[str, float], certified: dict[str, float]) -> bool:
    return found.keys() == certified.keys() and all(abs(found[name] - certified[name]) <= 0.01 for name in found)
