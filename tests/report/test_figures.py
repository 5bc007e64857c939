"""Every number in a figure matches the files of the store, or answers that are computed again."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from continual_petl import Run
from continual_petl.report.figures import comparison, costs, registry, routing, scores, training
from continual_petl.report.figures.registry import figures_of_run, figures_of_task
from continual_petl.report.figures.style import Drawing, as_figure, drawing, heatmap, scatter, task_axis, tick
from continual_petl.report.run_facts import RunFacts
from continual_petl.store.certificate.finding import Finding
from continual_petl.store.certificate.history import Confusion, PerLabel, Points
from tests.report.made import changed, many, rows_of
from tests.streams_in_code import regression_task, task, task_of_kind


def read(folder: Path, name: str, file: str) -> Any:
    return json.loads((folder / "banks" / name / file).read_text())


def drawn(drawing: Drawing | None) -> Any:
    assert drawing is not None
    return as_figure(drawing)


def test_heat_map_has_r_exactly_and_nothing_above_the_diagonal(facts: RunFacts) -> None:
    (heat,) = drawn(scores.matrix(facts)).data
    for i, row in enumerate(heat.z):
        for j, value in enumerate(row):
            assert (value == float(facts.results.R[i, j])) if j <= i else value is None


def test_blocks_of_many_tasks_hold_their_mean_and_worst(facts: RunFacts) -> None:
    long = many(facts, 250)
    (heat,) = drawn(scores.matrix(long)).data
    assert len(heat.z) == scores.MAX_CELLS
    R = long.results.R.numpy()
    known = [
        (float(value), text)
        for row, words in zip(heat.z, heat.text, strict=True)
        for value, text in zip(row, words, strict=True)
        if value is not None
    ]
    spans = [text.split("<br>") for _, text in known]
    for (value, _), (where, numbers) in zip(known[:: len(known) // 50], spans[:: len(known) // 50], strict=True):
        low, high, first, last = (int(word) for word in where.split() if word.isdigit())
        block = R[first - 1 : last, low - 1 : high]
        assert value == pytest.approx(np.nanmean(block))
        assert f"worst {np.nanmin(block):.4f}" in numbers
    assert sum(int(text.split(", ")[-1].split()[0]) for _, text in known) == np.count_nonzero(~np.isnan(R))


def test_lines_have_every_known_score_with_its_status(facts: RunFacts) -> None:
    figure = drawn(scores.over_time(facts))
    assert [trace.name for trace in figure.data] == ["one \u2261", "two \u2261", "multilabel \u2261", "four \u2261"]
    for j, trace in enumerate(figure.data):
        assert list(trace.x) == list(range(j + 1, 5))
        assert list(trace.y) == facts.results.R[j:, j].tolist()
        assert set(trace.marker.symbol) == {"circle"}


def test_changed_scores_and_banks_are_marked(facts: RunFacts) -> None:
    R = facts.results.R.clone()
    R[3, 0] -= 0.25
    results = dataclasses.replace(facts.results, rows=rows_of(R))
    bad = dataclasses.replace(facts.tasks[1].check, findings=(Finding(message="it changed"),))
    tasks = (facts.tasks[0], dataclasses.replace(facts.tasks[1], check=bad), *facts.tasks[2:])
    moved = drawn(scores.over_time(dataclasses.replace(facts, results=results, tasks=tasks)))
    assert moved.data[0].marker.symbol == ("circle", "circle", "circle", "x")
    assert moved.data[0].text[-1] == "measured, changed"
    assert [trace.name for trace in moved.data] == ["one \u2261", "two \u2260", "multilabel \u2261", "four \u2261"]


def test_spread_of_many_tasks_summarises_their_changes(facts: RunFacts) -> None:
    long = many(facts, 60)
    best, middle, worst = drawn(scores.over_time(long)).data
    R = long.results.R.numpy()
    for at, step in enumerate(best.x):
        changes = [R[step - 1, j] - R[j, j] for j in range(step - 1) if not np.isnan(R[step - 1, j])]
        if changes:
            assert (best.y[at], middle.y[at], worst.y[at]) == (max(changes), np.median(changes), min(changes))
        else:
            assert best.y[at] is None


def test_forgetting_is_drawn_after_each_task(facts: RunFacts) -> None:
    for trace in drawn(scores.forgetting(facts)).data:
        assert list(trace.x) == [2, 3, 4]
        assert list(trace.y) == [facts.after(step)[trace.name] for step in (2, 3, 4)]
    low, high = drawn(scores.forgetting(facts)).layout.yaxis.range
    assert low < 0 < high


def test_growth_adds_up_to_what_is_stored(facts: RunFacts) -> None:
    *parts, copies = drawn(costs.parameters(facts)).data
    for step, row in enumerate(facts.growth):
        assert sum(trace.y[step + 1] for trace in parts) == row.stored
        assert copies.y[step + 1] == row.full_copies
    *parts, copies = drawn(costs.num_bytes(facts)).data
    assert facts.pinned is not None
    for step, row in enumerate(facts.growth):
        assert sum(trace.y[step + 1] for trace in parts) == row.cumulative_bytes
        (routing,) = (trace for trace in parts if trace.name == "routing statistics")
        assert routing.y[step + 1] == row.cumulative_routing_bytes > 0
        assert copies.y[step + 1] == 4 * facts.pinned.num_parameters * (step + 1)
    for place, task_facts in enumerate(facts.tasks):
        assert sum(trace.y[place] for trace in drawn(costs.each_task(facts)).data) == task_facts.num_parameters
        assert sum(trace.y[place] for trace in drawn(costs.each_bytes(facts)).data) == task_facts.num_bytes


def test_growth_starts_at_zero_tasks(facts: RunFacts) -> None:
    for figure in (drawn(costs.parameters(facts)), drawn(costs.num_bytes(facts))):
        assert [(trace.x[0], trace.y[0]) for trace in figure.data] == [(0, 0)] * len(figure.data)


def test_axis_with_at_most_one_value_has_a_range_and_no_dates() -> None:
    def axes(x: list[float], y: list[float | None]) -> Any:
        layout = drawn(drawing([scatter(x=x, y=y)], x="tasks learned", y="score")).layout
        return layout.xaxis.range, layout.yaxis.range

    assert axes([], []) == ((0, 1), (0, 1))
    assert axes([1], [0.5]) == (None, (-0.05, 1.05))
    assert axes([1, 2], [0.5, 0.5 + 1e-12])[1] == (-0.05, 1.05)
    assert axes([1, 2], [20, 20])[1] == (-1, 21)
    assert axes([1, 2], [-0.2, -0.2])[1] == (-1.05, 1.05)
    assert axes([1, 2], [0.5, 0.501]) == (None, None)
    near = drawn(drawing([scatter(x=[10**9, 10**9 + 1], y=[0.1, 0.9])], y="score", xaxis={"type": "log"})).layout
    assert near.xaxis.range is None, "must not be set, since plotly reads the range of a logarithmic axis as exponents"
    layout = drawn(drawing([scatter(x=["2024-01-01"], y=[1])], y="score")).layout
    assert (layout.xaxis.type, layout.yaxis.type) == ("linear", "linear")


def test_second_axis_bars_and_areas_of_constant_values_have_a_range() -> None:
    def axes(**trace: Any) -> Any:
        layout = drawn(drawing([{"x": [1, 2], **trace}], y="score", yaxis2={"side": "right"})).layout
        return layout.yaxis.range, layout.yaxis2.range

    assert axes(type="scatter", yaxis="y2", y=[0.5, 0.5]) == ((0, 1), (-0.05, 1.05))
    assert axes(type="bar", y=[0, 0])[0] == (0, 1)
    assert axes(type="scatter", stackgroup="all", y=[0, 0])[0] == (0, 1)
    assert axes(type="bar", y=[3, 3])[0] is None, "bars begin at zero"


@pytest.mark.parametrize(
    ("values", "ends"),
    [
        ([[0.9, None], [0.9, 0.9]], (0, 1)),
        ([[0.0]], (0, 1)),
        ([[1.0, 1.0]], (0, 1)),
        ([[None]], (0, 1)),
        ([[0.5, 0.5 + 1e-9]], (0, 1)),
        ([[-0.2]], (-1, 1)),
        ([[21.5, 21.5]], (0, 21.5)),
        ([[-12.5, -12.5]], (-12.5, 0)),
        ([[0.5, 0.6]], (None, None)),
    ],
)
def test_constant_heat_map_has_a_scale_that_includes_zero(values: list[list[float | None]], ends: Any) -> None:
    trace = drawn(drawing([heatmap(values)], y="score")).data[0]
    assert (trace.zmin, trace.zmax) == ends


def test_constant_result_matrix_has_a_scale_from_zero_to_one(facts: RunFacts) -> None:
    R = torch.full_like(facts.results.R, 0.9).tril() + torch.full_like(facts.results.R, torch.nan).triu(1)
    results = dataclasses.replace(facts.results, rows=rows_of(R))
    trace = drawn(scores.matrix(dataclasses.replace(facts, results=results))).data[0]
    assert (trace.zmin, trace.zmax) == (0, 1)
    for drawing_of in (routing.routing, routing.confusion):
        share = drawn(drawing_of(facts)).data[0]
        assert (share.zmin, share.zmax) == (0, 1)


def test_time_includes_all_phases(facts: RunFacts) -> None:
    spent = {**facts.results.seconds, "two": {**facts.results.seconds["two"], "waiting": 3.5}}
    results = dataclasses.replace(facts.results, seconds=spent)
    figure = drawn(costs.seconds(dataclasses.replace(facts, results=results)))
    for place, name in enumerate(facts.results.tasks):
        assert sum(trace.y[place] for trace in figure.data) == pytest.approx(sum(spent[name].values()))
    assert "waiting" in [trace.name for trace in figure.data]


def test_bars_of_few_tasks_have_their_names(facts: RunFacts) -> None:
    axis = drawn(costs.seconds(facts))["layout"]["xaxis"]
    assert (axis["title"]["text"], list(axis["ticktext"])) == ("task", [tick(task.name) for task in facts.tasks])
    assert "ticktext" not in task_axis(["a task"] * 41)


def test_learning_curve_matches_the_history(learned: Path, facts: RunFacts) -> None:
    for task_facts in facts.tasks:
        kept = read(learned, task_facts.name, "history.json")
        figure = drawn(training.curve(task_facts))
        losses, scores = figure.data
        assert [list(losses.x), list(losses.y)] == [
            [point[key] for point in kept["curve"]["losses"]] for key in ("step", "loss")
        ]
        assert list(scores.y) == [point["scores"][task_facts.certificate.metric] for point in kept["curve"]["scores"]]
        assert figure.layout.shapes[0].x0 == kept["kept"]
    overview = drawn(training.learning(facts))
    assert [trace.name for trace in overview.data] == list(facts.results.tasks)


def test_curves_of_many_tasks_show_their_spread(facts: RunFacts) -> None:
    figure = drawn(training.learning(many(facts, 50)))
    last = facts.tasks[0].history.curve.scores[-1].scores["accuracy"]  # type: ignore[union-attr]
    assert [trace.y[-1] for trace in figure.data] == [last] * 3
    assert figure.data[0].customdata[-1] == 50


def test_confusion_matrix_matches_the_predictions(learned: Path, facts: RunFacts) -> None:
    rows = task("one")["data"]["test"]
    said = Run(learned).predict([row["text"] for row in rows], task="one")
    expected = Counter((row["label"], answer.value) for row, answer in zip(rows, said, strict=True))
    (heat,) = drawn(training.predictions(facts.tasks[0])).data
    labels = facts.tasks[0].certificate.labels
    assert labels is not None
    found = {(true, answer): heat.text[i][j] for i, true in enumerate(labels) for j, answer in enumerate(labels)}
    assert {pair: count for pair, count in found.items() if count} == expected
    assert (
        f"{sum(n for (a, b), n in expected.items() if a == b)} of {len(rows)} rows are correct"
        in training.predictions_words(facts.tasks[0])
    )


def test_scatter_plot_matches_the_predictions(learned: Path, facts: RunFacts) -> None:
    rows = regression_task("two")["data"]["test"]
    said = Run(learned).predict([row["text"] for row in rows], task="two")
    dots = drawn(training.predictions(facts.tasks[1])).data[1]
    assert list(dots.x) == [row["label"] for row in rows]
    assert list(dots.y) == pytest.approx(
        [answer.value for answer in said], abs=1e-4
    )  # another batch size: rounding differs


def test_multilabel_bars_match_the_predictions(learned: Path, facts: RunFacts) -> None:
    rows = task_of_kind("multilabel", num_rows=20)["data"]["test"]
    answers = [answer.value for answer in Run(learned).predict([row["text"] for row in rows], task="multilabel")]
    said = [answer for answer in answers if isinstance(answer, list)]
    right, wrong, missed = drawn(training.predictions(facts.tasks[2])).data
    for place, label in enumerate(right.customdata):
        pairs = Counter((label in row["label"], label in answer) for row, answer in zip(rows, said, strict=True))
        assert (right.y[place], wrong.y[place], missed.y[place]) == (
            pairs[True, True],
            pairs[False, True],
            pairs[True, False],
        )


def test_large_confusion_matrix_shows_labels_with_most_errors(facts: RunFacts) -> None:
    cells = (*((label, label, 10) for label in range(300)), (250, 299, 7), (250, 100, 3))
    cells += tuple((label, label + 1, 4) for label in range(0, 58, 2))  # so that label 100 is not drawn
    found = changed(
        facts.tasks[0],
        certificate=facts.tasks[0].certificate.model_copy(update={"labels": tuple(f"<b>{n}" for n in range(300))}),
        history=facts.tasks[0].history.model_copy(update={"answered": {"test": Confusion(cells=cells, others=5)}}),  # type: ignore[union-attr]
    )
    (heat,) = drawn(training.predictions(found)).data
    assert len(heat.z) == training.MAX_LABELS
    assert heat.z[-2][-1] == pytest.approx(7 / 20)  # of all rows of label 250
    assert "&lt;b&gt;250 predicted as &lt;b&gt;299: 7" in heat.customdata[-2]
    assert "5 rows in the least frequent cells are counted but not shown" in training.predictions_words(found)


def test_tasks_without_a_history_have_no_figure_of_their_own(facts: RunFacts) -> None:
    old = changed(facts.tasks[0], history=None)
    assert (training.predictions(old), training.curve(old)) == (None, None)
    assert training.learning(dataclasses.replace(facts, tasks=(old,))) is None
    assert dict(figures_of_task(old)) == {}


@pytest.mark.parametrize("found", [Confusion(cells=(), others=0), Points(pairs=()), PerLabel(counts=((0, 0, 0),) * 2)])
def test_a_split_without_rows_is_drawn(facts: RunFacts, found: Confusion | Points | PerLabel) -> None:
    history = facts.tasks[0].history.model_copy(update={"answered": {"test": found}})  # type: ignore[union-attr]
    assert training.predictions(changed(facts.tasks[0], history=history)) is not None


def test_several_runs_are_drawn_task_by_task_whatever_their_order(facts: RunFacts) -> None:
    R = facts.results.R
    names = ["four", "gone", "one"]
    (dots,) = drawn(comparison.each_task([("a run", facts)], names)).data
    assert list(dots.y) == [float(R[3, 3]), None, float(R[3, 0])]
    (line,) = drawn(comparison.over_time([("a run", facts)], "BWT")).data
    assert list(line.y) == [facts.after(step)["BWT"] for step in (2, 3, 4)]
    (dot,) = drawn(comparison.cost([("a run", facts)])).data
    assert (dot.x, dot.y) == ((facts.growth[-1].stored,), (facts.results.acc,))


def test_figure_order_does_not_depend_on_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    before = registry.run_figures(), registry.task_figures()
    for known in ("_of_run", "_of_task"):
        items = getattr(registry, known).items()
        backwards = dict(sorted(items, key=lambda item: item[1].draw.__module__, reverse=True))
        monkeypatch.setattr(registry, known, backwards)
    assert (registry.run_figures(), registry.task_figures()) == before


def test_figures_are_available_by_name(facts: RunFacts) -> None:
    figures = figures_of_run(facts)
    assert list(figures) == [
        "matrix",
        "scores",
        "forgetting",
        "routing",
        "routed",
        "taken-for",
        "parameters",
        "bytes",
        "each",
        "each-bytes",
        "learning",
        "seconds",
    ]
    assert list(figures_of_task(facts.tasks[0])) == ["curve", "answers"]
    for figure in figures.values():
        json.loads(figure.to_json())
