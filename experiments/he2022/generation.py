"""After He et al. 2022, Tables 3 and 6: summaries (XSum) and translations (English to Romanian) with a small BART.

The paper uses BART-large and mBART-large with extensive pre-training. Here, a small backbone is pre-trained on the tasks'
texts for a few minutes instead (`experiments.he2022.pretraining`): it has 3.8 million parameters, has
learned a little about copying and about these texts, and has seen only 4,000 Romanian sentences. The study can show that
every part works on an encoder-decoder at equal budgets, and how far banks get on a weak frozen backbone; it cannot show
whether the paper's ranking holds on a good backbone. Banks are 6.7 % of the backbone, like MAM in the paper, where a prefix
of 30 is combined with adapters of 512.

For each method and task, one of two learning rates is chosen on the task's validation rows, with the first seed: 24
trials. Further seeds follow if there is time. Left out: BitFit, prompts, Pfeiffer's adapters, the mixtures of Table 6,
and other sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from experiments.he2022.budgets import Model, Spec, count, sized, whole
from experiments.he2022.settings import preset, written
from experiments.he2022.table import Cell, size, table
from experiments.published.he2022 import TABLE_3, TABLE_6, TABLE_12, Texts, texts
from experiments.studies import claims
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import Mean, mean_of
from experiments.studies.study import Claim, Study
from experiments.studies.trial import Trial

BACKBONE: Model = "bart-small"
BUDGET = 0.067
TASK_METRICS = {"rosts_en_ro": "bleu", "xsum": "rouge2"}
TASKS = tuple(TASK_METRICS)
EPOCHS, TOKENS = 5, 96
LIMITS = {"train": 1500, "validation": 50, "test": 100}
OPTIONS = {"max_target_length": 32, "generation": {"num_beams": 2, "max_new_tokens": 32, "no_repeat_ngram_size": 3}}
TRAINING: dict[str, Any] = {"batch_size": 16, "label_smoothing": 0.1}


def mam(value: int) -> Spec:
    """Return MAM with a flat prefix; prefix length and adapter size have the paper's ratio, 30 to 512."""
    return {"preset": "mam_flat", "length": max(1, round(value * 30 / 512)), "bottleneck": value}


def _sized(of_size: Spec | None) -> Spec:
    assert of_size is not None, "every method here has a size near the budget"
    return of_size


@functools.cache
def methods() -> dict[str, tuple[Spec, tuple[float, float], Texts]]:
    """Return every method's bank and learning rates, and the row of the paper with the nearest size."""
    sizes = {
        "prefix": preset("prefix_flat", "length"),
        "SA ffn": written("ffn", "sequential"),
        "PA ffn": preset("parallel"),
        "LoRA ffn, s = 4": preset("lora_ffn", "rank"),
        "MAM (flat)": mam,
    }
    banks = {name: _sized(sized(BACKBONE, of_size, BUDGET)) for name, of_size in sizes.items()}
    return {
        "full fine-tuning": ("full", (3e-4, 1e-3), TABLE_6["full"]),
        "prefix": (banks["prefix"], (5e-3, 2e-2), TABLE_3["prefix, 200"]),
        "SA ffn": (banks["SA ffn"], (1.5e-3, 5e-3), TABLE_12["SA ffn, 512"]),
        "PA ffn": (banks["PA ffn"], (1.5e-3, 5e-3), TABLE_12["PA ffn, 512"]),
        "LoRA ffn, s = 4": (banks["LoRA ffn, s = 4"], (1e-3, 4e-3), TABLE_6["LoRA ffn"]),
        "MAM (flat)": (banks["MAM (flat)"], (1.5e-3, 5e-3), TABLE_6["mam"]),
    }


def trial(scale: Scale, task: str, bank: Spec, rate: float, seed: int) -> Trial:
    """Return a trial on the pre-trained small BART."""
    made = scale.trial(task, bank, epochs=EPOCHS, learning_rate=rate, seed=seed, options=OPTIONS, **TRAINING)
    limits = made.limits if scale.quick else LIMITS
    return made.model_copy(update={"backbone": BACKBONE, "max_length": TOKENS, "limits": limits})


def names(scale: Scale) -> tuple[str, ...]:
    """Return the methods; for a quick study only the first and the last."""
    return scale.some(tuple(methods()))


def grid(scale: Scale, name: str, task: str) -> list[Trial]:
    """Return the trials that choose a method's learning rate; the best of them is also a final trial."""
    bank, rates, _ = methods()[name]
    return [trial(scale, task, bank, rate, scale.seeds[0]) for rate in rates]


def final(scale: Scale, book: Book, name: str, task: str) -> list[Trial]:
    """Return the final trials, one per seed; an empty list while the learning rate is not known."""
    # If no prediction has a correct 4-gram, BLEU is 0 for both learning rates, so single words decide between them.
    scores = [
        [_score(book, each, task, metric, "validation") for metric in (TASK_METRICS[task], "rouge1")]
        for each in grid(scale, name, task)
    ]
    if any(book.outcome(each) is None for each in grid(scale, name, task)):
        return []
    bank, rates, _ = methods()[name]
    # A learning rate at which learning diverged has no scores.
    known = [number for number, pair in enumerate(scores) if None not in pair]
    if not known:
        return []
    best = max(known, key=lambda number: (*scores[number], -number))
    return [trial(scale, task, bank, rates[best], seed) for seed in scale.seeds]


def plan(scale: Scale, book: Book) -> Iterator[list[Trial]]:
    """Choose learning rates with the first seed, which completes a study of one seed; then add seeds one by one."""
    yield [each for task in TASKS for name in names(scale) for each in grid(scale, name, task)]
    for number in range(1, scale.num_seeds):
        yield [trials[number] for task in TASKS for name in names(scale) if (trials := final(scale, book, name, task))]


def whole_seeds(scale: Scale, book: Book) -> int:
    """Return the number of seeds that are complete for all methods; means are over these seeds."""
    finals = [final(scale, book, name, task) for task in TASKS for name in names(scale)]
    if not all(finals):
        return 0
    done = [all(book.outcome(trials[number]) is not None for trials in finals) for number in range(scale.num_seeds)]
    return next((number for number, each in enumerate(done) if not each), scale.num_seeds)


def score(scale: Scale, book: Book, name: str, task: str, metric: str) -> Mean | None:
    """Return a test score in points, as a mean over the seeds that are complete for all methods."""
    trials = final(scale, book, name, task)[: whole_seeds(scale, book)]
    return mean_of(_score(book, each, task, metric) for each in trials)


def _score(book: Book, each: Trial, task: str, metric: str, split: str = "test") -> float | None:
    outcome = book.outcome(each)
    found = None if outcome is None or "scores" not in outcome else outcome["scores"][task][split]["all"].get(metric)
    return None if found is None else 100 * float(found)


def body(scale: Scale, book: Book) -> str:
    """Return the tables, in the form of Tables 3 and 6."""
    papers = ["paper: share", "paper: R-1/R-2/R-L", "paper: BLEU"]
    header = ["", "parameters", "share", "R-1", "R-2", "R-L", "BLEU", *papers]
    rows = [_row(name, scale, book) for name in names(scale)]
    return "\n\n".join([_INTRO.format(seeds=whole_seeds(scale, book), made=_made(scale, book)), table(header, rows)])


def _row(name: str, scale: Scale, book: Book) -> list[Cell]:
    bank, _, paper = methods()[name]
    parameters = count(BACKBONE, bank)
    rouge = [score(scale, book, name, "xsum", f"rouge{kind}") for kind in ("1", "2", "L")]
    bleu = score(scale, book, name, "rosts_en_ro", "bleu")
    return [name, *size(parameters, parameters / whole(BACKBONE)), *rouge, bleu, f"{paper.percent:g} %", *texts(paper)]


def _made(scale: Scale, book: Book) -> str:
    """Return the digests of the backbones used in this page's trials; only one, unless ledgers were mixed."""
    trials = [each for task in TASKS for name in names(scale) for each in grid(scale, name, task)]
    lines = [book.lines[each.key] for each in trials if each.key in book.lines]
    found = sorted({line.data.get(f"backbone {BACKBONE}", "unknown") for line in lines})
    return ", ".join(f"`{digest}`" for digest in found) or "none yet"


_INTRO = """ROUGE on XSum and BLEU on English to Romanian, in points, on 100 test rows each, after five epochs on 1,500
rows: means over the seeds that are complete for all methods (here {seeds}); the best of each column is bold; a BLEU of 0.0
means that no prediction has a correct 4-gram. For comparison, the paper's numbers for BART-large and mBART-large, at its own
sizes; the 7.2 % for LoRA on the FFN is an error in its Table 6: by its own formula and its other tables, it is 6.1 %.

*Read this first.* The backbone is a BART with two encoder and two decoder layers, 192 wide, trained for a few minutes to
restore the training texts of all tasks (digest {made}). It is not a pre-trained model in the paper's sense: full fine-tuning
has to learn most of the task from 1,500 rows, and a bank has little to build on. The ranking shows how well each method
repairs a weak backbone, not how well it adapts a good one, and the scores must not be compared with published ones."""


def reproduces(scale: Scale, book: Book) -> list[Claim]:
    """Check the claims of Tables 3 and 6 on this backbone."""
    found: list[Claim] = []
    weak = f"this backbone is too weak to tell: full fine-tuning is below {LEAST:g} points"
    for task, metric, label in (("xsum", "rouge2", "R-2"), ("rosts_en_ro", "bleu", "BLEU")):

        def of(name: str, task: str = task, metric: str = metric) -> Mean | None:
            return score(scale, book, name, task, metric) if name in names(scale) else None

        others = [of(name) for name in names(scale) if name not in ("full fine-tuning", "MAM (flat)")]
        compared: Sequence[tuple[str, Mean | None, Mean | None, float]] = (
            (f"parallel is better than sequential on the FFN ({label}, Table 3)", of("PA ffn"), of("SA ffn"), 0.0),
            (f"changing the FFN is better than a prefix ({label}, Table 3)", of("PA ffn"), of("prefix"), 0.0),
            (f"MAM (flat) is better than every other bank ({label}, Table 6)", of("MAM (flat)"), _best(others), 0.0),
            (
                f"MAM (flat) is within a point of full fine-tuning ({label}, Table 6)",
                of("MAM (flat)"),
                of("full fine-tuning"),
                -1.0,
            ),
        )
        rows = [claims.row(claim, claims.at_least(ours, theirs, least)) for claim, ours, theirs, least in compared]
        full = of("full fine-tuning")
        found += [replace(row, holds=None, why=weak) for row in rows] if full and full.value < LEAST else rows
    return found


LEAST = 5.0
"""Minimum score in points: if even full fine-tuning is below, differences between methods are meaningless."""


def _best(means: Sequence[Mean | None]) -> Mean | None:
    known = [mean for mean in means if mean is not None]
    return max(known, key=lambda mean: mean.value) if known and len(known) == len(means) else None


STUDY = Study(
    name="he2022/generation",
    title="Generation with a small encoder-decoder (after He et al. 2022, Tables 3 and 6)",
    plan=plan,
    body=body,
    reproduces=reproduces,
    rule=claims.RULE,
    any_scale=False,
    backbones={BACKBONE: "python -m experiments.he2022.pretraining --data FOLDER OUT"},
)
