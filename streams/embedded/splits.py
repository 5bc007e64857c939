"""Split rows into train, validation and test by content alone, with balanced classes and no near-copies across splits."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from continual_petl.streams.embedded.text import content_hash, words

SIZES: Mapping[str, int] = {"train": 800, "validation": 200, "test": 300}
SIMILAR = 0.75  # two texts count as copies from this Jaccard index of their words on (shared words over all words)


@dataclass(frozen=True, kw_only=True, order=True)
class Example:
    """One row; ``source`` is the original passage, which determines the split and is compared with other rows."""

    source: str
    text: str
    text_pair: str | None = None
    label: str

    def row(self) -> dict[str, object]:
        """Return the row in the format of data sources."""
        pair = {} if self.text_pair is None else {"text_pair": self.text_pair}
        return {"text": self.text, **pair, "label": self.label}


@cache
def split_of(source: str) -> str:
    """Return the split of a passage: a pure function of its words, in the ratio 62 : 15 : 23."""
    share = content_hash("split", *words(source)) / 2**64
    return "train" if share < 0.62 else "validation" if share < 0.77 else "test"


def assemble(examples: Iterable[Example]) -> dict[str, tuple[Example, ...]]:
    """Return the splits of a task.

    A passage that occurs with two labels is ambiguous and is dropped. Near-copies of test passages are dropped from train
    and validation, near-copies of validation passages from train. Each class gets an equal share of ``SIZES``; rows beyond
    it are dropped by hash.
    """
    by_source: dict[tuple[str, ...], list[Example]] = defaultdict(list)
    for example in examples:
        by_source[words(example.source)].append(example)
    unambiguous = [min(same) for same in by_source.values() if len({e.label for e in same}) == 1]
    labels = {e.label for e in unambiguous}
    splits: dict[str, list[Example]] = {split: [] for split in SIZES}
    for example in unambiguous:
        splits[split_of(example.source)].append(example)
    without = {"test": [], "validation": splits["test"], "train": splits["test"] + splits["validation"]}
    return {
        split: _capped(_not_similar(splits[split], without[split]), math.ceil(size / len(labels)))
        for split, size in SIZES.items()
    }


def _capped(examples: Iterable[Example], per_class: int) -> tuple[Example, ...]:
    taken: Counter[str] = Counter()
    kept = []
    for example in sorted(examples, key=lambda e: (content_hash("order", e.source), e)):
        taken[example.label] += 1
        if taken[example.label] <= per_class:
            kept.append(example)
    return tuple(kept)


def _not_similar(examples: Collection[Example], others: Collection[Example]) -> list[Example]:
    """Leave out the examples that are similar to an example in ``others``.

    Two word sets with a Jaccard index of at least t share one of their n - ceil(t n) + 1 rarest words (prefix
    filtering: Chaudhuri et al. 2006, "A primitive operator for similarity joins"), so few pairs are compared.
    """
    sets = {e.source: frozenset(words(e.source)) for e in (*examples, *others)}
    frequency = Counter(word for members in sets.values() for word in members)

    def rarest(members: frozenset[str]) -> list[str]:
        ordered = sorted(members, key=lambda word: (frequency[word], word))
        return ordered[: len(ordered) - math.ceil(SIMILAR * len(ordered)) + 1]

    index: dict[str, set[frozenset[str]]] = defaultdict(set)
    for other in others:
        for word in rarest(sets[other.source]):
            index[word].add(sets[other.source])

    def is_copy(members: frozenset[str]) -> bool:
        candidates = {c for word in rarest(members) for c in index.get(word, ())}
        return any(len(members & c) >= SIMILAR * len(members | c) for c in candidates)

    return [e for e in examples if not is_copy(sets[e.source])]
