"""A later task needs only the saved banks, no earlier data; every cell of R has a status."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import Run, StreamCallback, learn
from continual_petl.callbacks import WatchedRun, WatchedTask
from continual_petl.engine.commands import forget
from continual_petl.engine.scoring import result_row
from tests.desk import bank_digests
from tests.learned import LearnedRuns
from tests.streams_in_code import classification_rows, stream, task
from tests.usual import few

Folder = Callable[..., Path]
QUICK = {"epochs": 1}


def task_on_disk(name: str, folder: Path) -> dict[str, Any]:
    """Write a task's rows to files, and return the task."""
    rows = classification_rows(name, 48)
    (folder / name).mkdir(parents=True)
    for split, part in {"train": rows[:24], "validation": rows[24:32], "test": rows[32:]}.items():
        with open(folder / name / f"{split}.csv", "w", newline="") as handle:
            writer = csv.DictWriter(handle, ["text", "label"])
            writer.writeheader()
            writer.writerows(part)
    return {"name": name, "kind": "classification", "data": str(folder / name)}


def test_later_task_does_not_need_earlier_data(backbone_folder: Folder, tmp_path: Path) -> None:
    data = tmp_path / "data"
    tasks = [task_on_disk(name, data) for name in ("one", "two", "three")]
    before = bank_digests(learn(stream(backbone_folder(), tasks[:2]), tmp_path / "run"))
    shutil.rmtree(data / "one")
    shutil.rmtree(data / "two")
    heard: list[str] = []

    class Listener(StreamCallback):
        def on_task_end(self, run: WatchedRun, task: WatchedTask) -> None:
            heard.extend(task.notices)

    run = learn(stream(backbone_folder(), tasks), tmp_path / "run", callbacks=[Listener()])
    (notice,) = heard
    assert (
        f"tasks 'one', 'two' were not measured again: for 'one', its test rows are not available: there is no {data}"
        in notice
    )
    assert (
        f"; for 'two', its test rows are not available: there is no {data / 'two'}. Their certificates were" in notice
    )
    assert notice.endswith("Their certificates were checked, and their certified scores are carried over into R.")
    assert run.store.tasks == ["one", "two", "three"]
    assert run.results.status[2] == ("certified", "certified", "measured")
    assert run.results.R[2, :2].tolist() == run.results.R.diagonal()[:2].tolist()
    assert (run.results.bwt, run.results.forgetting, run.results.certified) == (0.0, 0.0, 2)
    assert all(check.how == "digests and probe, bit for bit" for check in Run(tmp_path / "run").verify())
    found = {check.task: check for check in run.verify(data=True)}
    assert "test rows are not available" in found["one"].problems[0]
    assert (found["one"].ok, found["one"].verdict) == (False, "rows not checked")
    assert (found["three"].problems, found["three"].verdict) == ((), "unchanged")
    # The third bank is the same as in a run without missing data, and predictions still work.
    shutil.rmtree(data)
    alone = learn(stream(backbone_folder(), [task_on_disk("three", data)]), tmp_path / "alone")
    assert bank_digests(run) == before | bank_digests(alone)
    assert len(Run(tmp_path / "run").predict(["w0 w30"], task="one")) == 1


@pytest.mark.slow
def test_copied_run_folder_can_be_continued(backbone_folder: Folder, learned_runs: LearnedRuns, tmp_path: Path) -> None:
    tasks = [task(name, num_rows=24) for name in ("one", "two", "three")]
    learn(stream(backbone_folder(), tasks[:2]), tmp_path / "here")
    moved = tmp_path / "another place" / "run"
    shutil.copytree(tmp_path / "here", moved)
    shutil.rmtree(tmp_path / "here")
    run = learn(stream(backbone_folder(), tasks), moved)
    assert bank_digests(run) == bank_digests(Run(learned_runs(stream(backbone_folder(), tasks))))
    assert run.results.forgetting == 0.0
    assert all(check.ok for check in Run(moved).verify(data=True))
    assert str(tmp_path / "here") not in "".join(p.read_text() for p in moved.rglob("*.json*"))


FOUR = [task(name, num_rows=16) for name in ("a", "b", "c", "d")]


def statuses(run: Run) -> list[str]:
    """Return the lower triangle of R as letters: (m)easured, (c)ertified or (n)ot measured."""
    return ["".join(status[0] for status in line[: number + 1]) for number, line in enumerate(run.results.status)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "letters"),
    few(
        [
            ("certified", ["m", "cm", "ccm", "cccm"]),
            ("all", ["m", "mm", "mmm", "mmmm"]),
            ("auto", ["m", "mm", "mmm", "mmmm"]),
            ("sample", ["m", "mm", "mmm", "mmmm"]),
        ],
    ),
)
def test_evaluate_options_with_few_tasks(
    backbone_folder: Folder, tmp_path: Path, policy: str, letters: list[str]
) -> None:
    run = learn(stream(backbone_folder(), FOUR, training=QUICK, evaluate=policy), tmp_path / "run")
    assert statuses(run) == letters
    R = run.results.R
    assert all(R[i, j] == R[j, j] for i in range(4) for j in range(i + 1))
    assert run.results.bwt == run.results.forgetting == 0.0


@pytest.mark.slow
def test_evaluation_cost_does_not_grow_with_the_number_of_tasks(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limits are lowered to 1 task, so that four tasks exceed them."""
    for name in ("MEASURE_ALL_UP_TO", "_SAMPLE", "_CHECKED"):
        monkeypatch.setattr(result_row, name, 1)

    def learned(policy: str) -> list[str]:
        return statuses(learn(stream(backbone_folder(), FOUR, training=QUICK, evaluate=policy), tmp_path / policy))

    sample, certified, auto = map(learned, ("sample", "certified", "auto"))
    # Besides the new task, one task is measured and one certified; the last row is complete.
    assert sample[:2] == ["m", "mm"]
    assert sorted(sample[2]) == sorted("cmm")
    assert sorted(sample[3]) == sorted("ccmm")
    assert sorted(certified[2]) == sorted("cnm")
    assert certified[3] == "cccm"
    assert auto == certified
    assert learned("all") == ["m", "mm", "mmm", "mmmm"]
    assert sample == statuses(Run(tmp_path / "sample")), "the seed determines which tasks are measured"


def test_an_undefined_score_is_not_forgetting(backbone_folder: Folder, tmp_path: Path) -> None:
    """The correlation with a constant is undefined, both when the task is learned and later."""
    from tests.streams_in_code import regression_task

    constant = {**regression_task("a", num_rows=16), "metric": "pearson", "bank": "probe"}
    for part in constant["data"]["test"]:
        part["label"] = 1.0
    run = learn(stream(backbone_folder(), [constant, FOUR[1]], training=QUICK), tmp_path / "run")
    assert run.results.R[:, 0].isnan().all()
    assert run.results.to_json()["R"][1][0] is None
    assert all(check.ok for check in run.verify())


def test_run_without_new_tasks_does_not_change_later_defaults(backbone_folder: Folder, tmp_path: Path) -> None:
    folder, one = backbone_folder(), task("one", num_rows=16)
    learn(stream(folder, [one], training=QUICK), tmp_path / "run")
    changed = stream(folder, [one], training={"epochs": 2, "learning_rate": 0.5}, bank="lora", evaluate="certified")
    learn(changed, tmp_path / "run")
    spec = Run(tmp_path / "run").session.spec
    assert (spec.training.epochs, spec.training.learning_rate) == (1, stream(folder, [one]).spec.training.learning_rate)
    assert (spec.bank.preset, spec.evaluate) == ("houlsby", "certified")
    # If there is a task to learn, the given stream's settings apply to it and to later tasks.
    tasks = [one, task("two", num_rows=16)]
    run = learn(stream(folder, tasks, training={"epochs": 2}, bank="lora"), tmp_path / "run")
    assert (run.store.certificate("one").training.epochs, run.store.certificate("two").training.epochs) == (1, 2)
    assert Run(tmp_path / "run").session.spec.training.epochs == 2


def test_a_run_keeps_the_rows_that_its_version_of_the_defaults_selects(backbone_folder: Folder, tmp_path: Path) -> None:
    """Version 2 held out other rows for each task's name; runs that were started with it do so for new tasks, too."""
    folder, rows = backbone_folder(), classification_rows("one", 40)
    one, two = ({"name": name, "kind": "classification", "data": {"train": rows}} for name in ("one", "two"))

    def held_out(run: Run) -> list[str]:
        return [run.store.certificate(name).data["validation"] for name in run.store.tasks]

    learn(stream(folder, [one], training=QUICK, defaults=2), tmp_path / "old")
    old = learn(stream(folder, [one, two], training=QUICK), tmp_path / "old")
    assert Run(tmp_path / "old").session.spec.defaults == 2
    assert len(set(held_out(old))) == 2
    assert all(check.ok for check in old.verify(data=True))
    new = learn(stream(folder, [one, two], training=QUICK), tmp_path / "new")
    assert Run(tmp_path / "new").session.spec.defaults == 3
    assert len(set(held_out(new))) == 1
    notices: list[str] = []

    class Recorded(StreamCallback):
        def on_run_start(self, run: WatchedRun) -> None:
            notices.extend(run.notices)

    learn(stream(folder, [one, two], training=QUICK, defaults=3), tmp_path / "old", callbacks=[Recorded()])
    assert any("the run keeps defaults: 2, with which it was started" in notice for notice in notices)


def test_verify_names_the_split_it_evaluates(backbone_folder: Folder, tmp_path: Path) -> None:
    rows = classification_rows("one", 32)
    one = {"name": "one", "kind": "classification", "data": {"train": rows[:16], "validation": rows[16:]}}
    run = learn(stream(backbone_folder(), [one], training=QUICK), tmp_path / "run")
    assert [check.how for check in run.verify(data=True)] == ["digests and probe, bit for bit, validation rows"]


@pytest.mark.slow
def test_merged_stream_settings_stay_consistent(backbone_folder: Folder, tmp_path: Path) -> None:
    """Settings of two streams may be valid in each of them but contradict each other in the merged stream."""
    folder, one, two = backbone_folder(), task("one", num_rows=16, bank="lora"), task("two", num_rows=16)
    copies = stream(folder, [one, two], training=QUICK, bank={"preset": "lora", "start_from": "one"})
    learn(copies, tmp_path / "copies")
    learn(stream(folder, [task("one", num_rows=16), two], training=QUICK, bank="lora"), tmp_path / "copies")
    assert all(check.ok for check in Run(tmp_path / "copies").verify())
    by_sgd = stream(folder, [one], training={"epochs": 1, "optimizer": "sgd", "momentum": 0.5})
    learn(by_sgd, tmp_path / "training")
    other = one | {"training": {"betas": [0.8, 0.95]}}
    learn(stream(folder, [other], training=QUICK), tmp_path / "training")
    assert all(check.ok for check in Run(tmp_path / "training").verify())


def test_settings_used_only_by_a_forgotten_task_are_removed(backbone_folder: Folder, tmp_path: Path) -> None:
    by_sgd = task("one", num_rows=16, training={"optimizer": "sgd"})
    both = [by_sgd, task("two", num_rows=16)]
    learn(stream(backbone_folder(), both, training={"epochs": 1, "momentum": 0.5}), tmp_path / "run")
    run = forget(tmp_path / "run", "one")
    assert [each.name for each in run.session.spec.tasks] == ["two"]
    assert run.session.spec.training.momentum == 0.9, "an unused setting must return to its default"
    assert all(check.ok for check in run.verify())
