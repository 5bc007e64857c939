"""Lists of zeros and ones are read as one entry per label, or refused; lists of names stay names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.preprocessing import MultiLabelBinarizer

from continual_petl.errors import InputError
from continual_petl.streams.preparation.checked_rows import Checked
from continual_petl.streams.preparation.prepare import _read, check_again
from continual_petl.streams.schema.stream_spec import StreamSpec

NAMES = ["sport", "news", "music"]
ROWS = [[1, 0, 0], [0, 1, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1]]


def spec_of(values: list[Any], *, test: list[Any] | None = None, **more: Any) -> StreamSpec:
    data = {"train": values, "validation": values[:4], **({} if test is None else {"test": test})}
    rows = {split: [{"text": f"{split} {n}", "label": v} for n, v in enumerate(own)] for split, own in data.items()}
    task = {"name": "toy", "kind": "multilabel", "data": rows, **more}
    return StreamSpec.model_validate({"name": "s", "seed": 3, "backbone": "x", "tasks": [task]})


def read(spec: StreamSpec) -> tuple[tuple[str, ...] | None, dict[str, Checked]]:
    return _read(spec, spec.tasks[0], True)[:2]


FORMS: dict[str, Callable[[Any], Any]] = {
    "list": lambda row: row,
    "tuple": tuple,
    "array": np.array,
    "floats in an array": lambda row: np.array(row, dtype=np.float32),
    "flags in an array": lambda row: np.array(row, dtype=bool),
    "tensor": torch.tensor,
    "bool": lambda row: [bool(value) for value in row],
    "float": lambda row: [float(value) for value in row],
    "digits": lambda row: [str(value) for value in row],
    "JSON": json.dumps,
    "JSON flags": lambda row: json.dumps([bool(value) for value in row]),
    "commas": lambda row: ",".join(map(str, row)),
    "spaces": lambda row: " ".join(map(str, row)),
    "printed array": lambda row: str(np.array(row)),
    "printed floats": lambda row: str(np.array(row, dtype=float)),
    "words": lambda row: [str(bool(value)) for value in row],
    "lower words": lambda row: [str(bool(value)).lower() for value in row],
    "printed list of flags": lambda row: str([bool(value) for value in row]),
    "printed array of flags": lambda row: str(np.array(row, dtype=bool)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_zeros_and_ones_is_read_as_flags(form: str) -> None:
    labels, splits = read(spec_of([FORMS[form](row) for row in ROWS], labels=NAMES))
    assert labels == tuple(NAMES)
    # An independent reading: scikit-learn turns the flags into sets of names.
    wanted = MultiLabelBinarizer(classes=NAMES).fit([NAMES]).inverse_transform(np.array(ROWS))
    assert [tuple(names) for names in splits["train"].names] == wanted
    assert splits["train"].answers.tolist() == ROWS


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_files_hold_flags(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data.{suffix}"
    if suffix == "csv":
        path.write_text("text,label\n" + "".join(f't{n},"{row}"\n' for n, row in enumerate(ROWS)))
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps({"text": f"t{n}", "label": row}) + "\n" for n, row in enumerate(ROWS)))
    else:
        pq.write_table(pa.table({"text": [f"t{n}" for n in range(len(ROWS))], "label": ROWS}), path)
    task = {"name": "toy", "kind": "multilabel", "data": str(path), "labels": NAMES, "validation": 0.2}
    spec = StreamSpec.model_validate({"name": "s", "backbone": "x", "tasks": [task]})
    _, splits = read(spec)
    found = {key: row for split in splits.values() for key, row in zip(split.keys, split.answers.tolist(), strict=True)}
    assert found == {json.dumps([f"t{n}", None]): row for n, row in enumerate(ROWS)}


@pytest.mark.parametrize(
    ("values", "labels", "says"),
    [
        (
            ROWS,
            None,
            r"every row is a list of 3 zeros and ones, such as \[1, 0, 0\].*no labels are given. Write labels:",
        ),
        (ROWS, ["a", "b"], r"one entry for each of 3 labels, but labels names 2 \('a', 'b'\)"),
        ([[1, 0], [0, 1], [1, 0], [0, 1]], None, "a list of 2 zeros and ones"),
        ([[1, 0], [0, 1], [1, 0], [0, 1]], ["0", "1"], "an entry is also the name of a label"),
        ([["True", "False"], ["False", "True"]] * 2, None, "a list of 2 zeros and ones, such as .*no labels are given"),
        ([[True, False], [False, True]] * 2, None, "a list of 2 zeros and ones, such as .*no labels are given"),
        ([["true", "false"], ["false", "true"]] * 2, ["true", "false"], "an entry is also the name of a label"),
        *(
            ([[one], [two]] * 2, labels, "every row is a list of one entry, which is 0 or 1 .*kind: classification")
            for one, two in ((1, 0), (True, False), ("1", "0"), (1.0, 0.0), ("True", "False"))
            for labels in (None, ["a", "b"], ["a", "b", "c"])
        ),
        (["[1]", "[0]"] * 2, None, "every row is a list of one entry"),
        (["[ True]", "[False]"] * 2, ["a", "b"], "every row is a list of one entry"),
        ([[1], [], [0], []], None, "every row is a list of one entry"),
        ([[True], [True, False], [False]], None, r"3 rows cannot be used: row 1: \[True\] holds true or false"),
        ([[True], [True, False], []], ["a", "b"], "2 rows cannot be used: .*Write one entry for each label"),
        ([*ROWS, []], NAMES, r"row 7: \[\] is not of this form. The other rows are lists of 3 zeros and ones"),
        ([*ROWS, [1, 0]], NAMES, r"row 7: \[1, 0\] is not of this form"),
        ([*ROWS, [1, 0, 2]], NAMES, r"row 7: \[1, 0, 2\] is not of this form"),
        ([*ROWS, [0.5, 0, 1]], NAMES, r"row 7: \[0.5, 0, 1\] is not of this form"),
        ([*ROWS, None], NAMES, "row 7: missing"),
        ([[1, 0], [0, 1], [1, 0], []], ["a", "b"], "row 4: empty. The other rows are lists of 2 zeros and ones"),
        ([[1, 0, 0], ["a"], ["b"]], ["a", "b"], "listed more than once.*as `labels` has names"),
    ],
)
def test_flags_without_names_are_refused(values: list[Any], labels: list[str] | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(spec_of(values, labels=labels))


def test_names_and_positions_stay_what_they_are() -> None:
    _, splits = read(spec_of([["0"], ["0", "1"], ["1"], []]))
    assert splits["train"].names == [["0"], ["0", "1"], ["1"], []]
    _, splits = read(spec_of([[0], [1, 2], [2], []], labels=NAMES))
    assert splits["train"].names == [["sport"], ["news", "music"], ["music"], []]
    _, splits = read(spec_of([["0"], ["1"], ["1"], ["0"]], labels=["0", "1"]))
    assert splits["train"].names == [["0"], ["1"], ["1"], ["0"]]
    # In a split whose rows could be both, the labels of the training rows decide.
    _, splits = read(spec_of([["0"], ["0", "1"], ["1"], []], test=[["0", "1"], ["1", "0"]]))
    assert splits["test"].names == [["0", "1"], ["0", "1"]]


@pytest.mark.parametrize("pair", [[1, 0], [True, False], ["True", "False"], ["1", "0"]])
def test_two_entries_are_flags_of_two_labels(pair: list[Any]) -> None:
    _, splits = read(spec_of([pair, pair[::-1], pair, pair], labels=["a", "b"]))
    assert splits["train"].names == [["a"], ["b"], ["a"], ["a"]]


def test_splits_in_different_forms_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"split test holds lists of 3 zeros and ones .multi-hot., but split train names"
    ):
        read(spec_of([["sport"], ["news", "music"], [], ["music"]], test=ROWS, labels=NAMES))
    with pytest.raises(
        InputError, match=r"split train holds lists of 3 zeros and ones .multi-hot., but split test names"
    ):
        read(spec_of(ROWS, test=[["sport"], ["news"]], labels=NAMES))


def test_a_learned_task_reads_its_rows_again_as_flags() -> None:
    spec = spec_of(ROWS, test=ROWS[::-1], labels=NAMES)
    _, splits = read(spec)
    again = check_again(spec, spec.tasks[0], split="test", labels=tuple(NAMES))
    assert again.digest == splits["test"].digest
    assert again.answers.tolist() == ROWS[::-1]
