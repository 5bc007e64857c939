"""Generated texts follow the bank's logits, step by step, regardless of the checkpoint's settings and padding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from continual_petl.backbones.backbone import Backbone, load_backbone
from continual_petl.banks.bank import Bank
from continual_petl.learner.generate import decode
from continual_petl.streams.schema.stream_spec import GenerationSpec
from tests.learner.passes import generated, outputs_of
from tests.learner.test_answer import make_bank
from tests.tiny import make_tokenizer
from tests.usual import few

Folder = Callable[..., Path]
FAMILIES: list[tuple[str, str]] = [
    ("bart", "seq2seq"),
    ("t5", "seq2seq"),
    ("gpt2", "causal-lm"),
    ("llama", "causal-lm"),
]
# Padded on the left, as for decoders; encoders ignore the padding because of the mask.
SOURCES = torch.tensor([[0, 0, 10, 11], [2, 20, 21, 22]])


def greedy(backbone: Backbone, bank: Bank, kind: str, row: Tensor, steps: int) -> list[int]:
    """Return the most likely tokens, each from a separate pass without a cache."""
    found: list[int] = []
    for _ in range(steps):
        if kind == "seq2seq":
            labels = torch.tensor([[*found, 0]])
            batch = {"input_ids": row[None], "attention_mask": torch.ones(1, len(row)).long(), "labels": labels}
        else:
            ids = torch.tensor([[*row.tolist(), *found]])
            batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
        with torch.no_grad():
            token = int(outputs_of(backbone, bank, "last", batch)[0, -1].argmax())
        if token == 3:
            break
        found.append(token)
    return found


def wandering(backbone: Backbone, kind: str, preset: str) -> Bank:
    """Return a bank with random values that change the generated texts."""
    bank = make_bank(backbone, kind, preset)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in bank.parameters():
            parameter.add_(0.7 * torch.randn(parameter.shape, generator=generator))
    return bank


@pytest.mark.parametrize(("family", "kind"), FAMILIES)
@pytest.mark.parametrize("preset", few(["houlsby", "prefix", "prompt", "layernorm"], 2))
def test_greedy_picks_the_likeliest_token(backbone_folder: Folder, family: str, kind: str, preset: str) -> None:
    backbone, tokenizer = load_backbone(str(backbone_folder(family))), make_tokenizer(family)
    bank = wandering(backbone, kind, preset)
    spec = GenerationSpec(max_new_tokens=5)
    rows = [SOURCES[0, 2:], SOURCES[1]]
    alone = [
        generated(
            backbone, bank, spec, {"input_ids": r[None], "attention_mask": torch.ones(1, len(r)).long()}, tokenizer
        )
        for r in rows
    ]
    assert [row for (row,) in alone] == [greedy(backbone, bank, kind, row, 5) for row in rows]
    if kind == "causal-lm":
        batch = {"input_ids": SOURCES, "attention_mask": (SOURCES != 0).long()}
        assert generated(backbone, bank, spec, batch, tokenizer) == [row for (row,) in alone]


@pytest.mark.parametrize(("family", "kind"), FAMILIES)
def test_generation_config_of_the_checkpoint_is_ignored(
    backbone_folder: Folder, family: str, kind: str, recwarn: pytest.WarningsRecorder, capsys: Any
) -> None:
    backbone, tokenizer = load_backbone(str(backbone_folder(family))), make_tokenizer(family)
    bank, spec = wandering(backbone, kind, "houlsby"), GenerationSpec(max_new_tokens=5)
    batch = {"input_ids": SOURCES, "attention_mask": torch.ones_like(SOURCES)}
    before = generated(backbone, bank, spec, batch, tokenizer)
    config: Any = backbone.model.generation_config
    own: dict[str, Any] = {
        "do_sample": True,
        "temperature": 0.3,
        "top_p": 0.5,
        "top_k": 3,
        "num_beams": 3,
        "min_length": 9,
    }
    own |= {"max_length": 11, "forced_bos_token_id": 50, "forced_eos_token_id": 3, "repetition_penalty": 3.0}
    own |= {"no_repeat_ngram_size": 1, "length_penalty": 3.0, "suppress_tokens": [before[0][0]], "early_stopping": True}
    for key, value in own.items():
        setattr(config, key, value)
    assert generated(backbone, bank, spec, batch, tokenizer) == before
    assert capsys.readouterr().err == ""
    assert not recwarn.list


@pytest.mark.parametrize(("family", "kind"), FAMILIES)
def test_generation_settings_of_the_task_are_used(backbone_folder: Folder, family: str, kind: str) -> None:
    backbone, tokenizer = load_backbone(str(backbone_folder(family))), make_tokenizer(family)
    bank = wandering(backbone, kind, "houlsby")
    batch = {"input_ids": SOURCES[1:], "attention_mask": torch.ones_like(SOURCES[1:])}

    def made(**settings: Any) -> list[int]:
        (row,) = generated(backbone, bank, GenerationSpec(**settings), batch, tokenizer)
        return row

    assert len(made(max_new_tokens=7, min_new_tokens=7)) == 7
    assert len(made(max_new_tokens=2, min_new_tokens=2)) == 2
    free = made(max_new_tokens=7, min_new_tokens=7, no_repeat_ngram_size=1)
    assert len(set(free)) == 7

    def likely(row: list[int]) -> float:
        """Return the log-probability of seven generated tokens."""
        if kind == "seq2seq":
            inputs = {**batch, "labels": torch.tensor([row])}
            logits = outputs_of(backbone, bank, "last", inputs)[0]
        else:
            ids = torch.cat([batch["input_ids"], torch.tensor([row])], 1)
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
            logits = outputs_of(backbone, bank, "last", inputs)[0, -8:-1]
        return float(logits.detach().log_softmax(-1)[torch.arange(7), row].sum())

    # With forty beams, the text must be at least as likely as the greedy one.
    wide = made(max_new_tokens=7, min_new_tokens=7, num_beams=40)
    assert likely(wide) >= likely(made(max_new_tokens=7, min_new_tokens=7)) - 1e-4


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_source_tokens_do_not_count_as_repetition(backbone_folder: Folder, family: str, num_beams: int) -> None:
    backbone, tokenizer = load_backbone(str(backbone_folder(family))), make_tokenizer(family)
    bank = wandering(backbone, "causal-lm", "houlsby")

    def made(source: list[int], **settings: int) -> list[int]:
        ids = torch.tensor([source])
        spec = GenerationSpec(max_new_tokens=1, num_beams=num_beams, **settings)
        (row,) = generated(backbone, bank, spec, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, tokenizer)
        return row

    source = SOURCES[1].tolist()
    while made(source)[0] not in source:
        source += made(source)
    # The first generated token repeats nothing, although it occurs in the source.
    assert made(source, no_repeat_ngram_size=1) == made(source)


def test_start_token_equal_to_the_end_token_is_handled(backbone_folder: Folder) -> None:
    backbone, tokenizer = load_backbone(str(backbone_folder("bart"))), make_tokenizer("bart")
    bank = wandering(backbone, "seq2seq", "houlsby")
    bias: Any = backbone.model.final_logits_bias
    bias[0, 3] = 1e3  # every text ends immediately
    batch = {"input_ids": SOURCES[1:], "attention_mask": torch.ones_like(SOURCES[1:])}
    spec = GenerationSpec(max_new_tokens=4, no_repeat_ngram_size=1)
    assert generated(backbone, bank, spec, batch, tokenizer) == [[]]


def test_decoded_texts_have_no_special_tokens() -> None:
    assert decode(make_tokenizer("bart"), [[2, 15, 16, 3], []]) == ["w10 w11", ""]
