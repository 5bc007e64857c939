"""Scores of one task on one split, from torchmetrics; every split has objects of its own."""

from __future__ import annotations

import warnings

from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassMatthewsCorrCoef
from torchmetrics.regression import PearsonCorrCoef, SpearmanCorrCoef

from continual_petl.heads.kinds import METRICS, Kind


def make_scores(kind: Kind, num_labels: int) -> MetricCollection:
    """Return fresh score objects for one split of one task.

    Accuracy is micro-averaged, the share of rows answered correctly: torchmetrics' own default would be macro.
    """
    scores: dict[str, Metric | MetricCollection]
    if kind == "classification":
        scores = {
            "accuracy": MulticlassAccuracy(num_labels, average="micro"),
            "macro_f1": MulticlassF1Score(num_labels, average="macro"),
            "matthews": MulticlassMatthewsCorrCoef(num_labels),
        }
    else:
        with warnings.catch_warnings():
            # A rank correlation needs every row at once; one float per row is no large footprint.
            warnings.filterwarnings("ignore", message="Metric `SpearmanCorrcoef` will save all")
            scores = {"spearman": SpearmanCorrCoef(), "pearson": PearsonCorrCoef()}
    assert tuple(scores) == METRICS[kind]
    # Compute groups share state between metrics by guessing from the first batch; separate states cost little.
    return MetricCollection(scores, compute_groups=False)
