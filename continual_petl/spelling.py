"""Labels and numbers that a reader takes for the same although their characters differ. Imports nothing heavy."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation

_PLAIN_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_HALF = re.compile("[\ud800-\udfff]")
_AS_NUMBER = {"true": "1", "false": "0"}


def half_character(text: str) -> str | None:
    """Return the first lone surrogate, escaped; JSON can spell it, but UTF-8 cannot encode it."""
    found = _HALF.search(text)
    return None if found is None else f"\\u{ord(found[0]):04x}"


def folded(text: str) -> str:
    r"""Return a text without what a reader hardly sees: case, white space around it, its Unicode form, invisible characters.

    Compatible characters become one (NFKC: full-width letters, no-break spaces), and every dash becomes a hyphen.

    Example:
        >>> folded(" Good\u200b ") == folded("good")
        True
    """
    letters = unicodedata.normalize("NFKC", text)
    seen = "".join("-" if (kind := unicodedata.category(c)) == "Pd" else "" if kind == "Cf" else c for c in letters)
    return unicodedata.normalize("NFKC", " ".join(seen.split()).casefold())


def likeness(label: str) -> str:
    """Return a key that is equal for labels that probably mean the same: `folded`, and 1, 1.0, 01 and true as one number.

    Example:
        >>> likeness("1.0") == likeness("1") == likeness("True")
        True
    """
    key = folded(label)
    key = _AS_NUMBER.get(key, key)
    try:
        number = Decimal(key)  # exact: binary numbers would make 10000000000000001.5 and 10000000000000002.5 equal
    except InvalidOperation:
        return key
    sign, digits, exponent = number.as_tuple()
    if not isinstance(exponent, int):  # infinity or NaN
        return key
    written = "".join(map(str, digits)).lstrip("0")
    kept = written.rstrip("0")
    return f"{'-' * sign}{kept}e{exponent + len(written) - len(kept)}" if kept else "0"


def differing(labels: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the groups of labels that differ only in spelling, in the order of their first label.

    Example:
        >>> differing(["good", "bad", "good ", "Good"])
        [('good', 'good ', 'Good')]
    """
    groups: dict[str, list[str]] = {}
    for label in labels:
        groups.setdefault(likeness(label), []).append(label)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def visibly(text: str) -> str:
    r"""Return a text in quotes, with every character escaped that may look like another one.

    Example:
        >>> print(visibly("good "), visibly("e\u0301"))
        'good ' 'e\u0301'
    """
    plain = unicodedata.is_normalized("NFKC", text) and text.isprintable()
    return repr(text) if plain else ascii(text)


def is_plain_number(text: str) -> bool:
    r"""Return whether every program reads a text as the same number: ASCII digits, a point, an exponent.

    Python's ``float`` also accepts underscores and the digits of other scripts.

    Example:
        >>> [is_plain_number(text) for text in ("1e3", " -0.5", "1_000", "\uff11")]
        [True, True, False, False]
    """
    return _PLAIN_NUMBER.fullmatch(text.strip(" \t\r\n")) is not None
