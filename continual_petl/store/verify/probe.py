"""The probe: one fixed batch whose outputs must never change, bit for bit in the same environment.

Its rows are token ids drawn from the tokenizer's vocabulary with the task's seed, or random pixels, so a certificate
contains no training data. The targets of a generative task are random tokens as well or, if it has options, its options in
turn. ``probe: validation`` uses rows of the validation split instead, which the certificate then contains.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from continual_petl.backbones.backbone import Backbone
from continual_petl.heads.head import IGNORED
from continual_petl.kind import Kind
from continual_petl.kind_registry import kind_of
from continual_petl.learner.generate import ends_of
from continual_petl.learner.task_bank import INPUTS
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.seeding import derive_seed
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.encoding.tokenise import TokenisedRows, padding_id
from continual_petl.streams.encoding.tokenise_sources import option_tokens

NUM_ROWS = 8
MAX_TOKENS = 32
NUM_TARGETS = 8
ENDS = "ends"
"""Name of a tensor in a generative task's probe: the token that ends a text (-1 if there is none), and the padding token."""


def make_probe(
    plan: TaskPlan, backbone: Backbone, tokenizer: PreTrainedTokenizerBase | None, max_length: int
) -> dict[str, Tensor]:
    """Return the probe's inputs: eight images, or eight rows of random tokens, of different lengths, padded.

    Args:
        plan: the task's plan.
        backbone: the task's backbone.
        tokenizer: the backbone's tokenizer; None if it reads images.
        max_length: maximum tokens per row.
    """
    generator = torch.Generator().manual_seed(derive_seed(plan.seed, "probe"))
    kind = kind_of(plan)
    if kind.reads_images:
        # Small integers are in the range of normalised pixels, and take one byte each.
        shape = (NUM_ROWS, *image_shape(backbone))
        return {"pixel_values": torch.randint(-2, 3, shape, generator=generator, dtype=torch.int8)}
    assert tokenizer is not None
    special = set(tokenizer.all_special_ids)
    ordinary = torch.tensor([token for token in range(len(tokenizer)) if token not in special])

    def draw(count: int) -> list[int]:
        chosen: list[int] = ordinary[torch.randint(len(ordinary), (count,), generator=generator)].tolist()
        return chosen

    num_targets = min(NUM_TARGETS, plan.max_target_length or 0)
    options = _option_tokens(plan, tokenizer)
    if options:
        num_targets = max(map(len, options))
    first, last = _special_tokens_around(tokenizer)
    longest = min(MAX_TOKENS, max_length - (num_targets if kind.continues else 0))
    sources = [
        (first + draw(max(1, longest - len(first) - len(last) - 2 * number)) + last)[:longest]
        for number in range(NUM_ROWS)
    ]
    if kind.generates:
        targets = [options[n % len(options)] if options else draw(num_targets) for n in range(NUM_ROWS)]
        return _with_targets(kind, sources, targets, padding_id(tokenizer)) | _ends(tokenizer, plan)
    batch = _padded(sources, padding_id(tokenizer))
    if "token_type_ids" in tokenizer.model_input_names:
        batch["token_type_ids"] = torch.zeros_like(batch["input_ids"])
    return kind.as_probe(batch)


def probe_of_rows(plan: TaskPlan, rows: TokenisedRows, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Tensor]:
    """Return a probe of up to eight rows of a split, chosen with the task's seed; the certificate then contains them.

    Args:
        plan: the task's plan.
        rows: the rows of its validation split.
        tokenizer: the backbone's tokenizer; None if it reads images.
    """
    generator = torch.Generator().manual_seed(derive_seed(plan.seed, "probe"))
    chosen = sorted(torch.randperm(len(rows), generator=generator)[:NUM_ROWS].tolist())
    pad = 0 if tokenizer is None else padding_id(tokenizer)
    # Earlier answers in a conversation belong to the source here, from which the probe generates.
    batch = collate(replace(rows, learned=None), chosen, pad, kind=plan.kind, train=True)
    generates = kind_of(plan).generates
    batch = {name: tensor for name, tensor in batch.items() if name in INPUTS or (generates and name == "labels")}
    return batch | (_ends(tokenizer, plan) if generates and tokenizer is not None else {})


def image_shape(backbone: Backbone) -> tuple[int, int, int]:
    """Return channels, height and width of the images that a backbone reads."""
    config: Any = backbone.model.config
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return int(config.num_channels), int(height), int(width)


def _with_targets(kind: Kind, sources: list[list[int]], targets: list[list[int]], pad: int) -> dict[str, Tensor]:
    if kind.decodes:
        return {**_padded(sources, pad), "labels": _padded(targets, IGNORED)["input_ids"]}
    rows = [source + target for source, target in zip(sources, targets, strict=True)]
    labels = [[IGNORED] * len(source) + target for source, target in zip(sources, targets, strict=True)]
    return {**_padded(rows, pad), "labels": _padded(labels, IGNORED)["input_ids"]}


def _option_tokens(plan: TaskPlan, tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Return the tokens of a task's options, each with its end token; random sources need no chat template."""
    if plan.options is None:
        return []
    if plan.chat is None:
        options = option_tokens(plan.options, tokenizer, special=kind_of(plan).decodes)
        return [tokens.tolist() for tokens in options]
    texts = tokenizer(list(plan.options), add_special_tokens=False)["input_ids"]
    return [[*ids, plan.chat.end] for ids in texts]


def _ends(tokenizer: PreTrainedTokenizerBase, plan: TaskPlan) -> dict[str, Tensor]:
    end, pad = ends_of(tokenizer, plan.chat)
    return {ENDS: torch.tensor([-1 if end is None else end, pad])}


def _padded(rows: list[list[int]], fill: int) -> dict[str, Tensor]:
    width = max(map(len, rows))
    return {
        "input_ids": torch.tensor([row + [fill] * (width - len(row)) for row in rows]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows]),
    }


def _special_tokens_around(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the special tokens that the tokenizer adds before and after a text."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, mask = encoded["input_ids"], encoded["special_tokens_mask"]
    ordinary = [number for number, special in enumerate(mask) if not special]
    # The token of an unknown word is not marked as special. If all tokens are special, they count as preceding the text.
    start, stop = (ordinary[0], ordinary[-1] + 1) if ordinary else (len(ids), len(ids))
    return ids[:start], ids[stop:]
