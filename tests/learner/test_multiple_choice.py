"""Tasks whose rows have options that a head scores: logits, loss and gradients are those of BertForMultipleChoice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import BertForMultipleChoice

from continual_petl import ContinualLearner
from continual_petl.backbones.backbone import load_backbone, load_tokenizer
from continual_petl.errors import InputError
from continual_petl.learner.cuda_graphs import check_graphs
from continual_petl.learner.memory import _size
from continual_petl.learner.plan import build_bank, plan_task
from continual_petl.learner.prefix_cache import check_kept
from continual_petl.learner.respond import respond
from continual_petl.learner.task_bank import TaskBank, head_of
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.streams.batches.collate import collate
from tests.encoding import encode_rows
from tests.small import small
from tests.streams_in_code import stream, task_of_kind
from tests.tiny import WORDS

Folder = Callable[..., Path]
Row = tuple[str, list[str]]
ROWS: list[Row] = [
    ("w1 w2 w3", ["w4", "w5 w6"]),
    ("w7", ["w8 w9 w10 w11", "w12", "w13 w14", "w15"]),
    ("w16 w17 w18 w19 w20", ["w21", "w22 w23 w24", "w25"]),
]


@pytest.fixture
def in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute everything in float64, also what heads otherwise compute in float32."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)


class Made:
    """A backbone in float64, and a bank with random values for a multiple-choice task."""

    def __init__(self, folder: Path, preset: str, pooling: Any) -> None:
        self.backbone = load_backbone(str(folder), precision="fp32", pooling=pooling)
        self.tokenizer = load_tokenizer(str(folder))
        self.pad = self.tokenizer.pad_token_id or 0
        self.plan = plan_of(folder, small(preset))
        self.bank = build_bank(self.plan, self.backbone)
        self.bank.initialise(self.backbone.model, 0)
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in self.bank.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        self.backbone.model.double()
        self.bank.double().eval()
        self.pooling = pooling

    def batch(self, rows: list[Row]) -> dict[str, Tensor]:
        sources, options = [source for source, _ in rows], [own for _, own in rows]
        encoded = encode_rows("multiple-choice", sources, row_options=options, tokenizer=self.tokenizer, max_length=32)
        return collate(encoded, range(len(rows)), self.pad, "multiple-choice")

    def scores(self, rows: list[Row]) -> Tensor:
        plan = self.plan.model_copy(update={"pooling": self.pooling})
        outputs: Tensor = respond([TaskBank(self.backbone, plan, self.bank)], self.batch(rows))[0]
        return outputs


def plan_of(folder: Path, bank: Any, **training: Any) -> TaskPlan:
    tasks = [task_of_kind("multiple-choice", "one", num_rows=2)]
    spec = stream(folder, tasks, bank=bank, training=training).spec
    return plan_task(spec, spec.tasks[0], load_backbone(str(folder), precision="fp32"))


@pytest.mark.usefixtures("in_float64")
def test_logits_loss_and_gradients_are_those_of_transformers(backbone_folder: Folder) -> None:
    """A bank that copies the whole backbone is that model, which takes rows with equally many options."""
    made = Made(backbone_folder("bert"), "full", "pooler")
    rows, labels = [(source, own[-2:]) for source, own in ROWS], torch.tensor([1, 0, 1])
    config: Any = made.backbone.model.config
    oracle: Any = BertForMultipleChoice(config).double()
    oracle.train(False)
    own = {name.replace("/", "."): tensor.detach() for name, tensor in made.bank.own.items()}
    oracle.bert.load_state_dict(made.backbone.model.state_dict() | own)
    head: Any = head_of(made.bank)
    oracle.classifier.load_state_dict(head.output.state_dict())
    pairs = made.tokenizer(
        [source for source, _ in rows for _ in range(2)],
        [option for _, options in rows for option in options],
        padding=True,
        return_tensors="pt",
    )
    expected = oracle(**{name: tensor.view(3, 2, -1) for name, tensor in pairs.items()}, labels=labels)
    found = made.scores(rows)
    torch.testing.assert_close(found, expected.logits, rtol=1e-12, atol=1e-12)
    loss = head.loss(found, labels)
    torch.testing.assert_close(loss, expected.loss, rtol=1e-12, atol=1e-12)
    loss.backward()
    expected.loss.backward()
    learned = dict(oracle.bert.named_parameters())
    for name, parameter in made.bank.own.items():
        torch.testing.assert_close(parameter.grad, learned[name.replace("/", ".")].grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(head.output.weight.grad, oracle.classifier.weight.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("in_float64")
def test_loss_of_rows_with_different_numbers_of_options_is_the_mean_over_rows(backbone_folder: Folder) -> None:
    made = Made(backbone_folder("bert"), "houlsby", "mean")
    labels = torch.tensor([1, 3, 0])
    each = [-F.log_softmax(made.scores([row])[0], -1)[label] for row, label in zip(ROWS, labels, strict=True)]
    loss = head_of(made.bank).loss(made.scores(ROWS), labels)
    torch.testing.assert_close(loss, torch.stack(each).mean(), rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad(found, list(made.bank.parameters())) for found in (loss, torch.stack(each).mean())]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join)
rows_of_any_number = st.lists(
    st.tuples(words, st.lists(words, min_size=2, max_size=5, unique=True)), min_size=1, max_size=6
)
_made: dict[str, Made] = {}


def alone_and_together(folder: Path, family: str, pooling: str, rows: list[Row]) -> None:
    if family not in _made:
        _made[family] = Made(folder, "mam", pooling)
    made = _made[family]
    with torch.no_grad():
        together_BK = made.scores(rows)
        for row, scores_K in zip(rows, together_BK, strict=True):
            (alone_K,) = made.scores([row])
            torch.testing.assert_close(scores_K[: len(row[1])], alone_K, rtol=1e-9, atol=1e-9)
            assert scores_K[len(row[1]) :].eq(-torch.inf).all()


def many(num_examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(
        max_examples=num_examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )


FAMILIES = [("bert", "pooler"), ("gpt2", "last"), ("bart", "last")]


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(("family", "pooling"), FAMILIES)
@many(4)
@given(rows=rows_of_any_number)
@example(rows=ROWS)
def test_other_rows_of_a_batch_do_not_matter(
    backbone_folder: Folder, family: str, pooling: str, rows: list[Row]
) -> None:
    alone_and_together(backbone_folder(family), family, pooling, rows)


@pytest.mark.slow
@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize(("family", "pooling"), FAMILIES)
@many(100)
@given(rows=rows_of_any_number)
def test_other_rows_of_a_batch_do_not_matter_in_many_cases(
    backbone_folder: Folder, family: str, pooling: str, rows: list[Row]
) -> None:
    alone_and_together(backbone_folder(family), family, pooling, rows)


def test_settings_that_count_rows_once_are_refused(backbone_folder: Folder) -> None:
    folder = backbone_folder()
    backbone = load_backbone(str(folder), precision="fp32")
    bank = {"preset": "houlsby", "bottleneck": 4, "layers": "top-1"}
    plan = plan_of(folder, bank, prefix_cache="on", cuda_graphs=True)
    with pytest.raises(InputError, match="a row is read once with each of its options, and states are cached row by"):
        check_kept(plan, build_bank(plan, backbone))
    with pytest.raises(
        InputError, match=r"each of its options, and their number differs from row to row\. Write cuda_graphs: false"
    ):
        check_graphs(plan, torch.device("cuda"), 1)
    tasks = stream(folder, [task_of_kind("multiple-choice", "one")], training={"max_tokens": 500})
    with pytest.raises(InputError, match=r"max_tokens: a row is read once with each of its options, which this limit"):
        ContinualLearner(backbone).begin(tasks, "one")


def test_a_batch_that_takes_too_much_memory_is_described(backbone_folder: Folder) -> None:
    assert _size({"input_ids": torch.zeros(3, 4, 9)}) == "3 rows x 4 sequences x 9 tokens (the longest row)"
