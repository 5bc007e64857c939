"""Scores of options equal those of plain transformers with the merged bank, for each row and option separately."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from continual_petl import InputError
from continual_petl.backbones.backbone import load_backbone
from continual_petl.banks.merge import merged
from continual_petl.learner.generate import Decoding
from continual_petl.learner.plan import RowFacts, plan_task
from continual_petl.learner.respond import respond
from continual_petl.learner.task_bank import TaskBank
from continual_petl.streams.batches.loaders import EvaluationLoader
from tests.encoding import encode_rows
from tests.learner.test_generate import FAMILIES, wandering
from tests.streams_in_code import stream
from tests.tiny import make_tokenizer

OPTIONS = ("w10", "w10 w11", "w12 w13 w14 w15")
SOURCES = ["w1", "w2 w3 w4 w5 w6 w7", "w8 w9", "w20 w21 w22"]


def one_by_one(model: Any, kind: str, source: list[int], option: list[int]) -> list[float]:
    """Return the log-probability of each token of an option after a source, computed by transformers only."""
    if kind == "seq2seq":
        start = model.config.decoder_start_token_id
        logits = model(
            input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[start, *option[:-1]]])
        ).logits[0]
    else:
        logits = model(input_ids=torch.tensor([source + option])).logits[0, len(source) - 1 : -1]
    found: Tensor = logits.log_softmax(-1).gather(1, torch.tensor(option)[:, None])
    return found[:, 0].tolist()


@pytest.mark.parametrize(("family", "kind"), FAMILIES)
def test_scores_are_those_of_transformers_alone(backbone_folder: Callable[..., Path], family: str, kind: str) -> None:
    folder, tokenizer = backbone_folder(family), make_tokenizer(family)
    loaded = load_backbone(str(folder))
    backbone = dataclasses.replace(loaded, model=loaded.model.double())
    bank = wandering(backbone, kind, "lora").double()
    plain: Any = merged(backbone.model, bank)
    rows = encode_rows(kind, SOURCES, tokenizer=tokenizer, max_length=40, options=OPTIONS)
    targets = [tokenizer(text, add_special_tokens=False)["input_ids"] + [3] for text in OPTIONS]
    if kind == "seq2seq":
        targets = [tokenizer(text)["input_ids"] for text in OPTIONS]
    sources = [rows.row(number).ids.tolist() for number in range(len(rows))]
    with torch.no_grad():
        alone = [[one_by_one(plain, kind, source, option) for option in targets] for source in sources]
    choice = {"name": "choice", "kind": kind, "data": "rows.jsonl", "options": list(OPTIONS), "max_target_length": 8}
    spec = stream(folder, [choice]).spec
    plan = plan_task(spec, spec.tasks[0], loaded, RowFacts(OPTIONS))
    divisors = {"none": [1, 1, 1], "tokens": [*map(len, targets)], "characters": [*map(len, OPTIONS)]}
    for normalise, lengths in divisors.items():
        plan = plan.model_copy(update={"normalise": normalise})
        for batch in EvaluationLoader(rows, 3, 0, kind=kind):
            with torch.no_grad():
                (found,) = respond([TaskBank(backbone, plan, bank)], batch, decoding=Decoding(tokenizer=None))
            expected = [
                [sum(own) / length for own, length in zip(alone[n], lengths, strict=True)]
                for n in batch["index"].tolist()
            ]
            # The head rounds the float64 logits to float32.
            assert isinstance(found, Tensor)
            torch.testing.assert_close(found.double(), torch.tensor(expected).double(), atol=2e-5, rtol=1e-6)
        # Rows with their own options: some of the same ones, in another order.
        places = [[0, 1, 2], [2, 0], [1, 2], [1, 0, 2]]
        row_options = [[OPTIONS[place] for place in own] for own in places]
        own_rows = encode_rows(kind, SOURCES, tokenizer=tokenizer, max_length=40, row_options=row_options).take(
            range(4)
        )
        own_plan = plan.model_copy(update={"labels": None})
        for batch in EvaluationLoader(own_rows, 3, 0, kind=kind):
            with torch.no_grad():
                (found,) = respond([TaskBank(backbone, own_plan, bank)], batch, decoding=Decoding(tokenizer=None))
            assert isinstance(found, Tensor)
            for row, scores in zip(batch["index"].tolist(), found, strict=True):
                expected_row = [sum(alone[row][place]) / lengths[place] for place in places[row]]
                expected_row += [-torch.inf] * (len(scores) - len(expected_row))
                torch.testing.assert_close(scores.double(), torch.tensor(expected_row).double(), atol=2e-5, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["w1", "w2 " * 9], r"has 10 tokens with its end token, but a target has room for 8 \(max_target_length\)"),
        (["w1", "w999", "w998"], "'w999' and 'w998' have the same tokens"),
    ],
)
def test_options_that_cannot_be_told_apart_are_refused(options: list[str], message: str) -> None:
    tokenizer = make_tokenizer("llama")
    with pytest.raises(InputError, match=message):
        encode_rows("causal-lm", ["w1"], tokenizer=tokenizer, max_length=40, max_target_length=8, options=options)
