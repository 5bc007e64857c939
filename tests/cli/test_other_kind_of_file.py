"""A file or folder of another kind than a command needs is refused in one sentence that says which command takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from continual_petl.cli.main import main
from continual_petl.errors import StreamFileError
from continual_petl.streams.stream_file.kind_of_file import kind_of
from continual_petl.streams.stream_file.yaml_file import load_stream, load_task
from continual_petl.sweep.sweep_file import load_sweep

STREAM = "name: s\nbackbone: minilm\ntasks:\n  - {name: a, kind: classification, data: a.csv}\n"
TASK = "name: chat\nkind: causal-lm\ndata: chats.jsonl\ncolumns: {messages: messages}\n"
SWEEP = "space: {bank.bottleneck: [2, 4]}\n"
FILES = {"the stream.yaml": STREAM, "the task.yaml": TASK, "sweep.yaml": SWEEP}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with files of each kind and a run folder, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)
    run = Path("my run")
    (run / "banks").mkdir(parents=True)
    (run / "stream.yaml").write_text(STREAM)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "the task.yaml"], "this is the file of one task, but a stream is expected here; "
         "`continual-petl learn RUN 'the task.yaml'`"),
        (["run", "sweep.yaml"], "this is the file of a sweep, but a stream is expected here; "
         "`continual-petl sweep STREAM sweep.yaml`"),
        (["run", "my run"], "this is a run folder, but a stream file is expected here; "
         "`continual-petl learn 'my run' TASK.yaml`"),
        (["learn", "my run", "the stream.yaml"], "this is the file of a stream, but one task is expected here; "
         "`continual-petl run 'the stream.yaml'`"),
        (["learn", "my run", "sweep.yaml"], "this is the file of a sweep, but one task is expected here"),
        (["learn", "the stream.yaml", "the task.yaml"], "this is a YAML file, but a run folder is expected here"),
        (["sweep", "sweep.yaml", "the stream.yaml"], "this is the file of a s"),
        (["sweep", "the task.yaml", "sweep.yaml"], "this is the file of one task, but a stream is expected here"),
        (["sweep", "the stream.yaml", "the task.yaml"], "this is the file of one task, but a sweep is expected here"),
        (["init", "the stream.yaml"], "this is a YAML file, but init reads data; if the file describes a "
         "stream, `continual-petl run 'the stream.yaml'"),
        (["init", "my run"], "this is a run folder, but init reads data; `continual-petl show 'my run'`"),
        (["report", "the stream.yaml"], "this is a YAML file, but a run folder is expected here"),
        (["report", "my run/stream.yaml"], "this is the stream file of a run, but the run folder is expected "
         "here; give 'my run'"),
        (["verify", "the task.yaml"], "this is a YAML file, but a run folder is expected here"),
        (["list", "the stream.yaml"], "this is a YAML file, but a run folder is expected here"),
        (["predict", "the stream.yaml", "text", "--task", "a"], "this is a YAML file, but a run folder is expected here"),
        (["forget", "the stream.yaml", "a"], "this is a YAML file, but a run folder is expected here"),
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
    from continual_petl.cli.rows_in import read_unnamed_rows
    from continual_petl.errors import InputError

    with pytest.raises(InputError, match=r"this is a YAML file, .* but a file with rows to predict is expected"):
        list(read_unnamed_rows(Path("sweep.yaml")))


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
    assert kind_of(tree) == kind
