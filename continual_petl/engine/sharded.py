"""Divides the frozen backbone among the processes that share a fit, with FSDP2 (``torch.distributed.fsdp.fully_shard``).

Only the layers' matrices are divided: each process holds a part of every matrix, and gathers whole matrices only for the
layer that it is computing. Each process has a complete copy of the bank, which is small compared with the backbone, and of
the embeddings, the output head and the vectors (norms and biases, of which a bank may have its own). DDP averages the bank's
gradients, so checkpoints, resuming and the learned bank are the same as with ``strategy: ddp``.

Lightning's ``ModelParallelStrategy`` is not used, because it divides the trained parameters as well and writes a checkpoint
as a folder of shards. Besides, a bank's modules run in hooks, outside the forward pass of any module for which FSDP2 could
gather parameters.
"""

from __future__ import annotations

import lightning as L
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from continual_petl.backbones.backbone import Backbone
from continual_petl.backbones.quantised import is_quantised
from continual_petl.banks.bank import Bank
from continual_petl.errors import InputError
from continual_petl.learner import ContinualLearner

SHARDED = "fsdp2"
"""The value of ``trainer.strategy``."""


class ShardedBackbone(DDPStrategy):
    """DDP for the active bank of a `ContinualLearner`, on a backbone whose layers are divided among the processes.

    The backbone cannot be reassembled: it is used for one fit, in processes that end after this fit.
    """

    @override
    def setup(self, trainer: L.Trainer) -> None:
        """Divide the backbone before any of it is moved to the device."""
        learner = trainer.lightning_module
        assert isinstance(learner, ContinualLearner)
        shard(learner.backbone, learner.active_bank, self.root_device.type, trainer.world_size)
        super().setup(trainer)

    @override
    def _setup_model(self, model: nn.Module) -> DistributedDataParallel:
        # DDP would send the backbone from the first process to all others, which it cannot do with a divided one.
        assert isinstance(model, ContinualLearner)
        known = [*model.model.named_parameters(), *model.model.named_buffers()]
        ignored = [f"model.{name}" for name, _ in known]
        ignore = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
        ignore(model, ignored)  # type: ignore[no-untyped-call]  # torch gives it no types
        return super()._setup_model(model)


def shard(backbone: Backbone, bank: Bank, device: str, world_size: int) -> None:
    """Divide the layers of a backbone among all processes; every process must call this.

    Args:
        backbone: the whole backbone, which nothing else uses.
        bank: the bank that is about to be trained.
        device: type of the devices, such as cuda.
        world_size: number of processes.

    Raises:
        InputError: if the backbone or the bank cannot be divided in this way.
    """
    model = backbone.model
    if any(map(is_quantised, model.parameters())):
        raise InputError(
            f"trainer.strategy: got {SHARDED}, but backbone {backbone.name!r} is quantised ({backbone.quantize}), and FSDP2 "
            "cannot divide quantised weights: remove quantize, or write strategy: ddp."
        )
    shapes = {name: parameter.ndim for name, parameter in model.named_parameters()}
    if own := [name for name in bank.substitutes(model) if shapes.get(name, 0) > 1]:
        raise InputError(
            f"trainer.strategy: got {SHARDED}, but the bank has its own version of whole matrices of the backbone, such as "
            f"{own[0]}, so there is little to divide: write strategy: ddp, or choose a preset with fewer parameters, such as "
            "lora."
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # takes a second to import

    mesh = init_device_mesh(device, (world_size,))
    vectors = {parameter for parameter in model.parameters() if parameter.ndim < 2}
    for layer in backbone.sites.layers:
        fully_shard(model.get_submodule(layer.path), mesh=mesh, ignored_params=vectors)
