"""If the data of earlier tasks is missing, their scores come from the certificates, and are not shown as measured."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from continual_petl import InputError, Run, RunInUseError, learn, reevaluate
from continual_petl.cli.main import main
from continual_petl.errors import StoreError
from continual_petl.report.figures.scores import flatness
from continual_petl.report.read_facts import read_facts
from continual_petl.store.ledger.lines import MeasuredScore, RowLine
from continual_petl.store.store import Store
from tests.engine.test_append import statuses, task_on_disk
from tests.store.tampering import change_tensors, edit_stream, nudge
from tests.store.test_lock import held
from tests.streams_in_code import stream

Folder = Callable[..., Path]
QUICK = {"epochs": 1}


def _learned(backbone: Path, tmp_path: Path, *names: str, **more: Any) -> Path:
    """Learn tasks one after the other, and delete the data of each before the next is learned."""
    given: list[dict[str, Any]] = []
    for name in names:
        given = [*given, task_on_disk(name, tmp_path / "data")]
        learn(stream(backbone, given, training=QUICK, **more), tmp_path / "run")
        for file in (tmp_path / "data" / name).iterdir():
            file.unlink()
    return tmp_path / "run"


def _as_json(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*words, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.slow
def test_task_learned_without_old_data_has_certified_scores(
    backbone_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _learned(backbone_folder(), tmp_path, "one")
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(task_on_disk("two", tmp_path / "new")))
    assert main(["learn", str(folder), str(tmp_path / "two.yaml"), "--training.epochs", "1"]) == 0
    shown = capsys.readouterr().out
    own = f"{Run(folder).results.own[0]:.4f}"
    assert f"{own} c" in shown
    assert "c: certified, not measured again" in shown
    assert "mean score over all tasks at the end, 1 of 2 certified and not measured again" in shown
    assert "n/a" not in shown
    results = Run(folder).results.to_json()
    assert results["status"][1] == ["certified", "measured"]
    assert (results["certified"], results["bwt"], results["forgetting"]) == (1, 0.0, 0.0)
    assert "1 earlier score was certified instead of measured again." in flatness(read_facts(folder))


@pytest.mark.slow
@pytest.mark.parametrize("why", ["other rows", "not in the stream"])
def test_changed_rows_are_not_measured(backbone_folder: Folder, tmp_path: Path, why: str) -> None:
    backbone = backbone_folder()
    one, two = (task_on_disk(name, tmp_path) for name in ("one", "two"))
    learn(stream(backbone, [one], training=QUICK), tmp_path / "run")
    test = tmp_path / "one" / "test.csv"
    test.write_text("".join(test.read_text().splitlines(keepends=True)[:-1]))
    given = [one, two] if why == "other rows" else [two]
    run = learn(stream(backbone, given, training=QUICK), tmp_path / "run")
    assert run.results.status[1] == ("certified", "measured")
    assert run.results.R[1, 0] == run.results.R[0, 0]


@pytest.mark.slow
def test_learn_evaluate_option(backbone_folder: Folder, tmp_path: Path) -> None:
    backbone, tasks = backbone_folder(), [task_on_disk(name, tmp_path) for name in ("one", "two", "three")]
    folder = tmp_path / "run"
    learn(stream(backbone, tasks[:1], training=QUICK), folder)
    for number, policy in ((1, "certified"), (2, "all")):
        (tmp_path / "task.yaml").write_text(yaml.safe_dump(tasks[number]))
        assert main(["learn", str(folder), str(tmp_path / "task.yaml"), "--evaluate", policy, "--quiet"]) == 0
        assert Run(folder).session.spec.evaluate == policy
    assert statuses(Run(folder)) == ["m", "cm", "mmm"]


@pytest.fixture(scope="module")
def lacking(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run whose rows of R lack the scores of earlier tasks, since their data is deleted."""
    return _learned(backbone_folder(), tmp_path_factory.mktemp("lacking"), "one", "two", "three", evaluate="all")


@pytest.fixture
def copied(lacking: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(lacking, tmp_path / "run"))


def test_earlier_rows_are_filled_in_without_changing_lines(
    copied: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert statuses(Run(copied)) == ["m", "nm", "nnm"]
    assert math.isnan(Run(copied).results.forgetting)
    before = (copied / "ledger.jsonl").read_bytes()
    found = _as_json(capsys, "reevaluate", str(copied))
    assert [(cell["after"], cell["task"]) for cell in found["certified"]] == [
        ("two", "one"),
        ("three", "one"),
        ("three", "two"),
    ]
    assert (found["left"], [check["task"] for check in found["checks"]]) == ({}, ["one", "two"])
    run = Run(copied)
    assert statuses(run) == ["m", "cm", "ccm"]
    assert all(run.results.R[i, j] == run.results.R[j, j] for i in range(3) for j in range(i))
    assert (run.results.bwt, run.results.forgetting) == (0.0, 0.0)
    after = (copied / "ledger.jsonl").read_bytes()
    assert after.startswith(before)
    assert all(check.ok for check in run.verify())
    # The second time, nothing is missing.
    assert main(["reevaluate", str(copied)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "nothing was filled in; 3 scores in R (marked c): certified, not measured. Where the data is available" in shown
    )
    assert "every score" not in shown
    assert (copied / "ledger.jsonl").read_bytes() == after


@pytest.mark.slow
def test_certified_scores_can_be_measured_once_their_data_is_available(
    backbone_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _learned(backbone_folder(), tmp_path, "one", "two")
    (tmp_path / "data" / "one").rmdir()
    task_on_disk("one", tmp_path / "data")  # restores its data
    assert main(["reevaluate", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert (
        "no score in R is missing: nothing was filled in; 1 score in R (marked c): certified, not measured. " in shown
    )
    assert f"continual-petl verify {folder} --data evaluates on it again" in shown
    assert main(["verify", str(folder), "--data"]) == 1
    assert "task 'one': " not in capsys.readouterr().out, "only task 'two' must be reported, since its rows are missing"


def test_run_with_measured_scores_only_says_so(
    backbone_folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learn(stream(backbone_folder(), [task_on_disk("one", tmp_path)], training=QUICK), tmp_path / "run")
    assert main(["reevaluate", str(tmp_path / "run")]) == 0
    assert "every score in R is measured: nothing was filled in" in capsys.readouterr().out


def test_failed_certificates_are_not_filled_in(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = copied / "banks" / "one" / "bank.safetensors"
    change_tensors(file, nudge(next(iter(load_file(file)))))
    assert main(["reevaluate", str(copied)]) == 1
    assert "task 'one': not filled in: it differs from its certificate: task 'one'" in capsys.readouterr().out
    assert statuses(Run(copied)) == ["m", "nm", "ncm"]


def test_broken_chain_other_backbone_or_read_only_folder_is_refused(
    copied: Path, backbone_folder: Folder, tmp_path: Path
) -> None:
    reevaluate(copied)  # nothing is missing any more, but the folder is refused all the same
    before = (copied / "ledger.jsonl").read_bytes()
    kept = (copied / "stream.yaml").read_bytes()
    other = Path(shutil.copytree(backbone_folder(), tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 1e-3}))
    edit_stream(copied, str(backbone_folder()), str(other))
    with pytest.raises(StoreError, match="this run was learned on backbone"):
        reevaluate(copied)
    (copied / "stream.yaml").write_bytes(kept)
    shutil.rmtree(copied / "banks" / "two")
    with pytest.raises(StoreError, match="task 'two' was learned as entry 1 of the chain, but its bank is missing"):
        reevaluate(copied)
    edit_stream(copied, "remote_code: false", "remote_code: true")
    with pytest.raises(InputError, match=r"key backbone\.remote_code: true"):
        reevaluate(copied)
    assert (copied / "ledger.jsonl").read_bytes() == before


def test_measured_scores_are_not_replaced(copied: Path) -> None:
    store = Store(copied)
    lines = [line for line in store.results() if isinstance(line, RowLine)]
    cell = lines[-1].cells[0]
    assert (cell.task, cell.status) == ("one", "not measured")

    def cell_of(status: Any, value: float | None) -> RowLine:
        return RowLine(
            after="three",
            index=2,
            cells=(MeasuredScore.model_validate(cell.model_dump() | {"status": status, "value": value}),),
        )

    store.append([cell_of("measured", 0.25), cell_of("certified", 0.5), cell_of("not measured", None)])
    assert Run(copied).results.row(2)[0] == 0.25
    assert Run(copied).results.status[2][0] == "measured"
    found = reevaluate(copied)
    assert ("three", "one") not in found.certified
    assert ("three", "two") in found.certified
    assert Run(copied).results.row(2)[0] == 0.25


def test_scores_of_shared_banks_are_not_carried_over(backbone_folder: Folder, tmp_path: Path) -> None:
    shared = {"preset": "houlsby", "bottleneck": 4, "scope": "shared"}
    folder = _learned(backbone_folder(), tmp_path, "one", "two", bank=shared)
    assert statuses(Run(folder)) == ["m", "nm"]
    found = reevaluate(folder)
    assert (found.certified, found.ok) == ((), True)
    assert "scope: shared" in found.left["one"]
    assert statuses(Run(folder)) == ["m", "nm"]


def test_locked_run_is_refused(copied: Path, tmp_path: Path) -> None:
    with held(copied), pytest.raises(RunInUseError):
        reevaluate(copied)
    with pytest.raises(InputError, match="no run here"):
        reevaluate(tmp_path / "nowhere")


def test_logs_say_how_many_scores_were_certified(copied: Path, backbone_folder: Folder, tmp_path: Path) -> None:
    reevaluate(copied)
    (tmp_path / "four.yaml").write_text(yaml.safe_dump(task_on_disk("four", tmp_path)))
    words = ["learn", str(copied), str(tmp_path / "four.yaml"), "--evaluate", "auto", "--log", "csv", "--quiet"]
    assert main(words) == 0
    assert statuses(Run(copied)) == ["m", "cm", "ccm", "cccm"]
    (file,) = copied.rglob("metrics.csv")
    with open(file, newline="") as lines:
        logged = [row["run/certified"] for row in csv.DictReader(lines) if row["run/certified"]]
    assert list(map(float, logged)) == [0, 1, 2, 3]
