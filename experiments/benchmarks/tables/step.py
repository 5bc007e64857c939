"""One training step: ours, the peers at their defaults and at their best, full fine-tuning, and the ceiling.

All candidates train on the same token ids, without padding, and have the same bank if the peer supports it: Houlsby's
bottlenecks in every layer. The ceiling is the machine's speed at matrix products (see `experiments.benchmarks.ceiling`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from continual_petl.banks.config.choice import BankChoice
from continual_petl.learner import ContinualLearner
from continual_petl.streams.schema.training_spec import ResolvedTraining, TrainingSpec
from experiments.benchmarks import ours
from experiments.benchmarks.alternate import Candidate, spread
from experiments.benchmarks.bench import Bench, Measured
from experiments.benchmarks.ceiling import Lowest, multiply, num_operations, step_products
from experiments.benchmarks.markdown import factor, grid, number, percent
from experiments.benchmarks.peers.client import Peer
from experiments.benchmarks.peers.scouting import EMULATED, bf16_ratio, finalists, scout, settings_of
from experiments.benchmarks.peers.setting import Method, Setting
from experiments.benchmarks.result import Result

TARGET_FACTOR, TARGET_SHARE = 1.8, 0.65
GRAPHS = "ours, cuda_graphs, through Lightning"
BANKS: dict[str, tuple[dict[str, Any], Lowest]] = {
    "ours": ({"layernorms": "frozen"}, "attention output"),
    "ours, own LayerNorms": ({}, "embeddings"),
}
"""The bank that the peers also have, and the unchanged preset (Houlsby et al. also train the LayerNorms)."""


def measure(bench: Bench) -> Measured:
    """Measure all candidates side by side."""
    candidates, facts = _our_candidates(bench)
    ratio = bf16_ratio(bench.options.device)
    tried, found = {}, []
    for peer, method, size in contenders(bench):
        label = f"{peer.name} {method}"
        base = Setting(
            folder=str(bench.shape.folder),
            method=method,
            size=size,
            device=bench.options.device,
            batch=bench.options.batch,
            length=bench.options.length,
        )
        trials = scout(peer, label, settings_of(base, ratio, quick=bench.options.quick), bench.tell)
        tried[label] = [trial.fact() for trial in trials]
        found += [
            (peer, f"{label}, {'defaults' if setting is trials[0].setting else f'tuned {place}'}", setting)
            for place, setting in enumerate(finalists(trials))
        ]
    for peer, name, setting in found:
        loaded = peer.ask("load", name=name, setting=setting.request())
        facts[name] = {"who": peer.name, "method": setting.method, "setting": setting.words(), **loaded}
        candidates.append(Candidate(name, _steps(peer, name, bench.options.count)))
    on_gpu, more, refused = _on_gpu(bench) if torch.device(bench.options.device).type == "cuda" else ([], {}, {})
    samples = bench.alternate(candidates + on_gpu)
    known = {"candidates": facts | more, "tried": tried, "bf16_ratio": ratio, "refused": refused}
    return Measured("seconds of one step", samples, known)


def contenders(bench: Bench) -> list[tuple[Peer, Method, int]]:
    """Return the peers, each with its method and its rank or bottleneck."""
    shape, size = bench.shape, bench.options.bottleneck
    # Houlsby's bottlenecks have 2 (2 D R + R + D) parameters per layer, LoRA on both output projections (3 D + F) r.
    rank = round(2 * (2 * shape.hidden * size + size + shape.hidden) / (3 * shape.hidden + shape.ffn))
    found: list[tuple[Peer, Method, int]] = [(bench.peers["transformers"], "full", 0)]
    if "adapters" in bench.peers:
        found.append((bench.peers["adapters"], "double_seq_bn", size))
    if "peft" in bench.peers:
        found += [(bench.peers["peft"], "lora_outputs", rank), (bench.peers["peft"], "lora", 8)]
    return found


def _our_candidates(bench: Bench) -> tuple[list[Candidate], dict[str, dict[str, Any]]]:
    options, shape = bench.options, bench.shape
    batch = ours.random_batch(shape, options.batch, options.length, device=options.device)
    candidates, facts = [], {}
    for name, (change, lowest) in BANKS.items():
        learner = ours.make_learner(
            shape, {"preset": "houlsby", "bottleneck": options.bottleneck, **change}, device=options.device
        )
        backbone, size = learner.backbone, ours.num_parameters(learner)
        setting = f"{backbone.precision}, {backbone.attention} attention"
        candidates.append(Candidate(name, ours.bare_steps(learner, batch, options.count)))
        facts[name] = {"who": "ours", "setting": setting, "trainable": size}
        if not change:
            through = f"{name}, through Lightning"
            candidates.append(
                Candidate(through, ours.lightning_steps(learner, batch, options.count, str(bench.scratch)))
            )
            facts[through] = facts[name] | {"setting": f"{setting}, as in a run"}
        products = step_products(shape, options.batch, options.length, options.bottleneck, lowest)
        ceiling = name.replace("ours", "ceiling")
        dtype = next(backbone.model.parameters()).dtype
        block = multiply(products, device=options.device, dtype=dtype, count=options.count)
        candidates.append(Candidate(ceiling, block))
        facts[ceiling] = {
            "who": "ceiling",
            "setting": f"{backbone.precision}, matrix products alone",
            "operations": num_operations(products),
        }
    return candidates, facts


def _on_gpu(bench: Bench) -> tuple[list[Candidate], dict[str, dict[str, Any]], dict[str, str]]:
    """Return our candidates that launch a step differently, with their facts, and why others failed."""
    options = bench.options
    batch = ours.random_batch(bench.shape, options.batch, options.length, device=options.device)
    bank = {"preset": "houlsby", "bottleneck": options.bottleneck, "layernorms": "frozen"}
    spec = BankChoice.model_validate(bank).resolve()
    ways: dict[str, Callable[[ContinualLearner], Callable[[], float]]] = {
        GRAPHS.removeprefix("ours, "): lambda learner: ours.lightning_steps(
            learner, batch, options.count, str(bench.scratch)
        ),
        "whole step as a CUDA graph": lambda learner: ours.bare_steps(learner, batch, options.count, "graph"),
        "compiled layers": lambda learner: ours.bare_steps(learner, batch, options.count, "compiled"),
    }
    candidates, facts, refused = [], {}, {}
    for way, steps in ways.items():
        training = ResolvedTraining.of(TrainingSpec(cuda_graphs=way.startswith("cuda_graphs")), spec)
        learner = ours.make_learner(bench.shape, bank, device=options.device, training=training)
        name, setting = f"ours, {way}", f"{learner.backbone.precision}, {learner.backbone.attention} attention"
        try:
            block = steps(learner)
            block()
        except Exception as error:
            refused[name] = f"{type(error).__name__}: {error}".partition("\n")[0]
            continue
        candidates.append(Candidate(name, block))
        facts[name] = {"who": "ours", "setting": setting, "trainable": ours.num_parameters(learner)}
    return candidates, facts, refused


def _steps(peer: Peer, name: str, count: int) -> Any:
    return lambda: float(peer.ask("steps", name=name, count=count))


def best_peer(result: Result) -> str | None:
    """Return the fastest candidate of the peers; None without peers."""
    facts = result.facts["candidates"]
    names = [name for name in result.samples if facts[name]["who"] in ("peft", "adapters")]
    return min(names, key=lambda name: result.medians[name]) if names else None


def body(result: Result) -> str:
    """Return the table and the conclusions."""
    facts, best = result.facts["candidates"], best_peer(result)
    rows = []
    for name in sorted(result.samples, key=lambda name: result.medians[name]):
        fact, seconds = facts[name], result.medians[name]
        ceiling = result.medians["ceiling, own LayerNorms" if "own LayerNorms" in name else "ceiling"]
        rows.append(
            [
                f"{name} ({fact['setting']})",
                f"{fact['trainable']:,}" if "trainable" in fact else "",
                number(1000 * seconds),
                number(result.settings["batch"] / seconds),
                percent(ceiling / seconds),
                factor(result.medians[best] / seconds) if best else "",
                percent(spread(result.samples[name])),
            ]
        )
    columns = ["", "parameters", "ms per step", "examples/s", "of the ceiling", "relative to the best peer", "spread"]
    return "\n".join([grid(columns, rows), "", *_verdict(result, best), "", *_tried(result)])


def _verdict(result: Result, best: str | None) -> list[str]:
    lines = _compared(result, best, "ours", "Ours")
    if GRAPHS in result.medians:
        lines += _compared(result, best, GRAPHS, "Ours with cuda_graphs, through Lightning,")
    lines += [f"* {name} failed: {why}." for name, why in result.facts.get("refused", {}).items()]
    return lines


def _compared(result: Result, best: str | None, mine: str, name: str) -> list[str]:
    share = result.medians["ceiling"] / result.medians[mine]
    operations = result.facts["candidates"]["ceiling"]["operations"]
    speed = operations / result.medians["ceiling"] / 1e9
    lines = [
        f"* {name} reaches {percent(share)} of the ceiling set by matrix products ({number(operations / 1e9)} Gflop "
        f"at {number(speed)} Gflop/s); the target is {percent(TARGET_SHARE)}: {_said(share >= TARGET_SHARE)}."
    ]
    if best is not None:
        times = result.medians[best] / result.medians[mine]
        theirs = result.medians["ceiling"] / result.medians[best]
        lines.append(
            f"* {name} is {factor(times)} as fast as {best}, the fastest of the peers; the target is {TARGET_FACTOR} x: "
            f"{_said(times >= TARGET_FACTOR)}. That peer reaches {percent(theirs)} of the ceiling, so nothing in this "
            f"precision can be more than {factor(1 / theirs)} as fast."
        )
    return lines


def _tried(result: Result) -> list[str]:
    lines = ["Settings tried for each peer to choose the ones in the table (ms per step):", ""]
    for label, trials in result.facts["tried"].items():
        shown = [
            f"{trial['setting']}: {trial['refusal'] if trial['seconds'] is None else number(1000 * trial['seconds'])}"
            for trial in trials
        ]
        lines.append(f"* {label}: {'; '.join(shown)}.")
    ratio = result.facts["bf16_ratio"]
    left_out = ", so bf16 was not tried" if ratio >= EMULATED else ""
    lines.append(
        f"* A product of two 384 x 384 matrices in bf16 takes {number(ratio)} times as long as in fp32{left_out}."
    )
    return lines


def _said(met: bool) -> str:
    return "met" if met else "missed"
