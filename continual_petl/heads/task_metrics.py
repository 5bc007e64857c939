"""Metrics of one task on one split, from torchmetrics; every split has its own objects. Class weights are not used.

A function of the user's own gets all predictions and references of a split at once, see `OwnMetric`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.text import CHRFScore, ROUGEScore, SacreBLEUScore, SQuAD
from torchmetrics.utilities import dim_zero_cat

from continual_petl.errors import InputError
from continual_petl.heads.metric_code import FORM, function_of
from continual_petl.heads.trace_metrics import ChoiceMatch, EditSimilarity, Sari
from continual_petl.kind import Kind


class OwnMetric(Metric):
    """Calls a function with two lists, predictions and references.

    Both are in the form in which `Run.predict` returns predictions.

    Args:
        kind: kind of the task.
        labels: names in the order of the head's outputs, or the options of a generative task; None for tasks without either.
        name: the dotted name of the function.
        code: the digest of its module's file.

    Raises:
        InputError: if the user has not allowed the code.
    """

    rows: list[Tensor]

    def __init__(self, kind: Kind, labels: Sequence[str] | None, name: str, code: str) -> None:
        super().__init__()
        self.kind, self.labels, self.name = kind, labels, name
        self.function = function_of(name, code)
        # Distributed processes can only exchange tensors, so rows are kept as JSON lines in byte tensors.
        self.add_state("rows", [], dist_reduce_fx="cat")

    def update(self, preds: Any, target: Any) -> None:
        """Add the rows of a batch: texts, or the result of `Head.predictions` and the labels."""
        pairs = zip(*self._in_words(preds, target), strict=True)
        lines = "".join(f"{json.dumps(pair)}\n" for pair in pairs).encode("ascii")
        self.rows.append(torch.frombuffer(bytearray(lines), dtype=torch.uint8).to(self.device))

    def compute(self) -> dict[str, Tensor]:
        """Return the score, a float64 scalar, keyed by its name.

        Raises:
            InputError: if the function fails, or returns no finite number.
        """
        lines = dim_zero_cat(self.rows).cpu().numpy().tobytes().splitlines()
        predictions, references = ([*column] for column in zip(*map(json.loads, lines), strict=True))
        num_rows = len(predictions)
        try:
            value = self.function(predictions, references)
            value = value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
            number = float(value) if isinstance(value, Real) else math.nan
            shown = repr(value)[:80]
        except (Exception, SystemExit) as error:  # it can raise anything
            raise InputError(
                f"metric {self.name!r}: it failed on {num_rows} rows: {type(error).__name__}: {error}"
            ) from error
        if not math.isfinite(number):
            raise InputError(
                f"metric {self.name!r}: it returned {shown} for {num_rows} rows, which is not a finite number; "
                f"a metric is {FORM}, and higher is better."
            )
        return {self.name: torch.tensor(number, dtype=torch.float64)}

    def _in_words(self, preds: Any, target: Any) -> tuple[list[Any], list[Any]]:
        if not isinstance(preds, Tensor):
            return list(preds), list(target)
        return self.kind.in_names(preds, target, self.labels)


class Matthews(MulticlassConfusionMatrix):
    """Matthews correlation for any number of classes (Gorodkin 2004, https://doi.org/10.1016/j.compbiolchem.2004.09.006).

    0 if undefined, as in scikit-learn and as GLUE's CoLA expects. With two classes, torchmetrics 1.9 returns a positive
    value if all predictions are the majority class (0.58 if it has three rows and the other class has one), which would
    make a useless bank look good.
    """

    def compute(self) -> Tensor:
        """Return the score, a float32 scalar in [-1, 1]."""
        confusion_CC = super().compute().double()
        right, total = confusion_CC.diag().sum(), confusion_CC.sum()
        true_C, predicted_C = confusion_CC.sum(1), confusion_CC.sum(0)
        covariance = right * total - true_C @ predicted_C
        spread = ((total**2 - predicted_C @ predicted_C) * (total**2 - true_C @ true_C)).sqrt()
        return (covariance / spread if spread > 0 else torch.zeros_like(spread)).float()


class Rouge(ROUGEScore):
    """F1 of ROUGE-L, ROUGE-1 and ROUGE-2 (Lin 2004), mean over rows, without stemming.

    Words are defined as in `rouge_score`: runs of the letters a to z and digits, in lower case. A text in another
    script has no words.
    """

    def __init__(self) -> None:
        super().__init__(rouge_keys=_ROUGE)
        self._reductions = dict.fromkeys(self._reductions, dim_zero_cat)

    def compute(self) -> dict[str, Tensor]:
        """Return three float32 scalars in [0, 1]."""
        return {name: dim_zero_cat(getattr(self, f"{name}_fmeasure")).mean() for name in _ROUGE}

    def _sync_dist(self, *args: Any, **given: Any) -> None:
        # torchmetrics 1.9 exchanges the scores one by one, and waits forever if processes have different numbers of rows.
        for name in self._reductions:
            setattr(self, name, [dim_zero_cat(getattr(self, name))])
        super()._sync_dist(*args, **given)


_ROUGE = ("rougeL", "rouge1", "rouge2")


class Bleu(SacreBLEUScore):
    """SacreBLEU (Post 2018) with its 13a tokenisation and `smooth_method="none"`, over all rows together, in [0, 1]."""

    def __init__(self) -> None:
        super().__init__(tokenize="13a")

    def update(self, preds: Sequence[str], target: Sequence[str]) -> None:  # type: ignore[override]
        """Count the n-grams of a batch, with one reference for each text.

        torchmetrics would treat a reference outside a list as a list of characters.
        """
        super().update(preds, [[reference] for reference in target])


class ExactMatch(Metric):
    """Share of texts that equal their reference, ignoring white space at both ends.

    Case and punctuation count: the answers of a multiple-choice task may be single letters.
    """

    num_equal: Tensor
    num_texts: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("num_equal", "num_texts"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")

    def update(self, preds: Sequence[str], target: Sequence[str]) -> None:
        """Count the exact matches of a batch."""
        self.num_equal += sum(text.strip() == reference.strip() for text, reference in zip(preds, target, strict=True))
        self.num_texts += len(preds)

    def compute(self) -> Tensor:
        """Return the share, a float32 scalar in [0, 1]."""
        return self.num_equal / self.num_texts


class TokenF1(SQuAD):
    """Mean word-level F1 between text and reference, as in SQuAD (Rajpurkar et al. 2016), in [0, 1].

    Texts are compared in lower case, without punctuation and articles.
    """

    def update(self, preds: Sequence[str], target: Sequence[str]) -> None:  # type: ignore[override]
        """Compare the texts of a batch, with one reference for each text."""
        super().update(
            [{"prediction_text": text, "id": str(number)} for number, text in enumerate(preds)],
            [
                {"answers": {"answer_start": [0], "text": [reference]}, "id": str(number)}
                for number, reference in enumerate(target)
            ],
        )

    def compute(self) -> Tensor:  # type: ignore[override]
        """Return the mean, a float32 scalar."""
        return super().compute()["f1"] / 100


class Chrf(CHRFScore):
    """chrF2 over all rows together (Popovic 2015): n-grams of 1 to 6 characters, no word n-grams, in [0, 1].

    As in torchmetrics, the six lengths count equally, so rows that are all shorter than six characters cannot reach 1.
    """

    def __init__(self) -> None:
        super().__init__(n_word_order=0)

    def update(self, preds: Sequence[str], target: Sequence[str]) -> None:  # type: ignore[override]
        """Count the n-grams of a batch, with one reference for each text."""
        super().update(preds, [[reference] for reference in target])


_CHOSEN: dict[str, type[Metric]] = {
    "exact_match": ExactMatch,
    "token_f1": TokenF1,
    "chrf": Chrf,
    "choice_match": ChoiceMatch,
    "edit_similarity": EditSimilarity,
    "sari": Sari,
}


def class_metrics(num_labels: int) -> dict[str, Metric]:
    """Return the scores of rows that have one label each."""
    return {
        "accuracy": MulticlassAccuracy(num_labels, average="micro"),
        "macro_f1": MulticlassF1Score(num_labels, average="macro"),
        "matthews": Matthews(num_labels),
    }


def text_metrics(metric: str | None) -> dict[str, Metric]:
    """Return the scores of generated texts, including ``metric`` if it is only computed for tasks that report it."""
    scores: dict[str, Metric] = {"rouge": Rouge(), "bleu": Bleu()}
    if metric in _CHOSEN:
        scores[metric] = _CHOSEN[metric]()
    return scores
