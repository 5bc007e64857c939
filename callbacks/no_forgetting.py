"""Proves after every task that nothing learned before it has changed; raises `ForgettingError` if anything has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import lightning as L
import torch
from torch import Tensor
from typing_extensions import override

from continual_petl.callbacks.base import StreamCallback, TaskEvent
from continual_petl.digests import same_bits, tensor_digests
from continual_petl.errors import ForgettingError
from continual_petl.learner import ContinualLearner
from continual_petl.learner.answer import answer
from continual_petl.store.certificate.environment import current_environment
from continual_petl.store.certificate.finding import Finding, TaskCheck
from continual_petl.store.verify.backbone_check import check_backbone
from continual_petl.store.verify.certificate import check_task, rotating
from continual_petl.store.verify.probe import image_shape

Policy = Literal["digests", "probe", "full"]
_KEPT_CHECKS = 100


class NoForgetting(StreamCallback):
    """Watch the backbone, the earlier banks and their outputs.

    While a task is learned (even with your own Trainer): digests of the backbone and of every other bank in memory,
    and the outputs of those banks on fixed inputs, must stay the same, bit for bit.

    After a task is committed: the chain of certificates must be intact and complete, earlier certificates must pass
    the checks of the policy, and re-measured scores must be equal. Banks with ``scope: shared`` give no such guarantee and
    are left out.

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
        self.policy = policy
        self._limit = limit
        self._digests: dict[str, dict[str, str]] = {}
        self._outputs: dict[str, Tensor] = {}
        self.checks: dict[str, list[TaskCheck]] = {}
        """For each of the most recently learned tasks, the results of checking the earlier tasks."""
        self._full: dict[str, int] = {}

    def kinds(self, task: str) -> list[str]:
        """Return how each earlier certificate was checked after a task: ``digests``, ``probe`` or ``full``."""
        checks, full = self.checks.get(task, []), self._full.get(task, 0)
        probes = sum("probe" in check.how for check in checks)
        return ["full"] * full + ["probe"] * (probes - full) + ["digests"] * (len(checks) - probes)

    @override
    def for_worker(self) -> NoForgetting:
        return NoForgetting(self.policy, self._limit)

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        learner = _learner(pl_module)
        self._raise_if(check_backbone(learner.backbone))
        others = [task for task in learner.plans if task != learner.active]
        self._digests = {task: tensor_digests(learner.bank(task).tensors()) for task in others}
        self._outputs = {task: _outputs(learner, task) for task in others}

    @override
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        learner = _learner(pl_module)
        self._raise_if(check_backbone(learner.backbone))
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

    @override
    def on_task_end(self, event: TaskEvent, cells: list[dict[str, Any]]) -> None:
        store = event.store
        if problems := store.problems():
            raise ForgettingError(" ".join(problems))
        earlier = [link.task for link in store.links()[: event.index] if not link.shared]
        self.checks[event.task], self._full[event.task] = [], 0
        for known in (self.checks, self._full):
            while len(known) > _KEPT_CHECKS:
                del known[next(iter(known))]
        for task in self._chosen(event, earlier):
            # None if this run has no backbone in the task's precision; `Run.verify` loads one.
            backbone = event.backbones.get(store.manifest(task).environment.precision)
            check = event.checked.get(task) or check_task(store, task, backbone, probe=self.policy != "digests")
            self._raise_if(check.findings)
            self.checks[event.task].append(check)
            if self.policy == "full" and event.recheck is not None and backbone is not None:
                recheck = event.recheck(task)
                self._raise_if(recheck.findings)
                self._full[event.task] += recheck.unreachable is None
        for cell in cells:
            if cell["task"] in earlier and cell["status"] == "measured":
                _check_cell(event, cell)

    def _chosen(self, event: TaskEvent, earlier: list[str]) -> list[str]:
        if self.policy == "full":
            return earlier
        sample = rotating(earlier, event.index, self._limit)
        also = event.models if self.policy == "probe" else frozenset()
        return [task for task in earlier if task in sample or task in also]

    @staticmethod
    def _raise_if(findings: Sequence[Finding]) -> None:
        # Findings that only say what could not be checked, such as a score whose code is missing, are left to `verify`.
        if changed := [finding.message for finding in findings if finding.unchecked is None]:
            raise ForgettingError(" ".join(changed))


def _check_cell(event: TaskEvent, cell: dict[str, Any]) -> None:
    manifest = event.store.manifest(cell["task"])
    backbone = event.backbones[manifest.environment.precision]
    now = current_environment(backbone.model.device, backbone.precision, backbone.attention)
    first = manifest.scores[cell["split"]].scores.get(manifest.metric)
    same_environment = not manifest.environment.differences(now)
    if same_environment and cell["value"] != first:
        raise ForgettingError(
            f"task {cell['task']!r}: its {manifest.metric} on its {cell['split']} split was {first!r} when it was "
            f"learned and is {cell['value']!r} after {event.task!r}. Its certificate holds and its rows are the same, so "
            "check how it is measured: the Trainer's arguments, a callback, the library that computes the scores."
        )


def _learner(module: L.LightningModule) -> ContinualLearner:
    if not isinstance(module, ContinualLearner):
        raise TypeError(f"NoForgetting watches a ContinualLearner, got {type(module).__name__}")
    return module


@torch.no_grad()
def _outputs(learner: ContinualLearner, task: str) -> Tensor:
    """Return a bank's outputs for fixed token ids or pixels, with dropout off."""
    batch = {name: tensor.to(learner.model.device) for name, tensor in _fixed(learner).items()}
    modes = [(module, module.training) for module in learner.modules()]
    learner.eval()
    try:
        return answer(learner.backbone, learner.bank(task), learner.plans[task].pooling, batch)
    finally:
        for module, training in modes:
            module.training = training


def _fixed(learner: ContinualLearner) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if learner.backbone.anatomy.images:
        return {"pixel_values": torch.randn(4, *image_shape(learner.backbone), generator=generator)}
    ids = torch.randint(int(learner.model.config.vocab_size), (4, 8), generator=generator)
    # Only generative tasks use labels here.
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
