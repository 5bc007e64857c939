"""Loggers by name: readable files, W&B without an account, and missing packages."""

from __future__ import annotations

import csv
import json
import struct
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from lightning.pytorch.loggers import WandbLogger

from continual_petl import InputError, StoreError, learn
from continual_petl.callbacks import Loggers, named_loggers
from continual_petl.callbacks.sink import Axes, Sink
from continual_petl.callbacks.wandb_board import WandbBoard, tables
from continual_petl.cli.main import main
from continual_petl.report.page.sections import sections
from continual_petl.report.read_facts import read_facts
from continual_petl.store.store import Store
from continual_petl.streams.stream_file.yaml_file import dump_stream
from tests.callbacks.recording import tasks_of
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


@pytest.mark.slow
def test_csv_and_tensorboard_agree_and_resume(backbone_folder: Folder, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    for names in (("one",), ("one", "two")):
        (tmp_path / "tasks.yaml").write_text(dump_stream(tasks_of(backbone_folder(), *names).spec))
        words = ["run", str(tmp_path / "tasks.yaml"), "--run-dir", str(run), "--log", "csv", "--log", "tensorboard"]
        assert main([*words, "--quiet"]) == 0
    assert {path.name for path in (run / "logs" / "csv").iterdir()} == {"metrics.csv", "hparams.yaml"}
    assert not any(path.is_dir() for path in (run / "logs" / "tensorboard").iterdir()), "TensorBoard shows one run"
    with open(run / "logs" / "csv" / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    steps = [int(row["step"]) for row in rows]
    assert steps == sorted(steps)
    found = {
        name: [(int(row["step"]), float(row[name])) for row in rows if row.get(name)]
        for name in ("train/loss", "val/accuracy", "run/acc", "task")
    }
    assert [step for step, _ in found["train/loss"]] == [1, 2, 3, 4, 5, 6, 7, 8]

    settings = {
        "tasks/one/learning_rate",
        "tasks/one/bank",
        "tasks/two/epochs",
        "tasks/two/seed",
        "tasks/two/data/test",
    }
    written = yaml.safe_load((run / "logs" / "csv" / "hparams.yaml").read_text())
    assert set(written) == {"tasks/one", "tasks/two"}
    assert written["tasks/one"]["data"] == Store(run).certificate("one").data

    reader = import_module("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(run / "logs" / "tensorboard"))
    events.Reload()
    for name, points in found.items():
        read = events.Scalars(name)
        assert [point.step for point in read] == [step for step, _ in points]
        assert [point.value for point in read] == pytest.approx([value for _, value in points])
    assert [point.value for point in events.Scalars("hparams/acc")] == pytest.approx([found["run/acc"][-1][1]])
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    plugin_data = import_module("tensorboard.plugins.hparams.plugin_data_pb2").HParamsPluginData.FromString(content)
    assert settings <= set(plugin_data.session_start_info.hparams)


def test_csv_of_a_resumed_run_continues_after_half_a_line_and_gets_new_columns(tmp_path: Path) -> None:
    for name, step in (("loss", 1), ("loss", 2), ("acc", 3)):
        logger = named_loggers.made("csv", tmp_path, None)
        logger.log_metrics({name: step / 2}, step=step)
        logger.save()
        with open(tmp_path / "logs/csv/metrics.csv", "a") as file:
            file.write("0.25,1")  # killed
    named_loggers.made("csv", tmp_path, None).log_hyperparams({"lr": 1})
    with open(tmp_path / "logs/csv/metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"acc": "", "loss": "0.5", "step": "1"},
        {"acc": "", "loss": "1.0", "step": "2"},
        {"acc": "1.5", "loss": "", "step": "3"},
    ]
    (tmp_path / "elsewhere").write_text("a,b\n1,2\n")
    (tmp_path / "logs/csv/metrics.csv").unlink()
    (tmp_path / "logs/csv/metrics.csv").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="link"):
        named_loggers.made("csv", tmp_path, None).log_metrics({"loss": 1.0}, step=1)
    assert (tmp_path / "elsewhere").read_text() == "a,b\n1,2\n"


def test_logger_with_missing_package_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], backbone_folder: Folder
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"tensorboard is not installed.*continual-petl\[tensorboard\]"):
        Loggers(["tensorboard"])
    monkeypatch.undo()
    (tmp_path / "tasks.yaml").write_text(dump_stream(tasks_of(backbone_folder(), "one").spec))
    words = ["run", str(tmp_path / "tasks.yaml"), "--run-dir", str(tmp_path / "run")]
    assert main([*words, "--log-banks"]) == 2
    assert "only W&B stores banks as artifacts" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a home folder without a W&B login."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_without_an_account_wandb_stays_on_disk_and_says_so(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert named_loggers.goes_online() is False
    (line,) = Loggers(["wandb"]).notices()
    assert "no account was found, so the run is kept on disk" in line
    assert "\n" not in line
    (nobody / ".netrc").write_text("machine example.org login x password y\n")
    assert not named_loggers.has_account()
    (nobody / ".netrc").write_text("machine api.wandb.ai login user password " + "0" * 40 + "\n")
    assert named_loggers.goes_online() is True
    assert Loggers(["wandb"]).notices() == Loggers(["csv"]).notices() == []
    (nobody / ".netrc").write_text("machine own.example.org login user password " + "0" * 40 + "\n")
    assert not named_loggers.has_account()
    assert named_loggers.has_account("https://own.example.org/x")
    monkeypatch.setenv("NETRC", str(nobody / "nothing"))
    assert not named_loggers.has_account("https://own.example.org/x")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert named_loggers.goes_online() is True
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert named_loggers.goes_online() is None
    assert Loggers(["wandb"]).notices() == []
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert "WANDB_MODE is set to 'disabled', so nothing is logged to W&B" in Loggers(["wandb"]).notices()[0]


class FakeRun:
    """A fake W&B run: it drops points before its current step, as W&B does."""

    def __init__(self) -> None:
        self.id, self.step = "fake", 0
        self.rows: list[tuple[int, dict[str, Any]]] = []
        self.artifacts: list[Any] = []
        self.told: dict[str, Any] = {}
        self.config = SimpleNamespace(update=lambda values, **_: self.told.update(values))

    def log(self, values: dict[str, Any], step: int) -> None:
        assert step >= self.step, "W&B would drop this point"
        self.step = step
        self.rows.append((step, values))

    def log_artifact(self, artifact: Any) -> None:
        self.artifacts.append(artifact)


@pytest.mark.slow
def test_wandb_gets_figures_tables_and_banks_with_their_origin(backbone_folder: Folder, tmp_path: Path) -> None:
    import wandb

    run = FakeRun()
    made = [task("one", num_rows=16), task("two", num_rows=16, bank={"start_from": "one"})]
    callbacks = [Loggers([WandbLogger(experiment=cast(Any, run))], log_banks=True)]
    learned = learn(stream(backbone_folder(), made, training={"epochs": 1}), tmp_path / "run", callbacks=callbacks)
    assert all(step == values["trainer/global_step"] for step, values in run.rows)
    facts = read_facts(learned.store.folder)
    newest = {name: value for _, values in run.rows for name, value in values.items()}
    shown = [figure.name for part in sections(facts) for figure in part.figures]
    assert {name for name in newest if name.startswith("figures/")} == {f"figures/{name}" for name in shown}
    assert all(isinstance(newest[f"figures/{name}"], wandb.Plotly) for name in shown)
    for name in ("curve", "answers"):
        assert [step for step, values in run.rows if f"newest task/{name}" in values] == [2, 4]
    table = newest["tables/R"]
    assert table.columns == ["after", "task", "score", "metric", "split", "status"]
    R = learned.results.R
    assert [row[2] for row in table.data] == [float(R[0, 0]), float(R[1, 0]), float(R[1, 1])]
    assert [row[0] for row in newest["tables/growth"].data] == ["one", "two"]
    first, second_bank = run.artifacts
    assert (first.name.split(":")[0], first.type) == ("bank-one", "bank")
    assert first.metadata["backbone digest"] == learned.store.pinned().digest  # type: ignore[union-attr]
    assert len(first.metadata["stream digest"]) == 64
    assert first.metadata["began as"] is None
    certificate = learned.store.certificate("one")
    assert second_bank.metadata["began as"] == {"task": "one", "digest": certificate.digest}
    assert "a copy of bank-one" in second_bank.description
    assert {"bank.safetensors", "bank.json"} <= set(second_bank.manifest.entries)
    assert run.told["backbone digest"] == first.metadata["backbone digest"]
    assert "w10" not in json.dumps(run.told), "no text of the data is sent"
    assert len(tables(facts)["R"]) == 3


def test_resumed_run_keeps_its_wandb_id_and_axis(tmp_path: Path) -> None:
    made: list[str | None] = []

    def make(run_id: str | None) -> WandbLogger:
        made.append(run_id)
        return WandbLogger(experiment=cast(Any, FakeRun()))

    for _ in range(2):
        sink = Sink("wandb", make, Axes(tmp_path / "axes.json"), owned=True)
        sink.begin("task", anew=True)
        sink.points([SimpleNamespace(step=3, loss=0.5)], [], {})  # type: ignore[list-item]
    assert made == [None, "fake"]
    assert [step for step, _ in cast(Any, sink.logger).experiment.rows] == [6], (
        "the second fit started over, and its points follow those of the first"
    )


@pytest.mark.parametrize("fails", [False, True])
def test_wandb_run_ends_with_the_run_even_after_a_failure(tmp_path: Path, fails: bool) -> None:
    ended = []

    class Run(FakeRun):
        def log(self, values: dict[str, Any], step: int) -> None:
            if fails:
                raise OSError(28, "No space left on device")

        def finish(self, exit_code: int) -> None:
            ended.append(exit_code)

    def make(run_id: str | None) -> WandbLogger:
        return WandbLogger(experiment=cast(Any, Run()), save_dir=tmp_path)

    sink = Sink("wandb", make, Axes(tmp_path / "axes.json"), owned=True)
    sink.guarded(lambda: sink.log({"x": 1.0}))
    sink.end(well=True)
    assert ended == [int(fails)]


def test_open_wandb_run_of_the_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wandb.run", FakeRun())
    with pytest.raises(InputError, match=r"a W&B run is open in this process. End it .*, or log to it"):
        named_loggers.made("wandb", tmp_path, None)


def _records(content: bytes) -> Iterator[Any]:
    """Yield the records of a W&B file: 32 KiB blocks of pieces, each preceded by a checksum, a length and a kind."""
    made = import_module("wandb.proto.wandb_internal_pb2")
    place, whole, block = 7, b"", 2**15
    while place + 7 <= len(content):
        if block - place % block < 7:
            place += block - place % block
            continue
        _, size, kind = struct.unpack("<IHB", content[place : place + 7])
        if place + 7 + size > len(content):
            return  # the last piece is still being written
        whole += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # the only or last piece of a record
            record = made.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def _ended(file: Path) -> list[Any]:
    """Wait for the last record: W&B writes the file in its own process, which may finish after the run."""
    for _ in range(300):
        records = list(_records(file.read_bytes()))
        if any(record.HasField("exit") for record in records):
            return records
        time.sleep(0.1)
    raise AssertionError(f"{file.name} has {len(records)} records, but no exit record")


@pytest.mark.slow
def test_offline_wandb_run_can_be_read(backbone_folder: Folder, nobody: Path) -> None:
    folder = nobody / "run"
    for names in (("one",), ("one", "two")):
        tasks = tasks_of(backbone_folder(), *names, epochs=1)
        learn(tasks, folder, callbacks=[Loggers(["wandb"], log_banks=True)])
    files = sorted((folder / "logs" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    ids, steps, names_logged, artifacts = set(), [], set(), []
    for record in (record for file in files for record in _ended(file)):
        if record.HasField("run"):
            ids.add(record.run.run_id)
        if record.HasField("history"):
            steps.append(record.history.step.num)
            names_logged |= {item.key or item.nested_key[0] for item in record.history.item}
        if record.HasField("artifact") and record.artifact.type == "bank":
            artifacts.append(record.artifact.name)
    assert len(ids) == 1
    assert steps == sorted(steps)
    assert steps[-1] == 4, steps
    assert {"train/loss", "val/accuracy", "run/acc", "tables/R", "figures/matrix"} <= names_logged
    assert set(artifacts) == {"bank-one", "bank-two"}


def test_a_store_that_cannot_be_read_does_not_stop_learning(tmp_path: Path) -> None:
    class Damaged:
        folder = tmp_path

        def pinned(self) -> Any:
            raise OSError("backbone.json is damaged")

    failures: list[str] = []

    class Guarding:
        logger = SimpleNamespace(log_hyperparams=print)

        def guarded(self, write: Callable[[], object]) -> None:
            try:
                write()
            except OSError as error:
                failures.append(str(error))

    WandbBoard(cast(Any, Damaged()), cast(Any, Guarding()), log_banks=False).begin()
    assert failures == ["backbone.json is damaged"]
