"""Lines of LEDGER.md for Houlsby et al. 2019."""

from __future__ import annotations

from experiments.continual import classic5, long7
from experiments.continual.measures import Measures
from experiments.continual.methods import BANKS
from experiments.houlsby2019 import ablation, tradeoff
from experiments.houlsby2019.compare import EIGHT, ELEVEN, FULL, HOULSBY, LAYERNORM, TOP, final, mean_score, tasks_of
from experiments.ledger.line import NOT_AT_HAND, Group, Line, difference
from experiments.published import houlsby2019 as published
from experiments.published.table import arxiv
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import Mean, mean_of
from experiments.studies.tuning import Method, scores_of

_ROWS = "backbone and rows"
_TASKS = "backbone, rows and tasks"
_GLUE = "continual-petl run experiments/houlsby2019/full_scale/glue_bert_large.yaml"
_MORE = "continual-petl run experiments/houlsby2019/full_scale/additional_tasks_bert_base.yaml"
_COMPARE = "`houlsby2019/compare`: MiniLM, sub-sampled rows, adapters of 2.0 % of the encoder's layers"
_OURS = {"CoLA": "cola", "SST": "sst2", "MRPC": "mrpc", "STS-B": "stsb", "RTE": "rte"}


def groups(scale: Scale, book: Book) -> list[Group]:
    """Return the lines of all tables and figures."""
    return [_glue(scale, book), _additional(scale, book), _mnli(scale, book), _squad(), _sizes(scale, book),
            _ablation(scale, book), _memory(scale, book)]  # fmt: skip


def _score(method: Method, scale: Scale, book: Book, task: str) -> Mean | None:
    if task not in tasks_of(method, scale):
        return None
    return mean_of(scores_of(book, final(method, scale, book, task)))


def _glue(scale: Scale, book: Book) -> Group:
    source, lines = arxiv(published.ID, "Table 1"), []
    methods = {"full fine-tuning": FULL, "adapters, 8 to 256": HOULSBY, "adapters, 64": HOULSBY}
    total = {name: mean_score(method, scale, book, scale.some(ELEVEN)) for name, method in methods.items()}
    for name, row in published.TABLE_1.items():
        for column, value in row.items():
            task = _OURS.get(column)
            ours = total[name] if column == "total" else task and _score(methods[name], scale, book, task)
            lines.append(
                Line(
                    what=f"{name}, {column}",
                    published=f"{value:.1f}",
                    source=source,
                    ours=ours or None,
                    apart=_TASKS if column == "total" else _ROWS if task else NOT_AT_HAND,
                    note={"total": "ours: mean of eleven tasks", "MRPC": "F1; ours: accuracy"}.get(column, ""),
                )
            )
    full = published.TABLE_1["full fine-tuning"]["total"]
    for name in ("adapters, 8 to 256", "adapters, 64"):
        gap = published.TABLE_1[name]["total"] - full
        ours = difference(total[name], total["full fine-tuning"])
        what = f"{name}, minus full fine-tuning, total"
        lines.append(Line(what=what, published=f"{gap:+.1f}", source=source, ours=ours, note="ours: on eleven tasks"))
    return Group(
        title="Houlsby et al. 2019, Table 1: GLUE",
        published="BERT-large, all rows, GLUE's test server; one bank or copy per task, the task is known",
        ours=_COMPARE,
        commands=(_GLUE,),
        lines=lines,
    )


def _additional(scale: Scale, book: Book) -> Group:
    source, table = arxiv(published.ID, "Table 2"), published.TABLE_2
    methods = {"full fine-tuning": FULL, "variable fine-tuning": TOP, "adapters": HOULSBY}
    ours = {name: mean_score(method, scale, book, scale.some(EIGHT)) for name, method in methods.items()}
    lines = [
        Line(what=f"{name}, mean", published=f"{value:.1f}", source=source, ours=ours.get(name), apart=_TASKS)
        for name, value in table.items()
    ]
    lines += [
        Line(
            what=f"adapters minus {name}, mean",
            published=f"{table['adapters'] - table[name]:+.1f}",
            source=source,
            ours=difference(ours["adapters"], ours[name]),
            note="ours: on eight tasks",
        )
        for name in ("full fine-tuning", "variable fine-tuning")
    ]
    return Group(
        title="Houlsby et al. 2019, Table 2: seventeen additional tasks",
        published="BERT-base, all rows; one bank or copy per task, the task is known",
        ours=_COMPARE,
        commands=(_MORE,),
        lines=lines,
    )


def _mnli(scale: Scale, book: Book) -> Group:
    source = arxiv(published.ID, "section 3.4 and figure 4")
    lines = [
        Line(what=f"{name}, MNLI", published=f"{value:.1f}", source=source, ours=None, apart=NOT_AT_HAND)
        for name, value in published.FIGURE_4.items()
    ]
    for column, value in published.LAYERNORMS.items():
        task = _OURS.get(column)
        gap = task and difference(*(_score(method, scale, book, task) for method in (LAYERNORM, HOULSBY)))
        lines.append(
            Line(
                what=f"LayerNorms only, minus adapters, {column}",
                published=f"{value:+.1f}",
                source=source,
                ours=gap or None,
                apart="" if task else NOT_AT_HAND,
            )
        )
    return Group(
        title="Houlsby et al. 2019, figure 4: score against parameters",
        published="BERT-base, all rows, validation accuracy",
        ours=f"{_COMPARE}; test rows",
        commands=(f"{_GLUE} --backbone google-bert/bert-base-uncased",),
        lines=lines,
    )


def _squad() -> Group:
    source = arxiv(published.ID, "section 3.5 and figure 5")
    return Group(
        title="Houlsby et al. 2019, figure 5: SQuAD",
        published="BERT-base, SQuAD v1.1, F1",
        ours="none",
        lines=[
            Line(what=name, published=f"{value:.1f}", source=source, ours=None, apart=NOT_AT_HAND)
            for name, value in published.SQUAD.items()
        ],
    )


def _sizes(scale: Scale, book: Book) -> Group:
    source, means = arxiv(published.ID, "section 3.6"), tradeoff.robust_means(scale, book)
    lines = [
        Line(what=f"adapters, {size}", published=f"{value:.1f}", source=source, ours=means[size], apart=_TASKS)
        for size, value in published.SIZES.items()
    ]
    lines += [
        Line(
            what=f"adapters, {size} minus {published.REFERENCE}",
            published=f"{value - published.SIZES[published.REFERENCE]:+.1f}",
            source=source,
            ours=difference(means[size], means[published.REFERENCE]),
            note="ours: one rate for all sizes; in the paper, one for each",
        )
        for size, value in published.SIZES.items()
        if size != published.REFERENCE
    ]
    return Group(
        title="Houlsby et al. 2019, section 3.6: sizes of adapters",
        published="BERT-large, GLUE, mean validation score",
        ours="`houlsby2019/tradeoff`: MiniLM, 1,000 rows of each of eight tasks, mean validation score",
        commands=(_GLUE,),
        lines=lines,
    )


def _ablation(scale: Scale, book: Book) -> Group:
    source, lines = arxiv(published.ID, "section 3.6 and figure 6"), []
    for task in ablation.TASKS:
        found = ablation.drops(scale, book, task)
        worst = min((drop for (first, last), drop in found.items() if first == last), default=None)
        lines.append(
            Line(
                what=f"change without the adapters of one layer, percent, at most; {task}",
                published=f"{published.ONE_LAYER:+.1f}",
                source=source,
                ours=None if worst is None else Mean(worst, None, 1),
                apart="12 layers, here 6; tasks",
            )
        )
    lines += [
        Line(what=f"without any adapters, {name}", published=f"{value:.0f}", source=source, ours=None, apart=why)
        for (name, value), why in zip(published.WITHOUT.items(), (NOT_AT_HAND, "not run on this task"), strict=True)
    ]
    return Group(
        title="Houlsby et al. 2019, figure 6: removing adapters",
        published="BERT-base, MNLI and CoLA, validation rows",
        ours="`houlsby2019/ablation`: MiniLM, TREC and SST-2, 2,000 rows, one seed",
        commands=(_GLUE, "continual-petl ablate RUN TASK"),
        lines=lines,
    )


def _memory(scale: Scale, book: Book) -> Group:
    source = arxiv(published.ID, "section 1: perfect memory of previous tasks")
    return Group(
        title="Houlsby et al. 2019, section 1: forgetting",
        published="any stream; one bank per task, the task is known",
        ours="`continual/classic5` and `continual/long7`: Houlsby banks on MiniLM, three orders",
        commands=("continual-petl run classic5",),
        lines=[
            Line(
                what=f"forgetting, {len(stream.some(scale, stream.orders[0]))} tasks",
                published="0",
                source=source,
                ours=Measures(stream, scale, book).means(BANKS[0])["forgetting"],
            )
            for stream in (classic5.STREAM, long7.STREAM)
        ],
    )
