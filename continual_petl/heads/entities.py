"""Entity scores of tagged words, micro-averaged over entities (Tjong Kim Sang and De Meulder 2003, CoNLL-2003).

Tags of every scheme are read as leniently as in CoNLL's script conlleval and in seqeval's default mode: an entity may begin
with I-. For rows that keep to the rules of their scheme, this is the same as seqeval's strict mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric

from continual_petl.heads.head import IGNORED
from continual_petl.heads.tag_scheme import Part, TagReading


class Entity(NamedTuple):
    """One entity of a row."""

    name: str
    start: int
    """Index of its first word."""
    stop: int
    """One past the index of its last word."""


def entities(parts: Sequence[Part]) -> set[Entity]:
    """Return the entities of one row.

    A word with role I or E continues an entity if the previous word has role B or I and the same type; any other word except
    those with role O begins a new entity.

    Args:
        parts: role and type of each word, from `TagReading.part` or `unread_part`.

    Example:
        >>> sorted(entities([*map(unread_part, ["B-PER", "I-PER", "O", "I-LOC"])]))
        [Entity(name='LOC', start=3, stop=4), Entity(name='PER', start=0, stop=2)]
    """
    spans: list[Entity] = []
    open_before, name_before = False, ""
    for number, (role, name) in enumerate(parts):
        if role == "O":
            open_before = False
            continue
        if open_before and role in "IE" and name == name_before:
            spans[-1] = spans[-1]._replace(stop=number + 1)
        else:
            spans.append(Entity(name, number, number + 1))
        open_before, name_before = role in "BI", name
    return set(spans)


def unread_part(tag: str) -> Part:
    """Return role and type of a tag of a bank that was learned before certificates held how tags are read.

    The tags are O, or B-, I-, E-, S- with a type or alone; a tag without any of these prefixes is read as I-.
    """
    if tag == "O":
        return Part("O", "")
    if tag in ("B", "I", "E", "S"):
        return Part(tag, "")
    if len(tag) > 2 and tag[0] in "BIES" and tag[1] == "-":
        return Part(tag[0], tag[2:])
    return Part("I", tag)


class EntityScores(Metric):
    """Precision, recall and F1 of entities; an entity is correct if its name, first word and last word are correct.

    A score with a zero denominator is 0, as in seqeval.

    Args:
        labels: names of the tags in the order of the head's outputs.
        reading: how the tags mark entities; None for a bank that was learned before this was known, see `unread_part`.
    """

    full_state_update = False
    higher_is_better = True
    num_right: Tensor
    num_predicted: Tensor
    num_true: Tensor

    def __init__(self, labels: tuple[str, ...], reading: TagReading | None = None) -> None:
        super().__init__()
        self._parts = [*map(unread_part if reading is None else reading.part, labels)]
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
        return entities([self._parts[number] for number in numbers.tolist()])
