"""A file or folder of another type than a command needs is refused in one sentence that says which command takes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from continual_petl.cli.main import main
from continual_petl.errors import StreamFileError
from continual_petl.streams.stream_file.file_types import type_of, type_of_path
from continual_petl.streams.stream_file.yaml_file import load_stream, load_task
from continual_petl.streams.stream_file.yaml_nodes import parse
from continual_petl.sweep.settings import load_sweep

STREAM = "name: s\nbackbone: minilm\ntasks:\n  - {name: a, kind: classification, data: a.csv}\n"
TASK = "name: chat\nkind: causal-lm\ndata: chats.jsonl\ncolumns: {messages: messages}\n"
SWEEP = "space: {bank.bottleneck: [2, 4]}\n"
FILES = {"the stream.yaml": STREAM, "the task.yaml": TASK, "sweep.yaml": SWEEP}
BESIDE = (
    *("rows.json", "rows.csv", "page.html", "other.yaml", "data/train.csv"),
    *("adapter/adapter_config.json", "merged/config.json", "merged/model.safetensors"),
    *("swept/sweep.json", "swept/swept.yaml", "my run/report/index.html", "my run/report/plotly.min.js"),
)
"""Files of other kinds, of which only the names matter."""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with files of each kind and a run folder, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    run = Path("my run")
    (run / "banks").mkdir(parents=True)
    (run / "stream.yaml").write_text(STREAM)
    for path in BESIDE:
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "the task.yaml"], "this is the file of one task, but a stream is expected here; "
         "`continual-petl learn RUN 'the task.yaml'`"),
        (["run", "sweep.yaml"], "this is the file of a sweep, but a stream is expected here; "
         "`continual-petl sweep STREAM sweep.yaml`"),
        (["run", "my run"], "this is a run folder, but a stream file is expected here; `continual-petl show 'my run'` "
         "shows it, and `continual-petl learn 'my run' TASK.yaml` adds a task to it"),
        (["run", "rows.json"], "this is a file with rows, but a stream file is expected here; "
         "`continual-petl init rows.json` drafts a stream that learns them"),
        (["run", "page.html"], "this is an HTML page, but a stream file is expected here; it is for a browser"),
        (["run", "adapter"], "this is the folder of an adapter, but a stream file is expected here; "
         "`continual-petl import RUN adapter TASK`"),
        (["run", "merged"], "this is the folder of a model, but a stream file is expected here; "
         "`continual-petl init DATA --backbone merged`"),
        (["run", "swept"], "this is the folder of a sweep, but a stream file is expected here; swept/chosen.yaml"),
        (["run", "my run/report"], "this is the folder of a report, but a stream file is expected here"),
        (["learn", "my run", "my run"], "this is a run folder, but the file of one task is expected here"),
        (["learn", "my run", "adapter"], "this is the folder of an adapter, but the file of one task is expected here; "
         "`continual-petl import RUN adapter TASK`"),
        (["learn", "my run", "data"], "this is a folder with data, but the file of one task is expected here; "
         "`continual-petl init data` drafts a stream"),
        (["sweep", "the stream.yaml", "rows.json"], "this is a file with rows, but the file of a sweep is expected here"),
        (["sweep", "the stream.yaml", "my run"], "this is a run folder, but the file of a sweep is expected here"),
        (["import", "my run", "the stream.yaml", "b"], "this is the file of a stream, but the folder of an adapter is"),
        (["import", "my run", "my run", "b"], "this is a run folder, but the folder of an adapter is expected here"),
        (["import", "my run", "merged", "b"], "this is the folder of a model, but the folder of an adapter is expected"),
        (["import", "my run", "rows.json", "b"], "this is a file with rows, but the folder of an adapter is expected here"),
        (["predict", "my run", "rows.csv", "--task", "a"], "rows.csv: this is a file, but a text is expected here; "
         "`--input rows.csv` predicts the rows in it"),
        (["list", "adapter"], "this is the folder of an adapter, but a run folder is expected here; "
         "`continual-petl import RUN adapter TASK` adds it to a run"),
        (["verify", "data"], "this is a folder with data, but a run folder is expected here; `continual-petl init data`"),
        (["serve", "swept"], "this is the folder of a sweep, but a run folder is expected here"),
        (["report", "page.html"], "this is an HTML page, but a run folder is expected here"),
        (["report", "my run/report"], "this is the folder of a report, but a run folder is expected here"),
        (["learn", "my run", "the stream.yaml"], "this is the file of a stream, but one task is expected here; "
         "`continual-petl run 'the stream.yaml'`"),
        (["learn", "my run", "sweep.yaml"], "this is the file of a sweep, but one task is expected here"),
        (["learn", "the stream.yaml", "the task.yaml"], "this is the file of a stream, but a run folder is expected here; "
         "`continual-petl run 'the stream.yaml'` learns it"),
        (["sweep", "sweep.yaml", "the stream.yaml"], "this is the file of a s"),
        (["sweep", "the task.yaml", "sweep.yaml"], "this is the file of one task, but a stream is expected here"),
        (["sweep", "the stream.yaml", "the task.yaml"], "this is the file of one task, but a sweep is expected here"),
        (["init", "the stream.yaml"], "this is the file of a stream, but data is expected here; "
         "`continual-petl run 'the stream.yaml'` learns it"),
        (["init", "the task.yaml"], "this is the file of one task, but data is expected here; "
         "`continual-petl learn RUN 'the task.yaml'` adds it to a run"),
        (["init", "sweep.yaml"], "this is the file of a sweep, but data is expected here; "
         "`continual-petl sweep STREAM sweep.yaml`"),
        (["init", "other.yaml"], "this is a YAML file, but data is expected here; `continual-petl run other.yaml --dry-run`"),
        (["init", "my run"], "this is a run folder, but data is expected here; `continual-petl show 'my run'`"),
        (["init", "my run/stream.yaml"], "this is the stream file of a run, but data is expected here; "
         "`continual-petl show 'my run'` shows the run"),
        (["init", "adapter"], "this is the folder of an adapter, but data is expected here"),
        (["init", "merged"], "this is the folder of a model, but data is expected here"),
        (["init", "page.html"], "this is an HTML page, but data is expected here"),
        (["report", "the stream.yaml"], "this is the file of a stream, but a run folder is expected here"),
        (["report", "my run/stream.yaml"], "this is the stream file of a run, but a run folder is expected here; "
         "`continual-petl show 'my run'`"),
        (["verify", "the task.yaml"], "this is the file of one task, but a run folder is expected here"),
        (["list", "other.yaml"], "this is a YAML file, but a run folder is expected here"),
        (["predict", "the stream.yaml", "text", "--task", "a"], "this is the file of a stream, but a run folder is"),
        (["forget", "the stream.yaml", "a"], "this is the file of a stream, but a run folder is expected here"),
    ],
)  # fmt: skip
def test_another_kind_of_file_is_refused_in_one_sentence(
    files: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    told = capsys.readouterr().err
    assert says in told
    assert len(told.removeprefix("continual-petl: the stream cannot be used:\n").splitlines()) <= 2


def test_rows_are_not_read_from_a_yaml_file(files: Path) -> None:
    from continual_petl.cli.rows_in import read_rows
    from continual_petl.errors import InputError

    with pytest.raises(
        InputError, match="this is the file of a sweep, but a file with rows to predict is expected here"
    ):
        list(read_rows(Path("sweep.yaml")))


@pytest.mark.parametrize(("load", "kind"), [(load_stream, "stream"), (load_task, "task"), (load_sweep, "sweep")])
def test_python_readers_refuse_the_other_kinds(files: Path, load: Any, kind: str) -> None:
    for name in FILES:
        if kind not in name:
            with pytest.raises(StreamFileError, match="this is the file of ") as caught:
                load(name)
            assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("tree", "kind"),
    [
        ({"name": "a", "data": "x"}, None),
        ({"name": "a", "data": "x", "labels": []}, "task"),
        ({"name": "a", "bank": "lora", "training": {}}, None),
        ({"tasks": [], "space": {}}, "stream"),
        ([], None),
        (None, None),
    ],
)
def test_kind_is_only_claimed_if_it_is_certain(tree: Any, kind: str | None) -> None:
    assert type_of(tree) == kind


@pytest.mark.parametrize("text", ['[{"text": "a"}]', '{"text": {"0": "a"}}', "[1, 2", '{"text": "a"}\n{"text": "b"}\n'])
def test_json_is_rows_or_the_file_that_its_keys_describe(files: Path, text: str) -> None:
    Path("given.json").write_text(text)
    assert type_of_path("given.json") == "rows"
    for yaml, kind in ((STREAM, "stream"), (TASK, "task"), (SWEEP, "sweep")):
        Path("given.json").write_text(json.dumps(parse(yaml).tree))
        assert type_of_path("given.json") == kind
    Path("given.json").write_text('{"tasks": [')
    assert type_of_path("given.json") is None  # the parser says what is wrong with it
