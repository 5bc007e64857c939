"""After He et al. 2022, Table 2 and Figure 4: methods at equal parameter budgets, compared with full fine-tuning.

The paper uses RoBERTa-base on MNLI and SST-2, all rows, 10 epochs, five seeds. This study uses MiniLM on 1,500 rows of SST-2
(single texts) and MRPC (pairs), 3 epochs, three seeds, with one of two learning rates for each method: 132 trials. Left
out: Houlsby's adapters at 0.1 %, which would be little more than their LayerNorms; Pfeiffer's adapters except at 2 %;
prompts and diff-pruning except at one size, diff-pruning only in the upper three layers; MNLI; and a choice of learning
rates on MRPC.
"""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from experiments.he2022.figure import score_by_share
from experiments.he2022.rows import GAPS, TASKS, Row, gap_by_task, mean_score, stages
from experiments.he2022.settings import LARGE, MIDDLE, encoder_rows, find
from experiments.he2022.table import Cell, size, table
from experiments.published import he2022 as published
from experiments.studies import claims
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.study import Claim, Study
from experiments.studies.trial import Trial

IN_PAPER = {
    ("full fine-tuning", None): "full",
    ("BitFit", None): "bitfit",
    ("prefix", MIDDLE): "prefix",
    ("LoRA (q, v)", MIDDLE): "lora",
    ("Houlsby", MIDDLE): "adapter",
    ("MAM (flat)", MIDDLE): "mam",
}
"""The rows of the paper's Table 2, by method and budget."""


def rows_of(scale: Scale) -> tuple[Row, ...]:
    """Return the rows; for a quick study only the first three and the last."""
    return scale.some(encoder_rows(), 4)


def plan(scale: Scale, book: Book) -> Iterator[list[Trial]]:
    """Choose learning rates, then learn with all seeds."""
    rows = rows_of(scale)
    yield stages(rows, scale, book)[0]
    yield stages(rows, scale, book)[1]


def body(scale: Scale, book: Book) -> str:
    """Return a table in the form of Table 2."""
    header = ["method", "parameters", "share", *TASKS, "mean", "rate", "paper: MNLI", "paper: SST-2"]
    rows = [_row(row, scale, book) for row in rows_of(scale)]
    return f"{_INTRO}\n\n{table(header, rows)}"


def _row(row: Row, scale: Scale, book: Book) -> list[Cell]:
    scores = [row.score(scale, book, task) for task in TASKS]
    rate = row.rate(scale, book)
    paper = published.encoder(published.TABLE_2.get(IN_PAPER.get((row.name, row.budget), "")))
    return [
        row.name,
        *size(row.parameters, row.share),
        *scores,
        mean_score([row], scale, book),
        "-" if rate is None else f"{rate:g}",
        *paper,
    ]


_INTRO = """Accuracy on test rows, in points: mean and standard error over seeds; the best of each column is bold.
Parameters are those added per task, excluding its head; sizes are the nearest to 0.1 %, 0.5 % and 2 % of the backbone. A
learning rate is chosen once per method, on validation rows of SST-2 with the first seed. For comparison, the paper's Table
2 for RoBERTa-base with all rows (median and standard deviation of five seeds, 0.1 % or 0.5 %)."""


def figures(scale: Scale, book: Book) -> dict[str, Figure]:
    """Return a figure in the form of Figure 4."""
    return {"score by share": score_by_share(rows_of(scale), scale, book)}


def reproduces(scale: Scale, book: Book) -> list[Claim]:
    """Check the claims of Table 2."""
    rows = find("full fine-tuning"), find("MAM (flat)", MIDDLE), find("MAM (flat)", LARGE), find("BitFit")
    full, middle, large, bitfit = (mean_score([row], scale, book) for row in rows)
    whys = [gap_by_task([row], rows[:1], scale, book) for row in rows[1:3]]
    return [
        claims.row(
            "MAM (flat) with 0.5 % of the parameters comes close to full fine-tuning (Table 2; here: within a point)",
            claims.at_least(middle, full, -1.0),
            whys[0],
        ),
        claims.row(
            "MAM (flat) with 2 % of the parameters comes close to full fine-tuning (here: within a point)",
            claims.at_least(large, full, -1.0),
            whys[1],
        ),
        claims.row("full fine-tuning scores higher than BitFit (Table 2)", claims.at_least(full, bitfit)),
    ]


STUDY = Study(
    name="he2022/methods",
    title="Methods at equal parameter budgets (after He et al. 2022, Table 2 and Figure 4)",
    plan=plan,
    body=body,
    figures=figures,
    reproduces=reproduces,
    rule=f"{claims.RULE}; {GAPS}",
    any_scale=False,
)
