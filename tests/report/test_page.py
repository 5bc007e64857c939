"""The page describes the run, loads only files of its own folder, and escapes every text of the run."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from continual_petl import Run, learn
from continual_petl.report.page.render import moment
from continual_petl.report.read_facts import read_facts
from continual_petl.report.write import write_comparison, write_report
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


class Page(HTMLParser):
    """The content of a page: its texts, the addresses that it loads, the ids of its elements, and its figures."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.loads: list[str] = []
        self.ids: list[str] = []
        self.figures: dict[str, dict[str, Any]] = {}
        self._in: list[tuple[str, dict[str, str | None]]] = []
        self.source = file.read_text("utf-8")
        self.feed(self.source.replace("<wbr>", ""))  # where a long name may break

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._in.append((tag, given))
        self.loads += [value for key in ("src", "href") if (value := given.get(key)) and not value.startswith("#")]
        if name := given.get("id"):
            self.ids.append(name)

    def handle_endtag(self, tag: str) -> None:
        while self._in and self._in.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tag, given = self._in[-1] if self._in else ("", {})
        if tag == "script" and given.get("class") == "data":
            self.figures[str(given["data-name"])] = json.loads(data)
        elif tag not in ("script", "style") and data.strip():
            self.texts.append(data.strip())


@pytest.mark.parametrize("seconds", [1e18, -1e18, math.inf, math.nan])
def test_impossible_time_is_shown_as_unknown(seconds: float) -> None:
    assert moment(seconds) == "at an unknown time"


@pytest.mark.parametrize("seconds", [10**16, -(10**9), 2**33])
def test_a_run_whose_files_have_absurd_times_is_drawn(learned: Path, tmp_path: Path, seconds: int) -> None:
    folder = shutil.copytree(learned, tmp_path / "run")
    for path in [folder, *folder.rglob("*")]:
        try:
            os.utime(path, (seconds, seconds))
        except (OSError, OverflowError):
            pytest.skip("this file system does not support such timestamps")
    assert Page(write_report(folder / "report", read_facts(folder))).texts


def test_page_loads_only_local_files(learned: Path, tmp_path: Path) -> None:
    page = Page(write_report(tmp_path / "report", read_facts(learned)))
    assert set(page.loads) == {"plotly.min.js", "data:,"}
    assert (tmp_path / "report/plotly.min.js").stat().st_size > 10**6
    assert len(page.ids) == len(set(page.ids))


def test_page_shows_what_was_learned_and_the_verdict(learned: Path, tmp_path: Path) -> None:
    page = Page(write_report(tmp_path / "report", read_facts(learned)))
    text = " ".join(page.texts)
    assert "4 tasks learned, 4 certificates checked, nothing changed." in text
    assert "continual-petl verify" in text
    for name in ("one", "two", "multilabel", "four"):
        assert page.texts.count(name) >= 2, "must be in the list of tasks and in the table of certificates"
    digest = Run(learned).store.certificate("two").digest
    assert digest[:16] in page.texts
    growth = {"parameters", "bytes", "each", "each-bytes"}
    assert set(page.figures) == {
        *("matrix", "scores", "forgetting", "routing", "routed", "taken-for"),
        *growth,
        *("learning", "seconds"),
    }


def test_page_names_backbone_seed_and_task_settings(learned: Path, tmp_path: Path) -> None:
    facts = read_facts(learned)
    page = Page(write_report(tmp_path / "report", facts))
    assert facts.pinned is not None
    words = f"Backbone: {facts.pinned.name} ({facts.pinned.num_parameters:,} parameters, digest {facts.pinned.digest[:16]})."
    assert f"{words} Seed of the stream: 3." in page.texts
    text = (tmp_path / "report/tasks/000001.js").read_text("utf-8")
    html, _ = json.loads(f"[{text.partition('(1,')[2].rpartition(')')[0]}]")
    rows = dict(re.findall(r'<th scope="row">([^<]*)</th><td>([^<]*)</td></tr>', html.split("Settings</caption>")[1]))
    task_facts = facts.tasks[1]
    assert rows["bank"] == task_facts.link.bank
    assert (rows["learning rate"], rows["epochs"], rows["batch size"]) == ("0.02", "2 epochs", "8")
    assert rows["seed of the task"] == str(task_facts.certificate.seed)
    assert rows["backbone (digest)"] == facts.pinned.digest[:16]
    assert facts.tasks[0].training is facts.tasks[1].training, (
        "tasks with the same training settings must share one string"
    )


def test_heat_map_has_r_and_nothing_above_the_diagonal(learned: Path, tmp_path: Path) -> None:
    facts = read_facts(learned)
    page = Page(write_report(tmp_path / "report", facts))
    heat = page.figures["matrix"]["data"][0]
    for i, row in enumerate(heat["z"]):
        for j, value in enumerate(row):
            known = j <= i
            assert (value is not None) is known
            assert not known or value == pytest.approx(float(facts.results.R[i, j]), abs=1e-6)


def test_every_task_has_its_own_detail_file(learned: Path, tmp_path: Path) -> None:
    write_report(tmp_path / "report", read_facts(learned))
    files = sorted((tmp_path / "report/tasks").iterdir())
    assert [file.name for file in files] == [f"{number:06}.js" for number in range(4)]
    for number, file in enumerate(files):
        text = file.read_text("utf-8")
        call = re.fullmatch(r"// [0-9a-f]{64}\ncontinualPetlTask\((\d+),(.*)\);\n", text, re.DOTALL)
        assert call is not None
        assert int(call[1]) == number
        html, figures = json.loads(f"[{call[2]}]")
        assert html.count('class="plot"') == len(figures) == 2


def test_damage_is_shown_first(learned: Path, tmp_path: Path) -> None:
    run = shutil.copytree(learned, tmp_path / "run")
    file = run / "banks/two/history.json"
    file.write_bytes(file.read_bytes().replace(b'"kept"', b'"Kept"'))
    facts = read_facts(run)
    assert not facts.ok
    page = Page(write_report(tmp_path / "report", facts))
    text = " ".join(page.texts)
    assert "This run does not match its certificates: see the 1 finding below." in text
    assert "its bytes are not those that were certified" in text


def test_labels_are_escaped(backbone_folder: Folder, tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    one = task("one")
    for rows in one["data"].values():
        for row in rows:
            row["label"] = evil if row["label"] == "yes" else "no"
    learn(stream(backbone_folder(), [one]), tmp_path / "run")
    page = write_report(tmp_path / "report", read_facts(tmp_path / "run"))
    for file in (page, tmp_path / "report/tasks/000000.js"):
        assert "<img" not in file.read_text("utf-8")
    assert "onerror=alert" in (tmp_path / "report/tasks/000000.js").read_text("utf-8")


@pytest.mark.slow
def test_unfinished_run_shows_committed_tasks(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [task("one"), task("two")]
    learn(stream(backbone_folder(), tasks[:1]), tmp_path / "run")
    file = tmp_path / "run/stream.yaml"
    learn(stream(backbone_folder(), tasks), tmp_path / "other")
    file.write_bytes((tmp_path / "other/stream.yaml").read_bytes())
    page = Page(write_report(tmp_path / "report", read_facts(tmp_path / "run")))
    text = " ".join(page.texts)
    assert "The stream has 2 tasks; this report shows those learned so far." in text
    assert "1 task learned, 1 certificate checked, nothing changed." in text


def test_compared_runs_are_distinguishable(learned: Path, shared: Path, tmp_path: Path) -> None:
    runs = [read_facts(learned), read_facts(shared)]
    page = Page(write_comparison(tmp_path / "report", runs))
    text = " ".join(page.texts)
    assert "banks" in page.texts
    assert "shared" in page.texts
    assert "These runs have not learned the same tasks" in text
    assert {"acc", "forgetting", "bwt", "tasks", "cost"} == set(page.figures)
    assert set(page.loads) == {"plotly.min.js", "data:,"}
