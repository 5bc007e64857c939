"""Cached banks stay within a budget, the least recently used are evicted, and replaced banks are never used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continual_petl import Run, learn
from continual_petl.banks.bank import Bank
from continual_petl.banks.mixed.stack_cache import stacks_of
from continual_petl.digests import tensor_digests
from continual_petl.errors import InputError, StoreError
from continual_petl.learner.plan import build_bank
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.store import strict_load
from continual_petl.store.bank_cache import BankCache, CachedBank
from continual_petl.store.store import Store
from tests.store.fabricated import Looks
from tests.store.tampering import QUICK, TASKS, change_tensors, nudge
from tests.streams_in_code import stream, task

Folder = Callable[..., Path]
TEXTS = ["w0 w1 w2", "w40 w50"]


@pytest.fixture(scope="module")
def open_run(learned: Path) -> Run:
    """Return a run whose backbone is loaded."""
    run = Run(learned)
    run.predict(TEXTS, task="one")
    return run


def opened(folder: Path, before: Run, **more: Any) -> Run:
    """Open a run with a backbone that is already in memory."""
    run = Run(folder, **more)
    run.session.models.backbones.update(before.session.models.backbones)
    run.session.models._tokenizer = before.session.models.tokenizer
    return run


def held(run: Run) -> list[str]:
    return list(run.session.models.held_banks._by_name)


def test_cached_bank_answers_like_a_freshly_loaded_one(folder: Path, open_run: Run) -> None:
    run = opened(folder, open_run)
    fresh = {name: opened(folder, open_run).predict(TEXTS, task=name) for name in ("one", "two", "three")}
    for name in ("one", "two", "three", "two", "one", "three"):
        assert run.predict(TEXTS, task=name) == fresh[name]
        learner = run.session.models.resident(name)
        assert list(learner.plans) == [name], "the learner must hold one bank, however many are cached"
        learner.train()  # leaves dropout on
    assert held(run) == ["two", "one", "three"]


def test_switching_between_banks_in_memory_reads_nothing(
    folder: Path, open_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, looks = opened(folder, open_run), Looks(folder, monkeypatch)
    models = run.session.models
    banks = [held.bank for held in models.hold(["one", "two"])]
    with looks.fresh():
        assert [models.held(name).bank for name in ("one", "two")] == banks
        assert looks.opened == []
        certificates = [path for path in looks.asked if path.endswith("bank.json")]
        assert certificates == ["banks/one/bank.json", "banks/two/bank.json"]
        assert set(looks.asked) <= {"ledger.jsonl", "banks", "banks/one", "banks/two", *certificates}


def test_budget_is_respected_with_at_least_one_bank(folder: Path, open_run: Run) -> None:
    size = open_run.session.models.held("one").num_bytes
    assert size == sum(tensor.nbytes for tensor in open_run.store.tensors("one").values())
    run = opened(folder, open_run, resident_bytes=2 * size)
    for name in ("one", "two", "one", "three"):
        run.predict(TEXTS, task=name)
    assert held(run) == ["one", "three"]
    none = opened(folder, open_run, resident_bytes=0)
    for name in ("one", "two"):
        assert none.predict(TEXTS, task=name) == run.predict(TEXTS, task=name)
    assert held(none) == ["two"]
    with pytest.raises(ValueError, match="resident_bytes: got -1"):
        Run(folder, resident_bytes=-1)


def test_several_banks_are_all_cached_or_refused(folder: Path, open_run: Run) -> None:
    size = open_run.session.models.held("one").num_bytes
    run = opened(folder, open_run, resident_bytes=2 * size)
    models = run.session.models
    models.held("three")
    banks = [held.bank for held in models.hold(["one", "two", "one"])]
    assert banks[0] is banks[2]
    for name, bank in zip(("one", "two"), banks, strict=False):
        assert tensor_digests(bank.tensors()) == tensor_digests(run.store.tensors(name))
    assert held(run) == ["one", "two"]
    with pytest.raises(InputError, match=rf"3 banks at once: the first 3 of them take up {3 * size} bytes.*{2 * size}"):
        models.hold(["one", "two", "three"])
    assert models.held_banks.num_bytes == 2 * size
    assert models.hold([]) == []


@given(asked=st.lists(st.integers(0, 5), min_size=1, max_size=30), most=st.integers(0, 12))
def test_most_recently_used_banks_are_cached(asked: Sequence[int], most: int) -> None:
    """Bank n takes n + 1 bytes."""
    banks = BankCache(most)
    for number in asked:
        name = str(number)
        if banks.get(name, ("seal",)) is None:
            banks.put(name, _held(number + 1))
        assert next(reversed(banks._by_name)) == name
        assert banks.num_bytes == sum(int(each) + 1 for each in banks._by_name)
        assert banks.num_bytes <= max(most, number + 1)
    assert banks.get(name, ("another",)) is None, "a replaced bank is still cached"
    assert name not in banks._by_name


def _held(num_bytes: int) -> CachedBank:
    nothing: Any = None
    return CachedBank(
        plan=nothing,
        bank=nothing,
        backbone=nothing,
        seals=("seal",),
        num_bytes=num_bytes,
    )


def test_bank_replaced_on_disk_is_not_used(folder: Path, open_run: Run, backbone_folder: Folder) -> None:
    run = opened(folder, open_run)
    before = run.predict(TEXTS, task="one")
    other = {**TASKS[0], "training": {"epochs": 2}}
    learn(stream(backbone_folder(), [other, *TASKS[1:]], training=QUICK), folder, replace=["one"])
    after = run.predict(TEXTS, task="one")
    assert after != before
    assert after == opened(folder, open_run).predict(TEXTS, task="one")
    assert held(run) == ["one"]


def test_cached_bank_stays_as_checked(folder: Path, open_run: Run) -> None:
    run = opened(folder, open_run)
    before = run.predict(TEXTS, task="one")
    change_tensors(folder / "banks" / "one" / "bank.safetensors", nudge("head.output.bias"))
    assert run.predict(TEXTS, task="one") == before
    assert not run.verify("one")[0].ok, "verify must read the disk"


def test_changed_tokenizer_also_refuses_cached_banks(folder: Path, open_run: Run) -> None:
    run = Run(folder)
    run.predict(TEXTS, task="one")
    models = run.session.models
    assert models.tokenizer is not None
    models.tokenizer.add_tokens(["newcomer"])
    models.forget_digest()
    with pytest.raises(StoreError, match="task 'one': the tokenizer that it was learned with has the digest"):
        run.predict(TEXTS, task="one")


def test_training_caches_no_other_bank(folder: Path, backbone_folder: Folder) -> None:
    run = learn(stream(backbone_folder(), [*TASKS, task("four", num_rows=16)], training=QUICK), folder)
    models = run.session.models
    assert len(models.held_banks) > 0, "measuring the row of R must cache banks"
    run.predict(TEXTS, task=["one", "two"])
    stacks = stacks_of(models.backbone_of("one").model)
    assert stacks.num_bytes > 0
    models.evict_all()
    assert len(models.held_banks) == stacks.num_bytes == 0
    assert all(not learner.plans for learner in models._learners.values())


def test_shared_banks_use_the_newest_body(tmp_path: Path, backbone_folder: Folder) -> None:
    bank = {"preset": "lora", "bottleneck": 2, "scope": "shared"}
    run = learn(stream(backbone_folder(), TASKS[:2], training=QUICK, bank=bank), tmp_path / "run")
    models, store = run.session.models, Store(tmp_path / "run")
    newest = store.tensors("two")
    for _ in range(2):
        body = models.held("one").bank.body()
        assert tensor_digests(body) == tensor_digests({name: newest[name] for name in body})
        committed = models.held("one", as_committed=True).bank
        assert tensor_digests(committed.tensors()) == tensor_digests(store.tensors("one"))
    assert held(run)[-2:] == ["one", "one/"]


def test_specification_is_analysed_once(folder: Path, open_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    models = open_run.session.models
    backbone = models.backbone("fp32")
    found: list[str] = []

    def building(plan: TaskPlan, *more: Any, **named: Any) -> Bank:
        found.append(plan.name)
        return build_bank(plan, *more, **named)

    monkeypatch.setattr(strict_load, "build_bank", building)
    strict_load._EXPECTED.pop(backbone.model, None)
    banks = [models.store.load_bank(name, backbone) for name in ("one", "two", "one")]
    assert found == ["one", "one", "two", "one"], "the shapes must be computed only once"
    assert tensor_digests(banks[0].tensors()) == tensor_digests(banks[2].tensors())
    short = Store(folder).certificate("one").tensors | {}
    entry = short.pop("head.output.bias")
    with pytest.raises(StoreError, match=r"tensor head\.output\.bias: stored nothing, but its bank's"):
        strict_load.check_fits(models.store.plan("two"), backbone, short)
    assert entry.shape == (2,)
