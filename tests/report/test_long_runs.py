"""The report of a long run is condensed and says so: bars are means, and rows and details are created on demand."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from continual_petl import StoreError
from continual_petl.metrics import acc, bwt_gem, forgetting_max
from continual_petl.report import read_facts as facts_module
from continual_petl.report import write
from continual_petl.report.figures import comparison, costs, scores, style
from continual_petl.report.figures.registry import run_figures, task_figures
from continual_petl.report.figures.style import as_figure
from continual_petl.report.page.details import script_of
from continual_petl.report.page.parts import MAX_ROWS, Table
from continual_petl.report.page.sections import TOGETHER, sections
from continual_petl.report.read_facts import Reader, read_facts
from continual_petl.report.results import Results
from continual_petl.report.run_facts import MAX_TASKS, RunFacts
from continual_petl.report.write import write_report
from tests.report.long_run import long_run
from tests.report.made import many, rows_of
from tests.store.fabricated import multiply
from tests.store.tampering import edit

Folder = Callable[..., Path]
LONG = MAX_TASKS + 100


@pytest.fixture(scope="module")
def long(facts: RunFacts) -> RunFacts:
    """Return a run with more tasks than a report shows one by one; no two tasks add the same number of parameters."""
    run = many(facts, LONG)
    tasks = []
    for number, task in enumerate(run.tasks):
        parameters = {"modifications": number, "own": 1, "head": 2}
        tasks.append(dataclasses.replace(task, link=task.link.model_copy(update={"parameters": parameters})))
    return dataclasses.replace(run, tasks=tuple(tasks))


def words_of(run: RunFacts) -> dict[str, str]:
    return {figure.name: figure.words for section in sections(run) for figure in section.figures}


def table_of(run: RunFacts, caption: str) -> Table:
    return next(table for section in sections(run) for table in section.tables if table.caption == caption)


def unpacked(script: str) -> list[list[Any]]:
    """Return the place, HTML and figures of each task in a file of several tasks."""
    call = re.fullmatch(r'// [0-9a-f]{64}\ncontinualPetlTasks\("([0-9A-Za-z+/=]+)"\);\n', script)
    assert call is not None
    found: list[list[Any]] = json.loads(zlib.decompress(base64.b64decode(call[1])))
    return found


cells = st.sampled_from([math.nan, 0.25, 0.5, 0.8])


@given(st.integers(1, 6).flatmap(lambda n: st.lists(st.lists(cells, min_size=n, max_size=n), min_size=n, max_size=n)))
def test_averages_of_known_cells_match_the_full_matrix(matrix: list[list[float]]) -> None:
    R_TT = torch.tensor(matrix, dtype=torch.float64)
    count = len(matrix)
    R_TT[torch.triu_indices(count, count, 1).unbind()] = math.nan
    names = tuple(map(str, range(count)))
    results = Results(tasks=names, metrics=names, splits=("test",) * len(names), rows=rows_of(R_TT), seconds={})
    assert torch.equal(results.R.nan_to_num(-1), R_TT.nan_to_num(-1))
    for step in range(1, count + 1):
        part = R_TT[:step, :step]
        expected = [float(function(part)) for function in (acc, bwt_gem, forgetting_max)]
        assert list(results.after(step).values()) == pytest.approx(expected, abs=0, nan_ok=True)
    for j in range(count):
        later = [value for value in R_TT[j + 1 :, j].tolist() if not math.isnan(value)]
        assert [results.later[j], results.own[j]] == pytest.approx(
            [later[-1] if later else math.nan, float(R_TT[j, j])], abs=0, nan_ok=True
        )


def test_bars_are_labelled_means_of_several_tasks(long: RunFacts) -> None:
    size = style.tasks_of_a_bar(LONG)
    assert size > 1
    modifications = as_figure(costs.each_task(long)).data[0]
    assert len(modifications.x) == -(-LONG // size) <= style.MAX_BARS
    for number, (value, words) in enumerate(zip(modifications.y, modifications.customdata, strict=True)):
        tasks = range(number * size, min(LONG, (number + 1) * size))
        assert value == sum(tasks) / len(tasks)
        assert words == f"mean of tasks {tasks[0] + 1} to {tasks[-1] + 1}"
    said = words_of(long)
    for name in ("each", "each-bytes", "seconds"):
        assert f"Each bar is the mean of {size} of the {LONG} tasks" in said[name]
    assert "The table lists every task." in said["each"]
    assert "by number" in as_figure(costs.each_bytes(long)).layout.xaxis.title.text


def test_means_ignore_unknown_values(long: RunFacts) -> None:
    first = long.tasks[0].name
    spent = {name: {"train": 3.0} for name in long.results.tasks if name != first}
    results = dataclasses.replace(long.results, seconds=spent)
    train = as_figure(costs.seconds(dataclasses.replace(long, results=results))).data[list(costs.PHASES).index("train")]
    assert set(train.y) == {3.0}


def test_growth_lines_are_thinned_and_say_so(long: RunFacts) -> None:
    added = as_figure(costs.parameters(long)).data[0]
    assert list(added.x) == [0, *long.steps]
    assert added.x[-1] == LONG
    assert list(added.y) == [0, *(sum(range(step)) for step in long.steps)]
    said = words_of(long)
    for name in ("parameters", "bytes"):
        assert f"Drawn after {len(long.steps)} of the {LONG} tasks, evenly spaced." in said[name]


def test_figures_that_show_a_spread_or_blocks_say_so(facts: RunFacts, long: RunFacts) -> None:
    said = words_of(long)
    assert "Each cell is the mean of up to 6 by 6 scores" in said["matrix"]
    assert "the median and the worst change among the tasks" in said["scores"]
    assert "A filled mark" not in said["scores"]
    assert f"Drawn after {len(long.steps)} of the {LONG} tasks" in said["scores"]
    assert f"Drawn after {len(long.steps)} of the {LONG} tasks" in said["forgetting"]
    assert f"the median and the worst validation score of {LONG} tasks at each tenth" in said["learning"]
    few = words_of(facts)
    assert "mean" not in few["matrix"]
    assert "Filled marks were measured, open ones certified; a cross is a score that changed." in few["scores"]
    assert few["learning"].startswith("The validation score over the steps of each task's fit.")


def test_few_hundred_tasks_are_shown_task_by_task(facts: RunFacts) -> None:
    run = many(facts, MAX_TASKS)
    assert (
        len(as_figure(costs.each_task(run)).data[0].x)
        == len(as_figure(costs.parameters(run)).data[0].x) - 1
        == MAX_TASKS
    )
    said = words_of(run)
    for name in ("parameters", "bytes", "each", "each-bytes", "seconds"):
        assert "mean of" not in said[name]
        assert "evenly spaced" not in said[name]


@pytest.mark.slow
def test_long_runs_share_detail_files_with_the_same_content(long: RunFacts, tmp_path: Path) -> None:
    write_report(tmp_path, long)
    files = sorted((tmp_path / "tasks").iterdir())
    assert [file.name for file in files] == [f"{place:06}.js" for place in range(0, LONG, TOGETHER)]
    shown = [task for file in files for task in unpacked(file.read_text("utf-8"))]
    assert [place for place, *_ in shown] == list(range(LONG))
    for place in (0, TOGETHER, LONG - 1):
        alone = script_of(long.tasks[place : place + 1], place, "")
        call = re.fullmatch(r"// [0-9a-f]{64}\ncontinualPetlTask\((.*)\);\n", alone, re.DOTALL)
        assert call is not None
        assert json.loads(f"[{call[1]}]") == shown[place]
    write_report(tmp_path, dataclasses.replace(long, tasks=long.tasks[:2]))
    assert sorted(path.name for path in (tmp_path / "tasks").iterdir()) == ["000000.js", "000001.js"]


@pytest.mark.slow
def test_shared_detail_file_is_redrawn_if_a_task_changed(
    long: RunFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(tmp_path, long)
    drawn: list[int] = []

    def noted(tasks: Any, first: int, page: str, *, packed: bool) -> str:
        drawn.append(first)
        return script_of(tasks, first, page, packed=packed)

    monkeypatch.setattr(write, "script_of", noted)
    write_report(tmp_path, long)
    assert drawn == []
    place = TOGETHER + 3
    task = long.tasks[place]
    moved = dataclasses.replace(task, link=task.link.model_copy(update={"seal": "0" * 64}))
    write_report(tmp_path, dataclasses.replace(long, tasks=(*long.tasks[:place], moved, *long.tasks[place + 1 :])))
    assert drawn == [TOGETHER]


@pytest.mark.slow
def test_long_table_has_all_rows_as_data_and_the_first_in_the_document(facts: RunFacts, tmp_path: Path) -> None:
    count = MAX_ROWS + 1
    run = many(facts, count)
    table = table_of(run, "Certificates")
    data = json.loads(table.data)
    assert len(data["rows"]) == count
    for row, cells in zip(data["rows"], table.rows, strict=True):
        for value, kind, cell in zip(row, data["kinds"], cells, strict=True):
            text, sort, other, opens = ([value] if isinstance(value, str) else value) + [None] * (
                3 if isinstance(value, str) else 4 - len(value)
            )
            assert (text, sort, other or kind, opens) == (cell.text, cell.sort, cell.kind, cell.opens)
    page = write_report(tmp_path, run).read_text("utf-8")
    certificates = page[page.index('<section id="certificates"') :]
    assert certificates.count('<th scope="row"') == table.page
    assert f"These are the first {table.page} of {count:,} rows; the others need JavaScript." in certificates
    assert "the first rows of long tables are shown without it" in page
    assert not table_of(many(facts, MAX_ROWS), "Certificates").is_long


def test_figures_match_plotly(facts: RunFacts) -> None:
    drawn = [figure.draw(facts) for figure in run_figures()]
    drawn += [figure.draw(task) for figure in task_figures() for task in facts.tasks]
    drawn += [comparison.cost([("run", facts)]), comparison.each_task([("run", facts)], facts.results.tasks)]
    drawn += [scores.matrix(many(facts, 250)), scores.over_time(many(facts, 50))]
    for drawing in drawn:
        if drawing is not None:
            checked = json.loads(as_figure(drawing).to_json())
            checked["layout"]["template"] = {}  # plotly adds an empty one
            assert without_none(json.loads(json.dumps(drawing))) == without_none(checked)


def without_none(value: Any) -> Any:
    """Return JSON without the keys whose value is None, which plotly leaves out."""
    if isinstance(value, dict):
        return {key: without_none(each) for key, each in value.items() if each is not None}
    return [without_none(each) for each in value] if isinstance(value, list) else value


def test_reread_certificates_must_be_unchanged(learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts_module, "MAX_TASKS", 4)
    run = multiply(shutil.copytree(learned, tmp_path / "run"), 6)
    found = Reader(run).read()
    assert found.ok
    first, task = read_facts(learned).tasks[0], found.tasks[0]
    assert (task.link.seal, task.fit) == (first.link.seal, first.fit)
    assert (task.certificate, task.history) == (first.certificate, first.history)
    assert task.certificate is not task.certificate or task.history is not task.history, "must be read on each access"
    shutil.rmtree(run / "banks/two")
    with pytest.raises(StoreError, match="task 'two' was learned as entry 1 of the chain, but its bank is missing"):
        found.tasks[1].opened()


def test_bank_replaced_during_the_report_is_reported(
    learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts_module, "MAX_TASKS", 1)
    run = shutil.copytree(learned, tmp_path / "run")
    found = Reader(run).read()
    file = run / "banks/two/bank.json"
    edit(file, sealed=True, onwards=True, seed=7)
    with pytest.raises(StoreError, match="'two' was replaced by another bank while the report was drawn; draw the"):
        found.tasks[1].opened()


@pytest.mark.slow
def test_report_grows_slowly_and_has_every_task(backbone_folder: Folder, tmp_path: Path) -> None:
    pages, sizes = {}, {}
    for count in (MAX_ROWS + 100, 2 * MAX_ROWS):
        run = long_run(tmp_path / f"run{count}", backbone_folder(), count)
        found = read_facts(run)
        assert found.ok, [check.problems for check in found.checks if not check.ok][:3]
        page = write_report(tmp_path / f"report{count}", found)
        pages[count] = page.read_text("utf-8")
        files = sorted((page.parent / "tasks").iterdir())
        assert len(files) == -(-count // TOGETHER)
        shown = [task for file in files for task in unpacked(file.read_text("utf-8"))]
        names = [task.name for task in found.tasks]
        assert [html[: html.index("</h3>")] for _, html, _ in shown] == [f"<h3>{name}" for name in names]
        sizes[count] = len(pages[count]), sum(file.stat().st_size for file in files)
        said = words_of(found)
        # The first 20 rows measure all earlier tasks, later rows certify 20 of them, and the last row certifies all.
        rows = [json.loads(line)["line"] for line in (run / "ledger.jsonl").read_text("utf-8").splitlines()]
        cells = [cell["status"] for row in rows if row["type"] == "row" for cell in row["cells"]]
        assert f"{cells.count('certified'):,} certified" in said["matrix"]
        assert cells.count("certified") < 21 * count
        assert f"{cells.count('measured'):,} scores measured" in said["matrix"]
        assert f"Each bar is the mean of {style.tasks_of_a_bar(count)} of the {count:,} tasks" in pages[count]
        assert f"These are the first 50 of {count:,} rows" in pages[count]
        drawn = json.loads(re.findall(r'data-name="matrix">(.*?)</script>', pages[count])[0])["data"][0]
        known = [int(text.split(", ")[-1].split()[0]) for row in drawn["text"] for text in row if text]
        assert sum(known) == len(cells), "every known score must be in one of the blocks"
    (page_few, tasks_few), (page_many, tasks_many) = sizes.values()
    more = MAX_ROWS - 100
    assert page_many - page_few < 800 * more
    assert tasks_many - tasks_few < 2_000 * more
