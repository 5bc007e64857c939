"""What README says of a stream: ACC, forgetting and what is kept, of all methods."""

from __future__ import annotations

from experiments.continual import lower_rates
from experiments.continual.measures import Measures
from experiments.continual.methods import FULL, METHODS, Stream
from experiments.continual.sizes import size_of
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import counted, shown


def headline(stream: Stream, scale: Scale, book: Book) -> str:
    """Return a sentence and a table; nothing while a method has no ACC."""
    measures = Measures(stream, scale, book)
    rows = []
    for method in METHODS:
        means, size = measures.means(method), size_of(measures, method)
        if means["ACC"] is None or size is None:
            return ""
        lost = means["forgetting"]
        forgetting = "" if lost is None else "exactly 0" if lost.value == 0 == lost.error else shown(lost)
        # A body that was fine-tuned takes the backbone's place; everything else needs it beside.
        stored = size.share + (0 if method.family is FULL else 1)
        rows.append(f"| {method.name} | {shown(means['ACC'])} | {forgetting} | {stored:.3f}x |")
    orders = {order for order, _ in stream.runs(scale)}
    tasks = sorted(stream.some(scale, stream.orders[0]))
    lower = lower_rates.sentence(stream, scale, book)
    seeds = counted(len(scale.seeds), "seed")
    intro = (
        f"{len(tasks)} tasks ({', '.join(tasks)}) one after the other in {counted(len(orders), 'order')} on MiniLM, "
        f"{stream.limits['train']} training rows each, {seeds}. Points of accuracy, mean and standard error "
        f"over seeds ({', '.join(method.name for method in METHODS if not method.crossed)}: one seed for each order). "
        f"Each kind of bank or body has the rate with which its tasks, learned alone, do best on validation rows. "
        f"Replay keeps {stream.remembered} rows of each task. {lower}".rstrip()
    )
    head = ["| | ACC | forgetting | to answer all tasks, in backbones |", "|---|---:|---:|---:|"]
    return "\n".join([intro, "", *head, *rows])
