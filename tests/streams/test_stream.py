"""A task stream is a sequence of the tasks in its specification."""

from __future__ import annotations

from pathlib import Path

import pytest

from continual_petl import streams
from continual_petl.errors import InputError
from continual_petl.streams import TaskStream

TEXT = """\
name: desk
seed: 7
backbone: minilm
tasks:
  - {name: agnews, kind: classification, data: a.csv}
  - {name: stsb, kind: regression, data: b.csv}
"""


@pytest.fixture
def stream(tmp_path: Path) -> TaskStream:
    (tmp_path / "s.yaml").write_text(TEXT, encoding="utf-8")
    return TaskStream.from_yaml(tmp_path / "s.yaml", [("training.epochs", "1")])


def test_stream_is_a_sequence_of_tasks(stream: TaskStream) -> None:
    assert (stream.name, stream.seed, len(stream)) == ("desk", 7, 2)
    assert [task.name for task in stream] == ["agnews", "stsb"]
    assert stream["stsb"] is stream[1] is stream[-1]
    assert "stsb" in stream
    assert stream[0] in stream
    assert "sst" not in stream
    assert stream.spec.training.epochs == 1
    assert stream == TaskStream(stream.spec)


def test_repr_lists_the_tasks(stream: TaskStream) -> None:
    shown = "'desk', seed=7, backbone='minilm', 2 tasks: agnews (classification), stsb (regression)"
    assert repr(stream) == f"TaskStream({shown})"


def test_an_unknown_task_lists_the_known_ones(stream: TaskStream) -> None:
    with pytest.raises(InputError, match=r"no task 'stbs' \(did you mean 'stsb'\?\)\. Its tasks are agnews, stsb"):
        stream["stbs"]
    with pytest.raises(IndexError):
        stream[2]


def test_every_public_name_resolves() -> None:
    for name in streams.__all__:
        assert getattr(streams, name).__name__ == name
        assert name in dir(streams)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        streams.Nothing  # noqa: B018
