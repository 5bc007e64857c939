"""Entities of tagged words agree with a second implementation, which follows conlleval rule by rule."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from continual_petl.heads.entities import Entity, EntityScores, entities, unread_part

TAGS = ("O", "B-A", "I-A", "E-A", "S-A", "B-B", "I-B", "E-B", "S-B")
IOB = TAGS[:3] + TAGS[5:7]


def unread(tags: list[str]) -> set[Entity]:
    """Return the entities of a bank whose certificate does not say how tags are read."""
    return entities([*map(unread_part, tags)])


def plain_entities(tags: list[str]) -> set[tuple[str, int, int]]:
    """Return (name, start, stop) of each entity as conlleval does, which compares each tag with the one before."""
    found, start = set(), -1
    before, name_before = "O", ""
    for number, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        ends = (
            before in ("E", "S")
            or (before in ("B", "I") and prefix in ("B", "S", "O"))
            or (before != "O" and name_before != name)
        )
        starts = (
            prefix in ("B", "S")
            or (before in ("E", "S", "O") and prefix in ("E", "I"))
            or (prefix != "O" and name_before != name)
        )
        if ends and start >= 0:
            found.add((name_before, start, number))
            start = -1
        if starts and prefix != "O":
            start = number
        before, name_before = prefix, name
    return found


@given(st.lists(st.sampled_from(TAGS)))
def test_entities_match_conlleval(tags: list[str]) -> None:
    assert unread(tags) == plain_entities(tags)


rows = st.lists(st.lists(st.tuples(st.sampled_from(IOB), st.sampled_from(IOB)), min_size=1, max_size=8), min_size=1)


@given(rows, st.integers(1, 4))
def test_entity_scores_are_micro_averaged_across_batches(rows: list[list[tuple[str, str]]], batch_size: int) -> None:
    scores = EntityScores(IOB)
    for start in range(0, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        width = 2 * max(map(len, batch)) + 1
        predictions, targets = torch.full((len(batch), width), 1), torch.full((len(batch), width), -100)
        for number, row in enumerate(batch):
            # Every word has a second token, whose prediction does not count.
            for place, (predicted, true) in enumerate(row):
                predictions[number, 2 * place + 1], targets[number, 2 * place + 1] = (
                    IOB.index(predicted),
                    IOB.index(true),
                )
        scores.update(predictions, targets)
    found = {(n, *e) for n, row in enumerate(rows) for e in plain_entities([word[0] for word in row])}
    wanted = {(n, *e) for n, row in enumerate(rows) for e in plain_entities([word[1] for word in row])}
    right = len(found & wanted)
    precision, recall = right / max(1, len(found)), right / max(1, len(wanted))
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    values = {name: float(value) for name, value in scores.compute().items()}
    assert values == pytest.approx({"entity_f1": f1, "entity_precision": precision, "entity_recall": recall})


def test_tags_without_prefix_form_entities_by_runs() -> None:
    assert unread(["PER", "PER", "O", "LOC", "PER"]) == {("PER", 0, 2), ("LOC", 3, 4), ("PER", 4, 5)}
    assert unread(["B-", "I-X-Y", "E-X-Y", "I-X-Y"]) == {("B-", 0, 1), ("X-Y", 1, 3), ("X-Y", 3, 4)}


def test_bare_prefixes_are_accepted() -> None:
    """Tasks with one type of entity often use the bare tags B, I and O; seqeval accepts them too."""
    assert unread(["B", "I", "I", "O", "B", "B", "O", "I"]) == {("", 0, 3), ("", 4, 5), ("", 5, 6), ("", 7, 8)}
    assert unread(["S", "B", "E", "I"]) == {("", 0, 1), ("", 1, 3), ("", 3, 4)}
