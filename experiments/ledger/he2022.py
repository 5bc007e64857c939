"""Lines of LEDGER.md for He et al. 2022."""

from __future__ import annotations

from experiments.he2022 import generation
from experiments.he2022.methods import IN_PAPER
from experiments.he2022.settings import find
from experiments.ledger.line import NOT_AT_HAND, Group, Line, difference
from experiments.published import he2022 as published
from experiments.published.table import arxiv
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import Mean

_ID = "2110.04366v3"
_FOLDER = "experiments/he2022/full_scale"
_TEXTS = {
    "Table 3": published.TABLE_3,
    "Table 4": published.TABLE_4,
    "Table 5": published.TABLE_5,
    "Table 6": published.TABLE_6,
    "Table 12": published.TABLE_12,
}


def groups(scale: Scale, book: Book) -> list[Group]:
    """Return the lines of all tables; figures 2 and 4 show numbers of the tables."""
    return [_encoder(scale, book), _texts(scale, book, "xsum"), _texts(scale, book, "rosts_en_ro")]


def _encoder(scale: Scale, book: Book) -> Group:
    source, lines = arxiv(_ID, "Table 2"), []
    ours = {key: find(*name).score(scale, book, "sst2") for name, key in IN_PAPER.items()}
    for key, row in published.TABLE_2.items():
        lines += [
            Line(
                what=f"{key}, SST-2",
                published=f"{row.sst2:.1f}",
                source=source,
                ours=ours[key],
                apart="backbone and rows",
            ),
            Line(what=f"{key}, MNLI", published=f"{row.mnli:.1f}", source=source, ours=None, apart=NOT_AT_HAND),
        ]
    full = published.TABLE_2["full"].sst2
    lines += [
        Line(
            what=f"{key} minus full, SST-2",
            published=f"{row.sst2 - full:+.1f}",
            source=source,
            ours=difference(ours[key], ours["full"]),
        )
        for key, row in published.TABLE_2.items()
        if key != "full"
    ]
    return Group(
        title="He et al. 2022, Table 2: classification",
        published="RoBERTa-base, all rows, median of five seeds; one bank or copy per task, the task is known",
        ours="`he2022/methods`: MiniLM, 1,500 rows, three epochs; MAM has a flat prefix",
        commands=(f"continual-petl run {_FOLDER}/mnli_sst2_roberta_base.yaml",),
        lines=lines,
    )


def _texts(scale: Scale, book: Book, task: str) -> Group:
    summaries = task == "xsum"
    lines = []
    for table, rows in _TEXTS.items():
        for name, row in rows.items():
            value = row.rouge and f"{row.rouge[1]:.2f}" if summaries else row.bleu and f"{row.bleu:.1f}"
            if value:
                source, ours = arxiv(_ID, table), _generated(scale, book, task, row)
                apart = "backbone and rows" if ours else "backbone not at hand"
                lines.append(Line(what=name, published=value, source=source, ours=ours, apart=apart))
    backbone, file = ("BART-large", "xsum_bart_large") if summaries else ("mBART-large", "en_ro_mbart_large")
    score = "R-2 on XSum" if summaries else "BLEU, English to Romanian"
    return Group(
        title=f"He et al. 2022, Tables 3 to 6 and 12: {'summaries' if summaries else 'translation'}",
        published=f"{backbone}, all rows; {score}",
        ours=f"`he2022/generation`: a BART of 3.8 million parameters, 1,500 rows, about 6.7 % trained; {score}",
        commands=(f"continual-petl run {_FOLDER}/{file}.yaml",),
        lines=lines,
    )


def _generated(scale: Scale, book: Book, task: str, row: published.Texts) -> Mean | None:
    """Return our score of the method that corresponds to a row of the paper."""
    for name, (_, _, paper) in generation.methods().items():
        if paper == row and name in generation.names(scale):
            return generation.score(scale, book, name, task, generation.TASK_METRICS[task])
    return None
