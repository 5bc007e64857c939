"""The run's stream.yaml determines how later tasks are learned, so a changed file is reported and not used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl import InputError, Run, StreamCallback, learn
from continual_petl.callbacks import WatchedRun
from continual_petl.cli.main import main
from continual_petl.engine.commands import forget
from continual_petl.errors import StoreError
from continual_petl.report.read_facts import read_facts
from continual_petl.store.store import Store
from continual_petl.streams.stream_file.yaml_file import load_stream
from tests.store.tampering import QUICK, TASKS, edit_stream, problems
from tests.streams_in_code import stream, task
from tests.usual import few

Folder = Callable[..., Path]
CHANGED = "it has changed since it was written"


def change(folder: Path, old: str, new: str) -> None:
    path = folder / "stream.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that the `learn` command refuses the file, and that no command rewrites it."""
    before = (folder / "stream.yaml").read_bytes()
    (folder.parent / "new.yaml").write_text(json.dumps(task("four", num_rows=16)))
    assert main(["learn", str(folder), str(folder.parent / "new.yaml"), "--quiet"]) == 1
    assert CHANGED in capsys.readouterr().err
    assert Store(folder).tasks == ["one", "two", "three"]
    # `forget` drops a task, but does not rewrite the file: that would seal the changed content.
    other = shutil.copytree(folder, folder.parent / "forgetting")
    forget(other, "two")
    assert Store(other).tasks == ["one", "three"]
    assert (folder / "stream.yaml").read_bytes() == (other / "stream.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    few(
        [
            ("\nseed: 3", "\nseed: 4", "it has seed 4, but tasks were learned with a different seed"),
            ("name: two", "name: twp", "learned, but not named in it: two"),
            ("learning_rate: 0.02", "learning_rate: 0.03", r"task 'one' has other settings \(training.learning_rate\)"),
            ("name: tiny", "name: tiry", "nothing differs"),
        ]
    ),
)
def test_changed_value_is_reported(
    folder: Path, old: str, new: str, differs: str, capsys: pytest.CaptureFixture[str], backbone_folder: Folder
) -> None:
    assert problems(folder) == {}
    change(folder, old, new)
    found = problems(folder)
    assert found.keys() == {"(stream.yaml)"}
    with pytest.raises(AssertionError, match=differs):
        raise AssertionError(found["(stream.yaml)"])
    assert any(CHANGED in problem for check in read_facts(folder).others for problem in check.problems)
    refused(folder, capsys)
    # A stream given by the user does not come from this file, and replaces it.
    notices: list[str] = []

    class Listener(StreamCallback):
        def on_run_start(self, run: WatchedRun) -> None:
            notices.extend(run.notices)

    more = stream(backbone_folder(), [*TASKS, task("four", num_rows=16)], training=QUICK)
    run = learn(more, folder, callbacks=[Listener()])
    assert "was edited or damaged since it was written; the given stream replaces it" in notices[0]
    assert run.store.tasks == ["one", "two", "three", "four"]
    assert load_stream(folder / "stream.yaml").seed == 3
    assert problems(folder) == {}


def test_resealed_seed_is_reported(folder: Path) -> None:
    edit_stream(folder, "\nseed: 3", "\nseed: 4")
    found = problems(folder)
    assert found.keys() == {"(stream.yaml)"}
    assert "it has seed 4, but tasks were learned with a different seed. Restore it" in found["(stream.yaml)"]
    (wrong,) = (check for check in Run(folder).verify(probe=False) if not check.ok)
    assert wrong.problems == (found["(stream.yaml)"],)


def test_missing_seal_is_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "stream.yaml"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert load_stream(path).seed == 3
    assert CHANGED in problems(folder)["(stream.yaml)"]
    refused(folder, capsys)


def test_intentional_edit_is_accepted_by_run(folder: Path, backbone_folder: Folder) -> None:
    change(folder, "learning_rate: 0.02", "learning_rate: 0.03")
    arguments = ["run", str(folder / "stream.yaml"), "--run-dir", str(folder), "--quiet"]
    assert main(arguments) == 0
    assert problems(folder) == {}
    assert load_stream(folder / "stream.yaml").training.learning_rate == 0.03
    change(folder, "\nseed: 3", "\nseed: 4")
    assert main(arguments) == 2, "must be refused, since the certificates contradict the seed"


def test_linked_stream_file_is_refused(folder: Path, backbone_folder: Folder) -> None:
    elsewhere = folder.parent / "elsewhere.yaml"
    shutil.move(folder / "stream.yaml", elsewhere)
    (folder / "stream.yaml").symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    for act in (lambda: Run(folder), lambda: read_facts(folder), lambda: forget(folder, "one")):
        with pytest.raises(StoreError, match=r"stream\.yaml: it is a link, which could lead anywhere"):
            act()
    with pytest.raises(StoreError, match=r"stream\.yaml: it is a link"):
        learn(stream(backbone_folder(), [*TASKS, task("four", num_rows=16)], training=QUICK), folder)
    assert elsewhere.read_bytes() == before
    assert (folder / "stream.yaml").is_symlink()


def test_incompatible_stream_is_still_refused(folder: Path, backbone_folder: Folder) -> None:
    with pytest.raises(
        InputError, match="this folder holds the stream 'tiny' with seed 3, but the one given is 'tiny'"
    ):
        learn(stream(backbone_folder(), TASKS, training=QUICK, seed=4), folder)
    with pytest.raises(InputError, match="but the one given is 'other' with seed 3"):
        learn(stream(backbone_folder(), TASKS, training=QUICK, name="other"), folder)
