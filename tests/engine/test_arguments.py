"""Arguments of the functions in Python that cannot be meant are refused, each in one paragraph."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import ContinualLearner, InputError, NoForgetting, SweepSpec, learn, load_backbone
from continual_petl.engine.learn import _USUAL, LearnOptions
from continual_petl.learner.begin import prepared
from continual_petl.sweep.protocol import sweep
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"precision": "bf17"}, r"precision: got 'bf17' \(did you mean 'bf16'\?\); allowed: bf16, fp32"),
        ({"precision": None}, "precision: got None; allowed: bf16, fp32"),
        ({"attention": "spda"}, r"attention: got 'spda' \(did you mean 'sdpa'\?\)"),
        ({"pooling": "maen"}, r"pooling: got 'maen' \(did you mean 'mean'\?\); allowed: first, pooler, mean, last"),
        ({"quantize": "int5"}, "quantize: got 'int5' .*allowed: int8, nf4, int4"),
        ({"max_length": 2}, "max_length: got 2; allowed: a whole number of at least 4"),
        ({"max_length": 64.0}, r"max_length: got 64\.0; allowed: a whole number"),
        ({"name": 3}, "name: got 3 of type int; give text"),
    ],
)
def test_backbone_is_loaded_only_as_asked(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=f"^{says}"):
        load_backbone(**({"name": "minilm"} | given))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"replace": "one"}, r"replace: got the text 'one'; give a list of names: \['one'\]"),
        ({"callbacks": NoForgetting()}, "callbacks: got <.*; give a list of callbacks"),
        ({"callbacks": ["x"]}, r"callbacks: got \['x'\]; give a list of callbacks"),
        ({"trainer": {"max_epochs": 3}}, r"trainer\.max_epochs: this is set by training\.epochs"),
        ({"jobs": 0}, "jobs: got 0"),
        ({"executor": "rya"}, "executor: got 'rya'"),
        ({"stream": {"name": "a"}}, "stream: got a dict; give a TaskStream"),
    ],
)
def test_arguments_of_learn(given: dict[str, Any], says: str, tmp_path: Path) -> None:
    made = stream(tmp_path, [task("one", num_rows=16)])
    arguments: dict[str, Any] = {"stream": made, "run_dir": tmp_path / "run"} | given
    with pytest.raises(InputError, match=says):
        learn(**arguments)
    assert not (tmp_path / "run").exists()


def test_an_unknown_option_of_learn_is_refused(tmp_path: Path) -> None:
    made = stream(tmp_path, [task("one", num_rows=16)])
    with pytest.raises(
        TypeError, match=r"learn has no option 'job' \(did you mean 'jobs'\?\); allowed: callbacks, trainer, "
    ):
        learn(made, tmp_path / "run", job=2)  # type: ignore[call-arg]
    assert _USUAL.keys() == LearnOptions.__annotations__.keys()


def test_arguments_of_sweep(tmp_path: Path) -> None:
    made, spec = stream(tmp_path, [task("one", num_rows=16)]), SweepSpec(space={"bank.bottleneck": [2, 4]})
    with pytest.raises(InputError, match="tasks: got the text 'one'; give a list of names"):
        sweep(made, spec, folder=tmp_path / "sweep", tasks="one")
    with pytest.raises(InputError, match=r"spec: got {'space': .*; give a SweepSpec"):
        sweep(made, {"space": {}}, folder=tmp_path / "sweep")  # type: ignore[arg-type]


def test_arguments_of_learners(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="backbone: got 'minilm'; give a loaded backbone"):
        ContinualLearner("minilm")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="stream: got a dict"):
        prepared(None, {}, {}, "one")  # type: ignore[arg-type]
