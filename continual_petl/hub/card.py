"""The model card of a run: its tasks and their scores, what it cost, and how to verify and load it; see run_card.j2."""

from __future__ import annotations

from continual_petl.errors import counted, quoted
from continual_petl.exchange.model_card import base_model, new_card, template
from continual_petl.hub.address import Address
from continual_petl.kind_registry import kind_of
from continual_petl.report.formatting import mark_of, number
from continual_petl.report.run_facts import RunFacts
from continual_petl.store.ledger.lines import Entry

MAX_TASKS = 200
"""Maximum number of tasks in the table."""
MAX_ROWS = 12
"""Maximum number of tasks for which the result matrix is shown."""


def run_card(facts: RunFacts, head: Entry, address: Address) -> str:
    """Return the text of README.md.

    Args:
        facts: the run, which has learned at least one task.
        head: the newest entry of its chain.
        address: where the run can be loaded from.
    """
    assert facts.pinned is not None
    base = base_model(facts.pinned.name)
    text = template("hub", "run_card.j2").render(
        facts=facts,
        results=facts.results,
        head=head,
        address=address,
        stored=facts.growth[-1].stored,
        backbone="a backbone that is not on the Hub" if base is None else f"[{base}](https://huggingface.co/{base})",
        row="image.png" if kind_of(facts.tasks[-1].link).reads_images else "some text",
        max_tasks=MAX_TASKS,
        max_rows=MAX_ROWS,
        **{"counted": counted, "quoted": quoted, "number": number, "mark_of": mark_of},
    )
    return new_card(base, "continual-petl", ("peft", "continual-learning"), facts.name, text)
