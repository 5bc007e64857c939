"""Heads compute the same losses as torch and transformers, and give answers in words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import BartConfig, BartForConditionalGeneration, GPT2Config, GPT2LMHeadModel
from transformers.trainer_pt_utils import LabelSmoother

from continual_petl.heads.generation import GenerationHead, token_log_probabilities
from continual_petl.heads.head import Head
from continual_petl.heads.predictions import tags
from tests.heads.fresh import fresh_head
from tests.heads.words import predictions
from tests.kinds import GENERATIVE, METRICS

NO_TARGET = torch.tensor([[5, 6, 7, 2], [8, 2, -100, -100]])


def _head(kind: Any, num_outputs: int, **more: Any) -> Head:
    head = fresh_head(kind, 8, num_outputs, dropout=0.1, **more).eval()
    head.initialise(lambda name: torch.Generator().manual_seed(0))
    return head


@pytest.mark.parametrize("kind", ["classification", "image-classification"])
def test_classification_uses_cross_entropy_and_argmax(kind: Any) -> None:
    head = _head(kind, 3)
    outputs, targets = head(torch.randn(5, 8)), torch.tensor([0, 1, 2, 1, 0])
    torch.testing.assert_close(head.loss(outputs, targets), F.cross_entropy(outputs, targets))
    assert torch.equal(head.predictions(outputs), outputs.argmax(-1))
    answer = predictions(kind, ("a", "b", "c"), outputs)[0]
    assert answer.value == "abc"[int(outputs[0].argmax())]
    assert answer.probabilities is not None
    assert sum(answer.probabilities.values()) == pytest.approx(1)


def test_label_smoothing_and_weights_match_torch() -> None:
    weights = (0.5, 2.0, 1.0)
    head = _head("classification", 3, label_smoothing=0.1, class_weights=weights)
    outputs, targets = head(torch.randn(5, 8)), torch.tensor([0, 1, 2, 1, 0])
    expected = torch.nn.CrossEntropyLoss(weight=torch.tensor(weights), label_smoothing=0.1)(outputs, targets)
    torch.testing.assert_close(head.loss(outputs, targets), expected)
    assert "class_weights" not in head.state_dict()


def test_regression_uses_squared_error() -> None:
    head = _head("regression", 1)
    outputs, targets = head(torch.randn(4, 8)), torch.randn(4)
    torch.testing.assert_close(head.loss(outputs, targets), ((outputs[:, 0] - targets) ** 2).mean())
    assert predictions("regression", None, outputs)[1].value == float(outputs[1, 0].detach())


def test_multilabel_uses_a_sigmoid_per_label() -> None:
    head = _head("multilabel", 3, class_weights=(1.0, 4.0, 1.0))
    outputs = head(torch.randn(4, 8))
    targets = torch.tensor([[0.0, 1, 0], [1, 1, 0], [0, 0, 0], [1, 0, 1]])
    likely = torch.sigmoid(outputs)
    each = -(targets * likely.log() * torch.tensor([1.0, 4.0, 1.0]) + (1 - targets) * (1 - likely).log())
    torch.testing.assert_close(head.loss(outputs, targets), each.mean())
    assert torch.equal(head.predictions(outputs), likely > 0.5)
    found = predictions("multilabel", ("a", "b", "c"), torch.tensor([[1.0, -1.0, 0.5], [-1.0, -2.0, -3.0]]))
    assert [answer.value for answer in found] == [["a", "c"], []]
    shares = torch.sigmoid(torch.tensor([1.0, -1.0, 0.5])).tolist()
    assert found[0].probabilities == pytest.approx(dict(zip("abc", shares, strict=True)))


def test_unlabelled_tokens_are_ignored() -> None:
    head = _head("token-classification", 4, class_weights=(1.0, 2.0, 3.0, 4.0))
    outputs = head(torch.randn(2, 5, 8))
    labels = torch.tensor([[-100, 0, 3, -100, -100], [-100, 1, 1, 2, -100]])
    there = labels != -100
    expected = F.cross_entropy(outputs[there], labels[there], weight=torch.tensor([1.0, 2.0, 3.0, 4.0]))
    torch.testing.assert_close(head.loss(outputs, labels), expected)
    assert head.predictions(outputs).shape == (2, 5)
    assert tags(("O", "B-X"), [torch.eye(2)])[0].value == ["O", "B-X"]


def _bart() -> Any:
    size: dict[str, Any] = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1}
    size |= {"encoder_ffn_dim": 8, "decoder_ffn_dim": 8}
    heads: dict[str, Any] = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    return BartForConditionalGeneration(
        BartConfig(vocab_size=20, max_position_embeddings=16, forced_eos_token_id=None, **size, **heads)
    )


def _gpt2() -> Any:
    config = GPT2Config(vocab_size=20, n_positions=16, n_embd=8, n_layer=1, n_head=2, bos_token_id=2, eos_token_id=2)
    return GPT2LMHeadModel(config)


@pytest.mark.parametrize(("kind", "make"), [("seq2seq", _bart), ("causal-lm", _gpt2)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_generation_loss_matches_transformers(kind: Any, make: Any, smoothing: float) -> None:
    model = make().eval()
    head = _head(kind, 0, label_smoothing=smoothing)
    ids = torch.tensor([[3, 5, 6, 7], [4, 8, 2, 2]])
    with torch.no_grad():
        output = model(input_ids=ids, labels=NO_TARGET)
        loss = head.loss(head(output.logits), NO_TARGET)
    expected = output.loss
    if smoothing:
        smoother = LabelSmoother(epsilon=smoothing)
        expected = smoother({"logits": output.logits}, NO_TARGET, shift_labels=kind == "causal-lm")
    torch.testing.assert_close(loss, expected)
    assert list(head.parameters()) == []
    assert head.state_dict() == {}


@pytest.mark.parametrize(("kind", "make"), [("seq2seq", _bart), ("causal-lm", _gpt2)])
def test_log_probabilities_of_targets_add_up_to_the_loss(kind: Any, make: Any) -> None:
    model, head = make().eval(), _head(kind, 0)
    assert isinstance(head, GenerationHead)
    ids = torch.tensor([[3, 5, 6, 7], [4, 8, 2, 2]])
    with torch.no_grad():
        output = model(input_ids=ids, labels=NO_TARGET)
        found = token_log_probabilities(head, output.logits, NO_TARGET)
    counted = head.aligned(output.logits, NO_TARGET)[1] != -100
    torch.testing.assert_close(-found[counted].mean(), output.loss)
    assert not found[~counted].any()


@pytest.mark.parametrize("kind", sorted(GENERATIVE))
def test_generative_predictions_from_logits_are_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match=f"a {kind} task predicts by generating text"):
        _head(kind, 0).predictions(torch.zeros(1, 2, 3))


@pytest.mark.parametrize("kind", sorted(GENERATIVE | {"token-classification"}))
def test_answers_from_outputs_without_one_row_per_input_are_refused(kind: Any) -> None:
    with pytest.raises(TypeError, match="no single row of outputs"):
        predictions(kind, None, torch.zeros(1, 2))


@pytest.mark.parametrize("kind", METRICS)
def test_heads_use_only_the_given_generators(kind: Any) -> None:
    states = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        states.append(_head(kind, 3).state_dict())
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
