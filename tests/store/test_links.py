"""Links inside a run folder are not followed, since files elsewhere would be written or deleted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import learn
from continual_petl.callbacks import Loggers
from continual_petl.cli.main import main
from continual_petl.errors import StoreError
from tests.store.tampering import QUICK, TASKS, problems
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return a folder outside the run whose files have the names of files that are written or deleted in a run."""
    mine = tmp_path / "elsewhere"
    for name in ("index.html", "tasks/000009.js", "tasks/index.html", "axes.json", "csv/metrics.csv", "000009.js"):
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text("mine")
    return mine


def contents(folder: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("link", ["report", "report/tasks"])
def test_linked_report_is_refused(folder: Path, elsewhere: Path, link: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).symlink_to(elsewhere)
    before = contents(elsewhere)
    for command in (["report", str(folder)], ["report", str(folder), "--output", str(folder / "report")]):
        assert main(command) == 1
        assert f"{link}: it is a link, which could lead anywhere" in capsys.readouterr().err
    if link == "report":
        other = shutil.copytree(folder, folder.parent / "other", symlinks=True)
        assert main(["report", str(folder), str(other)]) == 1
        assert "report: it is a link" in capsys.readouterr().err
    assert contents(elsewhere) == before
    assert (folder / link).is_symlink()


def test_users_own_link_is_followed(folder: Path, elsewhere: Path, tmp_path: Path) -> None:
    (tmp_path / "shown").symlink_to(elsewhere)
    (tmp_path / "link to run").symlink_to(folder)
    assert main(["report", str(tmp_path / "link to run"), "--output", str(tmp_path / "shown")]) == 0
    assert (elsewhere / "index.html").read_text() != "mine"
    assert main(["report", str(tmp_path / "link to run")]) == 0
    assert (folder / "report" / "index.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("link", ["logs", "logs/csv"])
def test_linked_logs_are_refused(folder: Path, elsewhere: Path, link: str, backbone_folder: Folder) -> None:
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).symlink_to(elsewhere)
    before = contents(elsewhere)
    more = stream(backbone_folder(), [*TASKS, task("four", num_rows=16)], training=QUICK)
    with pytest.raises(StoreError, match=f"{link}: it is a link, which could lead anywhere"):
        learn(more, folder, callbacks=[Loggers(["csv"])])
    assert contents(elsewhere) == before
    assert problems(folder) == {}
    assert learn(more, folder).store.tasks[-1] == "four", "without loggers, the link must not matter"
