"""Answers to questions: logits, loss and gradients are those of BertForQuestionAnswering, and windows those of tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tokenizers.normalizers import BertNormalizer
from torch import Tensor
from transformers import BertForQuestionAnswering

from continual_petl.backbones.backbone import load_backbone, load_tokenizer
from continual_petl.errors import InputError
from continual_petl.kind import HowEncoded
from continual_petl.kind_registry import find_kind
from continual_petl.kinds.question_answering import Gold
from continual_petl.learner.plan import build_bank, plan_task
from continual_petl.learner.respond import respond
from continual_petl.learner.task_bank import TaskBank, head_of
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.encoding.rows import TokenisedRows
from tests.small import small
from tests.streams_in_code import stream, task_of_kind
from tests.tiny import WORDS, make_tokenizer

Folder = Callable[..., Path]
Row = tuple[str, str, Gold]


def row(question: str, context: str, text: str | None = None) -> Row:
    gold = Gold([], []) if text is None else Gold([text], [context.index(text)])
    return question, context, gold


ROWS = [
    row("w1 w2", "w3 w4 w5 w6 w7 w8", "w4 w5"),
    row("w7 w9", "w8 w9 w10 w11 w12 w13"),
    row("w2 w3", "w1 w0 w20 w21 w22 w23", "w23"),
]


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute everything in float64, also what heads otherwise compute in float32."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)


class Made:
    """A backbone in float64, and a bank with random values for a task on questions."""

    def __init__(self, folder: Path, preset: str) -> None:
        self.backbone = load_backbone(str(folder), precision="fp32")
        self.tokenizer = load_tokenizer(str(folder))
        spec = stream(folder, [task_of_kind("question-answering", "one", num_rows=2)], bank=small(preset)).spec
        self.plan = plan_task(spec, spec.tasks[0], self.backbone)
        self.bank = build_bank(self.plan, self.backbone)
        self.bank.initialise(self.backbone.model, 0)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.bank.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        self.backbone.model.double()
        self.bank.double().eval()

    def batch(self, rows: list[Row], max_length: int = 32, **more: Any) -> dict[str, Tensor]:
        encoded = encoded_rows(self.tokenizer, rows, max_length, **more)
        return collate(encoded, range(len(rows)), self.tokenizer.pad_token_id or 0, "question-answering")

    def outputs(self, batch: dict[str, Tensor]) -> Tensor:
        (found,) = respond([TaskBank(self.backbone, self.plan, self.bank)], batch)
        assert isinstance(found, Tensor)
        return found


def encoded_rows(tokenizer: Any, rows: list[Row], max_length: int, stride: int = 0) -> TokenisedRows:
    questions, contexts, golds = (list(column) for column in zip(*rows, strict=True))
    how = HowEncoded(tokenizer=tokenizer, max_length=max_length, settings={"stride": stride, "no_answer": True})
    encoded: TokenisedRows = find_kind("question-answering").encode(questions, how, pairs=contexts, answers=golds)
    return encoded


@pytest.mark.usefixtures("in_float64")
def test_logits_loss_and_gradients_are_those_of_transformers(backbone_folder: Folder) -> None:
    """A bank that copies the whole backbone is that model; a window without an answer has it at [CLS], as in run_qa.py."""
    made = Made(backbone_folder("bert"), "full")
    config: Any = made.backbone.model.config
    oracle: Any = BertForQuestionAnswering(config).double()
    oracle.train(False)
    own = {name.replace("/", "."): tensor.detach() for name, tensor in made.bank.own.items()}
    states = made.backbone.model.state_dict() | own
    oracle.bert.load_state_dict({name: states[name] for name in oracle.bert.state_dict()})
    head: Any = head_of(made.bank)
    oracle.qa_outputs.load_state_dict(head.output.state_dict())
    pairs = made.tokenizer([q for q, _, _ in ROWS], [c for _, c, _ in ROWS], return_tensors="pt")
    # [CLS] w1 w2 [SEP] w3 w4 w5 ...
    starts, ends = torch.tensor([5, 0, 9]), torch.tensor([6, 0, 9])
    expected = oracle(**pairs, start_positions=starts, end_positions=ends)
    batch = made.batch(ROWS)
    assert batch["labels"].tolist() == [[[5, 6]], [[0, 0]], [[9, 9]]]
    found = made.outputs(batch)
    assert found.shape == (3, 1, 11, 2)
    for place, logits in enumerate((expected.start_logits, expected.end_logits)):
        torch.testing.assert_close(found[:, 0, :, place], logits, rtol=1e-12, atol=1e-12)
    loss = head.loss(found, batch["labels"])
    torch.testing.assert_close(loss, expected.loss, rtol=1e-12, atol=1e-12)
    loss.backward()
    expected.loss.backward()
    learned = dict(oracle.bert.named_parameters())
    for name, parameter in made.bank.own.items():
        if (other := learned.get(name.replace("/", "."))) is not None and other.grad is not None:
            torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(head.output.weight.grad, oracle.qa_outputs.weight.grad, rtol=1e-9, atol=1e-12)


LONG = [
    row("w1", "w3 w4 w5 w6 w7 w8 w9 w10 w11", "w10"),
    row("w7 w9", "w8 w9 w10", "w8 w9"),
    row("w2 w3", "w1 w0 w20 w21 w22 w23 w24", None),
]


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("family", ["bert", "gpt2", "bart"])
def test_other_rows_of_a_batch_do_not_matter(backbone_folder: Folder, family: str) -> None:
    """The loss is the mean over the windows of all rows, and a window's numbers are those of the window alone."""
    made = Made(backbone_folder(family), "houlsby")
    together = made.batch(LONG, 9, stride=1)
    found, sums, count = made.outputs(together), 0.0, 0
    with torch.no_grad():
        for number, each in enumerate(LONG):
            batch = made.batch([each], 9, stride=1)
            alone = made.outputs(batch)
            windows, width = alone.shape[1:3]
            torch.testing.assert_close(found[number, :windows, :width], alone[0], rtol=1e-9, atol=1e-9)
            assert found[number, windows:].eq(-torch.inf).all()
            assert found[number, :, width:].eq(-torch.inf).all()
            sums += windows * float(head_of(made.bank).loss(alone, batch["labels"]))
            count += windows
    whole = head_of(made.bank).loss(found.detach(), together["labels"])
    assert float(whole) == pytest.approx(sums / count, rel=1e-9)
    weights = find_kind("question-answering").row_weights(encoded_rows(made.tokenizer, LONG, 9, 1), None)
    assert weights.sum() == count


words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=20)


def as_tokenizers(family: str, question: list[str], context: list[str], stride: int, room: int, place: int) -> None:
    """Compare windows, places and labels with what the tokenizer's own overflow and offsets give, as in run_qa.py."""
    tokenizer = make_tokenizer(family)
    first, second = " ".join(question), " ".join(context)
    place %= len(context)
    start = len(" ".join([*context[:place], ""]))
    end = start + len(context[place])
    max_length = len(tokenizer(first, "w1")["input_ids"]) - len(tokenizer("w1", add_special_tokens=False)["input_ids"])
    max_length += stride + room
    rows = encoded_rows(tokenizer, [(first, second, Gold([context[place]], [start]))], max_length, stride)
    oracle = tokenizer(
        first,
        second,
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    windows = rows.sequences
    assert windows is not None
    assert windows.labels is not None
    assert windows.places is not None
    ids = [windows.ids[a:b].tolist() for a, b in zip(windows.offsets, windows.offsets[1:], strict=False)]
    assert ids == oracle["input_ids"]
    assert rows.row(0).ids.tolist() == ids[0]
    for number, own in enumerate(oracle["offset_mapping"]):
        inside = [i for i, part in enumerate(oracle.sequence_ids(number)) if part == 1]
        places = windows.places[windows.offsets[number] : windows.offsets[number + 1]]
        assert np.flatnonzero(places >= 0).tolist() == inside
        cls = ids[number].index(tokenizer.cls_token_id) if tokenizer.cls_token_id in ids[number] else 0
        holds = own[inside[0]][0] <= start and own[inside[-1]][1] >= end
        expected = [cls, cls]
        if holds:
            expected = [
                max(i for i in inside if own[i][0] <= start),
                min(i for i in inside if own[i][1] >= end),
            ]
        assert windows.labels[number].tolist() == expected


def many(num_examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(
        max_examples=num_examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


CASES = given(words, words, st.integers(0, 6), st.integers(1, 8), st.integers(0, 19))


@pytest.mark.parametrize("family", ["bert", "roberta", "t5"])
@many(20)
@CASES
def test_windows_are_those_of_the_tokenizer(
    family: str, question: list[str], context: list[str], stride: int, room: int, place: int
) -> None:
    as_tokenizers(family, question, context, stride, room, place)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "roberta", "t5", "bart", "gpt2"])
@many(300)
@CASES
def test_windows_are_those_of_the_tokenizer_in_many_cases(
    family: str, question: list[str], context: list[str], stride: int, room: int, place: int
) -> None:
    as_tokenizers(family, question, context, stride, room, place)


@pytest.mark.parametrize(
    ("question", "stride", "message"),
    [
        (
            "w1",
            5,
            r"row 1: the question and special tokens take 4 of the 9 tokens .* leaves 5 for a context of 7 tokens, but",
        ),
        (
            "w1 w2 w3 w4 w5 w6",
            0,
            r"row 1: the question and special tokens take 9 of the 9 .* leaves no room for the context",
        ),
    ],
)
def test_windows_that_are_too_small_are_refused(question: str, stride: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        encoded_rows(make_tokenizer("bert"), [row(question, "w1 w2 w3 w4 w5 w6 w7")], 9, stride)
    # A context that fits is one window, whatever the stride.
    assert encoded_rows(make_tokenizer("bert"), [row("w1", "w1 w2 w3")], 9, 5).sequences.starts.tolist() == [0, 1]  # type: ignore[union-attr]


def test_an_answer_or_context_without_tokens_is_refused() -> None:
    tokenizer = make_tokenizer("bert")
    tokenizer.backend_tokenizer.normalizer = BertNormalizer()
    with pytest.raises(InputError, match=r"row 1: the answer '\\u200b' gives no tokens with this tokenizer"):
        encoded_rows(tokenizer, [("w1", "w1 \u200b w2", Gold(["\u200b"], [3]))], 9)
    with pytest.raises(InputError, match=r"row 1: the context gives no tokens with this tokenizer"):
        encoded_rows(tokenizer, [("w1", "\u200b", Gold([], []))], 9)
