"""After Houlsby et al. 2019, Tables 1 and 2: banks, full fine-tuning, variable fine-tuning (top layers) and LayerNorms only.

Eleven tasks on MiniLM. Banks and full fine-tuning are tuned with the same number of trials, only on validation rows
(`experiments.studies.tuning`), and then learned with three seeds. Learning rates are chosen separately for every task,
except that three tasks of the classic stream use the rates of the other two: amazon uses the rate of yelp; dbpedia and
yahoo use the rate of agnews.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from experiments.studies import claims
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import Mean, counted, mean_of, mean_over_tasks, shown
from experiments.studies.study import Claim, Study
from experiments.studies.trial import TASKS, Trial
from experiments.studies.tuning import Method, parameters_of, scores_of

LONG = ("agnews", "yelp", "amazon", "dbpedia", "yahoo")
SHORT = ("trec", "sst2", "cola", "rte", "mrpc", "stsb")
ELEVEN = (*LONG, *SHORT)
EIGHT = (*SHORT, "agnews", "dbpedia")
LIKE = {"amazon": "yelp", "dbpedia": "agnews", "yahoo": "agnews"}
"""For some tasks, the other task on whose validation rows their learning rate is chosen."""
SIZE = 22
"""Bottleneck size: the largest for which a bank, LayerNorms included, is at most 2.1 % of the encoder's layers."""
BANK: dict[str, Any] = {"preset": "houlsby", "bottleneck": SIZE}

_MANY = {"": 8, "rte": 10, "mrpc": 10} | dict.fromkeys(LONG, 4)
_FEW = {"": 5, "rte": 6, "mrpc": 6} | dict.fromkeys(LONG, 3)
HOULSBY = Method(name="adapters and LayerNorms", banks=(BANK,), rates=(5e-4, 1.5e-3, 4e-3), epochs=_MANY)
FULL = Method(name="full fine-tuning", banks=("full",), rates=(5e-5, 1.5e-4, 4e-4), epochs=_FEW)
TOP = Method(
    name="variable fine-tuning",
    banks=tuple({"preset": "top_layers", "layers": f"top-{k}"} for k in (1, 3)),
    rates=(3e-4,),
    epochs=_FEW,
)
LAYERNORM = Method(name="LayerNorms only", banks=("layernorm",), rates=(1.5e-3, 5e-3), epochs=_MANY)
MAIN = (FULL, HOULSBY)
"""Methods that are run on eleven tasks; all other methods are run on eight."""
OTHERS = (TOP, LAYERNORM)


def tasks_of(method: Method, scale: Scale) -> tuple[str, ...]:
    """Return the tasks on which a method is run."""
    return scale.some(ELEVEN if method in MAIN else EIGHT)


def choosers(scale: Scale) -> tuple[str, ...]:
    """Return the tasks, of the eleven, whose validation rows are used to choose learning rates."""
    return tuple(dict.fromkeys(LIKE.get(task, task) for task in scale.some(ELEVEN)))


def plan(scale: Scale, book: Book) -> Iterator[list[Trial]]:
    """Choose learning rates, then learn with all seeds; the two methods of the paper's main claim come first."""
    for methods in (MAIN, OTHERS):
        pairs = [(method, task) for method in methods for task in tasks_of(method, scale)]
        choosing = dict.fromkeys((method.name, LIKE.get(task, task)) for method, task in pairs)
        named = {method.name: method for method in methods}
        yield [trial for name, task in choosing for trial in named[name].grid(scale, task, scale.seeds[0])]
        yield [trial for method, task in pairs for trial in final(method, scale, book, task)]


def final(method: Method, scale: Scale, book: Book, task: str) -> list[Trial]:
    """Return the final trials, one per seed."""
    return method.repeated(scale, book, task, LIKE.get(task))


def mean_score(method: Method, scale: Scale, book: Book, tasks: tuple[str, ...]) -> Mean | None:
    """Return the mean test score over tasks."""
    return mean_over_tasks([scores_of(book, final(method, scale, book, task)) for task in tasks])


def parameters(method: Method, scale: Scale, book: Book, task: str) -> tuple[float, int] | None:
    """Return the number of trained parameters excluding the head, as a mean over seeds, and the size of the backbone."""
    trials = final(method, scale, book, task)
    count = parameters_of(book, trials)
    sizes = [each["backbone_parameters"] for trial in trials if (each := book.outcome(trial)) and "tasks" in each]
    return None if count is None else (count, int(sizes[0]))


def body(scale: Scale, book: Book) -> str:
    """Return the tables."""
    tasks = scale.some(ELEVEN)
    rows = [
        "| | " + " | ".join(tasks) + f" | mean of {len(tasks)} | mean of {len(scale.some(EIGHT))} |",
        "|---" * (len(tasks) + 3) + "|",
    ]
    for method in (*MAIN, *OTHERS):
        cells = [
            shown(mean_of(scores_of(book, final(method, scale, book, task)))) if task in tasks_of(method, scale) else ""
            for task in tasks
        ]
        means = [
            mean_score(method, scale, book, tasks) if method in MAIN else None,
            mean_score(method, scale, book, scale.some(EIGHT)),
        ]
        rows.append(f"| {method.name} | {' | '.join(cells)} | {' | '.join(map(shown, means))} |")
    metrics = ", ".join(f"{task} {TASKS[task].metric}" for task in tasks if TASKS[task].metric != "accuracy")
    return "\n".join([_INTRO.format(metrics=metrics), "", *rows, "", _sizes(scale, book), "", _chosen(scale, book)])


_INTRO = """Scores on the test rows, in points: accuracy, except {metrics}. Mean and standard error over seeds.

Learning rates were chosen only on validation rows. The form of the bank, its size and the numbers of epochs were not tuned
but fixed beforehand, when test scores of first attempts on sst2, cola and trec were already known. Amazon uses the rate
chosen for yelp; dbpedia and yahoo use that of agnews. Where the lowest or the highest rate was chosen, a wider grid might
do better: `houlsby2019/wider_rates` tries this for full copies and adapters, not for LayerNorms."""


def _sizes(scale: Scale, book: Book) -> str:
    """Return the table of parameters: per task, and the total for N tasks."""
    rows = [
        "| | trained per task | of the model | total for 9 tasks | total for 17 tasks |",
        "|---|---:|---:|---:|---:|",
    ]
    for method in (*MAIN, *OTHERS):
        found = [each for task in tasks_of(method, scale) if (each := parameters(method, scale, book, task))]
        if found:
            trained, size = sum(count for count, _ in found) / len(found), found[0][1]
            share = trained / size
            total = [f"{(n if method is FULL else 1 + n * share):.2f}x" for n in (9, 17)]
            rows.append(f"| {method.name} | {trained:,.0f} | {100 * share:.2f} % | {' | '.join(total)} |")
    return (
        "Heads are not counted, as in the paper; the total includes the backbone once, and not at all for full copies.\n\n"
        + "\n".join(rows)
    )


def _chosen(scale: Scale, book: Book) -> str:
    rows = [
        "| chosen on validation rows | " + " | ".join(scale.some(ELEVEN)) + " |",
        "|---" * (len(scale.some(ELEVEN)) + 1) + "|",
    ]
    for method in (*MAIN, *OTHERS):
        rows.append(
            f"| {method.name} | " + " | ".join(_choice(method, scale, book, task) for task in scale.some(ELEVEN)) + " |"
        )
    return "\n".join(rows)


def _choice(method: Method, scale: Scale, book: Book, task: str) -> str:
    trials = final(method, scale, book, task) if task in tasks_of(method, scale) else []
    if not trials:
        return ""
    bank = trials[0].bank
    layers = f"{bank['layers']}, " if isinstance(bank, dict) and "layers" in bank else ""
    rate = trials[0].training["learning_rate"]
    end = {min(method.rates): " (lowest)", max(method.rates): " (highest)"} if len(method.rates) > 1 else {}
    return f"{layers}{rate:g}{end.get(rate, '')}, {trials[0].training['epochs']} epochs"


WITHIN, MOST = 0.4, 2.1
"""Maximum distance of the mean score from full fine-tuning in points, and maximum percentage of the encoder's layers: this is
stricter than the paper, which has 0.4 points with 3.6 % and 0.8 points with 2.1 % (Houlsby et al. 2019, Table 1)."""
NEAR = 1.0
"""Maximum distance from variable fine-tuning, in points."""


def reproduces(scale: Scale, book: Book) -> Sequence[Claim]:
    """Check whether adapters are as good as full copies and top layers, and LayerNorms are not."""
    known = [_against_full(scale, book), _layernorm(scale, book), _top(scale, book)]
    return [claim for claim in known if claim is not None]


def _against_full(scale: Scale, book: Book) -> Claim | None:
    tasks = scale.some(ELEVEN)
    full, ours = (mean_score(method, scale, book, tasks) for method in MAIN)
    size = parameters(HOULSBY, scale, book, tasks[0])
    if full is None or ours is None or size is None:
        return None
    share, whole = 100 * size[0] / scale.encoder, 100 * size[0] / size[1]
    return Claim(
        claim="Adapters come close to full fine-tuning: 0.4 points with 3.6 % of the encoder, 0.8 with 2.1 % (Table 1)",
        found=f"{shown(ours, 2)} vs. {shown(full, 2)} on {len(tasks)} tasks, with {share:.2f} %",
        holds=full.value - ours.value <= WITHIN and share <= MOST,
        why=f"criterion: means within {WITHIN} points, with at most {MOST} %, without embeddings as in the paper; of the "
        f"whole model it is {whole:.2f} %; {claims.by_means(ours, full, -WITHIN)}",
    )


def headline(scale: Scale, book: Book) -> str:
    """Return a sentence on adapters and full copies; an empty string while either has no mean."""
    tasks, seeds = scale.some(ELEVEN), counted(len(scale.seeds), "seed")
    full, ours = (mean_score(method, scale, book, tasks) for method in MAIN)
    size = parameters(HOULSBY, scale, book, tasks[0])
    if full is None or ours is None or size is None:
        return ""
    return (
        f"On {len(tasks)} tasks (MiniLM, {seeds}) Houlsby banks with {100 * size[0] / scale.encoder:.2f} % as "
        f"many parameters as the encoder's layers reach a mean test score of {shown(ours)}, full copies {shown(full)} "
        "(standard error over seeds; accuracy, but Matthews for cola and Spearman for stsb)."
    )


def _beside(method: Method, scale: Scale, book: Book) -> tuple[Mean, Mean] | None:
    """Return the means of a method and of the adapters."""
    tasks = scale.some(EIGHT)
    other, ours = (mean_score(each, scale, book, tasks) for each in (method, HOULSBY))
    if other is None or ours is None:
        return None
    return other, ours


def _layernorm(scale: Scale, book: Book) -> Claim | None:
    found = _beside(LAYERNORM, scale, book)
    claim = "LayerNorms alone score lower than adapters: by 3.5 points on CoLA and 4 on MNLI (section 3.4)"
    row = found and claims.row(claim, claims.at_least(found[1], found[0]))
    tasks = [final(LAYERNORM, scale, book, task) for task in scale.some(EIGHT)]
    high = sum(trials[0].training["learning_rate"] == LAYERNORM.rates[-1] for trials in tasks if trials)
    why = f"two rates were tried for LayerNorms (the higher was chosen on {high} tasks), three for adapters"
    return row and replace(_on_eight(row, scale), why=why)


def _on_eight(row: Claim, scale: Scale) -> Claim:
    return replace(row, found=f"{row.found}, on {len(scale.some(EIGHT))} tasks")


def _top(scale: Scale, book: Book) -> Claim | None:
    found = _beside(TOP, scale, book)
    claim = (
        f"Adapters come within {NEAR:g} point of variable fine-tuning, with far fewer parameters (Table 2: 0.7 points)"
    )
    row = found and claims.row(claim, claims.at_least(found[1], found[0], -NEAR))
    return row and replace(
        _on_eight(row, scale),
        why="two numbers of layers and one rate were tried for variable fine-tuning, three rates for adapters",
    )


STUDY = Study(
    name="houlsby2019/compare",
    title="Banks compared with full fine-tuning (after Houlsby et al. 2019, Tables 1 and 2)",
    plan=plan,
    body=body,
    reproduces=reproduces,
    headline=headline,
    rule=claims.RULE + "; the first row is judged by its means alone",
)
