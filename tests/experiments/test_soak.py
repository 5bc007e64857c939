"""The client that loads endpoints, and the mistakes that the soak test detects."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.benchmarks.load import Answers
from experiments.benchmarks.soak import Soak, soak

ROWS = [("a", "one text"), ("b", "another")]


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Soak:
    """Return the state of a soak test with two tasks whose probabilities are known."""
    answers = [SimpleNamespace(probabilities={"no": 0.25, "yes": 0.75}), SimpleNamespace(probabilities={"no": 0.5})]
    monkeypatch.setattr(
        "experiments.benchmarks.soak.Run", lambda folder: SimpleNamespace(predict=lambda rows, tasks: answers)
    )
    return Soak(tmp_path, "http://127.0.0.1:1", ROWS)


def _body(task: str, text: str, **shares: float) -> bytes:
    return json.dumps({"predictions": [{"task": task, "text": text, "probabilities": shares}]}).encode()


def _answers(*given: tuple[int, bytes]) -> Answers:
    return Answers([body for _, body in given], [0.0] * len(given), [status for status, _ in given])


RIGHT = (200, _body("a", "one text", no=0.25, yes=0.75)), (200, _body("b", "another", no=0.5))


def test_right_answers_are_counted(state: Soak) -> None:
    state.check(ROWS, _answers(*RIGHT))
    state.check(ROWS[:1], _answers((429, b"")))
    assert state.seen == {"status 200": 2, "status 429": 1}


@pytest.mark.parametrize(
    ("wrong", "fragment"),
    [
        ((RIGHT[1], RIGHT[0]), "got the answer for"),
        (((200, _body("a", "one text", no=0.26, yes=0.74)), RIGHT[1]), "is off by 0.01"),
        (((500, b"a fault"), RIGHT[1]), "was answered with 500: b'a fault'"),
        (((410, b""), RIGHT[1]), "a was answered with 410, but was not forgotten"),
    ],
)
def test_wrong_answer_is_noticed(state: Soak, wrong: Any, fragment: str) -> None:
    with pytest.raises(AssertionError, match=fragment):
        state.check(ROWS, _answers(*wrong))


@pytest.mark.slow
def test_soak_of_a_tiny_model(backbone_folder: Callable[..., Path], tmp_path: Path) -> None:
    found = soak(tmp_path / "run", str(backbone_folder()), minutes=0.02)
    assert found["seen"]["status 200"] > 1000
    assert set(found["seen"]) <= {"status 200", "status 429", "status 410", "commits", "forgotten", "clients that left"}
    assert found["resident_bytes"]["end"] > 0
