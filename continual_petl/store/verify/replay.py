"""Compute a bank's outputs for its probe, and the tolerance for comparing them in another environment.

A generative task is certified by the log-probability of given target tokens (a few numbers per row, however large the
vocabulary), and by the tokens that it generates for the same sources.
"""

from __future__ import annotations

import torch
from torch import Tensor

from continual_petl.heads.generation import GenerationHead, token_log_probabilities
from continual_petl.heads.head import IGNORED, Head
from continual_petl.kind_registry import find_kind, kind_of
from continual_petl.learner.generate import Decoding, Ends
from continual_petl.learner.respond import respond
from continual_petl.learner.task_bank import TaskBank
from continual_petl.store.verify.probe import ENDS
from continual_petl.store.verify.probe_file import DECODED

NUM_DECODED = 8
"""Tokens generated for each row."""

_TOLERANCES = {"fp32": 1e-4, "bf16": 5e-2}
"""Allowed absolute difference of the probe's outputs in another environment, by precision of the backbone.

Measured on the five quickstart banks (torch 2.13, AVX2), eager compared with sdpa attention: 1.2e-6 in fp32, 2.5e-2 in
bf16; one thread compared with two: 0 in both. In bf16, nearly tied rows may then change their label, which is reported as a
change.
"""
_OF_LOGITS = 10.0
"""Factor on the tolerance of generative tasks: logits over a vocabulary are in the tens, where bf16 has steps of 0.125 to
0.5, and log-probabilities inherit this error."""


def tolerance(kind: str, precision: str) -> float:
    """Return the allowed absolute difference of a probe's outputs in another environment."""
    return _TOLERANCES[precision] * (_OF_LOGITS if find_kind(kind).generates else 1.0)


def replay(own: TaskBank, probe: dict[str, Tensor]) -> Tensor:
    """Return a bank's outputs for a probe, float32 on the CPU.

    Shape:
        ``(8, C)``; token-classification ``(8, W, C)``, zero on padding; generative tasks ``(8, targets)``, or ``(8, W)``
        with zeros outside the targets if their lengths differ.
    """
    with torch.no_grad():
        inputs = {name: tensor.to(own.backbone.model.device) for name, tensor in probe.items()}
        (outputs,) = respond([own], inputs)
        return as_certified(own.head, outputs, inputs)


def as_certified(head: Head, outputs: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Return the outputs for a probe's inputs in the form that certificates hold; see `replay`."""
    if isinstance(head, GenerationHead):
        log_probabilities = token_log_probabilities(head, outputs, inputs["labels"])
        there = head.aligned(outputs, inputs["labels"])[1] != IGNORED
        even = len(set(there.sum(dim=1).tolist())) == 1
        outputs = (
            log_probabilities[there].reshape(len(log_probabilities), -1)
            if even
            else log_probabilities.masked_fill(~there, 0.0)
        )
    elif kind_of(head).per_word:
        outputs = outputs * inputs["attention_mask"].unsqueeze(-1)
    return outputs.cpu().contiguous()


def decode_probe(own: TaskBank, probe: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the token ids that a generative task generates for a probe, at most eight per row; empty for other tasks.

    A task that generates by sampling is decoded without sampling here, since random samples would prove nothing about the
    bank. Stop strings are ignored: they need a tokenizer, which a certificate does not have.

    Shape:
        ``(8, 8)`` int64, padded with -1.
    """
    generation = own.plan.generation
    if generation is None or ENDS not in probe:
        return {}
    limit = min(NUM_DECODED, generation.max_new_tokens)
    fixed = {"do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "stop": ()}
    short = generation.model_copy(
        update={"max_new_tokens": limit, "min_new_tokens": min(limit, generation.min_new_tokens), **fixed}
    )
    end, pad = probe[ENDS].tolist()
    device = own.backbone.model.device
    sources = _prompts(probe, pad) if own.kind.continues else probe
    batch = {name: tensor.to(device) for name, tensor in sources.items() if name not in (ENDS, "labels")}
    shortened = TaskBank(own.backbone, own.plan.model_copy(update={"generation": short}), own.bank)
    (rows,) = respond([shortened], batch, decoding=Decoding(tokenizer=Ends(None if end < 0 else end, pad)))
    padded = torch.full((len(rows), NUM_DECODED), -1)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = torch.tensor(row, dtype=torch.int64)
    return {DECODED: padded}


def _prompts(probe: dict[str, Tensor], pad: int) -> dict[str, Tensor]:
    """Return the sources of rows that hold source and target, padded on the left as a decoder expects them."""
    there = (probe["labels"] == IGNORED) & (probe["attention_mask"] == 1)
    rows = [ids[mask] for ids, mask in zip(probe["input_ids"], there, strict=True)]
    width = max(map(len, rows))
    fill = [torch.full((width - len(row),), pad) for row in rows]
    return {
        "input_ids": torch.stack([torch.cat(pair) for pair in zip(fill, rows, strict=True)]),
        "attention_mask": torch.stack(
            [torch.cat([torch.zeros_like(f), torch.ones_like(r)]) for f, r in zip(fill, rows, strict=True)]
        ),
    }
