"""What one model for all of the classic five tasks reaches on the same rows: learned jointly, or one task after another.

Both fine-tune all weights of the backbone, with one head per task, so the task of each row has to be given. The learning rate
is the one in `RATES` with the best mean validation score for joint training; sequential fine-tuning uses the same rate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments.continual import one_model
from experiments.routing.compare import Tell
from experiments.routing.streams import CLASSIC, SEED, Scale
from experiments.studies.learning import run_trial
from experiments.studies.trial import Method, Trial

RATES = (5e-5, 1.5e-4, 4e-4)


def models(data: Path, scale: Scale, tell: Tell) -> dict[str, Any]:
    """Learn the joint models and the sequential one; return their scores, and R of the sequential model."""
    joint = {}
    for rate in RATES:
        joint[rate] = one_model.run_trial(_trial(scale, rate, "joint"), data, scale.backbone)
        tell(f"joint, {rate:g}: {_mean(joint[rate], 'validation'):.4f}")
    rate = max(RATES, key=lambda each: (_mean(joint[each], "validation"), -each))
    sequential = run_trial(_trial(scale, rate, "learn"), data, scale.backbone)
    after_TT = np.array(sequential["R"], dtype=np.float64)
    tell(f"sequential: {after_TT[-1].mean():.4f}")
    return {
        "tasks": list(CLASSIC),
        "rates": {f"{each:g}": _mean(found, "validation") for each, found in joint.items()},
        "rate": rate,
        "joint": _mean(joint[rate], "test"),
        "sequential": {
            "R": after_TT.tolist(),
            "acc": float(after_TT[-1].mean()),
            "learned": float(after_TT.diagonal().mean()),
        },
    }


def _trial(scale: Scale, rate: float, method: Method) -> Trial:
    limits = {} if scale.limits is None else dict(zip(("train", "validation", "test"), scale.limits, strict=True))
    return Trial(
        tasks=CLASSIC,
        bank={"preset": "full", "scope": "shared"},
        training={"epochs": scale.epochs, "learning_rate": rate},
        seed=SEED,
        limits=limits,
        max_length=scale.max_length,
        method=method,
    )


def _mean(found: dict[str, Any], split: str) -> float:
    """Return the mean score over tasks; a model that diverged has no score and counts as 0."""
    scores = found.get("scores")
    return float(np.mean([scores[task][split]["score"] for task in CLASSIC])) if scores else 0.0
