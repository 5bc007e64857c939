"""``start_from: auto`` and averages: candidates, choice and record are right, and earlier banks are only read."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl import Run, forget, learn
from continual_petl.digests import tensor_digests
from continual_petl.engine import start_from
from continual_petl.engine.start_from import combine
from continual_petl.engine.trainers import KeepSignals
from continual_petl.errors import DivergedError, InputError, Interrupted, StoreError, StreamFileError
from continual_petl.heads.metric_code import lowest
from continual_petl.kind_registry import find_kind
from continual_petl.store.certificate.certificate import Certificate
from continual_petl.store.certificate.values import Start, StartCandidate
from continual_petl.store.store import Store
from tests.learned import LearnedRuns
from tests.store.tampering import edit
from tests.streams_in_code import regression_task, stream, task
from tests.usual import few

Folder = Callable[..., Path]
QUICK = {"epochs": 2, "learning_rate": 0.02, "head_dropout": 0.2}
EARLIER: list[dict[str, Any]] = [
    task("one", num_rows=24),
    regression_task("two", num_rows=24),
    task("three", num_rows=24, bank={"preset": "lora", "rank": 4}),
    task("four", num_rows=30),
]
AUTO = {"preset": "houlsby", "bottleneck": 4, "start_from": "auto"}
NAMES = ["one", "two", "three", "four"]
OPTIONS: dict[str, Any] = {
    "auto": "auto",
    "one": "one",
    "two averaged": ["one", "two"],
    "three averaged": ["four", "one", "two"],
}


@pytest.fixture(scope="module")
def first(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    """Return a run with four tasks, one of which has a bank of another shape; tests copy it."""
    return learned_runs(stream(backbone_folder(), EARLIER, training=QUICK))


@pytest.fixture
def folder(first: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(first, tmp_path / "run"))


def new(start_from: Any = "auto", **more: Any) -> dict[str, Any]:
    bank = {"preset": "houlsby", "bottleneck": 4} | ({} if start_from is None else {"start_from": start_from})
    return task("new", num_rows=24, bank=bank) | more


def learned(backbone: Path, folder: Path, child: dict[str, Any], **more: Any) -> Run:
    return learn(stream(backbone, [*EARLIER, child], **({"training": QUICK} | more)), folder)


def certificate_of(run: Run | Path, name: str = "new") -> Certificate:
    return Store(run if isinstance(run, Path) else run.store.folder).certificate(name)


def start_of(run: Run | Path, name: str = "new") -> Start:
    start = certificate_of(run, name).start
    assert start is not None
    return start


def test_nearest_fitting_banks_their_average_and_a_fresh_one_are_tried(
    backbone_folder: Folder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = itertools.count()
    monkeypatch.setattr(start_from, "score_after_fit", lambda run, steps: next(scores) / 10)
    start = start_of(learned(backbone_folder(), folder, new()))
    fresh, *copies, average = start.candidates
    assert (fresh.parents, fresh.weights) == ((), ())
    # The bank of "three" has another shape, so it is not a candidate.
    assert sorted(parent.task for each in copies for parent in each.parents) == ["four", "one", "two"]
    assert [parent for each in copies for parent in each.parents] == list(average.parents)
    assert len(average.weights) == 3
    assert sum(average.weights) == pytest.approx(1.0)
    assert [candidate.score for candidate in start.candidates] == [0, 0.1, 0.2, 0.3, 0.4]
    assert (start.num_steps, start.num_rows) == (6, 16)
    digests = {name: certificate_of(folder, name).digest for name in NAMES}
    assert all(parent.digest == digests[parent.task] for parent in average.parents)


@pytest.mark.parametrize("chosen", few([3, 0, 1, 2, 4]))
def test_bank_is_the_one_that_naming_the_start_would_give(
    backbone_folder: Folder, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: int
) -> None:
    scores = iter([1.0 if turn == chosen else min(turn, 1) / 2 for turn in range(5)])
    monkeypatch.setattr(start_from, "score_after_fit", lambda run, steps: next(scores))
    run = learned(backbone_folder(), Path(shutil.copytree(first, tmp_path / "auto")), new())
    taken = start_of(run).taken
    assert start_of(run).chosen == chosen
    names = [parent.task for parent in taken.parents]
    assert certificate_of(run).parent == (taken.parents[0] if len(names) == 1 else None)
    monkeypatch.undo()
    named: Any = names if len(names) > 1 else names[0] if names else None
    other = learned(backbone_folder(), Path(shutil.copytree(first, tmp_path / "named")), new(named))
    assert tensor_digests(other.store.tensors("new")) == tensor_digests(run.store.tensors("new"))


@pytest.mark.slow
def test_fresh_bank_wins_ties(backbone_folder: Folder, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_from, "score_after_fit", lambda run, steps: 0.5)
    start = start_of(learned(backbone_folder(), folder, new()))
    assert (start.chosen, start.gain, start.taken.in_words) == (0, 0.0, "a fresh bank")


@pytest.mark.slow
@pytest.mark.parametrize(("scores", "count"), [([0.5, 0.6, 0.55, 0.4], 4), ([0.5, 0.6, 0.4, 0.6, 0.3], 5)])
def test_average_is_tried_if_two_banks_alone_would_be_chosen(
    backbone_folder: Folder, folder: Path, monkeypatch: pytest.MonkeyPatch, scores: list[float], count: int
) -> None:
    given = iter(scores)
    monkeypatch.setattr(start_from, "score_after_fit", lambda run, steps: next(given))
    start = start_of(learned(backbone_folder(), folder, new()))
    assert len(start.candidates) == count
    assert start.chosen == 1


@pytest.mark.parametrize(
    ("kind", "metric", "fresh", "leads"),
    [
        ("classification", "accuracy", 0.5, 0.0707),
        ("classification", "matthews", 0.5, 0.1061),
        ("causal-lm", "matthews", 0.5, 0.1061),
        ("token-classification", "entity_f1", 0.0, 0.0139),
        ("regression", "spearman", -0.1, 0.1400),
        ("regression", "pearson", -3.0, 0.1414),  # no correlation, but R2 of a kind of one's own may be as low
    ],
)
def test_margin_is_the_standard_error_of_the_metric(kind: str, metric: str, fresh: float, leads: float) -> None:
    floor = lowest(find_kind(kind), metric)
    for lead, chosen in ((leads - 0.001, 0), (leads + 0.001, 1)):
        tried = [StartCandidate(score=fresh), StartCandidate(score=fresh + lead)]
        assert start_from.best(tried, floor, 100, 1.0) == chosen


@pytest.mark.slow
@pytest.mark.parametrize(("most", "fewest", "chosen"), [(10**6, 20, 1), (0, 2, 0), (0, 20, 1)])
def test_short_fits_of_fewer_steps_need_a_larger_lead(
    backbone_folder: Folder, folder: Path, monkeypatch: pytest.MonkeyPatch, most: int, fewest: int, chosen: int
) -> None:
    scores = itertools.cycle([0.5, 0.9, 0.5, 0.5, 0.5])
    monkeypatch.setattr(start_from, "score_after_fit", lambda run, steps: next(scores))
    monkeypatch.setattr(start_from, "WHOLE_UP_TO", most)
    monkeypatch.setattr(start_from, "MIN_STEPS", fewest)  # the task has 6
    start = start_of(learned(backbone_folder(), folder, new()))
    assert [candidate.score for candidate in start.candidates] == [0.5, 0.9, 0.5, 0.5, 0.5][: len(start.candidates)]
    assert start.chosen == chosen


def test_start_that_diverges_is_not_taken(
    backbone_folder: Folder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diverges(*args: Any) -> None:
        raise DivergedError("the loss is not finite")

    monkeypatch.setattr(start_from, "fit_briefly", diverges)
    start = start_of(learned(backbone_folder(), folder, new()))
    assert [candidate.score for candidate in start.candidates] == [None] * 4
    assert (start.chosen, start.gain) == (0, None)


@pytest.mark.parametrize("option", few(list(OPTIONS), 2))
def test_earlier_banks_are_unchanged(backbone_folder: Folder, folder: Path, option: str) -> None:
    before = {path: path.read_bytes() for path in (folder / "banks").rglob("*") if path.is_file()}
    run = learned(backbone_folder(), folder, new(OPTIONS[option]))
    after = {path: path.read_bytes() for path in before}
    assert after == before
    assert all(check.ok for check in run.verify(data=True))


def test_average_is_the_weighted_sum_of_the_named_banks(backbone_folder: Folder, folder: Path) -> None:
    still = {"epochs": 1, "optimizer": "sgd", "learning_rate": 1e-30, "weight_decay": 0.0, "select": "last"}
    run = learned(backbone_folder(), folder, new(["one", "two"]) | {"training": still})
    start = start_of(run)
    assert [parent.task for parent in start.taken.parents] == ["one", "two"]
    assert start.taken.weights != (0.5, 0.5)
    bodies = [
        {name: tensor for name, tensor in run.store.tensors(each).items() if not name.startswith("head.")}
        for each in ("one", "two")
    ]
    expected = combine(bodies, start.taken.weights)
    mine = run.store.tensors("new")
    assert all(torch.equal(mine[name], tensor) for name, tensor in expected.items())


@pytest.mark.slow
def test_first_task_and_tasks_without_similar_banks_start_fresh(backbone_folder: Folder, tmp_path: Path) -> None:
    bank = AUTO
    tasks = [
        task("one", num_rows=16),
        task("two", num_rows=16, bank={"preset": "lora", "rank": 4, "start_from": "auto"}),
    ]
    run = learn(stream(backbone_folder(), tasks, bank=bank, training=QUICK), tmp_path / "run")
    for name in ("one", "two"):
        start = start_of(run, name)
        assert (len(start.candidates), start.num_steps, start.chosen, start.gain) == (1, 0, 0, None)


@pytest.mark.slow
def test_without_routing_statistics_of_earlier_tasks_a_bank_starts_fresh(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    tasks = [task("one", num_rows=16), task("new", num_rows=16, bank=AUTO)]
    run = learn(stream(backbone_folder(), tasks, routing="off", training=QUICK), tmp_path / "run")
    assert len(start_of(run).candidates) == 1
    assert run.store.router_sums("new") is None


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.usefixtures("forked_workers")
def test_parallel_run_takes_the_same_start(backbone_folder: Folder, first: Path, tmp_path: Path) -> None:
    given = stream(backbone_folder(), [*EARLIER, new()], training=QUICK)
    one = learn(given, Path(shutil.copytree(first, tmp_path / "one")))
    two = learn(given, Path(shutil.copytree(first, tmp_path / "two")), jobs=2)
    assert start_of(one) == start_of(two)
    assert tensor_digests(one.store.tensors("new")) == tensor_digests(two.store.tensors("new"))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.usefixtures("forked_workers")
def test_two_devices_take_the_same_start(backbone_folder: Folder, first: Path, tmp_path: Path) -> None:
    trainer = {"devices": 2, "accelerator": "cpu", "strategy": "ddp"}
    one = learned(backbone_folder(), Path(shutil.copytree(first, tmp_path / "one")), new())
    two = learned(backbone_folder(), Path(shutil.copytree(first, tmp_path / "two")), new(), trainer=trainer)
    assert start_of(one) == start_of(two)
    assert all(check.ok for check in two.verify())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.parametrize("fit", [1, 3, 4])
def test_run_killed_while_it_chooses_takes_the_same_start(
    backbone_folder: Folder, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fit: int
) -> None:
    whole = learned(backbone_folder(), Path(shutil.copytree(first, tmp_path / "whole")), new())
    run = Path(shutil.copytree(first, tmp_path / "run"))
    child = os.fork()
    if child == 0:
        fits, fit_briefly = itertools.count(1), start_from.fit_briefly

        def killed(*given: Any, **more: Any) -> None:
            fit_briefly(*given, **more)
            if next(fits) == fit:
                os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(start_from, "fit_briefly", killed)
        monkeypatch.setattr(
            start_from, "score_after_fit", killed
        )  # never returns: the process is killed before a score is used
        learned(backbone_folder(), run, new())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    again = learned(backbone_folder(), run, new())
    assert start_of(again) == start_of(whole)
    assert tensor_digests(again.store.tensors("new")) == tensor_digests(whole.store.tensors("new"))


def test_sigterm_while_a_short_fit_is_being_started_stops_cleanly(
    backbone_folder: Folder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = KeepSignals.on_train_start

    def early(self: KeepSignals, *args: Any) -> None:
        signal.raise_signal(signal.SIGTERM)  # Lightning's handler, which ends the process, is still installed
        keep(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(KeepSignals, "on_train_start", early)
        with pytest.raises(Interrupted, match="while a short fit of task 'new' was being started") as stopped:
            learned(backbone_folder(), folder, new())
    assert stopped.value.signal_number == signal.SIGTERM
    assert start_of(learned(backbone_folder(), folder, new())).chosen is not None


REFUSED: dict[str, tuple[Any, str]] = {
    "one name in a list": (["one"], "a list of 1 tasks; allowed: one name, or a list of 2 to 8"),
    "too many": ([f"t{n}" for n in range(9)], "a list of 9 tasks"),
    "a name twice": (["one", "one"], "allowed: names of distinct tasks"),
    "auto in a list": (["auto", "one"], "allowed: names of distinct tasks"),
    "unknown": (["one", "tow"], "there is no task 'tow' (did you mean 'two'?)"),
    "itself": (["one", "new"], "cannot start from its own bank"),
    "another shape": (["one", "three"], "has a different bank"),
}


@pytest.mark.parametrize(("start_from", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_unusable_list_is_refused(backbone_folder: Folder, folder: Path, start_from: Any, message: str) -> None:
    with pytest.raises(
        (InputError, StreamFileError, ValueError), match=message.replace("(", r"\(").replace("?)", r"\?\)")
    ):
        learned(backbone_folder(), folder, new(start_from))
    assert not (folder / "banks" / "new").exists()


@pytest.mark.slow
def test_edited_choice_of_a_half_learned_task_is_reported(
    backbone_folder: Folder, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Exception):
        pass

    def stop(*args: Any) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr("continual_petl.engine.task.learn_task._fit", stop)
        with pytest.raises(Stopped):
            learned(backbone_folder(), folder, new())
    (path,) = folder.rglob(start_from.FILE)
    content = path.read_text()
    chosen = json.loads(content)["chosen"]
    path.write_text(content.replace(f'"chosen": {chosen}', f'"chosen": {chosen + 1}'))
    with pytest.raises(StoreError, match="does not match its seal"):
        learned(backbone_folder(), folder, new())
    # With the original content, the choice is kept and nothing is tried again.
    path.write_text(content)
    monkeypatch.setattr(start_from, "score_after_fit", stop)
    run = learned(backbone_folder(), folder, new())
    assert start_of(run).chosen == chosen
    assert run.results.seconds["new"]["start"] >= json.loads(content)["seconds"] > 0, "its time counts as well"


@pytest.mark.slow
def test_verify_notices_a_parent_with_another_digest(backbone_folder: Folder, folder: Path) -> None:
    learned(backbone_folder(), folder, new("one"))
    store = Store(folder)
    certificate = store.certificate("new")
    assert certificate.parent is not None
    parent = certificate.parent.model_copy(update={"digest": "0" * 64})
    edit(store.bank_folder("new") / "bank.json", sealed=True, onwards=True, parent=parent)
    (found,) = [check for check in Run(folder).verify() if check.task == "new"]
    assert any("started from the bank of 'one' with digest 000000000000" in problem for problem in found.problems)


@pytest.mark.slow
def test_parents_may_be_forgotten(backbone_folder: Folder, folder: Path) -> None:
    run = learned(backbone_folder(), folder, new(["one", "two"]))
    forget(folder, "one")
    assert all(check.ok for check in Run(folder).verify())
    assert [parent.task for parent in start_of(run).taken.parents] == ["one", "two"]
