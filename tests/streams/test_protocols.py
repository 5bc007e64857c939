"""The protocol of a stream: which kinds and labels its tasks may have, and the errors for others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl.errors import InputError, StreamFileError
from continual_petl.streams.protocols.rules import evaluated_by_label, label_clashes
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream_file.yaml_file import load_stream

HEAD = "name: s\nbackbone: minilm\nprotocol: {}\ntasks:\n"
LABELS = st.lists(st.lists(st.sampled_from("abcdef"), min_size=2, unique=True), max_size=5)


def problems(tmp_path: Path, protocol: str, *tasks: str) -> list[str]:
    """Return the mistakes reported for a stream with these tasks, without the name of the file."""
    file = tmp_path / "s.yaml"
    file.write_text(HEAD.format(protocol) + "".join(f"  - {{data: x.csv, {task}}}\n" for task in tasks))
    try:
        load_stream(file)
    except StreamFileError as error:
        return [problem.removeprefix(f"{file}:") for problem in error.problems]
    return []


def test_all_protocols_except_task_evaluate_by_label_alone() -> None:
    assert not evaluated_by_label("task")
    assert evaluated_by_label("class")
    assert evaluated_by_label("domain")
    assert evaluated_by_label("revisit")


def test_protocol_is_task_unless_written(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("{name: s, backbone: minilm, tasks: [{name: a, kind: regression, data: x.csv}]}")
    assert load_stream(file).protocol == "task"


@pytest.mark.parametrize("protocol", ["class", "domain", "revisit"])
def test_kinds_without_one_label_per_row_are_reported_at_their_lines(tmp_path: Path, protocol: str) -> None:
    tasks = ("name: a, kind: classification", "name: b, kind: multilabel", "name: c, kind: regression")
    told = problems(tmp_path, protocol, *tasks)
    assert [text.partition(";")[0] for text in told] == [
        "6: key tasks.1.kind (task b): got multilabel",
        "7: key tasks.2.kind (task c): got regression",
    ]
    assert (
        "every task must be classification or image-classification: remove this task, or write protocol: task"
        in told[0]
    )
    assert problems(tmp_path, "task", *tasks) == []


def test_class_refuses_labels_of_earlier_tasks(tmp_path: Path) -> None:
    own = ("[x, 1]", "[u, v]", "[v, '1', w]")
    tasks = [f"name: t{number}, kind: classification, labels: {labels}" for number, labels in enumerate(own)]
    (told,) = problems(tmp_path, "class", *tasks)
    assert told == (
        "7: key tasks.2.labels (task t2): it has labels of earlier tasks ('v' of task 't1'; '1' of task 't0'), but with "
        "protocol: class each label belongs to one task: rename them, or set `protocol: revisit`, which allows labels to "
        "reappear in later tasks"
    )
    assert problems(tmp_path, "revisit", *tasks) == []


def test_domain_refuses_other_labels_but_not_another_order(tmp_path: Path) -> None:
    own = ("[x, y, z]", "[z, x, y]", "[x, y, w]")
    tasks = [f"name: t{number}, kind: classification, labels: {labels}" for number, labels in enumerate(own)]
    (told,) = problems(tmp_path, "domain", *tasks)
    assert told == (
        "7: key tasks.2.labels (task t2): it lacks 'z' and also has 'w', unlike task 't0', but with protocol: domain all "
        "tasks have the same labels: write the same list under labels in every task, or write protocol: revisit, where they "
        "may differ"
    )
    tasks = [f"name: t{n}, kind: classification, labels: [x, {label}]" for n, label in enumerate(("sport", "sprot"))]
    (told,) = problems(tmp_path, "domain", *tasks)
    assert "it lacks 'sport' and also has 'sprot' (did you mean 'sport'?), unlike task 't0'" in told


def test_unknown_protocol_lists_the_known_ones(tmp_path: Path) -> None:
    (told,) = problems(tmp_path, "clas", "name: a, kind: classification")
    assert told == "3: key protocol: got 'clas' (did you mean 'class'?); allowed: task, class, domain, revisit"


def test_mistakes_of_the_protocol_are_reported_with_others(tmp_path: Path) -> None:
    told = problems(tmp_path, "class", "name: a, kind: regression", "name: b, kind: classification, labels: [x]")
    assert [text.split(" ")[2] for text in told] == ["tasks.0.kind", "tasks.1.labels"]


def test_streams_from_python_are_checked() -> None:
    task: dict[str, Any] = {"kind": "classification", "data": "x", "labels": ["x", "y"]}
    tree = {"name": "s", "backbone": "minilm", "protocol": "class", "tasks": [task | {"name": n} for n in "ab"]}
    with pytest.raises(InputError, match="'x', 'y' of task 'a'"):
        StreamSpec.model_validate(tree)
    assert StreamSpec.model_validate(tree | {"protocol": "domain"}).protocol == "domain"


@settings(derandomize=True, max_examples=30, deadline=None)
@given(LABELS)
def test_no_clash_means_disjoint_or_equal(own: list[list[str]]) -> None:
    tasks = [(str(number), labels) for number, labels in enumerate(own)]
    every = [label for labels in own for label in labels]
    assert (label_clashes("class", tasks) == []) == (len(every) == len(set(every)))
    assert (label_clashes("domain", tasks) == []) == (len({frozenset(labels) for labels in own}) <= 1)
    assert label_clashes("revisit", tasks) == label_clashes("task", tasks) == []
