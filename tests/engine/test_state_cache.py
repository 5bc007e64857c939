"""Caching the states of the frozen layers changes no answer, and is done only where it is possible and useful."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from continual_petl import InputError, Run, StreamCallback, learn
from continual_petl.banks.states_below import states_below
from continual_petl.callbacks import WatchedRun, WatchedTask
from continual_petl.engine.task import state_cache
from continual_petl.engine.task.state_cache import StateCache, decide_state_cache
from continual_petl.learner.prefix_cache import num_uses
from continual_petl.learner.respond import STATES
from continual_petl.learner.task_bank import backbone_inputs
from continual_petl.streams.batches.batching import evaluation_batches
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.schema.stream_spec import ResolvedTraining
from tests.desk import bank_digests
from tests.engine.kept_states import TOP, Open, tasks_of
from tests.learned import LearnedRuns
from tests.streams_in_code import stream, task_of_kind
from tests.usual import few

Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def whole(backbone_folder: Folder, learned_runs: LearnedRuns) -> dict[str, str]:
    """Return the bank's digest after an uninterrupted run."""
    return bank_digests(Run(learned_runs(tasks_of(backbone_folder()))))


class Recomputed:
    """A plain reimplementation of the cache: in every step, it recomputes each row's states in the batch used for caching."""

    def __init__(self, opened: Open) -> None:
        self._opened = opened

    def __call__(self, batch: dict[str, Tensor], split: str) -> dict[str, Tensor]:
        opened, training = self._opened, self._opened.plan.training
        rows = opened.data.train if split == "train" else opened.data.validation
        pad, backbone = opened.session.models.pad_token_id, opened.learner.backbone
        made = torch.zeros(*batch["input_ids"].shape, backbone.hidden_size)
        for place, number in enumerate(batch["index"].tolist()):
            (of,) = [b for b in evaluation_batches(rows.lengths, training.batch_size) if number in b]
            canonical = collate(rows, of, pad, opened.plan.kind)
            states = states_below(backbone.model, backbone.sites, backbone_inputs(backbone, canonical), 1)
            length = int(rows.lengths[number])
            made[place, :length] = states[of.tolist().index(number), :length]
        return {**batch, STATES: made}


@pytest.mark.slow
def test_cached_states_train_like_states_computed_in_every_step(
    backbone_folder: Folder, tmp_path: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tasks_of(backbone_folder())
    opened = Open(tasks, tmp_path / "by hand")

    recomputed = Recomputed(opened)
    monkeypatch.setattr(StateCache, "__call__", lambda self, batch, split: recomputed(batch, split))
    assert bank_digests(learn(tasks, tmp_path / "run")) == whole


@pytest.mark.slow
def test_bank_matches_uncached_training_up_to_rounding(backbone_folder: Folder, tmp_path: Path) -> None:
    runs = [learn(tasks_of(backbone_folder(), training={"prefix_cache": way}), tmp_path / way) for way in ("on", "off")]
    scores = [run.store.certificate("one").scores["test"].scores["accuracy"] for run in runs]
    # The batches are the same, but the frozen layers see rows with other padding, so each step rounds differently (1e-7).
    assert scores[0] == pytest.approx(scores[1], abs=0.07)
    assert [run.store.certificate("one").training.prefix_cache for run in runs] == ["on", "off"]
    assert all(check.ok for run in runs for check in run.verify(data=True))
    assert not (tmp_path / "on" / ".progress" / "one").exists()


KINDS = [("bert", "classification")]
MORE_KINDS = [
    ("gpt2", "classification"),
    ("vit", "image-classification"),
    ("deberta", "token-classification"),
    ("modernbert", "multilabel"),
    ("llama", "regression"),
]


@pytest.mark.parametrize(("family", "kind"), [*KINDS, *(pytest.param(*k, marks=pytest.mark.slow) for k in MORE_KINDS)])
def test_cached_states_give_bit_identical_validation_answers(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str
) -> None:
    tasks = stream(
        backbone_folder(family), [task_of_kind(kind, "one")], bank=TOP, backbone={"name": str(backbone_folder(family))}
    )
    opened = Open(tasks, tmp_path)
    kept, learner = opened.filled(), opened.learner.eval()
    assert set(kept.files) == {"train", "validation"}
    for batch in opened.validation():
        outputs = [learner(b) for b in (batch, kept(batch, "validation"))]
        if kind == "token-classification":
            outputs = [output[batch["attention_mask"].bool()] for output in outputs]
        assert torch.equal(*outputs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "kind"), [*MORE_KINDS, ("gpt2", "causal-lm"), ("qwen3", "causal-lm"), ("vit", "image-classification")]
)
def test_every_kind_is_learned_from_cached_states_and_certified(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str
) -> None:
    tasks = stream(
        backbone_folder(family), [task_of_kind(kind, "one")], bank=TOP, backbone={"name": str(backbone_folder(family))},
        training={"prefix_cache": "on"},
    )  # fmt: skip
    run = learn(tasks, tmp_path)
    assert all(check.ok for check in run.verify(data=True))


@pytest.mark.slow
def test_probe_bank_caches_the_output_of_the_last_layer(backbone_folder: Folder, tmp_path: Path) -> None:
    opened = Open(tasks_of(backbone_folder(), bank={"preset": "probe"}), tmp_path)
    kept = opened.filled()
    assert kept.layer == 2
    for batch in opened.validation():
        outputs = [opened.learner.eval()(b) for b in (batch, kept(batch, "validation"))]
        assert torch.equal(*outputs)


@pytest.mark.parametrize(
    ("changed", "kept"),
    few(
        [
            ({}, True),
            ({"training": {"prefix_cache": "off"}}, False),
            ({"training": {"epochs": 1}}, False),
            ({"training": {"epochs": 1, "prefix_cache": "on"}}, True),
            ({"training": {"backbone_dropout": True}}, False),
            ({"training": {"prefix_cache_bytes": 100}}, False),
            ({"bank": {**TOP, "layers": "all"}}, False),
            ({"bank": {**TOP, "layers": "0"}}, False),
            ({"bank": {"preset": "prompt", "length": 3}}, False),
            ({"bank": {"preset": "probe"}}, True),
            ({"trainer": {"limit_train_batches": 0.5}}, False),
            ({"trainer": {"limit_train_batches": 0.5}, "training": {"epochs": 4}}, True),
            ({"training": {"max_steps": 3}}, False),
        ],
        4,
    ),
)
def test_auto_caches_states_if_possible_and_useful(
    backbone_folder: Folder, tmp_path: Path, changed: dict[str, Any], kept: bool
) -> None:
    assert (Open(tasks_of(backbone_folder(), **changed), tmp_path).decide() is not None) == kept


def test_auto_does_not_cache_states_on_a_gpu(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_cache, "trainer_device", lambda session: torch.device("cuda"))
    assert Open(tasks_of(backbone_folder()), tmp_path).decide() is None
    assert Open(tasks_of(backbone_folder(), training={"prefix_cache": "on"}), tmp_path).decide() is not None


@pytest.mark.parametrize(
    ("training", "arguments", "uses"),
    [
        ({"epochs": 3}, {}, 3.0),
        ({"epochs": 3}, {"limit_train_batches": 0.5}, 1.5),
        ({"epochs": 3}, {"limit_train_batches": 1}, 0.3),
        ({"epochs": 3}, {"limit_train_batches": 1.0}, 3.0),
        ({"epochs": 3}, {"limit_train_batches": 0}, 0.0),
        ({"epochs": 3}, {"limit_train_batches": 100}, 3.0),
        ({"epochs": 3}, {"limit_train_batches": None}, 3.0),
        ({"epochs": 3}, {"overfit_batches": 0}, 3.0),
        ({"epochs": 3}, {"overfit_batches": 2}, 0.6),
        ({"max_steps": 5, "accumulate": 2}, {}, 1.0),
        ({"max_steps": 35}, {"limit_train_batches": 0.5}, 3.5),
    ],
)
def test_row_uses_are_counted_like_lightning_batches(
    training: dict[str, Any], arguments: dict[str, Any], uses: float
) -> None:
    settings = {"batch_size": 5, "learning_rate": 1e-3}
    assert num_uses(ResolvedTraining.model_validate(settings | training), arguments, 10) == pytest.approx(uses)


@pytest.mark.parametrize(
    ("changed", "why"),
    few(
        [
            ({"bank": {**TOP, "layers": "all"}}, "changes the lowest layer"),
            ({"bank": {"preset": "prompt", "length": 3}}, "has a prompt"),
            ({"training": {"backbone_dropout": True}}, "training.backbone_dropout makes the states"),
        ],
    ),
)
def test_impossible_cache_is_an_error_before_training(
    backbone_folder: Folder, tmp_path: Path, changed: dict[str, Any], why: str
) -> None:
    training = {"prefix_cache": "on", **changed.get("training", {})}
    with pytest.raises(
        InputError, match=rf"task 'one': training.prefix_cache is 'on', but .*{why}.*Write prefix_cache: auto"
    ):
        learn(tasks_of(backbone_folder(), **changed | {"training": training}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_encoder_decoder_is_an_error_with_on_and_uncached_with_auto(backbone_folder: Folder, tmp_path: Path) -> None:
    backbone = backbone_folder("bart")
    opened = Open(tasks_of(backbone, backbone={"name": str(backbone)}), tmp_path)
    assert opened.decide() is None
    with pytest.raises(InputError, match="have two stacks, an encoder and a decoder"):
        learn(tasks_of(backbone, backbone={"name": str(backbone)}, training={"prefix_cache": "on"}), tmp_path / "run")


def test_ddp_processes_do_not_cache_states(backbone_folder: Folder, tmp_path: Path) -> None:
    def decided(way: str) -> StateCache | None:
        opened = Open(tasks_of(backbone_folder(), training={"prefix_cache": way}), tmp_path)
        run = opened.run
        return decide_state_cache(run.session, run.data, run.plan, run.bank, num_processes=2)[0]

    assert decided("auto") is None
    with pytest.raises(InputError, match=r"2 processes share its fit \(trainer.devices\)"):
        decided("on")


@pytest.mark.slow
def test_split_is_cached_completely_or_not_at_all(backbone_folder: Folder, tmp_path: Path) -> None:
    opened = Open(tasks_of(backbone_folder()), tmp_path)
    train, validation = (int(rows.lengths.sum()) * 16 * 4 for rows in (opened.data.train, opened.data.validation))

    def within(budget: int, way: str = "auto") -> list[str] | None:
        training = {"prefix_cache_bytes": budget, "prefix_cache": way}
        opened = Open(tasks_of(backbone_folder(), training=training), tmp_path)
        decided = opened.decide()
        if decided is None:
            assert f"recomputed in every epoch: they take {train:,} bytes" in opened.notices[0]
            return None
        assert decided.num_bytes <= budget
        assert f"{train / 1e6:.1f} MB for the train split" in opened.notices[0]
        return list(decided.splits)

    assert within(train + validation) == ["train", "validation"]
    assert within(train + validation - 1) == within(train) == ["train"]
    assert within(train - 1) is None
    with pytest.raises(
        InputError, match=rf"they take {train:,} bytes, but training.prefix_cache_bytes allows {train - 1:,}"
    ):
        within(train - 1, "on")


def test_batch_with_other_rows_is_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    opened = Open(tasks_of(backbone_folder()), tmp_path)
    kept, batch = opened.filled(), next(iter(opened.validation()))
    kept(batch, "validation")
    with pytest.raises(
        ValueError, match="a batch of the train split has rows other than those whose states are cached"
    ):
        kept(
            {**batch, "index": torch.from_numpy(np.argsort(opened.data.train.lengths)[: len(batch["index"])])}, "train"
        )


def test_final_scores_and_certificates_do_not_read_the_cache(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are computed with full forward passes, so that they can be reproduced without a cache."""
    read: list[str] = []
    real = StateCache.__call__

    def call(self: StateCache, batch: Any, split: Any) -> Any:
        read.append(split)
        return real(self, batch, split)

    heard: list[str] = []

    class Listener(StreamCallback):
        def on_task_start(self, run: WatchedRun, task: WatchedTask) -> None:
            heard.extend(task.notices)

    monkeypatch.setattr(StateCache, "__call__", call)
    run = learn(tasks_of(backbone_folder()), tmp_path, callbacks=[Listener()])
    assert any("states below layer 1 are computed once and cached on disk" in notice for notice in heard)
    # Two epochs, each of five training and four validation batches.
    assert [read.count("train"), read.count("validation")] == [10, 8]
    assert all(check.ok for check in run.verify(data=True))
    assert len(read) == 18
