"""Scores of one task on one split, from torchmetrics; every split has objects of its own."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score
from torchmetrics.regression import PearsonCorrCoef, SpearmanCorrCoef

from continual_petl.heads.kinds import METRICS, Kind


class Matthews(MulticlassConfusionMatrix):
    """Matthews correlation for any number of classes (Gorodkin 2004, https://doi.org/10.1016/j.compbiolchem.2004.09.006).

    0 where it is not defined, as scikit-learn has it and GLUE's CoLA expects. torchmetrics 1.9 gives two-class predictions
    that are all of the majority class a positive value (0.58 for three rows against one), which would make the
    emptiest bank look like a good one.
    """

    def compute(self) -> Tensor:
        """Return the score, a float32 scalar in [-1, 1]."""
        confusion_CC = super().compute().double()
        right, total = confusion_CC.diag().sum(), confusion_CC.sum()
        true_C, predicted_C = confusion_CC.sum(1), confusion_CC.sum(0)
        covariance = right * total - true_C @ predicted_C
        spread = ((total**2 - predicted_C @ predicted_C) * (total**2 - true_C @ true_C)).sqrt()
        return (covariance / spread if spread > 0 else torch.zeros_like(spread)).float()


def make_scores(kind: Kind, num_labels: int) -> MetricCollection:
    """Return fresh score objects for one split of one task.

    Accuracy is micro-averaged, the share of rows answered correctly: torchmetrics' own default would be macro.
    """
    scores: dict[str, Metric | MetricCollection]
    if kind == "classification":
        scores = {
            "accuracy": MulticlassAccuracy(num_labels, average="micro"),
            "macro_f1": MulticlassF1Score(num_labels, average="macro"),
            "matthews": Matthews(num_labels),
        }
    else:
        with warnings.catch_warnings():
            # A rank correlation needs every row at once; one float per row is no large footprint.
            warnings.filterwarnings("ignore", message="Metric `SpearmanCorrcoef` will save all")
            scores = {"spearman": SpearmanCorrCoef(), "pearson": PearsonCorrCoef()}
    assert tuple(scores) == METRICS[kind]
    # Compute groups share state between metrics by guessing from the first batch; separate states cost little.
    return MetricCollection(scores, compute_groups=False)
