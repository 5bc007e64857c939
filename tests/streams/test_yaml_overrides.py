"""Dotted overrides: which keys they set, how values are parsed, and the errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from continual_petl.errors import StreamFileError
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream_file.overrides import unreached
from continual_petl.streams.stream_file.yaml_file import load_stream, load_task

TEXT = """\
name: desk
backbone: minilm
data_dir: ${UNSET_IN_THIS_TEST}
trainer: {strategy: {kind: x}}
tasks:
  - {name: agnews, kind: classification, data: a.csv, labels: [x, y]}
  - {name: sst.v2, kind: classification, data: {path: csv, data_files: {train: b.csv}}, bank: lora}
  - {name: sst, kind: classification, data: c.csv}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


DIR = ("data_dir", "/d")


def _schedule(spec: StreamSpec, number: int) -> Any:
    return spec.resolved_training(spec.tasks[number]).schedule


@pytest.mark.parametrize(
    ("override", "look", "value"),
    [
        (("training.learning_rate", "1e-3"), lambda s: s.training.learning_rate, 1e-3),
        (("--training.epochs", "7"), lambda s: s.training.epochs, 7),
        (("training.gradient_clip", "null"), lambda s: s.training.gradient_clip, None),
        (("training.betas", "[0.5, 0.9]"), lambda s: s.training.betas, (0.5, 0.9)),
        (("training.schedule", "cosine"), lambda s: s.training.schedule, "cosine"),
        (("training.schedule", "{name: cosine}"), lambda s: s.training.schedule, "cosine"),
        (
            ("tasks.sst.training.schedule", "{name: polynomial, power: 2}"),
            lambda s: _schedule(s, 2).options,
            {"power": 2},
        ),
        (("tasks.agnews.training.epochs", "1"), lambda s: s.resolved_training(s.tasks[0]).epochs, 1),
        (("tasks.2.training.epochs", "1"), lambda s: s.resolved_training(s.tasks[2]).epochs, 1),
        (("tasks.sst.v2.training.epochs", "1"), lambda s: s.resolved_training(s.tasks[1]).epochs, 1),
        (("tasks.sst.training.epochs", "1"), lambda s: s.resolved_training(s.tasks[2]).epochs, 1),
        (("tasks.sst.v2.bank.rank", "3"), lambda s: s.resolved_bank(s.tasks[1]).modifications[0].bottleneck, 3),
        (("tasks.sst.bank.start_from", "agnews"), lambda s: s.tasks[2].bank.inherits, True),
        (("tasks.agnews.labels.1", "z"), lambda s: s.tasks[0].labels, ("x", "z")),
        (("bank", "pfeiffer"), lambda s: s.bank.preset, "pfeiffer"),
        (("bank", "{preset: lora, rank: 2}"), lambda s: s.bank.resolve().modifications[0].bottleneck, 2),
        (("bank.bottleneck", "16"), lambda s: (s.bank.preset, s.bank.bottleneck), ("houlsby", 16)),
        (
            ("routing", "small"),
            lambda s: (s.resolved_routing(s.tasks[0]), s.resolved_reject(s.tasks[0])),
            ("small", 0.01),
        ),
        (("routing.reject", "0.3"), lambda s: s.resolved_reject(s.tasks[1]), 0.3),
        (
            ("tasks.sst.routing.reject", "0.2"),
            lambda s: [s.resolved_reject(task) for task in s.tasks],
            [0.01, 0.01, 0.2],
        ),
        (("tasks.sst.routing", "off"), lambda s: s.resolved_routing(s.tasks[2]), "off"),
        (("backbone.max_length", "64"), lambda s: (s.backbone.name, s.backbone.max_length), ("minilm", 64)),
        (("name", "'2024'"), lambda s: s.name, "2024"),
        (("name", " no "), lambda s: s.name, "no"),
        (("trainer.devices", "1"), lambda s: s.trainer["devices"], 1),
        (("tasks.sst.data", "${HERE}/x #1.csv"), lambda s: s.tasks[2].data, "/here/x #1.csv"),
    ],
)
def test_override_sets_its_key(
    file: Path, monkeypatch: pytest.MonkeyPatch, override: tuple[str, str], look: Any, value: Any
) -> None:
    monkeypatch.setenv("HERE", "/here")
    assert look(load_stream(file, [DIR, override])) == value


@pytest.mark.parametrize("above", ["", "tasks.sst."])
def test_option_of_a_schedule_is_set_beside_its_bare_name(file: Path, above: str) -> None:
    options = [
        DIR,
        (f"{above}training.schedule", "cosine_with_restarts"),
        (f"{above}training.schedule.num_cycles", "2"),
    ]
    schedule = _schedule(load_stream(file, options), 2)
    assert (schedule.name, schedule.options) == ("cosine_with_restarts", {"num_cycles": 2.0})


def test_star_sets_every_task_and_later_override_one_of_them(file: Path) -> None:
    options = [DIR, ("tasks.*.limits", "{train: 9, test: 4}"), ("tasks.sst.limits.train", "8")]
    stream = load_stream(file, options)
    assert [(task.limits.train, task.limits.test) for task in stream.tasks] == [(9, 4), (9, 4), (8, 4)]


@pytest.mark.parametrize(
    ("key", "value", "problems"),
    [
        ("tasks.*", "1", ["--tasks.*: this is not a key: name one below tasks.*, such as --tasks.*.limits.train"]),
        ("tasks.*.limits.trian", "1", ["--tasks.*.limits.trian: unknown key 'trian' (did you mean 'train'?)"]),
        ("tasks.*..x", "1", ["--tasks.*..x: this is not a key: write names separated by single dots"]),
    ],
)
def test_star_without_matching_key_is_refused(file: Path, key: str, value: str, problems: list[str]) -> None:
    with pytest.raises(StreamFileError) as caught:
        load_stream(file, [DIR, (key, value)])
    found = caught.value.problems
    assert len(found) == len(problems)
    assert all(text.startswith(start) for text, start in zip(found, problems, strict=True)), found


def test_tasks_override_on_a_task_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("{name: t, kind: classification, data: a.csv}")
    with pytest.raises(StreamFileError, match=r"^--tasks\.\*\.limits\.train: there are no tasks here$"):
        load_task(tmp_path / "t.yaml", [("tasks.*.limits.train", "1")])


def test_later_override_wins(file: Path) -> None:
    stream = load_stream(file, [DIR, ("bank.rank", "3"), ("training.epochs", "1"), ("training.epochs", "2")])
    assert stream.training.epochs == 2


def test_data_dir_on_the_command_line_is_relative_to_the_working_folder(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    stream = load_stream(file, [("data_dir", "corpora")])
    assert stream.resolved_data(stream.tasks[0]) == str(tmp_path / "work" / "corpora" / "a.csv")


def test_a_task_file_takes_overrides_too(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("name: a\nkind: regression\ndata: a.csv\n", encoding="utf-8")
    assert load_task(tmp_path / "t.yaml", [("training.epochs", "9")]).training.given() == {"epochs": 9}


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("training.learning_rate", "fast", "got 'fast'; allowed: a number above 0"),
        ("training.epochs", "", "got ''; allowed: a whole number of at least 1"),
        (
            "training.epoch",
            "1",
            "unknown key 'epoch' (did you mean 'epochs'?); allowed here: epochs, max_steps, batch_size",
        ),
        (
            "bank.rnak",
            "8",
            "unknown key 'rnak' (did you mean 'rank'?); allowed here: preset, modifications, bottleneck, rank",
        ),
        ("bank.scale", ".nan", "got nan; allowed: a number or null; it must be finite"),
        ("trainning.epochs", "1", "unknown key 'trainning' (did you mean 'training'?)"),
        ("tasks.agnew.training.epochs", "1", "there is no task 'agnew' (did you mean 'agnews'?); the tasks, by"),
        ("tasks.7.training.epochs", "1", "there is no task '7'; the tasks, by number and name, are: 0 agnews, 1 sst"),
        (
            "tasks.sst.kind",
            "regresion",
            "got 'regresion' (did you mean 'regression'?); allowed: causal-lm, classification,",
        ),
        ("training..epochs", "1", "this is not a key"),
        ("training.betas", "[0.9", "got '[0.9': this is not readable as YAML"),
        ("training.betas", "[0.9]", "key training.betas.1: is missing"),
        ("name.first", "x", "name is 'desk' in the file and has no keys below it to set"),
        ("tasks.agnews.labels.5", "x", "tasks.0.labels is a list with 2 entries, so the next part must be 0 to 1"),
        ("bank", "{preset: lora, foo: 1}", "key bank.foo: unknown key 'foo'"),
        ("bank.preset", "houlsbee", "unknown preset 'houlsbee'"),
        ("tasks.sst.name", "AGNEWS", "'AGNEWS' is already the name of tasks.0 (as 'agnews'"),
        ("tasks.sst.data", "${UNSET_IN_THIS_TEST}/x", "'${UNSET_IN_THIS_TEST}/x' needs the environment variable"),
        ("name", "2024", "got 2024; allowed: text; if it is meant as text, put it in quotes: '2024'"),
    ],
)
def test_a_wrong_override_is_named_by_its_option(file: Path, key: str, value: str, problem: str) -> None:
    with pytest.raises(StreamFileError) as caught:
        load_stream(file, [DIR, (key, value)])
    (found,) = caught.value.problems
    assert found.startswith(f"--{key}: {problem}")


def test_task_name_that_is_also_an_index_must_be_unambiguous(tmp_path: Path) -> None:
    task = "kind: regression, data: a.csv"
    path = tmp_path / "s.yaml"
    text = f'name: s\nbackbone: b\ntasks:\n  - {{name: "1", {task}}}\n  - {{name: b, {task}}}\n'
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StreamFileError, match=r"1 is both the name of tasks\.0 and the number of task 'b'"):
        load_stream(path, [("tasks.1.training.epochs", "1")])
    assert load_stream(path, [("tasks.0.training.epochs", "1")]).tasks[0].training.given() == {"epochs": 1}


def test_mistakes_of_file_and_overrides_are_reported_together(file: Path) -> None:
    with pytest.raises(StreamFileError) as caught:
        load_stream(file, [("training.epochs", "x"), ("seed", "-1")])
    assert [problem.split(": ")[0] for problem in caught.value.problems] == [f"{file}:3", "--training.epochs", "--seed"]


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ([("training.epochs", "1")], ["training.epochs"]),
        ([("--training.epochs", "1"), ("training.epochs", "2")], ["training.epochs"]),
        ([("training", "{epochs: 1, batch_size: 8}")], ["training.epochs"]),
        ([("training.class_weights.x", "2")], ["training.class_weights"]),
        ([("bank.rank", "2"), ("bank.rank", "3")], ["bank.rank"]),
        ([("training.epochs", "5")], []),  # the task already has this value
        ([("training.batch_size", "8")], []),
        ([("training.epochs", "1"), ("tasks.*.training.epochs", "1")], []),
        ([("tasks.sst.v2.training.epochs", "2"), ("training.epochs", "1")], []),
        ([("tasks.*.bank", "prefix"), ("bank", "prefix")], []),
        ([("seed", "3")], []),
    ],
)
def test_override_hidden_by_a_task_setting_is_reported(
    file: Path, overrides: list[tuple[str, str]], names: list[str]
) -> None:
    own = "training: {epochs: 5, class_weights: {x: 3.0, y: 1.0}}, labels: [x, y], bank: lora}"
    file.write_text(TEXT.replace("bank: lora}", own).replace("trainer: {strategy: {kind: x}}", "bank: lora"))
    given = [*overrides, DIR]
    if overrides == [("training.class_weights.x", "2")]:
        file.write_text(file.read_text() + "training: {class_weights: {x: 1.0, y: 1.0}}\n")
    told = unreached(load_stream(file, given), given)
    assert [sentence.split(" does not apply to sst.v2: ")[0] for sentence in told] == [f"--{name}" for name in names]
    if overrides == [("training.epochs", "1")]:
        assert told[0].endswith("use --tasks.sst.v2.training.epochs for one task, --tasks.*.training.epochs for all")
