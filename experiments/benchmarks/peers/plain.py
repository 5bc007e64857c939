"""The worker of transformers itself: full fine-tuning, and the bare backbone."""

from __future__ import annotations

from experiments.benchmarks.peers.classifier import plain
from experiments.benchmarks.peers.serve import serve
from experiments.benchmarks.peers.workbench import Workbench

if __name__ == "__main__":
    serve(Workbench(plain).commands())
