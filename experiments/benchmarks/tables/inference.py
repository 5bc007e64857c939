"""Prediction with one bank compared with the bare backbone: ours, and each peer compared with its own bare backbone."""

from __future__ import annotations

from typing import Any

import torch

from continual_petl.backbones.auto_defaults import fastest
from experiments.benchmarks import ours
from experiments.benchmarks.alternate import Candidate, spread
from experiments.benchmarks.bench import Bench, Measured
from experiments.benchmarks.markdown import grid, number, percent
from experiments.benchmarks.peers.client import Peer
from experiments.benchmarks.peers.execution import Execution
from experiments.benchmarks.peers.setting import Method, Setting
from experiments.benchmarks.result import Result

TARGETS = {"houlsby": 0.06, "lora": 0.04}
"""Maximum slowdown. For scale: the matrix products of a Houlsby bank on MiniLM are 4.2 % of the backbone's."""
BATCH = 64


def measure(bench: Bench) -> Measured:
    """Measure all candidates side by side."""
    options = bench.options
    batch = ours.random_batch(bench.shape, options.batch, options.length, device=options.device)
    candidates: list[Candidate] = []
    facts: dict[str, dict[str, Any]] = {}
    for preset, size in (("houlsby", options.bottleneck), ("lora", min(8, options.bottleneck))):
        learner = ours.make_learner(
            bench.shape,
            {"preset": preset, "bottleneck": size},
            device=options.device,
            attention=fastest().attention,
        )
        backbone = learner.backbone
        setting = f"{backbone.precision}, {backbone.attention} attention"
        on_gpu = torch.device(options.device).type == "cuda"
        ways: tuple[Execution, ...] = ("eager", "graph") if on_gpu else ("eager",)
        for way in ways:
            who, how = ("ours, CUDA graph", f"{setting}, CUDA graph") if way == "graph" else ("ours", setting)
            bare, name = f"{who}, bare", f"{who}, {preset}"
            if bare not in facts:
                candidates.append(Candidate(bare, ours.bare_answers(learner, batch, options.count, way)))
                facts[bare] = {"setting": how, "bare": None}
            candidates.append(Candidate(name, ours.answers(learner, batch, options.count, way)))
            facts[name] = {"setting": how, "bare": bare}
    for peer, method in _peers(bench):
        found = _theirs(bench, peer, method)
        candidates += [candidate for candidate, _ in found]
        facts |= {candidate.name: fact for candidate, fact in found}
    return Measured("seconds of one batch", bench.alternate(candidates), {"candidates": facts})


def _peers(bench: Bench) -> list[tuple[Peer, Method]]:
    methods: dict[str, Method] = {"adapters": "double_seq_bn", "peft": "lora"}
    return [(peer, methods[name]) for name, peer in bench.peers.items() if name in methods]


def _theirs(bench: Bench, peer: Peer, method: Method) -> list[tuple[Candidate, dict[str, Any]]]:
    """Return two candidates of a peer with its default settings: the bare backbone, and the backbone with a bank."""
    options = bench.options
    found = []
    bare = f"{peer.name}, bare"
    for kind, size in (("none", 0), (method, options.bottleneck if method == "double_seq_bn" else 8)):
        name = bare if kind == "none" else f"{peer.name}, {method}"
        setting = Setting(
            folder=str(bench.shape.folder),
            method="none" if kind == "none" else method,
            size=size,
            device=options.device,
            batch=options.batch,
            length=options.length,
        )
        peer.ask("load", name=name, setting=setting.request())
        fact = {"setting": setting.words(), "bare": None if kind == "none" else bare}
        found.append((Candidate(name, _passes(peer, name, options.count)), fact))
    return found


def _passes(peer: Peer, name: str, count: int) -> Any:
    return lambda: float(peer.ask("passes", name=name, count=count))


def body(result: Result) -> str:
    """Return the table and the conclusions."""
    facts, rows, lines = result.facts["candidates"], [], []
    for name, seconds in result.medians.items():
        bare = facts[name]["bare"]
        slower = None if bare is None else seconds / result.medians[bare] - 1
        rows.append(
            [
                f"{name} ({facts[name]['setting']})",
                number(1000 * seconds),
                number(result.settings["batch"] / seconds),
                "" if slower is None else percent(slower),
                percent(spread(result.samples[name])),
            ]
        )
        if slower is not None and name.startswith("ours"):
            target = TARGETS[name.rpartition(", ")[2]]
            said = "met" if slower <= target else "missed"
            lines.append(
                f"* {name} is {percent(slower)} slower than the bare backbone; the target is at most {percent(target)}: "
                f"{said}."
            )
    table = grid(["", "ms per batch", "examples/s", "slower than bare", "spread"], rows)
    return "\n".join([table, "", *lines])
