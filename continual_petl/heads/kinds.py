"""The kinds of task, and the scores that each can be measured by. Light: a stream file is checked against these."""

from __future__ import annotations

from typing import Literal

Kind = Literal["classification", "regression"]

METRICS: dict[Kind, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1", "matthews"),
    "regression": ("spearman", "pearson"),
}
"""The scores of each kind; the first is the default. Accuracy is the share of all rows (micro). Higher is better."""
