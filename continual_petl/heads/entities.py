"""Entity scores of tagged words, micro-averaged over entities (Tjong Kim Sang and De Meulder 2003, CoNLL-2003).

Tags are read as leniently as in CoNLL's script conlleval and in seqeval's default mode: an entity may begin with I-.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from continual_petl.heads.head import IGNORED


class Entity(NamedTuple):
    """One entity of a row."""

    name: str
    start: int
    """Index of its first word."""
    stop: int
    """One past the index of its last word."""


def entities(tags: Sequence[str]) -> set[Entity]:
    """Return the entities of one row of tags.

    Tags follow IOB1, IOB2 or IOBES, with entity types (B-PER) or without (plain B, I, O), or are plain types without a
    prefix. An I- or E- tag continues an entity if the previous tag is B- or I- with the same type; any other tag except
    O begins a new entity. A tag without any of these prefixes is read as I-.

    Example:
        >>> sorted(entities(["B-PER", "I-PER", "O", "I-LOC"]))
        [Entity(name='LOC', start=3, stop=4), Entity(name='PER', start=0, stop=2)]
    """
    found: list[Entity] = []
    open_before, name_before = False, ""
    for number, tag in enumerate(tags):
        prefix, name = _split(tag)
        if prefix == "O":
            open_before = False
            continue
        if open_before and prefix in "IE" and name == name_before:
            found[-1] = found[-1]._replace(stop=number + 1)
        else:
            found.append(Entity(name, number, number + 1))
        open_before, name_before = prefix in "BI", name
    return set(found)


def _split(tag: str) -> tuple[str, str]:
    if tag == "O":
        return "O", ""
    if tag in ("B", "I", "E", "S"):
        return tag, ""
    if len(tag) > 2 and tag[0] in "BIES" and tag[1] == "-":
        return tag[0], tag[2:]
    return "I", tag


class EntityScores(Metric):
    """Precision, recall and F1 of entities; an entity is correct if its name, first word and last word are correct.

    A score with a zero denominator is 0, as in seqeval.

    Args:
        labels: names of the tags in the order of the head's outputs.
    """

    full_state_update = False
    higher_is_better = True
    num_right: Tensor
    num_predicted: Tensor
    num_true: Tensor

    def __init__(self, labels: tuple[str, ...]) -> None:
        super().__init__()
        self._labels = labels
        for name in ("num_right", "num_predicted", "num_true"):
            self.add_state(name, torch.tensor(0), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count the entities of a batch.

        Args:
            preds: predicted tag indices ``(B, W)``.
            target: true tag indices ``(B, W)``, -100 everywhere except at the first piece of a word.
        """
        for predicted_W, true_W in zip(preds.cpu(), target.cpu(), strict=True):
            words = true_W != IGNORED
            predicted, true = self._entities(predicted_W[words]), self._entities(true_W[words])
            self.num_right += len(predicted & true)
            self.num_predicted += len(predicted)
            self.num_true += len(true)

    def compute(self) -> dict[str, Tensor]:
        """Return the three scores, float32 scalars in [0, 1]."""
        right, predicted, true = (n.double() for n in (self.num_right, self.num_predicted, self.num_true))
        return {
            "entity_f1": (2 * right / (predicted + true).clamp(min=1)).float(),
            "entity_precision": (right / predicted.clamp(min=1)).float(),
            "entity_recall": (right / true.clamp(min=1)).float(),
        }

    def _entities(self, numbers: Tensor) -> set[Entity]:
        return entities([self._labels[number] for number in numbers.tolist()])
