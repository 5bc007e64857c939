"""The embedded stream depends only on its texts; it is balanced, free of duplicates across splits, and large enough."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from continual_petl.errors import InputError
from continual_petl.streams import embedded
from continual_petl.streams.embedded import about_docstrings, signatures, splits, stdlib
from continual_petl.streams.embedded.text import words

Splits = dict[str, list[dict[str, object]]]
ROOT = Path(__file__).parents[2]
LABELS = {
    "packages": set(about_docstrings.PACKAGES),
    "signatures": {"match", "mismatch"},
    "definitions": {"class", "function"},
    "chapters": {"built-in types", "data model", "execution", "expressions", "statements"},
    "outcomes": {"nothing", "value"},
}


def _digest() -> str:
    return hashlib.sha256(json.dumps({name: embedded.load(name) for name in embedded.names()}).encode()).hexdigest()


@pytest.fixture(params=embedded.names())
def rows(request: pytest.FixtureRequest) -> Splits:
    return embedded.load(request.param)


def test_embedded_task_names_and_kinds() -> None:
    assert set(embedded.names()) == set(LABELS)
    pairs = {name for name in embedded.names() if "text_pair" in embedded.load(name)["train"][0]}
    assert pairs == {"signatures"}


def test_every_split_is_big_enough_and_balanced(rows: Splits) -> None:
    assert list(rows) == ["train", "validation", "test"]
    for split, least in {"train": 600, "validation": 140, "test": 220}.items():
        counts = Counter(str(row["label"]) for row in rows[split])
        assert least <= len(rows[split]) <= splits.SIZES[split]
        assert max(counts.values()) <= 4 * min(counts.values()), counts


@pytest.mark.parametrize("name", embedded.names())
def test_rows_are_plain_and_every_class_is_in_every_split(name: str) -> None:
    for split in embedded.load(name).values():
        assert {row["label"] for row in split} == LABELS[name]
        for row in split:
            assert list(row) == (["text", "text_pair", "label"] if name == "signatures" else ["text", "label"])
            for value in row.values():
                assert isinstance(value, str)
                assert value == value.strip() != ""
                assert "\n" not in value
                assert len(value) <= 400


def test_passages_and_near_duplicates_are_in_one_split(rows: Splits) -> None:
    sets = {split: [frozenset(words(str(row["text"]))) for row in rows[split]] for split in rows}
    for one, other in [("train", "validation"), ("train", "test"), ("validation", "test")]:
        # Rows with a Jaccard index of 0.75 or more are dropped before package names are hidden. Hiding the names can raise
        # the index, so the limit here is 0.85.
        close = [(a, b) for a in sets[one] for b in sets[other] if len(a & b) >= 0.85 * len(a | b)]
        assert close == []


def test_docstring_is_in_the_same_split_in_every_task() -> None:
    seen: dict[str, str] = {}
    for name in ("signatures", "definitions", "outcomes"):
        for split, rows in embedded.load(name).items():
            assert all(seen.setdefault(str(row["text"]), split) == split for row in rows)


def test_signatures_of_one_split_are_drawn_from_that_split() -> None:
    rows = embedded.load("signatures")
    pairs = {split: {str(row["text_pair"]).partition("(")[0] for row in rows[split]} for split in rows}
    for held_out in ("validation", "test"):
        common = pairs["train"] & pairs[held_out]
        assert len(common) <= 0.05 * len(pairs[held_out]), common  # classes of the same name in two modules


def test_the_answer_is_not_in_the_text() -> None:
    for rows in embedded.load("packages").values():
        for row in rows:
            assert not set(about_docstrings.PACKAGES) & set(words(str(row["text"]))), row


def test_a_signature_alone_does_not_give_the_label_away() -> None:
    lengths: dict[object, list[int]] = {"match": [], "mismatch": []}
    for row in embedded.load("signatures")["train"]:
        lengths[row["label"]].append(len(str(row["text_pair"])))
    mean = {label: sum(n) / len(n) for label, n in lengths.items()}
    assert abs(mean["match"] - mean["mismatch"]) <= 5


def test_callers_get_their_own_copy_of_rows() -> None:
    embedded.load("outcomes")["train"][0]["label"] = "changed"
    embedded.load("outcomes")["test"].clear()
    again = embedded.load("outcomes")
    assert again["train"][0]["label"] != "changed"
    assert again["test"]


@pytest.mark.slow
def test_file_and_module_order_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    ordered, rng = stdlib.source_files, random.Random(0)

    def shuffled(folder: Path, name: str) -> list[Path]:
        files = ordered(folder, name)
        return rng.sample(files, len(files))

    monkeypatch.setattr(stdlib, "source_files", shuffled)
    monkeypatch.setattr(stdlib, "MODULES", rng.sample(stdlib.MODULES, len(stdlib.MODULES)))
    assert stdlib.docstrings.__wrapped__() == stdlib.docstrings()


@pytest.mark.slow
@pytest.mark.parametrize(
    "task",
    [about_docstrings.packages, signatures.build, about_docstrings.definitions, about_docstrings.outcomes],
)
def test_docstring_order_does_not_matter(task: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    found = stdlib.docstrings()
    before = task()
    monkeypatch.setattr(
        sys.modules[task.__module__], "docstrings", lambda: tuple(random.Random(1).sample(found, len(found)))
    )
    assert task() == before


@pytest.mark.slow
def test_rows_do_not_depend_on_hash_seed_or_import_anything() -> None:
    code = (
        "import hashlib, json, sys\n"
        "from continual_petl.streams import embedded as e\n"
        "rows = {name: e.load(name) for name in e.names()}\n"
        "foreign = {'mailbox', 'xmlrpc', 'wsgiref', 'imaplib', 'pydoc_data', 'pydoc_data.topics', 'torch'}\n"
        "print(hashlib.sha256(json.dumps(rows).encode()).hexdigest(), sorted(foreign & set(sys.modules)))\n"
    )
    seed = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split(maxsplit=1) == [_digest(), "[]\n"]


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        embedded.load("poems")
    assert all(name in str(caught.value) for name in ("poems", *embedded.names()))
