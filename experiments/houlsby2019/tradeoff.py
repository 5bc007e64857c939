"""Houlsby et al. 2019, figure 4 and the study of sizes: score against the number of trained parameters.

Adapters of sizes 2^0 to 2^8 and 384: MiniLM's hidden size is 384, and a bottleneck wider than its input is not allowed, while
the paper's 2^9 fits into BERT's 768. Also top k layers for every k, LayerNorms only, and the mean over eight tasks for three
sizes, which differ by half a point in the paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure

from experiments.houlsby2019.compare import EIGHT
from experiments.published.houlsby2019 import SIZES as SIZES_PUBLISHED
from experiments.studies.ledger import Book
from experiments.studies.plots import against_parameters
from experiments.studies.scale import Scale
from experiments.studies.statistics import Mean, mean_of, mean_over_tasks, shown
from experiments.studies.study import Claim, Study
from experiments.studies.trial import Trial
from experiments.studies.tuning import parameters_of, scores_of

TASKS = ("trec", "sst2")
SIZES = (*(2**n for n in range(9)), 384)
ROBUST = (8, 64, 256)
ROWS, EPOCHS = 1000, 6
RATES = {"adapters": 1.5e-3, "top layers": 3e-4, "LayerNorms": 3e-3}
"""One learning rate per kind, in the middle of those from which `compare` chooses."""
FEWER, APART = 8, 1.5
Point = tuple[str, str | dict[str, Any]]


def points(kind: str, scale: Scale) -> list[Point]:
    """Return the points of one line in the figure, as pairs of a name and a bank."""
    match kind:
        case "adapters":
            return [(str(m), {"preset": "houlsby", "bottleneck": m}) for m in scale.some(SIZES, 3)]
        case "top layers":
            layers = scale.some(tuple(range(1, scale.layers + 1)))
            return [(str(k), {"preset": "top_layers", "layers": f"top-{k}"}) for k in layers]
        case _:
            return [("", "layernorm")]


def trials(scale: Scale, task: str, kind: str, bank: str | dict[str, Any]) -> list[Trial]:
    """Return the trials of one point, one per seed."""
    return [
        scale.trial(task, bank, epochs=EPOCHS, learning_rate=RATES[kind], seed=seed, train=ROWS) for seed in scale.seeds
    ]


def robust(scale: Scale) -> dict[int, dict[str, list[Trial]]]:
    """Return the trials for each bottleneck size in `ROBUST`, by size and then by task."""
    sizes = {m: {"preset": "houlsby", "bottleneck": m} for m in ROBUST}
    return {m: {task: trials(scale, task, "adapters", bank) for task in scale.some(EIGHT)} for m, bank in sizes.items()}


def plan(scale: Scale, book: Book) -> Iterator[list[Trial]]:
    """Yield one stage, since nothing is chosen."""
    figure = [
        t
        for task in TASKS
        for kind in RATES
        for _, bank in points(kind, scale)
        for t in trials(scale, task, kind, bank)
    ]
    yield figure + [t for by_task in robust(scale).values() for each in by_task.values() for t in each]


def line(scale: Scale, book: Book, task: str, kind: str) -> list[tuple[str, float, Mean]]:
    """Return the finished points of a line: name, trained parameters excluding the head, score on the validation rows."""
    found = []
    for name, bank in points(kind, scale):
        each = trials(scale, task, kind, bank)
        score, count = mean_of(scores_of(book, each, "validation")), parameters_of(book, each)
        if score is not None and count is not None:
            found.append((name, count, score))
    return found


def body(scale: Scale, book: Book) -> str:
    """Return the tables."""
    parts = [
        f"Validation rows, as in the paper's figure; {ROWS} training rows, {EPOCHS} epochs, one learning rate per "
        f"kind: {_rates()}."
    ]
    for task in TASKS:
        rows = [f"| {task} | size or layers | trained parameters | score |", "|---|---:|---:|---:|"]
        rows += [
            f"| {kind} | {name} | {count:,.0f} | {shown(score)} |"
            for kind in RATES
            for name, count, score in line(scale, book, task, kind)
        ]
        parts.append("\n".join(rows))
    return "\n\n".join([*parts, _robust(scale, book)])


def _rates() -> str:
    return ", ".join(f"{kind} {rate:g}" for kind, rate in RATES.items())


def robust_means(scale: Scale, book: Book, without: str = "") -> dict[int, Mean | None]:
    """Return the mean validation score over the eight tasks, or all but ``without``, by size."""
    return {
        m: mean_over_tasks([scores_of(book, each, "validation") for task, each in by_task.items() if task != without])
        for m, by_task in robust(scale).items()
    }


def _spread(means: Iterable[Mean | None]) -> float:
    """Return the range of the means."""
    values = [mean.value for mean in means if mean is not None]
    return max(values) - min(values)


def _most_apart(scale: Scale, book: Book) -> str:
    """Describe the task on which sizes differ most, and the range without it."""
    by_size = robust(scale)
    scores = {
        task: [mean_of(scores_of(book, by_task[task], "validation")) for by_task in by_size.values()]
        for task in scale.some(EIGHT)
    }
    task = max(scores, key=lambda each: _spread(scores[each]))
    rest = _spread(robust_means(scale, book, without=task).values())
    each = ", ".join(shown(mean) for mean in scores[task])
    return f"largest range on {task} ({each}), {rest:.1f} points without it"


def _robust(scale: Scale, book: Book) -> str:
    tasks = scale.some(EIGHT)
    rows = [f"| size | {' | '.join(tasks)} | mean | GLUE, BERT-large, in the paper |", "|---:" * (len(tasks) + 3) + "|"]
    for (m, by_task), mean in zip(robust(scale).items(), robust_means(scale, book).values(), strict=True):
        cells = [shown(mean_of(scores_of(book, each, "validation"))) for each in by_task.values()]
        rows.append(f"| {m} | {' | '.join(cells)} | {shown(mean)} | {SIZES_PUBLISHED[m]} |")
    return "\n".join(rows)


def figures(scale: Scale, book: Book) -> dict[str, Figure]:
    """Return one figure per task."""
    return {
        task: against_parameters({kind: line(scale, book, task, kind) for kind in RATES}, f"{task}, validation score")
        for task in TASKS
    }


def reproduces(scale: Scale, book: Book) -> Sequence[Claim]:
    """Check that the size of adapters hardly matters, and that small ones beat fine-tuning only a few layers."""
    means = [mean for mean in robust_means(scale, book).values() if mean is not None]
    if len(means) < len(ROBUST):
        return []
    spread = _spread(means)
    return [
        Claim(
            claim="The size of the adapters hardly matters: 86.2, 85.8, 85.7 for 8, 64, 256 (section 3.6)",
            found=f"{', '.join(shown(m) for m in means)} over {len(scale.some(EIGHT))} tasks, {spread:.1f} points apart",
            holds=spread < APART,
            why=f"hardly: less than {APART} points; here all sizes share one rate, while the paper chose one for each; "
            + _most_apart(scale, book),
        ),
        *(_few_parameters(scale, book, task) for task in TASKS),
    ]


def _few_parameters(scale: Scale, book: Book, task: str) -> Claim:
    adapters, top = line(scale, book, task, "adapters"), line(scale, book, task, "top layers")
    _, other, score = min(top, key=lambda point: point[1])
    _, count, best = max((p for p in adapters if p[1] <= other / FEWER), key=lambda point: point[2].value)
    return Claim(
        claim=f"Adapters with a fraction of the parameters score higher than the top layer (figure 4), {task}",
        found=f"adapters {shown(best)} with {count:,.0f} parameters, one layer {shown(score)} with {other:,.0f}",
        holds=best.value > score.value,
        why=f"the best adapter with at most 1/{FEWER} of the parameters",
    )


STUDY = Study(
    name="houlsby2019/tradeoff",
    title="Score against trained parameters (Houlsby et al. 2019, figure 4)",
    plan=plan,
    body=body,
    figures=figures,
    reproduces=reproduces,
)
