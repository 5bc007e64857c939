"""Watches a fit, with any Trainer: nothing that is in memory, other than the bank being learned, may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import lightning as L
import torch
from torch import Tensor
from typing_extensions import override

from continual_petl.callbacks.base import StreamCallback
from continual_petl.digests import same_bits, tensor_digests
from continual_petl.errors import ForgettingError
from continual_petl.learner import ContinualLearner
from continual_petl.learner.respond import respond
from continual_petl.store.certificate.finding import Finding
from continual_petl.store.verify.backbone_check import check_backbone
from continual_petl.store.verify.probe import image_shape

Policy = Literal["digests", "probe", "full"]


class NoForgetting(StreamCallback):
    """Watch the backbone, the other banks in memory and their outputs, and raise if anything changes during a fit.

    Digests of the backbone and of every other bank in memory, and the outputs of those banks on fixed inputs, must be the
    same after a fit as before it, bit for bit. This works with your own Trainer, and in `learn`.

    `learn` also checks the run folder after every task, with or without this callback: the chain of certificates must be
    intact and complete, earlier certificates must hold, and re-measured scores must be equal. Banks with ``scope: shared``
    give no such guarantee and are left out. If you pass this callback to `learn`, it says how much is checked:

    Args:
        policy: ``digests`` reads the files of a rotating sample of earlier tasks; ``probe`` also runs their probes, and the
            probes of all tasks whose banks are in memory; ``full`` checks every earlier task, and predicts its test rows
            again if they are available, which takes longer with every task.
        limit: size of the sample. The tasks take turns: of N tasks, each is checked again after at most ``4 * N / limit``
            further tasks. `Run.verify` always checks all tasks.

    Raises:
        ForgettingError: naming the task, the tensor and the likely cause.

    Example::

        L.Trainer(callbacks=[NoForgetting()]).fit(learner, datamodule=data)
        learn(stream, "runs/mine", callbacks=[NoForgetting("full")])
    """

    def __init__(self, policy: Policy = "probe", limit: int = 20) -> None:
        if policy not in get_args(Policy):
            raise ValueError(f"policy: got {policy!r}; allowed: {', '.join(get_args(Policy))}")
        if limit < 1:
            raise ValueError(f"limit: got {limit}; at least one earlier task has to be checked")
        self.policy, self.limit = policy, limit
        self._digests: dict[str, dict[str, str]] = {}
        self._outputs: dict[str, Tensor] = {}

    @override
    def for_worker(self) -> NoForgetting:
        return NoForgetting(self.policy, self.limit)

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        learner = _learner(pl_module)
        raise_if_changed(check_backbone(learner.backbone))
        others = [task for task in learner.plans if task != learner.active]
        self._digests = {task: tensor_digests(learner.bank(task).tensors()) for task in others}
        self._outputs = {task: _outputs(learner, task) for task in others}

    @override
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        learner = _learner(pl_module)
        raise_if_changed(check_backbone(learner.backbone))
        for task, before in self._digests.items():
            after = tensor_digests(learner.bank(task).tensors())
            changed = [name for name in before if after.get(name) != before[name]]
            if changed:
                raise ForgettingError(
                    f"task {task!r}: tensor {changed[0]} of its bank changed while {learner.active!r} was learned "
                    f"({before[changed[0]][:12]} became {after.get(changed[0], 'nothing')[:12]}). Is it still in the "
                    "optimizer, or written to by a callback?"
                )
            if not same_bits(_outputs(learner, task), self._outputs[task]):
                raise ForgettingError(
                    f"task {task!r}: its outputs for fixed inputs changed while {learner.active!r} was learned, although "
                    "every tensor is the same. Is dropout on, was a hook left on the backbone, or does the model keep state "
                    "outside its parameters and buffers?"
                )


def raise_if_changed(findings: Sequence[Finding]) -> None:
    """Raise `ForgettingError` if there are findings of changes.

    Findings that only say what could not be checked, such as a score whose code is missing, are left to `Run.verify`.
    """
    if changed := [finding.message for finding in findings if finding.unchecked is None]:
        raise ForgettingError(" ".join(changed))


def _learner(module: L.LightningModule) -> ContinualLearner:
    if not isinstance(module, ContinualLearner):
        raise TypeError(f"NoForgetting watches a ContinualLearner, got {type(module).__name__}")
    return module


@torch.no_grad()
def _outputs(learner: ContinualLearner, task: str) -> Tensor:
    """Return a bank's outputs for fixed token ids or pixels, with dropout off."""
    batch = {name: tensor.to(learner.model.device) for name, tensor in _fixed(learner).items()}
    with learner.evaluating():
        outputs: Tensor = respond([learner.task_bank(task)], batch)[0]
    return outputs


def _fixed(learner: ContinualLearner) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if learner.backbone.anatomy.images:
        return {"pixel_values": torch.randn(4, *image_shape(learner.backbone), generator=generator)}
    ids = torch.randint(int(learner.model.config.vocab_size), (4, 8), generator=generator)
    # Only generative tasks use labels here.
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
