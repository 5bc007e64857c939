"""If no task is named, the run finds a row's task and answers with its bank, or says that the task is unknown."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from continual_petl import InputError, Run, StoreError, learn
from continual_petl.cli.main import main
from continual_petl.engine.task import learn_task
from continual_petl.predictor.task_finder import task_finder
from continual_petl.store.store import Store
from continual_petl.streams.stream import TaskStream
from continual_petl.sweep.settings import alone
from tests.learned import LearnedRuns
from tests.router.rows import as_named, labelled_task, routed_stream, rows_of
from tests.streams_in_code import regression_task, stream
from tests.tiny import WORDS

Folder = Callable[..., Path]
STRANGE = " ".join(WORDS[85:86] * 16)


def _stream(backbone: Path, names: tuple[str, ...] = ("low", "high", "pairs"), **more: Any) -> TaskStream:
    return routed_stream(backbone, [labelled_task(name) for name in names], **more)


@pytest.fixture(scope="module")
def run(backbone_folder: Folder, learned_runs: LearnedRuns) -> Run:
    return Run(learned_runs(_stream(backbone_folder())))


def _texts(name: str) -> list[Any]:
    rows = rows_of(name, 20, 7)
    return [(row["text"], row["text_pair"]) if name == "pairs" else row["text"] for row in rows]


@pytest.mark.parametrize("name", ["low", "high", "pairs"])
def test_each_row_is_answered_by_its_own_task(run: Run, name: str) -> None:
    texts = _texts(name)
    found = run.predict(texts, reject="never")
    assert [answer.task for answer in found] == [name] * len(texts)
    named = run.predict(texts, name)
    assert [as_named(each) for each in found] == named
    assert all(0.5 < (each.task_probability or 0) <= 1 for each in found)
    assert {(each.task, each.task_probability, len(each.runners_up), each.task_near_tie) for each in named} == {
        (name, None, 0, False)
    }


def test_rows_route_alike_alone_and_in_shuffled_batches(run: Run) -> None:
    texts = [*_texts("low"), *_texts("high"), *_texts("pairs")]
    random.Random(1).shuffle(texts)
    together = run.predict(texts, batch_size=64)
    for text, answer in zip(texts, together, strict=True):
        alone = run.predict(text)
        assert alone.task == answer.task
        assert alone.task_probability == pytest.approx(answer.task_probability, abs=1e-6)
        assert list(alone.runners_up) == list(answer.runners_up)


def test_a_row_unlike_all_tasks_is_unknown_and_not_guessed(run: Run) -> None:
    answer = run.predict(STRANGE)
    assert (answer.task, answer.value, answer.probabilities, answer.near_tie) == (None, None, None, False)
    assert set(answer.runners_up) <= {"low", "high"}
    assert answer.task_probability == next(iter(answer.runners_up.values()))
    nearest = run.predict(STRANGE, reject="never")
    assert nearest.task in ("low", "high")
    assert answer.known == nearest.known
    assert 0 <= (answer.known or 0) < 0.01


@pytest.mark.parametrize("limit", [0.01, 0.05, 0.5, 0.999])
def test_rows_are_rejected_below_the_limit_of_the_caller(run: Run, limit: float) -> None:
    texts = [*_texts("low"), *_texts("high"), STRANGE]
    for row, nearest in zip(run.predict(texts, reject=limit), run.predict(texts, reject="never"), strict=True):
        assert nearest.known is not None
        assert row.known == pytest.approx(nearest.known)
        assert row.task_near_tie or (row.task is None) == (nearest.known < limit)
        assert row.task in (None, nearest.task)


@pytest.mark.slow
def test_the_order_of_learning_changes_no_probability(run: Run, backbone_folder: Folder, tmp_path: Path) -> None:
    other = learn(_stream(backbone_folder(), ("pairs", "high", "low")), tmp_path / "run")
    texts = _texts("low") + _texts("high")
    assert other.predict(texts) == run.predict(texts)


def test_a_task_that_is_replaced_between_the_two_passes_is_named(run: Run) -> None:
    models = run.session.models
    finder = task_finder(models)
    routes = dict(enumerate(finder.routes(["w1"], finder.states(models, ["w1"]))))
    with pytest.raises(StoreError, match=r"task '(low|high)' was replaced while its rows were being predicted"):
        finder.known(routes, {}, {})  # the new task's head does not read one vector per row


def test_named_answers_and_their_types_stay_as_they_are(run: Run) -> None:
    with pytest.raises(InputError, match="reject: got 'never', but a task was named"):
        run.predict("w1", task="low", reject="never")
    for limit in ("maybe", 0.0, 1.0, -0.5, 1, True, float("nan"), float("inf"), "0.05"):
        with pytest.raises(InputError, match=f"reject: got {limit!r}; allowed: a number above 0 and below 1, or never"):
            run.predict("w1", reject=cast("Any", limit))
    assert run.predict([]) == []


def test_rows_that_no_task_takes_are_refused(run: Run) -> None:
    with pytest.raises(InputError, match=r"row 2 is .* no task that can be found without a name accepts"):
        run.predict(["w1", ("w1", "w2", "w3")])


def test_routing_statistics_are_certified_and_a_changed_byte_is_reported(run: Run, tmp_path: Path) -> None:
    folder = shutil.copytree(run.store.folder, tmp_path / "run")
    assert all(check.ok for check in Run(folder).verify())
    path = folder / "banks" / "low" / "router.safetensors"
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    (failed,) = [check for check in Run(folder).verify() if not check.ok]
    assert failed.task == "low"
    assert "router.safetensors" in failed.findings[0].message
    with pytest.raises(StoreError, match=r"router\.safetensors"):
        Run(folder).predict("w1 w2")
    assert Run(folder).predict(["w1 w2"], task="low") == run.predict(["w1 w2"], task="low")


@pytest.mark.slow
def test_a_task_without_routing_stores_nothing_and_is_not_found(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [labelled_task("low", routing="off"), labelled_task("high"), regression_task("length", routing="off")]
    run = learn(stream(backbone_folder(), tasks, routing="small"), tmp_path / "run")
    stored = {path.parent.name for path in run.store.folder.glob("banks/*/router.safetensors")}
    assert stored == {"high"}
    found = run.predict(_texts("low"), reject="never")
    assert {answer.task for answer in found} == {"high"}


@pytest.mark.slow
def test_a_run_without_routing_statistics_says_how_to_get_them(backbone_folder: Folder, tmp_path: Path) -> None:
    run = learn(stream(backbone_folder(), [labelled_task("low")], routing="off"), tmp_path / "run")
    with pytest.raises(InputError, match=r"no task of .* was learned with routing, so .*routing: full"):
        run.predict("w1")


@pytest.mark.slow
def test_tasks_learned_with_other_layers_are_named(run: Run, backbone_folder: Folder, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    learn(_stream(backbone_folder(), ("low",)), folder)
    mixed = learn(_stream(backbone_folder(), ("low", "high"), routing="small"), folder)
    with pytest.raises(InputError, match="learned with different settings of routing"):
        mixed.predict("w1")


def test_the_command_prints_the_task_before_the_answer(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    text, strange = _texts("high")[0], STRANGE
    assert main(["predict", str(run.store.folder), text, strange]) == 0
    printed = capsys.readouterr()
    first, second = printed.out.splitlines()
    assert printed.err.splitlines()[-1].endswith(
        "name the task with --task, or let the most probable one predict with --reject never"
    )
    assert first.startswith("high ")
    assert re.match(r"high \d\.\d{4} known \d\.\d{4}( \(near a tie\))?\t", first)
    assert re.match(r"\(unknown\)( \(near a tie\))?\tnearest task: (low|high) \d\.\d{4} known 0\.00\d\d", second)
    assert main(["predict", str(run.store.folder), "--json", "--reject", "never", text, "w1\tw2 w3"]) == 0
    one, two = json.loads(capsys.readouterr().out)
    assert (one["task"], one["text"]) == ("high", text)
    assert {"task_probability", "known", "runners_up", "answer", "probabilities"} <= one.keys()
    assert (two["task"], two["text_pair"]) == ("pairs", "w2 w3")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "low", "--reject", "never", "w1"], "--reject: only for rows whose task is not named"),
        (["--reject", "often", "w1"], "--reject: got 'often'; allowed: a number above 0 and below 1, or never"),
        (["--reject", "1", "w1"], "--reject: got 1.0; allowed: a number above 0 and below 1, or never"),
        (["--task", "low", "--task-column", "task", "--input", "rows.jsonl"], "both were given"),
    ],
)
def test_options_that_do_not_go_together(
    run: Run, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert main(["predict", str(run.store.folder), *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_task_committed_after_the_first_prediction_is_found(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn(_stream(backbone_folder(), ("low",)), tmp_path / "run")
    run = Run(tmp_path / "run")
    reads: list[str] = []
    read = Store.router_sums

    def counted(store: Store, task: str) -> Any:
        reads.append(task)
        return read(store, task)

    monkeypatch.setattr(Store, "router_sums", counted)
    text = _texts("high")[0]
    for _ in range(2):
        assert run.predict([text], reject="never")[0].task == "low"
    assert reads == ["low", "low"], "the statistics must not be read again to tell whether a row is unknown"
    learn(_stream(backbone_folder(), ("low", "high")), tmp_path / "run")
    assert run.predict([text], reject="never")[0].task == "high"


def test_trials_of_a_sweep_store_no_routing_statistics(backbone_folder: Folder) -> None:
    spec = _stream(backbone_folder()).spec
    assert spec.resolved_routing(spec.tasks[0]) != "off"
    assert alone(spec, spec.tasks[0], seed=3).routing.statistics == "off"


def test_a_limit_that_a_run_of_an_earlier_release_cannot_store_is_reported(
    backbone_folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learn_task, "has_first_format", lambda store: True)
    tasks = [labelled_task("low", routing={"reject": 0.3}), labelled_task("high")]
    other = learn(routed_stream(backbone_folder(), tasks), tmp_path / "run")
    assert other.predict(STRANGE, reject="never").known is not None
    noted = {name: [own for own in other.store.certificate(name).notices if "limit" in own] for name in ("low", "high")}
    assert len(noted["low"]) == 1
    assert "reject: 0.3, is not stored" in noted["low"][0]
    assert noted["high"] == []
