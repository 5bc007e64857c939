"""Regression learns targets far from zero, answers in their units, and shows its errors in them; all computed in float64.

The expected values are computed with numpy, scipy and scikit-learn from the rows and the predictions.
"""

from __future__ import annotations

import csv
import hashlib
import json
import random
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import torch
import transformers
from scipy.stats import spearmanr

from continual_petl import InputError, Run, import_adapter, learn
from continual_petl.cli.main import main
from continual_petl.seeding import derive_seed
from continual_petl.streams.preparation.prepare import check_again
from continual_petl.streams.stream import TaskStream
from tests.streams_in_code import stream, task
from tests.tiny import WORDS

Folder = Callable[..., Path]
LONG = {"epochs": 8, "learning_rate": 0.03, "select": "last"}
BRIEF = LONG | {"epochs": 3}
SHORT = {"epochs": 1, "select": "last"}


def rows_of(number: int, seed: int, high: float, low: float, noise: float = 0.0) -> list[dict[str, Any]]:
    """Return rows whose target is one of two numbers, which one word of the text decides, plus noise."""
    draw, rows = random.Random(seed), []
    for _ in range(number):
        side = draw.randrange(2)
        words = [*draw.choices(WORDS[10:], k=draw.randint(1, 4)), WORDS[side]]
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "label": (low, high)[side] + noise * draw.gauss(0, 1)})
    return rows


def numbers_task(
    name: str, high: float, low: float, *, noise: float = 0.0, train: int = 48, **more: Any
) -> dict[str, Any]:
    rows = rows_of(train + 40, 5, high, low, noise)
    data = {"train": rows[:train], "validation": rows[train:-20], "test": rows[-20:]}
    return {"name": name, "kind": "regression", "data": data, **more}


def column(spec: dict[str, Any], split: str, key: str = "label") -> list[Any]:
    return [row[key] for row in spec["data"][split]]


def values(run: Run, spec: dict[str, Any], split: str = "test") -> np.ndarray[Any, np.dtype[np.float64]]:
    answers = run.predict(column(spec, split, "text"), task=spec["name"])
    return np.array([answer.value for answer in answers], dtype=np.float64)


def error(run: Run, spec: dict[str, Any]) -> float:
    """Return the root mean squared error on the test rows, in standard deviations of their targets."""
    targets = np.array(column(spec, "test"), dtype=np.float64)
    return float(np.sqrt(np.square(values(run, spec) - targets).mean()) / targets.std())


def with_targets(spec: dict[str, Any], change: Callable[[float], float]) -> dict[str, Any]:
    data = {split: [row | {"label": change(row["label"])} for row in rows] for split, rows in spec["data"].items()}
    return spec | {"data": data}


@pytest.fixture(scope="module")
def learned(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[dict[str, Any]]]:
    """Return a run with targets 120 +- 20, 380 +- 20 and seconds since 1970, and its tasks."""
    tasks = [
        numbers_task("near", 140.0, 100.0, train=120),
        numbers_task("far", 400.0, 360.0, train=120),
        numbers_task("seconds", 1_600_000_007.0, 1_600_000_001.0, noise=0.3, train=120),
    ]
    folder = tmp_path_factory.mktemp("learned") / "run"
    return learn(stream(backbone_folder(), tasks, training=LONG), folder), tasks


def test_targets_away_from_zero_are_learned(learned: tuple[Run, list[dict[str, Any]]]) -> None:
    run, tasks = learned
    for spec in tasks:
        # A tiny model with random weights, on words that it has not seen; without standardising, the error was 6 and 19.
        assert error(run, spec) < 0.6, spec["name"]


def test_plan_holds_mean_and_deviation_of_the_training_rows(learned: tuple[Run, list[dict[str, Any]]]) -> None:
    run, tasks = learned
    for spec in tasks:
        targets = run.store.certificate(spec["name"]).targets
        assert targets is not None
        train = np.array(column(spec, "train"))
        assert targets.mean == pytest.approx(train.mean(), rel=1e-15)
        assert targets.deviation == pytest.approx(train.std(), rel=1e-12)
    assert all(check.ok and check.how.startswith("digests and probe") for check in run.verify(data=True))


def test_scores_equal_those_of_other_libraries(learned: tuple[Run, list[dict[str, Any]]]) -> None:
    run, tasks = learned
    for spec in tasks:
        size = 8  # batches as in the evaluation, so that the predictions are the same bits
        answers = run.predict(column(spec, "test", "text"), task=spec["name"], batch_size=size)
        predicted, targets = np.array([a.value for a in answers]), np.array(column(spec, "test"))
        apart = targets - targets[0]  # exact; float64 rounds the mean of the targets themselves
        expected = {
            "spearman": spearmanr(predicted, targets).statistic,
            "pearson": np.corrcoef(predicted, targets)[0, 1],
            "rmse": sklearn.metrics.root_mean_squared_error(targets, predicted),
            "mae": sklearn.metrics.mean_absolute_error(targets, predicted),
            "rmse_of_mean": apart.std(),
            "mae_of_mean": np.abs(apart - apart.mean()).mean(),
        }
        assert run.store.certificate(spec["name"]).scores["test"].scores == pytest.approx(expected, rel=1e-9)


def test_a_task_equals_the_one_with_targets_standardised_by_hand(backbone_folder: Folder, tmp_path: Path) -> None:
    given = numbers_task("one", 400.0, 360.0, noise=3.0)
    train = np.array(column(given, "train"))
    mean, deviation = float(train.mean()), float(train.std())
    by_hand = with_targets(given, lambda y: (y - mean) / deviation)
    runs = [
        learn(stream(backbone_folder(), [spec], training=BRIEF), tmp_path / str(number))
        for number, spec in enumerate((given, by_hand))
    ]
    one, other = (run.store.certificate("one") for run in runs)
    assert one.digest == other.digest
    assert one.probe == other.probe
    np.testing.assert_allclose(values(runs[0], given), mean + deviation * values(runs[1], by_hand), rtol=1e-14)


def test_every_way_to_predict_answers_in_the_same_units(
    learned: tuple[Run, list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, tasks = learned
    near = tasks[0]
    texts = column(near, "test", "text")
    close = partial(np.testing.assert_allclose, rtol=0, atol=1e-4)
    alone = {spec["name"]: np.array([a.value for a in run.predict(texts, task=spec["name"])]) for spec in tasks}
    together = run.predict_all(texts, [spec["name"] for spec in tasks])
    mixed = run.predict([texts[0]] * 3, task=["near", "seconds", "far"])
    for name, expected in alone.items():
        found = np.array([answer.value for answer in together[name]])
        close(found, expected)
    close([a.value for a in mixed], [alone[n][0] for n in ("near", "seconds", "far")])
    tokenizer: Any = run.session.models.tokenizer
    outputs = run.model("seconds")(**tokenizer(texts[:1], return_tensors="pt"))
    close(outputs.numpy(), [[alone["seconds"][0]]])
    folder = str(run.store.folder)
    assert main(["predict", folder, texts[0], "--task", "seconds"]) == 0
    printed = float(capsys.readouterr().out)
    assert printed == pytest.approx(alone["seconds"][0], rel=0, abs=1e-4)
    source, written = tmp_path / "in.jsonl", tmp_path / "out.csv"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert main(["predict", folder, "--input", str(source), "--output", str(written), "--task", "seconds"]) == 0
    with written.open(newline="") as file:
        close([float(row["answer"]) for row in csv.DictReader(file)], alone["seconds"])
    assert len(set(alone["seconds"])) > 2


def test_errors_are_shown_beside_those_of_the_mean(
    learned: tuple[Run, list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = learned
    folder = str(run.store.folder)
    scores = run.store.certificate("far").scores["test"].scores
    words = f"rmse {scores['rmse']:.4g} ({scores['rmse_of_mean']:.4g}), mae "
    for command in (["list", folder], ["show", folder, "far"], ["report", folder, "--output", str(tmp_path / "page")]):
        assert main(command) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert words in out, command
        assert "of always predicting the mean" in out
    assert main(["list", folder, "--json"]) == 0
    listed = {entry["task"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed["far"]["errors"] == {name: scores[name] for name in ("rmse", "rmse_of_mean", "mae", "mae_of_mean")}
    assert main(["report", folder, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["scores"]["far"]["test"]["scores"]["rmse"] == scores["rmse"]
    assert main(["show", folder, "seconds"]) == 0
    assert "mean 160000000" in capsys.readouterr().out


def test_wrong_predictions_show_all_digits_that_differ(learned: tuple[Run, list[dict[str, Any]]]) -> None:
    run, tasks = learned
    targets, found = column(tasks[2], "test"), values(run, tasks[2])
    order = np.argsort(-np.abs(found - np.array(targets)))[:3]
    rows = run.wrong_predictions("seconds", 3).rows
    assert [float(row.correct) for row in rows] == pytest.approx([targets[n] for n in order], rel=0, abs=1e-3)
    assert [float(row.predicted) for row in rows] == pytest.approx([found[n] for n in order], rel=0, abs=1e-3)


def test_neighbouring_integers_beyond_single_precision_are_different_targets(
    backbone_folder: Folder, tmp_path: Path
) -> None:
    spec = numbers_task("one", 0.0, 0.0)
    for split in spec["data"].values():
        for number, row in enumerate(split):
            row["label"] = 1_600_000_000 + number
    run = learn(stream(backbone_folder(), [spec], training=SHORT), tmp_path / "run")
    targets = run.store.certificate("one").targets
    assert targets is not None
    assert targets.mean == 1_600_000_023.5
    assert targets.deviation == pytest.approx(np.arange(48).std(), rel=1e-15)
    points: Any = run.store.history("one").answered["test"]
    assert [true for true, _ in points.pairs] == [1_600_000_000 + number for number in range(20)]
    # Targets that differ in their last digit are other data.
    other = with_targets(spec, lambda y: y + (y == 1_600_000_005))
    changed = learn(stream(backbone_folder(), [other], training=SHORT), tmp_path / "other")
    digests = [each.store.certificate("one").data for each in (run, changed)]
    assert all(digests[0][split] != digests[1][split] for split in ("train", "validation", "test"))


@pytest.mark.parametrize("number", [3.5, 1e300, -1e-300, 0.0])
def test_equal_targets_are_a_notice_and_are_predicted(backbone_folder: Folder, tmp_path: Path, number: float) -> None:
    run = learn(stream(backbone_folder(), [numbers_task("one", number, number)], training=SHORT), tmp_path / "run")
    certificate = run.store.certificate("one")
    assert certificate.targets is not None
    assert (certificate.targets.mean, certificate.targets.deviation) == (number, 1.0)
    assert any(f"its training targets all equal {number!r}" in notice for notice in certificate.notices)
    assert certificate.score is None
    assert run.predict("w1 w2", task="one").value == pytest.approx(number, abs=1.0)


def test_one_training_row_is_enough(backbone_folder: Folder, tmp_path: Path) -> None:
    run = learn(stream(backbone_folder(), [numbers_task("one", 7.0, 5.0, train=1)], training=SHORT), tmp_path / "run")
    targets = run.store.certificate("one").targets
    assert targets is not None
    assert targets.deviation == 1.0


@pytest.fixture(scope="module")
def in_unit(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Callable[[float], Any]:
    """Return a function that learns the same targets in some unit, and returns predictions and scores on the test rows."""

    @cache
    def learned_in(unit: float) -> Any:
        spec = with_targets(numbers_task("task", 3.0, -1.0), lambda y: y * unit)
        run = learn(stream(backbone_folder(), [spec], training=SHORT), tmp_path_factory.mktemp("unit") / "run")
        return values(run, spec), run.store.certificate("task").scores["test"].scores

    return learned_in


@pytest.mark.parametrize("unit", [1e-299, 1e-30, 1e30, 1e299])
def test_any_unit_gives_the_same_bank(in_unit: Callable[[float], Any], unit: float) -> None:
    # Powers of ten are rounded, so that targets may differ in their last bit.
    (one, ours), (other, theirs) = in_unit(1.0), in_unit(unit)
    np.testing.assert_allclose(one, other / unit, rtol=1e-5)
    for name, value in ours.items():
        assert theirs[name] == pytest.approx(value * (unit if "m" in name[:1] or name[0] == "r" else 1), rel=1e-4), name


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("inf", "is not a finite number up to 1e\\+300"),
        (float("nan"), "is not a finite number"),
        (1.1e300, "is not a finite number up to"),
        (
            2**53 + 1,
            "9007199254740993 has too many digits for double precision, where it is 9007199254740992",
        ),
        ("9007199254740993", "has too many digits for double precision"),
        ("many", "'many' is not a number"),
    ],
)
def test_targets_that_cannot_be_held_are_refused(
    backbone_folder: Folder, tmp_path: Path, target: Any, why: str
) -> None:
    spec = numbers_task("one", 7.0, 5.0)
    spec["data"]["train"][2]["label"] = target
    with pytest.raises(Exception, match=f"column 'label': 1 row cannot be used: row 3: .*{why}"):
        learn(stream(backbone_folder(), [spec], training=SHORT), tmp_path / "run")


def test_differences_below_double_precision_are_refused(backbone_folder: Folder, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"deviate from their mean by .*e-31., .* write the targets in smaller units"):
        learn(stream(backbone_folder(), [numbers_task("one", 2e-310, 0.0)], training=SHORT), tmp_path / "run")


def test_a_copy_begins_at_the_mean_of_its_own_targets(backbone_folder: Folder, tmp_path: Path) -> None:
    """In deviations from the mean, it begins with the predictions of the bank it is a copy of."""
    parent, child = numbers_task("near", 140.0, 100.0), numbers_task("far", 1_000.0, 200.0, bank={"start_from": "near"})
    child["training"] = {"learning_rate": 1e-30, "epochs": 1}
    run = learn(stream(backbone_folder(), [parent, child], training=BRIEF), tmp_path / "run")
    texts = column(child, "test", "text")
    standard = []
    for name in ("near", "far"):
        targets = run.store.certificate(name).targets
        assert targets is not None
        found = np.array([answer.value for answer in run.predict(texts, task=name)])
        standard.append((found - targets.mean) / targets.deviation)
    np.testing.assert_allclose(standard[0], standard[1], atol=1e-5)


def test_copies_and_averages_of_banks_learn_other_means(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [
        numbers_task("near", 140.0, 100.0),
        task("labels", num_rows=16, training=SHORT),
        numbers_task("copied", 400.0, 360.0, bank={"start_from": "near"}),
        numbers_task("averaged", 400.0, 360.0, bank={"start_from": ["near", "labels"]}),
    ]
    run = learn(stream(backbone_folder(), tasks, training=LONG), tmp_path / "run")
    assert 60 < values(run, tasks[0]).mean() < 180
    assert error(run, tasks[2]) < 0.6
    assert error(run, tasks[3]) < 0.7


def test_a_shared_bank_learns_another_mean(backbone_folder: Folder, tmp_path: Path) -> None:
    bank = {"preset": "lora", "rank": 2, "scope": "shared"}
    parent, child = numbers_task("near", 140.0, 100.0, bank=bank), numbers_task("far", 400.0, 360.0, bank=bank)
    run = learn(stream(backbone_folder(), [parent, child], training=LONG), tmp_path / "run")
    assert error(run, child) < 0.6
    assert 60 < values(run, parent).mean() < 180


LORA: dict[str, Any] = {"pooling": "pooler", "bank": {"preset": "lora", "rank": 2}}


@pytest.fixture(scope="module")
def exportable(backbone_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[str, Any]]:
    tasks = [
        numbers_task("near", 400.0, 360.0, **LORA),
        numbers_task("seconds", 1_600_000_007.0, 1_600_000_001.0, training=SHORT, **LORA),
        numbers_task("tiny", 5e-9, -7e-9, training=BRIEF, **LORA),
    ]
    settings: dict[str, Any] = {"backbone": {"name": str(backbone_folder())}}
    folder = tmp_path_factory.mktemp("exportable") / "run"
    return learn(stream(backbone_folder(), tasks, training=LONG, **settings), folder), tasks[0]


@pytest.mark.parametrize(("name", "unit"), [("near", 20.0), ("tiny", 6e-9)])
def test_an_exported_checkpoint_predicts_in_the_units_of_the_targets(
    exportable: tuple[Run, dict[str, Any]], tmp_path: Path, name: str, unit: float
) -> None:
    run, spec = exportable
    run.export(name, "merged", tmp_path / "out")
    auto: Any = transformers.AutoModelForSequenceClassification
    model, tokenizer = auto.from_pretrained(tmp_path / "out").eval(), run.session.models.tokenizer
    texts = column(spec, "test", "text")
    assert tokenizer is not None
    with torch.no_grad():
        found = [float(model(**tokenizer(text, return_tensors="pt")).logits) for text in texts]
    expected: list[Any] = [each.value for each in run.predict(texts, task=name, batch_size=1)]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * unit)


@pytest.mark.parametrize("format", ["merged", "peft"])
def test_an_export_that_float32_cannot_express_is_refused(
    exportable: tuple[Run, dict[str, Any]], tmp_path: Path, format: str
) -> None:
    why = r"task 'seconds': its targets have the mean 1\.6e\+09 .*which cannot hold such numbers precisely enough.* Use Run\."
    with pytest.raises(InputError, match=why):
        exportable[0].export("seconds", format, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("with_rows", [False, True])
def test_an_imported_regression_predicts_as_the_adapter_does(
    exportable: tuple[Run, dict[str, Any]], tmp_path: Path, with_rows: bool
) -> None:
    original, spec = exportable
    adapter = original.export("near", "peft", tmp_path / "adapter")
    backbone = original.spec.backbone.name
    settings: dict[str, Any] = {"backbone": {"name": backbone}, "training": SHORT}
    first = task("first", pooling="pooler")
    learn(stream(Path(backbone), [first], **settings), tmp_path / "run")
    rows = tmp_path / "rows"
    rows.mkdir()
    for split, own in spec["data"].items():
        (rows / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in own))
    more: dict[str, Any] = {"data": str(rows)} if with_rows else {}
    run = import_adapter(tmp_path / "run", adapter, "foreign", kind="regression", **more)
    texts = column(spec, "test", "text")
    ours: list[Any] = [each.value for each in run.predict(texts, task="foreign")]
    theirs: list[Any] = [each.value for each in original.predict(texts, task="near")]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-3)
    assert all(check.ok for check in run.verify(data=True))
    if with_rows:
        found = run.store.certificate("foreign").scores["test"].scores
        assert found == pytest.approx(original.store.certificate("near").scores["test"].scores, abs=1e-3)
    # A copy of it begins with the same predictions, although its own head is in deviations from another mean.
    child = numbers_task("child", 500.0, 300.0, pooling="pooler", bank={"start_from": "foreign"})
    child["training"] = {"learning_rate": 1e-30, "epochs": 1}
    spec_now = Run(tmp_path / "run").spec
    added = stream(Path(backbone), [first, child], **settings).spec.tasks[1]
    after = learn(TaskStream(spec_now.model_copy(update={"tasks": (*spec_now.tasks, added)})), tmp_path / "run")
    targets = after.store.certificate("child").targets
    assert targets is not None
    assert targets.deviation > 50
    again: list[Any] = [each.value for each in after.predict(texts, task="child")]
    np.testing.assert_allclose(again, ours, rtol=0, atol=1e-2)


def test_rows_of_an_old_bank_keep_their_digest_and_selection(
    backbone_folder: Folder,
) -> None:
    """A bank without targets in its certificate was learned from float32 targets, so its rows are read like that."""
    spec = numbers_task("one", 0.7, 0.1, noise=0.01, limits={"test": 12, "train": 40})
    tasks = stream(backbone_folder(), [spec], training=SHORT, defaults=2).spec
    checked = check_again(tasks, tasks.tasks[0], labels=None, single_precision=True)
    lines = []
    for row in spec["data"]["test"]:
        name = repr(float(np.float32(row["label"])))
        lines.append((json.dumps([row["text"], None]), name))
    key = derive_seed(tasks.seed, "one", "limit", "test").to_bytes(8, "big")
    ranks = [hashlib.blake2b(f"{a}\t{b}".encode(), digest_size=8, key=key).digest() for a, b in lines]
    kept = sorted(sorted(range(len(lines)), key=ranks.__getitem__)[:12])
    digest = hashlib.sha256()
    for number in kept:
        digest.update(f"{lines[number][0]}\t{json.dumps(lines[number][1])}\n".encode())
    assert checked.digest == digest.hexdigest()
    assert checked.answers.dtype == np.float32


def test_select_best_prefers_the_smaller_error_between_equal_scores(backbone_folder: Folder, tmp_path: Path) -> None:
    spec = numbers_task("one", 140.0, 100.0)
    run = learn(stream(backbone_folder(), [spec], training=LONG | {"select": "best"}), tmp_path / "run")
    history = run.store.history("one")
    points = history.curve.scores
    best = max(points, key=lambda point: (round(point.scores["spearman"], 7), -point.scores["rmse"]))
    assert history.kept == best.step
    assert run.store.certificate("one").scores["validation"].scores["rmse"] == pytest.approx(
        best.scores["rmse"], rel=1e-5
    )


def test_errors_cannot_be_a_metric(backbone_folder: Folder) -> None:
    with pytest.raises(
        Exception, match=r"allowed for kind regression: spearman, pearson; .* rmse is shown for every regress"
    ):
        stream(backbone_folder(), [numbers_task("one", 1.0, 0.0, metric="rmse")])
