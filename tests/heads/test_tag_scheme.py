"""Tags of every scheme and spelling give the entities that seqeval finds, and what fits no scheme is refused."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics import f1_score, precision_score, recall_score
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.metrics.v1 import precision_recall_fscore_support as strict_scores
from seqeval.scheme import BILOU, IOB1, IOB2, IOBES, IOE1, IOE2, Entities

from continual_petl.heads.entities import EntityScores, entities, unread_part
from continual_petl.heads.tag_scheme import (
    AmbiguousTags,
    Part,
    Scheme,
    TagReading,
    UnfitTags,
    decided_by_rows,
    follows,
    read_tags,
)

SCHEMES: dict[Scheme, str] = {
    "IOB1": "BI",
    "IOB2": "BI",
    "IOE1": "IE",
    "IOE2": "IE",
    "IOBES": "BIES",
    "BILOU": "BILU",
    "BMES": "BMES",
    "BMEWO": "BMEW",
}
STRICT = {"IOB1": IOB1, "IOB2": IOB2, "IOE1": IOE1, "IOE2": IOE2, "IOBES": IOBES, "BILOU": BILOU}
"""The schemes of seqeval; BMES and BMEWO are IOBES with other letters."""
AS_IOBES = str.maketrans("MLUW", "IESS")
TYPES = ("PER", "ORG-x", "b")
OUTSIDE = ("O", "o", "0", "OTHER", "None", "-")


def spelled(letter: str, name: str, separator: str, suffix: bool, lower: bool) -> str:
    tag = f"{name}{separator}{letter}" if suffix else f"{letter}{separator}{name}"
    return tag.lower() if lower else tag


spellings = st.tuples(st.sampled_from("-_./"), st.booleans(), st.booleans(), st.sampled_from(OUTSIDE))
words = st.none() | st.tuples(st.integers(0, 3), st.integers(0, 2))
rows_of_words = st.lists(st.lists(words, min_size=1, max_size=9), min_size=1, max_size=4)


def made(scheme: Scheme, rows: Sequence[Sequence[tuple[int, int] | None]]) -> list[list[tuple[str, str] | None]]:
    """Return rows of letters and types from rows of numbers."""
    letters = SCHEMES[scheme]
    return [[word and (letters[word[0] % len(letters)], TYPES[word[1]]) for word in row] for row in rows]


def found(reading: TagReading, tags: Sequence[str]) -> set[tuple[str, int, int]]:
    return {(name, start, stop - 1) for name, start, stop in entities([reading.part(tag) for tag in tags])}


@settings(max_examples=60)
@given(st.sampled_from([*SCHEMES]), rows_of_words, spellings)
def test_any_row_of_any_spelling_has_the_entities_of_seqeval(
    scheme: Scheme, numbers: list[list[tuple[int, int] | None]], spelling: tuple[str, bool, bool, str]
) -> None:
    separator, suffix, lower, outside = spelling
    labels = [spelled(c, name, separator, suffix, lower) for c in SCHEMES[scheme] for name in TYPES] + [outside]
    random.Random(len(numbers)).shuffle(labels)
    reading = read_tags(labels)
    assert (reading.separator, reading.position) == (separator, "suffix" if suffix else "prefix")
    assert reading.scheme in (scheme, "IOB2", "IOE2", "IOBES")
    assert reading.outside == (outside,)
    for row in made(scheme, numbers):
        tags = [outside if word is None else spelled(*word, separator, suffix, lower) for word in row]
        # seqeval knows the letters of IOBES before or after a hyphen, in capitals.
        plain = ["O" if word is None else f"{word[0].translate(AS_IOBES)}-{word[1].lower()}" for word in row]
        turned = ["O" if word is None else f"{word[1].lower()}-{word[0].translate(AS_IOBES)}" for word in row]
        assert found(reading, tags) == {*get_entities(plain)} == {*get_entities(turned, suffix=True)}


def valid_row(draw: random.Random, scheme: Scheme) -> list[tuple[str, str] | None]:
    """Return a row that keeps to the rules of a scheme: random entities, written word by word."""
    row: list[tuple[str, str] | None] = []
    spans = [
        (draw.choice(TYPES) if draw.random() < 0.7 else None, draw.randint(1, 4)) for _ in range(draw.randint(1, 5))
    ]
    for number, (name, length) in enumerate(spans):
        if name is None:
            row += [None] * length
            continue
        last, following = number + 1 == len(spans), spans[min(number + 1, len(spans) - 1)][0]
        touches = number > 0 and spans[number - 1][0] == name
        touched = not last and following == name
        match scheme:
            case "IOB1":
                letters = ("B" if touches else "I") + "I" * (length - 1)
            case "IOB2":
                letters = "B" + "I" * (length - 1)
            case "IOE1":
                letters = "I" * (length - 1) + ("E" if touched else "I")
            case "IOE2":
                letters = "I" * (length - 1) + "E"
            case _:
                b, i, e, s = [*SCHEMES[scheme]]
                letters = s if length == 1 else b + i * (length - 2) + e
        row += [(letter, name) for letter in letters]
    return row


def in_strict_mode(scheme: Scheme, row: Sequence[Part]) -> bool:
    """Return whether seqeval's strict mode has a rule for every entity: in IOE1 it knows no E- that begins one."""
    edge = Part("O", "")
    pairs = zip([edge, *row], row, strict=False)
    return scheme != "IOE1" or all(now.role != "E" or before == Part("I", now.name) for before, now in pairs)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_rows_that_keep_to_a_scheme_have_the_entities_of_seqeval_in_strict_mode(scheme: Scheme) -> None:
    draw = random.Random(scheme)
    labels = [f"{c}-{name}" for c in SCHEMES[scheme] for name in TYPES] + ["O"]
    rows = [valid_row(draw, scheme) for _ in range(60)]
    tags = [["O" if word is None else f"{word[0]}-{word[1]}" for word in row] for row in rows]
    reading, breaking = decided_by_rows(
        read_tags(labels), labels, [[labels.index(t) for t in row] for row in tags], False
    )
    assert (reading.scheme, breaking) == (scheme, 0)
    strict = STRICT.get(scheme, IOBES)
    shown = tags if scheme in STRICT else [[tag[0].translate(AS_IOBES) + tag[1:] for tag in row] for row in tags]
    for own, plain, wanted in zip(tags, shown, Entities(shown, strict).entities, strict=True):
        if in_strict_mode(scheme, [reading.part(tag) for tag in own]):
            assert found(reading, own) == {(e.tag.lower(), e.start, e.end - 1) for e in wanted}, plain


@pytest.mark.parametrize("scheme", STRICT)
@settings(max_examples=40)
@given(rows_of_words)
def test_rules_of_a_scheme_are_those_of_seqeval(scheme: Scheme, numbers: list[list[tuple[int, int] | None]]) -> None:
    """A row that keeps to the rules has the same entities in both modes of seqeval; one that differs breaks them."""
    for row in made(scheme, numbers):
        parts = [Part("O", "") if word is None else Part(word[0].translate(AS_IOBES), word[1]) for word in row]
        tags = ["O" if word is None else f"{word[0]}-{word[1]}" for word in row]
        strict = {(e.tag, e.start, e.end) for e in Entities([tags], STRICT[scheme]).entities[0]}
        if follows(scheme, parts) and in_strict_mode(scheme, parts):
            assert {*entities(parts)} == strict


@settings(max_examples=30)
@given(st.sampled_from([*STRICT]), st.integers(0, 10**6))
def test_scores_equal_seqeval(scheme: Scheme, seed: int) -> None:
    draw = random.Random(seed)
    rows = [valid_row(draw, scheme) for _ in range(6)]
    true = [["O" if word is None else f"{word[0]}-{word[1]}" for word in row] for row in rows]
    predicted = []
    for row in rows:
        other = valid_row(draw, scheme)
        mixed = row if draw.random() < 0.5 else (other + [None] * len(row))[: len(row)]
        predicted.append(["O" if word is None else f"{word[0]}-{word[1]}" for word in mixed])
    labels = (*(f"{c}-{name}" for c in SCHEMES[scheme] for name in TYPES), "O")
    scores = EntityScores(labels, read_tags(labels))
    for one, other_tags in zip(predicted, true, strict=True):
        scores.update(torch.tensor([[*map(labels.index, one)]]), torch.tensor([[*map(labels.index, other_tags)]]))
    as_iobes = [[[t[0].translate(AS_IOBES) + t[1:] for t in row] for row in side] for side in (true, predicted)]
    wanted = [function(*as_iobes, zero_division=0) for function in (f1_score, precision_score, recall_score)]
    assert [float(value) for value in scores.compute().values()] == pytest.approx(wanted)
    parts = [[scores._parts[labels.index(t)] for t in row] for row in (*true, *predicted)]
    if all(follows(scheme, row) and in_strict_mode(scheme, row) for row in parts):
        precision, recall, f1, _ = strict_scores(
            true, predicted, average="micro", scheme=STRICT[scheme], zero_division=0
        )
        assert [float(value) for value in scores.compute().values()] == pytest.approx([f1, precision, recall])


@given(st.lists(st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B"])))
def test_iob2_is_read_as_before_it_was_recorded(tags: list[str]) -> None:
    reading = read_tags(["O", "B-A", "I-A", "B-B", "I-B"])
    before = {(e.start, e.stop, e.name.lower()) for e in entities([*map(unread_part, tags)])}
    assert {(e.start, e.stop, e.name) for e in entities([reading.part(tag) for tag in tags])} == before


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["O", "B-PER", "I-PER"], "IOB2, as in B-TYPE; outside of entities: 'O'"),
        (["per_i", "per_b", "o"], "IOB2, as in TYPE_B; outside of entities: 'o'"),
        (["B", "M", "E", "S"], "BMES; outside of entities: no tag"),
        (["B", "I", "O"], "IOB2; outside of entities: 'O'"),
        (["B/NN", "M/NN", "E/NN", "S/VV"], "BMES, as in B/TYPE; outside of entities: no tag"),
        (["0", "U.x", "B.x", "L.x"], "BILOU, as in B.TYPE; outside of entities: '0'"),
        (["B-X", "I-X ", "O"], "IOB2, as in B-TYPE; outside of entities: 'O'"),
        (["B-S", "I-S", "B-E", "I-E", "O"], "IOB2, as in B-TYPE; outside of entities: 'O'"),
        (["B-B", "O"], "IOB2, as in B-TYPE; outside of entities: 'O'"),
        (["W-x", "B-x", "E-x", "other"], "BMEWO, as in B-TYPE; outside of entities: 'other'"),
        (["I-PER", "O"], "IOB1, as in B-TYPE; outside of entities: 'O'"),
        (["I-PER", "E-PER", "O"], "IOE2, as in I-TYPE; outside of entities: 'O'"),
    ],
)
def test_scheme_is_recognised_from_all_tags(labels: list[str], words: str) -> None:
    assert read_tags(labels).in_words == words


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (["NOUN", "VERB", "ADJ"], r"found 'NOUN', 'VERB', 'ADJ'; none has a letter such as B or I"),
        (["O", "PER", "LOC"], r"type of an entity, write tags: \{scheme: IO, outside: 'O'\}"),
        (["0", "1", "2"], r"numbers without names \('0', '1', '2'\).*labels: \[O, B-PER, I-PER\]"),
        (["0", "1"], r"numbers without names"),
        (["B-PER", "I-PER", "O", "OTHER"], r"'O' and 'OTHER' may both stand for words outside"),
        (["B-PER", "I_PER", "O"], r"'I_PER' is unlike the others"),
        (["B-PER", "I-PER", "X", "O"], r"'X' is unlike the others"),
        (["B-PER", "I-PER", "M-PER", "O"], r"their letters are B, I, M"),
        (["S-PER", "I-PER", "E-PER", "O"], r"their letters are E, I, S"),
        (["BPER", "IPER", "O"], r"none has a letter such as B or I"),
        (["N", "V", "O", "S"], r"'N', 'V' are unlike the others"),
        (["S", "O"], r"their letters are S"),
        (["O"], r"found 'O'"),
    ],
)
def test_tags_that_fit_no_scheme_are_refused(labels: list[str], says: str) -> None:
    with pytest.raises(UnfitTags, match=says):
        read_tags(labels)


def test_what_is_written_is_kept_and_checked() -> None:
    assert found(read_tags(["O", "PER", "LOC"], "IO"), ["PER", "PER", "O", "LOC", "PER"]) == {
        ("per", 0, 1),
        ("loc", 3, 3),
        ("per", 4, 4),
    }
    reading = read_tags(["B-x", "I-x", "O", "X"], outside=["O", "X"])
    assert (reading.scheme, reading.outside) == ("IOB2", ("O", "X"))
    assert read_tags(["B-I", "I-I", "O"], position="suffix").part("B-I") == ("I", "b")
    assert read_tags(["NOUN", "VERB"], "none").scheme == "none"
    for labels, scheme, outside, says in (
        (["B-x", "M-x", "O"], "IOB2", None, "do not fit the scheme IOB2.*their letters are B, M"),
        (["B-x", "I-x", "O"], None, ["o"], "tags.outside names 'o', which is not among the tags 'B-x', 'I-x', 'O'"),
        (["PER", "LOC"], "IO", None, "scheme IO needs a tag for words outside"),
    ):
        with pytest.raises(UnfitTags, match=says):
            read_tags(labels, scheme, outside)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="tag 'I_x' does not fit IOB2"):
        read_tags(["B-x", "I-x", "O"]).part("I_x")


def test_rows_decide_between_schemes_with_the_same_letters() -> None:
    labels = ["O", "B-x", "I-x"]
    first = [[0, 2, 2], [0, 2, 1, 2]]
    assert decided_by_rows(read_tags(labels), labels, first, False) == (read_tags(labels, "IOB1"), 0)
    assert decided_by_rows(read_tags(labels), labels, [*first, [1], [1], [1, 2]], False)[1] == 2
    assert decided_by_rows(read_tags(labels, "IOB1"), labels, [[1, 2]], True) == (read_tags(labels, "IOB1"), 1)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (["B-B", "I-B", "O"], r"'I-B' is I of type 'b'., or as IOB2 with the letter as suffix"),
        (["B-I", "I-I", "O"], r"'B-I' is B of type 'i'., or as IOB1 with .* suffix .'B-I' is I of type 'b'."),
        (["b_i", "i_b", "b_b", "i_i"], r"tags: \{position: prefix\} or tags: \{position: suffix\}"),
        (["B-x_b", "I-x_b", "B-x_i", "I-x_i", "O"], "with the letter as prefix .*with the letter as suffix"),
    ],
)  # fmt: skip
def test_tags_with_two_readings_are_refused(labels: list[str], says: str) -> None:
    with pytest.raises(AmbiguousTags, match=f"can be read in two ways, which give different entities: .*{says}"):
        read_tags(labels)
    readings = [read_tags(labels, position=position) for position in ("prefix", "suffix")]
    assert [reading.position for reading in readings] == ["prefix", "suffix"]


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["B-B", "I-B", "B-I", "I-I"]), min_size=1, max_size=4, unique=True), st.data())
def test_readings_that_are_not_told_apart_have_the_entities_of_seqeval_in_both_directions(
    inside: list[str], data: st.DataObject
) -> None:
    labels = [*inside, "O"]
    tags = data.draw(st.lists(st.sampled_from(labels), max_size=8))
    prefix, suffix = ({*get_entities(tags, suffix=side)} for side in (False, True))
    try:
        reading = read_tags(labels)
    except UnfitTags:
        return
    assert {(start, stop) for _, start, stop in prefix} == {(start, stop) for _, start, stop in suffix}
    assert {(start, stop) for _, start, stop in found(reading, tags)} == {(start, stop) for _, start, stop in prefix}
