"""The ceiling counts exactly the matrix products of a training step: torch counts as many operations in a real step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from continual_petl.learner.task_bank import head_of
from experiments.benchmarks import ours
from experiments.benchmarks.ceiling import Lowest, forward_products, multiply, num_operations, step_products
from experiments.benchmarks.peers.execution import Execution
from experiments.benchmarks.shapes import Shape, make_shape

ROWS, LENGTH, BOTTLENECK, LABELS = 3, 5, 4, 4


@pytest.fixture(scope="module")
def shape(tmp_path_factory: pytest.TempPathFactory) -> Shape:
    return make_shape("tiny", tmp_path_factory.mktemp("shapes"))


@pytest.mark.parametrize(
    ("layernorms", "lowest"), [("frozen", "attention output"), ("own", "embeddings")], ids=["frozen", "own"]
)
def test_training_step_has_exactly_the_products_of_the_ceiling(shape: Shape, layernorms: str, lowest: Lowest) -> None:
    bank = {"preset": "houlsby", "bottleneck": BOTTLENECK, "layernorms": layernorms}
    learner = ours.make_learner(shape, bank, device="cpu", num_labels=LABELS)
    batch = ours.random_batch(shape, ROWS, LENGTH, device="cpu", num_labels=LABELS)
    with FlopCounterMode(display=False) as counter:
        head_of(learner.active_bank).loss(learner(batch), batch["labels"]).backward()  # type: ignore[no-untyped-call]
    # The ceiling leaves out the head's three products: forward, and the gradients of its inputs and of its weights.
    head = 3 * 2 * ROWS * shape.hidden * LABELS
    products = step_products(shape, ROWS, LENGTH, BOTTLENECK, lowest)
    assert counter.get_total_flops() - head == num_operations(products)


def test_torch_can_compute_every_product(shape: Shape) -> None:
    products = step_products(shape, ROWS, LENGTH, BOTTLENECK, "embeddings")
    assert multiply(products, device="cpu", dtype=torch.float32, count=1)() > 0
    with FlopCounterMode(display=False) as counter:
        multiply(products, device="cpu", dtype=torch.float32, count=1)()
    assert counter.get_total_flops() == num_operations(products)


def test_a_forward_pass_without_a_bank_has_the_products_of_the_backbone(shape: Shape) -> None:
    bare, banked = (num_operations(forward_products(shape, ROWS, LENGTH, size)) for size in (0, BOTTLENECK))
    assert banked - bare == 2 * shape.num_layers * 2 * 2 * ROWS * LENGTH * shape.hidden * BOTTLENECK


def test_random_shape_is_reproducible(shape: Shape, tmp_path: Path) -> None:
    again = make_shape("tiny", tmp_path)
    assert (again.folder / "model.safetensors").read_bytes() == (shape.folder / "model.safetensors").read_bytes()


def test_step_with_compiled_layers_trains_the_bank(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "compile_layers", lambda model: None)
    bank = {"preset": "houlsby", "bottleneck": BOTTLENECK, "layernorms": "frozen"}
    batch = ours.random_batch(shape, ROWS, LENGTH, device="cpu", num_labels=LABELS)
    after = {}
    executions: tuple[Execution, ...] = ("eager", "compiled")
    for execution in executions:
        learner = ours.make_learner(shape, bank, device="cpu", num_labels=LABELS)
        torch.manual_seed(0)  # the dropout of the head
        ours.bare_steps(learner, batch, 2, execution)()
        after[execution] = learner.active_bank.tensors()
    assert all(torch.equal(tensor, after["compiled"][name]) for name, tensor in after["eager"].items())
