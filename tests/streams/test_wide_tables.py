"""Tables with very many columns, keys or labels are read in linear time: a quadratic reader would take hours here."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from continual_petl.errors import InputError
from continual_petl.streams.preparation.labels import class_labels, encode_labels
from continual_petl.streams.reader.records import read_records
from continual_petl.streams.schema.limits_spec import DEFAULTS
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.sources.checks import Cells, Where

NUMBER = 200_000
NAMES = [f"c{number}" for number in range(NUMBER)]


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_header_of_very_many_columns(tmp_path: Path, suffix: str) -> None:
    path, between = tmp_path / f"wide{suffix}", "\t" if suffix == ".tsv" else ","
    path.write_text(f"{between.join(NAMES)}\n{between.join('1' * NUMBER)}\n")
    ((_, record),) = read_records("x", path, DEFAULTS)
    assert list(record) == NAMES
    path.write_text(f"{between.join([*NAMES, 'c7'])}\n")
    with pytest.raises(InputError, match="names column 'c7' twice"):
        next(read_records("x", path, DEFAULTS))


def test_object_of_very_many_keys(tmp_path: Path) -> None:
    path = tmp_path / "wide.jsonl"
    path.write_text(json.dumps(dict.fromkeys(NAMES, 1)) + "\n")
    ((_, record),) = read_records("x", path, DEFAULTS)
    assert list(record) == NAMES


def test_very_many_labels() -> None:
    where = Where(task="x", split="train", origin="here")
    labels = class_labels(Cells(where, "label", ()), NAMES, None)
    assert len(labels) == NUMBER
    found = encode_labels(Cells(where, "label", NAMES), labels, positions=False)
    assert np.array_equal(np.sort(found), np.arange(NUMBER))
    given = {"name": "x", "kind": "classification", "data": "x.csv", "labels": NAMES[:100_000]}
    assert TaskSpec.model_validate(given).labels == tuple(NAMES[:100_000])
    options = {"name": "x", "kind": "seq2seq", "data": "x.csv", "options": NAMES[:1000]}
    assert TaskSpec.model_validate(options).options == tuple(NAMES[:1000])
