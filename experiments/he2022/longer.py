"""He et al. 2022, Tables 2 and 6 again: MAM on MRPC with more epochs, compared with full fine-tuning and the best other bank.

In `experiments.he2022.methods`, with three epochs on MRPC, MAM falls behind, but its validation score still rises in the
last epoch, and its learning rate was chosen on another task. Here MAM and the methods compared with it are trained for
eight epochs, each at one of the same two rates, chosen on MRPC's validation rows. Everything else is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from experiments.he2022.rows import TRAIN, Row, last_epoch
from experiments.he2022.settings import LARGE, find
from experiments.he2022.table import Cell, size, table
from experiments.studies import claims
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import Mean, mean_of, shown
from experiments.studies.study import Claim, Study
from experiments.studies.trial import Trial
from experiments.studies.tuning import Method, scores_of

TASK, EPOCHS = "mrpc", 8
ROWS: tuple[Row, ...] = (
    find("full fine-tuning"),
    find("MAM (flat)", LARGE),
    find("LoRA (q, v)", LARGE),
)


def rows_of(scale: Scale) -> tuple[Row, ...]:
    """Return the rows; for a quick study only two."""
    return scale.some(ROWS, 2)


def longer(row: Row) -> Method:
    """Return the training settings of a row of the methods study."""
    return replace(row.method, banks=(row.bank,), epochs={"": EPOCHS})


def final(row: Row, scale: Scale, book: Book) -> list[Trial]:
    """Return the final trials, one per seed; an empty list while the learning rate is not known."""
    return longer(row).repeated(scale, book, TASK, train=TRAIN)


def plan(scale: Scale, book: Book) -> Iterator[list[Trial]]:
    """Choose a learning rate for each row, then learn with all seeds."""
    rows = rows_of(scale)
    yield [trial for row in rows for trial in longer(row).grid(scale, TASK, scale.seeds[0], TRAIN)]
    yield [trial for row in rows for trial in final(row, scale, book)]


def _score(row: Row, scale: Scale, book: Book) -> Mean | None:
    return mean_of(scores_of(book, final(row, scale, book)))


def body(scale: Scale, book: Book) -> str:
    """Return the scores next to the scores after three epochs."""
    header = ["method", "parameters", "share", "8 epochs", "last epoch", "rate", "3 epochs, SST-2's rate"]
    return f"{_INTRO}\n\n{table(header, [_row(row, scale, book) for row in rows_of(scale)])}"


def _row(row: Row, scale: Scale, book: Book) -> list[Cell]:
    trials = final(row, scale, book)
    rose, rate = last_epoch(book, trials, TASK), trials[0].training["learning_rate"] if trials else None
    return [
        row.name,
        *size(row.parameters, row.share),
        mean_of(scores_of(book, trials)),
        "-" if rose is None else f"{rose:+.1f}",
        "-" if rate is None else f"{rate:g}",
        row.score(scale, book, TASK),
    ]


_INTRO = f"""Accuracy on MRPC's test rows, in points: mean and standard error over seeds; the best of each column is bold.
{TRAIN:,} training rows as in the methods study; each method's learning rate is chosen from the same two rates as there, on
MRPC's validation rows with the first seed. The gain of the last epoch is on validation rows; the learning rate has decayed
to zero by its end."""


def reproduces(scale: Scale, book: Book) -> list[Claim]:
    """Check the claims about MAM."""
    full, mam, lora = ((row, _score(row, scale, book)) for row in ROWS)
    return [
        claims.row(
            "MAM (flat) with 2 % of the parameters comes close to full fine-tuning (Tables 2 and 6; here: within a point)",
            claims.at_least(mam[1], full[1], -1.0),
            _before(mam[0], full[0], scale, book),
        ),
        claims.row(
            "MAM (flat) is better than LoRA on queries and values, which was the best bank with three epochs (Table 6)",
            claims.at_least(mam[1], lora[1]),
            _before(mam[0], lora[0], scale, book),
        ),
    ]


def _before(ours: Row, theirs: Row, scale: Scale, book: Book) -> str:
    """Return the scores after three epochs."""
    scores = ours.score(scale, book, TASK), theirs.score(scale, book, TASK)
    if scores[0] is None or scores[1] is None:
        return ""
    return f"with three epochs, at the learning rate of SST-2: {shown(scores[0])} vs. {shown(scores[1])}"


STUDY = Study(
    name="he2022/longer",
    title="MAM (flat) on MRPC with more epochs (He et al. 2022, Tables 2 and 6 again)",
    plan=plan,
    body=body,
    reproduces=reproduces,
    rule=claims.RULE,
    any_scale=False,
)
