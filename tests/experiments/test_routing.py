"""The study of rows without a task name: its page, its parts compared with plain code, and its command on made-up rows."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from experiments.routing.__main__ import measure, parse, write_page
from experiments.routing.classifiers import CLASSIFIERS, ranpac
from experiments.routing.page import page
from experiments.routing.result import HERE, PARTS, RESULTS, read_results
from experiments.routing.streams import LONG, Scale
from experiments.routing.unknown import auroc
from experiments.studies.made_up import WORDS, make_up
from experiments.studies.tiny import make_tiny


def test_page_is_that_of_the_committed_results() -> None:
    results = read_results(RESULTS)
    assert set(results) >= {"classic", "classes"}
    assert (HERE / "README.md").read_text(encoding="utf-8") == page(results)
    for result in results.values():
        assert result.commit
        assert result.part == "models" or result.found["same_as_measured"]
    assert results["classic"].found["equal_bit_for_bit"]


def test_page_says_what_was_not_measured() -> None:
    results = read_results(RESULTS)
    results.pop("long", None)
    assert "**Not measured yet: Long stream of twelve tasks.**" in page(results)
    assert "| routing accuracy, long stream | 96.0 % | - | not measured |" in page(results)


def test_results_hold_no_path() -> None:
    for file in RESULTS.glob("*.json"):
        assert "/work" not in file.read_text(encoding="utf-8")
        assert "/tmp" not in file.read_text(encoding="utf-8")


def test_auroc_is_the_share_of_pairs_in_the_right_order() -> None:
    drawn = np.random.default_rng(0)
    known_P, unknown_Q = drawn.integers(8, size=40) / 8, drawn.integers(8, size=30) / 8 + 0.25
    pairs_PQ = (unknown_Q[None] > known_P[:, None]) + 0.5 * (unknown_Q[None] == known_P[:, None])
    assert auroc(known_P, unknown_Q) == pytest.approx(pairs_PQ.mean(), rel=1e-12)


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
        max_length=16,
        limits=None,
        epochs=1,
        class_length=16,
        class_epochs=1,
        classes_per_task=2,
        features=64,
    )
    measure(data, out, scale, list(PARTS), None, heard.append)
    results = write_page(out)
    assert set(results) == set(PARTS)
    assert len(results["models"].found["sequential"]["R"]) == 5
    for result in (results[part] for part in PARTS if part != "models"):
        assert result.found["same_as_measured"], result.part
        end = result.found["end"]
        assert 0 <= end["reject"] <= end["nearest"] <= 1
    assert results["classic"].found["equal_bit_for_bit"]
    assert [task["task"] for task in results["long"].found["tasks"]] == list(LONG)
    assert len(results["classes"].found["tasks"]) == 3
    written = (out / "README.md").read_text(encoding="utf-8")
    assert written == page(results)
    assert str(tmp_path) not in written + "".join(file.read_text() for file in (out / "results").iterdir())
