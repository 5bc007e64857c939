"""``list``, ``show`` and ``diff`` read only the run folder and format their output for a terminal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from continual_petl import learn
from continual_petl.cli.main import main
from continual_petl.errors import known_names
from continual_petl.report import task_lines
from continual_petl.report.differences import differences
from continual_petl.report.formatting import megabytes
from continual_petl.report.task_lines import difference_lines, task_facts, task_table
from continual_petl.store import folder_reader
from continual_petl.store.store import Store
from tests.cli.light import LightProcesses
from tests.store.fabricated import Looks, multiply
from tests.streams_in_code import regression_task, stream, task

FEW: dict[str, Any] = {"num_rows": 16, "training": {"epochs": 1}}


@pytest.fixture(scope="module")
def runs(backbone_folder: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two runs that share two tasks: the banks of ``both`` are the same, those of ``apart`` differ."""
    folder = tmp_path_factory.mktemp("compared")
    first, number = task("both", **FEW), regression_task("number", **FEW)
    learn(stream(backbone_folder(), [first, task("apart", **FEW), number]), folder / "one")
    learn(stream(backbone_folder(), [first, task("apart", bank="lora", **FEW)]), folder / "other")
    return folder


def test_list_fits_into_80_columns(runs: Path, capsys: Any) -> None:
    assert main(["list", str(runs / "one")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert [line.split()[0] for line in lines[1:4]] == ["both", "apart", "number"]
    assert "houlsby 4" in lines[1]
    assert lines[-3].startswith("3 tasks, ")
    assert lines[-2].startswith("number: rmse ")
    assert lines[-1].startswith("errors in the unit of the targets")
    assert main(["list", str(runs / "one"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    routing = [(runs / "one" / "banks" / each["task"] / "router.safetensors").stat().st_size for each in found]
    assert [each["routing_bytes"] for each in found] == routing
    assert lines[-3].endswith(f"({megabytes(sum(routing))} of them for routing) on disk")
    assert [(each["task"], each["kind"]) for each in found][2] == ("number", "regression")
    assert found[0]["bank"].startswith("houlsby: bottleneck on attention (4)")
    assert (found[0]["preset"], found[0]["short"]) == ("houlsby", "houlsby 4")


@pytest.mark.slow
def test_list_of_many_tasks_does_not_read_the_stream(runs: Path, tmp_path: Path, capsys: Any) -> None:
    many = multiply(shutil.copytree(runs / "other", tmp_path / "many"), 60)
    (many / "stream.yaml").write_text("never read")
    assert main(["list", str(many)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 60 + 1
    assert main(["show", str(many), "cpy17"]) == 2
    said = capsys.readouterr().err
    assert "learned tasks: copy17, " in said
    assert said.rstrip().endswith("and 40 more")
    assert main(["diff", str(runs / "other"), str(many)]) == 1
    said = capsys.readouterr().out
    assert f"only in {many}: 58: copy2, copy3" in said
    assert "and 38 more" in said


def entries(count: int, name: str = "t{}") -> list[dict[str, Any]]:
    """Return ``count`` entries in the form in which ``list`` shows tasks."""
    return [
        {
            "task": name.format(number),
            "kind": ("classification", "regression")[number % 2],
            "short": "houlsby 4",
            "score": None if number == 3 else number / count,
            "metric": "accuracy",
            "split": ("test", "validation")[number % 2],
            "parameters": 10 * number,
        }
        for number in range(count)
    ]


def lines_of(shown: Any, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(shown)
    return captured.get().splitlines()


@pytest.mark.parametrize(
    ("width", "name"),
    [(80, "t{}"), (80, "[b]{}"), (80, "\u6587{}"), (60, "t{}"), (80, "a-name-that-is-to-be-folded-{}")],
)
def test_list_of_very_many_tasks_has_the_same_format(width: int, name: str) -> None:
    found = entries(task_lines._LAID_OUT + 1, name)
    rows = [task_lines._cells(each) for each in found]
    assert lines_of(task_table(found), width) == lines_of(task_lines._laid_out(rows), width)


@pytest.mark.slow
def test_list_reads_the_ledger_and_each_certificate_once(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    many = multiply(shutil.copytree(runs / "one", tmp_path / "many"), 80)
    store, looks = Store(many), Looks(many, monkeypatch)
    with looks.fresh():
        assert main(["list", str(many)]) == 0
    # Certificates are compared with the ledger byte for byte, but not parsed.
    monkeypatch.setattr(folder_reader, "read_certificate", lambda path: pytest.fail(f"{path} was parsed"))
    assert sorted(looks.opened) == sorted(["ledger.jsonl", *(f"banks/{name}/bank.json" for name in store.tasks)])
    without = capsys.readouterr().out
    assert without.splitlines()[81].startswith("80 tasks, ")
    with looks.fresh():
        assert main(["list", str(many)]) == 0
    assert capsys.readouterr().out == without


HEAVY = {
    "torch",
    "transformers",
    "datasets",
    "lightning",
    "torchmetrics",
    "wandb",
    "numpy",
    "pandas",
    "pyarrow",
    "plotly",
}
ANSWERS_WITHOUT_THE_MODEL = {
    "list": ["RUN"],
    "show": ["RUN"],
    "show one task": ["RUN", "both"],
    "diff": ["RUN", "RUN"],
    "schema": [],
    "streams": [],
}


@pytest.mark.parametrize("command", ANSWERS_WITHOUT_THE_MODEL)
def test_commands_without_a_model_do_not_import_torch(
    runs: Path, light_processes: LightProcesses, tmp_path: Path, command: str
) -> None:
    words = [str(runs / "one") if word == "RUN" else word for word in ANSWERS_WITHOUT_THE_MODEL[command]]
    done = light_processes.run([command.split()[0], *words], tmp_path)
    assert (done.code, done.err, HEAVY & done.modules) == (0, "", set())


@pytest.mark.slow
@pytest.mark.parametrize("command", ["report", "predict", "verify"])
def test_reading_a_run_does_not_import_training_libraries(
    runs: Path, light_processes: LightProcesses, tmp_path: Path, command: str
) -> None:
    more = {"report": ["--output", str(tmp_path)], "predict": ["--task", "both", "a text"], "verify": []}[command]
    unused = {"lightning", "torchmetrics", "wandb", "datasets", "pandas", "pyarrow"}
    if command == "report":
        unused = (unused | {"torch", "transformers"}) - {"pandas"}
    done = light_processes.run([command, str(runs / "one"), *more], tmp_path)
    assert (done.code, done.err, unused & done.modules) == (0, "", set())


def test_show_prints_everything_about_a_task(runs: Path, capsys: Any) -> None:
    assert main(["show", str(runs / "one"), "both"]) == 0
    shown = capsys.readouterr().out
    certificate = json.loads((runs / "one" / "banks" / "both" / "bank.json").read_text())
    for fragment in (
        "classification",
        "2: no, yes",
        "houlsby: bottleneck on attention (4)",
        "1 epoch",
        certificate["digest"],
    ):
        assert fragment in shown
    for fragment in ("by epoch", "accuracy", "mistakes in test", "train ", "entry 0 of the chain", "one both"):
        assert fragment in shown
    assert main(["show", str(runs / "one"), "both", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    sizes = {path.name: path.stat().st_size for path in (runs / "one" / "banks" / "both").iterdir()}
    assert (found["bytes"], found["routing_bytes"]) == (sum(sizes.values()), sizes["router.safetensors"])
    assert f"{found['bytes']:,} bytes, {found['routing_bytes']:,} of them for routing" in shown
    assert found["seconds"]["train"] > 0
    assert found["history"]["task"] == "both"
    assert found["tensors"] == certificate["tensors"]


def test_show_without_a_task_lists_the_tasks(runs: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["list", str(runs / "one")]) == 0
    listed = capsys.readouterr().out
    assert main(["show", str(runs / "one")]) == 0
    assert capsys.readouterr().out == f"{listed}show one of them with: continual-petl show {runs / 'one'} number\n"
    assert main(["show", str(runs / "one"), "--json"]) == 0
    assert [load["task"] for load in json.loads(capsys.readouterr().out)] == ["both", "apart", "number"]
    shutil.copytree(runs / "one", tmp_path / "none", ignore=shutil.ignore_patterns("banks", "chain*", "results*"))
    assert main(["show", str(tmp_path / "none")]) == 0
    assert "no task has been learned yet" in capsys.readouterr().out


def test_folder_of_runs_lists_them(runs: Path, capsys: Any) -> None:
    assert main(["list", str(runs)]) == 2
    assert "no run here, but it contains the runs one, other; give one of them" in capsys.readouterr().err


def test_misspelt_run_name_gets_a_suggestion(runs: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["list", str(runs / "othr")]) == 2
    assert f"(did you mean '{runs / 'other'}'?)" in capsys.readouterr().err
    monkeypatch.chdir(runs)
    (runs / "runs").symlink_to(runs, target_is_directory=True)
    assert main(["list", "uther"]) == 2
    assert "(did you mean 'other'?)" in capsys.readouterr().err
    monkeypatch.chdir(runs.parent)
    (runs.parent / "runs").symlink_to(runs, target_is_directory=True)
    assert main(["list", "uther"]) == 2
    assert "(did you mean 'runs/other'?)" in capsys.readouterr().err


def test_unknown_run_name_gets_no_suggestion(runs: Path, capsys: Any) -> None:
    for wanted in ("zzz", "x\0y", "z" * 300):
        assert main(["list", str(runs / wanted)]) == 2
        assert "did you mean" not in capsys.readouterr().err
    (runs / "one-file").touch()
    assert main(["list", str(runs / "one-fil")]) == 2  # a similarly named file is not a run, so a run is suggested
    assert f"(did you mean '{runs / 'one'}'?)" in capsys.readouterr().err


def test_suggested_commands_can_be_pasted(runs: Path, tmp_path: Path, capsys: Any) -> None:
    folder = shutil.copytree(runs / "one", tmp_path / "my runs")
    assert main(["show", str(folder)]) == 0
    assert f"continual-petl show '{folder}' number\n" in capsys.readouterr().out
    assert main(["show", str(folder), "both"]) == 0
    assert f"continual-petl verify '{folder}' both\n" in capsys.readouterr().out


def test_non_finite_losses_are_shown(runs: Path) -> None:
    store = Store(runs / "one")
    history = store.history("both")
    assert history is not None
    first, last = history.curve.losses[0], history.curve.losses[-1].model_copy(update={"loss": None})
    curve = history.curve.model_copy(update={"losses": (first, last)})
    console = Console(width=200)
    with console.capture() as shown:
        console.print(
            task_facts(store.certificate("both"), history.model_copy(update={"curve": curve}), 1, 0, {}, None)
        )
    assert f"{first.loss:.4f} to not finite in {last.step} steps" in shown.get()


def test_diff_finds_no_difference_with_a_copy(runs: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copytree(runs / "one", tmp_path / "copy")
    assert main(["diff", str(runs / "one"), str(tmp_path / "copy")]) == 0
    assert "3 of 3 shared tasks have the same bank, bit for bit\nthe runs are the same" in capsys.readouterr().out
    assert main(["diff", str(runs / "one"), str(tmp_path / "copy"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same"] is True


def test_diff_summarises_differences(runs: Path, capsys: Any) -> None:
    assert main(["diff", str(runs / "one"), str(runs / "other")]) == 1
    shown = capsys.readouterr().out
    assert f"only in {runs / 'one'}: 1: number" in shown
    assert "apart: a different bank (" in shown
    assert (
        "bank.modifications: bottleneck on attention (4), bottleneck on ffn (4) | lowrank on query (8), lowrank"
        in shown
    )
    assert "both:" not in shown
    assert "1 of 2 shared tasks has the same bank" in shown
    assert max(map(len, shown.splitlines())) < 250
    assert "predictions" not in shown
    assert main(["diff", str(runs / "one"), str(runs / "other"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["backbone"], found["order"], found["only"]) == (True, True, [["number"], []])
    assert found["tasks"]["both"]["same"] is True
    assert found["tasks"]["apart"]["bank"] is False


def test_undefined_scores_are_distinguished_from_missing_values(runs: Path) -> None:
    found = differences(Store(runs / "one"), Store(runs / "other"))
    found["tasks"]["apart"] |= {
        "score": [None, 0.5],
        "specification": {"training.max_tokens": [None, 4096], "parent": ["both", None]},
        "environment": {"cuda": ["12.4", None]},
    }
    lines = difference_lines(found, ("one", "other"))
    assert any(line.endswith(": not defined | 0.5000") for line in lines)
    assert "  training.max_tokens: none | 4096" in lines
    assert "  parent: both | none" in lines
    assert "environment: cuda 12.4 | none" in lines
    assert sum("not defined" in line for line in lines) == 1


def test_non_runs_and_damaged_runs_are_reported(runs: Path, tmp_path: Path, capsys: Any) -> None:
    for command in (["list"], ["show", "both"], ["diff", str(runs / "one")]):
        assert main([command[0], str(tmp_path), *command[1:]]) == 2
        assert "no run here" in capsys.readouterr().err
    shutil.copytree(runs / "one", tmp_path / "damaged")
    (tmp_path / "damaged" / "banks" / "apart" / "bank.json").write_text("{")
    for command in (["list"], ["show", "apart"], ["diff", str(runs / "one")]):
        assert main([command[0], str(tmp_path / "damaged"), *command[1:]]) == 1
        said = capsys.readouterr().err
        assert "apart" in said
        assert "Traceback" not in said


def test_empty_run_is_reported(runs: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copy(runs / "one" / "stream.yaml", tmp_path / "stream.yaml")
    for command in ("list", "verify", "report"):
        assert main([command, str(tmp_path)]) == 0
        said = capsys.readouterr().out
        assert "no task has been learned yet" in said
        assert "runs/NAME" in said
    assert main(["show", str(tmp_path), "x"]) == 2
    assert "learned tasks: none" in capsys.readouterr().err
    assert main(["diff", str(tmp_path), str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1_000, "1 kB"),
        (99_600, "99.6 kB"),
        (999_700, "1 MB"),
        (24_190_000, "24.2 MB"),
    ],
)
def test_sizes_are_formatted(num_bytes: int, words: str) -> None:
    assert megabytes(num_bytes) == words


def test_similar_names_are_listed_first() -> None:
    known = [f"task-{number:03}" for number in range(1000)]
    said = known_names(known, "tsk-777")
    assert said.startswith("task-777, ")
    assert said.endswith(" and 980 more")
    assert len(said) < 400
    assert known_names(["b", "a"], "zzz") == "b, a"
    assert known_names([], "x") == "none"


def test_misspelt_task_gets_a_suggestion(runs: Path, capsys: Any) -> None:
    assert main(["show", str(runs / "one"), "bothh"]) == 2
    assert "(did you mean 'both'?); learned tasks: " in capsys.readouterr().err
