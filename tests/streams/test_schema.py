"""A stream as data: what a task inherits from its stream, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from continual_petl.banks.config.presets import PRESETS
from continual_petl.errors import InputError
from continual_petl.streams.schema.stream_spec import DataSpec, ResolvedTraining, StreamSpec, TaskSpec, TrainingOverride


def _stream(*tasks: dict[str, Any], **more: Any) -> StreamSpec:
    defaults = {"kind": "classification", "data": "x.csv"}
    return StreamSpec.model_validate(
        {"name": "s", "backbone": "minilm", "tasks": [defaults | task for task in tasks], **more}
    )


def test_task_overrides_only_given_keys() -> None:
    stream = _stream(
        {"name": "a", "training": {"epochs": 3, "gradient_clip": None}},
        {"name": "b"},
        training={"epochs": 10, "batch_size": 8},
    )
    first, second = map(stream.resolved_training, stream.tasks)
    assert (first.epochs, first.batch_size, first.gradient_clip) == (3, 8, None)
    assert second == ResolvedTraining.of(stream.training, PRESETS["houlsby"])


def test_an_override_with_the_default_value_is_not_an_empty_one() -> None:
    assert TrainingOverride(epochs=3) != TrainingOverride()
    assert TrainingOverride(epochs=3) == TrainingOverride.model_validate({"epochs": 3})
    assert TrainingOverride(epochs=3).model_dump() == {"epochs": 3}
    assert hash(TrainingOverride(betas=(0.5, 0.9))) == hash(TrainingOverride(betas=(0.5, 0.9)))


def test_task_bank_replaces_the_stream_bank_completely() -> None:
    stream = _stream({"name": "a", "bank": {"preset": "lora", "rank": 4}}, {"name": "b"}, bank="pfeiffer")
    first, second = map(stream.resolved_bank, stream.tasks)
    assert [m.bottleneck for m in first.modifications] == [4, 4]
    assert second == stream.bank.resolve()


def test_pooling_and_metric_fall_back() -> None:
    stream = _stream(
        {"name": "a", "pooling": "first", "metric": "matthews"},
        {"name": "b", "kind": "regression"},
        backbone={"name": "minilm", "pooling": "mean"},
    )
    assert [stream.resolved_pooling(task) for task in stream.tasks] == ["first", "mean"]
    assert [task.resolved_metric for task in stream.tasks] == ["matthews", "spearman"]


def test_routing_and_limit_fall_back() -> None:
    tasks: list[dict[str, Any]] = [
        {"name": "a"},
        {"name": "b", "routing": "off"},
        {"name": "c", "routing": {"reject": 0.05}},
        {"name": "d", "routing": {"statistics": "off"}},
    ]
    expected = {
        "full": [("full", 0.01), ("off", 0.01), ("full", 0.05), ("off", 0.01)],
        "small": [("small", 0.01), ("off", 0.01), ("small", 0.05), ("off", 0.01)],
    }
    for routing, found in expected.items():
        stream = _stream(*tasks, routing=routing)
        assert [(stream.resolved_routing(each), stream.resolved_reject(each)) for each in stream.tasks] == found
    stream = _stream(*tasks, routing={"statistics": "full", "reject": 0.02})
    assert [stream.resolved_reject(each) for each in stream.tasks] == [0.02, 0.02, 0.05, 0.02]
    assert StreamSpec.model_validate(stream.model_dump()) == stream
    assert _stream(*tasks, routing={"reject": 0.02}).routing.statistics == _stream(*tasks).routing.statistics


@pytest.mark.parametrize(
    ("routing", "fragment"),
    [
        ("fulll", r"routing.statistics: got 'fulll' \(did you mean 'full'\?\); allowed: .*, full, small, off"),
        (0.05, "routing: got 0.05; allowed: .* or a mapping with the keys statistics, reject"),
        ({"reject": 1}, "routing.reject: got 1; allowed: a number above 0 and below 1"),
        ({"reject": 0.0}, "routing.reject: got 0.0; allowed"),
        ({"reject": True}, "routing.reject: got true; allowed"),
        ({"reject": "never"}, "routing.reject: got 'never'; allowed"),
        ({"rejct": 0.1}, r"unknown key 'rejct' \(did you mean 'reject'\?\)"),
        ({"statistics": "off", "reject": 0.5}, "with statistics: off, rows cannot be recognised"),
    ],
)
def test_other_limits_of_a_stream_are_refused(routing: Any, fragment: str) -> None:
    with pytest.raises(InputError, match=fragment):
        _stream({"name": "a"}, routing=routing)


def test_data_paths_are_relative_to_the_data_folder() -> None:
    data: list[Any] = [
        "a.csv",
        "/b.csv",
        {"path": "csv", "data_files": {"train": ["t*.csv", "/u.csv"], "test": "https://x/y.csv"}},
        {"path": "user/hub-set", "data_files": "in/the/repository.csv"},
        {"path": "../folder"},
        {"train": [{"text": "a", "label": "b"}]},
    ]
    stream = _stream(*({"name": f"t{i}", "data": some} for i, some in enumerate(data)), data_dir="/d")
    found = [stream.resolved_data(task) for task in stream.tasks]
    assert found[:2] == ["/d/a.csv", "/b.csv"]
    assert isinstance(found[2], DataSpec)
    assert found[2].data_files == {"train": ("/d/t*.csv", "/u.csv"), "test": "https://x/y.csv"}
    assert found[3] == stream.tasks[3].data
    assert isinstance(found[4], DataSpec)
    assert found[4].path == "/folder"
    assert found[5] == {"train": ({"text": "a", "label": "b"},)}


def test_dump_roundtrips() -> None:
    stream = _stream({"name": "a", "training": {"epochs": 3}}, {"name": "b", "bank": "lora"})
    assert StreamSpec.model_validate(stream.model_dump()) == stream


@pytest.mark.parametrize("name", ["../a", "a/b", "a\\b", ".a", "a.", "", "CON", "nul.txt", "a b", "é", "x" * 65, "-rf"])
def test_invalid_folder_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="name"):
        TaskSpec(name=name, kind="classification", data="x.csv")


@pytest.mark.parametrize(
    ("task", "fragment"),
    [
        ({"training": {"epochs": True}}, "a whole number"),
        ({"training": {"epochs": "3"}}, "a whole number"),
        ({"training": {"learning_rate": float("nan")}}, "finite"),
        ({"metric": "spearman"}, "allowed for kind classification: accuracy, macro_f1, matthews"),
        ({"labels": ["a", "a"]}, "'a' is listed more than once"),
        ({"labels": ["a"]}, "at least two"),
        ({"kind": "regression", "labels": ["a", "b"]}, "no effect on a regression"),
        ({"columns": {"text": "x", "label": "x"}}, "three different columns"),
        ({"data": {"path": "csv"}}, "data_files"),
        ({"data": {"path": "embedded"}}, "name of the built-in data set"),
        ({"data": {"path": "csv", "data_files": "x", "name": "y"}}, "no effect"),
        ({"data": 3}, "must be a path"),
        ({"training": {"momentum": 0.5}}, "no effect with optimizer adamw"),
        ({"routing": "full"}, "tasks.0.routing.statistics .*: got 'full'; allowed: off or null"),
        ({"routing": {"reject": 2.0}}, "tasks.0.routing.reject .*: got 2.0; allowed: a number above 0 and below 1"),
        ({"routing": {"statistics": "off", "reject": 0.1}}, "a limit has no effect: remove one of the two"),
    ],
)
def test_invalid_values_are_refused(task: dict[str, Any], fragment: str) -> None:
    with pytest.raises(InputError, match=fragment):
        _stream({"name": "a", **task})


def test_numeric_labels_become_names() -> None:
    assert TaskSpec(name="a", kind="classification", data="x.csv", labels=[3, 1]).labels == ("3", "1")


def test_task_names_must_differ_case_insensitively() -> None:
    with pytest.raises(InputError, match=r"already the name of tasks\.0"):
        _stream({"name": "SST"}, {"name": "sst"})


def test_momentum_is_allowed_if_one_task_uses_it() -> None:
    _stream({"name": "a", "training": {"optimizer": "sgd"}}, {"name": "b"}, training={"momentum": 0.5})


def test_training_keys_are_refused_in_trainer() -> None:
    with pytest.raises(InputError, match=r"training\.epochs"):
        _stream({"name": "a"}, trainer={"max_epochs": 3})


def test_defaults_of_another_version_are_refused() -> None:
    assert _stream({"name": "a"}, defaults=3) == _stream({"name": "a"})
    with pytest.raises(InputError, match="key defaults: got 1; allowed: 2, 3"):
        _stream({"name": "a"}, defaults=1)
