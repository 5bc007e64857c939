"""Runs banks on a batch: the one way from a batch to outputs, in training, evaluation, certificates and prediction.

* One bank: its own pass, which is the same whoever asks for it, bit for bit.
* Several banks, each with rows of its own: a mixed batch (`banks.mixed`); each row gets the result of its bank alone, up to
  rounding.
* Several banks on the same rows: the frozen part below them is computed once (`banks.states_below`); from there, several
  banks share a mixed batch if there are few rows, otherwise there is a pass for each.

Shape suffixes: B rows, W tokens, D width of the backbone, K options.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from continual_petl.backbones import Pooling
from continual_petl.backbones.backbone import pool
from continual_petl.banks.attach import run
from continual_petl.banks.mixed.compatible import pass_key
from continual_petl.banks.mixed.run_mixed import run_mixed
from continual_petl.banks.states_below import lowest_layer, starting_at, states_below, why_not_start
from continual_petl.heads.generation import GenerationHead, token_log_probabilities
from continual_petl.heads.head import IGNORED
from continual_petl.learner.generate import Decoding, generate
from continual_petl.learner.task_bank import TaskBank, backbone_inputs, reading_inputs, shifted_right

STATES = "states_below"
"""The key of a batch with the states (B, W, D) below a layer, from which a pass starts; see `banks.states_below`."""
Batch = dict[str, Tensor]
Outputs = Tensor | list[list[int]]
"""Outputs of a bank for its rows, or the ids of the texts that it generates for them; see `respond`."""

_whole: WeakKeyDictionary[nn.Module, dict[int, bool]] = WeakKeyDictionary()
"""By model and layer, whether a pass that starts there gives the same results as a whole pass, bit for bit."""


def respond(
    banks: Sequence[TaskBank],
    batch: Batch,
    *,
    counts: Sequence[int] | None = None,
    rows_at_once: int | None = None,
    states_layer: int | None = None,
    decoding: Decoding | None = None,
    vectors: list[Tensor | None] | None = None,
) -> list[Any]:
    """Return the outputs of each bank for its rows, float32.

    Args:
        banks: banks on one backbone. If there are several, they are folded and in eval mode, none of them generates text or
            chooses among options, and there are no gradients.
        batch: inputs, and the labels of generative tasks; it may have `STATES` from which the pass starts.
        counts: how many rows belong to each bank: first those of the first bank, and so on. None: all rows belong to all.
            See `run_mixed` for the banks that can share a pass, and for the best order.
        rows_at_once: maximum number of rows in one pass if all rows belong to all banks, where a row counts once per bank; a
            batch is never split. None: a pass for each bank.
        states_layer: the layer to which `STATES` belong, if a pass may also start at the embeddings, should a bank change
            lower layers or the model not allow it. None: the lowest layer that the bank changes, where the pass starts.
        decoding: if given, generative tasks generate texts, or score the options among which they choose, instead of
            returning the logits of the batch's labels.
        vectors: where to add, for each bank, what its head reads of its rows, ``(B, D)``; None for a head that does not read
            one vector per row. Not if several banks have the same rows.

    Shape:
        ``(B, C)``; token-classification ``(B, W, C)``; generative tasks the logits ``(B, W, V)`` of the batch's
        labels; for causal-lm, the logits of a label are read one position before it. Kinds that choose, and generative tasks
        with options: ``(B, K)``, one score for each option, -inf where a row has fewer. Kinds that extract ``(B, K, W, 2)``,
        see `Kind.of_rows`, or with ``decoding`` what `Kind.kept` returns. Instead of a tensor, generated texts
        are lists of token ids, one for each row, without the end token.

    Raises:
        ValueError: if the banks cannot share a pass, or there are several of which one generates or chooses.
    """
    if len(banks) > 1 and (alone := next((own.kind.name for own in banks if not own.kind.shares_passes), None)):
        raise ValueError(f"a {alone} task cannot share a pass with others: run its bank alone")
    if counts is None and len(banks) > 1:
        assert vectors is None
        return _all(banks, batch, rows_at_once or 1)
    vectors = [] if vectors is None else vectors
    with _start(banks, batch, states_layer, decoding):
        if counts is None or len(banks) == 1:
            return [_alone(banks[0], batch, decoding, vectors)]
        return _mixed(banks, counts, batch, vectors)


def _alone(own: TaskBank, batch: Batch, decoding: Decoding | None, vectors: list[Tensor | None]) -> Outputs:
    if not own.kind.has_one_vector:
        vectors.append(None)
    if decoding is None:
        return _outputs(own, batch, vectors)
    if not own.kind.generates:
        return own.kind.kept(_outputs(own, batch, vectors), batch, own.plan.kind_settings)
    return _option_scores(own, batch) if own.plan.generation is None else generate(own, batch, decoding)


def _outputs(own: TaskBank, batch: Batch, vectors: list[Tensor | None] | None = None) -> Tensor:
    """Return the outputs of one bank; see `respond`."""
    backbone, bank, head, kind = own.backbone, own.bank, own.head, own.kind
    checkpointing = bank.training and own.plan.training.gradient_checkpointing
    if kind.generates:
        inputs = backbone_inputs(backbone, batch)
        if backbone.anatomy.is_encoder_decoder:
            inputs["decoder_input_ids"] = shifted_right(backbone, batch["labels"])
        logits: Tensor = head(run(backbone.model, bank, inputs, base=False, checkpointing=checkpointing).logits)
        return logits
    read = kind.sequences(batch)
    output = run(backbone.model, bank, reading_inputs(backbone, read), checkpointing=checkpointing)
    if kind.per_token:
        features: Tensor = output.last_hidden_state.float()
    else:
        features = pool(output, read.get("attention_mask"), own.plan.pooling)
    if kind.has_one_vector and vectors is not None:
        vectors.append(features)
    return kind.of_rows(head(features), batch)


@torch.no_grad()
def _mixed(
    banks: Sequence[TaskBank], counts: Sequence[int], batch: Batch, vectors: list[Tensor | None]
) -> list[Tensor]:
    """Return the outputs of several banks, each for its own rows."""
    backbone = banks[0].backbone
    output = run_mixed(backbone.model, [own.bank for own in banks], counts, reading_inputs(backbone, batch))
    pooled: dict[Pooling, Tensor] = {}
    outputs, start = [], 0
    for own, num_rows in zip(banks, counts, strict=True):
        rows, pooling = slice(start, start + num_rows), own.plan.pooling
        start = rows.stop
        if own.kind.per_word:
            outputs.append(own.head(output.last_hidden_state[rows].float()))
            vectors.append(None)
            continue
        if pooling not in pooled:
            pooled[pooling] = pool(output, batch.get("attention_mask"), pooling)
        outputs.append(own.head(pooled[pooling][rows]))
        vectors.append(pooled[pooling][rows])
    return outputs


@torch.no_grad()
def _all(banks: Sequence[TaskBank], batch: Batch, rows_at_once: int) -> list[Tensor]:
    """Return the outputs of several banks for the same rows, sharing the states below banks with the same lowest layer."""
    backbone, num_rows = banks[0].backbone, len(next(iter(batch.values())))
    by_layer: dict[int, list[int]] = {}
    for number, own in enumerate(banks):
        layer = lowest_layer(own.bank)
        by_layer.setdefault(layer if _can_start(own, layer, batch) else 0, []).append(number)
    outputs: dict[int, Tensor] = {}
    for layer, numbers in by_layer.items():
        tensors = {name: tensor for name, tensor in batch.items() if name != STATES}
        if layer and len(numbers) > 1:
            inputs = reading_inputs(backbone, batch)
            tensors[STATES] = states_below(backbone.model, backbone.sites, inputs, layer)
        for chunk in _chunks(banks, numbers, max(1, rows_at_once // num_rows)):
            again = (
                tensors if len(chunk) == 1 else {n: torch.cat([tensor] * len(chunk)) for n, tensor in tensors.items()}
            )
            own_banks = [banks[number] for number in chunk]
            outputs |= zip(chunk, respond(own_banks, again, counts=[num_rows] * len(chunk)), strict=True)
    return [outputs[number] for number in range(len(banks))]


def _chunks(banks: Sequence[TaskBank], numbers: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Yield groups of banks that share a pass."""
    groups: dict[Hashable, list[int]] = {}
    for number in numbers:
        bank, backbone = banks[number].bank, banks[number].backbone
        key = None if limit == 1 else pass_key(bank.spec, backbone.model, backbone.sites)
        groups.setdefault(number if key is None else key, []).append(number)
    for group in groups.values():
        for start in range(0, len(group), limit):
            yield group[start : start + limit]


def _start(
    banks: Sequence[TaskBank], batch: Batch, layer: int | None, decoding: Decoding | None
) -> AbstractContextManager[None]:
    """Return a context in which a pass starts from the states in the batch, or at the embeddings."""
    if STATES not in batch:
        return nullcontext()
    changed = min(lowest_layer(own.bank) for own in banks)
    decodes = decoding is not None and not banks[0].kind.shares_passes
    if layer is not None and (decodes or changed < layer or not _can_start(banks[0], layer, batch)):
        return nullcontext()
    model, sites = banks[0].backbone.model, banks[0].backbone.sites
    return starting_at(model, sites, changed if layer is None else layer, batch[STATES])


def _can_start(own: TaskBank, layer: int, batch: Batch) -> bool:
    """Return whether a pass from a layer gives the same results as a whole pass, bit for bit; tried once per layer."""
    backbone = own.backbone
    if len(backbone.anatomy.stacks) > 1 or layer == 0:
        return False
    known = _whole.setdefault(backbone.model, {})
    if layer not in known:
        one_row = {name: value[:1] for name, value in reading_inputs(backbone, batch).items()}
        known[layer] = why_not_start(backbone.model, backbone.sites, one_row, layer) is None
    return known[layer]


def _option_scores(own: TaskBank, batch: Batch) -> Tensor:
    """Return the score of every option for every row: how likely the text is to follow the row's source.

    The score is the sum of the log-probabilities of its tokens, as in lm-evaluation-harness (EleutherAI,
    ``ConfigurableTask.process_results`` in lm_eval/api/task.py: ``acc``, and with ``normalise: characters`` ``acc_norm``).
    Unlike there, the end token is included: a bank has learned where an answer ends, and without the end token, an option
    would never score lower than a longer option that begins with it. Options are scored one at a time, so that a forward
    pass has no more rows than the batch; see `continual_petl.streams.batches.collate.collate`.
    """
    head, options, characters_KB = own.head, own.plan.options or (), batch.get("option_characters")
    assert isinstance(head, GenerationHead)
    num_options = len(options) if characters_KB is None else len(characters_KB)
    keys = [name for name in batch if name not in ("index", "labels", "option_characters", STATES)]
    scores = []
    for index, parts in enumerate(zip(*(batch[name].chunk(num_options) for name in keys), strict=True)):
        option_batch = dict(zip(keys, parts, strict=True))
        option_batch["labels"] = option_batch.pop("targets")
        found_BW = token_log_probabilities(head, _outputs(own, option_batch), option_batch["labels"])
        divisor: Tensor | int = 1
        if own.plan.normalise == "tokens":
            divisor = (option_batch["labels"] != IGNORED).sum(1)
        elif own.plan.normalise == "characters":
            divisor = len(options[index]) if characters_KB is None else characters_KB[index].clamp(min=1)
        scores_B = found_BW.sum(1) / divisor
        if characters_KB is not None:
            scores_B = scores_B.masked_fill(characters_KB[index] == 0, -torch.inf)
        scores.append(scores_B)
    return torch.stack(scores, dim=1)
