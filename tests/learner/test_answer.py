"""If the bank changes nothing, outputs equal those of transformers' models for every task kind, padded or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from continual_petl.backbones.backbone import Backbone, load_backbone
from continual_petl.banks.bank import Bank
from continual_petl.banks.config.choice import BankChoice
from continual_petl.learner.task_bank import head_of, shifted_right
from tests.heads.fresh import fresh_head
from tests.learner.passes import outputs_of
from tests.small import small

Folder = Callable[..., Path]

IDS = torch.tensor([[2, 10, 11, 12, 13, 3], [2, 20, 21, 3, 0, 0]])
MASK = (IDS != 0).long()
TARGETS = torch.tensor([[2, 30, 31, 3], [2, 40, 3, -100]])


def make_bank(backbone: Backbone, kind: str, preset: str = "lora", **choice: Any) -> Bank:
    """Return a fresh bank; by default LoRA, which changes nothing yet."""
    head = fresh_head(kind, backbone.hidden_size, 3)
    spec = BankChoice.model_validate(small(preset) | choice).resolve()
    reads: Any = "logits" if kind in ("seq2seq", "causal-lm") else "states"
    bank = Bank(spec, backbone.model, backbone.sites, head, reads=reads)
    bank.initialise(backbone.model, 1)
    return bank.eval()


def text_batch(kind: str) -> dict[str, Tensor]:
    """Return a batch of two rows as in training for a kind of text task."""
    if kind != "causal-lm":
        return {"input_ids": IDS, "attention_mask": MASK} | ({"labels": TARGETS} if kind == "seq2seq" else {})
    labels = torch.tensor([[-100, -100, 11, 12, 13, 3], [-100, -100, -100, 3, -100, -100]])
    return {"input_ids": IDS, "attention_mask": MASK, "labels": labels}


@pytest.mark.parametrize(
    ("family", "kind"), [("bart", "seq2seq"), ("mbart", "seq2seq"), ("t5", "seq2seq"), ("gpt2", "causal-lm")]
)
def test_generation_loss_matches_the_model(backbone_folder: Folder, family: str, kind: str) -> None:
    backbone = load_backbone(str(backbone_folder(family)))
    bank, batch = make_bank(backbone, kind), text_batch(kind)
    with torch.no_grad():
        loss = head_of(bank).loss(outputs_of(backbone, bank, "last", batch), batch["labels"])
        expected = backbone.model(**batch).loss
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_decoder_inputs_match_transformers(backbone_folder: Folder, family: str) -> None:
    backbone = load_backbone(str(backbone_folder(family)))
    model: Any = backbone.model
    expected = model.prepare_decoder_input_ids_from_labels(TARGETS)
    ours = shifted_right(backbone, TARGETS)
    seen = torch.cat([torch.ones(2, 1), TARGETS[:, :-1] != -100], 1).bool()
    assert torch.equal(ours[seen], expected[seen])


def test_encoder_decoder_pooling_matches_its_classifier(backbone_folder: Folder) -> None:
    """`BartForSequenceClassification` reads the decoder's state at the end token, which here is the last token."""
    backbone = load_backbone(str(backbone_folder("bart")))
    bank = make_bank(backbone, "classification")
    with torch.no_grad():
        base: Any = backbone.model.base_model
        states = base(input_ids=IDS, attention_mask=MASK).last_hidden_state
        expected = head_of(bank)(states[IDS == 3])
        found = outputs_of(backbone, bank, "last", {"input_ids": IDS, "attention_mask": MASK})
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("family", ["bert", "bart", "t5", "gpt2"])
@pytest.mark.parametrize("kind", ["classification", "token-classification"])
@pytest.mark.parametrize("preset", ["houlsby", "prefix", "prompt"])
def test_padding_does_not_change_outputs(backbone_folder: Folder, family: str, kind: str, preset: str) -> None:
    backbone = load_backbone(str(backbone_folder(family)))
    bank = make_bank(backbone, kind, preset)
    with torch.no_grad():
        whole = outputs_of(backbone, bank, "mean", {"input_ids": IDS, "attention_mask": MASK})
        alone = outputs_of(backbone, bank, "mean", {"input_ids": IDS[1:, :4], "attention_mask": MASK[1:, :4]})
    torch.testing.assert_close(whole[1:, :4] if kind == "token-classification" else whole[1:], alone)
    assert whole.shape == ((2, 6, 3) if kind == "token-classification" else (2, 3))


@pytest.mark.parametrize(("family", "kind"), [("bart", "seq2seq"), ("t5", "seq2seq"), ("gpt2", "causal-lm")])
def test_padding_does_not_change_the_loss(backbone_folder: Folder, family: str, kind: str) -> None:
    backbone = load_backbone(str(backbone_folder(family)))
    bank, batch = make_bank(backbone, kind, "houlsby"), text_batch(kind)
    narrow = {"labels": 3 if kind == "seq2seq" else 4}
    alone = {name: tensor[1:, : narrow.get(name, 4)] for name, tensor in batch.items()}
    head = head_of(bank)
    with torch.no_grad():
        whole = outputs_of(backbone, bank, "last", batch)[1:]
        torch.testing.assert_close(
            head.loss(whole, batch["labels"][1:]), head.loss(outputs_of(backbone, bank, "last", alone), alone["labels"])
        )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_images_are_pooled_over_all_patches(backbone_folder: Folder, precision: Any) -> None:
    backbone = load_backbone(str(backbone_folder("vit")), precision=precision)
    bank = make_bank(backbone, "image-classification")
    pixels = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        states = backbone.model(pixel_values=pixels.to(backbone.model.dtype)).last_hidden_state.float()
        found = outputs_of(backbone, bank, "mean", {"pixel_values": pixels})
        torch.testing.assert_close(found, head_of(bank)(states.mean(1)))
        torch.testing.assert_close(
            outputs_of(backbone, bank, "first", {"pixel_values": pixels}), head_of(bank)(states[:, 0])
        )
    assert found.dtype == torch.float32
