"""Numbers published by Houlsby et al. 2019 (https://arxiv.org/abs/1902.00751v2): headlines of all tables and figures."""

from __future__ import annotations

ID = "1902.00751v2"
_COLUMNS = ("CoLA", "SST", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "total")
TABLE_1: dict[str, dict[str, float]] = {
    "full fine-tuning": dict(zip(_COLUMNS, (60.5, 94.9, 89.3, 87.6, 72.1, 86.7, 85.9, 91.1, 70.1, 80.4), strict=True)),
    "adapters, 8 to 256": dict(
        zip(_COLUMNS, (59.5, 94.0, 89.5, 86.9, 71.8, 84.9, 85.1, 90.7, 71.5, 80.0), strict=True)
    ),
    "adapters, 64": dict(zip(_COLUMNS, (56.9, 94.2, 89.6, 87.3, 71.8, 85.3, 84.6, 91.4, 68.8, 79.6), strict=True)),
}
"""GLUE test server, BERT-large. The total is the server's score, which is not the mean of the other columns."""

TABLE_2 = {"no BERT (AutoML)": 72.7, "full fine-tuning": 73.7, "variable fine-tuning": 74.0, "adapters": 73.3}
"""Mean test accuracy on seventeen additional tasks, BERT-base."""

FIGURE_4 = {"adapters, 64": 83.7, "full fine-tuning": 84.4, "top layer only": 77.8}
"""Validation accuracy on MNLI (matched), BERT-base; section 3.4."""
LAYERNORMS = {"CoLA": -3.5, "MNLI": -4.0}
"""What is lost if only LayerNorms are trained instead of adapters, points; section 3.4."""

SQUAD = {"adapters, 64": 90.4, "adapters, 2": 89.9, "full fine-tuning": 90.7}
"""F1 on the validation rows of SQuAD v1.1; section 3.5."""

SIZES = {8: 86.2, 64: 85.8, 256: 85.7}
"""Mean validation score over GLUE by size of the adapters, BERT-large; section 3.6."""
REFERENCE = 64
"""The size that the others are compared with."""
ONE_LAYER = -2.0
"""The largest change of the score, in percent, if the adapters of one layer are removed, BERT-base; section 3.6."""
WITHOUT = {"MNLI": 37.0, "CoLA": 69.0}
"""Validation accuracy without any adapters, which is that of the most frequent class; section 3.6."""
