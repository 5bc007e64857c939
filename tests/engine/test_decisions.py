"""Thresholds of labels and temperatures: found on validation rows, certified, and the same wherever answers are given.

The expected answers are computed with numpy and scikit-learn from the logits of the task as a plain module.
"""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, log_loss
from starlette.testclient import TestClient

from continual_petl import InputError, Run, learn
from continual_petl.cli.main import main
from continual_petl.engine.changed_settings import plan_again
from continual_petl.engine.dry_run import dry_run
from continual_petl.engine.session import Session
from continual_petl.errors import Interrupted, StoreError
from continual_petl.heads.calibration import fitted_temperature
from continual_petl.heads.decision import Decision, tuned_thresholds
from continual_petl.heads.predictions import Prediction
from continual_petl.serve import ServeSettings, make_app
from continual_petl.store.certificate.history import PerLabel
from continual_petl.store.store import Store
from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream import TaskStream
from tests.desk import bank_digests
from tests.engine.test_resume import SignalAt
from tests.learned import LearnedRuns
from tests.store.tampering import edit, problems
from tests.streams_in_code import stream, task, task_of_kind
from tests.tiny import WORDS

Folder = Callable[..., Path]
LABELS = ("x", "y", "z")


def labelled(name: str, thresholds: Any = None) -> dict[str, Any]:
    """Return a task with rare labels, each of which one word decides."""
    draw, rows = random.Random(name), []
    for _ in range(92):
        labels = [label for label, rate in zip(LABELS, (0.15, 0.3, 0.5), strict=True) if draw.random() < rate]
        words = [*draw.choices(WORDS[10:], k=3), *(WORDS[LABELS.index(label)] for label in labels)]
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "label": labels})
    data = {"train": rows[:32], "validation": rows[32:72], "test": rows[72:]}
    settings = {} if thresholds is None else {"kind_settings": {"thresholds": thresholds}}
    return {"name": name, "kind": "multilabel", "data": data, **settings}


TASKS = {
    "plain": labelled("plain"),
    "half": labelled("half", 0.5),
    "tuned": labelled("tuned", "tuned"),
    "low": labelled("low", 0.3),
    "named": labelled("named", {"z": 0.9, "x": 0.2}) | {"bank": {"preset": "lora", "bottleneck": 4}},
    "other": task("other", num_rows=24),
}
GIVEN = {"low": (0.3, 0.3, 0.3), "named": (0.2, 0.5, 0.9), "plain": (0.5, 0.5, 0.5), "half": (0.5, 0.5, 0.5)}


def tasks_on(backbone: Path) -> TaskStream:
    return stream(backbone, [*TASKS.values()])


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    return learned_runs(tasks_on(backbone_folder()))


@pytest.fixture(scope="module")
def run(learned: Path) -> Run:
    return Run(learned)


def rows_of(name: str, split: str = "test") -> tuple[list[str], np.ndarray]:
    """Return the texts of a split, and which labels apply to each."""
    rows = TASKS[name]["data"][split]
    return [row["text"] for row in rows], np.array([[label in row["label"] for label in LABELS] for row in rows])


def logits_of(run: Run, name: str, texts: list[str]) -> torch.Tensor:
    tokenizer = run.session.models.tokenizer
    assert tokenizer is not None
    with torch.no_grad():
        inputs = tokenizer(texts, padding=True, truncation=True, max_length=24, return_tensors="pt")
        logits: torch.Tensor = run.model(name)(**inputs)
        return logits


def thresholds_of(run: Run, name: str) -> tuple[float, ...]:
    decision = run.store.certificate(name).decision
    assert decision is not None
    assert decision.thresholds is not None
    return decision.thresholds


def expected(run: Run, name: str, texts: list[str]) -> list[list[str]]:
    """Return the labels whose probability is above their threshold."""
    shares = torch.tensor(GIVEN.get(name) or thresholds_of(run, name))
    above = logits_of(run, name, texts).double().sigmoid() > shares
    return [[label for label, applies in zip(LABELS, row, strict=True) if applies] for row in above.tolist()]


def test_tuned_thresholds_are_those_of_the_validation_rows(run: Run) -> None:
    texts, labels = rows_of("tuned", "validation")
    found = tuned_thresholds(logits_of(run, "tuned", texts).double().numpy(), labels)
    assert thresholds_of(run, "tuned") == pytest.approx(found, abs=1e-6)
    assert any(abs(share - 0.5) > 0.02 for share in found)


@pytest.mark.parametrize("name", ["low", "named"])
def test_given_thresholds_are_certified_in_the_order_of_the_labels(run: Run, name: str) -> None:
    assert thresholds_of(run, name) == GIVEN[name]


@pytest.mark.parametrize("name", ["plain", "half"])
def test_one_half_leaves_a_certificate_as_it_was_without_thresholds(learned: Path, name: str) -> None:
    content = json.loads((learned / "banks" / name / "bank.json").read_text())
    assert {"decision", "kind_settings"}.isdisjoint(content)


@pytest.mark.parametrize("name", ["plain", "tuned", "low", "named"])
def test_answers_and_scores_are_those_of_the_thresholds(run: Run, name: str) -> None:
    certificate = run.store.certificate(name)
    for split in ("validation", "test"):
        texts, labels = rows_of(name, split)
        found = run.predict(texts, name)
        assert [answer.value for answer in found] == expected(run, name, texts)
        shares = torch.tensor([[*(answer.probabilities or {}).values()] for answer in found])
        torch.testing.assert_close(shares, logits_of(run, name, texts).sigmoid())
        values: list[Any] = [answer.value for answer in found]
        said = np.array([[label in value for label in LABELS] for value in values])
        for metric in ("micro", "macro"):
            score = f1_score(labels, said, average=metric, zero_division=0)
            assert certificate.scores[split].scores[f"{metric}_f1"] == pytest.approx(score)
    summary = run.store.history(name).answered["test"]
    assert isinstance(summary, PerLabel)
    both, only, missed = ((labels & said).sum(0), (said & ~labels).sum(0), (labels & ~said).sum(0))
    assert summary.counts == tuple(zip(both, only, missed, strict=True))
    assert all(check.ok for check in run.verify(name, data=True))


def test_answers_are_the_same_wherever_they_are_given(run: Run, learned: Path, tmp_path: Path) -> None:
    texts = rows_of("tuned")[0]
    right = {name: expected(run, name, texts) for name in ("plain", "tuned", "low", "named")}
    assert right["low"] != right["tuned"] != right["plain"]
    mixed = run.predict([text for text in texts for _ in right], [*right] * len(texts))
    together = run.predict_all(texts, [*right])
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    with TestClient(make_app(learned, ServeSettings()), base_url="http://127.0.0.1") as client:
        for number, name in enumerate(right):
            assert [answer.value for answer in mixed[number :: len(right)]] == right[name]
            assert [answer.value for answer in together[name]] == right[name]
            out = tmp_path / f"{name}.jsonl"
            assert main(["predict", str(learned), "--task", name, "--input", str(file), "--output", str(out)]) == 0
            assert [json.loads(line)["answer"] for line in out.read_text().splitlines()] == right[name]
            reply = client.post("/v1/predict", json={"inputs": texts, "task": name}).json()
            assert [answer["answer"] for answer in reply["predictions"]] == right[name]
    seen = set()
    for text, found in zip(texts, run.predict(texts, reject="never", candidates=4), strict=True):
        assert found.value == next(each.value for each in found.candidates if each.task == found.task)
        for each in found.candidates:
            seen.add(each.task)
            assert each.task == "other" or each.value == expected(run, str(each.task), [text])[0]
    assert seen & {"tuned", "low", "named"}


def test_thresholds_are_shown(learned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(learned), "named"]) == 0
    assert "x 0.2, y 0.5, z 0.9" in capsys.readouterr().out


def test_an_export_says_how_labels_are_read(run: Run, tmp_path: Path) -> None:
    run.export("named", "peft", tmp_path / "out")
    assert "answers from them with thresholds of probabilities: x 0.2, y 0.5, z 0.9." in (
        tmp_path / "out" / "README.md"
    ).read_text("utf-8")


@pytest.mark.parametrize("sealed", [False, True])
def test_changed_thresholds_are_detected(
    backbone_folder: Folder, learned_runs: LearnedRuns, tmp_path: Path, sealed: bool
) -> None:
    folder = learned_runs.copy(tasks_on(backbone_folder()), tmp_path / "run")
    decision = Decision(thresholds=(0.01, 0.01, 0.01))
    changed = decision if sealed else decision.model_dump(mode="json")
    edit(folder / "banks" / "tuned" / "bank.json", sealed=sealed, onwards=sealed, decision=changed)
    if sealed:  # everything that names the seal was changed too: only its rows tell
        assert problems(folder) == {}
        (check,) = Run(folder).verify("tuned", data=True)
        assert "its test rows now score" in " ".join(check.problems)
    else:
        assert "tuned/bank.json: its content does not match its seal" in problems(folder)["tuned"]
        with pytest.raises(StoreError, match="seal"):
            Run(folder).predict(["w0"], task="tuned")


@pytest.mark.parametrize(
    ("decision", "name"),
    [(None, "tuned"), (Decision(thresholds=(0.5, 0.5)), "tuned"), (Decision(thresholds=(0.5,) * 3), "plain")],
)
def test_thresholds_that_do_not_fit_the_task_are_refused(
    backbone_folder: Folder, learned_runs: LearnedRuns, tmp_path: Path, decision: Decision | None, name: str
) -> None:
    folder = learned_runs.copy(tasks_on(backbone_folder()), tmp_path / "run")
    edit(folder / "banks" / name / "bank.json", sealed=True, onwards=True, decision=decision)
    assert "does not fit the labels and the settings of its kind" in problems(folder)[name]


def test_interrupted_run_ends_with_the_same_thresholds(
    backbone_folder: Folder, learned_runs: LearnedRuns, tmp_path: Path
) -> None:
    tasks = stream(backbone_folder(), [TASKS["tuned"]])
    whole = Run(learned_runs(tasks))
    with pytest.raises(Interrupted):
        learn(tasks, tmp_path / "stopped", callbacks=[SignalAt(3, signal.SIGINT)])
    resumed = learn(tasks, tmp_path / "stopped")
    assert bank_digests(resumed) == bank_digests(whole)
    assert resumed.store.certificate("tuned").decision == whole.store.certificate("tuned").decision


def test_changed_settings_are_reported(run: Run) -> None:
    certificate, spec = run.store.certificate("tuned"), run.spec.tasks[2]
    assert not plan_again(run.session, spec, certificate).differs(certificate)
    changed = spec.model_copy(update={"kind_settings": {"thresholds": 0.4}})
    assert [*plan_again(run.session, changed, certificate).differs(certificate)] == ["kind_settings"]


@pytest.mark.parametrize(
    ("thresholds", "message"),
    [
        ("best", "kind_settings.thresholds .*: got 'best'; must be tuned, a number above 0 and below 1, or a map"),
        (True, "kind_settings.thresholds .*: got true; must be tuned, a number above 0 and below 1, or a mapping"),
        (0.0, "kind_settings.thresholds .*: got 0.0; allowed: a number above 0 and below 1"),
        (1, "kind_settings.thresholds .*: got 1; allowed: a number above 0 and below 1"),
        ({"x": 2.0}, "kind_settings.thresholds.x .*: got 2.0; allowed: a number above 0 and below 1"),
    ],
)
def test_thresholds_that_are_no_probabilities_are_refused(thresholds: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        StreamSpec.model_validate({"name": "s", "backbone": "x", "tasks": [labelled("t", thresholds)]})


def test_thresholds_of_unknown_labels_are_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = stream(backbone_folder(), [labelled("t", {"Z": 0.4})])
    with pytest.raises(
        InputError, match=r"kind_settings\.thresholds names 'Z'; the labels of its data are 'x', 'y', 'z'"
    ):
        dry_run(Session(tasks.spec, Store(tmp_path / "dry")))


CALIBRATED = {"calibrate": "temperature"}


def probable(backbone: Path, **settings: Any) -> TaskStream:
    """Return tasks whose answers have probabilities; a task on the same rows with the same name has the same bank."""
    more: dict[str, Any] = {"kind_settings": settings} if settings else {}
    several = labelled("several") | {"kind_settings": {"thresholds": "tuned", **settings}}
    return stream(
        backbone,
        [task("one", num_rows=32, **more), several, task_of_kind("multiple-choice", "options", **more)],
        training={"epochs": 3},
    )


@pytest.fixture(scope="module")
def plain_and_calibrated(backbone_folder: Folder, learned_runs: LearnedRuns) -> tuple[Run, Run]:
    folder = backbone_folder()
    return Run(learned_runs(probable(folder))), Run(learned_runs(probable(folder, **CALIBRATED)))


def given_rows(tasks: TaskStream, name: str, split: str) -> list[Any]:
    data: Any = tasks[name].data
    return [(row["source"], row["options"]) if name == "options" else row["text"] for row in data[split]]


def shares_of(found: list[Prediction]) -> list[list[float]]:
    return [[*(each.probabilities or {}).values()] for each in found]


def uncalibrated(shares: list[float], *, several: bool) -> torch.Tensor:
    """Return the logits that probabilities are computed from, up to a constant where one label applies."""
    found = torch.tensor(shares, dtype=torch.float64)
    return found.logit() if several else found.log()


@pytest.mark.parametrize("name", ["one", "several", "options"])
def test_calibration_changes_probabilities_and_no_answer(
    plain_and_calibrated: tuple[Run, Run], backbone_folder: Folder, name: str
) -> None:
    tasks = probable(backbone_folder())
    (plain, calibrated), several = plain_and_calibrated, name == "several"
    certificate = calibrated.store.certificate(name)
    assert certificate.digest == plain.store.certificate(name).digest
    assert certificate.decision is not None
    temperature = certificate.decision.temperature
    assert temperature is not None
    assert abs(temperature - 1) > 0.01
    for split in ("validation", "test"):
        rows = given_rows(tasks, name, split)
        before, after = (run.predict(rows, name) for run in (plain, calibrated))
        assert [each.value for each in before] == [each.value for each in after]
        assert [each.near_tie for each in before] == [each.near_tie for each in after]
        for one, other in zip(shares_of(before), shares_of(after), strict=True):
            scaled = uncalibrated(one, several=several) / temperature
            expected = scaled.sigmoid() if several else scaled.softmax(-1)
            torch.testing.assert_close(torch.tensor(other, dtype=torch.float64), expected, atol=1e-5, rtol=1e-5)
        scores, own = certificate.scores[split], plain.store.certificate(name).scores[split]
        assert {key: value for key, value in scores.scores.items() if key in own.scores} == own.scores
        assert scores.predictions == own.predictions
    assert all(check.ok for check in calibrated.verify(name, data=True))


def test_certified_errors_are_those_of_the_answered_probabilities(
    plain_and_calibrated: tuple[Run, Run], backbone_folder: Folder
) -> None:
    tasks = probable(backbone_folder())
    for ending, run in zip(("_uncalibrated", ""), plain_and_calibrated, strict=True):
        rows: Any = tasks["one"].data
        certificate = plain_and_calibrated[1].store.certificate("one")
        assert certificate.labels is not None
        right = [certificate.labels.index(row["label"]) for row in rows["test"]]
        shares = np.array(shares_of(run.predict(given_rows(tasks, "one", "test"), "one")))
        shares /= shares.sum(1, keepdims=True)  # of rounding in single precision
        scores = certificate.scores["test"].scores
        assert scores[f"nll{ending}"] == pytest.approx(log_loss(right, shares), rel=1e-4)
        assert scores[f"brier{ending}"] == pytest.approx(np.square(shares - np.eye(2)[right]).sum(1).mean(), rel=1e-4)
    names = {"nll", "brier", "ece"}
    assert names.isdisjoint(plain_and_calibrated[0].store.certificate("one").scores["test"].scores)
    for name in ("several", "options"):
        found = plain_and_calibrated[1].store.certificate(name).scores["validation"].scores
        assert {*names, *(f"{each}_uncalibrated" for each in names)} <= found.keys()
        assert found["nll"] < found["nll_uncalibrated"]


def test_the_temperature_is_that_of_the_validation_rows(
    plain_and_calibrated: tuple[Run, Run], backbone_folder: Folder
) -> None:
    rows: Any = probable(backbone_folder())["one"].data
    certificate = plain_and_calibrated[1].store.certificate("one")
    assert certificate.labels is not None
    assert certificate.decision is not None
    labels = torch.tensor([certificate.labels.index(row["label"]) for row in rows["validation"]])
    logits = logits_of(plain_and_calibrated[0], "one", [row["text"] for row in rows["validation"]])
    found = fitted_temperature(logits, labels, several=False)
    assert certificate.decision.temperature == pytest.approx(found, rel=1e-3)


def test_mixed_rows_and_lists_have_calibrated_probabilities(
    plain_and_calibrated: tuple[Run, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run = plain_and_calibrated[1]
    texts = ["w1 w2 w3", "w0 w20", "w30 w2 w1 w4"]
    mixed = run.predict([text for text in texts for _ in range(2)], ["one", "several"] * 3)
    for number, name in enumerate(("one", "several")):
        for found, alone in zip(mixed[number::2], run.predict(texts, name), strict=True):
            assert found.probabilities == pytest.approx(alone.probabilities, abs=1e-5)
    assert main(["show", str(run.store.folder), "one"]) == 0
    shown = capsys.readouterr().out
    assert "temperature of probabilities" in shown
    assert "nll_uncalibrated" in shown


def test_calibration_changes_no_label_of_rows_without_a_task(
    backbone_folder: Folder, learned_runs: LearnedRuns
) -> None:
    """With protocol: class, the frozen states have a say in the label, beside the probabilities of the bank."""

    def divided(**settings: Any) -> Run:
        more: dict[str, Any] = {"kind_settings": settings} if settings else {}
        first, second = task("first", num_rows=32, **more), task("second", num_rows=32, **more)
        for rows in second["data"].values():
            for row in rows:
                row["label"] = {"no": "false", "yes": "true"}[row["label"]]
        return Run(learned_runs(stream(backbone_folder(), [first, second], protocol="class")))

    texts = [" ".join(random.Random(n).choices(WORDS, k=6)) for n in range(30)]
    plain, calibrated = (divided(**settings).predict(texts, reject="never") for settings in ({}, CALIBRATED))
    assert [each.value for each in plain] == [each.value for each in calibrated]
    for before, after in zip(plain, calibrated, strict=True):
        assert after.probabilities == pytest.approx(before.probabilities, abs=1e-4)


def test_a_changed_temperature_is_detected(backbone_folder: Folder, learned_runs: LearnedRuns, tmp_path: Path) -> None:
    folder = learned_runs.copy(probable(backbone_folder(), **CALIBRATED), tmp_path / "run")
    edit(folder / "banks" / "one" / "bank.json", sealed=True, onwards=True, decision=Decision(temperature=9.0))
    assert problems(folder) == {}
    (check,) = Run(folder).verify("one", data=True)
    assert "its test rows now score" in " ".join(check.problems)
    edit(folder / "banks" / "one" / "bank.json", sealed=True, onwards=True, decision=Decision(thresholds=(0.5, 0.5)))
    assert "does not fit the labels and the settings of its kind" in problems(folder)["one"]
