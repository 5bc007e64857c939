"""What kinds whose answer is a text share: it is generated, or chosen among options by its probability."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from continual_petl.errors import about, known_names
from continual_petl.heads.metric_names import OF_TEXTS
from continual_petl.kind import MAX_OPTIONS, HowEncoded, HowRead, ReadRows
from continual_petl.kinds.bases.texts import OfTexts
from continual_petl.streams.preparation.spelling_notices import nearest, unknown_faults
from continual_petl.streams.schema.chat_spec import ChatSpec
from continual_petl.streams.schema.stream_spec import TaskSpec
from continual_petl.streams.sources.cells import OPTIONS, TEXTS, options_in, text_in
from continual_petl.streams.sources.checks import Cells, show
from continual_petl.streams.sources.split_rows import SplitRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from continual_petl.heads.head import Head
    from continual_petl.heads.predictions import Prediction
    from continual_petl.streams.encoding.rows import TokenisedRows


_UNSPACED = re.compile(r"[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]{2}")
"""Two letters of Thai, Lao, Tibetan, Burmese, Khmer, Japanese or Chinese; Korean has spaces between words."""
_WORDS = re.compile(r"[^\s!-/:-@\[-`{-~]+|[!-/:-@\[-`{-~]")
"""Words and marks, of which sacreBLEU's 13a tokenisation finds at most as many."""
_BLEU = 4
"""Length of the longest n-grams of BLEU."""


class Generation(OfTexts):
    """A kind whose head is the backbone's frozen language-modelling head."""

    columns = ("source", "options", "target")
    metrics: tuple[str, ...] = OF_TEXTS
    trains_with = frozenset({"label_smoothing"})
    input_name = "source"
    generates = True
    summary = "texts"

    def head(self, width: int, num_outputs: int, *, label_smoothing: float, **settings: Any) -> Head:
        """Return a head without parameters."""
        from continual_petl.heads.generation import GenerationHead

        return GenerationHead(self.name, label_smoothing=label_smoothing)

    def read_rows(self, task: TaskSpec, rows: SplitRows, how: HowRead) -> ReadRows:
        """Check sources, targets and options; see `Kind.read_rows`."""
        inputs, targets = self.read_texts(task, rows, how.chat)
        options = rows.columns["options"].read(options_in, OPTIONS) if "options" in rows.columns else None
        _check_among(task.options, options, Cells(rows.where, rows.answers.name, targets))
        return ReadRows(inputs=inputs, answers=targets, names=targets, options=options)

    def read_texts(self, task: TaskSpec, rows: SplitRows, chat: ChatSpec | None) -> tuple[list[Any], list[str]]:
        """Return checked sources and targets.

        Raises:
            InputError: naming the rows that cannot be used.
        """
        return rows.inputs.read(text_in, TEXTS), rows.answers.read(text_in, TEXTS)

    def notice_on_scored(self, task: TaskSpec, split: str, answers: Sequence[str]) -> str | None:
        """Return a notice if the task's metric is 0, or close to it, for every prediction for some targets."""
        metric = task.resolved_metric
        if metric.startswith("rouge"):
            unread = sum(re.search("[a-z0-9]", target.lower()) is None for target in answers)
            why = (
                "hold none of the letters a to z and digits that ROUGE builds words from, so every prediction for them "
            )
            why += "scores 0; choose metric: chrf for texts in another script, or bleu if it has spaces between words"
        elif metric in ("bleu", "token_f1"):
            unread = sum(_UNSPACED.search(target) is not None for target in answers)
            why = f"are in a script without spaces between words, and {metric} counts all text between two spaces "
            why += "as one word; choose metric: chrf, which compares characters"
            if metric == "bleu" and not unread and all(len(_WORDS.findall(target)) < _BLEU for target in answers):
                unread = len(answers)
                why = "have fewer than four words, and BLEU is 0 for every prediction unless four words in a row are right; "
                why += "choose metric: chrf, token_f1 or exact_match"
        else:
            return None
        return None if unread == 0 else f"task {task.name!r}: {unread} of {len(answers)} {split} targets {why}."

    def rooms(self, max_length: int, max_target_length: int | None) -> tuple[int, int]:
        """Return how many tokens a source and a target may keep; see `room_for`."""
        from continual_petl.streams.encoding.tokenise_sources import room_for

        return room_for(self.name, max_length, max_target_length)

    def encode(self, inputs: Sequence[Any], how: HowEncoded, **rows: Any) -> TokenisedRows:
        """Tokenise sources and targets."""
        from continual_petl.streams.encoding.tokenise import check_not_empty
        from continual_petl.streams.encoding.tokenise_sources import tokenise_sources

        self.tokenizer(how)
        encoded = tokenise_sources(self.name, inputs, rows.get("answers"), how, rows.get("row_options"))
        check_not_empty(inputs, encoded, how.where)
        return encoded

    def row_weights(self, rows: TokenisedRows, class_weights: tuple[float, ...] | None) -> NDArray[np.float64]:
        """Return the number of target tokens of each row, the end token included."""
        import numpy as np

        return rows.target_lengths.astype(np.float64)

    def scores(
        self, labels: Sequence[str] | None, metric: str | None, *, reading: object, single_precision: bool
    ) -> dict[str, Any]:
        """Return scores of texts, or of the options that were chosen."""
        from torchmetrics.classification import MulticlassAccuracy

        from continual_petl.heads.task_metrics import class_metrics, text_metrics

        if labels:
            return class_metrics(len(labels))
        if metric == "accuracy":
            # Each row has its own list of options; predictions and targets are positions in this list.
            return {"accuracy": MulticlassAccuracy(MAX_OPTIONS, average="micro")}
        return text_metrics(metric)

    def in_words(
        self, labels: tuple[str, ...] | None, outputs_BC: Tensor, *, targets: object, rounding: float
    ) -> list[Prediction]:
        """Return the option with the highest score, and the probabilities of all options."""
        from continual_petl.heads.predictions import OF_SUMS, best

        if labels is None:
            raise TypeError(f"a {self.name} task has no single row of outputs per row of data")
        return [best(labels, row, OF_SUMS * rounding) for row in outputs_BC]


def _check_among(
    options: tuple[str, ...] | None, row_options: list[tuple[str, ...]] | None, targets: Cells[str]
) -> None:
    """Check that every target is one of the options of the task or of its row, if there are any."""
    if row_options is not None:
        rule = "Every target must be one of its row's options, character for character: repair or remove these rows."
        targets.beside(row_options).read(_option, rule)
    if options is None:
        return
    known = dict.fromkeys(options)  # ordered, so that the hints are always the same
    faults = unknown_faults(enumerate(targets), known, "")
    rule = (
        f"Every target must be one of the options of the task, {known_names([*map(show, options)])}, character for "
        "character: repair or remove these rows, or complete options."
    )
    with about("options"):
        targets.refuse(faults, rule)


def _option(row: tuple[str, Sequence[str]]) -> str:
    text, own = row
    if text not in own:
        raise ValueError(f"{show(text)} is not among {known_names([*map(show, own)])}{nearest(text, own)}")
    return text
