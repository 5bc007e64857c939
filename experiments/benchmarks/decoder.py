"""Learn one LoRA on a small Llama with random weights, and measure speed and memory.

Random weights do not affect times and sizes; scores would be meaningless and are not reported. Memory is measured in a fresh
process (`measure_memory` starts one): memory left over from other work would be counted too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDTH, LAYERS, TOKENS = 384, 6, 256
NEW_TOKENS, NUM_TEXTS = 32, 16
TASK = "task"


def make_backbone(folder: Path, texts: Iterator[str]) -> None:
    """Write a random Llama of 14 million parameters, with a byte-level BPE trained on ``texts``."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from experiments.studies.random_seq2seq import VOCABULARY, make_tokenizer

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=WIDTH // 64,
        max_position_embeddings=TOKENS,
        tie_word_embeddings=True,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
    )
    make_tokenizer(texts).save_pretrained(folder)
    LlamaForCausalLM(config).save_pretrained(folder)


def stream_of(backbone: Path, data: Path, rows: int, settings: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a stream of one task; ``settings`` adds to its sections ``backbone`` and ``training``."""
    generation = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS}
    few = max(2, rows // 32)
    task = {
        "name": TASK,
        "kind": "causal-lm",
        "data": str(data),
        "limits": {"train": rows, "validation": few, "test": few},
        "max_target_length": TOKENS // 4,
        "generation": generation,
    }
    training = {
        "epochs": 2,
        "batch_size": TOKENS,
        "max_tokens": 8 * TOKENS,
        "eval_batch_size": NUM_TEXTS,
        "precision": "fp32",
    }
    return {
        "name": "benchmark",
        "backbone": {"name": str(backbone), "max_length": TOKENS} | settings.get("backbone", {}),
        "bank": {"preset": "lora", "rank": 16},
        "training": training | settings.get("training", {}),
        "tasks": [task],
        "routing": "off",
    }


def measure_memory(stream: dict[str, Any], *, threads: int) -> dict[str, float]:
    """Return what `learned` measures in a fresh process that gives freed blocks back to the system.

    Args:
        stream: the result of `stream_of`.
        threads: number of torch threads.
    """
    command = [sys.executable, "-W", "ignore", "-m", "experiments.benchmarks.decoder", str(threads), json.dumps(stream)]
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(2**18)}
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def learned(stream: dict[str, Any]) -> dict[str, float]:
    """Learn a stream in this process and return what was measured.

    ``learned`` and ``generated`` are speeds in tokens per second: of training in the second epoch, and of generating texts in
    one batch. ``weights`` is the size of the backbone in bytes, ``training`` the growth of the process while it learned.
    """
    import lightning as L

    from continual_petl import learn
    from continual_petl.callbacks.progress import TokenPace
    from continual_petl.streams.schema.stream_spec import StreamSpec
    from continual_petl.streams.stream import TaskStream
    from experiments.benchmarks.memory import status_of_process
    from experiments.studies.learning import num_bytes

    found: dict[str, float] = {}

    class Watch(L.Callback):
        def __init__(self) -> None:
            self.pace, self.before = TokenPace(), 0.0

        def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            self.before = status_of_process("VmRSS")

        def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            self.pace.begin(time.perf_counter())

        def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, at: int) -> None:
            self.pace.add(batch)

        def on_train_batch_end(
            self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, at: int
        ) -> None:
            found["learned"] = self.pace.end(time.perf_counter) or 0.0
            found["training"] = status_of_process("VmHWM") - self.before

    with tempfile.TemporaryDirectory() as folder:
        run = learn(
            TaskStream(StreamSpec.model_validate(stream)), Path(folder) / "run", callbacks=[Watch()], progress=False
        )
        found["weights"] = float(num_bytes(run.session.models.backbone_of(TASK).model))
        texts = [f"{number} {'word ' * 20}" for number in range(NUM_TEXTS)]
        run.predict(texts, task=TASK)
        began = time.perf_counter()
        run.predict(texts, task=TASK)
        found["generated"] = NUM_TEXTS * NEW_TOKENS / (time.perf_counter() - began)
    return found


if __name__ == "__main__":
    import torch

    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps(learned(json.loads(sys.argv[2]))))
