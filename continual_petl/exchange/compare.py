"""Compares what exported files compute with what the bank computes: on the inputs of its certificate, and on hard rows.

Hard rows are those on which two libraries easily differ, made with the task's tokenizer: empty, one token, longer than the
maximum length; special tokens written as text, at the beginning, inside and at the end; all in one batch, so that rows of
different lengths are padded. The probe of a certificate has random tokens, which are none of these.

Shape suffixes: B rows, W tokens, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from continual_petl.banks.ablated_view import AblatedView, modified_layers
from continual_petl.errors import ExportError, InputError
from continual_petl.exchange.subject import Subject
from continual_petl.kind_registry import kind_of
from continual_petl.learner.generate import Decoding, decode
from continual_petl.learner.respond import respond
from continual_petl.learner.task_bank import TaskBank, backbone_inputs, shifted_right
from continual_petl.store.verify.replay import as_certified, replay
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.encoding.image_processing import image_processing
from continual_petl.streams.encoding.rows import TokenisedRows

NUM_GENERATED = 16
"""Most tokens that are generated for each row, to limit the time that an export takes."""


_MAX_SPECIAL = 8


def texts_of(tokenizer: Any, max_length: int) -> list[str]:
    """Return hard texts for a tokenizer: the last one is longer than ``max_length`` tokens, all others are short."""
    # T5 has a hundred more, for spans that are masked in pre-training.
    special = list(dict.fromkeys(str(token) for token in tokenizer.all_special_tokens))[:_MAX_SPECIAL]
    ordinary = [number for number in range(len(tokenizer)) if number not in set(tokenizer.all_special_ids)]
    words = [str(tokenizer.decode([ordinary[len(ordinary) * n // 7]])).strip() or "a" for n in range(7)]
    text = " ".join(words[:4])
    texts = ["", words[1], text, " ".join(words)]
    for token in special:
        texts += [f"{text} {token}", f"{words[2]} {token} {words[5]} {token} {words[0]}", f"{token} {words[3]}", token]
        texts += [f"{words[6]} {token} {token}"]
    return [*texts, " ".join(words[n % 7] for n in range(max_length + 8))]


def rows_of(subject: Subject) -> list[list[Any]]:
    """Return batches of hard rows of a task, as its bank takes them; rows that a run refuses are left out."""
    plan = subject.plan
    if kind_of(plan).reads_images:
        return [_images(subject)]
    texts = texts_of(subject.tokenizer, subject.max_length)
    long = texts[-1]
    rows: list[Any]
    if plan.pair:
        rows = [*pairwise(texts[:-1]), (texts[2], texts[2])]
        last: list[Any] = [(long, texts[2]), (texts[2], long), (long, long)]
    elif kind_of(plan).per_word:
        rows, last = [text.split() for text in texts[:-1]], [long.split()]
    elif plan.chat is not None:
        talks: list[Any] = [[{"role": "user", "content": text}] for text in texts[1:-1]]
        if plan.options_from == "row":
            talks = [(talk, [texts[2], texts[1]]) for talk in talks]
        return [[talk] for talk in talks if _taken(subject, talk, whole=True)]
    else:
        rows, last = texts[:-1], [long]
    if plan.options_from == "row":
        own = [texts[2], texts[1], texts[3]]
        rows, last = ([(row, own[: 2 + n % 2]) for n, row in enumerate(part)] for part in (rows, last))
    return [[row for row in part if _taken(subject, row)] for part in (rows, last)]


def _taken(subject: Subject, row: Any, *, whole: bool = False) -> bool:
    """Return whether a run takes a row, and optionally whether it is not too long."""
    try:
        return encoded(subject, [row]).num_truncated == 0 or not whole
    except InputError:
        return False


def _images(subject: Subject) -> list[Any]:
    """Return images in the size of the model, larger, smaller, and stretched."""
    generator = torch.Generator().manual_seed(5)
    config: Any = subject.backbone.model.config
    size = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
    shapes = [(size, size), (3 * size + 1, 2 * size), (max(1, size // 2), size + 3), (1, 1), (size, 2 * size)]
    return [torch.randint(0, 256, (*shape, 3), generator=generator, dtype=torch.uint8).numpy() for shape in shapes]


def encoded(subject: Subject, rows: Sequence[Any]) -> TokenisedRows:
    """Return rows as a run encodes them for predictions.

    Raises:
        InputError: if a row cannot be used.
    """
    plan, backbone, kind = subject.plan, subject.backbone, subject.kind
    own = plan.options_from == "row"
    inputs = [row[0] for row in rows] if own or plan.pair else list(rows)
    images = None
    if kind.reads_images:
        images = image_processing(backbone.name, backbone.revision, backbone.model.config)
    how = kind.how_encoded(
        plan, tokenizer=subject.tokenizer, max_length=subject.max_length, images=images, chat=plan.chat
    )
    second = [row[1] for row in rows] if own or plan.pair else None
    tokenised: TokenisedRows = kind.encode(
        inputs, how, pairs=second if plan.pair else None, row_options=second if own else None
    )
    return tokenised


@torch.no_grad()
def expected_of(subject: Subject, rows: Sequence[Any]) -> dict[str, Any]:
    """Return the bank's outputs for a batch, by the variable that has them in the code of an export.

    Shape:
        ``logits`` (B, C), for token-classification (tokens, C) without padding; ``scores`` a list of each row's options;
        ``answers`` texts; ``tags`` names of labels, word by word.
    """
    plan, device = subject.plan, subject.backbone.model.device
    tokenised = encoded(subject, rows)
    batch = collate(tokenised, range(len(rows)), subject.pad or 0, kind=plan.kind, train=False)
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    (outputs,) = respond([subject], batch, decoding=Decoding(tokenizer=subject.tokenizer))
    if isinstance(outputs, list):
        assert plan.generation is not None
        assert subject.tokenizer is not None
        return {"answers": decode(subject.tokenizer, outputs, plan.generation.stop)}
    outputs = outputs.cpu()
    if plan.options_from is not None:
        options = [row[1] for row in rows] if plan.options_from == "row" else [list(plan.options or ())] * len(rows)
        own = [row[: len(option)].tolist() for row, option in zip(outputs, options, strict=True)]
        return {
            "scores": own,
            "answers": [option[row.index(max(row))] for option, row in zip(options, own, strict=True)],
        }
    if not kind_of(plan).per_word:
        return {"logits": outputs}
    labels, best = plan.labels or (), outputs.argmax(-1)
    tags = [[labels[best[n, position]] for position in tokenised.places_of_words(n).tolist()] for n in range(len(rows))]
    return {"logits": flat(outputs, batch["attention_mask"].cpu()), "tags": tags}


def flat(outputs_BWC: Tensor, mask_BW: Tensor) -> Tensor:
    """Return the outputs of all tokens, without padding."""
    return outputs_BWC[mask_BW.bool()]


def ends_every_text(subject: Subject) -> bool:
    """Return whether the tokenizer ends every text with the token that the backbone's configuration calls its end token."""
    end = subject.backbone.model.config.eos_token_id
    return all(
        int(tokenised.ids[stop - 1]) == end
        for rows in rows_of(subject)
        if rows
        for tokenised in [encoded(subject, rows)]
        for stop in tokenised.offsets[1:].tolist()
    )


TOLERANCE = 1e-5
"""Largest allowed difference of an output in float32, relative to the largest output if that is above one."""
SHARE = 0.05
"""Largest allowed difference as a share of the effect of the bank's modifications: a bank that was hardly trained changes
so little that a wrong factor would stay below `TOLERANCE`."""
ROUNDING = 1e-6
"""Differences up to this size may be rounding, however little the bank changes."""

Compute = Callable[[dict[str, Tensor]], Tensor]
"""Maps the inputs of a model to its logits: (B, C), (B, W, C), or (B, W, vocabulary)."""


def check_outputs(subject: Subject, compute: Compute, *, one_by_one: bool = False) -> float:
    """Return the largest difference between the outputs of exported files and of the bank, relative as in `TOLERANCE`.

    Args:
        subject: the task.
        compute: computes logits with the exported files.
        one_by_one: whether every row is passed on its own, without padding.

    Raises:
        ExportError: if the difference is above `TOLERANCE`, or above a share of the effect of the modifications.
    """
    difference, allowed = compare_outputs(subject, _single(compute) if one_by_one else compute)
    if not difference <= allowed:
        raise ExportError(
            f"task {subject.plan.name!r}: the exported files do not compute what its bank computes: on the rows of its "
            f"certificate their outputs differ by {difference:.2g} (allowed: {allowed:.2g}). Nothing was written. Use "
            "the run itself (Run.predict), and please report this with the versions of transformers and of continual-petl."
        )
    return difference


def _single(compute: Compute) -> Compute:
    """Return a function that computes the logits of every row on its own."""

    def one_by_one(inputs: dict[str, Tensor]) -> Tensor:
        rows = []
        for number, mask in enumerate(inputs["attention_mask"].bool()):
            rows.append(compute({name: tensor[number : number + 1, mask] for name, tensor in inputs.items()}))
        return torch.cat(rows)

    return one_by_one


@torch.no_grad()
def compare_outputs(subject: Subject, compute: Compute) -> tuple[float, float]:
    """Return the largest difference between the outputs of the files and of the bank, and the largest allowed one.

    Args:
        subject: the task.
        compute: computes logits with the exported files.
    """
    backbone = subject.backbone
    expected = replay(subject, subject.probe)
    batch = {name: tensor.to(backbone.model.device) for name, tensor in subject.probe.items()}
    inputs = backbone_inputs(backbone, batch)
    if kind_of(subject.plan).decodes:
        inputs["decoder_input_ids"] = shifted_right(backbone, batch["labels"])
    outputs = subject.unit.standardised(as_certified(subject.head, compute(inputs).float(), batch))
    expected = subject.unit.standardised(expected)
    scale = max(1.0, float(expected.abs().max()))
    difference = float((outputs - expected).abs().max()) / scale if outputs.shape == expected.shape else float("nan")
    return difference, _allowed(subject, expected, scale)


def _allowed(subject: Subject, expected: Tensor, scale: float) -> float:
    """Return the largest allowed difference, relative as in `TOLERANCE`."""
    layers = modified_layers(subject.bank)
    if not layers:  # the bank is only a prompt or a head
        return TOLERANCE
    without = replay(TaskBank(subject.backbone, subject.plan, AblatedView(subject.bank, layers)), subject.probe)
    effect = float((expected - subject.unit.standardised(without)).abs().max()) / scale
    # A number in the units of the targets is rounded relative to their mean, not to their deviation.
    rounding = ROUNDING + 2**-23 * abs(subject.unit.mean) / subject.unit.deviation
    return max(rounding, min(TOLERANCE, SHARE * effect))
