"""A merged checkpoint of a multiple-choice task: AutoModelForMultipleChoice gives the bank's scores and choices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from continual_petl import InputError
from continual_petl.exchange.classes import plain_heads
from continual_petl.exchange.compare import expected_of
from continual_petl.exchange.expressible import check_format, why_not
from continual_petl.exchange.formats import Format
from continual_petl.exchange.merged import write_checkpoint
from tests.exchange.subjects import Folder, subject_of
from tests.usual import few

ROWS = [
    ("w1 w2 w30", ["w3", "w4 w5 w6", "w7"]),
    ("w9", ["w10 w11", "w12"]),
    ("w20 w21", ["w1 w2 w3 w4 w5 w6 w7", "w8"]),
]


@pytest.mark.parametrize(
    ("family", "pooling", "choice"),
    [
        ("bert", "first", "lora"),
        ("bert", "pooler", "full"),
        ("roberta", "first", "ia3"),
        ("xlm-roberta", "first", "probe"),
    ],
)
@torch.no_grad()
def test_transformers_gives_the_banks_scores(
    backbone_folder: Folder, tmp_path: Path, family: str, pooling: str, choice: str
) -> None:
    """The reference is transformers alone, in float64: tokenizer and model from the files, one row at a time."""
    subject = subject_of(backbone_folder(family), "multiple-choice", choice, pooling)
    assert write_checkpoint(subject, tmp_path / "merged") <= 1e-5
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")
    model = transformers.AutoModelForMultipleChoice.from_pretrained(tmp_path / "merged", dtype=torch.float64).eval()
    wanted = expected_of(subject, ROWS)
    for (text, options), scores, answer in zip(ROWS, wanted["scores"], wanted["answers"], strict=True):
        inputs = tokenizer([text] * len(options), options, padding=True, return_tensors="pt")
        (found,) = model(**{name: each[None] for name, each in inputs.items()}).logits
        # The bank computes in float32, and tanh between pooling and head is cancelled up to 1e-6.
        torch.testing.assert_close(found.float(), torch.tensor(scores), atol=1e-5, rtol=1e-5)
        assert options[int(found.argmax())] == answer


@pytest.mark.parametrize("family", few(["bert", "roberta", "xlm-roberta"]))
def test_an_import_knows_the_head_of_the_class(backbone_folder: Folder, family: str) -> None:
    """Besides dropout, the class has only this linear layer after its pooler."""
    config = transformers.AutoConfig.from_pretrained(backbone_folder(family))
    auto: Any = transformers.AutoModelForMultipleChoice
    model = auto.from_config(config)
    after = {name for name, _ in model.named_children()} - {model.base_model_prefix, "dropout"}
    assert plain_heads("multiple-choice", family) == dict.fromkeys(after, "pooler")


@pytest.mark.parametrize(
    ("family", "kind", "pooling", "format", "why"),
    [
        ("bert", "multiple-choice", "mean", "merged", "it cannot pool with 'mean', only with 'pooler' or 'first'"),
        ("distilbert", "multiple-choice", "first", "merged", "it is not known how transformers builds this class"),
        (
            "bert",
            "multiple-choice",
            "first",
            "peft",
            "multiple-choice, except as merged, since a row is read once with",
        ),
        ("bert", "multiple-choice", "first", "adapters", "This task can be exported in format 'merged', or use Run"),
        ("bert", "question-answering", None, "merged", "question-answering, since a long context is read in several"),
        ("bert", "question-answering", None, "peft", "No format can express this task: use Run.predict, or"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    backbone_folder: Folder, family: str, kind: str, pooling: str | None, format: Format, why: str
) -> None:
    subject = subject_of(backbone_folder(family), kind, "lora", pooling)
    assert why_not(subject, format) is not None
    with pytest.raises(InputError, match=rf"^format: got '{format}' for task .*{why}") as caught:
        check_format(subject, format)
    assert len(str(caught.value).splitlines()) == 1
