"""Ablation of a learned bank: evaluate a split without the bank's modifications in spans of layers; nothing is trained.

Houlsby et al. 2019, section 3.6: "we remove some trained adapters and re-evaluate the model (without re-training) on the
validation set", for every continuous span of layers; a backbone of L layers has L (L + 1) / 2 of them.
`banks/ablated_view.py` defines how each form is removed; as in the paper, the LayerNorms and the head are kept.

The run folder is only read. The bank used for prediction is not touched: views of it are scored, in a separate learner.
The rows are read once and the backbone is loaded once; spans that remove the same modifications share one measurement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement
from typing import Literal

from continual_petl.banks.ablated_view import AblatedView, modified_layers, remaining_parts
from continual_petl.engine.ablation.result import AblatedSpan, Ablation, relative_change
from continual_petl.engine.scoring.evaluate import certified_rows, evaluate
from continual_petl.engine.session import Session
from continual_petl.errors import InputError
from continual_petl.learner import ContinualLearner
from continual_petl.store.bank_cache import CachedBank
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.certificate.environment import current_environment
from continual_petl.store.certificate.values import SplitScores
from continual_petl.streams.encoding.tokenise import TokenisedRows

Span = tuple[int, int]
"""First and last layer, both inclusive."""
Spans = Literal["all", "single"] | Sequence[Span | str]
"""All spans, all single layers, or a list of spans: pairs, or strings such as ``2-4`` and ``3``."""
_SPAN = re.compile(r"([0-9]{1,3})(?:-([0-9]{1,3}))?")
_HAVE = (
    "The forms that act in layers are bottleneck, lowrank, decomposed (dora), rescale (ia3), attention (prefixes), additive "
    "(bitfit, full) and sparse (diff_pruning)"
)


def ablate_task(
    session: Session,
    task: str,
    spans: Spans | None = None,
    *,
    split: Literal["validation", "test"] = "validation",
    progress: Callable[[int, int], None] | None = None,
) -> Ablation:
    """Score a learned bank without its modifications in each span of layers.

    For a bank with ``scope: shared``, the version committed with the task is used, not the newest.

    Args:
        session: the run.
        task: a learned task.
        spans: None means all.
        split: the split to evaluate.
        progress: called after each measurement with the number done and the total.

    Raises:
        InputError: if the bank has no modification in any layer, a span is not within the backbone's layers, or the rows
            cannot be read or differ from those in the certificate.
        StoreError: if the bank cannot be loaded.
    """
    certificate, held = _opened(session, task, split)
    modified = modified_layers(held.bank)
    chosen = chosen_spans(spans, held.bank.sites.num_layers)
    removed = {span: frozenset(range(span[0], span[1] + 1)) & frozenset(modified) for span in chosen}
    # The full bank is measured here too, so that rounding on another machine does not count as an effect of the removal.
    views = dict.fromkeys([frozenset[int](), *removed.values()])
    measured: dict[frozenset[int], SplitScores] = {}
    rows = _rows(session, certificate, split)
    with held.attending() as backbone:
        for number, (layers, scores) in enumerate(_measured(session, held, rows, views), start=1):
            measured[layers] = scores
            if progress is not None:
                progress(number, len(views))
        now = current_environment(backbone.model.device, backbone.precision, backbone.attention)
    whole, metric, sites = measured[frozenset()], certificate.metric, held.bank.sites
    return Ablation(
        task=task,
        metric=metric,
        split=split,
        num_examples=whole.num_examples,
        layers=sites.num_layers,
        stacks=tuple(sum(layer.stack is stack for layer in sites.layers) for stack in sites.anatomy.stacks),
        modified=modified,
        stays=remaining_parts(held.bank),
        full=whole.scores.get(metric),
        scores=whole.scores,
        cells=tuple(_cell(span, measured[removed[span]], metric, whole.scores.get(metric)) for span in chosen),
        notices=_notices(certificate, split, whole, certificate.environment.differences(now)),
    )


def chosen_spans(spans: Spans | None, num_layers: int) -> list[Span]:
    """Return the distinct spans, sorted; see `Spans`.

    Raises:
        InputError: if one of them is not a span of the backbone's layers.

    Example:
        >>> chosen_spans("all", 2), chosen_spans(["1", "0-1", (1, 1)], 2)
        ([(0, 0), (0, 1), (1, 1)], [(0, 1), (1, 1)])
    """
    listed = ["all"] if spans is None else [spans] if isinstance(spans, str) else list(spans)
    if listed == ["all"]:
        return list(combinations_with_replacement(range(num_layers), 2))
    if listed == ["single"]:
        return [(number, number) for number in range(num_layers)]
    if not listed:
        raise InputError("spans: the list is empty; give all, single, or spans such as 0-3")
    for word in ("all", "single"):
        if word in listed:
            raise InputError(
                f"spans: {word} cannot be combined with other spans; give it alone, or give spans such as 0-3 5"
            )
    return sorted({_span(span, num_layers) for span in listed})


def _span(span: Span | str, num_layers: int) -> Span:
    if isinstance(span, str):
        match = _SPAN.fullmatch(span)
        ends = None if match is None else (int(match[1]), int(match[2] or match[1]))
    else:
        ends = span if len(span) == 2 and all(type(end) is int for end in span) else None
    if ends is None or not 0 <= ends[0] <= ends[1] < num_layers:
        raise InputError(
            f"spans: {span!r} is not a valid span of layers: write all, single, FIRST-LAST (both removed, FIRST not above "
            f"LAST) or one number; this backbone has layers 0 to {num_layers - 1}"
        )
    return ends


def _opened(session: Session, task: str, split: str) -> tuple[Certificate, CachedBank]:
    """Return a task's certificate and its bank, after checking that the bank has modifications to remove."""
    certificate = session.store.certificate(task)
    if split not in certificate.scores:
        raise InputError(
            f"task {task!r}: it has no {split} split; its certificate covers {', '.join(certificate.scores)}"
        )
    try:
        session.load_metric(task)
    except InputError as error:
        raise InputError(f"task {task!r}: {error}") from error
    held = session.models.held(task, as_committed=True)
    if not modified_layers(held.bank):
        has = "; ".join(("its head", *remaining_parts(held.bank)))
        raise InputError(
            f"task {task!r}: its bank has no modification in any layer, so nothing can be removed: it only has {has}. "
            f"{_HAVE}: give a task whose bank has one of them."
        )
    return certificate, held


def _rows(session: Session, certificate: Certificate, split: Literal["validation", "test"]) -> TokenisedRows:
    checked = certified_rows(session, certificate.task, session.split, split)
    if isinstance(checked, str):
        raise InputError(
            f"task {certificate.task!r}: {checked.rstrip('.')}. An ablation predicts them again and compares the "
            "scores: restore the rows."
        )
    return checked.rows


def _measured(
    session: Session, held: CachedBank, rows: TokenisedRows, views: dict[frozenset[int], None]
) -> Iterator[tuple[frozenset[int], SplitScores]]:
    """Yield the scores of the bank with each set of layers removed."""
    learner, models = ContinualLearner(held.backbone), session.models
    for layers in views:
        learner.add_bank(held.plan, AblatedView(held.bank, layers), tokenizer=models.tokenizer)
        yield layers, evaluate(session, learner, rows)
        learner.evict(held.plan.name)


def _cell(span: Span, split_scores: SplitScores, metric: str, full: float | None) -> AblatedSpan:
    score = split_scores.scores.get(metric)
    return AblatedSpan(
        first=span[0], last=span[1], score=score, relative=relative_change(score, full), scores=split_scores.scores
    )


def _notices(certificate: Certificate, split: str, whole: SplitScores, differs: Sequence[str]) -> tuple[str, ...]:
    certified = certificate.scores[split]
    if whole == certified:
        return ()
    was, now = certified.scores.get(certificate.metric), whole.scores.get(certificate.metric)
    why = f"; the differences in the environment: {'; '.join(differs)}" if differs else ""
    if whole.scores == certified.scores:
        return (f"Some predictions of the full bank differ from those certified, although all scores are equal{why}.",)
    return (
        f"The full bank scores {now} here, but {was} in its certificate{why}. Changes are relative to the score here; "
        "`verify --data` checks whether anything was forgotten.",
    )
