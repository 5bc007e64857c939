"""What README says of a stream: ACC, forgetting and what is kept, of those methods that people know."""

from __future__ import annotations

from experiments.continual.measures import Measures
from experiments.continual.methods import BANKS, COPIES, JOINT, REPLAY, SEQUENTIAL, SEQUENTIAL_LORA, Stream
from experiments.continual.sizes import size_of
from experiments.studies.ledger import Book
from experiments.studies.scale import Scale
from experiments.studies.statistics import shown

SHOWN = (BANKS[0], COPIES, JOINT, SEQUENTIAL_LORA, REPLAY, SEQUENTIAL)


def headline(stream: Stream, scale: Scale, book: Book) -> str:
    """Return a sentence and a table; nothing while a method has no ACC."""
    measures = Measures(stream, scale, book)
    rows = []
    for method in SHOWN:
        means, size = measures.means(method), size_of(measures, method)
        if means["ACC"] is None or size is None:
            return ""
        lost = means["forgetting"]
        forgetting = "" if lost is None else "exactly 0" if lost.value == 0 == lost.error else shown(lost)
        rows.append(f"| {method.name} | {shown(means['ACC'])} | {forgetting} | {size.share:.3f}x |")
    orders = {order for order, _ in stream.runs(scale)}
    tasks = sorted(stream.some(scale, stream.orders[0]))
    intro = (
        f"{len(tasks)} tasks ({', '.join(tasks)}) one after the other in {len(orders)} orders on MiniLM, "
        f"{stream.limits['train']} training rows each, {len(scale.seeds)} seeds, rates chosen on validation rows. Points of "
        f"accuracy, mean and standard error:"
    )
    head = ["| | ACC | forgetting | kept for all tasks, of the backbone |", "|---|---:|---:|---:|"]
    return "\n".join([intro, "", *head, *rows])
