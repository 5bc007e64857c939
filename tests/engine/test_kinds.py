"""Tasks of every kind are learned, certified, used for predictions, interrupted and resumed."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl import InputError, Run, StreamCallback, learn
from continual_petl.callbacks import WatchedRun
from continual_petl.engine.scoring.evaluate import evaluate, outputs_of
from continual_petl.errors import Interrupted
from continual_petl.heads.metric_names import ERROR_NAMES
from continual_petl.heads.predictions import Prediction, choices
from continual_petl.learner.generate import decode
from continual_petl.predictor.predictor import Predictor
from continual_petl.store.store import Store
from continual_petl.streams.stream import TaskStream
from tests.desk import bank_digests
from tests.engine.test_resume import SignalAt
from tests.heads.words import predictions
from tests.kinds import GENERATIVE, METRICS
from tests.learned import LearnedRuns
from tests.small import small
from tests.streams_in_code import stream, task, task_of_kind
from tests.tiny import WORDS
from tests.usual import few

Folder = Callable[..., Path]

FAMILIES: dict[str, tuple[str, ...]] = {
    "bart": ("classification", "seq2seq", "token-classification", "multilabel", "regression", "multiple-choice"),
    "gpt2": ("causal-lm", "classification"),
    "bert": ("multiple-choice", "classification", "question-answering"),
    "vit": ("image-classification",),
}


def stream_of_kinds(backbone: Path, kinds: tuple[str, ...], **more: Any) -> TaskStream:
    tasks = [task_of_kind(kind, num_rows=20) for kind in kinds]
    return stream(backbone, tasks, **{"backbone": {"name": str(backbone)}, **more})


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, learned_runs: LearnedRuns) -> dict[str, Path]:
    """Return one run folder for each family."""
    return {family: learned_runs(stream_of_kinds(backbone_folder(family), kinds)) for family, kinds in FAMILIES.items()}


@pytest.mark.parametrize("family", FAMILIES)
def test_kind_is_learned_and_certified(learned: dict[str, Path], family: str) -> None:
    run = Run(learned[family])
    assert run.store.tasks == list(FAMILIES[family])
    assert len(FAMILIES[family]) == 1 or run.results.forgetting == 0.0
    for check in run.verify(data=True):
        assert check.problems == ()
        assert check.how == "digests and probe, bit for bit, test rows"
    for kind in FAMILIES[family]:
        certificate = run.store.certificate(kind)
        assert set(certificate.scores["test"].scores) <= {*METRICS[certificate.kind], *ERROR_NAMES}
        assert (
            (certificate.generation is not None) == (certificate.max_target_length is not None) == (kind in GENERATIVE)
        )
        assert (certificate.parameters["head"] == 0) == (kind in GENERATIVE)


def inputs_of(tasks: TaskStream, kind: str) -> list[Any]:
    key = {"token-classification": "tokens", "seq2seq": "source", "causal-lm": "source"}.get(kind, "text")
    key = "image" if kind == "image-classification" else key
    rows: Any = tasks[kind].data
    if kind == "multiple-choice":
        return [(row["source"], row["options"]) for row in rows["test"]]
    if kind == "question-answering":
        return [(row["question"], row["context"]) for row in rows["test"]]
    return [row[key] for row in rows["test"]]


@pytest.mark.parametrize(("family", "kind"), [(family, kind) for family in FAMILIES for kind in FAMILIES[family]])
def test_predictions_match_the_scores(learned: dict[str, Path], family: str, kind: str) -> None:
    """Predictions equal the evaluated outputs bit for bit, and their scores equal those in the certificate."""
    run = Run(learned[family])
    session, certificate = run.session, run.store.certificate(kind)
    tasks = TaskStream(session.spec)
    rows = session.split(tasks[kind]).rows
    learner = session.models.resident(kind)
    said = outputs_of(session, learner, rows)
    found = run.predict(inputs_of(tasks, kind), kind)
    assert len(found) == len(rows)
    if kind in GENERATIVE:
        assert learner.tokenizer is not None
        assert [answer.value for answer in found] == decode(learner.tokenizer, said)
    elif kind == "token-classification":
        assert certificate.labels is not None
        assert [answer.value for answer in found] == [[certificate.labels[int(n)] for n in row] for row in said]
        assert [len(row) for row in said] == [len(words) for words in inputs_of(tasks, kind)]
    else:
        size = certificate.training.batch_size
        same = Predictor(session.models).predict(inputs_of(tasks, kind), kind, batch_size=size)
        if rows.option_texts is None:
            texts = rows.texts if kind == "question-answering" else None
            said_N = torch.stack(said)
            expected = predictions(certificate.kind, certificate.labels, said_N, certificate.targets, texts=texts)
        else:
            expected = choices(rows.option_texts, torch.stack(said))
        assert same == [replace(each, task=kind) for each in expected]
    scores = evaluate(session, learner, rows)
    assert scores == certificate.scores["test"]


@pytest.mark.parametrize("family", few(list(FAMILIES)))
@pytest.mark.parametrize("bank", ["houlsby", pytest.param("prefix", marks=pytest.mark.slow)])
def test_interrupted_run_ends_with_the_same_banks(
    backbone_folder: Folder, learned_runs: LearnedRuns, tmp_path: Path, family: str, bank: str
) -> None:
    tasks = stream_of_kinds(backbone_folder(family), FAMILIES[family][:2], bank=small(bank))
    whole = bank_digests(Run(learned_runs(tasks)))
    with pytest.raises(Interrupted):
        learn(tasks, tmp_path / "stopped", callbacks=[SignalAt(4, signal.SIGINT)])
    run = learn(tasks, tmp_path / "stopped")
    assert bank_digests(run) == whole
    assert all(check.ok for check in run.verify(data=True))


@pytest.mark.slow
def test_order_of_kinds_does_not_matter(backbone_folder: Folder, learned: dict[str, Path], tmp_path: Path) -> None:
    kinds = FAMILIES["bart"]
    run = learn(stream_of_kinds(backbone_folder("bart"), tuple(reversed(kinds))), tmp_path)
    assert bank_digests(run) == bank_digests(Run(learned["bart"]))


@pytest.mark.parametrize(("family", "kind"), few([("bart", "seq2seq"), ("t5", "seq2seq"), ("gpt2", "causal-lm")]))
def test_generated_text_is_learned_and_ends_correctly(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str
) -> None:
    rows = [{"source": f"w{number} w50", "target": "w7 w8 w9"} for number in range(10, 46)]
    data = {"train": rows[:24], "validation": rows[24:30], "test": rows[30:]}
    one = {"name": "one", "kind": kind, "data": data, "generation": {"max_new_tokens": 8}}
    training = {"epochs": 8, "learning_rate": 0.03, "label_smoothing": 0.05}
    backbone = {"name": str(backbone_folder(family))}
    run = learn(stream(backbone_folder(family), [one], bank="full", training=training, backbone=backbone), tmp_path)
    assert run.predict(["w49 w50"], "one") == [Prediction(task="one", value="w7 w8 w9")]
    scores = run.store.certificate("one").scores["test"].scores
    assert (scores["rougeL"], scores["rouge2"]) == (1.0, 1.0)


def test_class_weights_affect_loss_and_certificate_but_not_scores(backbone_folder: Folder, tmp_path: Path) -> None:
    rows = task("one", num_rows=24)["data"]
    counts = [sum(row["label"] == name for row in rows["train"]) for name in ("no", "yes")]
    settings: dict[str, Any] = {"plain": None, "balanced": "balanced", "named": {"yes": 50.0}}
    runs = {}
    for name, weights in settings.items():
        tasks = stream(backbone_folder(), [task("one", num_rows=24)], training={"class_weights": weights, "epochs": 1})
        runs[name] = learn(tasks, tmp_path / name)
    certificates = {name: run.store.certificate("one") for name, run in runs.items()}
    assert certificates["plain"].class_weights is None
    assert certificates["balanced"].class_weights == tuple(24 / (2 * count) for count in counts)
    assert certificates["named"].class_weights == (1.0, 50.0)
    assert len({certificate.digest for certificate in certificates.values()}) == 3
    # Accuracy is the share of correct rows, whatever the weights.
    right = [answer.value for answer in runs["named"].predict([row["text"] for row in rows["test"]], "one")]
    share = sum(value == row["label"] for value, row in zip(right, rows["test"], strict=True)) / len(right)
    assert certificates["named"].scores["test"].scores["accuracy"] == pytest.approx(share)


def test_unknown_class_weight_names_are_reported_before_training(backbone_folder: Folder, tmp_path: Path) -> None:
    second = task("second", num_rows=16, training={"class_weights": {"maybe": 2.0}})
    with pytest.raises(InputError, match=r"task 'second', training\.class_weights: 'maybe' is not a label"):
        learn(stream(backbone_folder(), [task("first", num_rows=16), second]), tmp_path / "run")
    assert Store(tmp_path / "run").tasks == []


def test_truncated_words_are_reported_not_silently_untagged(learned: dict[str, Path]) -> None:
    run = Run(learned["bart"])
    with pytest.raises(InputError, match=r"row 2 has 63 words, but only the first 62 fit into the 64 tokens"):
        run.predict([["w1"], ["w2"] * 63], "token-classification")


@pytest.mark.parametrize(
    ("family", "kind", "row", "wanted"),
    [
        ("bart", "token-classification", "", "a list of words, or a text with spaces"),
        ("bart", "token-classification", ["w1", 2], "a list of words, or a text with spaces"),
        ("bart", "seq2seq", ("w1", "w2"), "a text"),
        ("bart", "multilabel", ["w1"], "a text"),
        ("vit", "image-classification", ("a.png", "b.png"), "an image"),
    ],
)
def test_rows_of_another_kind_are_refused(
    learned: dict[str, Path], family: str, kind: str, row: Any, wanted: str
) -> None:
    with pytest.raises(InputError, match=f"task '{kind}': row 1 is .*each row of this task is {wanted}"):
        Run(learned[family]).predict([row], kind)


def test_causal_lm_is_evaluated_with_its_certified_settings(backbone_folder: Folder, tmp_path: Path) -> None:
    """A larger max_target_length would cut its sources shorter; with a larger max_new_tokens, they would not fit."""
    draw = random.Random(1)
    rows = [{"source": " ".join(draw.choices(WORDS, k=50)), "target": draw.choice(WORDS[:4])} for _ in range(30)]
    data = {"train": rows[:16], "validation": rows[16:22], "test": rows[22:]}
    one = {"name": "one", "kind": "causal-lm", "data": data, "max_target_length": 8}
    backbone = {"name": str(backbone_folder("gpt2"))}

    def tasks(generation: dict[str, int], **more: Any) -> TaskStream:
        both = [{**one, "generation": generation, **more}, task("two", num_rows=16)]
        return stream(backbone_folder("gpt2"), both, backbone=backbone, training={"epochs": 1})

    first = {**one, "generation": {"max_new_tokens": 4}}
    learn(stream(backbone_folder("gpt2"), [first], backbone=backbone, training={"epochs": 1}), tmp_path)
    heard: list[str] = []

    class Listener(StreamCallback):
        def on_run_start(self, run: WatchedRun) -> None:
            heard.extend(run.notices)

    run = learn(tasks({"max_new_tokens": 30}, max_target_length=40), tmp_path, callbacks=[Listener()])
    assert "learned with other settings (generation, max_target_length)" in heard[0]
    assert run.results.status[1] == ("measured", "measured")
    assert all(check.ok for check in run.verify(data=True))
