"""Rows given in Python are read from every container, in order, or refused by name."""

from __future__ import annotations

import io
import sqlite3
from collections import deque, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from continual_petl.errors import InputError
from continual_petl.streams import TaskSpec
from continual_petl.streams.schema.containers import record_of, rows_in

ROWS = [{"text": "a b", "label": "x"}, {"text": "c", "label": "y"}, {"text": "d", "label": "x"}]
Row = namedtuple("Row", "text label")
FRAME = pd.DataFrame(ROWS, index=[7, 3, 7])
CLASSES = datasets.Dataset.from_list(ROWS).class_encode_column("label")  # numbers whose names are the labels


class Polars:
    """A table of another library: only Arrow's C stream is known of it."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __iter__(self) -> Any:
        return iter(self._table.column_names)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


class MapStyle:
    """A data set with items by number, which do not end in IndexError."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> str:
        return "a"


def _from_sql() -> list[sqlite3.Row]:
    with sqlite3.connect(":memory:") as base:
        base.row_factory = sqlite3.Row
        rows: list[sqlite3.Row] = base.execute(
            "select 'a b' as text, 'x' as label union all select 'c', 'y' union all select 'd', 'x'"
        ).fetchall()
    base.close()
    return rows


class Mapped(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {**ROWS[number]}


class Streamed(torch.utils.data.IterableDataset[dict[str, Any]]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(ROWS)


TABLES: dict[str, Any] = {
    "map-style of torch": Mapped,
    "part of one of torch": lambda: torch.utils.data.Subset(Mapped(), range(len(ROWS))),
    "iterable of torch": Streamed,
    "list": lambda: ROWS,
    "tuple": lambda: tuple(ROWS),
    "generator": lambda: (row for row in ROWS),
    "deque": lambda: deque(ROWS),
    "values": lambda: dict(enumerate(ROWS)).values(),
    "frame": lambda: FRAME,
    "strings": lambda: FRAME.astype("string"),
    "categories": lambda: FRAME.astype("category"),
    "records": lambda: FRAME.to_dict("records"),
    "series of records": lambda: pd.Series(ROWS),
    "array of records": lambda: np.array(ROWS, dtype=object),
    "pyarrow": lambda: pa.Table.from_pylist(ROWS),
    "batch": lambda: pa.RecordBatch.from_pylist(ROWS),
    "structs": lambda: pa.array(ROWS),
    "polars": lambda: Polars(pa.Table.from_pylist(ROWS)),
    "dataset": lambda: datasets.Dataset.from_list(ROWS),
    "dataset of tables": lambda: datasets.Dataset.from_list(ROWS).with_format("pandas"),
    "dataset of Arrow tables": lambda: datasets.Dataset.from_list(ROWS).with_format("arrow"),
    "streamed dataset": lambda: datasets.Dataset.from_list(ROWS).to_iterable_dataset(),
    "dataset of classes": lambda: CLASSES,
    "dataset of classes as arrays": lambda: CLASSES.with_format("numpy"),
    "streamed dataset of classes": lambda: CLASSES.to_iterable_dataset(),
    "columns of a dataset": lambda: {name: CLASSES[name] for name in ("text", "label")},
    "columns of a streamed dataset": lambda: {name: CLASSES.to_iterable_dataset()[name] for name in ("text", "label")},
    "columns": lambda: {"text": ["a b", "c", "d"], "label": ["x", "y", "x"]},
    "columns of series": lambda: {name: FRAME[name] for name in FRAME.columns},
    "named tuples": lambda: FRAME.itertuples(index=False),
    "own named tuples": lambda: [Row(**row) for row in ROWS],
    "rows of a frame": lambda: [row for _, row in FRAME.iterrows()],
    "sql": _from_sql,
}
REFUSED: list[tuple[Any, str]] = [
    ({"a", "b"}, r"got a set, which has no order"),
    (frozenset("ab"), r"got a frozenset, which has no order"),
    (io.StringIO("a\nb\n"), r"got a StringIO of _io, an open file, whose lines keep their ends"),
    (b"ab", r"got a bytes, which is not a container of rows"),
    (bytearray(b"ab"), r"got a bytearray, which is not a container"),
    (torch.zeros(2, 2), r"got a Tensor of torch, whose items may be anything"),
    (torch.utils.data.TensorDataset(torch.zeros(2)), r"TensorDataset of torch, .* item 1 is a tuple, not a mapping"),
    (torch.utils.data.DataLoader(Mapped()), r"got a DataLoader of torch, whose items may be anything"),
    (MapStyle(), r"got a MapStyle of tests, whose items may be anything"),
    (
        datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)),
        r"with the splits 'train'; choose one .* data\['train'\]",
    ),
    (np.array([("a", 1)], dtype=[("text", "U1"), ("n", "i4")]), r"with the fields text, n; give a DataFrame"),
    (np.array("a"), r"without dimensions; give its item"),
    (pd.DataFrame([["a", "b"]], columns=["text", "text"]), r"two columns named 'text'; give each column a name"),
    (pd.DataFrame([["a", "b"]]), r"a column named 0, which is not text"),
    (pa.table([["a"], ["b"]], names=["t", "t"]), r"two columns named 't'"),
    (FRAME.groupby("label"), r"of pandas, which is not read as a table here"),
    (None, r"got None of type NoneType; give one row .* or a list of rows"),
    (float("nan"), r"got nan of type float"),
    (7, r"got 7 of type int"),
]


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_read_as_rows(name: str) -> None:
    spec = TaskSpec(name="a", kind="classification", data={"train": TABLES[name]()})
    assert spec.data == {"train": tuple(ROWS)}


@pytest.mark.parametrize(
    "texts",
    [
        lambda: np.array(["a b", "c", "d"]),
        lambda: np.array(["a b", "c", "d"], dtype=object),
        lambda: pd.Series(["a b", "c", "d"], index=[2, 1, 0]),
        lambda: pd.Index(["a b", "c", "d"]),
        lambda: pa.array(["a b", "c", "d"]),
        lambda: pa.chunked_array([["a b"], ["c", "d"]]),
        lambda: Polars(pa.chunked_array([["a b"], ["c", "d"]])),
        lambda: datasets.Dataset.from_list(ROWS)["text"],
        lambda: dict.fromkeys(["a b", "c", "d"]).keys(),
        lambda: map(str, ["a b", "c", "d"]),
    ],
)
def test_texts_are_read_in_order(texts: Any) -> None:
    found = rows_in(texts(), "rows")
    assert found == ["a b", "c", "d"]
    assert {type(text) for text in found} == {str}


@pytest.mark.parametrize(("given", "says"), REFUSED)
def test_what_is_no_container_of_rows_is_refused_by_name(given: Any, says: str) -> None:
    with pytest.raises(InputError, match=f"^rows: .*{says}") as caught:
        rows_in(given, "rows")
    assert "\n" not in str(caught.value)


def test_classes_within_the_cells_of_a_column_have_their_names() -> None:
    features = datasets.Features({"parts": {"of": datasets.List(datasets.ClassLabel(names=["x", "y"]))}})
    parts = datasets.Dataset.from_dict({"parts": [{"of": [1, 0]}, {"of": []}]}, features=features)["parts"]
    assert rows_in(parts, "rows") == [{"of": ["y", "x"]}, {"of": []}]
    assert rows_in(parts["of"], "rows") == [["y", "x"], []]


def test_what_a_transform_returns_has_no_classes() -> None:
    assert rows_in(CLASSES.with_transform(lambda batch: {"label": ["own"] * 3})["label"], "rows") == ["own"] * 3


def test_missing_cells_are_none() -> None:
    frame = pd.DataFrame({"text": ["a", None], "n": [1.5, float("nan")], "when": [pd.NaT, pd.Timestamp(2020, 1, 1)]})
    assert rows_in(frame, "rows")[1]["n"] is None
    assert [row["text"] for row in rows_in(frame, "rows")] == ["a", None]
    assert rows_in(frame, "rows")[0]["when"] is None
    assert rows_in(pd.Series([1, pd.NA], dtype="Int64"), "rows") == [1, None]


def test_cells_of_numpy_become_plain() -> None:
    rows = [{"tokens": np.array(["a", "b"]), "tags": np.array([0, 1]), "n": np.int64(3)}]
    spec = TaskSpec(name="a", kind="token-classification", data={"train": rows})
    assert spec.data == {"train": ({"tokens": ["a", "b"], "tags": [0, 1], "n": 3},)}


def test_cells_of_torch_become_plain() -> None:
    rows = [{"tokens": ["a", "b"], "tags": torch.tensor([0, 1]), "n": torch.tensor(3)}]
    for given in (rows, iter(rows)):
        spec = TaskSpec(name="a", kind="token-classification", data={"train": given})
        assert spec.data == {"train": ({"tokens": ["a", "b"], "tags": [0, 1], "n": 3},)}


def test_a_path_is_data() -> None:
    assert TaskSpec(name="a", kind="classification", data=Path("x") / "a.csv").data == str(Path("x") / "a.csv")


def test_splits_of_a_dataset_are_splits() -> None:
    splits = datasets.DatasetDict({name: datasets.Dataset.from_list(ROWS) for name in ("train", "test")})
    spec = TaskSpec(name="a", kind="classification", data=splits)
    assert spec.data == {"train": tuple(ROWS), "test": tuple(ROWS)}


def test_rows_with_two_columns_of_one_name_are_refused() -> None:
    with sqlite3.connect(":memory:") as base:
        base.row_factory = sqlite3.Row
        rows = base.execute("select 'a' as text, 'b' as text").fetchall()
    base.close()
    series = pd.Series(["a", "b"], index=["text", "text"])
    for row in (rows[0], series):
        with pytest.raises(InputError, match="two columns named 'text'; give each column a name of its own"):
            record_of(row)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (Mapped(), r"key data: got a Mapped; name the split of these rows, as in data=\{'train': rows\}"),
        (FRAME, r"key data: got a DataFrame; name the split of these rows, as in data=\{'train': rows\}"),
        (datasets.Dataset.from_list(ROWS), r"key data: got a Dataset; name the split"),
        ((row for row in ROWS), "key data: got a generator; name the split"),
        (ROWS, "key data: got a list of 3; must be a path .* or a mapping from split to rows"),
        ({"train": {"a", "b"}}, "key data: train: got a set, which has no order"),
        (
            {"train": {"text": ["a"], "label": ["x", "y"]}},
            "key data: train: the columns are of different lengths: 'text' 1, 'label' 2; give one cell per row",
        ),
        ({"train": pd.Series(["a", "b"])}, r"key data.train.0: got 'a'; a row is a mapping .*goes for 1 other row"),
        (
            {"text": ["a", "b"], "label": ["x", "y"]},
            "key data: got the columns of a table, 'text', 'label', without a split",
        ),
        (
            {"words": np.array(["a"]), "y": pd.Series([1])},
            "key data: got the columns of a table, 'words', 'y', without a split",
        ),
        (
            {"name": ["a", "b"], "way": ["c", "d"]},
            "key data: got the columns of a table, 'name', 'way', without a split",
        ),
        (
            {"text": "a", "label": "x"},
            r"key data: got the columns of a table, .*name the split of these rows: \{train:",
        ),
        (b"x", "key data: got b'x'; must be a path"),
        (bytearray(b"x"), r"key data: got bytearray\(b'x'\); must be a path"),
        (TaskSpec, "key data: got <class .*; must be a path"),
        ({"a"}, r"key data: got a set, which has no order; give a list of rows and its split, as in data="),
        (frozenset("a"), "key data: got a frozenset, which has no order"),
        (io.StringIO("a"), "key data: got a StringIO, an open file; give the path of the file"),
        ({"train": b"abc"}, "key data: train: got a bytes, which is not a container"),
    ],
)
def test_data_that_is_not_rows_is_refused_in_one_paragraph(data: Any, says: str) -> None:
    with pytest.raises(InputError, match=f"^TaskSpec: {says}") as caught:
        TaskSpec(name="a", kind="classification", data=data)
    assert "\n" not in str(caught.value)
