"""Whatever decides a bank is noticed everywhere: when a task resumes, is replaced, was learned before, or is compared."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import InputError, learn
from continual_petl.engine.changed_settings import changed_settings, settings_that_differ
from continual_petl.engine.parallel.worker import commit_staged, stage
from continual_petl.engine.session import Session
from continual_petl.engine.task.checkpoint import LAST
from continual_petl.engine.task.learn_task import learn_bank
from continual_petl.engine.task.resume import begin_replacing, check_share, keep_or_discard
from continual_petl.engine.task_run import TaskRun
from continual_petl.learner.task_plan import NOT_DECIDING
from continual_petl.report.differences import _compared, differences
from continual_petl.store.files.sealed import write_sealed
from continual_petl.store.store import Store
from continual_petl.streams.schema.training_spec import ResolvedTraining, TrainingOverride
from continual_petl.streams.stream import TaskStream
from tests.engine.kept_states import Open
from tests.learned import LearnedRuns
from tests.other_values import WHOLE, changed, learned_paths, name_of
from tests.streams_in_code import regression_task, stream, task, task_of_kind
from tests.tiny import make_model, make_tokenizer

Folder = Callable[..., Path]
QUICK = {"epochs": 1}
SETTINGS = pytest.mark.parametrize("path", learned_paths(), ids=lambda path: ".".join(map(str, path)))


def tasks_of(place: Path, /, **more: Any) -> TaskStream:
    """Return three tasks: labels in a file, a bank that starts from another, and one without labels."""
    names, tasks = place.parent / "names.json", more.pop("tasks", {})
    if not names.exists():
        names.write_text('["no", "yes"]')
    known = [
        task("one", num_rows=16),
        task("two", num_rows=16, labels=str(names), bank={"start_from": "one"}),
        regression_task("three", num_rows=16),
    ]
    return stream(place, [each | tasks.get(each["name"], {}) for each in known], training=QUICK, **more)


@pytest.fixture(scope="module")
def backbone(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(backbone_folder(), tmp_path_factory.mktemp("backbones") / "bert"))


@pytest.fixture(scope="module")
def learned(backbone: Path, learned_runs: LearnedRuns) -> Path:
    return learned_runs(tasks_of(backbone))


@pytest.fixture
def own(learned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(learned, tmp_path / "run"))


@pytest.fixture
def names(backbone: Path) -> Any:
    """Yield the file of labels, and restore it."""
    tasks_of(backbone)
    file = backbone.parent / "names.json"
    before = file.read_bytes()
    yield file
    file.write_bytes(before)


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, {}),
        ({"backbone": {"pooling": "first"}}, {name: ["pooling"] for name in ("one", "two", "three")}),
        ({"tasks": {"one": {"pooling": "last"}}}, {"one": ["pooling"]}),
        ({"tasks": {"one": {"columns": {"text_pair": "other"}}}}, {"one": ["pair"]}),
        ({"tasks": {"one": {"labels": ["yes", "no"]}}}, {"one": ["labels"]}),
        ({"tasks": {"one": {"labels": ["no", "yes"]}}}, {}),
        ({"tasks": {"three": {"metric": "pearson"}}}, {"three": ["metric"]}),
        ({"seed": 4}, {name: ["seed"] for name in ("one", "two", "three")}),
        ({"tasks": {"one": {"bank": "lora"}}}, {"one": ["bank"]}),
    ],
)
def test_changed_setting_of_a_learned_task_is_noticed(
    backbone: Path, learned: Path, more: dict[str, Any], found: dict[str, list[str]]
) -> None:
    given = {**more, "backbone": {"name": str(backbone), "pooling": "mean", **more.get("backbone", {})}}
    session = Session(tasks_of(backbone, **given).spec, Store(learned))
    assert settings_that_differ(session) == found
    assert all(
        f"({', '.join(found[name])})" in told for name, told in zip(found, changed_settings(session), strict=True)
    )


@pytest.fixture(scope="module")
def routed(backbone: Path, learned_runs: LearnedRuns) -> Path:
    """Return a run whose tasks store routing statistics, the first one with a limit of its own, the last one none."""
    tasks = {"one": {"routing": {"reject": 0.02}}, "three": {"routing": "off"}}
    return learned_runs(tasks_of(backbone, routing={"statistics": "compact", "reject": 0.05}, tasks=tasks))


@pytest.mark.parametrize(
    ("routing", "tasks", "found"),
    [
        ({}, {}, {}),
        ({"statistics": "full"}, {}, {"one": ["routing"], "two": ["routing"]}),
        ({"statistics": "small"}, {}, {"one": ["routing"], "two": ["routing"]}),
        ({}, {"two": {"routing": "off"}}, {"two": ["routing"]}),
        ({}, {"three": {}}, {"three": ["routing"]}),
        ({}, {"one": {"routing": {"reject": 0.03}}}, {"one": ["routing.reject"]}),
        ({}, {"two": {"routing": {"reject": 0.03}}}, {"two": ["routing.reject"]}),
        (
            {},
            {"two": {"routing": {"reject": 0.05}}},
            {"two": ["routing.reject"]},
        ),  # near-duplicates: no limit is stored
        ({"reject": 0.3}, {}, {}),  # the first task has its own limit, the second one none
    ],
)
def test_changed_routing_of_a_learned_task_is_noticed(
    backbone: Path, routed: Path, routing: dict[str, Any], tasks: dict[str, Any], found: dict[str, list[str]]
) -> None:
    own = {"one": {"routing": {"reject": 0.02}}, "three": {"routing": "off"}, **tasks}
    given = tasks_of(backbone, routing={"statistics": "compact", "reject": 0.05, **routing}, tasks=own)
    assert settings_that_differ(Session(given.spec, Store(routed))) == found


def test_one_layer_has_one_layer_whatever_is_asked_for(tmp_path: Path) -> None:
    model, place = make_model("bert"), tmp_path / "one"
    model.config.num_hidden_layers = 1
    type(model)(model.config).save_pretrained(place)
    make_tokenizer().save_pretrained(place)
    own = {"training": QUICK, "routing": "compact"}
    run = learn(stream(place, [task("one", num_rows=16)], **own), tmp_path / "run")
    for statistics, found in (("compact", {}), ("small", {}), ("full", {"one": ["routing"]})):
        given = stream(place, [task("one", num_rows=16)], **own | {"routing": statistics})
        assert settings_that_differ(Session(given.spec, Store(run.store.folder))) == found


def test_changed_file_of_labels_is_noticed(backbone: Path, learned: Path, names: Path) -> None:
    session = Session(tasks_of(backbone).spec, Store(learned))
    names.write_text('["yes", "no"]')
    assert settings_that_differ(session) == {"two": ["labels"]}
    for damage in (lambda: names.write_text("no list"), names.unlink):
        damage()
        assert settings_that_differ(session) == {}


@pytest.mark.parametrize("key", sorted(ResolvedTraining.model_fields))
def test_changed_training_of_a_learned_task_is_noticed(backbone: Path, learned: Path, key: str) -> None:
    spec = tasks_of(backbone).spec
    value = getattr(changed(("training", key)).training, key)
    if value == getattr(Store(learned).certificate("one").training, key):
        value = ResolvedTraining.model_fields[key].default
    one = spec.tasks[0].model_copy(update={"training": TrainingOverride.model_construct(**{key: value})})
    session = Session(spec.model_copy(update={"tasks": (one, *spec.tasks[1:])}), Store(learned))
    name = f"training.{key}"
    if key == "packing":  # has no effect on a classification task
        assert settings_that_differ(session) == {}
        return
    found = [name, "training.epochs"] if key == "max_steps" else [name]  # with a number of steps, epochs have no effect
    assert settings_that_differ(session) == ({} if name in NOT_DECIDING else {"one": found})


@SETTINGS
def test_two_runs_differ_in_a_setting(learned: Path, path: tuple[str | int, ...]) -> None:
    """Also if the banks, the rows and the scores are the same."""
    certificate = Store(learned).certificate("one")
    one, other = (certificate.model_copy(update=dict(plan)) for plan in (WHOLE, changed(path)))
    found = _compared(one, other)
    assert found["same"] is (name_of(path) in NOT_DECIDING)
    assert bool(found["specification"]) is not found["same"]


def test_two_runs_with_the_same_settings_are_the_same(learned: Path, own: Path) -> None:
    assert differences(Store(learned), Store(own))["same"]


@pytest.fixture(scope="module")
def begun(backbone: Path, learned: Path, tmp_path_factory: pytest.TempPathFactory) -> TaskRun:
    """Return a task that began with the plan `WHOLE`, and has saved a checkpoint."""
    folder = shutil.copytree(learned, tmp_path_factory.mktemp("begun") / "run")
    run = dataclasses.replace(Open(tasks_of(backbone), folder).run, plan=WHOLE)
    assert keep_or_discard(run, "off") == ()
    (run.folder / LAST).touch()
    return run


@SETTINGS
def test_task_resumes_only_with_the_settings_it_began_with(begun: TaskRun, path: tuple[str | int, ...]) -> None:
    check_share(begun)
    run, name = dataclasses.replace(begun, plan=changed(path)), name_of(path)
    # What matters is which states are cached: here, none.
    if name in NOT_DECIDING or name in ("training.prefix_cache", "training.prefix_cache_bytes"):
        check_share(run)
        return
    with pytest.raises(InputError, match=f"its saved progress cannot be used, because .*{name}.* changed since"):
        keep_or_discard(run, "off")
    with pytest.raises(InputError, match=f"{name}.* changed after its fit began"):
        check_share(run)


@pytest.mark.parametrize("value", [False, None])
def test_arguments_of_the_trainer_decide_even_if_they_are_off(
    begun: TaskRun, monkeypatch: pytest.MonkeyPatch, value: bool | None
) -> None:
    """Some of Lightning's defaults are True."""
    trainer = {"inference_mode": value}
    monkeypatch.setattr(begun.session, "spec", begun.session.spec.model_copy(update={"trainer": trainer}))
    with pytest.raises(InputError, match=r"trainer\.inference_mode changed"):
        check_share(begun)


def committed_by_this_command(session: Session, tasks: list[str]) -> None:
    """Make a replacement look as if it had committed these tasks and was then stopped."""
    begin_replacing(session, tasks)
    file = session.store.folder / ".replace.json"
    content = json.loads(file.read_bytes())
    for each in content["tasks"].values():
        each["after"] = 0
    write_sealed(file, {key: value for key, value in content.items() if key != "seal"})


def test_replaced_task_is_not_replaced_again(backbone: Path, own: Path) -> None:
    session = Session(tasks_of(backbone).spec, Store(own))
    committed_by_this_command(session, ["two", "three"])
    pending, notices = begin_replacing(session, ["two", "three"])
    assert pending == set()
    assert len(notices) == 2


def test_edited_file_of_labels_is_a_new_replacement(backbone: Path, own: Path, names: Path) -> None:
    session = Session(tasks_of(backbone).spec, Store(own))
    committed_by_this_command(session, ["two", "three"])
    names.write_text('["yes", "no"]')
    assert begin_replacing(session, ["two", "three"])[0] == {"two"}


def test_bank_that_starts_from_a_replaced_one_is_replaced_again(backbone: Path, own: Path) -> None:
    """The first task is still to be replaced, and the second one started from its old bank."""
    session = Session(tasks_of(backbone).spec, Store(own))
    committed_by_this_command(session, ["one", "two", "three"])
    assert begin_replacing(session, ["three", "two", "one"])[0] == {"one", "two"}


def test_worker_with_another_version_of_a_file_is_noticed(
    backbone: Path, tmp_path: Path, names: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers on another machine may see another version of a file that the stream names."""
    tasks = tasks_of(backbone, tasks={"two": {"bank": {"preset": "houlsby", "bottleneck": 4}}})
    session = Session(tasks.spec, Store(tmp_path))
    two = session.spec.tasks[1]
    stage(session.store, learn_bank(session, two))
    names.write_text('["yes", "no"]')
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(InputError, match=r"cannot be used, because labels.* changed"),
    ):
        commit_staged(session, two, ())
    assert "labels was ['no', 'yes'], is ['yes', 'no']" in caplog.text
    assert session.store.tasks == []


def test_options_are_named_as_the_user_named_them(backbone_folder: Folder, tmp_path: Path) -> None:
    choose = task_of_kind("causal-lm", "choose", num_rows=16)
    rows = [{"source": row["source"], "target": "w1"} for row in choose["data"]["train"]]
    del choose["generation"]
    data = {"train": rows, "validation": rows[:4], "test": rows[:4]}
    tasks = [choose | {"data": data, "options": ["w1", "w2"]}]
    run = learn(stream(backbone_folder("gpt2"), tasks, training=QUICK), tmp_path / "run")
    tasks[0]["options"] = ["w2", "w1"]
    spec = stream(backbone_folder("gpt2"), tasks, training=QUICK).spec
    assert settings_that_differ(Session(spec, run.store)) == {"choose": ["options"]}
