"""Find a peer's fastest settings: try all of them for a few steps, and measure the fast ones in the table.

This module runs in our environment, not in a worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from experiments.benchmarks.peers.client import Peer, PeerError
from experiments.benchmarks.peers.setting import Precision, Setting

CLOSE = 1.15
"""Maximum time relative to the fastest trial for a setting to enter the table."""
WIDTH = 384
EMULATED = 4.0
"""bfloat16 is not tried if a matrix product takes at least this many times as long as in float32 (no bf16 units)."""


@dataclass(frozen=True)
class Trial:
    """One setting, tried for a few steps: ``seconds`` per step, or the reason why it failed in ``refusal``."""

    setting: Setting
    seconds: float | None
    refusal: str = ""

    def fact(self) -> dict[str, Any]:
        """Return the entry for the table."""
        return {"setting": self.setting.words(), "seconds": self.seconds, "refusal": self.refusal}


def bf16_ratio(device: str) -> float:
    """Return the ratio of bfloat16 to float32 time for a matrix product, each the fastest of three."""

    def fastest(dtype: torch.dtype) -> float:
        left, right = (torch.ones(WIDTH, WIDTH, device=device, dtype=dtype) for _ in range(2))
        times = []
        for _ in range(4):
            started = time.perf_counter()
            torch.matmul(left, right).sum().item()
            times.append(time.perf_counter() - started)
        return min(times[1:])

    return fastest(torch.bfloat16) / fastest(torch.float32)


def settings_of(base: Setting, ratio: float, *, quick: bool) -> list[Setting]:
    """Return the settings to try: the defaults first, then tuned settings with both types of attention and all precisions.

    Tuned means the fused optimizer and no backbone dropout (drawing random numbers takes time, and ours has no dropout). On a
    GPU, the tuned settings are bfloat16 with sdpa attention: eager, with compiled layers, and as a CUDA graph. There, other
    precisions and attention took 2 to 8 times as long as the graph (bert-base on an H100, 32 x 128), and time is short.

    Args:
        base: the defaults.
        ratio: result of `bf16_ratio`.
        quick: whether to try only one tuned setting.
    """
    arithmetics: tuple[Precision, ...] = ("fp32", "autocast", "bf16") if ratio < EMULATED else ("fp32",)
    tuned = replace(base, dropout=False, fused=True)
    found = [base, replace(tuned, attention="eager")]
    if not quick:
        found = [base] + [
            replace(tuned, attention=attention, precision=precision)
            for precision in arithmetics
            for attention in ("eager", "sdpa")
        ]
    if torch.device(base.device).type == "cuda":
        last = replace(tuned, attention="sdpa", precision="bf16")
        found = [base, last, replace(last, execution="compiled"), replace(last, execution="graph")]
    return found


def scout(
    peer: Peer,
    label: str,
    settings: list[Setting],
    tell: Callable[[str], None],
    do: Literal["steps", "passes"] = "steps",
) -> list[Trial]:
    """Try every setting for three training steps or passes after one for warm-up, with one model in memory at a time.

    If a setting fails, the worker is restarted, so it must not hold any other model.
    """
    trials = []
    for setting in settings:
        try:
            peer.ask("load", name="trial", setting=setting.request())
            peer.ask(do, name="trial", count=1)
            trials.append(Trial(setting, float(peer.ask(do, name="trial", count=3))))
            peer.ask("drop", name="trial")
        except PeerError as error:
            trials.append(Trial(setting, None, str(error).partition("\n")[0]))
            peer.restart()  # after an error on a GPU, a process may be unusable
        shown = trials[-1].seconds
        tell(f"{label}: {setting.words()}: {trials[-1].refusal if shown is None else f'{1000 * shown:.0f} ms'}")
    return trials


def finalists(trials: list[Trial]) -> list[Setting]:
    """Return the defaults, if they work, and all tuned settings that are close to the fastest.

    Raises:
        PeerError: if no setting worked.
    """
    times = [trial.seconds for trial in trials if trial.seconds is not None]
    if not times:
        raise PeerError(f"no setting worked: {'; '.join(trial.refusal for trial in trials)}")
    return [
        trial.setting
        for number, trial in enumerate(trials)
        if trial.seconds is not None and (number == 0 or trial.seconds <= CLOSE * min(times))
    ]


def fastest(trials: list[Trial]) -> Setting:
    """Return the fastest setting of all; see `finalists` for errors."""
    allowed = finalists(trials)
    return min(
        (trial for trial in trials if trial.seconds is not None and trial.setting in allowed),
        key=lambda trial: trial.seconds or 0.0,
    ).setting
