"""A task that uses only some labels of its data: which rows it keeps, and what is reported about the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from continual_petl.errors import InputError
from continual_petl.streams.preparation.prepare import TaskData, check_again, prepare_task
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream import TaskStream

ALL = ["a", "b", "c", "d"]
Prepare = Callable[..., TaskData]


def rows(*labels: Any, first: int = 0) -> list[dict[str, Any]]:
    """Return one row for each label, each with a different text."""
    return [{"text": f"w{first + number} w{number % 7}", "label": label} for number, label in enumerate(labels)]


def spec_of(data: Any, **more: Any) -> StreamSpec:
    """Return a stream with one task, which uses the labels d and b."""
    task = {"name": "t", "kind": "classification", "data": data, "labels": ["d", "b"], "all_labels": ALL, **more}
    return StreamSpec.model_validate({"name": "s", "backbone": "minilm", "tasks": [task]})


@pytest.fixture
def prepare(tokenizer: PreTrainedTokenizerFast) -> Prepare:
    """Return a function that prepares the first task of a stream."""
    return lambda spec: prepare_task(spec, spec.tasks[0], tokenizer, 16)


def test_rows_of_other_labels_are_left_out_of_every_split_and_counted(prepare: Prepare) -> None:
    data = {"train": rows(*"abcdbd"), "validation": rows(*"bd", first=10), "test": rows(*"cdb", first=20)}
    found = prepare(spec_of(data))
    assert found.labels == ("d", "b")
    assert found.train.labels is not None
    assert found.train.labels.tolist() == [1, 0, 1, 0]
    assert (len(found.validation), len(found.test or ())) == (2, 2)
    (notice,) = [notice for notice in found.notices if "left out" in notice]
    assert notice == (
        "task 't': 2 of 6 train rows, 1 of 3 test rows have labels of other tasks (all_labels) and are left out."
    )


def test_rows_of_other_labels_do_not_change_the_task(prepare: Prepare) -> None:
    whole = prepare(spec_of({"train": rows(*"abcd" * 10)}))
    own = [row for row in rows(*"abcd" * 10) if row["label"] in "bd"]
    alone = prepare(spec_of({"train": own}, all_labels=None))
    assert whole.digests == alone.digests


def test_integers_are_positions_in_all_labels(prepare: Prepare) -> None:
    by_number = prepare(spec_of({"train": rows(*[0, 1, 2, 3] * 5)}))
    by_name = prepare(spec_of({"train": rows(*"abcd" * 5)}))
    assert by_number.digests == by_name.digests


def test_label_missing_from_all_labels_is_a_mistake(prepare: Prepare) -> None:
    with pytest.raises(
        InputError, match=r"row 3: label .x. is unknown\. The classes are those of the list `all_labels`"
    ) as error:
        prepare(spec_of({"train": rows(*"abx")}))
    assert error.value.key == ("all_labels",)


def test_mistakes_in_rows_have_their_numbers_in_the_file(prepare: Prepare) -> None:
    data = rows(*"abcdd")
    data[3]["text"] = " "
    with pytest.raises(InputError, match="1 row cannot be used: row 4: empty"):
        prepare(spec_of({"train": data}))


def test_mistakes_in_rows_of_other_tasks_are_reported_there(prepare: Prepare) -> None:
    data = rows(*"abcdbd")
    data[0]["text"] = ""
    assert len(prepare(spec_of({"train": data, "validation": rows(*"bd", first=9)})).train) == 4


def test_split_without_rows_of_the_task_is_a_mistake(prepare: Prepare) -> None:
    with pytest.raises(
        InputError, match=r"split test .*: none of 2 rows has a label of this task \('b', 'd'\)"
    ) as error:
        prepare(spec_of({"train": rows(*"abcdbd"), "test": rows(*"ac", first=9)}))
    assert error.value.key == ("labels",)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_rows_are_the_same_when_they_are_read_again(prepare: Prepare, split: Any) -> None:
    spec = spec_of({"train": rows(*"abcd" * 10)})
    found = prepare(spec)
    assert check_again(spec, spec.tasks[0], split=split, labels=("d", "b")).digest == found.digests[split]


def test_label_must_be_among_all_labels(tmp_path: Path, prepare: Prepare) -> None:
    with pytest.raises(ValueError, match="the label 'd' of this task is missing here: list all labels of the data"):
        spec_of("x.csv", all_labels=["a", "b"])
    (tmp_path / "all.json").write_text(json.dumps(["a", "b"]))
    with pytest.raises(InputError, match="its label 'd' is not in all_labels, which lists all labels of the data"):
        prepare(spec_of({"train": rows(*"ab")}, all_labels=str(tmp_path / "all.json")))


def test_integers_in_a_local_copy_are_positions_in_its_labels_file(tmp_path: Path, prepare: Prepare) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows(*[0, 1, 2, 3] * 5)))
    (copy / "labels.json").write_text(json.dumps(["d", "c", "b", "a"]))
    spec = spec_of({"path": "some/set", "local": "copy"}).model_copy(update={"data_dir": str(tmp_path)})
    named = prepare(spec_of({"train": rows(*"dcba" * 5)}))
    assert prepare(spec).digests == named.digests


def test_tasks_of_a_split_have_every_row_once(prepare: Prepare) -> None:
    labels = [f"label {number}" for number in range(7)]
    entry = {"name": "t", "kind": "classification", "data": {"train": rows(*labels * 6)}, "labels": labels}
    tree = {"name": "s", "backbone": "minilm", "tasks": [entry | {"split": {"classes_per_task": 4}}]}
    stream = TaskStream(StreamSpec.model_validate(tree))
    sizes = []
    for task in stream:
        found = prepare(stream.spec.model_copy(update={"tasks": (task,)}))
        sizes.append(len(found.train) + len(found.validation))
    assert sizes == [24, 18]
