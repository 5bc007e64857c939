"""The verdict on a run: the first sentence of the page, and the numbers next to it."""

from __future__ import annotations

from continual_petl.errors import counted
from continual_petl.report.figures.costs import copy_bytes
from continual_petl.report.figures.scores import flatness
from continual_petl.report.formatting import megabytes, number
from continual_petl.report.page.parts import Card, Section
from continual_petl.report.page.render import moment
from continual_petl.report.run_facts import RunFacts
from continual_petl.report.terminal import problems_in
from continual_petl.store.folder.progress import Position

_WAYS = {"digests": "digests", "probe": "digests and probe, bit for bit", "full": "digests, probe and every test row"}


def verdict(facts: RunFacts) -> Section:
    """Return the section with the verdict, what it is based on, and the numbers."""
    sentence, mood = verdict_and_mood(facts)
    more = {"verdict": sentence, "mood": mood, "problems": problems_in(facts.checks), "cards": _cards(facts)}
    return Section(id="verdict", title="Verdict", template="verdict.html.j2", lines=_lines(facts), more=more)


def verdict_and_mood(facts: RunFacts) -> tuple[str, str]:
    """Return the verdict in a sentence, and its mood: good, warn or bad."""
    num_problems = sum(len(check.problems) for check in facts.checks)
    count = len(facts.tasks)
    unchecked = [task.name for task in facts.tasks if task.check.verdict.endswith("not checked")]
    if num_problems > len(unchecked):
        findings = f"see the {counted(num_problems, 'finding')} below"
        held = f" Valid: {facts.num_unchanged:,} of {counted(count, 'certificate')}." if count else ""
        return f"This run does not match its certificates: {findings}.{held}", "bad"
    if not count:
        return "No task has been learned yet.", "warn"
    checked = f"{counted(count, 'task')} learned, {counted(facts.num_unchanged, 'certificate')} checked"
    if unchecked:
        return f"{checked}, and none of these changed; {counted(len(unchecked), 'task')} could not be checked.", "warn"
    moved = sum(change != 0 for change in facts.changes.values())
    if facts.num_moved_on:
        return (
            f"{checked}: every stored bank is unchanged, but {counted(facts.num_moved_on, 'task')} "
            f"{'uses' if facts.num_moved_on == 1 else 'use'} the shared bank as task {facts.newest_shared!r} left "
            f"it; {counted(moved, 'earlier score')} changed.",
            "warn",
        )
    if moved:
        return f"{checked}; no bank changed, but {counted(moved, 'earlier score')} did when measured again.", "warn"
    return f"{checked}, nothing changed.", "good"


def _lines(facts: RunFacts) -> list[str]:
    count, lines = len(facts.tasks), [f"{backbone_in_words(facts)} Seed of the stream: {facts.seed}."]
    if facts.num_planned > count:
        lines.append(f"The stream has {counted(facts.num_planned, 'task')}; this report shows those learned so far.")
    lines += [half_learned_in_words(task, at) for task, at in facts.half_learned.items()]
    if facts.forgotten:
        names = ", ".join(facts.forgotten[:10]) + (", ..." if len(facts.forgotten) > 10 else "")
        lines.append(f"Removed with `continual-petl forget`: {names}.")
    if facts.tasks:
        ways = sorted({task.check.how for task in facts.tasks if task.check.ok})
        first, last = (moment(of(task.checked_at for task in facts.tasks)) for of in (min, max))
        when = last if first == last else f"between {first} and {last}"
        lines.append(f"Checked {when}, by {'; '.join(ways) or 'digests'}.")
    if facts.guarded:
        done = ", ".join(
            f"{counted(n, 'time')} by {_WAYS.get(kind, kind)}" for kind, n in sorted(facts.guarded.items())
        )
        lines.append(f"During the run, certificates of earlier tasks were checked {done}.")
    if count > 1:
        lines.append(flatness(facts))
    return lines


def backbone_in_words(facts: RunFacts) -> str:
    """Describe the backbone: name, size and digest."""
    if facts.pinned is None:
        return "Backbone: not known yet."
    revision = f", revision {facts.pinned.revision}" if facts.pinned.revision else ""
    size = f"{facts.pinned.num_parameters:,} parameters"
    return f"Backbone: {facts.pinned.name}{revision} ({size}, digest {facts.pinned.digest[:16]})."


def half_learned_in_words(task: str, at: Position | None) -> str:
    """Describe the progress of a task that is being learned or was stopped (on disk, both look the same)."""
    if at is None:
        return f"Task {task!r} is half learned."
    left = ""
    if at.num_steps is not None and at.step:
        seconds = at.seconds / at.step * (at.num_steps - at.step)
        left = f"; about {seconds:.3g} s of training left"
    return f"Task {task!r} is half learned: at its last checkpoint {at.in_epochs}, {at.in_steps}{left}."


def _cards(facts: RunFacts) -> list[Card]:
    count, results = len(facts.tasks), facts.results
    cards = [
        Card("tasks learned", f"{count:,}", f"of {facts.num_planned:,} in the stream"),
        Card("forgetting", number(results.forgetting), "mean drop from the best earlier score"),
        Card("BWT", number(results.bwt), "backward transfer"),
        Card("ACC", number(results.acc), f"mean score over all tasks{results.basis}"),
    ]
    if facts.growth:
        last, copies = facts.growth[-1], counted(count, "full copy", "full copies")
        share = f"{last.stored / last.full_copies:.2%} of {copies} of the backbone ({last.full_copies:,})"
        cards.append(Card("parameters added", f"{last.stored:,}", share))
        copied = sum(copy_bytes(facts))
        share = f"{last.cumulative_bytes / copied:.2%} of {copies} ({megabytes(copied)})"
        routing = megabytes(last.cumulative_routing_bytes)
        words = f"with certificates, and {routing} of routing statistics; {share}"
        cards.append(Card("on disk", megabytes(last.cumulative_bytes), words))
    return cards
