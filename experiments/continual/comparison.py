"""The page of a comparison on a stream: tables, sentences and figures, all from the ledger."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.continual import findings, lower_rates
from experiments.continual.measures import METRICS, Measures
from experiments.continual.methods import (
    BANKS,
    CHOOSING,
    COPIES,
    FAMILIES,
    JOINT,
    METHODS,
    REPLAY,
    SEQUENTIAL,
    Method,
    Stream,
    limited,
)
from experiments.continual.sizes import size_of
from experiments.published.streams import shown as shown_tables
from experiments.published.table import Table
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import counted, mean_of, shown
from experiments.studies.study import Claim

_DEFINED = """\
ACC, BWT, forgetting (the largest score since a task was learned minus the last one, Chaudhry et al. 2018), learning
accuracy (mean of the diagonal of the result matrix R), intransigence (score of joint training minus the diagonal, mean over
tasks; the joint model has learned all tasks, not only those up to the current one) and FWT in the form that measures
plasticity (the diagonal minus the score of a full copy for that task alone, from the second task on). GEM's FWT needs the
score of a task before it was learned, when it has no head yet, so it is not defined here. All are computed from R by
`continual_petl.metrics`."""


def body(stream: Stream, tables: tuple[Table, ...], scale: Scale, book: Book) -> str:
    """Return the text of the page that compares methods on a stream."""
    measures = Measures(stream, scale, book)
    sections = {
        "": _setting(measures),
        "Results": "\n\n".join([_metrics(measures), _DEFINED]),
        "Findings": "\n\n".join([findings.zeros(measures), findings.orders(measures), findings.forgetting(measures)]),
        "Costs": _sizes(measures),
        "Task by task": _tasks(measures),
        "Rates": _rates(measures),
        "Published figures": shown_tables(tables),
    }
    return "\n\n".join(f"## {title}\n\n{text}" if title else text for title, text in sections.items())


def _setting(measures: Measures) -> str:
    stream, scale = measures.stream, measures.scale
    runs = stream.runs(scale)
    orders = list(dict.fromkeys(stream.some(scale, order) for order, _ in runs))
    named = "\n".join(f"{number}. {', '.join(order)}" for number, order in enumerate(orders, 1))
    how = "each with its own seed"
    if stream.crossed:
        paired = " and ".join(method.name for method in METHODS if not method.crossed)
        alone = "" if len(scale.seeds) >= len(orders) else "not in all orders, "
        how = f"each with every seed ({paired}: {alone}each with its own seed)"
    some = limited(scale, scale.trial("yelp", "probe", epochs=1, learning_rate=1.0, seed=0), stream.limits)
    train, validation, test = (some.limits[split] for split in ("train", "validation", "test"))
    share, every = 100 * REPLAY.options["memory"], REPLAY.options["every"]
    told = counted(len(orders), "order")
    return f"""\
{len(orders[0])} tasks in {told}, {how}; at most {train} training, {validation} validation and {test} test
rows per task. The task of a row is known at prediction time.

{named}

Sequential methods pass one body from task to task; each task has its own head, which later tasks do not train, so all
forgetting is due to the body. Replay keeps {share:g} % of the training rows of each earlier task (at least one) and takes
one optimizer step on up to a batch of these rows after every {every} batches of new rows, each row through the head of its
own task, so that this head is trained further. De Masson d'Autume et al. 2019 keep every row and replay 100 rows for every
10,000 new ones. At the size of this study, that would be less than a batch per task, so more rows are replayed here, from a
smaller memory. Joint training learns all tasks at once, for the same number of epochs. All methods keep the epoch with the
best validation score: the score of the task being learned or, in joint training, the mean over all tasks. Banks do not
depend on the order, so they are learned in the first order with every seed and in the second with the first seed. The kinds
of bank differ in size, as shown below.

All standard errors are over seeds and do not include the choice of test rows."""


def _metrics(measures: Measures) -> str:
    rows = [f"| | {' | '.join(METRICS)} |", "|---" + "|---:" * len(METRICS) + "|"]
    for method in METHODS:
        means = measures.means(method)
        rows.append(f"| {method.name} | {' | '.join(shown(means[name]) for name in METRICS)} |")
    return (
        "\n".join(rows)
        + "\n\nAccuracy in points: mean and standard error over seeds, where a seed's value is the mean over "
        "its orders; a dash if trials are missing or a metric is undefined (joint training has only the last row of R)."
    )


def _sizes(measures: Measures) -> str:
    rows = [
        "| | trained per task | kept for all tasks | of the backbone | MB | training seconds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for method in METHODS:
        size = size_of(measures, method)
        if size is None:
            rows.append(f"| {method.name} | - | - | - | - | - |")
            continue
        cells = [
            f"{size.trained:,.0f}",
            f"{size.kept:,.0f}",
            f"{size.share:.4f}x",
            f"{size.num_bytes / 1e6:.2f}",
            f"{size.seconds:.0f}",
        ]
        rows.append(f"| {method.name} | {' | '.join(cells)} |")
    return "\n".join(rows) + (
        "\n\nHeads are counted, but not the backbone, which banks need and full copies do not. Replay's size includes its "
        "stored rows (four bytes per token). Only the newest shared body is needed for prediction; the store keeps every "
        "committed one. Seconds are upper bounds, since other trials ran at the same time."
    )


def _tasks(measures: Measures) -> str:
    tasks = sorted(measures.stream.some(measures.scale, measures.stream.orders[0]))
    rows = [f"| at the end (right after it was learned) | {' | '.join(tasks)} |", "|---" + "|---:" * len(tasks) + "|"]
    for method in METHODS:
        cells = []
        for task in tasks:
            last, first = _scores(measures, method, task)
            cells.append(shown(mean_of(last)) + (f" ({shown(mean_of(first))})" if method.ordered else ""))
        rows.append(f"| {method.name} | {' | '.join(cells)} |")
    said = (
        "Mean and standard error, s / sqrt(runs), over all runs; for order-dependent methods, the spread is mostly due to "
        "the position of the task."
    )
    return "\n".join([*rows, "", said])


def _scores(measures: Measures, method: Method, task: str) -> tuple[list[float | None], list[float | None]]:
    """Return a task's scores at the end and right after it was learned, one per independent run."""
    seeds, first = measures.scale.seeds, measures.stream.orders[0]
    runs = measures.stream.runs(measures.scale, method) if method.ordered else [(first, seed) for seed in seeds]
    last: list[float | None] = []
    diagonal: list[float | None] = []
    for order, seed in runs:
        R_TT, place = measures.R(method, order, seed), measures.stream.some(measures.scale, order).index(task)
        last.append(None if R_TT is None else 100 * float(R_TT[-1, place]))
        diagonal.append(None if R_TT is None else 100 * float(R_TT[place, place]))
    return last, diagonal


def _rates(measures: Measures) -> str:
    rows = ["| | rates | chosen | epochs |", "|---|---|---:|---:|"]
    for family in FAMILIES:
        rate = family.rate(measures.scale, measures.book)
        rates = ", ".join(f"{each:g}" for each in measures.scale.some(family.rates))
        rows.append(f"| {family.name} | {rates} | {'-' if rate is None else f'{rate:g}'} | {family.epochs} |")
    said = (
        "One learning rate per method, chosen with the first seed by the mean validation score of "
        f"{' and '.join(CHOOSING)}, each learned alone. Sequential fine-tuning, replay, joint training and full copies "
        "share one rate; sequential LoRA uses that of the LoRA bank."
    )
    lower = lower_rates.section(measures.stream, measures.scale, measures.book)
    return "\n\n".join(part for part in (said, "\n".join(rows), lower) if part)


def figures(stream: Stream, scale: Scale, book: Book) -> dict[str, Figure]:
    """Return the figures: the score of the first task over the stream, and ACC plotted against the parameters kept."""
    measures = Measures(stream, scale, book)
    return {"score of the first task": _over_stream(measures), "ACC against parameters kept": _against_size(measures)}


def _over_stream(measures: Measures) -> Figure:
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for number, method in enumerate(METHODS):
        curve = measures.over_stream(method)
        if curve is not None:
            axes.plot(range(1, len(curve) + 1), curve, label=method.name, marker="osD^v<>Ph"[number], linewidth=1.5)
    axes.set(xlabel="tasks learned", ylabel="score of the first task, points, mean of all orders")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if axes.lines:
        figure.legend(fontsize="small", loc="outside right upper")
    return figure


def _against_size(measures: Measures) -> Figure:
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    for number, method in enumerate(METHODS):
        size, mean = size_of(measures, method), measures.means(method)["ACC"]
        if size is not None and mean is not None:
            error = None if mean.error is None else [mean.error]
            marker = "osD^v<>Ph"[number]
            axes.errorbar([size.kept], [mean.value], yerr=error, label=method.name, marker=marker, linestyle="none")
    axes.set(xlabel="parameters kept for all tasks, in addition to the backbone", ylabel="ACC, points", xscale="log")
    if axes.containers:
        figure.legend(fontsize="small", loc="outside right upper")
    return figure


def reproduces(stream: Stream, scale: Scale, book: Book) -> list[Claim]:
    """Check whether banks have perfect memory while a shared body forgets, and the cost in accuracy."""
    measures = Measures(stream, scale, book)
    runs = [outcome for method in BANKS for _, outcome in measures.outcomes(method)]
    forgetting = measures.means(SEQUENTIAL)["forgetting"]
    if not runs or forgetting is None:
        return []
    kept = not any(findings.forgot(outcome) or outcome.get("unchanged") is not True for outcome in runs)
    rows = [
        Claim(
            claim="Tasks do not interact: perfect memory of previous tasks (Houlsby et al. 2019, section 1)",
            found=f"forgetting of banks is {'exactly 0 (verified)' if kept else 'NOT 0'} in {len(runs)} runs",
            holds=kept,
            why="",
        ),
        Claim(
            claim="One body that is fine-tuned on one task after another forgets",
            found=f"a drop of {shown(forgetting)} points from the best score of each task to its last score",
            holds=findings.clear(forgetting),
            why="each task has its own head, which reduces forgetting, while published work often shares one head; "
            "the learning rate is the best one for tasks learned alone, which may forget more than a lower one. "
            f"{lower_rates.sentence(stream, scale, book)}".rstrip(),
        ),
    ]
    ours = measures.means(BANKS[0])["ACC"]
    for method, better in ((SEQUENTIAL, True), (REPLAY, True), (COPIES, None), (JOINT, None)):
        other = measures.means(method)["ACC"]
        if ours is not None and other is not None:
            rows.append(
                Claim(
                    claim=f"Houlsby banks {'score higher than' if better else 'come close to'} {method.name}",
                    found=f"ACC {shown(ours)} vs. {shown(other)}",
                    holds=ours.value > other.value if better else ours.value > other.value - NEAR,
                    why=_why(stream, method, better),
                )
            )
    return rows


def _why(stream: Stream, method: Method, better: bool | None) -> str:
    if method is REPLAY:
        return f"replay keeps {stream.remembered} rows of each task, and uses the rate of full copies"
    return "" if better else f"close: less than {NEAR:g} point below"


NEAR = 1.0
"""Maximum distance that counts as close, in points."""
