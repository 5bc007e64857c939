"""Ways of running a step or a pass on a GPU, where launching the operations can take longer than computing them.

A CUDA graph records all operations of one step and repeats them with a single launch. Compiled layers fuse some of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn

Execution = Literal["eager", "compiled", "graph"]
"""eager: operation by operation; compiled: each layer with ``torch.compile``; graph: the step or pass as one CUDA graph."""
_WARMUP = 3


def recorded(work: Callable[[], Any]) -> Callable[[], None]:
    """Return a function that repeats ``work`` as a CUDA graph; ``work`` always reads and writes the same tensors.

    Raises:
        RuntimeError: if an operation cannot be recorded, such as one that waits for the GPU.
    """
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(_WARMUP):
            work()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()

    def repeat(keep: object = work) -> None:
        # The graph does not own the tensors that existed before it was recorded, such as an optimizer's moments.
        graph.replay()

    return repeat


def compile_layers(model: nn.Module) -> None:
    """Compile each layer of a model; layers of one kind share their compiled code.

    Raises:
        ValueError: if the model has no list of layers.
    """
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) > 1]
    if not stacks:
        raise ValueError("the model has no list of layers to compile")
    for layer in max(stacks, key=len):
        layer.compile()
