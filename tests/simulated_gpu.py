"""A simulated GPU: tensors that say they are on ``cuda`` while their values are in ordinary memory.

As on a real GPU, an operation on tensors of different devices fails, and values have to be copied to the CPU before NumPy can
read them. Kernels, streams and speed are not simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

GPU = torch.device("cuda", 0)
_MIXES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
"""Operations that accept tensors of different devices."""
_MAY_INDEX = {torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default}
"""Operations whose indices may be on the CPU."""


class OnGPU(Tensor):
    """A tensor on the simulated GPU."""

    inner: Any

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnGPU:
        made: OnGPU = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("cpu"),  # a CPU build of torch has no autograd for other devices
            requires_grad=inner.requires_grad,
        )
        made.inner = inner
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnGPU({self.inner!r})"

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The simulated GPU."""
        return GPU

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        """Whether this is a tensor on a GPU."""
        return True

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # torch itself takes this for a tensor on the CPU, which it would not copy.
        if func is Tensor.cpu or (func is Tensor.to and torch.device("cpu") in _devices(args[1:], kwargs)):
            rest = [leaf for leaf in (*args[1:], kwargs.get("dtype")) if isinstance(leaf, torch.dtype)]
            return torch.ops.aten._to_copy.default(args[0], device=torch.device("cpu"), dtype=rest[0] if rest else None)
        if func is Tensor.to and len(args) > 1 and isinstance(args[1], OnGPU):
            return args[0].to(GPU, args[1].dtype)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Save the values as a tensor on the CPU; ``torch.load`` is asked to load them there anyway."""
        return self.inner.__reduce_ex__(protocol)

    def tolist(self) -> Any:
        """Return the values as Python numbers; torch's own method supports no subclass."""
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _computed(func, args, kwargs or {})


def _devices(args: Any, kwargs: dict[str, Any]) -> list[torch.device]:
    given = [*args, kwargs.get("device")]
    return [torch.device(leaf) for leaf in given if isinstance(leaf, torch.device | str)]


class _SimulatedGPU(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets functions that create or copy tensors accept the simulated GPU as their device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _TensorFunction(TorchFunctionMode):
    """Lets ``torch.tensor`` accept the simulated GPU: it creates tensors before any dispatch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and GPU in _devices((), kwargs):
            return func(*args, **kwargs | {"device": "cpu"}).to(GPU)
        return func(*args, **kwargs)


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    on_gpu = [tensor for tensor in tensors if isinstance(tensor, OnGPU)]
    wanted = kwargs.get("device")
    if on_gpu and func.overloadpacket.__name__.startswith("new_"):
        wanted = GPU  # called by torch itself, which takes the given tensor for one on the CPU
    there = torch.device(wanted).type == "cuda" if wanted is not None else bool(on_gpu)
    if on_gpu and func not in _MIXES:
        checked = tensors[:1] if func in _MAY_INDEX else tensors
        if any(tensor.ndim and not isinstance(tensor, OnGPU) for tensor in checked):
            raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found cuda:0 and cpu")
    if func is torch.ops.aten.copy_.default:
        there = isinstance(args[0], OnGPU)
    if wanted is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    inner_args, inner_kwargs = tree_map(lambda leaf: leaf.inner if isinstance(leaf, OnGPU) else leaf, (args, kwargs))
    result = func(*inner_args, **inner_kwargs)
    if func is torch.ops.aten._to_copy.default and result is inner_args[0]:
        result = result.clone()
    if not there:
        return result
    # An operation in place returns the tensor it was given.
    given = {id(leaf.inner): leaf for leaf in on_gpu}
    return tree_map(lambda leaf: _wrapped(leaf, given) if isinstance(leaf, Tensor) else leaf, result)


def _wrapped(leaf: Tensor, given: dict[int, OnGPU]) -> OnGPU:
    return given[id(leaf)] if id(leaf) in given else OnGPU(leaf)


_parse_to = torch._C._nn._parse_to


def _parsed(*args: Any, **kwargs: Any) -> Any:
    """Return the arguments of a module's ``to``, which may be a tensor."""
    if args and isinstance(args[0], OnGPU):
        args = (GPU, args[0].dtype, *args[1:])
    return _parse_to(*args, **kwargs)


@contextmanager
def simulated_gpu() -> Iterator[None]:
    """Make the device ``cuda`` usable for tensors inside the ``with`` block; modules can be moved there and back."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with (
            # A CPU build of torch refuses to initialise CUDA, which is not needed here.
            patch.object(torch.cuda, "_lazy_init", lambda: None),
            patch.object(torch.backends.cudnn, "is_acceptable", lambda tensor: False),
            patch.object(torch.cuda, "get_device_name", lambda device: "simulated"),
            patch.object(torch.cuda, "get_device_capability", lambda device: (9, 0)),
            # Random numbers come from the generator of the CPU.
            patch.object(torch.cuda, "get_rng_state", lambda device: torch.get_rng_state()),
            patch.object(torch.cuda, "set_rng_state", lambda state, device: None),
            patch.object(torch._C._nn, "_parse_to", _parsed),
            # Views of a subclass do not work in inference mode.
            patch.object(torch._C, "_InferenceMode", lambda mode: torch.no_grad() if mode else nullcontext()),
            _SimulatedGPU(),  # type: ignore[no-untyped-call]
            _TensorFunction(),
        ):
            yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)
