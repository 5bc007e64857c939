"""What later tasks gained from earlier banks: the gain over a fresh bank after the short fits of ``start_from: auto``."""

from __future__ import annotations

from continual_petl.errors import counted
from continual_petl.report.figures.bars import in_words, task_bars
from continual_petl.report.figures.registry import run_figure
from continual_petl.report.figures.style import Drawing
from continual_petl.report.formatting import number
from continual_petl.report.run_facts import RunFacts


def _words(facts: RunFacts) -> str:
    results = facts.results
    helped = sum(gain > 0 for gain in results.gains.values())
    return (
        "Validation score of the chosen starting point, minus that of a fresh bank after the same number of steps. An "
        f"earlier bank, or an average of several, was better for {helped} of {counted(len(results.gains), 'task')}; the mean "
        f"gain is {number(results.mean_gain)}. The gain shows how a task begins, not how it ends: more training narrows "
        "the gap." + in_words(len(results.tasks))
    )


@run_figure("transfer", section="scores", caption="Gain from earlier banks", words=_words)
def figure(facts: RunFacts) -> Drawing | None:
    """Return the gain of each task; None if no task tried several starting points."""
    results = facts.results
    if not results.gains:
        return None
    gains = [results.gains.get(task) for task in results.tasks]
    return task_bars(results.tasks, {"gain over a fresh bank": gains}, y="score", number=" %{y:+.4f}", unit="")
