"""Computes losses and gradients with CUDA graphs, for small models whose operations take longer to launch than to compute.

A CUDA graph records all operations of one batch and repeats them with a single launch. It always reads and writes the same
memory, so there is one graph for each shape of a batch; to keep their number small, rows are padded to a multiple of `STEP`
tokens. Clipping and the optimizer run as usual.

Every batch is computed by a graph, also the first one of its shape, so a task that is resumed repeats the same bits.

Shape suffixes: B rows, W tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import lightning as L
import torch
from lightning.pytorch.plugins.precision import Precision
from torch import Tensor, nn

from continual_petl.backbones.backbone import Backbone
from continual_petl.backbones.weights import ran_out
from continual_petl.errors import InputError
from continual_petl.heads.head import IGNORED
from continual_petl.kind_registry import kind_of
from continual_petl.learner.respond import STATES
from continual_petl.learner.task_plan import TaskPlan

STEP = 16
"""Rows are padded to a multiple of this number of tokens."""
MAX_GRAPHS = 64
"""Maximum number of graphs in memory; the least recently used one is recorded again when it is needed."""
_WARMUP = 2
_NOT_READ = ("index",)
_PADDING = {"attention_mask": 0, "token_type_ids": 0, "labels": IGNORED, STATES: 0}

Batch = dict[str, Tensor]


class Recorded(NamedTuple):
    """A recorded batch: its inputs, which the caller overwrites, and its outputs, which `replay` overwrites."""

    batch: Batch
    loss: Tensor
    gradients: Sequence[Tensor | None]
    replay: Callable[[], None]
    work: Callable[[], Sequence[Tensor | None]]
    """The recorded function. A graph does not own the tensors that existed before it was recorded; this keeps them."""


def graphs_of(
    plan: TaskPlan, backbone: Backbone, bank: nn.Module, loss: Callable[[Batch], Tensor], trainer: L.Trainer
) -> StepGraphs | None:
    """Return the graphs for a fit, or None if the task does not ask for them.

    Args:
        plan: the task.
        backbone: its backbone.
        bank: the bank that is trained.
        loss: computes the loss of a batch.
        trainer: the Trainer that has just moved the bank to its device.

    Raises:
        InputError: if they cannot be used here.
    """
    if not plan.training.cuda_graphs:
        return None
    check_graphs(plan, backbone.model.device, trainer.world_size)
    check_precision(plan, trainer)
    limit = backbone.max_length
    return StepGraphs(
        bank,
        loss,
        pad_token_id=getattr(backbone.model.config, "pad_token_id", None) or 0,
        max_length=limit,
        max_labels=plan.max_target_length or limit if kind_of(plan).decodes else limit,
    )


class StepGraphs:
    """The graphs of one fit; calling it returns the loss of a batch, with gradients for the bank.

    Args:
        bank: the bank that is trained, on a GPU; its parameters stay where they are until the fit ends.
        loss: computes the loss of a batch without waiting for the GPU.
        pad_token_id: pads ``input_ids``.
        max_length: maximum number of tokens of a row after padding.
        max_labels: the same for labels, which in seq2seq tasks are a text of their own.
    """

    def __init__(
        self,
        bank: nn.Module,
        loss: Callable[[Batch], Tensor],
        *,
        pad_token_id: int,
        max_length: int,
        max_labels: int,
    ) -> None:
        self._parameters = tuple(parameter for parameter in bank.parameters() if parameter.requires_grad)
        self._loss, self._padding = loss, _PADDING | {"input_ids": pad_token_id}
        self._max_length, self._max_labels = max_length, max_labels
        self._graphs: OrderedDict[Hashable, Recorded] = OrderedDict()
        self._pool: Any = None

    def __call__(self, batch: Batch) -> Tensor:
        """Return the mean loss of a batch.

        Raises:
            InputError: if the batch cannot be recorded.
        """
        read = {name: tensor for name, tensor in batch.items() if name not in _NOT_READ}
        texts = "input_ids" in read
        sizes = {name: self._size(name, tensor) if texts else tuple(tensor.shape) for name, tensor in read.items()}
        key = tuple((name, sizes[name], tensor.dtype) for name, tensor in read.items())
        if key not in self._graphs:
            self._graphs[key] = self._record(read, sizes)
        recorded = self._graphs[key]
        self._graphs.move_to_end(key)
        if len(self._graphs) > MAX_GRAPHS:
            self._graphs.popitem(last=False)
        self._fill(recorded.batch, read)
        loss: Tensor = _Replay.apply(recorded, *self._parameters)  # type: ignore[no-untyped-call]  # torch gives it no types
        return loss

    def _size(self, name: str, tensor: Tensor) -> tuple[int, ...]:
        """Return the shape of a tensor after padding; only tensors with an axis of tokens are padded."""
        tokens = name in self._padding and tensor.ndim > 1 and (name != "labels" or not tensor.is_floating_point())
        if not tokens:
            return tuple(tensor.shape)
        width, limit = tensor.shape[1], self._max_labels if name == "labels" else self._max_length
        return (len(tensor), max(width, min(-(-width // STEP) * STEP, limit)), *tensor.shape[2:])

    def _fill(self, batch: Batch, read: Batch) -> None:
        for name, tensor in read.items():
            if batch[name].shape != tensor.shape:
                batch[name].fill_(self._padding[name])[:, : tensor.shape[1]].copy_(tensor)
            else:
                batch[name].copy_(tensor)

    def _record(self, read: Batch, sizes: dict[str, tuple[int, ...]]) -> Recorded:
        batch = {name: tensor.new_empty(sizes[name]) for name, tensor in read.items()}
        self._fill(batch, read)

        def work() -> Sequence[Tensor | None]:
            loss = self._loss(batch)
            return loss.detach(), *torch.autograd.grad(loss, self._parameters, allow_unused=True)

        device = next(iter(batch.values())).device
        # Recording draws random numbers too, which must not change those of the step itself.
        with torch.random.fork_rng([device], device_type=device.type), torch.enable_grad():
            (loss, *gradients), replay, self._pool = record(work, self._pool)
        assert loss is not None
        return Recorded(batch, loss, gradients, replay, work)


def record(
    work: Callable[[], Sequence[Tensor | None]], pool: Any
) -> tuple[Sequence[Tensor | None], Callable[[], None], Any]:
    """Record the operations of ``work`` as a CUDA graph, after running it to load all kernels.

    Args:
        work: always reads the same tensors.
        pool: the memory that all graphs of a fit share, from an earlier call; None at first.

    Returns:
        The results of ``work``, a function that computes them again, in place, and the memory pool.

    Raises:
        InputError: if an operation cannot be recorded.
    """
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch gives it no types
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(_WARMUP):
            work()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, pool=pool):
            results = work()
    except RuntimeError as error:
        if ran_out(error):
            raise
        raise InputError(
            "training.cuda_graphs is true, but a training step of this backbone and bank cannot be recorded as a CUDA graph "
            f"({str(error).partition(chr(10))[0]}). Write cuda_graphs: false."
        ) from error
    return results, graph.replay, graph.pool()


class _Replay(torch.autograd.Function):
    """Repeats a recorded batch; its backward pass only scales the gradients that the graph has already computed."""

    @staticmethod
    def forward(ctx: Any, recorded: Recorded, *parameters: Tensor) -> Tensor:
        recorded.replay()
        ctx.gradients = recorded.gradients
        return recorded.loss.clone()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *_scaled(ctx.gradients, scale))


def _scaled(gradients: Sequence[Tensor | None], scale: Tensor) -> list[Tensor | None]:
    """Return scaled copies of gradients: the graph overwrites the originals."""
    scaled = iter(torch._foreach_mul([gradient for gradient in gradients if gradient is not None], scale))
    return [None if gradient is None else next(scaled) for gradient in gradients]


def check_graphs(plan: TaskPlan, device: torch.device, num_processes: int) -> None:
    """Raise `InputError` if a task asks for CUDA graphs that cannot be used on this device with these settings."""
    if not plan.training.cuda_graphs:
        return
    if num_processes > 1:
        why = f"{num_processes} processes train it together (trainer.devices)"
    elif device.type != "cuda":
        why = f"it is trained on a device of type {device.type}, and only GPUs of type cuda have such graphs"
    elif (several := kind_of(plan).several) is not None:
        why = f"{several}, and their number differs from row to row"
    elif plan.training.packing:
        why = "training.packing gives every batch another shape"
    elif plan.training.gradient_checkpointing:
        why = "training.gradient_checkpointing computes layers again outside the graph"
    else:
        return
    raise _refused(plan, why)


def check_precision(plan: TaskPlan, trainer: L.Trainer) -> None:
    """Raise `InputError` if the Trainer casts weights in every step: a graph would repeat the casts of the first weights."""
    if type(trainer.precision_plugin) is not Precision:
        raise _refused(plan, f"the Trainer's precision is {trainer.precision} (training.precision: bf16 works)")


def _refused(plan: TaskPlan, why: str) -> InputError:
    return InputError(
        f"task {plan.name!r}: training.cuda_graphs is true, but {why}. Write cuda_graphs: false, or change the other setting."
    )
