"""Is this the docstring of that function? A text pair.

Half of the docstrings, chosen by hash, keep their own signature. The others get one of another function of the same
module and split (of the same package, or of the split, where the module has none), also chosen by hash.
"""

from __future__ import annotations

from collections import defaultdict

from continual_petl.streams.embedded.splits import Example, assemble, split_of
from continual_petl.streams.embedded.stdlib import Docstring, docstrings
from continual_petl.streams.embedded.text import content_hash, words


def build() -> dict[str, tuple[Example, ...]]:
    """Return the splits: ``text`` is a docstring, ``text_pair`` a signature, ``label`` ``match`` or ``mismatch``."""
    usable = [d for d in docstrings() if d.kind == "function" and "__" not in d.signature and len(d.signature) <= 120]
    pools: dict[tuple[str, str], list[Docstring]] = defaultdict(list)
    for one in usable:
        split = split_of(one.text)
        for level in (one.module, one.package, "any"):
            pools[split, level].append(one)
    return assemble(_example(one, pools) for one in usable)


def _example(own: Docstring, pools: dict[tuple[str, str], list[Docstring]]) -> Example:
    if content_hash("match", own.text) % 2 == 0:
        return Example(source=own.text, text=own.text, text_pair=own.signature, label="match")
    other = own
    for level in (own.module, own.package, "any"):
        others = [d for d in pools[split_of(own.text), level] if _differ(d, own)]
        if others:
            other = min(others, key=lambda d: (content_hash("other", own.text, d.signature), d))
            break
    return Example(source=own.text, text=own.text, text_pair=other.signature, label="mismatch")


def _differ(one: Docstring, other: Docstring) -> bool:
    """Methods of one name in two classes may well share a docstring, and so may functions with one docstring."""
    return _name(one) != _name(other) and words(one.text) != words(other.text)


def _name(one: Docstring) -> str:
    return one.signature.partition("(")[0].rpartition(".")[2].strip("_")
