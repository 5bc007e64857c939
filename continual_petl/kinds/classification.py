"""One label for each text, or pair of texts."""

from __future__ import annotations

import re

from continual_petl.kinds.bases.labels import OneLabel

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


class Classification(OneLabel):
    """The head is one linear layer on the pooled states, with softmax and cross-entropy."""

    name = "classification"
    auto_class = "AutoModelForSequenceClassification"
    peft_type = "SEQ_CLS"
    problem_type = "single_label_classification"
    adapters_head = "classification"

    def instead_of_one_label(self, label: str) -> str:
        """Suggest regression if the label is a number."""
        return ", or use kind: regression" if _NUMBER.fullmatch(label) else ""
