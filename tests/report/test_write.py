"""The same facts give the same files; unchanged files are kept; every text of a run is escaped."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from continual_petl import StoreError, learn
from continual_petl.report import write
from continual_petl.report.page.details import script_of
from continual_petl.report.page.sections import TOGETHER
from continual_petl.report.page.verdict import verdict
from continual_petl.report.read_facts import Reader, read_facts
from continual_petl.report.run_facts import RunFacts, TaskFacts
from continual_petl.report.terminal import MAX_PROBLEMS
from continual_petl.report.write import write_report
from continual_petl.store.certificate.finding import Finding
from continual_petl.store.certificate.history import Confusion, PerLabel, Points, Samples
from continual_petl.store.files.atomic import write_file
from tests.kinds import METRICS
from tests.report.made import changed, many
from tests.store.tampering import change_tensors, nudge
from tests.streams_in_code import stream, task_of_kind
from tests.usual import few

Folder = Callable[..., Path]


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def details(folder: Path, place: int) -> tuple[str, list[Any]]:
    """Return the HTML and the figures of a task's details."""
    text = (folder / f"tasks/{place:06}.js").read_text("utf-8")
    call = re.fullmatch(r"// [0-9a-f]{64}\ncontinualPetlTask\(\d+,(.*)\);\n", text, re.DOTALL)
    assert call is not None
    html, figures = json.loads(f"[{call[1]}]")
    return html, figures


def test_the_same_facts_give_the_same_bytes(facts: RunFacts, tmp_path: Path) -> None:
    write_report(tmp_path / "one", facts)
    write_report(tmp_path / "other", facts)
    one, other = files_in(tmp_path / "one"), files_in(tmp_path / "other")
    assert one == other
    write_report(tmp_path / "one", facts)
    assert files_in(tmp_path / "one") == one
    assert not [name for name in one if name.endswith(".new")]


def test_writing_again_changes_only_the_time_on_the_page(learned: Path, tmp_path: Path) -> None:
    first = read_facts(learned)
    write_report(tmp_path / "report", first)
    before = files_in(tmp_path / "report")
    later = dataclasses.replace(first, read_at=first.read_at + 3600)
    write_report(tmp_path / "report", later)
    after = files_in(tmp_path / "report")
    assert {name for name in after if after[name] != before[name]} == {"index.html", "stamp"}
    pages = [re.sub(rb'Drawn [-0-9: A-Z+]*|data-stamp="[^"]*"', b"", each["index.html"]) for each in (before, after)]
    assert pages[0] == pages[1]


def test_unchanged_details_are_not_redrawn(learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = shutil.copytree(learned, tmp_path / "run")
    drawn: list[int] = []

    def noted(tasks: Sequence[TaskFacts], first: int, page: str, *, packed: bool) -> str:
        drawn.append(first)
        return script_of(tasks, first, page, packed=packed)

    monkeypatch.setattr(write, "script_of", noted)
    reader = Reader(run)
    write_report(tmp_path / "report", reader.read())
    write_report(tmp_path / "report", reader.read())
    assert drawn == [0, 1, 2, 3]
    change_tensors(run / "banks/two/bank.safetensors", nudge("head.output.bias"))
    write_report(tmp_path / "report", reader.read())
    assert drawn[4:] == [1]
    assert "CHANGED" in details(tmp_path / "report", 1)[0]
    (tmp_path / "report/tasks/000003.js").write_text("")
    write_report(tmp_path / "report", reader.read())
    assert drawn[5:] == [3]
    monkeypatch.setattr(write, "drawn_by", lambda: "a newer release")
    write_report(tmp_path / "report", reader.read())
    assert drawn[6:] == [0, 1, 2, 3]


def test_files_of_dropped_tasks_are_removed(facts: RunFacts, tmp_path: Path) -> None:
    write_report(tmp_path, many(facts, 3))
    (tmp_path / "tasks/notes.txt").write_text("mine")
    (tmp_path / "plotly.min.js").write_text("of an older release")
    write_report(tmp_path, many(facts, 1))
    assert sorted(path.name for path in (tmp_path / "tasks").iterdir()) == ["000000.js", "notes.txt"]
    assert (tmp_path / "plotly.min.js").stat().st_size > 10**6


def test_unreplaceable_page_is_kept(facts: RunFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_report(tmp_path, facts)
    before = (tmp_path / "index.html").read_bytes()

    def full(path: Path, content: bytes) -> None:
        if path.name == "index.html":
            raise StoreError("the disk is full")
        write_file(path, content)

    monkeypatch.setattr(write, "write_file", full)
    with pytest.raises(StoreError, match="the disk is full"):
        write_report(tmp_path, dataclasses.replace(facts, name="another"))
    assert (tmp_path / "index.html").read_bytes() == before


@pytest.mark.parametrize("evil", ["</script><b>", "<!--<script>", "{{ 1 }}", "\u2028'\"&amp;", "%{x}"])
def test_texts_of_a_run_are_escaped(facts: RunFacts, tmp_path: Path, evil: str) -> None:
    first = facts.tasks[0]
    assert first.history is not None
    certificate = first.certificate.model_copy(update={"labels": (evil, f"0123456789abcde{evil}"), "notices": (evil,)})
    wrong = dataclasses.replace(first.check, task="(files)", findings=(Finding(message=f"{evil} is wrong"),))
    bad = dataclasses.replace(
        facts,
        name=evil,
        folder=Path(f"runs/{evil.replace('/', '')}"),
        tasks=(changed(first, certificate=certificate), *facts.tasks[1:]),
        others=(wrong,),
    )
    page = write_report(tmp_path, bad).read_text("utf-8")
    html, figures = details(tmp_path, 0)
    script = (tmp_path / "tasks/000000.js").read_text("utf-8")
    for text in (page, script):
        assert "</script><b>" not in text
        assert "<!--<script>" not in text
    assert "\u2028" not in script
    assert script.count("<") == 0
    escaped = (
        evil.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;").replace("'", "&#39;")
    )
    assert html.replace("<wbr>", "").count(escaped) >= 2, "must appear as a label and in a notice"
    ticks = figures[1]["layout"]["xaxis"]["ticktext"]
    assert ticks[0] == evil.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert ticks[1].count("&") == ticks[1].count(";"), "a long name is truncated, but never inside an HTML entity"


@pytest.mark.parametrize("kind", few(list(METRICS), 2))
def test_every_task_kind_shows_its_answers(backbone_folder: Folder, tmp_path: Path, kind: str) -> None:
    family = {"seq2seq": "bart", "causal-lm": "gpt2", "image-classification": "vit"}.get(kind, "bert")
    folder = backbone_folder(family)
    more = {"probe": "validation"} if kind in {"seq2seq", "causal-lm"} else {}
    learn(
        stream(
            folder, [task_of_kind(kind, num_rows=12)], backbone={"name": str(folder)}, training={"epochs": 1}, **more
        ),
        tmp_path / "run",
    )
    facts = read_facts(tmp_path / "run")
    write_report(tmp_path / "report", facts)
    (one,) = facts.tasks
    html, figures = details(tmp_path / "report", 0)
    assert one.history is not None
    found = one.history.answered[one.link.split]
    if isinstance(found, Samples):
        assert len(figures) == 1
        assert html.count("<blockquote>") == 2 * len(found.texts)
    else:
        assert len(figures) == 2
        assert isinstance(found, Points) == (kind == "regression")
    if isinstance(found, Confusion):
        assert sum(map(sum, figures[1]["data"][0]["text"])) == sum(count for *_, count in found.cells)
    for label in one.certificate.labels or ():
        assert f">{label}<" in html
    if isinstance(found, Confusion | PerLabel):
        heads = "".join(re.findall(r"<th scope=\"col\"[^>]*>([^<]*)", html.split("Labels</caption>")[1]))
        assert heads == "labelnumbersupportpredictedcorrect"
    assert one.certificate.seal in html
    assert one.certificate.digest in html


def test_a_thousand_findings_do_not_hide_the_verdict(facts: RunFacts) -> None:
    wrong = Finding(message="something is wrong")
    check = dataclasses.replace(facts.tasks[0].check, task="(files)", findings=(wrong,) * 1000)
    more = verdict(dataclasses.replace(facts, others=(check,))).more
    assert "see the 1,000 findings below" in more["verdict"]
    assert len(more["problems"]) == MAX_PROBLEMS + 1
    assert "950 more" in more["problems"][-1]


def test_page_of_many_tasks_is_small(facts: RunFacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = many(facts, 300)
    assert len(script_of(long.tasks[:1], 0, "")) < 17_000
    monkeypatch.setattr(write, "_begins_with", lambda path, line: True)  # writes no details
    assert write_report(tmp_path, long).stat().st_size < 2 * 2**20


@pytest.mark.slow
def test_a_report_of_a_thousand_tasks_is_small(facts: RunFacts, tmp_path: Path) -> None:
    write_report(tmp_path, many(facts, 1000))
    assert len(list((tmp_path / "tasks").iterdir())) == 1000 // TOGETHER
    assert sum(map(len, files_in(tmp_path).values())) < 9 * 2**20
