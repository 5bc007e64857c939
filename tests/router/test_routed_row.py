"""R-routed, the scores without task names, is measured after each task and shown in reports."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from continual_petl import InputError, RoutingWatch, Run, learn
from continual_petl.callbacks.base import StreamCallback, WatchedRun, WatchedTask
from continual_petl.callbacks.logged_values import numbers_after
from continual_petl.cli.main import main
from continual_petl.engine.scoring import routed_row
from continual_petl.metrics import forgetting_max
from continual_petl.report.routed_results import SCORES, RoutedResults, routed_results
from continual_petl.store.ledger.lines import RoutedCell, RowLine
from tests.learned import LearnedRuns
from tests.router.rows import VOCABULARY, labelled_task, routed_stream, rows_of

Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def run(backbone_folder: Folder, learned_runs: LearnedRuns) -> Run:
    # The second task uses the words of the first, so that some rows are routed to the wrong task.
    tasks = [labelled_task("low"), labelled_task("twin", vocabulary="low"), labelled_task("pairs")]
    return Run(learned_runs(routed_stream(backbone_folder(), tasks)))


def _lines(run: Run) -> list[RowLine]:
    return [line for line in run.store.results() if isinstance(line, RowLine)]


def _inputs(task: str) -> list[object]:
    rows = rows_of("low" if task == "twin" else task, 16, 2, name=task)
    return [(row["text"], row["text_pair"]) if "text_pair" in row else row["text"] for row in rows]


def _labels(task: str) -> list[str]:
    return [row["label"] for row in rows_of("low" if task == "twin" else task, 16, 2, name=task)]


def test_cells_equal_the_routed_predictions_of_the_rows(run: Run) -> None:
    assert [[cell.task for cell in line.routed] for line in _lines(run)] == [
        ["low"],
        ["low", "twin"],
        ["low", "twin", "pairs"],
    ]
    for cell in _lines(run)[-1].routed:
        nearest, rejecting = (run.predict(_inputs(cell.task), reject=how) for how in ("never", None))
        tasks = [answer.task for answer in nearest]
        assert cell.chosen == {task: tasks.count(task) for task in set(tasks)}
        assert cell.unknown == sum(answer.task is None for answer in rejecting)
        right = [
            answer.task == cell.task and answer.value == label
            for answer, label in zip(nearest, _labels(cell.task), strict=True)
        ]
        assert cell.correct == cell.correct_own == sum(right)
        known = [answer.task is not None for answer in rejecting]
        assert cell.correct_known == sum(good and here for good, here in zip(right, known, strict=True))
        assert cell.num_examples == 16


def test_matrices_are_the_shares_of_the_cells(run: Run) -> None:
    routed = run.results.routed
    assert routed is not None
    for i, line in enumerate(_lines(run)):
        for j, cell in enumerate(line.routed):
            assert routed.R[i, j] == (cell.correct or 0) / 16
            assert routed.routing[i, j] == cell.chosen.get(cell.task, 0) / 16
    assert np.isnan(routed.routing[np.triu_indices(3, 1)]).all()
    assert routed.confusion.sum(1) == pytest.approx(1)
    found = routed.after(3)
    assert found["routing_loss"] == float(forgetting_max(routed.routing))
    assert found["routing_loss"] > 0
    assert found["routing_accuracy"] == pytest.approx(np.diag(routed.confusion).mean())


def test_named_scores_are_unchanged_while_routed_ones_fall(run: Run) -> None:
    routed = run.results.routed
    assert routed is not None
    assert run.results.forgetting == 0
    assert routed.routing[1, 0] < routed.routing[0, 0] == 1


def test_in_other_protocols_a_row_is_right_if_its_label_is(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [labelled_task("low"), labelled_task("twin", vocabulary="low")]
    run = learn(routed_stream(backbone_folder(), tasks, protocol="revisit"), tmp_path / "run")
    for cell in _lines(run)[-1].routed:
        found = run.predict(_inputs(cell.task), reject="never")
        right = [
            (answer.task == cell.task, answer.value == label)
            for answer, label in zip(found, _labels(cell.task), strict=True)
        ]
        assert cell.correct == sum(good for _, good in right)
        assert cell.correct_own == sum(good for own, good in right if own)
    cells = _lines(run)[-1].routed
    assert sum(cell.correct or 0 for cell in cells) > sum(cell.correct_own or 0 for cell in cells)


def _cell(task: str, own: int, *, of: int = 10, index: int = 0) -> RoutedCell:
    chosen = {task: own} | ({"other": of - own} if own < of else {})
    return RoutedCell(
        task=task,
        index=index,
        split="test",
        num_examples=of,
        chosen=chosen,
        unknown=1,
        correct=None,
        correct_own=None,
        correct_known=None,
    )


def test_scores_that_need_an_unmeasured_row_are_nan() -> None:
    rows = [{"a": _cell("a", 10)}, {"b": _cell("b", 9)}]
    routed = routed_results(("a", "b"), rows)
    assert isinstance(routed, RoutedResults)
    assert all(np.isnan(routed.after(2)[name]) for name in SCORES)
    assert routed.after(1)["routing_accuracy"] == 1
    assert np.isnan(routed.after(0)["routing_accuracy"])
    assert routed_results(("a", "b"), [{}, {}]) is None


def test_loggers_json_terminal_and_page_show_it(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    routed = run.results.routed
    assert routed is not None
    found = routed.after(3)
    numbers = numbers_after(run.results, 3)
    assert {name: numbers[f"routed/{name}"] for name in found} == found
    assert run.to_json()["results"]["routed"]["routing"][2] == routed.routing[2].tolist()
    command = ["report", str(run.store.folder)]
    assert main([*command, "--output", str(tmp_path)]) == 0
    assert f"routing     {found['routing_accuracy']:6.4f}" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    json.loads(capsys.readouterr().out)
    page = (tmp_path / "index.html").read_text("utf-8")
    assert "Share of each task&#39;s rows (row) that are routed to each task (column) at the end." in page
    assert "Tasks that rows are routed to" in page
    assert set(run.figures()) >= {"routing", "routed", "taken-for"}


def test_a_run_without_routing_statistics_has_no_routed_scores(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [labelled_task("low"), labelled_task("high")]
    run = learn(routed_stream(backbone_folder(), tasks, routing="off"), tmp_path / "run")
    assert all(line.routed == () for line in _lines(run))
    assert run.results.routed is None
    assert "routing" not in run.figures()
    assert [row.routing_bytes for row in run.growth] == [0, 0]
    assert not any(name.startswith("routed/") for name in numbers_after(run.results, 2))


def test_watch_warns_of_a_task_that_takes_rows(
    run: Run, backbone_folder: Folder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch, easy = RoutingWatch(points=1.0), RoutingWatch(points=100)
    tasks = [labelled_task("low"), labelled_task("twin", vocabulary="low")]
    stream = routed_stream(backbone_folder(), tasks)
    for folder in (tmp_path / "run", tmp_path / "again"):  # the second run is not compared with the first
        caplog.clear()
        learn(routed_stream(backbone_folder(), tasks[:1]), folder)
        with caplog.at_level(logging.WARNING):
            learn(stream, folder, callbacks=[watch, easy])  # earlier rows are read from the folder
        (message,) = [record.getMessage() for record in caplog.records if "takes rows" in record.getMessage()]
        assert "task 'twin' takes rows from earlier tasks when no task is named: low" in message
    assert watch.losses.keys() == {"twin"}
    assert easy.losses == {}
    with pytest.raises(ValueError, match=r"points: got -1; give a number of percentage points, 0 or more"):
        RoutingWatch(points=-1)


def _chosen(task: str, **chosen: int) -> RoutedCell:
    return _cell(task, 0, of=sum(chosen.values())).model_copy(update={"chosen": chosen})


class _Notices(StreamCallback):
    def __init__(self) -> None:
        self.after: dict[str, list[str]] = {}

    def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
        self.after[task.name] = [notice for notice in task.notices if "hardly told apart" in notice]


def test_tasks_that_ask_different_questions_about_the_same_texts_are_reported_once(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    other = labelled_task("low")
    # Another question about the same texts: whether the last word is one of the first six.
    answered = {
        split: [row | {"label": ("no", "yes")[row["text"].split()[-1] in VOCABULARY["low"][:6]]} for row in rows]
        for split, rows in other["data"].items()
    }
    tasks = [labelled_task("high"), other, {**other, "name": "twin", "data": answered}, labelled_task("pairs")]
    seen = _Notices()
    run = learn(routed_stream(backbone_folder(), tasks), tmp_path / "run", callbacks=[seen])
    assert {task: len(notices) for task, notices in seen.after.items()} == {"high": 0, "low": 0, "twin": 1, "pairs": 0}
    (notice,) = seen.after["twin"]
    assert "'high'" not in notice
    assert "--candidates 3" in notice
    cells = {cell.task: cell for cell in _lines(run)[2].routed}
    for task, takes in (("low", "twin"), ("twin", "low")):
        own, taken = (cells[task].chosen.get(name, 0) / 16 for name in (task, takes))
        said = f"{task!r} ({own:.0%} of its rows go to itself, {taken:.0%} to {takes!r})"
        assert (said in notice) == (own < 0.8)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([_chosen("a", a=8, new=2), _chosen("new", new=8, a=2)], None),
        ([_chosen("a", a=52, new=41, b=7)], "'a' (52% of its rows go to itself, 41% to 'new')"),
        # An earlier task that loses its rows to the new one, which keeps its own.
        ([_chosen("a", a=7, new=3), _chosen("new", new=10)], "'a' (70% of its rows go to itself, 30% to 'new')"),
        # Worst first, whoever was learned first.
        (
            [_chosen("a", a=7, new=3), _chosen("b", b=1, new=9), _chosen("new", new=5, b=4, a=1)],
            "'b' (10% of its rows go to itself, 90% to 'new'); 'new' (50% of its rows go to itself, 40% to 'b', 10% to "
            "'a'); 'a' (70% of its rows go to itself, 30% to 'new')",
        ),
        # What was known before: the rows of a and b were mixed up, and the new task hardly changes that.
        ([_chosen("a", a=50, b=45, new=5), _chosen("b", b=40, a=60), _chosen("new", new=100)], None),
        ([_chosen("a", b=10), _chosen("new", new=10)], None),
        # Nothing is known about the rows of the new task.
        ([_chosen("a", a=5, b=5)], None),
    ],
)
def test_a_notice_names_what_the_new_task_confuses(cells: list[RoutedCell], said: str | None) -> None:
    notices = routed_row.indistinguishable(cells, "new")
    assert len(notices) == (said is not None)
    if said is not None:
        assert f"learned before it are hardly told apart: {said}. The frozen" in notices[0]


def test_a_notice_about_many_tasks_names_the_most_confused_ones() -> None:
    cells = [_chosen(f"t{n}", **{f"t{n}": 50 - n, "new": 50 + n}) for n in range(49)]
    cells.append(_chosen("new", new=51, **{f"t{n}": 1 for n in range(49)}))
    (notice,) = routed_row.indistinguishable(cells, "new")
    worst = "; ".join(f"'t{n}' ({50 - n}% of its rows go to itself, {50 + n}% to 'new')" for n in range(48, 43, -1))
    assert f"hardly told apart: {worst}; and 45 more tasks. The frozen" in notice
    (notice,) = routed_row.indistinguishable(cells[-1:], "new")
    assert "(51% of its rows go to itself, 1% to 't0', 1% to 't1', " in notice
    assert "1% to 't4', the rest to 44 more tasks). The frozen" in notice


def test_tasks_with_other_routing_layers_are_not_evaluated(backbone_folder: Folder, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    learn(routed_stream(backbone_folder(), [labelled_task("low")]), folder)
    tasks = [labelled_task("low"), labelled_task("high")]
    run = learn(routed_stream(backbone_folder(), tasks, routing="small"), folder)
    assert _lines(run)[-1].routed == ()
    with pytest.raises(InputError, match="different settings of routing"):
        run.predict("w1")
