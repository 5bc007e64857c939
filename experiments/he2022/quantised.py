"""Banks on quantised backbones (ours; after QLoRA, Dettmers et al. 2023): memory and scores compared with fp32 and bf16.

A LoRA in full precision is learned on the same backbone with its weights in fp32, in bf16, and quantised to int8, int4 and
nf4. All trials use one learning rate, the default of the preset: nothing is tuned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from experiments.benchmarks.markdown import grid
from experiments.studies import claims
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import Mean, mean_of, mean_over_tasks, shown
from experiments.studies.study import Claim, Study
from experiments.studies.trial import Trial
from experiments.studies.tuning import scores_of

TASKS = ("trec", "sst2")
BANK = "lora"
RATE, EPOCHS, TRAIN = 2e-3, 5, 1000
LOSS = 1.0
"""Maximum loss compared with bf16 weights, in points, as a mean over tasks."""


@dataclass(frozen=True)
class Weights:
    """How a backbone's weights are stored, and the precision of its hidden states."""

    name: str
    precision: str
    quantize: str | None = None


WEIGHTS = (
    Weights("fp32", "fp32"),
    Weights("bf16", "bf16"),
    Weights("int8", "bf16", "int8"),
    Weights("int4", "bf16", "int4"),
    Weights("nf4", "bf16", "nf4"),
)


def weights_of(scale: Scale) -> tuple[Weights, ...]:
    """Return the kinds of weights; the matrices of the quick scale's backbone are too small for nf4."""
    return WEIGHTS[:-1] if scale.quick else WEIGHTS


def trials(weights: Weights, scale: Scale, task: str) -> list[Trial]:
    """Return the trials of a task, one per seed."""
    found = [
        scale.trial(task, BANK, epochs=EPOCHS, learning_rate=RATE, seed=seed, train=TRAIN, precision=weights.precision)
        for seed in scale.seeds
    ]
    return [trial.model_copy(update={"quantize": weights.quantize}) for trial in found]


def plan(scale: Scale, book: Book) -> Iterator[list[Trial]]:
    """Learn every task on every kind of weights, first with one seed."""
    found = [trials(weights, scale, task) for task in TASKS for weights in weights_of(scale)]
    yield [of_seed[0] for of_seed in found]
    yield [trial for of_seed in found for trial in of_seed[1:]]


def scores(weights: Weights, scale: Scale, book: Book, task: str) -> list[float | None]:
    """Return the test scores of the seeds with which the task was learned on all kinds of weights."""
    by_seed = zip(*(trials(each, scale, task) for each in weights_of(scale)), strict=True)
    whole = [all(book.outcome(trial) is not None for trial in of_seed) for of_seed in by_seed]
    return scores_of(book, [trial for trial, use in zip(trials(weights, scale, task), whole, strict=True) if use])


def mean_score(weights: Weights, scale: Scale, book: Book) -> Mean | None:
    """Return the mean test score over the tasks."""
    return mean_over_tasks([scores(weights, scale, book, task) for task in TASKS])


def body(scale: Scale, book: Book) -> str:
    """Return the table."""
    rows = []
    for weights in weights_of(scale):
        found = [mean_of(scores(weights, scale, book, task)) for task in TASKS]
        outcomes = [each for task in TASKS for trial in trials(weights, scale, task) if (each := book.outcome(trial))]
        sizes = [outcome["backbone_bytes"] for outcome in outcomes if "backbone_bytes" in outcome]
        rows.append(
            [
                weights.name,
                f"{sizes[0] / 1e6:.1f}" if sizes else "-",
                *map(shown, found),
                shown(mean_score(weights, scale, book)),
            ]
        )
    return f"{_INTRO}\n\n{grid(['backbone', 'MB', *TASKS, 'mean'], rows)}"


_INTRO = f"""Accuracy on the test rows, in points, with a LoRA of the preset's default size: mean and standard error over
seeds; {TRAIN:,} training rows, {EPOCHS} epochs, learning rate {RATE:g}, which is the preset's default. MB: bytes of the
backbone's parameters in memory, including the embeddings, which are half of MiniLM and are not quantised. Torch stores each
int4 weight in a whole byte. Banks, heads and optimizer are in fp32."""


def reproduces(scale: Scale, book: Book) -> list[Claim]:
    """Check that quantised weights cost little accuracy."""
    means = {weights.name: mean_score(weights, scale, book) for weights in weights_of(scale)}
    bf16, found = means["bf16"], []
    for name in ("int8", "nf4"):
        ours = means.get(name)
        if bf16 is None or ours is None:
            continue
        found.append(
            claims.loses_at_most(
                f"A LoRA on {name} weights is within {LOSS:g} point of a LoRA on bf16 weights (ours; after QLoRA)",
                ours,
                bf16,
                LOSS,
            )
        )
    return found


STUDY = Study(
    name="he2022/quantised",
    title="Banks on quantised backbones (ours; after Dettmers et al. 2023)",
    plan=plan,
    body=body,
    reproduces=reproduces,
    rule=claims.BY_MEANS,
)
