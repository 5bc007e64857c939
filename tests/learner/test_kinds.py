"""With a custom Trainer, a task of any kind trains only its own bank, and the guards detect mistakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import lightning as L
import pytest
import torch
from torch import Tensor

from continual_petl import ContinualLearner, ForgettingError, NoForgetting, load_backbone
from continual_petl.digests import same_bits
from continual_petl.heads.metric_names import IF_CHOSEN
from tests.desk import SILENT, Desk
from tests.kinds import METRICS
from tests.learner.test_guards import At
from tests.small import small
from tests.streams_in_code import stream, task_of_kind
from tests.usual import few

Folder = Callable[..., Path]
CASES = [
    ("bert", "multilabel", "houlsby"),
    ("bert", "token-classification", "lora"),
    ("bart", "seq2seq", "prefix"),
    ("t5", "seq2seq", "full"),
    ("gpt2", "causal-lm", "prompt"),
    ("gpt2", "causal-lm", "full"),
    ("bart", "token-classification", "houlsby"),
    ("vit", "image-classification", "houlsby"),
    ("bert", "multiple-choice", "houlsby"),
    ("gpt2", "question-answering", "lora"),
]


def two(backbone_folder: Folder, tmp_path: Path, family: str, kind: str, preset: str = "houlsby") -> Desk:
    tasks = [task_of_kind(kind, "one", num_rows=16), task_of_kind(kind, "two", num_rows=16)]
    backbone = {"name": str(backbone_folder(family))}
    return Desk(stream(backbone_folder(family), tasks, bank=small(preset), backbone=backbone), tmp_path)


@pytest.mark.parametrize(("family", "kind", "preset"), few(CASES, 4))
def test_second_task_leaves_the_first_unchanged(
    backbone_folder: Folder, tmp_path: Path, family: str, kind: str, preset: str
) -> None:
    desk = two(backbone_folder, tmp_path, family, kind, preset)
    backbone = desk.backbone_digest()
    bank = desk.learner.add_task(desk.plans["one"], tokenizer=desk.session.models.tokenizer)
    start = {name: tensor.clone() for name, tensor in bank.tensors().items()}
    desk.fit("one", add=False, max_epochs=1)
    moved = [name for name, tensor in bank.tensors().items() if not torch.equal(tensor, start[name])]
    assert moved
    digests = desk.digests("one")
    desk.fit("two", max_epochs=1, callbacks=[NoForgetting()])
    assert desk.digests("one") == digests
    assert desk.backbone_digest() == backbone
    assert all(not p.requires_grad and p.grad is None for p in desk.backbone.model.parameters())


@pytest.mark.parametrize(
    ("family", "kind"), [("bart", "seq2seq"), ("gpt2", "causal-lm"), ("vit", "image-classification")]
)
def test_leftover_backbone_hook_is_detected(backbone_folder: Folder, tmp_path: Path, family: str, kind: str) -> None:
    desk = two(backbone_folder, tmp_path, family, kind)
    desk.fit("one", max_epochs=1)

    def act(learner: ContinualLearner) -> None:
        layer = learner.backbone.sites.layers[0]
        learner.model.get_submodule(layer.full(layer.stack.ffn.out)).register_forward_hook(lambda m, a, out: out * 1.01)

    with pytest.raises(ForgettingError, match=r"task 'one': its outputs for fixed inputs changed.*hook"):
        desk.fit("two", max_epochs=1, callbacks=[At("on_train_end", act), NoForgetting()])


@pytest.mark.parametrize(
    ("family", "kind"), [("bart", "seq2seq"), ("gpt2", "causal-lm"), ("vit", "image-classification")]
)
def test_begin_prepares_every_kind(backbone_folder: Folder, family: str, kind: str) -> None:
    tasks = stream(
        backbone_folder(family),
        [task_of_kind(kind, "one", num_rows=16)],
        backbone={"name": str(backbone_folder(family))},
        bank=small("prefix"),
    )
    learner = ContinualLearner(load_backbone(str(backbone_folder(family))))
    data = learner.begin(tasks, "one")
    trainer = L.Trainer(**SILENT, max_epochs=1)
    trainer.fit(learner, datamodule=data)
    (before,) = trainer.test(learner, datamodule=data, verbose=False)
    learner.active_bank.fold()
    (after,) = L.Trainer(**SILENT).test(learner, datamodule=data, verbose=False)
    assert before == after
    assert set(before) == {f"test/{name}" for name in METRICS[learner.plan.kind] if name not in IF_CHOSEN}


def test_generation_requires_tokenizer_and_references(backbone_folder: Folder, tmp_path: Path) -> None:
    desk = two(backbone_folder, tmp_path, "bart", "seq2seq")
    with pytest.raises(ValueError, match="task 'one' generates text, and the learner has no tokenizer"):
        desk.learner.add_task(desk.plans["one"])
    assert list(desk.learner.plans) == []
    desk.learner.add_task(desk.plans["one"], tokenizer=desk.session.models.tokenizer)

    class Own:
        """A user-defined loader."""

        def __iter__(self) -> Iterator[dict[str, Tensor]]:
            return iter(desk.data["one"].val_dataloader())

    with pytest.raises(TypeError, match=r"which this loader .Own. does not have"):
        L.Trainer(**SILENT, max_epochs=1).validate(desk.learner, dataloaders=Own(), verbose=False)


def test_validation_compares_generated_texts_with_whole_references(backbone_folder: Folder, tmp_path: Path) -> None:
    """In training, the target is cut to one token and the end token; scores use the whole target."""
    rows = [{"source": f"w{number} w50", "target": "w7 w8 w9 w9"} for number in range(10, 40)]
    data = {"train": rows[:20], "validation": rows[20:25], "test": rows[25:]}
    task = {
        "name": "one",
        "kind": "causal-lm",
        "data": data,
        "max_target_length": 2,
        "generation": {"max_new_tokens": 3},
    }
    training = {"learning_rate": 0.05, "head_dropout": 0.0}
    backbone = {"name": str(backbone_folder("gpt2")), "max_length": 16}
    desk = Desk(stream(backbone_folder("gpt2"), [task], bank="full", training=training, backbone=backbone), tmp_path)
    trainer = desk.fit("one", max_epochs=4)
    # The answer "w7" has precision 1/1 and recall 1/4.
    assert float(trainer.callback_metrics["val/rouge1"]) == pytest.approx(0.4)


def test_learner_keeps_answers_of_two_kinds(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [task_of_kind("seq2seq", "text", num_rows=16), task_of_kind("multilabel", "many", num_rows=16)]
    backbone = {"name": str(backbone_folder("bart"))}
    desk = Desk(stream(backbone_folder("bart"), tasks, backbone=backbone), tmp_path)
    desk.fit("text", max_epochs=1)
    batch = next(iter(desk.data["text"].train_dataloader()))
    desk.learner.eval()
    logits = desk.learner(batch).detach()
    desk.fit("many", max_epochs=1, callbacks=[NoForgetting()])
    desk.learner.eval()
    desk.learner.activate("text")
    assert same_bits(desk.learner(batch).detach(), logits)
