"""Seconds to a validation score are read off the scores after each epoch."""

from __future__ import annotations

from experiments.benchmarks.curves import Curve, curve_lines, seconds_to, typical

OURS: list[Curve] = [[[1.0, 0.5], [2.0, 0.75]], [[3.0, 0.7], [4.0, 0.85]], [[1.5, 0.6], [3.0, 0.8]]]
THEIRS: list[Curve] = [[[3.0, 0.5], [9.0, 0.8]]]


def test_curve_has_median_seconds_and_mean_scores() -> None:
    assert [(seconds, round(score, 6)) for seconds, score in typical(OURS)] == [(1.5, 0.6), (3.0, 0.8)]


def test_first_epoch_that_reaches_a_score_counts() -> None:
    curve = [[1.0, 0.6], [2.0, 0.8], [3.0, 0.7]]
    assert [seconds_to(curve, score) for score in (0.5, 0.7, 0.8, 0.9)] == [1.0, 2.0, 2.0, None]


def test_our_fastest_candidate_is_compared_with_the_fastest_peer() -> None:
    lines = "\n".join(
        curve_lines({"slow": [[[8.0, 0.9]]], "ours": OURS, "peer": THEIRS}, ["slow", "ours"], fastest="peer")
    )
    assert "the last score is the final one of peer" in lines
    assert "| ours | 3 | 3 | 3 | 3 |" in lines
    assert "| peer | 9 | 9 | 9 | 9 |" in lines
    assert (
        "3.00 x at 64.0 %, 3.00 x at 72.0 %, 3.00 x at 76.0 %, 3.00 x at 80.0 % as fast; the target is 2 x: met."
        in lines
    )


def test_a_score_that_no_candidate_of_a_side_reaches_is_left_out() -> None:
    lines = curve_lines({"ours": [[[1.0, 0.1]]], "peer": THEIRS}, ["ours"], fastest="peer")
    assert "| ours | not reached | not reached | not reached | not reached |" in "\n".join(lines)
    assert not any("as fast" in line for line in lines)
