"""Where our training step spends its time, operation by operation, according to `torch.profiler`.

Times are each operation's self time. The remainder of the step is Python, hooks and the profiler itself; the last two rows,
for steps without the profiler, show the overhead of the profiler and of Lightning.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from experiments.benchmarks import ours
from experiments.benchmarks.alternate import Candidate, spread
from experiments.benchmarks.bench import Bench, Measured
from experiments.benchmarks.markdown import grid, number, percent
from experiments.benchmarks.result import Result

GROUPS = {
    "matrix products": (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "matmul",
        "linear",
        "_scaled_dot",
        "scaled_dot",
        "_flash",
        "_efficient",
    ),
    "GELU and tanh": ("gelu", "gelu_backward", "tanh", "tanh_backward"),
    "softmax": ("_softmax", "softmax", "_softmax_backward_data", "log_softmax", "_log_softmax"),
    "LayerNorm": ("native_layer_norm", "native_layer_norm_backward", "layer_norm"),
    "dropout": ("native_dropout", "native_dropout_backward", "dropout", "bernoulli_"),
    "sums and scales": ("add", "add_", "mul", "mul_", "div", "div_", "sum", "sub", "rsub", "mean", "neg"),
    "copies and casts": ("copy_", "clone", "contiguous", "_to_copy", "to", "cat"),
    "memory": ("empty", "empty_like", "empty_strided", "zeros", "zeros_like", "zero_", "fill_", "ones_like", "resize_"),
    "embeddings": ("embedding", "index_select", "gather", "embedding_dense_backward"),
    "optimizer": ("_fused_adamw_", "_foreach", "lerp_", "addcdiv_", "addcmul_", "sqrt", "Optimizer"),
}
"""Operations by purpose; all other operations are in `REST`."""
REST, PYTHON = "other operations", "outside of operations"
PLAIN, LIGHTNING = "a step without the profiler", "a step through Lightning"


def measure(bench: Bench) -> Measured:
    """Profile our step, and measure it without the profiler, alternately."""
    options = bench.options
    batch = ours.random_batch(bench.shape, options.batch, options.length, device=options.device)
    bank = {"preset": "houlsby", "bottleneck": options.bottleneck}
    learner = ours.make_learner(bench.shape, bank, device=options.device)
    plain = ours.bare_steps(learner, batch, options.count)
    parts: list[dict[str, float]] = []
    names: dict[str, float] = defaultdict(float)

    def profiled() -> float:
        found, total = profile_once(plain, options.count, options.device)
        parts.append(grouped(found, total))
        for name, value in found.items():
            names[name] += value
        return total

    through = ours.lightning_steps(learner, batch, options.count, str(bench.scratch))
    candidates = [Candidate("profiled", profiled), Candidate(PLAIN, plain), Candidate(LIGHTNING, through)]
    samples = bench.alternate(candidates)
    measured = parts[-options.repetitions :]
    groups = {group: [each[group] for each in measured] for group in (*GROUPS, REST, PYTHON)}
    largest = sorted(((value / len(parts), name) for name, value in names.items()), reverse=True)[:20]
    facts = {"operations": {name: value for value, name in largest}, "bank": "houlsby, own LayerNorms"}
    return Measured("seconds of one step", {**groups, **samples}, facts)


def profile_once(block: Callable[[], float], count: int, device: str) -> tuple[dict[str, float], float]:
    """Return the self time of every operation and the total time, in seconds, for one of the block's ``count`` steps."""
    cuda = torch.device(device).type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        # The profiler uses wall-clock time, whichever clock the other rows use.
        started = time.perf_counter()
        block()
        total = (time.perf_counter() - started) / count
    found: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        own = event.self_device_time_total if cuda else event.self_cpu_time_total
        found[event.key] += own / 1e6 / count
    return dict(found), total


def grouped(found: dict[str, float], total: float) -> dict[str, float]:
    """Return the seconds of each group, of other operations, and of the time outside of operations."""
    sums = dict.fromkeys((*GROUPS, REST), 0.0)
    for name, value in found.items():
        sums[group_of(name)] += value
    return sums | {PYTHON: max(0.0, total - sum(sums.values()))}


def group_of(name: str) -> str:
    """Return the group of an operation.

    Example:
        >>> group_of("aten::addmm"), group_of("aten::_foreach_mul_"), group_of("aten::argmax")
        ('matrix products', 'optimizer', 'other operations')
    """
    short = name.removeprefix("aten::")
    for group, members in GROUPS.items():
        if short in members or any(
            short.startswith(m) for m in members if m.startswith(("_foreach", "_scaled", "_f", "_e", "O"))
        ):
            return group
    return REST


def body(result: Result) -> str:
    """Return the text of the section: the table, and the list of the largest single operations."""
    whole, rows = result.medians["profiled"], []
    for name, taken in sorted(
        result.medians.items(), key=lambda item: (item[0] in ("profiled", PLAIN, LIGHTNING), -item[1])
    ):
        rows.append([name, number(1000 * taken), percent(taken / whole), percent(spread(result.samples[name]))])
    operations: dict[str, Any] = result.facts["operations"]
    largest = ", ".join(
        f"{name} {number(1000 * value)}" for name, value in sorted(operations.items(), key=lambda i: -i[1])
    )
    table = grid(["", "ms per step", "of the profiled step", "spread"], rows)
    return "\n".join(
        [table, "", f"Bank: {result.facts['bank']}. Largest operations, self time in ms per step: {largest}."]
    )
