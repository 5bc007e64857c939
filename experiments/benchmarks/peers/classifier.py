"""The model that every peer trains: an encoder, mean pooling, a linear head.

Shape suffixes: B rows, T tokens, D width, C labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW
from transformers import AutoConfig, AutoModel

from experiments.benchmarks.peers.setting import Setting

Build = Callable[[Any, Setting], nn.Module]
"""Adds a peer's adapters to a bare encoder; only trainable parameters keep ``requires_grad``."""


class Classifier(nn.Module):
    """An encoder with a head, in the precision of its setting."""

    def __init__(self, encoder: nn.Module, config: Any, setting: Setting) -> None:
        super().__init__()
        self.encoder, self.setting = encoder, setting
        self.vocabulary = int(config.vocab_size)
        self.head = nn.Linear(config.hidden_size, setting.num_labels)

    def forward(self, ids_BT: Tensor, mask_BT: Tensor, **more: Any) -> Tensor:
        """Return logits (B, C), float32."""
        with self._arithmetic():
            states_BTD = self.encoder(input_ids=ids_BT, attention_mask=mask_BT, **more).last_hidden_state
        weights_BT1 = mask_BT.unsqueeze(-1).float()
        logits: Tensor = self.head((states_BTD.float() * weights_BT1).sum(1) / weights_BT1.sum(1))
        return logits

    def _arithmetic(self) -> AbstractContextManager[Any]:
        if self.setting.precision == "fp32":
            return nullcontext()
        return torch.autocast(torch.device(self.setting.device).type, dtype=torch.bfloat16)

    def trainable(self) -> Iterator[nn.Parameter]:
        """Yield the trainable parameters."""
        return (parameter for parameter in self.parameters() if parameter.requires_grad)


def load(setting: Setting, build: Build) -> Classifier:
    """Return a classifier ready to train.

    Args:
        setting: the model to load; see `Setting`.
        build: adds the peer's adapters; see `Build`.
    """
    config = AutoConfig.from_pretrained(setting.folder)
    if not setting.dropout:
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    arguments: dict[str, Any] = {} if setting.attention is None else {"attn_implementation": setting.attention}
    encoder = AutoModel.from_pretrained(setting.folder, config=config, add_pooling_layer=False, **arguments)
    encoder = encoder.to(torch.bfloat16 if setting.precision == "bf16" else torch.float32)
    torch.manual_seed(setting.seed)
    model = Classifier(build(encoder, setting), config, setting)
    return model.to(setting.device).train()


def plain(encoder: Any, setting: Setting) -> nn.Module:
    """Return the bare encoder, entirely trainable (full) or frozen (none)."""
    assert isinstance(encoder, nn.Module)
    return encoder.requires_grad_(setting.method == "full")


def make_optimizer(model: Classifier) -> AdamW:
    """Return the optimizer of the trainable parameters."""
    setting = model.setting
    # None, the default, leaves the choice to torch.
    return AdamW(
        model.trainable(),
        lr=setting.learning_rate,
        fused=True if setting.fused else None,
        capturable=setting.execution == "graph",
    )


def random_batch(model: Classifier) -> tuple[Tensor, Tensor, Tensor]:
    """Return token ids (B, T), a mask without padding, and labels (B,)."""
    setting = model.setting
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(5, model.vocabulary, (setting.batch, setting.length), generator=generator)
    labels_B = torch.randint(setting.num_labels, (setting.batch,), generator=generator)
    return ids_BT.to(setting.device), torch.ones_like(ids_BT).to(setting.device), labels_B.to(setting.device)


def train_step(model: Classifier, optimizer: AdamW, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Take one step and return its loss."""
    ids_BT, mask_BT, labels_B = batch
    loss = F.cross_entropy(model(ids_BT, mask_BT), labels_B)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()
