"""The model card of a run: its tasks and their scores, what it cost, and how to verify and load it."""

from __future__ import annotations

from continual_petl.errors import counted, quoted
from continual_petl.exchange.model_card import base_model, new_card
from continual_petl.hub.address import Address
from continual_petl.kind_registry import kind_of
from continual_petl.report.formatting import mark_of, number
from continual_petl.report.run_facts import RunFacts
from continual_petl.store.certificate.chain import Link

MAX_TASKS = 200
"""Maximum number of tasks in the table."""
MAX_ROWS = 12
"""Maximum number of tasks for which the result matrix is shown."""


def run_card(facts: RunFacts, head: Link, address: Address) -> str:
    """Return the text of README.md.

    Args:
        facts: the run, which has learned at least one task.
        head: the newest entry of its chain.
        address: where the run can be loaded from.
    """
    model, last = facts.pinned, facts.growth[-1]
    assert model is not None
    tasks = [task.name for task in facts.tasks]
    stored = (
        f"{last.stored:,} parameters ({last.stored / model.num_parameters:.1%} of the backbone's "
        f"{model.num_parameters:,})"
    )
    base = base_model(model.name)
    backbone = "a backbone that is not on the Hub" if base is None else f"[{base}](https://huggingface.co/{base})"
    order = " one after another" if len(tasks) > 1 else ""
    at = "" if address.revision is None else f', revision="{address.revision}"'
    row = "image.png" if kind_of(facts.tasks[-1].link).reads_images else "some text"
    text = f"""
{counted(len(tasks), "task")}, learned{order} with `continual-petl` on {backbone}. The backbone is frozen; what was
learned is stored in one bank per task. All banks together have {stored}.

{_tasks(facts)}
{_summary(facts)}
{_matrix(facts)}
## How to load it

```python
from continual_petl import Run

run = Run.from_hub("{address.repo}"{at})  # verified before its first prediction
run.predict("{row}", task="{tasks[-1]}")
```

```bash
continual-petl verify {quoted(address)}
continual-petl predict {quoted(address)} "{row}" --task {tasks[-1]}
```

## Certificate

Every task has a certificate: digests of its bank, and outputs for fixed inputs. The certificates form a chain. Its newest
entry is number {head.index}, with the seal `{head.seal}`; `continual-petl verify` prints the same seal if nothing changed.
"""
    return new_card(base, "continual-petl", ("peft", "continual-learning"), facts.name, text)


def _tasks(facts: RunFacts) -> str:
    lines = ["| task | kind | bank | metric | score | now | parameters |", "|---|---|---|---|---|---|---|"]
    for task in facts.tasks[:MAX_TASKS]:
        link = task.link
        now = number(facts.newest.get(task.name)) + mark_of(link.split)
        score = number(link.score) + mark_of(link.split)
        columns = f"{link.kind} | {link.bank} | {link.metric} | {score} | {now} | {task.num_parameters:,}"
        lines.append(f"| {task.name} | {columns} |")
    if (more := len(facts.tasks) - MAX_TASKS) > 0:
        lines.append(f"\nand {more:,} more: `continual-petl list` shows all.")
    lines.append(
        "\n*Score*: just after the task was learned. *Now*: after the last task, or the newest known score."
        + _note(facts)
    )
    return "\n".join(lines) + "\n"


def _note(facts: RunFacts) -> str:
    return f" {facts.results.note.strip()}" if facts.results.note else ""


def _summary(facts: RunFacts) -> str:
    results = facts.results
    return (
        f"Mean score over all tasks (ACC): {number(results.acc)}{results.basis}. Backward transfer (BWT): "
        f"{number(results.bwt)}. Forgetting: {number(results.forgetting)}.\n"
    )


def _matrix(facts: RunFacts) -> str:
    names = facts.results.tasks
    if not 1 < len(names) <= MAX_ROWS:
        return ""
    lines = ["## Result matrix\n", "The score on each task (column) after learning each task (row).\n"]
    lines += [f"| after | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for index, name in enumerate(names):
        known = [number(value) for value in facts.results.row(index).tolist()]
        lines.append(f"| {name} | {' | '.join([*known, *[''] * (len(names) - len(known))])} |")
    return "\n".join(lines) + "\n"
