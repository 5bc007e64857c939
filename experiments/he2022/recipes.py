"""The trials behind the presets' default learning rates, which are chosen on validation rows.

`banks/config/presets.py` has the defaults of each preset; a test compares these rates with the ledgers. Most were chosen in
`experiments.houlsby2019.compare`, on eight tasks with all rows, or in the encoder studies in this folder, on 1,500 rows of
SST-2; the remaining presets are tried here in the same way as in the encoder studies. Test rows are never used to choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from continual_petl.banks.config.presets import RECIPES, STUDIED
from experiments.he2022 import rows
from experiments.he2022.settings import EPOCHS, LARGE, MIDDLE, SMALL, find
from experiments.houlsby2019 import compare
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.study import Study
from experiments.studies.trial import Trial
from experiments.studies.tuning import Method

OF_MANY_TASKS: Mapping[str, Method] = {
    "houlsby": compare.HOULSBY,
    "full": compare.FULL,
    "top_layers": compare.TOP,
    "layernorm": compare.LAYERNORM,
}
OF_ONE_TASK: Mapping[str, tuple[str, float | None]] = {
    "pfeiffer": ("Pfeiffer", LARGE),
    "parallel": ("PA ffn", LARGE),
    "parallel_attention": ("PA attn", LARGE),
    "scaled_parallel": ("scaled parallel", MIDDLE),
    "multihead_parallel": ("MH-PA attn", SMALL),
    "prefix_flat": ("prefix", MIDDLE),
    "prompt": ("prompt", None),
    "lora": ("LoRA (q, v)", MIDDLE),
    "lora_ffn": ("LoRA ffn, s = 4", LARGE),
    "mam_flat": ("MAM (flat)", MIDDLE),
    "bitfit": ("BitFit", None),
    "diff_pruning": ("diff-pruning, top 3", None),
    "probe": ("probe", None),
}
"""Rows of the encoder studies."""
HERE: Mapping[str, Method] = {
    "prefix": Method(
        name="prefix, MLP", banks=({"preset": "prefix", "length": 16},), rates=(1e-3, 5e-3), epochs=EPOCHS
    ),
    # The same size as for mam_flat.
    "mam": Method(
        name="MAM", banks=({"preset": "mam", "length": 12, "bottleneck": 12},), rates=(3e-4, 1e-3, 4e-3), epochs=EPOCHS
    ),
    "p_tuning": Method(
        name="P-tuning", banks=({"preset": "p_tuning", "length": 20},), rates=(5e-3, 2e-2), epochs=EPOCHS
    ),
}


def presets(scale: Scale) -> tuple[str, ...]:
    """Return the presets; for a quick study, only ``houlsby`` and those that are tried here."""
    return ("houlsby", *HERE) if scale.quick else tuple(name for name in RECIPES if name in STUDIED)


def grids(scale: Scale, preset: str) -> list[list[Trial]]:
    """Return the trials that choose a preset's learning rate, task by task."""
    seed = scale.seeds[0]
    if preset in OF_MANY_TASKS:
        method = OF_MANY_TASKS[preset]
        tasks = [task for task in compare.tasks_of(method, scale) if task not in compare.LIKE]
        return [method.grid(scale, task, seed) for task in tasks]
    method = HERE[preset] if preset in HERE else find(*OF_ONE_TASK[preset]).method
    return [method.grid(scale, rows.CHOOSER, seed, rows.TRAIN)]


def plan(scale: Scale, book: Book) -> Iterator[list[Trial]]:
    """Yield one stage with all trials; those that other studies have run are taken from their ledgers."""
    yield [trial for preset in presets(scale) for grid in grids(scale, preset) for trial in grid]


def scores(scale: Scale, book: Book, preset: str) -> dict[float, float | None]:
    """Return the mean validation score over tasks for every learning rate, using the best bank tried at that rate.

    Returns:
        Scores on a 0-100 scale, None for a rate at which a task diverged; empty while any trial is missing.
    """
    found: dict[float, list[float | None]] = {}
    for grid in grids(scale, preset):
        if any(book.outcome(trial) is None for trial in grid):
            return {}
        of_task: dict[float, list[float]] = {}
        for trial in grid:
            score = book.score(trial, "validation")
            of_task.setdefault(trial.training["learning_rate"], []).extend([] if score is None else [score])
        for rate, best in of_task.items():
            found.setdefault(rate, []).append(max(best, default=None))
    return {
        rate: None if None in each else sum(score for score in each if score is not None) / len(each)
        for rate, each in sorted(found.items())
    }


def chosen(scale: Scale, book: Book, preset: str) -> float | None:
    """Return the learning rate with the best score, the lower one in a tie; None if there are no scores."""
    known = [(score, -rate) for rate, score in scores(scale, book, preset).items() if score is not None]
    return -max(known)[1] if known else None


def body(scale: Scale, book: Book) -> str:
    """Return the table."""
    lines = [_INTRO, "", "| preset | rate | epochs | validation score by rate | tasks |", "|---|---:|---:|---|---:|"]
    for preset in presets(scale):
        recipe = RECIPES[preset]
        found = ", ".join(
            f"{rate:g}: {'diverged' if score is None else f'{score:.1f}'}"
            for rate, score in scores(scale, book, preset).items()
        )
        tasks = len(grids(scale, preset))
        cells = (preset, f"{recipe.learning_rate:g}", str(recipe.epochs), found or "not run yet", str(tasks))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


_INTRO = """The default learning rate and epochs of each preset, and the validation score of each learning rate that was
tried, in points, as a mean over tasks: with a single task, a difference of a point or two is not meaningful. Epochs are
those of `houlsby2019/compare` for tasks of a few thousand rows, and were not tuned; learning rates on a single task were
tried with 3 epochs."""


STUDY = Study(
    name="he2022/recipes",
    title="Recipes: default learning rates of the presets, chosen on validation rows",
    plan=plan,
    body=body,
    any_scale=False,
)
