"""Memory needed to train one bank, relative to the backbone's size.

Three numbers are measured in one process: the peak of the bytes allocated by torch while a bank is trained (backbone, bank,
gradients, moments, and everything that one step computes), the backbone's bytes, and the bytes that autograd saves for one
batch. The target is ``peak <= 1.6 x backbone + activations``. In addition, the growth of the process's resident memory since
before the backbone was loaded is measured (Linux's high-water mark, reset when training begins), which includes freed blocks
that the allocator has kept.

Measure in a fresh process (`measure` starts one): memory left over from other work would be counted too.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROMISED = 1.6
"""Target for the peak without activations, in multiples of the backbone."""


def measure(
    *, preset: str = "houlsby", bottleneck: int = 48, rows: int = 32, tokens: int = 64, gives_back: bool = False
) -> dict[str, float]:
    """Return the numbers from one fresh process, in bytes, and ``ratio``: (peak - activations) / backbone.

    ``resident_ratio`` is the same ratio for resident bytes.

    Args:
        preset: preset of the bank.
        bottleneck: bottleneck size.
        rows: rows per batch.
        tokens: tokens per row.
        gives_back: whether glibc returns freed blocks of at least 256 KiB to the system at once, instead of keeping those
            below a threshold that it raises to up to 32 MiB. If not, resident bytes are mostly freed blocks.
    """
    asked = {"preset": preset, "bottleneck": bottleneck, "rows": rows, "tokens": tokens}
    command = [sys.executable, str(Path(__file__).resolve()), json.dumps(asked)]
    environment = os.environ | ({"MALLOC_MMAP_THRESHOLD_": str(2**18)} if gives_back else {})
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    ratio, resident = ((found[key] - found["activations"]) / found["backbone"] for key in ("peak", "resident"))
    return found | {"ratio": ratio, "resident_ratio": resident}


def measure_here(*, preset: str, bottleneck: int, rows: int, tokens: int) -> dict[str, float]:
    """Return peak, backbone, activations and resident bytes of this process."""
    import torch

    from continual_petl import load_backbone

    # Imports and first-use initialisation are not part of a bank's cost.
    _learn(load_backbone("minilm", precision="fp32"), {"preset": "bitfit"}, rows=2, tokens=4, num_steps=2)
    gc.collect()
    before = status_of_process("VmRSS")
    backbone = load_backbone("minilm", precision="fp32")
    size = sum(p.untyped_storage().nbytes() for p in backbone.model.parameters())
    Path("/proc/self/clear_refs").write_text("5")
    bank = {"preset": preset, "bottleneck": bottleneck}
    learner, module = _learn(backbone, bank, rows=rows, tokens=tokens, num_steps=4)
    resident = status_of_process("VmHWM") - before
    batch = next(iter(module.train_dataloader()))
    learner.train()
    kept = kept_by_autograd(lambda: learner._loss(learner(batch), batch), learner)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        _learn(backbone, bank, rows=rows, tokens=tokens, num_steps=4)
    return {"peak": size + _highest(profile), "backbone": size, "activations": kept, "resident": resident}


def _learn(backbone: Any, bank: dict[str, Any], *, rows: int, tokens: int, num_steps: int) -> tuple[Any, Any]:
    """Learn one task on random rows; return the learner and its data."""
    import lightning as L
    import numpy as np

    from continual_petl import ContinualLearner
    from continual_petl.learner.plan import RowFacts, plan_task
    from continual_petl.streams.batches.datamodule import TaskDataModule
    from continual_petl.streams.encoding.rows import TokenisedRows
    from continual_petl.streams.preparation.prepare import TaskData
    from continual_petl.streams.schema.stream_spec import StreamSpec, TrainingSpec

    task = {"name": "memory", "kind": "classification", "data": "unused.csv"}
    spec = StreamSpec.model_validate({"name": "memory", "backbone": "minilm", "bank": bank, "tasks": [task]})
    learner = ContinualLearner(backbone)
    (one,) = spec.tasks
    learner.add_task(plan_task(spec, one, backbone, RowFacts(("no", "yes")), bank=spec.resolved_bank(one)))
    rng = np.random.default_rng(0)
    num_rows = rows * num_steps
    split = TokenisedRows(
        ids=rng.integers(1000, 30000, num_rows * tokens).astype(np.int32),
        offsets=np.arange(num_rows + 1) * tokens,
        token_types=None,
        labels=rng.integers(0, 2, num_rows),
    )
    facts: dict[str, Any] = {"labels": ("no", "yes"), "notices": (), "digests": {}, "num_truncated": {}}
    data = TaskData(task=spec.tasks[0], train=split, validation=split, test=None, **facts)
    module = TaskDataModule(data, TrainingSpec(batch_size=rows), pad_token_id=0, seed=0, max_length=1024)
    silent: dict[str, Any] = {
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = L.Trainer(**silent, logger=False, accelerator="cpu", max_epochs=1, num_sanity_val_steps=0)
    trainer.fit(learner, datamodule=module)
    return learner, module


def _highest(profile: Any) -> int:
    """Return the peak of the allocated bytes, relative to the start of the profile."""
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    total = highest = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        total += event.nbytes()
        highest = max(highest, total)
    return highest


def alive_bytes(forward: Any) -> int:
    """Return how many of the bytes that torch allocates on the CPU in a call are still allocated while its result is held."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        held = forward()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    del held
    return sum(event.nbytes() for event in events)


def kept_by_autograd(forward: Any, module: Any) -> int:
    """Return the total size in bytes of the storages kept for the backward pass, excluding parameters and buffers.

    Args:
        forward: called once, without arguments.
        module: module whose parameters and buffers are not counted.
    """
    import torch

    known = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(kept.values())


def status_of_process(key: str) -> float:
    """Return a size from /proc/self/status in bytes, such as `VmRSS` or its peak, `VmHWM`."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


if __name__ == "__main__":
    print(json.dumps(measure_here(**json.loads(sys.argv[1]))))
