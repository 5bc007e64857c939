"""A task on text pairs: is this the docstring of that function?

Half of the docstrings, chosen by hash, keep their signature. The other half get the signature of another library function in
the same split, also chosen by hash. (With functions from the same module, the pairs would be too hard for a first stream:
a small encoder is hardly better than chance after a few epochs.)
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import chain, islice
from operator import itemgetter
from typing import TypeAlias

from continual_petl.streams.embedded.splits import Example, assemble, split_of
from continual_petl.streams.embedded.stdlib import Docstring, docstrings
from continual_petl.streams.embedded.text import content_hash, words

# Functions at positions given by their hash (consistent hashing: a changed function changes only a few pairs).
Ring: TypeAlias = list[tuple[int, Docstring]]


def build() -> dict[str, tuple[Example, ...]]:
    """Return the splits: ``text`` is a docstring, ``text_pair`` a signature, ``label`` ``match`` or ``mismatch``."""
    usable = [d for d in docstrings() if d.kind == "function" and "__" not in d.signature and len(d.signature) <= 120]
    rings: dict[str, Ring] = defaultdict(list)
    for place, one in sorted((content_hash("place", d.signature, d.text), d) for d in usable):
        rings[split_of(one.text)].append((place, one))
    return assemble(_example(one, rings[split_of(one.text)]) for one in usable)


def _example(own: Docstring, ring: Ring) -> Example:
    if content_hash("match", own.text) % 2 == 0:
        return Example(source=own.text, text=own.text, text_pair=own.signature, label="match")
    start = bisect_left(ring, content_hash("other", own.text), key=itemgetter(0))
    other = next(d for _, d in chain(islice(ring, start, None), ring) if _differ(d, own))
    return Example(source=own.text, text=own.text, text_pair=other.signature, label="mismatch")


def _differ(one: Docstring, other: Docstring) -> bool:
    """Return whether two functions differ in both name and docstring; methods of two classes may share either."""
    return _name(one) != _name(other) and words(one.text) != words(other.text)


def _name(one: Docstring) -> str:
    return one.signature.partition("(")[0].rpartition(".")[2].strip("_")
