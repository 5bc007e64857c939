"""README of the comparison with other methods, on made-up results; the committed pages are those of the committed results."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from experiments.benchmarks.machine import ROOT, describe
from experiments.zoo import page as pages
from experiments.zoo.methods import METHODS
from experiments.zoo.page import known_lines, page, summary
from experiments.zoo.result import HERE, Line
from experiments.zoo.reused import reused
from tests.experiments.test_results import between

SAME: list[list[Any]] = [[0.9, None], [0.9, 0.8]]
FORGOT: list[list[Any]] = [[0.9, None], [0.5, 0.9]]


def line(method: str, matrix: list[list[Any]], seed: int = 13, order: int = 1, **given: Any) -> Line:
    """Return a result with made-up circumstances."""
    known = METHODS[method]
    values = {
        "stream": "classic5",
        "protocol": "class",
        "adapted": known.adapted or "lora",
        "settings": {"epochs": 4},
        "tuning": False,
        "tasks": ("yelp", "agnews"),
        "rows": {"yelp": "1", "agnews": "2"},
        "seconds": 10.0,
        "steps": 5,
        "trained_parameters": 1000,
        "kept_rows": 100 if known.keeps_old_rows else 0,
        "kept_bytes": 2_500_000,
        "ended": "2026-11-28 12:00",
        "commit": "0123456789abcdef",
        "changed": False,
        "versions": {"torch": "2.13.0"},
        "machine": describe(torch.device("cpu")),
    } | given
    return Line(
        method=method,
        kind=known.kind,
        package=known.package,
        keeps_old_rows=known.keeps_old_rows,
        matrix=matrix,
        order=order,
        seed=seed,
        **values,
    )


def cells(text: str, name: str) -> list[str]:
    """Return the cells of the row of a method."""
    (row,) = [row for row in text.splitlines() if row.startswith(f"| {name} |")]
    return [cell.strip() for cell in row.strip("|").split("|")][1:]


def test_measures_are_those_of_the_matrix() -> None:
    text = page([line("er", FORGOT)])
    # ACC (0.5 + 0.9) / 2; BWT and forgetting 0.5 - 0.9; average incremental accuracy (0.9 + 0.7) / 2.
    assert cells(text, "ER")[:4] == ["70.0", "-40.0", "40.0", "80.0"]
    assert cells(text, "ER")[4:] == ["10", "1,000", "2.5", "100", "avalanche-lib 0.6.0", "1"]


def test_a_mean_is_over_seeds_of_the_means_over_orders() -> None:
    last = [((13, 1), 0.5), ((13, 2), 0.7), ((21, 1), 0.8)]
    runs = [line("er", [[0.9, None], [value, value]], seed, order) for (seed, order), value in last]
    # Seeds: 60 and 80; s / sqrt(2) = 10.
    assert cells(page(runs), "ER")[0] == "70.0 ± 10.0"
    assert "may be chance" not in page(runs)
    assert "with one run of a method, differences of a few points may be chance" in page(runs[:1])


def test_transfer_is_compared_with_the_bank_of_the_task_alone() -> None:
    bank = line("lora_banks", [[0.9, None], [0.9, 0.7]], protocol="task")
    other = line("er", FORGOT, protocol="task")
    frozen = line("ncm", FORGOT, protocol="task")
    text = page([bank, other, frozen])
    assert cells(text, "LoRA banks")[3] == "0.0"
    assert cells(text, "ER")[3] == "20.0"
    assert cells(text, "nearest class mean")[3] == "-"
    # The bank of the same task in another order is the same.
    turned = line("er", [[0.6, None], [0.6, 0.8]], order=2, tasks=("agnews", "yelp"), protocol="task")
    assert cells(page([bank, turned]), "ER")[3] == "-10.0"
    assert cells(page([other]), "ER")[3] == "-"


def test_a_method_that_is_better_than_the_banks_is_named() -> None:
    banks = [line("houlsby_banks", SAME), line("lora_banks", FORGOT)]
    text = page([*banks, line("klda", [[0.9, None], [0.9, 0.9]]), line("er", [[0.9, None], [0.88, 0.9]])])
    assert (
        "**Higher ACC than the best banks, Houlsby banks (85.0): KLDA (gamma) (90.0), ER (89.0, with old rows).**"
        in text
    )
    text = page([*banks, line("er", FORGOT)])
    assert "No other method measured here has a higher ACC than the best banks, Houlsby banks (85.0)." in text
    assert "Not measured on this stream: sequential fine-tuning" in text


def test_joint_training_has_only_an_accuracy() -> None:
    text = page([line("houlsby_banks", SAME), line("joint", [[None, None], [0.9, 0.96]])])
    assert cells(text, "joint training")[:4] == ["93.0", "-", "-", "-"]
    assert cells(text, "joint training")[-3] == "all", "it keeps the rows of all tasks"
    assert "joint training (93.0, with the rows of all tasks)" in text


def test_what_was_tried_is_shown() -> None:
    tried = [line("er", SAME, tuning=True, settings={"epochs": 4, "learning_rate": rate}) for rate in (0.001, 0.004)]
    text = page([*tried, line("er", FORGOT, settings={"epochs": 4, "learning_rate": 0.004})])
    assert "learning_rate 0.001: 85.0; learning_rate 0.004: 85.0" in text
    assert "2 runs" not in text, "trials that choose settings are no runs of the method"
    assert cells(text, "ER")[-1] == "1"


def test_both_ways_to_adapt_a_model_have_rows_of_their_own() -> None:
    text = page([line("er", SAME), line("er", FORGOT, adapted="all")])
    assert cells(text, "ER")[0] == "85.0"
    assert cells(text, "ER, all weights")[0] == "70.0"


def test_main_readme_shows_banks_and_the_five_best_others() -> None:
    others = ["er", "ewc", "klda", "ncm", "ranpac", "slda"]
    lines = [line(method, [[0.9, None], [0.5, number / 10]]) for number, method in enumerate(others)]
    lines += [line("joint", [[None, None], [1.0, 1.0]])]
    assert summary(lines) == "", "no banks yet"
    text = summary([*lines, line("houlsby_banks", SAME), line("lora_banks", FORGOT)])
    rows = [row.split("|")[1].strip() for row in text.splitlines() if row.startswith("| ")][1:]
    assert rows == [
        "Houlsby banks",
        "LoRA banks",
        "SLDA (shrinkage)",
        "RanPAC",
        "nearest class mean",
        "KLDA (gamma)",
        "EWC (lambda)",
    ]
    assert "the 5 best others of 7" in text
    assert cells(text, "Houlsby banks") == ["85.0", "0.0", "2.5", "no"]
    assert "(experiments/zoo/README.md)" in text


def test_nothing_measured_yet_is_said() -> None:
    assert "**Nothing has been measured yet.**" in page([])
    assert summary([]) == ""


@pytest.mark.slow
def test_pages_are_those_of_the_committed_results() -> None:
    lines = known_lines()
    assert (HERE / "README.md").read_text(encoding="utf-8") == page(lines), "run `python -m experiments.zoo pages`"
    assert between(ROOT / "README.md", pages.BEGIN, pages.END) == summary(lines), (
        "run `python -m experiments.zoo pages`"
    )
    assert all(own.commit and not own.changed for own in lines)


def test_reused_results_are_those_of_the_other_study() -> None:
    lines = reused()
    assert {own.method for own in lines} == {"copies", "joint"}
    assert len(lines) == 2 * 3 * 3
    text = page(lines)
    # As in experiments/continual/results/classic5.md.
    assert cells(text, "full copy per task")[0] == "67.4 ± 0.7"
    assert cells(text, "joint training")[0] == "66.5 ± 0.9"
