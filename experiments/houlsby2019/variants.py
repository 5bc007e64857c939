"""Houlsby et al. 2019, section 3.6: the scale of the initialisation, and the extensions that did not help.

Sigma from 1e-7 to 1 (figure 6, right), and these extensions: a LayerNorm in the adapter, two non-linear layers, tanh,
adapters only after attention, parallel adapters, and parallel adapters whose output is multiplied instead of added. Batch
normalisation is left out: a bank's predictions would depend on the other rows of the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure

from experiments.studies.ledger import Book
from experiments.studies.plots import over_sigma
from experiments.studies.scale import Scale
from experiments.studies.statistics import Mean, mean_of, shown
from experiments.studies.study import Claim, Study
from experiments.studies.trial import Trial
from experiments.studies.tuning import scores_of

TASKS = ("trec", "sst2")
SIGMAS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
ALIKE = 3.0
"""Maximum difference, in points, between scores that count as equally good."""
SIZE, ROWS, EPOCHS, RATE = 64, 1000, 6, 1.5e-3


def bank(*sites: str, **changes: Any) -> dict[str, Any]:
    """Return a bank of Houlsby's adapters with some options changed."""
    plain = {"form": "bottleneck", "insertion": "sequential", "composition": "add", "bottleneck": SIZE}
    plain |= {"activation": "gelu_tanh", "init": "houlsby", "init_scale": 1e-2}
    return {"modifications": [{**plain, "modifies": site, **changes} for site in sites], "layernorms": "own"}


BOTH = ("attention", "ffn")
EXTENSIONS: dict[str, dict[str, Any]] = {
    "as published": bank(*BOTH),
    "a LayerNorm in the adapter": bank(*BOTH, input_norm=True),
    "two non-linear layers": bank(*BOTH, depth=2),
    "tanh": bank(*BOTH, activation="tanh"),
    "ReLU": bank(*BOTH, activation="relu"),
    "after attention alone": bank("attention"),
    "parallel": bank(*BOTH, insertion="parallel"),
    "parallel, multiplied": bank(*BOTH, insertion="parallel", composition="multiply"),
}


def trials(scale: Scale, task: str, spec: dict[str, Any]) -> list[Trial]:
    """Return the trials of one bank, one per seed."""
    return [scale.trial(task, spec, epochs=EPOCHS, learning_rate=RATE, seed=seed, train=ROWS) for seed in scale.seeds]


def sigmas(scale: Scale) -> dict[float, dict[str, Any]]:
    """Return the banks of the initialisation study, keyed by sigma."""
    return {sigma: bank(*BOTH, init_scale=sigma) for sigma in scale.some(SIGMAS)}


def extensions(scale: Scale) -> dict[str, dict[str, Any]]:
    """Return the banks of the extension study, keyed by name."""
    return {name: EXTENSIONS[name] for name in scale.some(tuple(EXTENSIONS), 8)}


def plan(scale: Scale, book: Book) -> Iterator[list[Trial]]:
    """Yield one stage, since nothing is chosen."""
    specs = [*sigmas(scale).values(), *extensions(scale).values()]
    yield [trial for task in TASKS for spec in specs for trial in trials(scale, task, spec)]


def score(scale: Scale, book: Book, task: str, spec: dict[str, Any]) -> Mean | None:
    """Return the score on validation rows."""
    return mean_of(scores_of(book, trials(scale, task, spec), "validation"))


def body(scale: Scale, book: Book) -> str:
    """Return the two tables."""
    said = (
        f"Validation rows, as in the paper; adapters of size {SIZE}, {ROWS} training rows, {EPOCHS} epochs at "
        f"learning rate {RATE:g}."
    )
    heads = f"{' | '.join(TASKS)} |\n|---|{'---:|' * len(TASKS)}"
    first = [f"| {sigma:g} | {_cells(scale, book, spec)} |" for sigma, spec in sigmas(scale).items()]
    second = [f"| {name} | {_cells(scale, book, spec)} |" for name, spec in extensions(scale).items()]
    return "\n".join([said, "", f"| sigma | {heads}", *first, "", f"| extension | {heads}", *second])


def _cells(scale: Scale, book: Book, spec: dict[str, Any]) -> str:
    return " | ".join(shown(score(scale, book, task, spec)) for task in TASKS)


def figures(scale: Scale, book: Book) -> dict[str, Figure]:
    """Return the figure of scores over sigma."""
    lines = {
        task: [(sigma, mean) for sigma, spec in sigmas(scale).items() if (mean := score(scale, book, task, spec))]
        for task in TASKS
    }
    return {"initialisation": over_sigma(lines)}


def reproduces(scale: Scale, book: Book) -> Sequence[Claim]:
    """Check that small scales are equally good, that large ones are worse, and that no extension helps."""
    return [row for task in TASKS for row in (_sigma(scale, book, task), _extension(scale, book, task)) if row]


def _sigma(scale: Scale, book: Book, task: str) -> Claim | None:
    means = {sigma: score(scale, book, task, spec) for sigma, spec in sigmas(scale).items()}
    small = [mean.value for sigma, mean in means.items() if mean is not None and sigma <= 1e-2]
    last = means.get(1.0)
    if last is None or len(small) < sum(sigma <= 1e-2 for sigma in means):
        return None
    return Claim(
        claim=f"All sigmas up to 1e-2 are equally good, larger ones are worse (section 3.6), {task}",
        found=f"up to 1e-2: {min(small):.1f} to {max(small):.1f}; 1: {shown(last)}",
        holds=max(small) - min(small) < ALIKE and last.value < min(small),
        why=f"equally good: less than {ALIKE:g} points apart",
    )


def _extension(scale: Scale, book: Book, task: str) -> Claim | None:
    means = {name: score(scale, book, task, spec) for name, spec in extensions(scale).items()}
    plain = means.pop("as published")
    known = {name: mean for name, mean in means.items() if mean is not None}
    if plain is None or len(known) < len(means):
        return None
    name, best = max(known.items(), key=lambda item: item[1].value)
    known_noise = plain.error is not None and best.error is not None
    noise = 2 * ((plain.error or 0) ** 2 + (best.error or 0) ** 2) ** 0.5
    why = "significant: more than twice the standard error of the difference, "
    return Claim(
        claim=f"No extension helps significantly (section 3.6), {task}",
        found=f"as published {shown(plain)}, the best extension ({name}) {shown(best)}",
        holds=best.value - plain.value <= noise if known_noise else None,
        why=why + (f"{noise:.1f}" if known_noise else "unknown from one seed"),
    )


STUDY = Study(
    name="houlsby2019/variants",
    title="Initialisation and extensions (Houlsby et al. 2019, section 3.6)",
    plan=plan,
    body=body,
    figures=figures,
    reproduces=reproduces,
)
