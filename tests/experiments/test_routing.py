"""The study of rows without a task name: its page, its parts compared with plain code, and its command on made-up rows."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from continual_petl.heads.predictions import Prediction
from experiments.routing.__main__ import main, measure, parse, write_page
from experiments.routing.ablation import ablation
from experiments.routing.classifiers import CLASSIFIERS, ranpac
from experiments.routing.page import page
from experiments.routing.read import Answer, Array, Rows, TaskRows
from experiments.routing.result import HERE, PARTS, RESULTS, read_results
from experiments.routing.routes import Routes
from experiments.routing.statistics import statistics
from experiments.routing.streams import LONG, Scale
from experiments.routing.unknown import auroc, told_apart
from experiments.studies.made_up import WORDS, make_up
from experiments.studies.tiny import make_tiny


def test_page_is_that_of_the_committed_results() -> None:
    results = read_results(RESULTS)
    assert set(results) >= {"classic", "classes"}
    assert (HERE / "README.md").read_text(encoding="utf-8") == page(results)
    for result in results.values():
        assert result.commit
        assert result.part in ("joint", "models") or result.found["same_as_measured"]
    assert results["classic"].found["equal_bit_for_bit"]


def test_page_says_what_was_not_measured() -> None:
    results = read_results(RESULTS)
    results.pop("long", None)
    assert "**Not measured yet: Long stream of twelve tasks.**" in page(results)


def test_results_hold_no_path() -> None:
    for file in RESULTS.glob("*.json"):
        assert "/work" not in file.read_text(encoding="utf-8")
        assert "/tmp" not in file.read_text(encoding="utf-8")


def test_auroc_is_the_share_of_pairs_in_the_right_order() -> None:
    drawn = np.random.default_rng(0)
    known_P, unknown_Q = drawn.integers(8, size=40) / 8, drawn.integers(8, size=30) / 8 + 0.25
    pairs_PQ = (unknown_Q[None] > known_P[:, None]) + 0.5 * (unknown_Q[None] == known_P[:, None])
    assert auroc(known_P, unknown_Q) == pytest.approx(pairs_PQ.mean(), rel=1e-12)


def _rows_around(means_CF: Array, label_N: NDArray[np.intp], drawn: np.random.Generator, banks: Sequence[str]) -> Rows:
    """Return rows with states and vectors around the means of their labels, and banks that predict all labels correctly."""
    states_NF = means_CF[label_N] + 0.1 * drawn.standard_normal((len(label_N), 12))
    answers = {
        (bank, row): Answer(
            Prediction(probabilities={"a": 0.9 - 0.8 * label, "b": 0.1 + 0.8 * label}), states_NF[row, :2]
        )
        for bank in banks
        for row, label in enumerate((label_N % 2).tolist())
    }
    return Rows(
        models=cast(Any, None),  # all answers are known
        rows=[str(row) for row in range(len(label_N))],
        labels=["ab"[label % 2] for label in label_N],
        pair=False,
        states_NKH=states_NF.reshape(len(label_N), 6, 2),
        answers=answers,
    )


@pytest.fixture(scope="module")
def two_tasks() -> tuple[list[TaskRows], Rows]:
    """Two tasks of two labels each, and rows that belong to none."""
    drawn = np.random.default_rng(0)
    means_CF = drawn.standard_normal((5, 12)) / 3
    stored = cast(Any, None)  # computed again
    tasks = [
        TaskRows(
            name=name,
            pair=False,
            labels=("a", "b"),
            stored=stored,
            scores={},
            seed=0,
            splits={
                split: _rows_around(means_CF, np.arange(40) % 2 + 2 * number, drawn, ("one", "two"))
                for split in ("train", "validation", "test")
            },
        )
        for number, name in enumerate(("one", "two"))
    ]
    return tasks, _rows_around(means_CF, np.full(30, 4), drawn, ("one", "two"))


def test_distances_of_the_first_format_are_those_of_plain_code(two_tasks: tuple[list[TaskRows], Rows]) -> None:
    tasks, foreign = two_tasks
    sums = statistics(tasks, "first")
    routes = Routes(tasks, sums, by_label=False)
    found = told_apart(routes, "states", {"far": {"drawn": foreign}})["far"]

    def distance(rows: Rows) -> Array:
        states_NF, far_NT = rows.states_NKH[:, [0, 2, 4]].reshape(-1, 6), []
        for task in tasks:
            train_NF, label_N = task.rows_read((1, 3, 5)).train_NF, np.arange(40) % 2
            means_CF = np.stack([train_NF[label_N == label].mean(0) for label in range(2)])
            covariance_FF = np.cov((train_NF - means_CF[label_N]).T, bias=True)
            shrunk_FF = 0.8 * covariance_FF + 0.2 * np.trace(covariance_FF) / 6 * np.eye(6)
            from_own = [
                np.min(
                    [cdist(each, means_CF[[label]], "mahalanobis", VI=np.linalg.inv(shrunk_FF)) for label in range(2)],
                    0,
                )
                for each in (states_NF, task.rows_read((1, 3, 5)).validation_NF)
            ]
            far_NT.append(from_own[0][:, 0] ** 2 / np.quantile(from_own[1][:, 0] ** 2, 0.99))
        chosen_N = routes.chosen(rows)
        far_N: Array = np.stack(far_NT, 1)[np.arange(len(chosen_N)), chosen_N]
        return far_N

    own_P, far_Q = np.concatenate([distance(task.splits["test"]) for task in tasks]), distance(foreign)
    # The covariance is rounded to multiples of 2^-30.
    assert found["auroc"] == pytest.approx(auroc(own_P, far_Q), abs=1e-3)
    assert found["exact"]["0.05"]["found"] == (far_Q > np.quantile(own_P, 0.95)).mean()
    assert found["calibrated"]["0.01"]["rejected"] <= 0.2


def test_every_variant_of_the_ablation_measures_the_same_banks(two_tasks: tuple[list[TaskRows], Rows]) -> None:
    tasks, foreign = two_tasks
    rows = ablation(tasks, False, {"far": {"drawn": foreign}}, lambda line: None)
    assert [(row["form"], row["layers"]) for row in rows[:4]] == [
        ("first", [1, 3, 5]),
        ("full", [2, 4, 6]),
        ("compact", [2, 4, 6]),
        ("full", [1, 3, 5]),
    ]
    for row in rows:
        # All banks are right, so a row is correct if it is routed to its task, unless the frozen states overrule the bank.
        assert row["correct"]["0"] == row["routing"]
        assert row["mean_probability"]["0.2"] < row["mean_probability"]["1"]
    assert rows[0]["unknown"].keys() == {"states"}
    assert rows[1]["unknown"].keys() == {"states", "vectors", "both"}


def test_a_compact_covariance_with_its_own_number_of_columns_is_the_same(
    two_tasks: tuple[list[TaskRows], Rows],
) -> None:
    tasks, _ = two_tasks
    own = statistics(tasks, "compact")["one"].to_arrays()
    again = statistics(tasks, "compact", columns=len(own["powers_R"]))["one"].to_arrays()
    assert all(np.array_equal(own[name], again[name]) for name in own)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", str(tmp_path), "--oos", str(tmp_path / "missing.txt"), "--out", str(tmp_path)]) == 2
    assert "missing.txt cannot be read as a text file in UTF-8" in capsys.readouterr().err


def test_every_classifier_separates_clusters() -> None:
    drawn = np.random.default_rng(0)
    centres_CF = drawn.standard_normal((3, 8))
    label_N = np.repeat(np.arange(3), 20)
    train_NF, other_NF = (centres_CF[label_N] + 0.05 * drawn.standard_normal((60, 8)) for _ in range(2))
    for name, classifier in CLASSIFIERS.items():
        shares = [
            (scores[0].argmax(1) == label_N).mean() for _, scores in classifier(train_NF, label_N, [other_NF], 64)
        ]
        assert max(shares) == 1, name


def test_ranpac_equals_ridge_regression_on_its_features() -> None:
    drawn = np.random.default_rng(0)
    train_NF, other_VF, label_N = drawn.standard_normal((12, 4)), drawn.standard_normal((5, 4)), np.arange(12) % 3
    setting, (found_VC,) = next(ranpac(train_NF, label_N, [other_VF], 32))
    project_FM = np.random.default_rng(0).standard_normal((4, 32))
    own_NM, rest_VM = np.maximum(train_NF @ project_FM, 0), np.maximum(other_VF @ project_FM, 0)
    ridge = setting["ridge"] * (own_NM**2).sum(1).mean()
    weight_MC = np.linalg.solve(own_NM.T @ own_NM + ridge * np.eye(32), own_NM.T @ np.eye(3)[label_N])
    # The two forms have the same solution, but with a small ridge, rounding costs some digits.
    assert np.allclose(found_VC, rest_VM @ weight_MC, atol=1e-4)


def test_command_without_data_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([])
    assert "--data is missing: give the folder that has one subfolder of rows per task" in capsys.readouterr().err


def _rows_of_classes(folder: Path) -> None:
    """Replace the made-up rows of CLINC150 by rows of six classes."""
    drawn = random.Random(0)
    for split, count in (("train", 72), ("validation", 24), ("test", 24)):
        rows = [
            json.dumps({"text": " ".join([WORDS[n % 6 + 3], *drawn.choices(WORDS, k=6)]), "label": n % 6})
            for n in range(count)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "labels.json").write_text(json.dumps([f"class {number}" for number in range(6)]), encoding="utf-8")


@pytest.mark.slow
def test_the_command_measures_all_streams_of_made_up_rows(tmp_path: Path) -> None:
    data, out, heard = make_up(tmp_path / "data"), tmp_path / "out", list[str]()
    _rows_of_classes(data / "clinc150")
    scale = Scale(
        backbone=str(make_tiny(tmp_path / "tiny", width=72)),
        precision="fp32",  # in bf16, a few rows of so small a model are unknown in some batches only
        max_length=16,
        limits=None,
        epochs=1,
        class_length=16,
        class_epochs=1,
        classes_per_task=2,
        features=64,
    )
    (foreign := tmp_path / "foreign.txt").write_text("".join(f"{word} dog cat\n" for word in WORDS), encoding="utf-8")
    measure(data, out, scale, list(PARTS), None, foreign, heard.append)
    results = write_page(out)
    assert set(results) == set(PARTS)
    assert len(results["models"].found["sequential"]["R"]) == 5
    for result in (results[part] for part in PARTS if part not in ("joint", "models")):
        assert result.found["same_as_measured"], result.part
        end = result.found["end"]
        assert 0 <= end["reject"] <= end["nearest"] <= 1
        assert result.found["equal_bit_for_bit"]
        computed = result.found["forms"][result.found["stored"]]
        assert all(computed[name] == end[name] for name in ("named", "nearest", "reject", "routing", "unknown"))
        assert result.found["forms"]["first"]["layers"] == [1, 3, 5]
    assert [task["task"] for task in results["long"].found["tasks"]] == list(LONG)
    assert len(results["classes"].found["tasks"]) == 3
    written = (out / "README.md").read_text(encoding="utf-8")
    assert written == page(results)
    assert str(tmp_path) not in written + "".join(file.read_text() for file in (out / "results").iterdir())
