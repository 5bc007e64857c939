"""``init``: typical files become a stream file that runs, and problems are reported."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl.banks.config.presets import RECIPES
from continual_petl.cli.main import main
from continual_petl.exchange.formats import refused_by_bank
from continual_petl.streams.stream_file.yaml_file import load_stream
from tests.cli.light import LightProcesses
from tests.streams_in_code import classification_rows, row_of_kind

Folder = Callable[..., Path]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with a CSV file of questions and one of text pairs with numbers as labels."""
    monkeypatch.chdir(tmp_path)
    for name, rows in (
        ("questions", classification_rows("q", 60)),
        ("pairs", classification_rows("p", 60, pairs=True)),
    ):
        if name == "pairs":
            rows = [row | {"label": len(row["text"]) / 3} for row in rows]
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["id", *rows[0]])
            writer.writeheader()
            writer.writerows({"id": number, **row} for number, row in enumerate(rows))
    return tmp_path


@pytest.mark.slow
def test_two_csv_files_become_a_verified_run(here: Path, backbone_folder: Folder, capsys: Any) -> None:
    (here / "bert").symlink_to(backbone_folder())
    (here / "streams").mkdir()
    argv = ["init", "questions.csv", "pairs.csv", "--backbone", "bert", "--output", "streams/desk.yaml"]
    assert main(argv) == 0
    said = capsys.readouterr().out
    assert "questions.csv: classification, because column label has 2 different values in 60 rows" in said
    assert "next: continual-petl run streams/desk.yaml --dry-run" in said
    text = (here / "streams" / "desk.yaml").read_text()
    for line in ("name: desk", "name: ../bert", "data: ../questions.csv", "# labels: no, yes", "# not read: id"):
        assert line in text
    assert [entry.name for entry in (here / "streams").iterdir()] == ["desk.yaml"]
    options = ["--training.epochs", "1", "--bank", "lora", "--backbone.pooling", "mean", "--quiet"]
    assert main(["run", "streams/desk.yaml", "--run-dir", "run", *options]) == 0
    assert "2 of 2 tasks unchanged" in capsys.readouterr().out
    assert main(["predict", "run", "--task", "questions", "w1 w2"]) == 0


def test_predict_accepts_the_training_file(here: Path, backbone_folder: Folder, capsys: Any) -> None:
    rows = classification_rows("q", 40, pairs=True)
    with (here / "stsb.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sentence1", "sentence2", "score"])
        writer.writerows([row["text"], row["text_pair"], 0.3 * len(row["text"])] for row in rows)
    assert main(["init", "stsb.csv", "--backbone", str(backbone_folder())]) == 0
    options = ["--training.epochs", "1", "--bank", "lora", "--backbone.pooling", "mean", "--quiet"]
    assert main(["run", "stream.yaml", "--run-dir", "run", *options]) == 0
    capsys.readouterr()
    assert main(["predict", "run", "--task", "stsb", "--input", "stsb.csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(rows)


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("token-classification", "bert"),
        pytest.param("seq2seq", "bart", marks=pytest.mark.slow),
        pytest.param("causal-lm", "gpt2", marks=pytest.mark.slow),
    ],
)
def test_drafts_of_other_kinds_pass_a_dry_run(
    here: Path, backbone_folder: Folder, kind: str, family: str, capsys: Any
) -> None:
    draw = random.Random(0)
    lines = "".join(json.dumps(row_of_kind(kind, draw)) + "\n" for _ in range(400))
    (here / "rows.jsonl").write_text(lines)
    assert main(["init", "rows.jsonl", "--backbone", str(backbone_folder(family))]) == 0
    assert load_stream("stream.yaml").tasks[0].kind == kind
    fitting = ["--bank", "lora", *([] if kind.startswith("token") else ["--tasks.rows.generation.max_new_tokens", "4"])]
    assert main(["run", "stream.yaml", "--dry-run", *fitting]) == 0
    assert kind in capsys.readouterr().out


def test_init_says_which_formats_each_task_exports_to(
    here: Path, backbone_folder: Folder, capsys: Any, light_processes: LightProcesses
) -> None:
    done = light_processes.run(["init", "questions.csv", "pairs.csv"], here)
    assert (done.code, done.err, "torch" in done.modules) == (0, "", False)
    for name in ("questions", "pairs"):
        assert (
            f"task {name!r} can be exported in no format; it can be served; not as merged (bottleneck cannot"
            in done.out
        )
    assert main(["init", "questions.csv", "--backbone", str(backbone_folder()), "--force", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["tasks"][0]["exports_refused"]
    spec = load_stream("stream.yaml")
    assert said == refused_by_bank(spec.resolved_bank(spec.tasks[0]))
    assert main(["run", "stream.yaml", "--dry-run", "--json", "--bank.bottleneck", "4"]) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)[0]["exports"] == said


def test_existing_file_is_not_overwritten_silently(here: Path, capsys: Any) -> None:
    (here / "stream.yaml").write_text("mine")
    assert main(["init", "questions.csv"]) == 2
    assert "stream.yaml already exists; give another name, or --force" in capsys.readouterr().err
    assert (here / "stream.yaml").read_text() == "mine"
    assert main(["init", "questions.csv", "--force", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["backbone"], told["problems"], told["tasks"][0]["name"]) == ("minilm", [], "questions")


def test_invalid_rows_are_reported(here: Path, capsys: Any) -> None:
    with (here / "questions.csv").open("a") as file:
        file.write("60,,no\n")
    assert main(["init", "questions.csv"]) == 1
    assert "fix before running: task 'questions'" in capsys.readouterr().out
    assert (here / "stream.yaml").is_file()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing.csv"], "; check the path (a name ending in .csv is not looked up on the Hub)"),
        (["questions.csv", "--output", "x.txt"], "the name of a stream file has to end in .yaml"),
        (["questions.csv", "--output", "no/x.yaml"], "there is no folder no"),
        (["questions.csv", "--name", "a/b"], "key name"),
        (["empty.csv"], "no kind of task fits"),
    ],
)
def test_failing_init_is_reported_and_writes_nothing(here: Path, words: list[str], says: str, capsys: Any) -> None:
    (here / "empty.csv").write_text("a,b\n1,2\n")
    assert main(["init", *words]) == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert "Traceback" not in shown
    assert sorted(path.name for path in here.iterdir()) == ["empty.csv", "pairs.csv", "questions.csv"]


def test_label_names_next_to_the_data_are_used(here: Path) -> None:
    (here / "set").mkdir()
    rows = [{"text": row["text"], "label": int(row["label"] == "yes")} for row in classification_rows("s", 40)]
    (here / "set" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (here / "set" / "labels.json").write_text('{"names": ["wrong", "right"]}')
    assert main(["init", "set"]) == 0
    assert "# labels: wrong, right" in (here / "stream.yaml").read_text()
    assert load_stream("stream.yaml").tasks[0].labels == "set/labels.json"


def _csv(file: Path, **columns: list[str]) -> None:
    with file.open("w", newline="") as written:
        writer = csv.writer(written)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


@pytest.fixture
def reviews(here: Path) -> Path:
    """Return the working directory, with a CSV file of reviews whose second text column is not read."""
    texts = [row["text"] for row in classification_rows("r", 40)]
    _csv(here / "reviews.csv", review=texts, about=[" ".join([text] * 4) for text in texts], label=["no", "yes"] * 20)
    return here


def test_unused_text_column_is_reported(reviews: Path, backbone_folder: Folder, capsys: Any) -> None:
    assert main(["init", "reviews.csv", "--backbone", str(backbone_folder())]) == 0
    says = "the column 'about' holds texts and is not read; if it is the second text of a pair, write columns: {text_pair: "
    assert says in capsys.readouterr().out
    assert "# column about holds texts and is not read" in (reviews / "stream.yaml").read_text()
    assert main(["run", "stream.yaml", "--dry-run", "--bank", "lora"]) == 0
    assert says in " ".join(capsys.readouterr().out.split())


def test_prompts_without_separator_are_shown_as_the_model_reads_them(
    here: Path, backbone_folder: Folder, capsys: Any
) -> None:
    texts = [row["text"] for row in classification_rows("r", 40)]
    _csv(here / "rows.csv", prompt=texts, response=[f"so w{number} it is" for number in range(40)])
    assert main(["init", "rows.csv", "--backbone", str(backbone_folder("gpt2"))]) == 0
    says = f"source and target are joined without a separator; the first row becomes '{texts[0]}so w0 it is'"
    told = capsys.readouterr().out
    assert says in told
    dry = ["run", "stream.yaml", "--dry-run", "--bank", "lora", "--tasks.rows.generation.max_new_tokens", "4"]
    assert main(dry) == 0
    assert says in capsys.readouterr().out
    marked = ["--tasks.rows.data", '{path: csv, data_files: rows.csv, templates: {marked: "{prompt}\\nAnswer:"}}']
    assert main([*dry, *marked, "--tasks.rows.columns.source", "marked"]) == 0
    assert "without a separator" not in capsys.readouterr().out


def test_learning_rate_follows_the_chosen_preset(here: Path) -> None:
    assert main(["init", "questions.csv"]) == 0
    for preset in ("houlsby", "lora", "prompt"):
        spec = load_stream("stream.yaml", [("bank", preset)])
        assert spec.resolved_training(spec.tasks[0]).learning_rate == RECIPES[preset].learning_rate


def test_files_that_need_a_generating_backbone_are_named(here: Path, capsys: Any) -> None:
    rows = [{"prompt": f"w{n} w1", "response": f"w{n * n} w{n}"} for n in range(60)]
    (here / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["init", "questions.csv", "chats.jsonl", "pairs.csv"]) == 0
    said = capsys.readouterr().out
    assert "backbone facebook/bart-base: generates text, which the packaged minilm cannot; " in said
    advice = "draft it as a separate stream, and continual-petl init questions.csv pairs.csv runs on minilm\n"
    assert f"or a path. Only chats.jsonl needs generated texts: {advice}" in said
    assert "wrote stream.yaml; once its backbone can be loaded: continual-petl run stream.yaml --dry-run" in said
    assert main(["init", "chats.jsonl", "--force"]) == 0
    assert "(560 MB); or a path\n" in capsys.readouterr().out


def test_table_without_a_header_is_noticed(here: Path, capsys: Any) -> None:
    lines = (here / "questions.csv").read_text().splitlines(keepends=True)
    (here / "noheader.csv").write_text("".join(lines[1:]))
    assert main(["init", "noheader.csv"]) == 0
    said = capsys.readouterr().out
    assert "noheader.csv: its first line was taken as the names of the columns ('0', " in said
    assert "but it looks like a row of data. If it is one, add a line above it that names the columns" in said
    for header in ("id,text,label", "number,what was asked,yes or no", "n,question,answered"):
        (here / "header.csv").write_text("".join([f"{header}\n", *lines[1:]]))
        assert main(["init", "header.csv", "--force"]) == 0
        assert "looks like a row" not in capsys.readouterr().out


def test_causal_hub_backbone_is_recognised(here: Path, capsys: Any) -> None:
    rows = [{"prompt": f"w{n} w1", "response": f"w{n * n} w{n}"} for n in range(60)]
    (here / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["init", "chats.jsonl", "--backbone", "openai-community/gpt2"]) == 0
    said = capsys.readouterr().out
    assert "chats.jsonl: causal-lm, because" in said
    assert (
        "backbone 'openai-community/gpt2' cannot be loaded: There is no folder of this name, and access to the Hub is "
        "disabled" in said
    )
