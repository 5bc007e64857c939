"""Commands that do not need the model, or fail before they need it, do not import heavy libraries."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from continual_petl.engine.checks.mistakes import Problems, with_lines
from continual_petl.errors import StreamFileError
from continual_petl.streams.stream_file.key_locations import KeyLocations
from tests.cli.bench import Bench, csv_lines, json_lines
from tests.cli.light import LightProcesses

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
    "optuna",
}
NO_RUN = "no run here"
NOT_LEARNED = "is not learned in"
REFUSED = {
    "report without a run": ("report FOLDER/data", NO_RUN),
    "report --json without a run": ("report FOLDER/data --json", NO_RUN),
    "forget without a run": ("forget FOLDER/data single", NO_RUN),
    "forget an unlearned task": ("forget FOLDER/run singel", NOT_LEARNED),
    "predict without a run": ("predict FOLDER/data --task single w1", NO_RUN),
    "predict with an unlearned task": ("predict FOLDER/run --task singel w1", NOT_LEARNED),
    "predict without a task": ("predict FOLDER/run w1", "so rows cannot be routed to a task: name the task"),
    "predict rows of a missing file": (
        "predict FOLDER/run --task single --input FOLDER/none.csv",
        "there is no such file",
    ),
    "predict rows without the column": (
        "predict FOLDER/run --task single --input FOLDER/rows.csv",
        "reads the column 'text'",
    ),
    "init from a missing file": ("init FOLDER/none.csv", "there is no such file"),
    "init onto an existing file": ("init FOLDER/data/other --output FOLDER/stream.yaml", "already exists"),
    "learn without a run": ("learn FOLDER/data FOLDER/task.yaml", NO_RUN),
    "learn from a missing file": ("learn FOLDER/run FOLDER/none.yaml", "there is no such file"),
    "learn from rows": (
        "learn FOLDER/run FOLDER/data/other/train.jsonl",
        "this is a file with rows, but the file of one task",
    ),
    "learn with a misspelt key": ("learn FOLDER/run FOLDER/task.yaml", "task.yaml:2: key kind"),
    "learn a task with a used name": ("learn FOLDER/run FOLDER/again.yaml", "again.yaml:1: key name: the run"),
    "verify without a run": ("verify FOLDER/data", NO_RUN),
    "verify an unlearned task": ("verify FOLDER/run --task singel", NOT_LEARNED),
    "import a missing adapter": ("import FOLDER/run FOLDER/none --task new", "there is no such folder"),
    "ablate without a run": ("ablate FOLDER/data", NO_RUN),
    "ablate an unlearned task": ("ablate FOLDER/run --task singel", NOT_LEARNED),
    "reevaluate without a run": ("reevaluate FOLDER/data", NO_RUN),
    "sweep a missing stream": ("sweep FOLDER/none.yaml FOLDER/none.yaml", "there is no such file"),
    "sweep with a missing sweep file": ("sweep FOLDER/stream.yaml FOLDER/none.yaml", "there is no such file"),
    "sweep an unknown task": ("sweep FOLDER/stream.yaml FOLDER/none.yaml --task othr", "othr"),
}


Light = Callable[[Bench, list[str]], tuple[int, str, str]]


@pytest.fixture
def light(light_processes: LightProcesses) -> Light:
    """Return a function that runs a command in a new process and returns exit code, standard error and heavy imports."""

    def run(bench: Bench, words: list[str]) -> tuple[int, str, str]:
        done = light_processes.run([word.replace("FOLDER", str(bench.folder)) for word in words], bench.folder)
        return done.code, done.err, " ".join(sorted(HEAVY & done.modules))

    return run


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_commands_fail_without_importing_torch(bench: Bench, light: Light, case: str) -> None:
    words, says = REFUSED[case]
    (bench.folder / "task.yaml").write_text("name: new\nkind: clasification\ndata: data/other\n")
    (bench.folder / "again.yaml").write_text("name: single\nkind: classification\ndata: data/other\n")
    (bench.folder / "rows.csv").write_text("txt\nw1\n")
    code, said, imported = light(bench, words.split())
    assert (code, imported) == (2, "")
    assert says in said


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_misspelt_key_and_invalid_rows_are_reported_without_importing_datasets(
    bench: Bench, light: Light, suffix: str
) -> None:
    folder = bench.folder / "data" / "other"
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    for file in folder.iterdir():
        file.unlink()
    match suffix:
        case "jsonl":
            (folder / "train.jsonl").write_text(json_lines(rows))
        case "csv":
            (folder / "train.csv").write_text(csv_lines(*(f"{row['text']},{row['label']}" for row in rows)))
        case _:
            pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    text = bench.stream.replace("training:", "trainign:") + '    labels: ["no", "maybe"]\n'
    (bench.folder / "stream.yaml").write_text(text)
    code, said, imported = light(bench, ["run", "FOLDER/stream.yaml"])
    assert (code, imported) == (2, "numpy pyarrow" if suffix == "parquet" else "numpy")
    assert [line.split(": ")[1] for line in said.splitlines()[1:]] == ["key trainign", "key tasks.1.labels"]
    assert "'yes'" in said


def test_misspelt_key_without_rows_is_reported_without_importing_numpy(bench: Bench, light: Light) -> None:
    text = bench.stream.replace("training:", "trainign:").replace("data/single", "{path: some-user/some-data}")
    (bench.folder / "stream.yaml").write_text(text.replace("data/other", "https://localhost:1/b.csv"))
    code, said, imported = light(bench, ["run", "FOLDER/stream.yaml"])
    assert (code, imported) == (2, "")
    assert "key trainign: unknown key" in said


def test_misspelt_key_and_unsupported_length_are_reported_without_importing_torch(bench: Bench, light: Light) -> None:
    text = bench.stream.replace("training:", "trainign:").replace("pooling: mean", "max_length: LENGTH")
    for length in (64, 65):
        (bench.folder / "stream.yaml").write_text(text.replace("LENGTH", str(length)))
        code, said, imported = light(bench, ["run", "FOLDER/stream.yaml"])
        assert (code, imported) == (2, "numpy")
        assert "key trainign: unknown key" in said
        assert ("got 65, but the model accepts only 64 tokens" in said) is (length == 65)


@pytest.mark.slow
def test_length_is_checked_even_if_the_configuration_omits_the_limit(
    bench: Bench, backbone_folder: Callable[[], Path], light: Light
) -> None:
    config = json.loads((backbone_folder() / "config.json").read_text())
    del config["max_position_embeddings"]  # `transformers` then assumes 512
    (bench.folder / "shorter").mkdir()
    (bench.folder / "shorter" / "config.json").write_text(json.dumps(config))
    text = bench.stream.replace("training:", "trainign:").replace("pooling: mean", "max_length: 513")
    text = text.replace(str(backbone_folder()), str(bench.folder / "shorter"))
    (bench.folder / "stream.yaml").write_text(text)
    code, said, _ = light(bench, ["run", "FOLDER/stream.yaml"])
    assert code == 2
    assert "got 513, but the model accepts only 512 tokens" in said


def test_forget_does_not_import_torch(bench: Bench, light: Light) -> None:
    assert light(bench, ["forget", "FOLDER/run", "single", "--yes"]) == (0, "", "")
    assert not (bench.folder / "run" / "banks" / "single").exists()


def test_digests_are_verified_without_importing_torch(bench: Bench, light: Light) -> None:
    assert light(bench, ["verify", "FOLDER/run", "--digests"]) == (0, "", "")
    code, said, imported = light(bench, ["verify", "FOLDER/run", "--digests", "--jobs", "0"])
    assert (code, imported) == (2, "")
    assert "jobs: got 0; the number of processes must be at least 1" in said
    bank = bench.folder / "run" / "banks" / "single" / "bank.safetensors"
    content = bank.read_bytes()
    bank.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert light(bench, ["verify", "FOLDER/run", "--digests"]) == (1, "", "")


@pytest.mark.parametrize("words", [["--json"], ["--output", "FOLDER/report"]])
def test_report_imports_neither_torch_nor_plotly(bench: Bench, light: Light, words: list[str]) -> None:
    assert light(bench, ["report", "FOLDER/run", *words]) == (0, "", "numpy")


@pytest.mark.slow
def test_report_finds_a_changed_bank_without_importing_torch(bench: Bench, light: Light) -> None:
    bank = bench.folder / "run" / "banks" / "single" / "bank.safetensors"
    content = bytearray(bank.read_bytes())
    content[-1] ^= 1
    bank.write_bytes(content)
    assert light(bench, ["report", "FOLDER/run", "--output", "FOLDER/report"]) == (1, "", "numpy")
    assert "the certified digest is" in (bench.folder / "report" / "index.html").read_text()


@pytest.mark.parametrize("preset", ["houlsby, bottleneck: 4", "lora, rank: 4", "probe"])
@pytest.mark.parametrize("command", ["run", "learn"])
def test_missing_files_are_reported_together_before_loading_the_model(
    bench: Bench, light: Light, command: str, preset: str
) -> None:
    if command == "run":
        (bench.folder / "data" / "other" / "train.jsonl").rename(bench.folder / "elsewhere.jsonl")
        text = bench.stream.replace("data/other", "data/gone").replace(
            "data/single", "{path: json, data_files: gone.jsonl}"
        )
        (bench.folder / "stream.yaml").write_text(text.replace("houlsby, bottleneck: 4", preset))
        words, lines = ["run", "FOLDER/stream.yaml", "--run-dir", "FOLDER/new"], [7, 10]
    else:
        task = f"name: new\nkind: classification\nbank: {{preset: {preset}}}\ndata: nowhere\n"
        (bench.folder / "task.yaml").write_text(task)
        words, lines = ["learn", "FOLDER/run", "FOLDER/task.yaml"], [4]
    for more in ([], ["--dry-run"]):
        code, said, imported = light(bench, [*words, *more])
        assert (code, imported) == (2, "numpy"), said
        assert [int(line) for line in re.findall(r"yaml:(\d+): key (?:tasks\.\d\.)?data", said)] == lines
    assert not (bench.folder / "new").exists()


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_missing_backbone_is_reported_with_mistakes_in_the_data(
    bench: Bench, backbone_folder: Callable[[], Path], more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = bench.stream.replace(str(backbone_folder()), "minlm")
    words = ["run", "FOLDER/stream.yaml", "--run-dir", "FOLDER/new", *more]
    (bench.folder / "stream.yaml").write_text(text)
    assert bench.main(*words) == 2
    said = capsys.readouterr().err
    assert "backbone 'minlm' cannot be loaded (did you mean 'minilm'?)" in said
    (bench.folder / "stream.yaml").write_text(text + '    labels: ["no", "maybe"]\n')
    assert bench.main(*words) == 2
    said = capsys.readouterr().err
    assert re.findall(r"yaml:\d+: key ([\w.]+)", said) == ["backbone.name", "tasks.1.labels"]
    assert not (bench.folder / "new").exists()


def test_missing_backbone_error_names_the_backbone_of_the_run(
    bench: Bench, backbone_folder: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (bench.folder / "stream.yaml").write_text(bench.stream.replace(str(backbone_folder()), "minlm"))
    assert bench.main("run", "FOLDER/stream.yaml", "--run-dir", "FOLDER/run") == 2
    said = capsys.readouterr().err
    assert said.rstrip().endswith(f"The run was learned on backbone {str(backbone_folder())!r}.")
    assert "is missing" not in said


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_missing_backbone_is_reported_with_its_line_if_nothing_is_left_to_learn(
    bench: Bench, backbone_folder: Callable[[], Path], more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    learned = bench.stream[: bench.stream.index("  - name: other")]
    words = ["run", "FOLDER/stream.yaml", "--run-dir", "FOLDER/run"]
    (bench.folder / "stream.yaml").write_text(learned)
    assert bench.main(*words, *more) == 0
    shown = capsys.readouterr()
    assert ("nothing to learn" in shown.out + shown.err) is (not more)
    (bench.folder / "stream.yaml").write_text(learned.replace(str(backbone_folder()), "minlm"))
    assert bench.main(*words, *more) == 2
    shown = capsys.readouterr()
    assert "stream.yaml:3: key backbone.name: backbone 'minlm' cannot be loaded" in shown.err
    assert "nothing to learn" not in shown.out + shown.err


WRONG_TASK = """\
name: new
kind: classification
data: data/other
columns: {text: txt}
bank: {preset: houlsby, bottleneck: 17}
"""


@pytest.mark.parametrize("words", [[], ["--dry-run"]])
def test_mistakes_in_a_task_file_are_reported_with_lines(
    bench: Bench, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = bench.folder / "task.yaml"
    file.write_text(WRONG_TASK)
    capsys.readouterr()
    assert bench.main("learn", "FOLDER/run", "FOLDER/task.yaml", *words) == 2
    first, *told = capsys.readouterr().err.splitlines()
    assert first == "continual-petl: the task cannot be used:"
    assert [line.partition(": task")[0] for line in told] == [f"{file}:4: key columns.text", f"{file}:5: key bank"]
    file.write_text(WRONG_TASK.replace("houlsby, bottleneck: 17", "lora"))
    assert bench.main("learn", "FOLDER/run", "FOLDER/task.yaml", "--data", "FOLDER/none", *words) == 2
    (told_once,) = capsys.readouterr().err.splitlines()
    assert told_once.startswith("continual-petl: --data: task 'new', data ")


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--dry-run"]])
@pytest.mark.parametrize("wrong", ["bank: houlsbi", "training: {epochs: none}", "trainign: {epochs: 1}"])
def test_data_of_a_task_file_is_checked_despite_a_misspelt_key(
    bench: Bench, light: Light, words: list[str], wrong: str
) -> None:
    text = f"name: new\nkind: classification\n{wrong}\ndata: data/other\ncolumns: {{text: txt}}\nlabels: [no, maybe]\n"
    (bench.folder / "task.yaml").write_text(text)
    code, said, imported = light(bench, ["learn", "FOLDER/run", "FOLDER/task.yaml", *words])
    assert (code, imported) == (2, "numpy")
    first, *told = said.splitlines()
    assert first == "continual-petl: the task cannot be used:"
    assert [int(line.split(":")[1]) for line in told] == [3, 5], said
    assert "key columns.text: task 'new', split train" in told[1]
    (bench.folder / "task.yaml").write_text(text.replace("columns: {text: txt}\n", ""))
    told = light(bench, ["learn", "FOLDER/run", "FOLDER/task.yaml", *words])[1].splitlines()[1:]
    assert [int(line.split(":")[1]) for line in told] == [3, 5]
    assert "key labels: task 'new', split train" in told[1]


def test_data_of_a_task_file_with_a_wrong_kind_is_not_read(bench: Bench, light: Light) -> None:
    (bench.folder / "task.yaml").write_text("name: new\nkind: clasification\ndata: nowhere\n")
    code, said, imported = light(bench, ["learn", "FOLDER/run", "FOLDER/task.yaml"])
    assert (code, len(said.splitlines()), imported) == (2, 2, "")


def test_mistakes_outside_the_task_file_have_no_line() -> None:
    problems = Problems()
    for key in (("backbone", "name"), ("tasks", 1, "data", "path"), ("tasks", 1)):
        problems.found.append((key, f"{key[-1]} is wrong"))
    with pytest.raises(StreamFileError) as raised:
        problems.raise_all()
    found = with_lines(raised.value, KeyLocations("new.yaml", {(): 1, ("data",): 3}), ("tasks", 1))
    assert isinstance(found, StreamFileError)
    assert found.problems == ("new.yaml:3: key data.path: path is wrong", "name is wrong", "new.yaml: 1 is wrong")
