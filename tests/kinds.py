"""Facts about the kinds of this package, by their names."""

from __future__ import annotations

from continual_petl.kind_registry import built_in, find_kind

METRICS = {name: find_kind(name).metrics for name in built_in()}
"""The metrics of each kind; the first is the default."""
GENERATIVE = frozenset(name for name in built_in() if find_kind(name).generates)
LABELLED = frozenset(name for name in built_in() if find_kind(name).has_labels)
