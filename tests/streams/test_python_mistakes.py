"""The same mistake in a stream file and in Python is reported with the same sentences, without file and line in Python."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.spec import BankSpec, Modification
from continual_petl.errors import InputError, StreamFileError
from continual_petl.streams import DataSpec, GenerationSpec, StreamSpec, TaskSpec, TaskStream, TrainingSpec
from continual_petl.streams.stream_file.yaml_file import load_stream, load_task
from continual_petl.sweep.settings import load_sweep
from continual_petl.sweep.spec import SweepSpec
from tests.streams.test_yaml_problems import MANY_MISTAKES

TASK = {"name": "a", "kind": "classification", "data": "a.csv"}
STREAM = {"name": "s", "backbone": "minilm", "tasks": [TASK]}
MISTAKES: list[tuple[str, Any]] = [
    ("name", 2024),
    ("nam", "s"),
    ("seed", -1),
    ("seed", 1.5),
    ("backbone", 3),
    ("backbone.pooling", "maen"),
    ("bank", "houlsbee"),
    ("bank.start_from", "x" * 65),
    ("bank.start_from", ["a", "a"]),
    ("bank.start_from", 3),
    ("bank.layers", [1]),
    ("bank.modifications", [{"form": "bottle"}]),
    ("training", []),
    ("training.epochs", 0),
    ("training.class_weights", "balancd"),
    ("training.class_weights", 3),
    ("training.momentum", 0.5),
    ("training.schedule", "reduce_lr_on_plateau"),
    ("training.schedule", "cosine_with_min_lr"),
    ("training.schedule", {"name": "warmup_stable_decay"}),
    ("tasks.0.training.schedule", {"name": "cosine", "power": 2.0}),
    ("tasks.0.training.schedule", {"num_cycles": 2}),
    ("training.schedule", 3),
    ("trainer.max_epochs", 3),
    ("evaluate", "som"),
    ("protocol", "classs"),
    ("tasks", []),
    ("tasks", {}),
    ("tasks.0", "a.csv"),
    ("tasks.0.kind", "clasification"),
    ("tasks.0.data", []),
    ("tasks.0.data", 3),
    ("tasks.0.data", {"trian": []}),
    ("tasks.0.data", {"train": 3}),
    ("tasks.0.data", {"train": [["a", "b"]] * 501}),
    ("tasks.0.data", {"train": [{"text": "a"}, 3, None], "test": ["a"]}),
    ("tasks.0.data", {"train": [], "tset": []}),
    ("tasks.0.data", {"path": "csv"}),
    ("tasks.0.data", {"label": ["x", "y"], "text": ["a", "b"]}),
    ("tasks.0.data", {"label": "x", "text": "a"}),
    ("tasks.0.data", {"train": {"label": ["x", "y"], "text": ["a"]}}),
    ("tasks.0.labels", ["a", "a"]),
    ("tasks.0.labels", 3),
    ("tasks.0.columns", {"txt": "a"}),
    ("tasks.0.columns", {"source": "a"}),
    ("tasks.0.metric", "acuracy"),
    ("tasks.0.training.epocs", 3),
    ("tasks.0.limits.train", 0),
    ("tasks.0.validation", 1),
    ("tasks.0.generation", {"num_beams": 2}),
    ("tasks.0.chat", {}),
    ("tasks.0.split", {"classes_per_task": 0}),
    ("tasks.0.bank.start_from", "a"),
    ("tasks.1", TASK),
    ("tasks.1", {"kind": "regression"}),
]


def _with(tree: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    tree = copy.deepcopy(tree)
    node: Any = tree
    path: list[Any] = [int(part) if part.isdecimal() else part for part in key.split(".")]
    *above, last = path
    for part in above:
        node = node[part] if isinstance(node, list) else node.setdefault(part, {})
        if isinstance(node, str):
            tree["backbone"] = node = {"name": node}
    if isinstance(node, list) and last == len(node):
        node.append(value)
    else:
        node[last] = value
    return tree


def _in_python(build: Any, tree: dict[str, Any]) -> list[str]:
    with pytest.raises(InputError) as caught:
        build(**tree)
    with pytest.raises(InputError) as validated:
        build.model_validate(tree)
    assert str(validated.value) == str(caught.value)
    assert caught.value.__cause__ is None
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{build.__name__}: ") for line in lines)
    return [line.removeprefix(f"{build.__name__}: ") for line in lines]


def _in_file(load: Any, path: Path, text: str) -> list[str]:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StreamFileError) as caught:
        load(path)
    return [re.sub(rf"^{re.escape(str(path))}:\d+: ", "", problem) for problem in caught.value.problems]


@pytest.mark.parametrize(("key", "value"), MISTAKES)
def test_mistake_in_a_stream_reads_as_in_a_file(key: str, value: Any, tmp_path: Path) -> None:
    tree = _with(STREAM, key, value)
    found = _in_python(StreamSpec, tree)
    assert sorted(found) == sorted(_in_file(load_stream, tmp_path / "stream.yaml", yaml.safe_dump(tree)))
    assert len(found) <= 2
    assert not re.search(r"validation error|Input should|pydantic|\ue000|\[type=", "\n".join(found))


def test_all_mistakes_are_found_at_once_as_in_a_file(tmp_path: Path) -> None:
    text = "\n".join(
        line for line in MANY_MISTAKES.splitlines() if "NO_SUCH" not in line and "epochs: 2" not in line
    ).replace(" 1: x,", "")
    found = _in_python(StreamSpec, yaml.safe_load(text))
    assert sorted(found) == sorted(_in_file(load_stream, tmp_path / "stream.yaml", text))
    assert len(found) > 25


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"kind": "clasification"},
            "got 'clasification' (did you mean 'classification'?); allowed: causal-lm, classification, ",
        ),
        ({"training": {"epochs": 0}}, "key training.epochs: got 0; allowed: a whole number of at least 1 or null"),
        ({"traning": {}}, "key traning: unknown key 'traning' (did you mean 'training'?); allowed here: name, kind"),
    ],
)
def test_mistake_in_a_task_reads_as_in_a_file(more: dict[str, Any], says: str, tmp_path: Path) -> None:
    (found,) = _in_python(TaskSpec, TASK | more)
    assert says in found
    (in_file,) = _in_file(load_task, tmp_path / "task.yaml", yaml.safe_dump(TASK | more))
    assert re.sub(r" \(task a\)", "", in_file) == found


def test_mistake_in_a_sweep_reads_as_in_a_file(tmp_path: Path) -> None:
    tree = {"space": {"bank.bottleneck": 5, "training.epochs": {"low": 3, "hgh": 4}}, "sampler": "grd"}
    found = _in_python(SweepSpec, tree)
    assert sorted(found) == sorted(_in_file(load_sweep, tmp_path / "sweep.yaml", yaml.safe_dump(tree)))


@pytest.mark.parametrize(
    ("build", "tree", "says"),
    [
        (
            TrainingSpec,
            {"lerning_rate": 1},
            "key lerning_rate: unknown key 'lerning_rate' (did you mean 'learning_rate'",
        ),
        (DataSpec, {"path": "csv"}, "path: csv reads files, so name them under data_files"),
        (GenerationSpec, {"num_beams": 0}, "key num_beams: got 0; allowed: a whole number of at least 1"),
        (BankChoice, {"preset": "lora", "rnk": 3}, "key rnk: unknown key 'rnk' (did you mean 'rank'?); allowed here: "),
        (BankSpec, {"modifications": [{"form": "bottleneck"}]}, "key modifications.0.modifies: is missing: add it"),
        (Modification, {"form": "lowrank", "modifies": "query"}, "no method has lowrank on query"),
    ],
)
def test_mistake_in_a_part_is_one_paragraph(build: Any, tree: dict[str, Any], says: str) -> None:
    (found,) = _in_python(build, tree)
    assert found.startswith(says), found


def test_rows_of_the_wrong_type_are_one_problem() -> None:
    with pytest.raises(InputError, match=r"^TaskSpec: key data.train.0: got a list of 2; a row .*500 other rows\)$"):
        TaskSpec(name="a", kind="classification", data={"train": [("a", "b")] * 501})


def test_errors_name_keys_for_programs() -> None:
    with pytest.raises(StreamFileError) as caught:
        TrainingSpec(epochs=0, batch_size=0)
    assert caught.value.keys == (("epochs",), ("batch_size",))


@pytest.mark.parametrize("given", [STREAM, "stream.yaml", None, 3])
def test_task_stream_of_something_else_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match=r"TaskStream: got .*; give a StreamSpec, .*TaskStream.from_yaml"):
        TaskStream(given)


@pytest.mark.parametrize(
    ("build", "given", "says"),
    [
        (TaskSpec, "a", r"TaskSpec: got 'a' without a key; .*TaskSpec\(name=\.\.\., kind=\.\.\., data=\.\.\.\)"),
        (StreamSpec, "stream.yaml", r"StreamSpec: got 'stream.yaml' without a key; .*name=\.\.\., backbone=\.\.\., tasks="),
        (TrainingSpec, 3, r"TrainingSpec: got 3 without a key; give each value by its key, such as TrainingSpec\("),
        (TaskSpec, TASK, r"TaskSpec: got a mapping; give its values by key: TaskSpec\(\*\*mapping\)"),
    ],
)  # fmt: skip
def test_value_without_a_key_is_one_sentence(build: Any, given: Any, says: str) -> None:
    with pytest.raises(InputError, match=f"^{says}"):
        build(given)
    with pytest.raises(InputError, match=f"^{says}"):
        build(given, name="a")
