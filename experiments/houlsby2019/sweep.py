"""Houlsby et al. 2019, sections 3.1 and 3.2: a grid of sizes, learning rates and epochs; then five seeds.

The same as `continual-petl sweep` for a stream, here on two tasks: sizes and rates are spaced as in the paper, but scaled to
MiniLM and 1,000 rows. Trials below the median of the other trials are stopped early.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from continual_petl.streams.stream import TaskStream
from continual_petl.sweep import SweepSpec, sweep
from experiments.studies.learning import plain
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.study import Claim, Study
from experiments.studies.trial import Trial

TASKS = ("trec", "mrpc")
SPACE: dict[str, tuple[Any, ...]] = {
    "bank.bottleneck": (8, 64, 256),
    "training.learning_rate": (3e-4, 1e-3, 3e-3),
    "training.epochs": (3, 8),
}
ROWS, SEEDS = 1000, 5
APART = 1.5
"""Maximum difference between sizes, in points, that counts as robust."""


def run_trial(trial: Trial, data: Path, backbone: str | None = None) -> dict[str, Any]:
    """Run a sweep for the single task of a trial, whose ``options`` are those of a sweep file.

    Returns:
        ``sweep``: the task's entry in the ``summary.json`` of `continual-petl sweep`; ``trials``: settings, score, state and
        seconds of each trial, and the scores of its epochs.
    """
    spec = SweepSpec.model_validate(trial.options)
    with tempfile.TemporaryDirectory() as folder:
        result = sweep(TaskStream(trial.stream(data, backbone)), spec, folder=Path(folder) / "sweep")
    (choice,) = result.tasks.values()
    kept = {"settings", "score", "scores", "state", "seconds"}
    found: dict[str, Any] = plain(
        {
            "sweep": choice.to_json(),
            "trials": [record.model_dump(mode="json", include=kept) for record in choice.trials],
        }
    )
    return found


def plan(scale: Scale, book: Book) -> Iterator[list[Trial]]:
    """Yield one stage, with one sweep per task."""
    yield [_trial(scale, task) for task in TASKS]


def _trial(scale: Scale, task: str) -> Trial:
    space = {key: list(scale.some(values)) for key, values in SPACE.items()}
    if scale.quick:
        space["training.epochs"] = [1]
    options = {"space": space, "prune": "median", "seeds": 2 if scale.quick else SEEDS}
    houlsby = {"preset": "houlsby", "bottleneck": 64}
    seed = scale.seeds[0]
    return scale.trial(
        task, houlsby, epochs=1, learning_rate=1e-3, seed=seed, train=ROWS, method="sweep", options=options
    )


def body(scale: Scale, book: Book) -> str:
    """Return the chosen settings, and the best score of every size."""
    parts = [f"Validation scores, {ROWS} training rows; equivalent to `continual-petl sweep STREAM SWEEP.yaml`."]
    for task in TASKS:
        outcome = book.outcome(_trial(scale, task))
        if outcome is not None and "sweep" in outcome:
            parts += [_chosen(task, outcome["sweep"]), _grid(outcome["trials"])]
    return "\n\n".join(parts)


def _chosen(task: str, found: dict[str, Any]) -> str:
    settings = ", ".join(f"{key} {value:g}" for key, value in found["settings"].items())
    error = found["standard_error"]
    mean = f"{100 * found['mean']:.1f}" + ("" if error is None else f" ± {100 * error:.1f}")
    count = found["trials"]
    return (
        f"**{task}**: {settings}; {mean} over {len(found['seeds'])} seeds, {found['num_parameters']:,} parameters; "
        f"{count['complete']} trials, {count['pruned']} stopped early, {count['failed']} failed; {found['seconds']:.0f} s."
    )


def _grid(trials: list[dict[str, Any]]) -> str:
    keys = list(SPACE)
    rows = ["| " + " | ".join(key.split(".")[1] for key in keys) + " | score |", "|---:" * (len(keys) + 1) + "|"]
    for trial in trials:
        score = trial.get("score")
        shown = trial["state"] if score is None or trial["state"] != "complete" else f"{100 * score:.1f}"
        rows.append("| " + " | ".join(f"{trial['settings'][key]:g}" for key in keys) + f" | {shown} |")
    return "\n".join(rows)


def reproduces(scale: Scale, book: Book) -> Sequence[Claim]:
    """Check that the learning rate matters more than the size, as the paper's single size for all tasks suggests."""
    rows = []
    for task in TASKS:
        outcome = book.outcome(_trial(scale, task)) or {}
        best = [_best(outcome.get("trials", []), key) for key in ("bank.bottleneck", "training.learning_rate")]
        if all(len(each) > 1 for each in best):
            apart = [100 * (max(each.values()) - min(each.values())) for each in best]
            rows.append(
                Claim(
                    claim=f"Adapters are robust to their size when the rate is chosen (section 3.6), {task}",
                    found=f"the best scores by size are {apart[0]:.1f} points apart, those by rate {apart[1]:.1f}",
                    holds=apart[0] < APART,
                    why=f"robust: less than {APART} points apart; one seed, and half a point is one or two rows",
                )
            )
    return rows


def _best(trials: list[dict[str, Any]], key: str) -> dict[float, float]:
    """Return the best score of the completed trials, for each value of a key."""
    found: dict[float, float] = {}
    for trial in trials:
        if trial["state"] == "complete" and trial.get("score") is not None:
            value = trial["settings"][key]
            found[value] = max(trial["score"], found.get(value, float("-inf")))
    return found


STUDY = Study(
    name="houlsby2019/sweep",
    title="The sweep protocol (Houlsby et al. 2019, sections 3.1 and 3.2)",
    plan=plan,
    body=body,
    reproduces=reproduces,
)
