"""The methods of `Run` that change its folder do what the functions and commands do, and the same object shows the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, Run, RunInUseError, TaskStream, forget, reevaluate
from continual_petl.cli.main import main
from continual_petl.store.store import Store
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.stream_file.dump import dump_stream
from tests.desk import bank_digests
from tests.learned import LearnedRuns
from tests.store.test_lock import held
from tests.streams_in_code import stream, task, write_rows

Folder = Callable[..., Path]
QUICK: dict[str, Any] = {"training": {"epochs": 1}}


def _stream(backbone: Path, *names: str) -> TaskStream:
    return stream(backbone, [task(name) for name in names], **QUICK)


@pytest.fixture
def run(learned_runs: LearnedRuns, backbone_folder: Folder, tmp_path: Path) -> Run:
    """Return a run with one task."""
    return Run(learned_runs.copy(_stream(backbone_folder(), "one"), tmp_path / "run"))


def test_created_run_learns_tasks_one_by_one_as_the_stream_at_once(
    backbone_folder: Folder, learned_runs: LearnedRuns, tmp_path: Path
) -> None:
    tasks = _stream(backbone_folder(), "one", "two")
    run = Run.create(tasks, tmp_path / "run")
    assert run.store.tasks == Run.open(tmp_path / "run").store.tasks == []
    assert [each.name for each in run.spec.tasks] == ["one", "two"]
    with pytest.raises(InputError, match=r"there is a run already; open it with Run\.open, or give another folder"):
        Run.create(tasks, tmp_path / "run")
    for number, each in enumerate(tasks, 1):
        assert run.learn(each) is run
        assert len(run.store.tasks) == len(run.results.tasks) == number
    assert bank_digests(run) == bank_digests(Run(learned_runs(tasks)))
    assert run.predict("w1 w20", "two") == Run(tmp_path / "run").predict("w1 w20", "two")


@pytest.mark.parametrize("given", ["mapping", "TaskSpec", "file", "stream", "file of a stream", "rest"])
def test_same_object_answers_with_the_new_task(run: Run, backbone_folder: Folder, tmp_path: Path, given: str) -> None:
    write_rows(tmp_path / "rows", "two")
    entry = {"name": "two", "kind": "classification", "data": "rows"}
    (tmp_path / "task.yaml").write_text(json.dumps(entry))
    whole = run.spec.model_copy(
        update={"tasks": (*run.spec.tasks, TaskSpec(**entry | {"data": str(tmp_path / "rows")}))}
    )
    (tmp_path / "stream.yaml").write_text(json.dumps(whole.model_dump(mode="json", exclude_none=True)))
    if given == "rest":
        run.store.write_stream((tmp_path / "stream.yaml").read_text())
    tasks: dict[str, Any] = {
        "mapping": entry,
        "TaskSpec": TaskSpec(**entry),
        "file": str(tmp_path / "task.yaml"),
        "stream": TaskStream(whole),
        "file of a stream": tmp_path / "stream.yaml",
        "rest": None,
    }
    before = run.predict("w1 w20", "one")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)  # where relative paths in Python begin
        run.learn(tasks[given], progress=False)
    assert run.store.tasks == [*run.results.tasks] == ["one", "two"]
    assert run.predict_all(["w1 w20"], ["one", "two"])["one"] == [before]
    assert all(check.ok for check in run.verify(data=True))
    assert [each.name for each in Run(tmp_path / "run").spec.tasks] == ["one", "two"]


def test_only_the_given_task_is_learned(backbone_folder: Folder, tmp_path: Path) -> None:
    child = task("child", bank={"start_from": "two"})
    run = Run.create(stream(backbone_folder(), [task("one"), task("two"), child], **QUICK), tmp_path / "run")
    with pytest.raises(
        InputError, match="task 'child' needs the bank of 'two', a task of the run's stream that is not learned"
    ):
        run.learn(child)
    assert run.learn(task("two")).store.tasks == ["two"]
    assert run.learn(child).learn(task("four")).store.tasks == ["two", "child", "four"]
    assert run.learn().store.tasks == ["two", "child", "four", "one"]
    assert sorted(bank_digests(run)) == sorted(run.results.tasks)


def test_command_learns_only_its_task(backbone_folder: Folder, tmp_path: Path) -> None:
    Run.create(_stream(backbone_folder(), "one"), tmp_path / "run")
    (tmp_path / "two.yaml").write_text(json.dumps(task("two")))
    assert main(["learn", str(tmp_path / "run"), str(tmp_path / "two.yaml"), "--quiet"]) == 0
    assert Store(tmp_path / "run").tasks == ["two"]


def test_learned_task_is_replaced_only_on_purpose(run: Run) -> None:
    seals = [link.seal for link in run.store.commits()]
    run.learn(task("one"))
    assert [link.seal for link in run.store.commits()] == seals
    other = task("one", training={"epochs": 2})
    with pytest.raises(
        InputError, match=r"already has a task 'one', learned with other settings \(training\).*replace=\['one'\]"
    ):
        run.learn(other)
    assert run.learn(other, replace=["one"]).store.certificate("one").training.epochs == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (3, r"tasks: got 3; give a task \(a TaskSpec, a mapping or the file of one task\), or a TaskStream"),
        ("nowhere.yaml", "nowhere.yaml: there is no such file"),
        ({"name": "two", "kind": "classification"}, "TaskSpec: key data: is missing: add it"),
        (
            task("two", labels=["a", "b", "no", "yes"], split={"classes_per_task": 2}),
            "task 'two', key split: this is the file of one task",
        ),
    ],
)
def test_what_cannot_be_learned_is_refused(run: Run, given: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        run.learn(given)
    assert run.store.tasks == ["one"]
    assert run.predict("w1", "one").task == "one"


def test_forget_and_reevaluate_are_the_functions(run: Run, backbone_folder: Folder, tmp_path: Path) -> None:
    run.learn(task("two"))
    backbone = run.session.models.backbone("fp32")
    assert run.reevaluate().to_json() == reevaluate(tmp_path / "run").to_json()
    assert run.session.models.backbone("fp32") is backbone, "the backbone in memory must not be loaded again"
    assert run.forget("two") is run
    assert run.store.tasks == [*run.results.tasks] == [each.name for each in run.spec.tasks] == ["one"]
    with pytest.raises(InputError, match="task 'two' is not learned in"):
        run.predict("w1", "two")
    with pytest.raises(InputError, match="task 'two' is not learned in"):
        forget(tmp_path / "run", "two")


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_changes_need_the_lock(run: Run, tmp_path: Path) -> None:
    changes: list[Callable[[], Any]] = [
        lambda: run.learn(task("two")),
        lambda: run.forget("one"),
        lambda: run.reevaluate(),
    ]
    with held(tmp_path / "run"):
        for change in changes:
            with pytest.raises(RunInUseError):
                change()
    assert run.store.tasks == ["one"]


def test_code_that_the_folder_asks_for_needs_consent(run: Run, tmp_path: Path) -> None:
    spec = run.spec.model_copy(update={"backbone": run.spec.backbone.model_copy(update={"remote_code": True})})
    run.store.write_stream(dump_stream(spec))
    with pytest.raises(InputError, match=r"asks to execute Python code.*Run\(folder, remote_code=True\)"):
        Run.open(tmp_path / "run").learn(task("two"))
