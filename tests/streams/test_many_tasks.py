"""A stream file with too many tasks is refused while it is read, and not written."""

from __future__ import annotations

from pathlib import Path

import pytest

from continual_petl.errors import InputError, StreamFileError
from continual_petl.streams.stream_file import dump, yaml_nodes
from continual_petl.streams.stream_file.yaml_file import load_stream, load_task

HEAD = "name: many\nbackbone: minilm\ntasks:\n"


def tasks(count: int, style: str = "block") -> str:
    lines = [f"{{name: t{number}, kind: classification, data: x.csv}}" for number in range(count)]
    return "".join(f"  - {line}\n" for line in lines) if style == "block" else f"  [{', '.join(lines)}]\n"


@pytest.mark.parametrize("style", ["block", "flow"])
def test_too_many_tasks_are_refused_with_the_line_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    monkeypatch.setattr(yaml_nodes, "MAX_TASKS", 5)
    file = tmp_path / "stream.yaml"
    file.write_text(HEAD + tasks(5, style))
    assert len(load_stream(file).tasks) == 5
    file.write_text(HEAD + tasks(6, style))
    line = 9 if style == "block" else 4
    with pytest.raises(StreamFileError, match=rf"stream.yaml:{line}: .*more than 5 tasks: divide them among several"):
        load_stream(file)


def test_other_lists_may_be_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_nodes, "MAX_TASKS", 2)
    task = "name: t\nkind: classification\ndata: x.csv\nlabels: [a, b, c, d]\n"
    (tmp_path / "task.yaml").write_text(task)
    assert load_task(tmp_path / "task.yaml").labels == ("a", "b", "c", "d")


def test_too_many_tasks_are_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stream.yaml").write_text(HEAD + tasks(3))
    spec = load_stream(tmp_path / "stream.yaml")
    monkeypatch.setattr(dump, "MAX_TASKS", 2)
    with pytest.raises(InputError, match="the stream has 3 tasks when written as a file, but at most 2 can be read"):
        dump.dump_stream(spec)
