"""Run one trial: learn a stream in a temporary folder, and return the results that the studies need."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from continual_petl.engine.commands import learn
from continual_petl.engine.run import Run
from continual_petl.errors import DivergedError
from continual_petl.store.certificate.history import History
from continual_petl.streams.stream import TaskStream
from experiments.studies.trial import Trial

QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
FAR = 10**9
"""Steps between two checkpoints: never reached, since an interrupted trial is repeated from the start."""

Look = Callable[[Run], dict[str, Any]]


def run_trial(trial: Trial, data: Path, backbone: str | None = None, look: Look | None = None) -> dict[str, Any]:
    """Learn a trial's tasks and return the results, as JSON values.

    Args:
        trial: what to learn.
        data: the folder with the rows.
        backbone: path of the backbone, if it differs from the name in the trial.
        look: called with the run before its folder is removed; its result is added to the outcome.

    Returns:
        ``scores``: by task and split, the task's ``score``, all scores by name, and the number of rows, right after the task
        was learned; ``R``: the result matrix, on test rows where available, null where nothing was measured; ``tasks``: for
        each task the digest of its bank, parameters (modifications, own, head), bytes, seconds by phase and validation
        curve; ``acc``, ``bwt``, ``forgetting``; ``unchanged``: whether every certificate holds; ``arithmetic``: the
        precision. For a failed trial only ``failed``, the reason.
    """
    spec = trial.stream(data, backbone)
    spec = spec.model_copy(update={"training": spec.training.model_copy(update={"checkpoint_every": FAR})})
    with tempfile.TemporaryDirectory() as folder:
        try:
            L.seed_everything(trial.seed, verbose=False)
            run = learn(TaskStream(spec), Path(folder) / "run", trainer=QUIET)
        except DivergedError as error:
            # This counts as a result. Missing data or backbones do not: they stop the study, which can then be resumed.
            return {"failed": " ".join(str(error).split())}
        outcome: dict[str, Any] = plain(summary(run) | (look(run) if look else {}))
        return outcome


def summary(run: Run) -> dict[str, Any]:
    """Return the results of a run; see `run_trial`."""
    results, certificates = run.results, {task: run.store.certificate(task) for task in run.store.tasks}
    first = next(iter(certificates.values()))
    found: dict[str, Any] = {
        "scores": {
            task: {
                split: {"score": scores.scores.get(m.metric), "rows": scores.num_examples, "all": scores.scores}
                for split, scores in m.scores.items()
            }
            for task, m in certificates.items()
        },
        "R": results.R.tolist() if len(results.tasks) > 1 else None,
        "acc": results.acc,
        "bwt": results.bwt,
        "forgetting": results.forgetting,
        "forgetting_by_task": forgetting_by_task(results.R.tolist()),
        "tasks": {
            row.task: {
                "digest": certificates[row.task].digest,
                "parameters": certificates[row.task].parameters,
                "bytes": row.num_bytes,
                "seconds": results.seconds.get(row.task, {}),
                "curve": _curve(run.store.history(row.task), certificates[row.task].metric),
            }
            for row in run.growth
        },
        "backbone_parameters": _size(run),
        "backbone_bytes": num_bytes(run.session.models.backbone_of(run.store.tasks[0]).model),
        "unchanged": all(check.ok for check in run.verify()),
        "arithmetic": first.environment.precision,
    }
    return found


def _size(run: Run) -> int | None:
    pinned = run.store.pinned()
    return None if pinned is None else pinned.num_parameters


def num_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's parameters in memory; quantised parameters count with their codes and scales."""
    return sum(_storage(parameter) for parameter in model.parameters())


def _storage(tensor: Tensor) -> int:
    if not is_traceable_wrapper_subclass(tensor):
        return tensor.numel() * tensor.element_size()
    parts, _ = tensor.__tensor_flatten__()
    return sum(_storage(getattr(tensor, part)) for part in parts)


def forgetting_by_task(R: list[list[float]]) -> list[float] | None:
    """Return each task's drop from its best earlier score to its last (Chaudhry et al. 2018), except for the last task."""
    if len(R) < 2:
        return None
    return [max(R[i][j] for i in range(j, len(R) - 1)) - R[-1][j] for j in range(len(R) - 1)]


def _curve(history: History, metric: str) -> list[tuple[int, float | None]]:
    return [(point.epoch, point.scores.get(metric)) for point in history.curve.scores]


def plain(value: Any) -> Any:
    """Return a JSON value: null for numbers that are not finite, other numbers rounded to six significant digits."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    json.dumps(value)
    return value
