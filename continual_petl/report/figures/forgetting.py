"""Forgetting, backward transfer and the mean score after each task."""

from __future__ import annotations

import math

from continual_petl.report.figures.registry import run_figure
from continual_petl.report.figures.style import MARKED, Drawing, around_zero, drawing, line, mode
from continual_petl.report.formatting import number as score
from continual_petl.report.run_facts import RunFacts

SHOWN = ("forgetting", "BWT")


def _words(facts: RunFacts) -> str:
    ends = {"forgetting": facts.results.forgetting, "BWT": facts.results.bwt}
    known = [f"{name} is {score(value)}" for name, value in ends.items() if not math.isnan(value)]
    if known:
        return f"At the end, {' and '.join(known)}.{facts.spaced}"
    why = "there is no earlier task yet" if len(facts.tasks) == 1 else "some scores were not measured"
    return f"Forgetting and BWT cannot be computed: {why}.{facts.spaced}"


@run_figure(
    "forgetting", section="forgetting", caption="Forgetting and backward transfer after each task", words=_words
)
def figure(facts: RunFacts) -> Drawing:
    """Return forgetting (Chaudhry et al. 2018) and BWT (Lopez-Paz and Ranzato 2017) after every task but the first."""
    steps = [step for step in facts.steps if step > 1]
    values = [facts.after(step) for step in steps]
    traces = [
        line(
            steps,
            (value[name] for value in values),
            name,
            number,
            f"after %{{x}} tasks<br>{name} %{{y:.6f}}",
            mode=mode(marks=len(steps) <= MARKED),
            style={"dash": ("solid", "dash")[number]},
            marker={"symbol": ("circle", "x")[number]},
        )
        for number, name in enumerate(SHOWN)
    ]
    axis = around_zero([value for trace in traces for value in trace["y"]])
    return drawing(traces, x="tasks learned", y="difference in score", yaxis=axis)
