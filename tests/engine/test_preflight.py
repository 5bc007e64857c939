"""Which problems are reported before a run's first step, and which only when their task starts."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import learn
from continual_petl.engine.checks import preflight
from continual_petl.engine.dry_run import dry_run
from continual_petl.engine.run import Run
from continual_petl.engine.session import Session
from continual_petl.errors import InputError, StoreError, StreamFileError
from continual_petl.store.store import Store
from tests.streams_in_code import regression_task, stream, task, task_of_kind

Folder = Callable[..., Path]
QUICK = {"epochs": 1}
WRONG = regression_task("second", num_rows=16) | {"columns": {"label": "score"}}


@pytest.mark.slow
def test_number_of_tasks_checked_ahead_is_limited(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = stream(backbone_folder(), [task("first", num_rows=16), WRONG], training=QUICK)
    for number_read, learned in ((2, False), (1, True)):
        monkeypatch.setattr(preflight, "CHECKED_TASKS", number_read)
        with pytest.raises(InputError, match=r"task 'second', split train .*columns\.label is 'score'"):
            learn(tasks, tmp_path / str(number_read))
        assert (tmp_path / str(number_read) / "banks" / "first").is_dir() == learned
    # The data of learned tasks is not read again, and does not count towards the limit.
    monkeypatch.setattr(preflight, "CHECKED_TASKS", 20)
    with pytest.raises(InputError, match="'score'"):
        learn(tasks, tmp_path / "1")


def test_all_problems_are_reported_at_once(backbone_folder: Folder, tmp_path: Path) -> None:
    first = task("first", num_rows=16, bank={"preset": "lora", "layers": 5})
    wide = regression_task("third", num_rows=16, bank={"preset": "houlsby", "bottleneck": 17})
    with pytest.raises(StreamFileError) as caught:
        learn(stream(backbone_folder(), [first, WRONG, wide]), tmp_path / "run")
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "task 'first', bank",
        "task 'third', bank",
        "task 'second', split train (rows given in the task)",
    ]
    assert caught.value.keys == (("tasks", 0, "bank"), ("tasks", 2, "bank"), ("tasks", 1, "columns", "label"))
    again = WRONG | {"name": "again"}
    with pytest.raises(StreamFileError) as caught:
        learn(stream(backbone_folder(), [WRONG, again]), tmp_path / "run")
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "task 'second', split train (rows given in the task)",
        "task 'again', split train (rows given in the task)",
    ]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("family", "kind", "bank", "says"),
    [
        (
            "bert",
            "regression",
            {"preset": "houlsby", "bottleneck": 17},
            "bottleneck 17 is larger than 16, the hidden size",
        ),
        ("bert", "regression", {"preset": "lora", "rank": 17}, "rank 17 is larger than 16"),
        ("bert", "regression", {"preset": "lora", "layers": "1-2"}, "names layer 2, but this backbone has 2 layers"),
        ("bert", "regression", {"preset": "lora", "layers": "top-3"}, "names the 3 highest layers, but"),
        ("mpnet", "regression", {"preset": "mam", "bottleneck": 4}, "not through the attention registry"),
        ("gpt2", "regression", {"preset": "pfeiffer", "bottleneck": 4}, "normalises before its sub-layers"),
        ("llama", "regression", "bitfit", "trains biases, but family 'llama' has none"),
        ("bart", "seq2seq", "probe", "there is nothing to learn"),
        ("bert", "seq2seq", "houlsby", "kind 'seq2seq' cannot be learned on backbone"),
        ("bert", "image-classification", "houlsby", "it reads text, not images"),
        ("vit", "classification", "houlsby", "it reads images, not text"),
    ],
)
def test_bank_that_does_not_fit_the_backbone_is_refused_before_training(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str, bank: Any, says: str
) -> None:
    first = task_of_kind(kind, "first") | {"data": "./no/such/folder", "bank": bank}
    backbone = {"name": str(backbone_folder(family))}
    with pytest.raises(InputError, match=says):
        learn(stream(backbone_folder(family), [first], backbone=backbone), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_changed_backbone_is_refused_before_writing(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [task("first", num_rows=16), task("second", num_rows=16)]
    learn(stream(backbone_folder(), tasks[:1], training=QUICK), tmp_path)
    before = (tmp_path / "stream.yaml").read_bytes()
    with pytest.raises(StoreError, match="this run was learned on backbone"):
        learn(stream(backbone_folder("electra"), tasks, training=QUICK), tmp_path)
    assert (tmp_path / "stream.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("family", "kind", "why"),
    [
        ("bert", "seq2seq", "have no language-modelling head"),
        ("bert", "image-classification", "it reads text, not images"),
        ("vit", "regression", "it reads images, not text"),
    ],
)
@pytest.mark.parametrize("act", [learn, lambda tasks, folder: dry_run(Session(tasks.spec, Store(folder)))])
def test_unsupported_kind_is_refused_before_reading_data(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str, why: str, act: Any
) -> None:
    own = {"image-classification": task_of_kind("image-classification"), "bert": task("own", num_rows=16)}
    first = own["bert" if family == "bert" else "image-classification"] | {"name": "own"}
    wrong = {"name": "wrong", "kind": kind, "data": str(tmp_path / "nowhere")}
    tasks = stream(backbone_folder(family), [first, wrong], backbone={"name": str(backbone_folder(family))})
    with pytest.raises(InputError, match=f"task 'wrong': kind '{kind}' .*{why}.*It supports ") as caught:
        act(tasks, tmp_path / "run")
    assert "nowhere" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_revision_of_a_local_folder_is_refused_only_for_new_runs(backbone_folder: Folder, tmp_path: Path) -> None:
    """A run that an older release started with a revision still works, since its backbone is pinned by content."""
    folder, first = backbone_folder(), task("first", num_rows=16)
    asked = {"name": str(folder), "pooling": "mean", "revision": "main"}
    with_revision = stream(folder, [first], training=QUICK, backbone=asked)
    told = r"backbone.revision: got 'main'; only models on the Hub.*is a folder"
    with pytest.raises(InputError, match=told):
        learn(with_revision, tmp_path / "new")
    with pytest.raises(InputError, match=told):
        dry_run(Session(with_revision.spec, Store(tmp_path / "new")))
    assert not (tmp_path / "new").exists()
    learn(stream(folder, [first], training=QUICK), tmp_path / "run")
    again = learn(with_revision, tmp_path / "run")
    assert "revision: main" in again.store.stream_file.read_text()
    assert all(check.ok for check in Run(tmp_path / "run").verify())
    assert len(Run(tmp_path / "run").predict(["w1"], "first")) == 1


def test_unwritable_folder_is_refused(backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root ignores permissions
    with pytest.raises(InputError, match=r"--run-dir .*run: .* cannot be written to; give another run folder"):
        learn(stream(backbone_folder(), [task("first", num_rows=16)]), tmp_path / "run")


def test_dry_run_refuses_the_same_input_as_a_run(backbone_folder: Folder, tmp_path: Path) -> None:
    kept = stream(backbone_folder(), [task("first", num_rows=16)], training={"prefix_cache": "on"})
    with pytest.raises(InputError, match=r"--replace other: this task has not been learned in .*; learned tasks: none"):
        dry_run(Session(kept.spec, Store(tmp_path)), replace=["other"])
    with pytest.raises(
        InputError, match=r"task 'first': training\.prefix_cache is 'on', but the states below its bank"
    ):
        dry_run(Session(kept.spec, Store(tmp_path)))


def _tokens_without_embedding(folder: Path) -> None:
    for name in ("tokenizer.json",):
        content = json.loads((folder / name).read_text())
        content["model"]["vocab"] |= {f"extra{number}": len(content["model"]["vocab"]) + number for number in range(3)}
        (folder / name).write_text(json.dumps(content))


TOP = {"preset": "lora", "rank": 2, "layers": "top-1"}
NEVER = {"limit_val_batches": 0}
LATE = {"check_val_every_n_epoch": 7}
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("tokens without an embedding", {}, {}, r"its tokenizer has \d+ tokens, but the model has \d+"),
    ("no states to keep", {"training": {"prefix_cache": "on"}}, {}, "training.prefix_cache is 'on', but"),
    (
        "states over budget",
        {"training": {"prefix_cache": "on", "prefix_cache_bytes": 10}, "bank": TOP},
        {},
        "prefix_cache_bytes allows 10",
    ),
    (
        "patience without validation",
        {"training": {"patience": 1}, "trainer": NEVER},
        {},
        "patience: got 1, but trainer.lim",
    ),
    (
        "best without validation",
        {"training": {"select": "best"}, "trainer": NEVER},
        {},
        "select: got 'best', but trainer.l",
    ),
    (
        "validation too late",
        {"trainer": LATE, "training": {"select": "best"}},
        {},
        "check_val_every_n_epoch is 7, with 2 ep",
    ),
    ("graphs on a CPU", {"training": {"cuda_graphs": True}}, {}, "cuda_graphs"),
    ("a budget of tokens", {"training": {"max_tokens": 3}}, {}, "training.max_tokens: got 3, but"),
    ("a wide bank", {"bank": {"preset": "houlsby", "bottleneck": 17}}, {}, "bottleneck"),
    ("a missing layer", {"bank": {"preset": "lora", "layers": 5}}, {}, "layers"),
    ("an unknown parent", {}, {"bank": {"start_from": "other"}}, "start_from"),
    ("a kind", {}, {"kind": "seq2seq"}, "no language-modelling head"),
    ("a pooling", {}, {"pooling": "pooler"}, "has no trained pooler"),
    ("a weight", {"training": {"class_weights": {"maybe": 2.0}}}, {}, "class_weights"),
    ("a trainer", {"trainer": {"accelerator": "abacus"}}, {}, "trainer"),
    ("several processes", {"trainer": {"devices": 4000, "accelerator": "cpu"}}, {}, "trainer.devices: got 4000"),
]
"""Streams that a run refuses before it trains: what is wrong, settings of the stream and of the task, and the message."""


@pytest.mark.parametrize(("what", "settings", "own", "says"), REFUSED, ids=[row[0] for row in REFUSED])
def test_dry_run_refuses_whatever_a_run_refuses_before_training(
    backbone_folder: Folder, tmp_path: Path, what: str, settings: dict[str, Any], own: dict[str, Any], says: str
) -> None:
    folder = tmp_path / "backbone"
    shutil.copytree(backbone_folder("electra"), folder)
    if what == "tokens without an embedding":
        _tokens_without_embedding(folder)
    wrong = stream(folder, [task("first", num_rows=16) | own], **settings)
    messages = []
    for act in (learn, lambda tasks, place: dry_run(Session(tasks.spec, Store(place)))):
        with pytest.raises(InputError, match=says) as caught:
            act(wrong, tmp_path / "run")
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert not (tmp_path / "run" / "banks").exists()


def test_dry_run_refuses_a_changed_backbone(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [task("first", num_rows=16)]
    learn(stream(backbone_folder(), tasks, training=QUICK), tmp_path)
    with pytest.raises(StoreError, match="this run was learned on backbone"):
        dry_run(Session(stream(backbone_folder("electra"), tasks, training=QUICK).spec, Store(tmp_path)))
