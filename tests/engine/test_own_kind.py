"""A kind by its import path: imported only with permission, identified by its code, refused in a folder from elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, Run, StoreError, kind_registry, learn
from continual_petl.cli.main import main
from continual_petl.digests import file_digest
from continual_petl.kind_registry import allow_kind, find_kind, kinds_refused
from continual_petl.streams.schema.stream_spec import StreamSpec, TaskSpec
from continual_petl.streams.stream_file.yaml_file import dump_stream, load_stream
from tests.house import ROOT
from tests.processes import forked
from tests.streams_in_code import regression_task, stream, task, task_of_kind

Folder = Callable[..., Path]
CODE = """
from pathlib import Path
from pydantic import BaseModel
from continual_petl.kinds.classification import Classification
from continual_petl.kinds.multilabel import Multilabel
from continual_petl.kinds.regression import Regression
Path(__file__).with_name("trace").write_text("executed")
class Halves(Regression):
    name = "halves"
class Other: pass
class Settings(BaseModel):
    depth: int = 3
class Deep(Multilabel):
    name = "deep"
    own_settings = Settings
class Plain(Classification):
    name = "plain"
    def in_words(self, labels, outputs_BC, *, targets, rounding):
        return super().in_words(labels, outputs_BC, targets=targets, rounding=rounding)
"""
NAME = "own_kinds.halves.Halves"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the file of a module that writes another file when it is executed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_kinds").mkdir()
    (tmp_path / "own_kinds" / "__init__.py").write_text("")
    file = tmp_path / "own_kinds" / "halves.py"
    file.write_text(CODE)
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_kinds"]:
        monkeypatch.delitem(sys.modules, name)
    forget()
    yield file
    forget()


def forget() -> None:
    """Forget that kinds were allowed, as in a new process."""
    kind_registry.REGISTRY.registered.clear()
    kind_registry._codes.clear()


def halves(**more: Any) -> dict[str, Any]:
    return regression_task("halves", num_rows=16) | {"kind": NAME, "remote_code": True, **more}


@pytest.mark.parametrize("more", [{"remote_code": False}, {"remote_code": "yes"}])
def test_code_is_not_imported_without_permission(package: Path, more: dict[str, Any]) -> None:
    with pytest.raises(
        InputError, match=r"kind 'own_kinds.halves.Halves': it is a class .* remote_code: true in the task"
    ):
        TaskSpec.model_validate(halves(**more))
    with (
        kinds_refused(),
        pytest.raises(InputError, match=r"which may come from anyone, pass --remote-code, or Run\(folder"),
    ):
        TaskSpec.model_validate(halves())
    with pytest.raises(InputError, match="not imported without your permission"):
        find_kind(NAME)
    assert not package.with_name("trace").exists()


def test_it_is_learned_and_opened_again_with_permission(
    package: Path, backbone_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = stream(backbone_folder(), [halves(training={"epochs": 1})])
    run = learn(tasks, tmp_path / "run")
    certificate = run.store.certificate("halves")
    assert (certificate.kind, certificate.kind_code) == (NAME, file_digest(package))
    assert all(check.ok for check in run.verify(data=True))
    (before,) = run.predict(["w1 w2"], task="halves")
    forget()
    package.with_name("trace").unlink()
    monkey = sys.modules.pop("own_kinds.halves")
    with pytest.raises((InputError, StoreError), match=r"pass --remote-code, or Run\(folder, remote_code=True\)"):
        Run(tmp_path / "run")
    for command in (["show", "--task", "halves"], ["verify"], ["predict", "--task", "halves", "w1"]):
        assert main([command[0], str(tmp_path / "run"), *command[1:]]) in (1, 2)
        assert "not imported without your permission" in " ".join(capsys.readouterr().err.split())
    assert main(["list", str(tmp_path / "run")]) == 0  # reads no certificate
    assert not package.with_name("trace").exists()
    sys.modules["own_kinds.halves"] = monkey
    (after,) = Run(tmp_path / "run", remote_code=True).predict(["w1 w2"], task="halves")
    assert after == before
    forget()
    assert main(["show", str(tmp_path / "run"), "--task", "halves", "--remote-code"]) == 0
    assert NAME in capsys.readouterr().out


def test_changed_code_is_not_executed(package: Path, backbone_folder: Folder, tmp_path: Path) -> None:
    learn(stream(backbone_folder(), [halves(training={"epochs": 1})]), tmp_path / "run")
    forget()
    del sys.modules["own_kinds.halves"]
    package.with_name("trace").unlink()
    package.write_text(CODE + "# changed\n")
    with pytest.raises(InputError, match=r"halves.py is not the code that the task was learned with: its SHA-256 is"):
        Run(tmp_path / "run", remote_code=True)
    assert not package.with_name("trace").exists()
    allow_kind(NAME)  # by a stream of the user's own
    with pytest.raises((InputError, StoreError), match="kind_code: got"):
        Run(tmp_path / "run").store.certificate("halves")


@pytest.mark.usefixtures("package")
def test_its_settings_may_lack_those_of_the_kind_it_is_based_on(backbone_folder: Folder, tmp_path: Path) -> None:
    own = {
        "kind": "own_kinds.halves.Deep",
        "remote_code": True,
        "kind_settings": {"depth": 4},
        "training": {"epochs": 1},
    }
    run = learn(stream(backbone_folder(), [task_of_kind("multilabel", "deep") | own]), tmp_path / "run")
    certificate = run.store.certificate("deep")
    assert (certificate.kind_settings, certificate.decision) == ({"depth": 4}, None)


@pytest.mark.usefixtures("package")
def test_settings_that_its_answers_would_not_follow_are_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    own: dict[str, Any] = {"kind": "own_kinds.halves.Plain", "remote_code": True}
    own["kind_settings"] = {"calibrate": "temperature"}
    with pytest.raises(
        InputError, match=r"the method in_words of kind 'own_kinds.halves.Plain' takes no argument decision"
    ):
        learn(stream(backbone_folder(), [task("plain", num_rows=16, **own)]), tmp_path / "run")


def started(words: list[str], folder: Path) -> tuple[int, str]:
    """Return the exit code of a command in a new interpreter, and what it writes."""
    variables = os.environ | {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))}
    program = [sys.executable, "-m", "continual_petl", *words]
    done = subprocess.run(program, env=variables, capture_output=True, text=True, check=False, cwd=folder)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "process",
    [lambda words, folder: forked(lambda: main(words), folder), pytest.param(started, marks=pytest.mark.slow)],
    ids=["forked", "new interpreter"],
)
def test_a_new_process_learns_and_verifies(
    package: Path, backbone_folder: Folder, tmp_path: Path, process: Callable[[list[str], Path], tuple[int, str]]
) -> None:
    """Worker processes are given the stream, and import the kind as the first process did."""
    spec = stream(backbone_folder(), [halves(training={"epochs": 1})]).spec
    (tmp_path / "stream.yaml").write_text(dump_stream(spec))
    forget()
    del sys.modules["own_kinds.halves"]
    for words in (["run", "stream.yaml", "--run-dir", "run"], ["verify", "run", "--remote-code"]):
        code, written = process(words, tmp_path)
        assert code == 0, written
    assert Run(tmp_path / "run", remote_code=True).store.tasks == ["halves"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "own_kinds.halves.Halvs",
            r"has no 'Halvs' \(did you mean 'Halves'\?\); a kind has to be a class derived from",
        ),
        ("own_kinds.halves.Other", r"it is <class 'own_kinds.halves.Other'>; a kind has to be a class derived from"),
        ("own_kinds.halves.Regression", r"defined in the module that is named"),
        ("own_kinds.missing.Halves", r"there is no module 'own_kinds.missing'"),
    ],
)
def test_what_is_no_kind_is_refused(package: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        TaskSpec.model_validate(halves(kind=name))


def test_permission_has_no_effect_without_code() -> None:
    with pytest.raises(
        InputError, match=r"has no effect without a metric of your own, such as metric: .* or a kind: remove"
    ):
        StreamSpec.model_validate(
            {"name": "s", "backbone": "x", "tasks": [regression_task("t") | {"remote_code": True}]}
        )


def test_a_stream_with_an_own_kind_roundtrips(package: Path, tmp_path: Path) -> None:
    spec = StreamSpec.model_validate({"name": "s", "backbone": "x", "data_dir": str(tmp_path), "tasks": [halves()]})
    (tmp_path / "stream.yaml").write_text(dump_stream(spec))
    forget()
    assert load_stream(tmp_path / "stream.yaml") == spec
