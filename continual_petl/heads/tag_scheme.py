"""How tags mark entities: recognised from all tags of a task, or written in its stream file.

The letters of a scheme say where a word is in its entity: B(egin), I(nside) or M(iddle), E(nd) or L(ast), and S(ingle),
U(nit) or W(hole) for an entity of one word. They stand before or after the type of the entity (B-PER, PER_B), or alone if
there is only one type. Ramshaw and Marcus 1995 (IOB1), Tjong Kim Sang and Veenstra 1999 (IOB2, IOE1, IOE2), Ratinov and Roth
2009 (BILOU). Tags without such letters (IO) are only read as entities if the stream file says so: they may as well be parts
of speech. Case, Unicode form and white space around a tag do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from continual_petl._strict_model import StrictModel
from continual_petl.errors import known_names
from continual_petl.spelling import folded, visibly

Scheme = Literal["IOB1", "IOB2", "IOE1", "IOE2", "IOBES", "BILOU", "BMES", "BMEWO", "IO", "none"]
Position = Literal["prefix", "suffix"]

_LETTERS: dict[Scheme, str] = {
    "IOB1": "bi",
    "IOB2": "bi",
    "IOE1": "ie",
    "IOE2": "ie",
    "IOBES": "bies",
    "BILOU": "bilu",
    "BMES": "bmes",
    "BMEWO": "bmew",
}
_ROLES = {"b": "B", "i": "I", "m": "I", "e": "E", "l": "E", "s": "S", "u": "S", "w": "S"}
_SEPARATORS = "-_./:|"
_OUTSIDE = frozenset({"o", "0", "other", "out", "outside", "none", "null", "nil", "n/a", "-", "_"})
_TWINS: dict[Scheme, tuple[Scheme, Scheme]] = {
    "IOB1": ("IOB2", "IOB1"),
    "IOB2": ("IOB2", "IOB1"),
    "IOE1": ("IOE2", "IOE1"),
    "IOE2": ("IOE2", "IOE1"),
}
"""Schemes with the same letters, which only the order of the tags tells apart; the first is assumed if it does not."""


class Part(NamedTuple):
    """What a tag says about its word."""

    role: str
    """B, I, E or S, whatever the letters of the scheme; O outside of entities."""
    name: str
    """The type of the entity, as a key to compare; empty outside and for tags without types."""


class TagReading(StrictModel):
    """How the tags of a task are read, in full; part of its certificate."""

    scheme: Scheme
    """``none``: the tags mark no entities, and there are no entity scores."""
    position: Position = "prefix"
    """Where the letter is written."""
    separator: Literal["", "-", "_", ".", "/", ":", "|"] = ""
    """Between letter and type; empty for tags that are only a letter or only a type."""
    outside: tuple[str, ...] = ()
    """The tags of words outside of entities."""

    @property
    def in_words(self) -> str:
        """The scheme, an example and the tags outside."""
        if self.scheme == "none":
            return "not read as entities"
        letter = _LETTERS.get(self.scheme, "b")[0].upper()
        sides = {"prefix": f"{letter}{self.separator}TYPE", "suffix": f"TYPE{self.separator}{letter}"}
        form = f", as in {sides[self.position]}" if self.separator else ""
        form = ", the whole tag is the type of the entity" if self.scheme == "IO" else form
        return f"{self.scheme}{form}; outside of entities: {', '.join(map(visibly, self.outside)) or 'no tag'}"

    def part(self, label: str) -> Part:
        """Return what a tag says about its word.

        Raises:
            ValueError: if the tag does not fit the scheme.
        """
        if label in self.outside:
            return Part("O", "")
        if self.scheme == "IO":
            return Part("I", folded(label))
        parts = _split(folded(label), self.position, self.separator)
        if parts is None or self.scheme == "none" or parts[0] not in _LETTERS[self.scheme]:
            raise ValueError(f"tag {visibly(label)} does not fit {self.in_words}")
        return Part(_ROLES[parts[0]], parts[1])


class UnfitTags(ValueError):
    """No scheme fits the tags of a task; the message says what was found."""


class AmbiguousTags(UnfitTags):
    """The letters of all tags can stand both before and after the type, which gives different entities.

    Args:
        message: both readings, and what to write.
        readings: both readings.
    """

    def __init__(self, message: str, readings: Sequence[TagReading]) -> None:
        self.readings = tuple(readings)
        super().__init__(message)


def read_tags(
    labels: Sequence[str],
    scheme: Scheme | None = None,
    outside: Sequence[str] | None = None,
    position: Position | None = None,
) -> TagReading:
    """Return how the tags of a task are read.

    The first argument is all that is needed; the others are what the user wrote. IOB1 and
    IOB2 have the same letters, and so have IOE1 and IOE2: this names one of each, and `decided_by_rows` decides by the rows.

    Args:
        labels: all tags of the task.
        scheme: the scheme; None means recognised.
        outside: the tags of words outside of entities; None means recognised.
        position: where the letter stands; None means recognised.

    Raises:
        UnfitTags: if no scheme fits, or not the given one.
        AmbiguousTags: if letters both before and after the type fit, and give different entities.

    Example:
        >>> read_tags(["0", "b_per", "i_per", "e_per", "s_loc"]).in_words
        "IOBES, as in B_TYPE; outside of entities: '0'"
    """
    if scheme == "none":
        return TagReading(scheme="none")
    found = _outside(labels, outside)
    inside = [label for label in labels if label not in found]
    if scheme == "IO":
        if not found:
            raise UnfitTags(
                f"scheme IO needs a tag for words outside of entities, and there is none in {_listed(labels)}"
            )
        return TagReading(scheme="IO", outside=found)
    places = (position,) if position else get_args(Position)
    forms: list[tuple[Position, str]] = [("prefix", ""), *((place, mark) for place in places for mark in _SEPARATORS)]
    readings: list[TagReading] = []
    for place, separator in forms:
        parts = [_split(folded(label), place, separator) for label in inside]
        letters = {part[0] for part in parts if part is not None}
        fits = _schemes(letters) if scheme is None else [scheme] if letters <= {*_LETTERS[scheme]} else []
        if None not in parts and fits and parts:
            readings.append(TagReading(scheme=fits[0], position=place, separator=separator, outside=found))
    if not readings:
        raise UnfitTags(_unfit(labels, inside, found, scheme, forms))
    _check_unambiguous(readings, inside)
    return readings[0]


def _outside(labels: Sequence[str], outside: Sequence[str] | None) -> tuple[str, ...]:
    """Return the tags of words outside of entities: those given, or those that can be recognised."""
    if unknown := [tag for tag in outside or () if tag not in labels]:
        raise UnfitTags(f"tags.outside names {visibly(unknown[0])}, which is not among the tags {_listed(labels)}")
    if all(folded(label).isdecimal() for label in labels):
        raise UnfitTags(
            f"the tags are numbers without names ({_listed(labels)}): write the name of each number, in their order, under "
            "labels, such as labels: [O, B-PER, I-PER]"
        )
    names = tuple(label for label in labels if folded(label) in _OUTSIDE) if outside is None else tuple(outside)
    if outside is None and len({*map(folded, names)}) > 1:
        listed = " and ".join(map(visibly, names))
        raise UnfitTags(
            f"{listed} may both stand for words outside of entities: write which do, tags: {{outside: [...]}}"
        )
    return names


def _check_unambiguous(readings: Sequence[TagReading], inside: Sequence[str]) -> None:
    """Raise `AmbiguousTags` if two readings give different entities."""
    first, *others = readings
    for rival in others:
        if _entities_of(first, inside) != _entities_of(rival, inside):
            label = next(label for label in inside if first.part(label) != rival.part(label))
            raise AmbiguousTags(
                f"the tags {_listed(inside)} can be read in two ways, which give different entities: as "
                f"{_in_short(first, label)}, or as {_in_short(rival, label)}. Write where the letter is, tags: "
                f"{{position: {first.position}}} or tags: {{position: {rival.position}}}",
                readings,
            )


def _entities_of(reading: TagReading, labels: Sequence[str]) -> list[tuple[str, int]]:
    """Return the role of each tag and a number for its type: equal for readings that find the same entities."""
    numbers: dict[str, int] = {}
    parts = [reading.part(label) for label in labels]
    return [(part.role, numbers.setdefault(part.name, len(numbers))) for part in parts]


def _in_short(reading: TagReading, label: str) -> str:
    role, name = reading.part(label)
    return f"{reading.scheme} with the letter as {reading.position} ({visibly(label)} is {role} of type {name!r})"


def decided_by_rows(
    reading: TagReading, labels: Sequence[str], rows: Iterable[Sequence[int]], written: bool
) -> tuple[TagReading, int]:
    """Return the reading with IOB1 told from IOB2 (and IOE1 from IOE2) by rows, and how many rows break its rules.

    Args:
        reading: from `read_tags`.
        labels: all tags of the task.
        rows: the tags of the training rows, as indices.
        written: whether the user wrote the scheme, which is then kept.
    """
    if reading.scheme in ("none", "IO"):
        return reading, 0
    parts = [reading.part(label) for label in labels]
    schemes = (reading.scheme,) if written else alike(reading.scheme)
    breaking = dict.fromkeys(schemes, 0)
    for row in rows:
        own = [parts[number] for number in row]
        for scheme in schemes:
            breaking[scheme] += not follows(scheme, own)
    best = min(schemes, key=breaking.__getitem__)
    return reading.model_copy(update={"scheme": best}), breaking[best]


def alike(scheme: Scheme) -> tuple[Scheme, ...]:
    """Return the schemes with the letters of this one, which only the order of the tags tells apart; the usual one first."""
    return _TWINS.get(scheme, (scheme,))


def follows(scheme: Scheme, row: Sequence[Part]) -> bool:
    """Return whether the tags of a row keep to the rules of a scheme, so that every reader finds the same entities."""
    edge = Part("O", "")
    for before, now, after in zip([edge, *row], row, [*row[1:], edge], strict=False):
        continues = before.role in "BI" and before.name == now.name
        continued = after.role in "IE" and after.name == now.name
        match scheme:
            case "IOB1":
                good = now.role != "B" or continues
            case "IOB2":
                good = now.role != "I" or continues
            case "IOE1":
                good = now.role != "E" or continued
            case "IOE2":
                good = now.role != "I" or continued
            case _:
                good = (now.role not in "IE" or continues) and (now.role not in "BI" or continued)
        if not good:
            return False
    return True


def _split(tag: str, position: Position, separator: str) -> tuple[str, str] | None:
    """Return the letter and the type of a folded tag; None if it has none."""
    if not separator:
        return (tag, "") if tag in _ROLES else None
    letter, mark, name = (tag[:1], tag[1:2], tag[2:]) if position == "prefix" else (tag[-1:], tag[-2:-1], tag[:-2])
    return (letter, name) if letter in _ROLES and mark == separator and name else None


def _schemes(letters: set[str]) -> list[Scheme]:
    """Return the schemes with all these letters; without B, only IOB1 and IOE are possible, whose entities have an I."""
    order: tuple[Scheme, ...] = ("IOB2", "IOBES", "BILOU", "BMES", "BMEWO") if "b" in letters else ("IOB1", "IOE2")
    known = letters & {"b", "i"}
    return [scheme for scheme in order if known and letters <= {*_LETTERS[scheme]}]


def _unfit(
    labels: Sequence[str],
    inside: Sequence[str],
    outside: Sequence[str],
    scheme: Scheme | None,
    forms: Sequence[tuple[Position, str]],
) -> str:
    """Return what was found, for the form that fits most tags."""
    splits = [[_split(folded(label), position, separator) for label in inside] for position, separator in forms]
    best = max(splits, key=lambda parts: len(parts) - parts.count(None))
    unfit = [label for label, part in zip(inside, best, strict=True) if part is None]
    letters = sorted({part[0].upper() for part in best if part is not None})
    scheme_name = "one of the known schemes" if scheme is None else f"the scheme {scheme}"
    text = f"the tags do not fit {scheme_name}: found {_listed(labels)}"
    if not letters:
        text += "; none has a letter such as B or I before or after the type of an entity, as in B-PER or PER-B"
    elif unfit:
        text += f"; {_listed(unfit)} {'is' if len(unfit) == 1 else 'are'} unlike the others"
        if len(unfit) == 1:
            text += f". If it marks no entity, write tags: {{outside: [{', '.join(map(visibly, [*outside, *unfit]))}]}}"
    else:
        text += f"; their letters are {', '.join(letters)}"
    if scheme is None and not letters and len(outside) == 1:
        text += (
            f". If each of them but {visibly(outside[0])} is the type of an entity, write tags: "
            f"{{scheme: IO, outside: {visibly(outside[0])}}}"
        )
    return text


def _listed(labels: Sequence[str]) -> str:
    return known_names([*map(visibly, labels)])
