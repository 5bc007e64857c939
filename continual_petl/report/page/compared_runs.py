"""Sections of a page that compares several runs. Tasks are matched by name, whatever their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from continual_petl.errors import counted
from continual_petl.report.figures import comparison
from continual_petl.report.formatting import mark_of, number
from continual_petl.report.page.parts import Section, Shown, Table, TableCell, numeric, on_disk, row
from continual_petl.report.page.verdict import verdict_and_mood
from continual_petl.report.run_facts import RunFacts, TaskFacts
from continual_petl.store.ledger.lines import CommitLine

Named = tuple[str, RunFacts]


def named(runs: Sequence[RunFacts]) -> list[Named]:
    """Return each run with the shortest unique name: its stream's name, or as much of its folder's path as needed."""
    names = [facts.name for facts in runs]
    depth = 1
    while len(set(names)) < len(names) and depth <= max(len(_parts(facts)) for facts in runs):
        names = ["/".join(_parts(facts)[-depth:]) for facts in runs]
        depth += 1
    # The same folder, given twice.
    names = [name if name not in names[:index] else f"{name} ({index + 1})" for index, name in enumerate(names)]
    return list(zip(names, runs, strict=True))


def _parts(facts: RunFacts) -> tuple[str, ...]:
    return Path(facts.folder).resolve().parts[1:]


def sections(runs: Sequence[Named]) -> list[Section]:
    """Return all sections of the comparison."""
    tasks = list(dict.fromkeys(task.name for _, facts in runs for task in facts.tasks))
    figures = [
        Shown(
            name=metric.lower(),
            caption=f"{title} after each task",
            words="At the end: "
            + "; ".join(f"{name}: {number(facts.results.at_end[metric])}" for name, facts in runs)
            + ".",
            figure=comparison.over_time(runs, metric),
        )
        for metric, title in {"ACC": "Mean score", "forgetting": "Forgetting", "BWT": "Backward transfer"}.items()
    ]
    newest = Shown(
        name="tasks",
        caption="Newest known score of every task",
        words="One mark for each run that has learned the task; tasks are matched by name.",
        figure=comparison.each_task(runs, tasks),
    )
    cost = Shown(
        name="cost",
        caption="What the scores cost",
        words="Mean score at the end, plotted against the parameters added: the further up and to the left, the better.",
        figure=comparison.cost(runs),
    )
    lines = [*(f"{name}: {verdict_and_mood(facts)[0]}" for name, facts in runs), *differences(runs)]
    return [
        Section(id="runs", title="Runs", lines=lines, tables=[_table(runs), _settings(runs)]),
        Section(id="scores", title="Scores", figures=[*figures, newest], tables=[_tasks(runs, tasks)]),
        Section(id="growth", title="Growth", figures=[cost]),
    ]


def _shared(runs: Sequence[Named]) -> list[str]:
    """Return the tasks that all runs have learned, in the order of the first run."""
    sets = [{task.name for task in facts.tasks} for _, facts in runs]
    return [task.name for task in runs[0][1].tasks if all(task.name in names for names in sets)]


def _table(runs: Sequence[Named]) -> Table:
    shared = _shared(runs)
    apart = len(shared) > 0 and any(len(facts.tasks) != len(shared) for _, facts in runs)
    rows = []
    for name, facts in runs:
        last = facts.growth[-1] if facts.growth else None
        share = math.nan if last is None else last.stored / last.full_copies
        seconds = sum(sum(phases.values()) for phases in facts.results.seconds.values())
        mean = sum(facts.newest[task] for task in shared) / len(shared) if shared else math.nan
        held = f"{facts.num_unchanged:,} of {len(facts.tasks):,}"
        rows.append(
            row(
                name,
                len(facts.tasks),
                *facts.results.at_end.values(),
                *([mean] if apart else []),
                sum(task.num_parameters for task in facts.tasks),
                numeric(share, "not known" if last is None else f"{share:.2%}"),
                on_disk(sum(task.routing_bytes for task in facts.tasks)),
                on_disk(sum(task.num_bytes for task in facts.tasks)),
                numeric(seconds, f"{seconds:.4g} s"),
                TableCell(text=held, kind="good" if facts.ok else "bad"),
            )
        )
    means = [f"mean of the {counted(len(shared), 'shared task')}"] if apart else []
    scores = ("run", "tasks", "ACC", "BWT", "forgetting", *means)
    costs = ("parameters added", "of full copies", "routing statistics", "on disk", "time")
    return Table(caption="Runs side by side", heads=(*scores, *costs, "valid certificates"), rows=rows)


def _settings(runs: Sequence[Named]) -> Table:
    """Return the settings of each run, as text that would not fit next to the numbers."""
    rows = [
        row(
            name,
            "not known" if facts.pinned is None else f"{facts.pinned.name} ({facts.pinned.digest[:16]})",
            numeric(facts.seed, str(facts.seed)),
            _banks(facts),
            _some([*dict.fromkeys(task.training for task in facts.tasks)], 3, "; ") or "none yet",
        )
        for name, facts in runs
    ]
    return Table(caption="Settings of each run", heads=("run", "backbone", "seed", "banks", "training"), rows=rows)


def _banks(facts: RunFacts) -> str:
    """Describe what the banks of a run change."""
    kinds = list(dict.fromkeys(task.link.bank for task in facts.tasks))
    shared = any(task.link.shared for task in facts.tasks)
    return _some(kinds, 3, "; ") + (": one bank that all tasks share" if shared else "") if kinds else "none yet"


def _tasks(runs: Sequence[Named], tasks: Sequence[str]) -> Table:
    """Return the newest known score of every task in each run, matched by name, since orders may differ."""
    by_name = [{own.name: own.link for own in facts.tasks} for _, facts in runs]

    def score(facts: RunFacts, link: CommitLine | None) -> TableCell:
        if link is None:
            return TableCell(text="not learned", kind="number")
        newest = facts.newest[link.task]
        return numeric(newest, number(newest) + mark_of(link.split))

    rows = []
    for index, task in enumerate(tasks):
        links = [own.get(task) for own in by_name]
        scores = (score(facts, link) for (_, facts), link in zip(runs, links, strict=True))
        same = _same([link.digest for link in links if link is not None], len(runs))
        rows.append(row(TableCell(text=task, sort=index), *scores, same))
    heads = ("task", *(name for name, _ in runs), "bank across runs")
    notes = list(dict.fromkeys(note for _, facts in runs for note in facts.results.footnotes))
    return Table(caption="Newest known score of every task", heads=heads, rows=rows, notes=notes)


def _same(digests: Sequence[str], num_runs: int) -> str:
    """Describe whether a task's bank is the same, bit for bit, in all runs that have the task."""
    if len(digests) < 2:
        return "in one run only"
    if len(set(digests)) > 1:
        return "different"
    return "the same, bit for bit" + ("" if len(digests) == num_runs else f", in the {len(digests)} that have it")


def differences(runs: Sequence[Named]) -> list[str]:
    """Return what makes the runs hard to compare, and how many banks are the same in all of them, bit for bit."""
    lines = []
    if len({facts.pinned.digest for _, facts in runs if facts.pinned is not None}) > 1:
        lines.append("The runs have different backbones.")
    shared = _shared(runs)
    if any(len(facts.tasks) != len(shared) for _, facts in runs):
        lines.append(
            "These runs have not learned the same tasks: their means over all tasks are not comparable. "
            + (
                f"All of them have learned {counted(len(shared), 'task')}."
                if shared
                else "They have no task in common."
            )
        )
    names = set(shared)
    by_name = [{task.name: task for task in facts.tasks if task.name in names} for _, facts in runs]
    orders = {tuple(known) for known in by_name}
    if len(orders) > 1:
        lines.append("These runs learned their shared tasks in different orders.")
    settings: dict[str, Callable[[TaskFacts], object]] = {
        "were trained on different rows": lambda task: task.data,
        "have different metrics": lambda task: task.link.metric,
        "have different seeds": lambda task: task.seed,
    }
    for words, of in settings.items():
        apart = [task for task in shared if any(of(known[task]) != of(by_name[0][task]) for known in by_name)]
        if apart:
            lines.append(f"Shared tasks that {words} ({len(apart):,}): {_some(apart)}.")
    same = [task for task in shared if len({known[task].link.digest for known in by_name}) == 1]
    if same and len(runs) > 1:
        lines.append(f"Shared tasks with the same bank in all runs, bit for bit: {len(same):,} of {len(shared):,}.")
    return lines


def _some(names: Sequence[str], limit: int = 5, between: str = ", ") -> str:
    return between.join(names[:limit]) + (f"{between}..." if len(names) > limit else "")
