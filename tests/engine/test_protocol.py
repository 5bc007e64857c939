"""A stream's labels are checked for its protocol before anything is learned."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from continual_petl import Run, learn
from continual_petl.cli.main import main
from continual_petl.engine.changed_settings import changed_settings
from continual_petl.engine.checks import preflight
from continual_petl.engine.dry_run import dry_run
from continual_petl.engine.session import Session
from continual_petl.errors import InputError
from continual_petl.store.store import Store
from continual_petl.streams.stream import TaskStream
from continual_petl.streams.stream_file.yaml_file import load_stream
from tests.streams_in_code import TRAINING, regression_task, stream, task
from tests.tiny import WORDS

Folder = Callable[..., Path]
QUICK = {"epochs": 1}
LABELS = ["a", "b", "c", "d", "e"]


def relabelled(name: str, *labels: str, **more: Any) -> dict[str, Any]:
    """Return a task with the given labels instead of no and yes."""
    made = task(name, num_rows=16, **more)
    for row in (row for rows in made["data"].values() for row in rows):
        row["label"] = labels[row["label"] == "yes"]
    return made


def write_split_stream(folder: Path, backbone: Path, **split: Any) -> Path:
    """Write a stream that splits one file with five labels into tasks."""
    folder.mkdir(exist_ok=True)
    rows = [
        {
            "text": f"{WORDS[number % 5]} {WORDS[10 + number % 23]} {WORDS[40 + number % 31]}",
            "label": LABELS[number % 5],
        }
        for number in range(120)
    ]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    entry = {"name": "s", "kind": "classification", "data": "rows.jsonl", "labels": LABELS}
    tree = {
        "name": "cut",
        "backbone": {"name": str(backbone), "pooling": "mean"},
        "bank": {"preset": "houlsby", "bottleneck": 4},
        "training": TRAINING | QUICK,
        "protocol": "class",
        "tasks": [entry | {"split": {"classes_per_task": 3, **split}}],
    }
    (folder / "stream.yaml").write_text(json.dumps(tree))
    return folder / "stream.yaml"


@pytest.mark.parametrize(
    ("protocol", "second", "text"),
    [
        ("class", ("yes", "maybe"), "task 'two', labels: it has labels of earlier tasks ('yes' of task 'one')"),
        ("domain", ("yes", "maybe"), "task 'two', labels: it lacks 'no' and also has 'maybe', unlike task 'one'"),
    ],
)
def test_labels_found_in_data_are_compared_before_anything_is_learned(
    backbone_folder: Folder, tmp_path: Path, protocol: str, second: tuple[str, str], text: str
) -> None:
    tasks = stream(backbone_folder(), [task("one", num_rows=16), relabelled("two", *second)], protocol=protocol)
    for check in (learn, lambda tasks, folder: dry_run(Session(tasks.spec, Store(folder)))):
        with pytest.raises(InputError) as caught:
            check(tasks, tmp_path / "run")
        assert text in str(caught.value)
        assert caught.value.key == ("tasks", 1, "labels")
    assert not (tmp_path / "run").exists()


def test_data_that_contains_the_labels_is_read_for_any_number_of_tasks(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "CHECKED_TASKS", 1)
    tasks = [task("one", num_rows=16), relabelled("two", "u", "v"), relabelled("three", "v", "w")]
    with pytest.raises(InputError, match=r"task 'three', labels: .*'v' of task 'two'"):
        learn(stream(backbone_folder(), tasks, protocol="class"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_revisited_labels_are_learned_in_new_banks(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [task("one", num_rows=16), relabelled("two", "yes", "maybe"), relabelled("three", "no", "yes")]
    run = learn(stream(backbone_folder(), tasks, protocol="revisit", training=QUICK), tmp_path / "run")
    assert run.store.tasks == ["one", "two", "three"]
    assert load_stream(run.store.stream_file).protocol == "revisit"


def test_later_task_is_compared_with_certificates(backbone_folder: Folder, tmp_path: Path) -> None:
    one = task("one", num_rows=16)
    learn(stream(backbone_folder(), [one], protocol="class", training=QUICK), tmp_path / "run")
    two = relabelled("two", "yes", "maybe")
    for tasks in ([one, two], [two]):  # even if the stream no longer names the first task
        with pytest.raises(InputError, match=r"task 'two', labels: .*'yes' of task 'one'") as caught:
            learn(stream(backbone_folder(), tasks, protocol="class", training=QUICK), tmp_path / "run")
        assert caught.value.key == ("tasks", len(tasks) - 1, "labels")
    free = relabelled("two", "u", "v")
    assert learn(
        stream(backbone_folder(), [one, free], protocol="class", training=QUICK), tmp_path / "run"
    ).store.tasks == ["one", "two"]


def test_task_file_is_compared_with_the_run(
    backbone_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learn(stream(backbone_folder(), [task("one", num_rows=16)], protocol="class", training=QUICK), tmp_path / "run")
    file = tmp_path / "two.yaml"
    for more, tree in (
        ("labels", relabelled("two", "yes", "maybe")),
        ("kind", regression_task("two", num_rows=16)),
        (
            "split",
            {"name": "two", "kind": "classification", "data": "x", "labels": LABELS, "split": {"classes_per_task": 2}},
        ),
    ):
        file.write_text(json.dumps(tree, indent=0))
        for dry in ([], ["--dry-run"]):
            assert main(["learn", str(tmp_path / "run"), str(file), *dry]) == 2
            assert f"key {more}: " in capsys.readouterr().err
    assert Run(tmp_path / "run").store.tasks == ["one"]


def test_other_protocol_for_a_finished_run_is_checked_on_its_tasks(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [task("one", num_rows=16), task("two", num_rows=16), regression_task("three", num_rows=16)]
    learn(stream(backbone_folder(), tasks, training=QUICK), tmp_path / "run")
    with pytest.raises(InputError) as caught:
        learn(stream(backbone_folder(), tasks[:2], protocol="domain", training=QUICK), tmp_path / "run")
    assert caught.value.key == ("protocol",)
    assert "protocol: task 'three' is already learned: got regression; with protocol: domain" in str(caught.value)


def test_split_is_run_and_stored_as_its_tasks(backbone_folder: Folder, tmp_path: Path) -> None:
    file = write_split_stream(tmp_path / "cut", backbone_folder())
    tasks = TaskStream.from_yaml(file)
    assert [each.task for each in dry_run(Session(tasks.spec, Store(tmp_path / "run")))] == ["s-01", "s-02"]
    run = learn(tasks, tmp_path / "run")
    stored = load_stream(run.store.stream_file)
    assert [each.name for each in stored.tasks] == run.store.tasks == ["s-01", "s-02"]
    found = [run.store.certificate(name).labels for name in run.store.tasks]
    assert found == [each.labels for each in stored.tasks]
    assert sorted(label for labels in found for label in labels or ()) == LABELS
    assert all(check.ok for check in Run(tmp_path / "run").verify(data=True))
    # If the same file is learned again, there is nothing to do.
    assert learn(TaskStream.from_yaml(file), tmp_path / "run").store.tasks == ["s-01", "s-02"]


def test_split_with_another_seed_does_not_continue_a_run(backbone_folder: Folder, tmp_path: Path) -> None:
    file = write_split_stream(tmp_path / "cut", backbone_folder())
    run = learn(TaskStream.from_yaml(file), tmp_path / "run")
    other = TaskStream.from_yaml(write_split_stream(tmp_path / "cut", backbone_folder(), seed=1))
    assert all("(labels)" in told for told in changed_settings(Session(other.spec, run.store)))
    more = TaskStream.from_yaml(
        file, [("tasks.s.split.classes_per_task", "2"), ("tasks.s.labels", str([*LABELS, "f"]))]
    )
    with pytest.raises(InputError, match=r"task 's-03', labels: it has labels of earlier tasks"):
        learn(more, tmp_path / "run")


def test_problem_of_a_split_task_is_reported_with_its_line(
    backbone_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_split_stream(tmp_path / "cut", backbone_folder())
    file.write_text(file.read_text().replace('"labels": ["a", ', '\n"labels": ["z", '))
    assert main(["run", str(file), "--run-dir", str(tmp_path / "run")]) == 2
    told = capsys.readouterr().err
    assert f"{file}:2: key tasks.0.labels: task 's-01', split train" in told
    assert "label 'a' is unknown" in told


def test_routing_that_is_off_is_reported_where_the_protocol_needs_it(
    backbone_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_split_stream(tmp_path / "cut", backbone_folder())
    for words, expected in (
        ([], False),
        (["--routing", "off"], True),
        (["--routing", "off", "--protocol", "task"], False),
    ):
        assert main(["run", str(file), "--dry-run", *words]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert ("class evaluates rows without a task name, but routing is off for s-01, s-02" in said) == expected


def test_images_are_split_by_label(backbone_folder: Folder, tmp_path: Path) -> None:
    images = [[[[30 * (number % 5)] * 3] * 4] * 4 for number in range(60)]
    rows = [{"image": image, "label": LABELS[number % 5]} for number, image in enumerate(images)]
    entry = {"name": "s", "kind": "image-classification", "data": {"train": rows, "test": rows[:20]}, "labels": LABELS}
    tree = {
        "name": "cut",
        "backbone": {"name": str(backbone_folder("vit"))},
        "bank": {"preset": "houlsby", "bottleneck": 4},
        "training": TRAINING | QUICK,
        "protocol": "class",
        "tasks": [entry | {"split": {"classes_per_task": 3}}],
    }
    (tmp_path / "stream.yaml").write_text(json.dumps(tree))
    run = learn(TaskStream.from_yaml(tmp_path / "stream.yaml"), tmp_path / "run")
    assert list(run.store.tasks) == ["s-01", "s-02"]
    first, second = (run.store.certificate(task).labels or () for task in ("s-01", "s-02"))
    assert sorted((*first, *second)) == LABELS
    routed = run.results.routed
    assert routed is not None
    assert set(routed.tasks) == {"s-01", "s-02"}
    image = np.array(images[0], dtype=np.uint8)
    answer = run.predict(image, reject="never")
    assert answer.task in routed.tasks
