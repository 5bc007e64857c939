"""ACC, forgetting and stored parameters on a stream: of all methods for the page of results, of a few for README."""

from __future__ import annotations

from experiments.continual import lower_rates
from experiments.continual.measures import Measures
from experiments.continual.methods import BANKS, COPIES, FULL, JOINT, METHODS, REPLAY, SEQUENTIAL, Method, Stream
from experiments.continual.sizes import size_of
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import counted, shown

HEAD = "| | ACC | forgetting | parameters for all tasks |\n|---|---:|---:|---:|"
FEW = (BANKS[0], COPIES, SEQUENTIAL, REPLAY, JOINT)
"""The methods that README shows."""


def _row(method: Method, measures: Measures) -> str | None:
    """Return the row of a method in a table; None while it has no ACC."""
    means, size = measures.means(method), size_of(measures, method)
    if means["ACC"] is None or size is None:
        return None
    lost = means["forgetting"]
    forgetting = "" if lost is None else "exactly 0" if lost.value == 0 == lost.error else shown(lost)
    return f"| {method.name} | {shown(means['ACC'])} | {forgetting} | {_stored(method, size.share):.3f}x |"


def _stored(method: Method, share: float) -> float:
    # A fine-tuned body replaces the backbone; everything else needs it in addition.
    return share + (0 if method.family is FULL else 1)


def summary_of(stream: Stream, scale: Scale, book: Book) -> str:
    """Return a sentence and a table of a few methods; an empty string while one of them has no ACC."""
    measures = Measures(stream, scale, book)
    rows = [_row(method, measures) for method in FEW]
    if None in rows:
        return ""
    orders = {order for order, _ in stream.runs(scale)}
    lower = [at.acc for at in lower_rates.lower(stream, scale, book)]
    intro = (
        f"{len(stream.some(scale, stream.orders[0]))} tasks learned one after another on MiniLM with "
        f"{stream.limits['train']} training rows each; means over {counted(len(orders), 'order')} and "
        f"{counted(len(scale.seeds), 'seed')}, in points. ACC is the mean accuracy on all tasks after the last one; "
        "forgetting is how far tasks fell from their best score."
        + (f" At lower learning rates, sequential fine-tuning reaches an ACC of {max(lower):.1f}." if lower else "")
    )
    return "\n".join([intro, "", HEAD, *filter(None, rows)])


def headline(stream: Stream, scale: Scale, book: Book) -> str:
    """Return a sentence and a table; an empty string while any method has no ACC."""
    measures = Measures(stream, scale, book)
    rows = []
    for method in METHODS:
        row, size = _row(method, measures), size_of(measures, method)
        if row is None or size is None:
            return ""
        rows.append(row)
        # These learning rates were not chosen on validation rows, so each has its own row.
        for at in lower_rates.lower(stream, scale, book) if method is SEQUENTIAL else ():
            stored = _stored(method, size.share)
            rows.append(
                f"| {method.name}, learning rate {at.rate:g} | {at.acc:.1f} | {at.forgetting:.1f} | {stored:.3f}x |"
            )
    orders = {order for order, _ in stream.runs(scale)}
    tasks = sorted(stream.some(scale, stream.orders[0]))
    own, seeds = SEQUENTIAL.family.rate(scale, book), counted(len(scale.seeds), "seed")
    crossed = " and ".join(method.name for method in METHODS if not method.crossed)
    intro = (
        f"{len(tasks)} tasks ({', '.join(tasks)}) learned one after another in {counted(len(orders), 'order')} on MiniLM, "
        f"{stream.limits['train']} training rows each, {seeds}. ACC is the mean accuracy on all tasks after the last one; "
        f"forgetting is the drop of a task's score from its best, averaged over all tasks but the last; both are in points, "
        f"with standard errors over seeds ({crossed}: one seed per order, so over orders too). Learning rates were chosen on "
        f"validation rows of tasks learned alone ({own:g} for fine-tuning); fine-tuning forgets less at lower ones, which "
        f"are listed separately, with one seed. Replay keeps {stream.remembered} rows of each task. The last column is "
        "relative to the size of the backbone; a fine-tuned body is counted in place of the backbone, without its pooler."
    )
    return "\n".join([intro, "", HEAD, *rows])
