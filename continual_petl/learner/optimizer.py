"""The optimizer of a task: new for each task, over the parameters of exactly one bank.

Defaults follow Houlsby et al. 2019, section 3.1 and adapter-bert's optimization.py: Adam, linear warm-up over a tenth of
the steps, then linear decay to zero; no weight decay on biases and LayerNorms. Other schedules are those of
`transformers.get_scheduler`, after the same warm-up.

Steps are fused where torch supports it: a bank consists of many small tensors, and a loop over them costs a dozen calls for
each. Moments and parameters match those of the loop up to rounding, and are deterministic.

``adamw_8bit`` is AdamW with 8-bit moments (Dettmers et al. 2022, https://arxiv.org/abs/2110.02861), from `torchao`. A moment
of 4,096 values or more is stored in blocks of 256, with one byte per value and one float32 scale per block; smaller ones stay
in float32. There are two differences from `torchao.optim.AdamW8bit`:

* The step is never compiled, so it needs no compiler and gives the same bits in every process on one machine.
* The state dict has plain tensors only (codes, scales, and the values that the codes stand for): a checkpoint contains no
  class from another package, and a resumed fit continues with exactly the moments it was stopped with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from continual_petl.banks.bank import Bank
from continual_petl.errors import InputError
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.streams.schema.schedule_spec import with_options
from continual_petl.streams.schema.stream_spec import ResolvedTraining

NAME = "adamw_8bit"
_PARTS = ("codes", "scale", "qmap")


def check_8bit(training: ResolvedTraining) -> None:
    """Raise `InputError` if a task asks for this optimizer and `torchao` is not installed."""
    if training.optimizer == NAME:
        _torchao()


def check_schedule(training: ResolvedTraining) -> None:
    """Raise `InputError` if a schedule would not fall from the learning rate of its task."""
    schedule = with_options(training.schedule)
    ends = {"min_lr": schedule.min_lr, "lr_end": schedule.lr_end}
    if schedule.name == "polynomial" and schedule.lr_end is None:
        ends["lr_end"] = 1e-7  # the default of transformers
    for key, end in ends.items():
        if end is not None and end >= training.learning_rate:
            raise InputError(
                f"training.schedule: {key} is {end:g}, but the learning rate falls to it from training.learning_rate, which "
                f"is {training.learning_rate:g}: give a smaller {key}."
            )


def make_adamw_8bit(groups: Sequence[dict[str, Any]], training: ResolvedTraining) -> Optimizer:
    """Return the optimizer over groups of parameters.

    Raises:
        InputError: if `torchao` is not installed.
    """
    base, quantised = _torchao()

    # The class that it extends is only known once torchao is imported.
    class AdamW8bit(base):  # type: ignore[misc, valid-type]
        """AdamW with 8-bit moments; see the docstring of this module."""

        def step(self, closure: Callable[[], Any] | None = None) -> Any:
            """Take one step, without compiling it."""
            with torch.compiler.set_stance("force_eager"):
                return super().step(closure)

        def state_dict(self) -> dict[str, Any]:
            """Return the state with each 8-bit moment as a mapping of plain tensors."""
            whole: dict[str, Any] = super().state_dict()
            states = {
                number: {key: _apart(value) if isinstance(value, quantised) else value for key, value in state.items()}
                for number, state in whole["state"].items()
            }
            return whole | {"state": states}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            """Restore what `state_dict` returned.

            Raises:
                ValueError: if a moment does not have the form that this version of torchao gives it.
            """
            held = [parameter for group in self.param_groups for parameter in group["params"]]
            states = {
                number: {
                    key: _together(value, self._new_buffer(held[number], key == "exp_avg"))
                    if isinstance(value, Mapping)
                    else value
                    for key, value in state.items()
                }
                for number, state in state_dict["state"].items()
            }
            super().load_state_dict(state_dict | {"state": states})

    return AdamW8bit(list(groups), lr=training.learning_rate, betas=training.betas, eps=training.eps)


def _torchao() -> tuple[type[Optimizer], type[Tensor]]:
    """Return the optimizer of torchao and the class of its 8-bit moments."""
    try:
        from torchao.optim import AdamW8bit
        from torchao.optim.subclass_8bit import OptimState8bit
    except ImportError as error:
        raise InputError(
            f"training.optimizer: {NAME} needs the package torchao, which is not installed: run pip install "
            f"'continual-petl[quantize]', or write optimizer: adamw. ({error})",
        ) from None
    return AdamW8bit, OptimState8bit


def _apart(moment: Any) -> dict[str, Tensor]:
    """Return the tensors of an 8-bit moment by name."""
    return {name: getattr(moment, name) for name in _PARTS}


def _together(parts: Mapping[str, Tensor], fresh: Any) -> Any:
    """Copy tensors into a fresh 8-bit moment, and return it.

    Args:
        parts: as `_apart` returned them.
        fresh: the moment of the same parameter before its first step.
    """
    expected = _apart(fresh) if all(hasattr(fresh, name) for name in _PARTS) else {}
    forms = [{name: (tensor.shape, tensor.dtype) for name, tensor in found.items()} for found in (parts, expected)]
    if forms[0] != forms[1] or not torch.equal(parts["qmap"].cpu(), expected["qmap"].cpu()):
        raise ValueError("a moment of the optimizer does not have the form in which torchao stores it")
    for name, tensor in expected.items():
        tensor.copy_(parts[name])
    return fresh


def make_optimizer(bank: nn.Module, training: ResolvedTraining, *, fused: bool = True) -> Optimizer:
    """Return a fresh optimizer over the bank's parameters.

    Args:
        bank: the bank; only its parameters that are not frozen are trained.
        training: the optimizer and its settings.
        fused: whether to use the fused step where torch supports it: float32 on one CPU or GPU.

    Raises:
        InputError: if the optimizer needs a package that is not installed.
    """
    groups = _groups(bank, training)
    trainable = [parameter for group in groups for parameter in group["params"]]
    if training.optimizer == NAME:
        return make_adamw_8bit(groups, training)
    # fused=None lets torch choose between foreach and the plain loop.
    kernel = True if fused and _can_fuse(trainable) else None
    if training.optimizer == "sgd":
        return SGD(groups, lr=training.learning_rate, momentum=training.momentum, fused=kernel)
    cls = AdamW if training.optimizer == "adamw" else Adam
    return cls(groups, lr=training.learning_rate, betas=training.betas, eps=training.eps, fused=kernel)


def _groups(bank: nn.Module, training: ResolvedTraining) -> list[dict[str, Any]]:
    """Return the trained parameters in groups of the same learning rate and weight decay."""
    trainable = {name: parameter for name, parameter in bank.named_parameters() if parameter.requires_grad}
    above = dict.fromkeys(trainable, 0)
    if training.layer_decay is not None:
        assert isinstance(bank, Bank)
        above = {name: bank.layers_above(name) or 0 for name in trainable}
    groups: list[dict[str, Any]] = [
        {
            # Biases and LayerNorms are the vectors among the parameters.
            "params": [p for name, p in trainable.items() if above[name] == number and (p.ndim > 1) is matrices],
            "weight_decay": training.weight_decay if matrices else 0.0,
            "lr": training.learning_rate * (training.layer_decay or 1.0) ** number,
        }
        for number in sorted(set(above.values()))
        for matrices in (True, False)
    ]
    return [group for group in groups if group["params"]]


def check_layer_decay(plan: TaskPlan, bank: Bank) -> None:
    """Raise `InputError` if a task asks for learning rates by layer, but no parameter of its bank belongs to a layer."""
    if plan.training.layer_decay is None or any(
        bank.layers_above(name) is not None for name, _ in bank.named_parameters()
    ):
        return
    raise InputError(
        f"task {plan.name!r}, training.layer_decay: got {plan.training.layer_decay:g}, but no parameter of its bank belongs "
        "to a layer: networks that compute prefixes, sparse differences and the head are shared by all layers. Remove it, or "
        "choose another preset, such as prefix_flat or houlsby."
    )


def _can_fuse(parameters: Sequence[nn.Parameter]) -> bool:
    devices = {parameter.device.type for parameter in parameters}
    return len(devices) == 1 and devices <= {"cpu", "cuda"} and {p.dtype for p in parameters} == {torch.float32}


def make_schedule(
    optimizer: Optimizer, training: ResolvedTraining, num_steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """Return the learning rate schedule over ``num_steps`` optimizer steps."""
    return torch.optim.lr_scheduler.LambdaLR(optimizer, _factor(training, num_steps))


def _factor(training: ResolvedTraining, num_steps: int) -> Callable[[int], float]:
    num_warmup = round(training.warmup * num_steps)
    after = _after_warmup(training, num_warmup, num_steps)

    def factor(step: int) -> float:
        if step < num_warmup:
            # With (step + 1) instead of step, the first step has a positive learning rate.
            return (step + 1) / (num_warmup + 1)
        return after(step)

    return factor


def _after_warmup(training: ResolvedTraining, num_warmup: int, num_steps: int) -> Callable[[int], float]:
    """Return the learning rate of each step after the warm-up, as a share of the peak."""
    schedule = with_options(training.schedule)
    if schedule.name in ("constant", "constant_with_warmup"):
        return lambda step: 1.0
    if schedule.name == "linear":
        return lambda step: max(0.0, (num_steps - step) / max(1, num_steps - num_warmup))
    from transformers import get_scheduler  # importing it takes a second

    # These are functions of the step, and of the peak where a key is a learning rate.
    unused = SGD([torch.zeros(1, requires_grad=True)], lr=training.learning_rate)
    options = schedule.options
    if schedule.num_decay_steps is not None:
        options["num_decay_steps"] = min(schedule.num_decay_steps, num_steps - num_warmup)
    made = get_scheduler(schedule.name, unused, num_warmup, num_steps, options)
    (found,) = made.lr_lambdas
    # A scheduler is also asked for the step after the last one, for which not all of them are defined.
    return lambda step: float(found(min(step, num_steps - 1)))
