"""Every command, end to end in this process, on a tiny backbone and typical files."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from continual_petl.callbacks import Progress
from continual_petl.cli.main import main
from tests.streams_in_code import TRAINING, write_rows

Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a working directory, and a copy of its content after a run: data, stream.yaml and run."""
    place = tmp_path_factory.mktemp("user") / "work"
    write_rows(place / "data" / "single", "single")
    write_rows(place / "data" / "pair", "pair", pairs=True)
    spec: dict[str, Any] = {
        "name": "files",
        "seed": 1,
        "backbone": {"name": str(backbone_folder()), "pooling": "mean"},
        "bank": {"preset": "houlsby", "bottleneck": 4},
        "training": TRAINING,
        "tasks": [
            {"name": "single", "kind": "classification", "data": "data/single"},
            {"name": "pair", "kind": "classification", "data": "data/pair", "columns": {"text_pair": "text_pair"}},
        ],
    }
    (place / "stream.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    assert main(["run", str(place / "stream.yaml"), "--run-dir", str(place / "run"), "--quiet"]) == 0
    return place, place.rename(place.with_name("kept"))


@pytest.fixture
def tmp_path(learned: tuple[Path, Path]) -> Iterator[Path]:
    """Return the folder in which the run was learned, since a run records the paths of its data; it is empty at first."""
    place, _ = learned
    place.mkdir()
    yield place
    shutil.rmtree(place)


@pytest.fixture
def stream_file(learned: tuple[Path, Path], tmp_path: Path) -> Path:
    shutil.copytree(learned[1] / "data", tmp_path / "data")
    return Path(shutil.copy(learned[1] / "stream.yaml", tmp_path))


@pytest.fixture
def run_dir(learned: tuple[Path, Path], stream_file: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(learned[1] / "run", tmp_path / "run"))


def test_run_shows_matrix_scores_costs_and_verdict(
    stream_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(stream_file), "--run-dir", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr()
    for fragment in ("Result matrix R", "ACC", "BWT", "forgetting       0", "2 of 2 tasks unchanged", "bit for bit"):
        assert fragment in shown.out
    for fragment in ("parameters added", "of backbone", "bytes of bank", "time", "%"):
        assert fragment in shown.out
    for fragment in ("task 1 of 2: single", "epoch 2 of 2: validation accuracy", "learned: test accuracy"):
        assert fragment in shown.err


def test_second_run_learns_nothing_and_prints_valid_json(run_dir: Path, stream_file: Path, capsys: Any) -> None:
    assert main(["run", str(stream_file), "--run-dir", str(run_dir), "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert "task 1" not in shown.err
    assert found["results"]["forgetting"] == 0
    assert found["results"]["status"] == [["measured", "not measured"], ["measured", "measured"]]
    assert [row["task"] for row in found["growth"]] == ["single", "pair"]
    assert all(check["ok"] for check in found["checks"])


@pytest.mark.slow
def test_overrides_are_applied_to_the_stream(stream_file: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = [
        "--training.epochs",
        "1",
        "--tasks.pair.bank=lora",
        "--tasks.1.training.learning_rate",
        "1e-3",
        "--quiet",
    ]
    assert main(["run", str(stream_file), "--run-dir", str(folder), *options]) == 0
    certificate = json.loads((folder / "banks" / "pair" / "bank.json").read_text())
    assert certificate["training"]["epochs"] == 1
    assert certificate["training"]["learning_rate"] == 1e-3
    assert [row["form"] for row in certificate["bank"]["modifications"]] == ["lowrank", "lowrank"]


def test_dry_run_resolves_everything_without_writing(stream_file: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["run", str(stream_file), "--run-dir", str(tmp_path / "run"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    for fragment in ("single", "pair", "train 40", "classification, accuracy", "10"):
        assert fragment in shown
    assert main(["run", str(stream_file), "--run-dir", str(tmp_path / "run"), "--dry-run", "--json"]) == 0
    single, _ = json.loads(capsys.readouterr().out)
    # 4 adapters with 2 x 4 x 16 + 4 + 16 parameters, 5 LayerNorms with 2 x 16, a head with 2 x 16 + 2.
    assert (single["modifications"], single["own"], single["head"]) == (592, 160, 34)
    assert single["num_steps"] == 10
    assert single["labels"] == ["no", "yes"]
    assert not (tmp_path / "run").exists()


def test_dry_run_does_not_need_data_of_learned_tasks(
    stream_file: Path, run_dir: Path, tmp_path: Path, capsys: Any
) -> None:
    shutil.rmtree(tmp_path / "data" / "single")
    assert main(["run", str(stream_file), "--run-dir", str(run_dir), "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "task 'single' is already learned and needs no data; its settings in the stream cannot be used: " in told
    assert "there is no such file or folder" in told
    assert main(["run", str(stream_file), "--run-dir", str(run_dir), "--dry-run", "--json"]) == 0
    single, pair = json.loads(capsys.readouterr().out)
    assert (single["modifications"], single["splits"], single["num_steps"]) == (592, {}, 0)
    assert set(pair["splits"]) == {"train", "validation", "test"}
    assert main(["run", str(stream_file), "--run-dir", str(tmp_path / "new"), "--dry-run"]) == 2


def test_learn_adds_a_task_without_the_old_data(run_dir: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.rmtree(tmp_path / "data")
    write_rows(tmp_path / "new" / "rows", "later")
    task = {"name": "later", "kind": "classification", "data": "rows"}
    (tmp_path / "new" / "task.yaml").write_text(yaml.safe_dump(task))
    before = {file: file.read_bytes() for file in run_dir.rglob("*") if file.is_file()}
    assert main(["learn", str(run_dir), str(tmp_path / "new" / "task.yaml"), "--dry-run", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    assert (plan["task"], plan["learned"], set(plan["splits"])) == ("later", False, {"train", "validation", "test"})
    assert {file: file.read_bytes() for file in run_dir.rglob("*") if file.is_file()} == before
    assert main(["learn", str(run_dir), str(tmp_path / "new" / "task.yaml"), "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert results["tasks"] == ["single", "pair", "later"]
    assert results["status"][2] == ["certified", "certified", "measured"]
    assert results["R"][2][:2] == [results["R"][0][0], results["R"][1][1]]
    assert main(["learn", str(run_dir), str(tmp_path / "new" / "task.yaml")]) == 0
    assert f"nothing to learn: {run_dir} already has task 'later'; --replace learns it" in capsys.readouterr().out
    other = task | {"bank": "lora"}
    (tmp_path / "new" / "task.yaml").write_text(yaml.safe_dump(other))
    assert main(["learn", str(run_dir), str(tmp_path / "new" / "task.yaml")]) == 2
    assert "already has a task 'later', learned with other settings (bank); a learned task" in capsys.readouterr().err


@pytest.mark.slow
def test_learning_a_task_again_names_it_and_its_changed_settings(run_dir: Path, tmp_path: Path, capsys: Any) -> None:
    write_rows(tmp_path / "rows", "later")
    task = {"name": "later", "kind": "classification", "data": "rows", "training": {"epochs": 1}}
    learn = ["learn", str(run_dir), str(tmp_path / "task.yaml"), "--quiet"]
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
    assert main(learn) == 0
    # The stream of the run gets the new settings, but no task is learned with them.
    changed = ["--tasks.later.training.epochs", "7"]
    assert main(["run", str(run_dir / "stream.yaml"), "--run-dir", str(run_dir), *changed, "--quiet"]) == 0
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task | {"training": {"epochs": 7}}))
    capsys.readouterr()
    assert main(learn) == 0
    says = f"nothing to learn: {run_dir} already has task 'later', learned with other settings (training.epochs); "
    assert f"{says}--replace learns it again\n" in capsys.readouterr().out
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task | {"name": "single", "data": "data/single"}))
    assert main(learn) == 2
    assert "already has a task 'single', learned with other settings (training); a" in capsys.readouterr().err


@pytest.mark.slow
def test_interrupted_task_can_be_learned_with_changed_settings(run_dir: Path, tmp_path: Path, capsys: Any) -> None:
    write_rows(tmp_path / "rows", "later")
    file = tmp_path / "task.yaml"

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    task = {"name": "later", "kind": "classification", "data": "rows"}
    file.write_text(yaml.safe_dump(task))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "on_validation_end", stop)
        assert main(["learn", str(run_dir), str(file)]) == 130
    file.write_text(yaml.safe_dump(task | {"training": {"epochs": 1}}))
    assert main(["learn", str(run_dir), str(file)]) == 0
    assert "3 of 3 tasks unchanged" in capsys.readouterr().out


@pytest.mark.slow
def test_progress_bars_are_not_on_standard_output(
    stream_file: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is how ``--json > result.json`` runs in a terminal."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["run", str(stream_file), "--run-dir", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["forgetting"] == 0


def test_verify_passes_and_then_names_the_changed_file(run_dir: Path, capsys: Any) -> None:
    assert main(["verify", str(run_dir), "--data", "--json"]) == 0
    assert [check["ok"] for check in json.loads(capsys.readouterr().out)] == [True, True]
    file = run_dir / "banks" / "pair" / "bank.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert main(["verify", str(run_dir)]) == 1
    shown = capsys.readouterr().out
    assert "task 'pair'" in shown
    assert "tensor" in shown
    assert main(["verify", str(run_dir), "--task", "single"]) == 0
    assert main(["verify", str(run_dir), "--task", "nope"]) == 2
    assert "learned tasks: single, pair" in capsys.readouterr().err


def test_predict_from_arguments_standard_input_and_files(
    run_dir: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["predict", str(run_dir), "--task", "single", "w0 w20", "w1 w30"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] in {"no", "yes"} for line in lines] == [True, True]
    monkeypatch.setattr("sys.stdin", io.StringIO("w0 w20\tw30\n"))
    assert main(["predict", str(run_dir), "--task", "pair", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["text_pair"] == "w30"
    assert sum(record["probabilities"].values()) == pytest.approx(1)
    (tmp_path / "rows.csv").write_text('text,other\n"w0, w20",1\nw1,2\n')
    output = tmp_path / "answers.jsonl"
    command = ["predict", str(run_dir), "--task", "single", "--input", str(tmp_path / "rows.csv")]
    assert main([*command, "--output", str(output)]) == 0
    assert [json.loads(line)["text"] for line in output.read_text().splitlines()] == ["w0, w20", "w1"]
    assert main([*command, "--output", str(tmp_path / "answers.csv")]) == 0
    assert (tmp_path / "answers.csv").read_text().splitlines()[0] == "text,other,answer,probabilities"


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        (["--task", "nope", "x"], ["'nope'", "learned tasks: single, pair"]),
        (["--task", "pair", "only one"], ["learned on pairs", "tab"]),
        (["--task", "single", "--input", "rows.xml"], ["rows.xml", "ends in '.xml'; allowed: .jsonl"]),
    ],
)
def test_predict_reports_invalid_input(run_dir: Path, options: list[str], fragments: list[str], capsys: Any) -> None:
    assert main(["predict", str(run_dir), *options]) == 2
    shown = capsys.readouterr().err
    assert all(fragment in shown for fragment in fragments)
    assert "Traceback" not in shown


def test_report_needs_only_the_run_folder(run_dir: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(run_dir, tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "data")
    assert main(["report", str(tmp_path / "elsewhere")]) == 0
    assert "Result matrix R" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "elsewhere"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["results"]["tasks"] == ["single", "pair"]
    # R has one score per task; ``scores`` has all of them, with the number of rows.
    single = report["scores"]["single"]["test"]
    assert {"accuracy", "macro_f1"} <= set(single["scores"])
    assert single["scores"]["accuracy"] == report["results"]["R"][0][0]
    assert single["num_examples"] > 0


def test_schema_prints_the_stream_schema(capsys: Any) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert {"name", "tasks", "backbone", "bank", "training"} <= set(schema["properties"])


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: Any) -> None:
    for command in (["verify"], ["report"], ["predict", "--task", "x"]):
        assert main([command[0], str(tmp_path), *command[1:]]) == 2
        assert "no run here" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["list", "LONG"],
        ["run", "LONG.yaml"],
        ["run", "quickstart", "--dry-run", "--run-dir", "LONG"],
        ["init", "LONG.csv"],
    ],
)
def test_invalid_file_name_is_reported(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word.replace("LONG", "z" * 300) for word in command]) == 2
    told = capsys.readouterr().err
    assert "zzzz" in told
    assert "Traceback" not in told


def test_option_ignored_by_some_tasks_is_reported(
    stream_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["run", str(stream_file), "--run-dir", str(tmp_path / "run"), "--dry-run", "--tasks.pair.bank", "lora"]
    assert main([*argv, "--training.epochs", "1"]) == 0
    assert "does not apply to" not in capsys.readouterr().err
    assert main([*argv, "--bank.bottleneck", "2"]) == 0
    told = "--bank.bottleneck does not apply to pair: a task's own setting takes precedence; "
    told += "use --tasks.pair.bank.bottleneck for one task, --tasks.*.bank.bottleneck for all"
    assert capsys.readouterr().err == f"continual-petl: {told}\n"


def test_stream_file_is_refused_as_a_task_file(
    stream_file: Path, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["learn", str(run_dir), str(stream_file)]) == 2
    told = capsys.readouterr().err
    assert "this is the file of a stream, but one task is expected here; `continual-petl run " in told
    assert len(told.splitlines()) == 2
