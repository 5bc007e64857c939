"""`split` cuts one entry of a stream file into tasks by its labels."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl.errors import InputError, StreamFileError
from continual_petl.streams.protocols.splitting import check_division, split_labels, split_names
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream import TaskStream
from continual_petl.streams.stream_file import split_entries
from continual_petl.streams.stream_file.yaml_file import dump_stream, load_located, load_stream, load_task

SIX = "name: s, kind: classification, data: x.csv, labels: [a, b, c, d, e, f]"
DIVISIONS = st.tuples(st.integers(4, 60), st.integers(2, 30)).filter(lambda nk: nk[1] < nk[0] and nk[0] % nk[1] != 1)


def stream_file(tmp_path: Path, *entries: str, head: str = "") -> Path:
    """Write a stream with these entries, the first on line 4."""
    lines = ["name: s", "backbone: minilm", head or "seed: 1", *(f"tasks: [{{{entry}}}," for entry in entries[:1])]
    file = tmp_path / "s.yaml"
    file.write_text("\n".join([*lines, *(f"  {{{entry}}}," for entry in entries[1:]), "]"]))
    return file


@settings(derandomize=True, max_examples=50, deadline=None)
@given(DIVISIONS, st.integers(0, 2**63 - 1), st.randoms(use_true_random=False))
def test_every_class_is_in_exactly_one_task(division: tuple[int, int], seed: int, shuffle: random.Random) -> None:
    num_labels, size = division
    labels = [f"label {number}" for number in range(num_labels)]
    groups = split_labels(labels, size, seed)
    assert sorted(label for group in groups for label in group) == sorted(labels)
    assert {len(group) for group in groups[:-1]} == {size}
    assert 2 <= len(groups[-1]) <= size
    shuffle.shuffle(labels)
    assert split_labels(labels, size, seed) == groups


def test_another_seed_is_another_split() -> None:
    labels = [str(number) for number in range(20)]
    assert len({str(split_labels(labels, 5, seed)) for seed in range(10)}) == 10


def test_split_is_the_same_on_every_machine() -> None:
    """The labels are sorted by a hash that is computed here as the documentation of `derive_seed` describes."""
    import hashlib

    def rank(label: str) -> bytes:
        return hashlib.sha256(f"int:7\x1fstr:split\x1fstr:{label}".encode()).digest()[:8]

    order = sorted("abcdefgh", key=lambda label: int.from_bytes(rank(label), "big") >> 1)
    assert split_labels("abcdefgh", 4, seed=7) == [tuple(order[:4]), tuple(order[4:])]


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.integers(2, 60), st.integers(2, 70))
def test_advice_of_a_refused_division_works(num_labels: int, size: int) -> None:
    try:
        check_division(num_labels, size)
    except ValueError as error:
        _, _, advice = str(error).partition("write ")
        for number in advice.partition(",")[0].split(" or ") if advice else ():
            check_division(num_labels, int(number))


def test_names_have_as_many_digits_as_the_last_one() -> None:
    assert split_names("s", 3) == ["s-01", "s-02", "s-03"]
    assert [split_names("s", 100)[number] for number in (0, 99)] == ["s-001", "s-100"]


def test_entry_becomes_its_tasks_in_its_place(tmp_path: Path) -> None:
    other = "name: {}, kind: regression, data: y.csv"
    more = "limits: {train: 9}, split: {classes_per_task: 4, seed: 2}"
    spec = load_stream(stream_file(tmp_path, other.format("one"), f"{SIX}, {more}", other.format("two")))
    assert [task.name for task in spec.tasks] == ["one", "s-01", "s-02", "two"]
    assert [task.labels for task in spec.tasks[1:3]] == split_labels("abcdef", 4, 2)
    for task in spec.tasks[1:3]:
        assert (task.split, task.all_labels, task.limits.train) == (None, tuple("abcdef"), 9)


def test_expanded_stream_is_written_and_read_again(tmp_path: Path) -> None:
    spec = load_stream(stream_file(tmp_path, f"{SIX}, split: {{classes_per_task: 2}}", head="protocol: class"))
    (tmp_path / "again.yaml").write_text(dump_stream(spec))
    assert load_stream(tmp_path / "again.yaml") == spec
    assert "split" not in dump_stream(spec)


def test_labels_may_be_in_a_file_that_each_task_names(tmp_path: Path) -> None:
    (tmp_path / "names.json").write_text(json.dumps(list("abcdef")))
    entry = SIX.replace("[a, b, c, d, e, f]", "names.json")
    spec = load_stream(stream_file(tmp_path, f"{entry}, split: {{classes_per_task: 3}}"))
    assert [task.labels for task in spec.tasks] == split_labels("abcdef", 3, 0)
    assert {spec.resolved_all_labels(task) for task in spec.tasks} == {str(tmp_path / "names.json")}


@pytest.mark.parametrize(
    ("entry", "key", "text"),
    [
        ("name: s, kind: classification, data: x.csv", "split", "split needs labels, before any data is read"),
        (SIX.replace(", f]", "]"), "split", "only one of 5 labels is left for the last task"),
        (SIX.replace("c, d, e, f]", "]"), "split", "but there are 2 labels, enough for only one task"),
        (
            SIX.replace("classification", "multilabel"),
            "split",
            "has no effect on a multilabel task (it is for classification,",
        ),
        (SIX.replace("[a, b, c, d, e, f]", "none.json"), "labels", "cannot read "),
        (SIX.replace("name: s", f"name: {'s' * 62}"), "name", "is longer than 64 characters: choose a shorter name"),
    ],
)
def test_entry_that_cannot_be_split_is_reported_at_its_line(tmp_path: Path, entry: str, key: str, text: str) -> None:
    file = stream_file(tmp_path, "name: one, kind: regression, data: y.csv", f"{entry}, split: {{classes_per_task: 2}}")
    with pytest.raises(StreamFileError) as caught:
        load_stream(file)
    (told,) = caught.value.problems
    assert told.startswith(f"{file}:5: key tasks.1.{key}")
    assert text in told


def test_name_of_another_entry_is_refused(tmp_path: Path) -> None:
    file = stream_file(tmp_path, f"{SIX}, split: {{classes_per_task: 2}}", "name: S-02, kind: regression, data: y.csv")
    with pytest.raises(StreamFileError, match=r":5: key tasks.1.name: split makes a task 'S-02', .* tasks.0: rename"):
        load_stream(file)


def test_tasks_of_a_split_differ_too_much_for_domain(tmp_path: Path) -> None:
    file = stream_file(tmp_path, f"{SIX}, split: {{classes_per_task: 2}}", head="protocol: domain")
    with pytest.raises(StreamFileError, match=r"tasks.0.split .*: its tasks would have different labels"):
        load_stream(file)


def test_overrides_apply_to_the_entry_as_written(tmp_path: Path) -> None:
    file = stream_file(tmp_path, f"{SIX}, split: {{classes_per_task: 2}}")
    spec = load_stream(file, [("tasks.s.split.classes_per_task", "3"), ("tasks.s.training.epochs", "7")])
    assert [task.training.given() for task in spec.tasks] == [{"epochs": 7}] * 2
    with pytest.raises(StreamFileError, match=r"there is no task 's-01'; the tasks, .* are: 0 s"):
        load_stream(file, [("tasks.s-01.training.epochs", "7")])


def test_class_weights_go_to_the_tasks_of_their_labels(tmp_path: Path) -> None:
    weights = "training: {class_weights: {a: 2, b: 3, z: 4}}"
    spec = load_stream(stream_file(tmp_path, f"{SIX}, {weights}, split: {{classes_per_task: 2}}"))
    found = [set(task.training.class_weights or ()) for task in spec.tasks]
    assert found == [{"z", *{"a", "b"}.intersection(task.labels or ())} for task in spec.tasks]


def test_problem_of_a_task_has_the_line_of_its_entry(tmp_path: Path) -> None:
    last = "name: two, kind: regression, data: y.csv"
    _, places = load_located(stream_file(tmp_path, f"{SIX}, split: {{classes_per_task: 2}}", last))
    found = places.with_more([(("tasks", 2, "data"), "is missing"), (("tasks", 3, "data"), "is missing, too")])
    assert [text.partition("s.yaml:")[2] for text in found] == [
        "4: key tasks.0.data: is missing",
        "5: key tasks.1.data: is missing, too",
    ]


def test_file_of_one_task_cannot_be_split(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(f"{{{SIX}, split: {{classes_per_task: 2}}}}")
    with pytest.raises(StreamFileError, match=r"key split: this is the file of one task, and split makes several"):
        load_task(tmp_path / "t.yaml")


def test_streams_from_python_are_split(tmp_path: Path) -> None:
    task: dict[str, Any] = {"name": "s", "kind": "classification", "data": "x", "labels": list("abcd")}
    spec = {"name": "s", "backbone": "minilm", "tasks": [task | {"split": {"classes_per_task": 2}}]}
    assert [task.name for task in TaskStream(StreamSpec.model_validate(spec))] == ["s-01", "s-02"]
    spec["tasks"] = [task | {"labels": str(tmp_path / "none.json"), "split": {"classes_per_task": 2}}]
    with pytest.raises(InputError, match=r"key tasks\.0\.labels \(task s\): labels: cannot read"):
        TaskStream(StreamSpec.model_validate(spec))


def test_lists_too_long_for_the_file_of_a_run_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_entries, "MAX_ENTRIES", 30)
    file = stream_file(tmp_path, f"{SIX}, split: {{classes_per_task: 2}}")
    with pytest.raises(
        StreamFileError, match="3 tasks, and a file with 6 labels in each of them is too large: write the"
    ):
        load_stream(file)
    monkeypatch.setattr(split_entries, "MAX_TASKS", 2)
    monkeypatch.setattr(split_entries, "MAX_ENTRIES", 100)
    with pytest.raises(StreamFileError, match="would have 3 tasks, but at most 2 are allowed: raise classes_per_task"):
        load_stream(file)
