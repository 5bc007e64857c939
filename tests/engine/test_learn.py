"""`learn` turns a stream into verified banks on disk, and refuses what cannot be learned."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from continual_petl import InputError, Run, StreamCallback, SweepSpec, learn
from continual_petl.callbacks import WatchedRun
from continual_petl.engine.checks.other_banks import shared_bank
from continual_petl.engine.dry_run import dry_run
from continual_petl.engine.session import Session
from continual_petl.learner.plan import RowFacts
from continual_petl.store.store import Store
from continual_petl.sweep.protocol import sweep
from tests.streams_in_code import regression_task, stream, task, task_of_kind, write_rows
from tests.usual import few

Folder = Callable[..., Path]


@pytest.mark.slow
def test_one_task_is_learned_and_verified(backbone_folder: Folder, tmp_path: Path) -> None:
    run = learn(stream(backbone_folder(), [task("first", num_rows=80)], training={"epochs": 6}), tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run").iterdir() if not p.name.startswith(".")) == [
        "backbone.json",
        "banks",
        "ledger.jsonl",
        "stream.yaml",
    ]
    files = {p.name for p in (tmp_path / "run" / "banks" / "first").iterdir()}
    assert files == {"bank.safetensors", "bank.json", "probe.safetensors", "history.json", "router.safetensors"}
    # Verify from the folder alone, as another process would.
    (check,) = Run(tmp_path / "run").verify()
    assert check.ok
    assert check.how == "digests and probe, bit for bit"
    assert float(run.results.R[0, 0]) >= 0.8
    assert [answer.value for answer in run.predict(["w0 w20 w30", "w1 w40"], task="first")] == ["no", "yes"]


@pytest.mark.parametrize("family", few(["bert", "roberta", "electra", "distilbert"]))
def test_three_kinds_of_task_on_every_family(backbone_folder: Folder, tmp_path: Path, family: str) -> None:
    tasks = [task("single"), task("pair", pairs=True, bank="lora"), regression_task("number", bank="bitfit")]
    run = learn(stream(backbone_folder(family), tasks), tmp_path / family)
    R = run.results.R
    table = run.results.to_pandas()
    assert list(table.index) == list(table.columns) == list(run.results.tasks)
    assert torch.equal(torch.tensor(table.to_numpy()).nan_to_num(-1), R.nan_to_num(-1))
    tidy = run.results.to_pandas(tidy=True)
    assert len(tidy) == 6
    assert set(tidy["status"]) == {"measured"}
    assert set(tidy["split"]) == set(run.results.splits)
    for row in tidy.itertuples():
        assert row.score == table.loc[row.after, row.task]
    assert bool(torch.equal(R.tril()[2, :2], torch.stack([R[0, 0], R[1, 1]])))
    assert run.results.forgetting == 0.0
    assert all(check.ok for check in run.verify(data=True))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            "off.yaml",
            r"stream: got 'off\.yaml'; give a TaskStream, for instance TaskStream\.from_yaml\(\"off\.yaml\"\)",
        ),
        (Path("off.yaml"), r"from_yaml\(\"off\.yaml\"\)"),
        (
            {"name": "x"},
            r"stream: got a dict; give a TaskStream, for instance TaskStream\.from_yaml\(\"stream\.yaml\"\)",
        ),
    ],
)
def test_anything_but_a_stream_is_refused(tmp_path: Path, given: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        learn(given, run_dir=tmp_path / "run")
    with pytest.raises(InputError, match=says):
        sweep(given, SweepSpec(space={"training.epochs": [1]}), folder=tmp_path / "sweep")
    assert not any(tmp_path.iterdir())


def test_a_learned_stream_is_skipped(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = stream(backbone_folder(), [task("first"), task("second")])
    learn(tasks, tmp_path / "run")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "run" / "banks").rglob("*")}
    lines = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    learn(tasks, tmp_path / "run")
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "run" / "banks").rglob("*")} == before
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == lines


@pytest.mark.parametrize("preset", ["full", "lora"])
def test_shared_bank_continues_and_is_measured_not_certified(
    backbone_folder: Folder, tmp_path: Path, preset: str
) -> None:
    opposite = task("second")
    for rows in opposite["data"].values():
        for row in rows:
            row["label"] = "no" if row["label"] == "yes" else "yes"
    shared = stream(backbone_folder(), [task("first"), opposite], bank={"preset": preset, "scope": "shared"})
    run = learn(shared, tmp_path / "run")
    assert run.results.status[1] == ("measured", "measured")
    bodies = [run.store.tensors(name) for name in ("first", "second")]
    changed = [n for n in bodies[0] if not n.startswith("head.") and not torch.equal(bodies[0][n], bodies[1][n])]
    assert changed
    first, second = run.verify()
    assert first.ok
    assert first.how.endswith("as committed, but it now predicts with the shared bank of 'second'")
    assert second.ok
    assert second.how == "digests and probe, bit for bit"


def test_changed_settings_of_a_learned_task_are_reported_and_ignored(backbone_folder: Folder, tmp_path: Path) -> None:
    heard: list[str] = []

    class Listener(StreamCallback):
        def on_run_start(self, run: WatchedRun) -> None:
            heard.extend(run.notices)

    learn(stream(backbone_folder(), [task("first")]), tmp_path / "run", callbacks=[Listener()])
    before = (tmp_path / "run" / "banks" / "first" / "bank.json").read_bytes()
    changed = stream(backbone_folder(), [task("first", bank="lora")], training={"epochs": 7})
    learn(changed, tmp_path / "run", callbacks=[Listener()])
    (notice,) = heard
    assert "'first' was learned with other settings (bank, training.epochs) and stays unchanged" in notice
    assert (tmp_path / "run" / "banks" / "first" / "bank.json").read_bytes() == before


def test_trainer_objects_are_not_written_to_the_stream(backbone_folder: Folder, tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path / "logs")
    learn(
        stream(backbone_folder(), [task("first")]), tmp_path / "run", trainer={"logger": logger, "log_every_n_steps": 1}
    )
    assert "logger" not in (tmp_path / "run" / "stream.yaml").read_text()
    assert list((tmp_path / "logs").rglob("metrics.csv"))
    assert all(check.ok for check in Run(tmp_path / "run").verify())


@pytest.mark.slow
def test_diverged_bank_is_not_committed(backbone_folder: Folder, tmp_path: Path) -> None:
    """Its logits are NaN, so argmax would predict the first label for every row."""
    training = {"learning_rate": 1e30, "gradient_clip": None}
    with pytest.raises(
        InputError, match=r"task 'first': learning diverged: .*Lower training\.learning_rate \(it was 1e\+30\)"
    ):
        learn(stream(backbone_folder(), [task("first")], training=training), tmp_path / "run")
    assert Run(tmp_path / "run").store.tasks == []
    assert learn(stream(backbone_folder(), [task("first")]), tmp_path / "run").store.tasks == ["first"]


def test_tasks_sharing_a_bank_must_use_the_same_pooling(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [task("first", num_rows=16), task("second", num_rows=16, pooling="pooler")]
    with pytest.raises(InputError, match=r"task 'second': it uses the pooler, but 'first', .* does not use the pooler"):
        learn(stream(backbone_folder(), tasks, bank={"preset": "full", "scope": "shared"}), tmp_path / "run")


def test_shared_bank_cannot_change_its_form(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [task("first", num_rows=16), task("second", num_rows=16)]
    lora = {"preset": "lora", "rank": 4, "scope": "shared"}
    learn(stream(backbone_folder(), tasks[:1], bank=lora, training={"epochs": 1}), tmp_path)
    other = stream(backbone_folder(), tasks, bank=lora | {"rank": 2}, training={"epochs": 1})
    wanted = "task 'second': its shared bank differs from that of 'first', which it would continue from"
    with pytest.raises(InputError, match=wanted):
        learn(other, tmp_path)
    session = Session(other.spec, Store(tmp_path))
    with pytest.raises(InputError, match=wanted):
        shared_bank(session, session.plan(other["second"], RowFacts(("no", "yes"))), session.models.learner("fp32"))


@pytest.mark.parametrize("preset", ["full", "top_layers"])
def test_shared_full_copy_with_pooler_is_refused_for_word_tasks(
    backbone_folder: Folder, tmp_path: Path, preset: str
) -> None:
    """Word tagging does not use BERT's pooler, whatever ``pooling`` says."""
    tasks = [task("first", num_rows=16), task_of_kind("token-classification", "second", num_rows=16)]
    backbone = {"name": str(backbone_folder()), "pooling": "pooler"}
    mixed = stream(backbone_folder(), tasks, bank={"preset": preset, "scope": "shared"}, backbone=backbone)
    wanted = r"task 'second': it does not use the pooler, but 'first', .* uses the pooler"
    with pytest.raises(InputError, match=wanted):
        learn(mixed, tmp_path / "run")
    with pytest.raises(InputError, match=wanted):
        dry_run(Session(mixed.spec, Store(tmp_path / "run")))
    assert Store(tmp_path / "run").tasks == []


@pytest.mark.slow
def test_learned_task_is_kept_if_the_stream_changes_its_kind(backbone_folder: Folder, tmp_path: Path) -> None:
    learn(stream(backbone_folder(), [task("first", num_rows=16)]), tmp_path / "run")
    tasks = [regression_task("first", num_rows=16), task("second", num_rows=16)]
    run = learn(stream(backbone_folder(), tasks), tmp_path / "run")
    assert run.results.status[1][0] == "certified"
    first, _ = run.verify(data=True)
    assert "it was learned with kind classification, but the stream now has regression" in first.problems[0]
    assert all(check.ok for check in run.verify())


def test_relative_paths_still_resolve_from_another_folder(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(tmp_path / "data" / "first", "first")
    shutil.copytree(backbone_folder(), tmp_path / "bert")
    monkeypatch.chdir(tmp_path)
    backbone = {"name": "./bert", "pooling": "mean"}
    first = {"name": "first", "kind": "classification", "data": "data/first"}
    learn(stream(Path(), [first], backbone=backbone), "runs/mine")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (check,) = Run(tmp_path / "runs" / "mine").verify(data=True)
    assert check.problems == ()
