"""The framework of the studies: trials, ledgers, choices, pages. Nothing is trained."""

from __future__ import annotations

import json
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from continual_petl.errors import InputError
from experiments.houlsby2019 import compare
from experiments.studies import __main__ as main_module
from experiments.studies import command as command_module
from experiments.studies.command import Request, run_studies
from experiments.studies.ledger import Book, Ledger
from experiments.studies.made_up import make_up
from experiments.studies.scale import QUICK, SMALL
from experiments.studies.statistics import mean_of, mean_over_tasks, shown
from experiments.studies.study import NAMES, Study, find
from experiments.studies.trial import TASKS, Trial, data_digest
from experiments.studies.workers import HOMES, Place, Workers, work
from tests.experiments.made_studies import MADE, TRIAL, line, outcome_of


def test_key_depends_on_settings_not_on_their_form() -> None:
    spelled = Trial(tasks=("trec",), bank="houlsby", training={"epochs": 1}, seed=13, max_length=64, options={})
    assert spelled.key == TRIAL.key
    others: list[dict[str, Any]] = [
        {"seed": 14},
        {"tasks": ("sst2",)},
        {"training": {"epochs": 2}},
        {"max_length": 32},
        {"method": "joint"},
    ]
    assert len({TRIAL.key, *(TRIAL.model_copy(update=change).key for change in others)}) == 1 + len(others)


@pytest.mark.parametrize("name", TASKS)
def test_the_stream_of_a_trial_is_valid(name: str, tmp_path: Path) -> None:
    spec = TRIAL.model_copy(update={"tasks": (name,)}).stream(make_up(tmp_path / "data"))
    (task,) = spec.tasks
    assert (task.name, task.resolved_metric) == (name, TASKS[name].metric)


def test_digest_distinguishes_rows(tmp_path: Path) -> None:
    data = make_up(tmp_path / "data")
    before = data_digest(data, "trec")
    (data / "trec" / "notes.txt").write_text("nothing")
    assert data_digest(data, "trec") == before
    (data / "trec" / "test.jsonl").write_text('{"text": "other", "label": 0}\n')
    assert data_digest(data, "trec") != before


def test_a_ledger_is_read_as_it_was_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "houlsby2019" / "results" / "some.jsonl")
    ledger.write(MADE)
    ledger.write(line(TRIAL, outcome_of(TRIAL, 0.5)))
    book = Book([ledger.file])
    assert book.made == {MADE.made: MADE}
    assert book.score(TRIAL) == 50
    assert book.has(TRIAL, {"trec": "3" * 16})
    assert not book.has(TRIAL, {"trec": "4" * 16}), "a trial on other rows must not count"
    assert book.outcome(TRIAL.model_copy(update={"seed": 14})) is None


def test_mam_in_older_ledgers_is_mam_flat(tmp_path: Path) -> None:
    mam, flat = (TRIAL.model_copy(update={"bank": {"preset": name, "length": 4}}) for name in ("mam", "mam_flat"))
    newer = MADE.model_copy(update={"made": "a" * 12, "defaults": 2})
    ledger = Ledger(tmp_path / "some.jsonl")
    ledger.write(MADE)
    ledger.write(line(mam, outcome_of(mam, 0.5)))
    first = json.loads(ledger.file.read_text().splitlines()[0])
    del first["defaults"]
    ledger.file.write_text("\n".join([json.dumps(first), *ledger.file.read_text().splitlines()[1:], ""]))
    assert (Book([ledger.file]).score(flat), Book([ledger.file]).score(mam)) == (50, None)
    ledger.write(newer)
    ledger.write(line(mam, outcome_of(mam, 0.75)).model_copy(update={"made": newer.made}))
    book = Book([ledger.file])
    assert (book.score(flat), book.score(mam), book.again) == (50, 75, {})


@given(cut=st.integers(min_value=1, max_value=200))
def test_incomplete_line_is_removed(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("ledger") / "some.jsonl")
    other = TRIAL.model_copy(update={"seed": 14})
    ledger.write(line(TRIAL, outcome_of(TRIAL, 0.5)))
    ledger.write(line(other, outcome_of(other, 0.5)))
    ledger.file.write_bytes(ledger.file.read_bytes()[:-cut])
    assert list(Book([ledger.file]).lines) == [TRIAL.key]
    ledger.write(line(other, outcome_of(other, 0.25)))
    assert Book([ledger.file]).score(other) == 25


def test_a_line_of_another_trial_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "some.jsonl"
    tree = line(TRIAL, outcome_of(TRIAL, 0.5)).model_dump(mode="json") | {"key": "0" * 16}
    file.write_text(json.dumps(tree) + "\n")
    with pytest.raises(ValueError, match=r"some.jsonl, line 1: key 0+ does not match its trial"):
        Book([file])


def test_later_run_of_a_trial_counts(tmp_path: Path) -> None:
    later = MADE.model_copy(update={"made": "a" * 12, "began": "2026-02-01 00:00:00"})
    for name, made, score in (("a", later, 0.75), ("b", MADE, 0.25)):
        ledger = Ledger(tmp_path / f"{name}.jsonl")
        ledger.write(made)
        ledger.write(line(TRIAL, outcome_of(TRIAL, score)).model_copy(update={"made": made.made}))
    assert Book(sorted(tmp_path.glob("*.jsonl"))).score(TRIAL) == 75


def test_encoder_size_is_correct() -> None:
    from experiments.he2022.budgets import count, model_of

    assert SMALL.encoder == sum(p.numel() for p in model_of("minilm").get_submodule("encoder").parameters())
    wider = {**compare.BANK, "bottleneck": compare.SIZE + 1}
    assert count("minilm", compare.BANK) <= 0.021 * SMALL.encoder < count("minilm", wider)


def test_means_and_errors() -> None:
    assert mean_of([1.0, 2.0, 3.0]) == mean_of(iter([3.0, 2.0, 1.0]))
    assert shown(mean_of([1.0, 2.0, 3.0]), 3) == "2.000 ± 0.577"  # 1 / sqrt(3)
    assert shown(mean_of([4.25])) == "4.2"
    assert shown(mean_of([1.0, None])) == shown(mean_of([])) == "-"
    assert shown(mean_over_tasks([[1.0, 3.0], [3.0, 5.0]])) == "3.0 ± 1.0"


def test_rate_is_chosen_only_on_validation_rows() -> None:
    book = Book()
    for number, trial in enumerate(compare.FULL.grid(SMALL, "trec", 13)):
        book.add(line(trial, outcome_of(trial, score=1 - number / 10, validation=(0.3, 0.8, 0.8)[number])))
    assert compare.FULL.chosen(SMALL, book, "trec") == 1, (
        "of two equal validation scores, the first must be chosen, although its test score is not the best"
    )
    rates = {trial.training["learning_rate"] for trial in compare.final(compare.FULL, SMALL, book, "trec")}
    assert rates == {compare.FULL.rates[1]}
    assert compare.FULL.chosen(SMALL, Book(), "trec") is None


def test_a_failed_trial_is_not_chosen() -> None:
    book, trials = Book(), compare.FULL.grid(SMALL, "trec", 13)
    for trial in trials:
        book.add(line(trial, {"failed": "diverged", "wall": 1.0}))
    assert compare.FULL.chosen(SMALL, book, "trec") is None
    book.add(line(trials[2], outcome_of(trials[2], 0.5)))
    assert compare.FULL.chosen(SMALL, book, "trec") == 2


def test_each_outcome_belongs_to_its_own_trial() -> None:
    class AtOnce:
        def submit(self, do: Any, trial: Trial, place: Place) -> Future[dict[str, Any]]:
            future: Future[dict[str, Any]] = Future()
            future.set_result({"seed": trial.seed})
            return future

    told: list[tuple[int, dict[str, Any]]] = []
    trials = [TRIAL.model_copy(update={"seed": seed}) for seed in range(5)]
    workers = Workers(cast(ProcessPoolExecutor, AtOnce()), jobs=2)
    assert workers.run(trials, Place(Path()), lambda trial, outcome: told.append((trial.seed, outcome)))
    assert sorted(told) == [(seed, {"seed": seed}) for seed in range(5)]
    late = Workers(cast(ProcessPoolExecutor, AtOnce()), jobs=2, deadline=0.0)
    assert not late.run(trials, Place(Path()), lambda trial, outcome: pytest.fail("a trial was started too late"))


@pytest.mark.slow
def test_one_trial_is_learned(tmp_path: Path) -> None:
    from experiments.studies.tiny import make_tiny

    trial = QUICK.trial("trec", {"preset": "houlsby", "bottleneck": 4}, epochs=1, learning_rate=1e-3, seed=13)
    place = Place(make_up(tmp_path / "data"), {"tiny": str(make_tiny(tmp_path / "tiny"))})
    outcome = work(trial, place)
    assert outcome["unchanged"] is True
    assert outcome["scores"]["trec"]["test"]["rows"] == 8
    assert json.loads(json.dumps(outcome)) == outcome
    too_wide = trial.model_copy(update={"bank": {"preset": "houlsby", "bottleneck": 1000}})
    with pytest.raises(InputError, match="bottleneck 1000 is larger than 384"):
        work(too_wide, place)
    wild = trial.model_copy(update={"training": {"epochs": 20, "learning_rate": 1e30, "optimizer": "sgd"}})
    assert "learning diverged" in work(wild, place)["failed"]


def test_stopped_study_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = [TRIAL.model_copy(update={"seed": seed, "backbone": "tiny"}) for seed in (1, 2, 3)]
    study = Study(
        name="houlsby2019/some", title="Some", plan=lambda scale, book: iter([trials]), body=lambda s, b: "body"
    )
    ran: list[int] = []

    class Few:
        def __init__(self, most: int) -> None:
            self.most = most

        def run(self, missing: list[Trial], place: Place, done: Any) -> bool:
            for trial in missing[: self.most]:
                ran.append(trial.seed)
                done(trial, outcome_of(trial, 0.5))
            return len(missing) <= self.most

    class Started:
        def __init__(self, jobs: int, minutes: float | None) -> None:
            self.most = int(minutes or 100)

        def __enter__(self) -> Few:
            return Few(self.most)

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(command_module, "started", Started)
    said: list[str] = []
    request = Request(data=make_up(tmp_path / "data"), out=tmp_path, scale=QUICK, minutes=2)
    assert not run_studies([study], request, said.append)
    assert "out of time with 1 trials of this stage left" in said[-1]
    assert "Not finished: 1 or more trials" in (tmp_path / "houlsby2019/results/some.md").read_text()
    assert run_studies([study], Request(data=request.data, out=tmp_path, scale=QUICK), said.append)
    assert ran == [1, 2, 3]
    (tmp_path / "data/trec/test.jsonl").write_text('{"text": "other", "label": 0}\n')
    assert run_studies([study], Request(data=request.data, out=tmp_path, scale=QUICK), said.append)
    assert ran == [1, 2, 3, 1, 2, 3], "with different rows, all trials must be run again"


def test_every_study_is_found_under_its_name() -> None:
    assert [find(name).name for name in NAMES] == list(NAMES)
    assert set(HOMES) == set(Trial.model_fields["method"].annotation.__args__)  # type: ignore[union-attr]


def test_command_line_of_studies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(["houlsby2019/compair", "--data", str(tmp_path)]) == 2
    assert "no study 'houlsby2019/compair'" in capsys.readouterr().err
    assert main_module.main(["houlsby2019/compare", "--out", str(tmp_path)]) == 2
    assert "--data is missing" in capsys.readouterr().err
    assert main_module.main(["houlsby2019/compare", "--data", str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "has no folder agnews" in capsys.readouterr().err
    for wrong in (
        ["--quick"],
        ["--scale", "large"],
        ["--model", "bert-base-uncased"],
        ["--scale", "a", "--model", "./x"],
    ):
        with pytest.raises(SystemExit):
            main_module.parse(wrong)
    _, larger = main_module.parse(["--data", "there", "--scale", "large", "--model", "bert-base-uncased"])
    assert (larger.scale.name, larger.scale.trial("trec", "full", epochs=1, learning_rate=1e-4, seed=1).max_length) == (
        "large",
        128,
    )
    names, request = main_module.parse(["houlsby2019/compare", "--data", "there", "--jobs", "2"])
    assert (names, request.command) == (
        ["houlsby2019/compare"],
        "python -m experiments.studies houlsby2019/compare --data FOLDER --jobs 2",
    )
    assert "here" not in main_module.parse(["--data=/here", "--out=/here", "--backbone", "bart-small=/here"])[1].command
    assert main_module.main(["he2022/methods", "--data", "x", "--scale", "a", "--model", "b"]) == 2
    assert "only runs at the small scale" in capsys.readouterr().err
    with pytest.raises(InputError, match="--data is missing"):
        run_studies([], Request(data=None, out=tmp_path))
