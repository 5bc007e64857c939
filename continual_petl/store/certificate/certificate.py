"""``bank.json``: everything about one learned task except its tensors, in a strict, versioned schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    PrivateAttr,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from continual_petl.errors import StoreError
from continual_petl.heads.decision import same_form
from continual_petl.heads.metric_code import is_own
from continual_petl.heads.metric_names import ERROR_NAMES, is_of_entities
from continual_petl.kind_registry import kind_code, kind_of
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.store.certificate.environment import Environment
from continual_petl.store.certificate.values import (
    BankReference,
    Digest,
    Index,
    Origin,
    SplitScores,
    Start,
    TensorEntry,
)
from continual_petl.store.files.sealed import read_record, seal_of, write_record

_NEW = (
    *("start", "origin", "reads", "chat", "training_attention", "normalise", "metric_code", "tags", "targets"),
    *("kind_code", "kind_settings", "decision"),
)
"""Keys that are left out if they have no value."""
PARTS = ("modifications", "own", "head")
"""The parts of a bank; their parameters are counted separately."""
HISTORY = "history.json"
ROUTER = "router.safetensors"
"""A task's routing statistics; missing with ``routing: off``."""
FILES = ("bank.safetensors", "probe.safetensors", HISTORY)


class Certificate(TaskPlan):
    """The human-readable part of a certificate: the plan that the task was learned with, the results, and the committed bank.

    It is the plan, grown: nothing of the plan is copied into it field by field.
    """

    parent: BankReference | None = None
    """The bank that this one started as a copy of, if any."""
    start: Start | None = None
    """With ``start_from: auto``, the starting points that were tried; with an average, its weights."""
    origin: Origin | None = None
    """Where the bank comes from, if no run trained it: files of another library, or a Trainer of the user's own."""
    reads: tuple[BankReference, ...] = ()
    """The banks that a fused bank reads, in the order of ``bank.fuse``; without them, it cannot predict."""
    max_length: Index
    """Maximum tokens per row; 0 if the backbone reads images."""
    preparation: str
    """Digest of the tokenizer or image processing."""
    scores: dict[str, SplitScores]
    """Scores by split: validation, and test if there is one; empty for an imported bank that was not measured."""
    data: dict[str, str]
    """Digest of each split's content."""
    notices: tuple[str, ...]
    training_attention: str | None = None
    """Attention implementation that the bank was trained with; None if the bank also predicts with it, or was not trained
    here."""

    format_version: Literal[2] = 2
    index: Index
    """0-based position in the chain, whose entries are in the order in which they were written."""
    predecessor: Digest | None
    """Seal of the previous entry in the chain, a certificate or a tombstone; None for the first."""
    backbone: str
    """Digest of the backbone."""
    tensors: dict[str, TensorEntry]
    digest: Digest
    """Digest of all tensors together; two banks have the same digest if and only if they are identical."""
    probe: Digest
    """Digest of all tensors of the probe together."""
    files: dict[str, Digest]
    """SHA-256 of the bytes of bank.safetensors, probe.safetensors, history.json and, if there is one, router.safetensors."""
    parameters: dict[str, Index]
    """Number of parameters of each part: modifications, own, head."""
    environment: Environment
    """Environment in which the probe and the scores were computed; the bank predicts with its attention implementation."""

    _seal: str | None = PrivateAttr(default=None)

    @classmethod
    def of(cls, known: TaskPlan, **facts: Any) -> Self:
        """Return a certificate with everything that a plan or another certificate holds, and more facts."""
        return cls(**{name: getattr(known, name) for name in type(known).model_fields} | facts)

    @model_serializer(mode="wrap")
    def _omit_new_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Without these keys, a certificate is written exactly as it was before they existed.
        return {key: value for key, value in handler(self).items() if value or key not in _NEW}

    @model_validator(mode="after")
    def _consistent(self) -> Certificate:
        has_options = self.normalise is not None
        kind = kind_of(self)
        labelled = kind.has_labels or self.options_from == "task"
        if labelled != (self.labels is not None) or (labelled and not self.labels):
            raise ValueError(f"labels: a task of kind {self.kind} {'needs' if labelled else 'has no'} labels")
        if has_options and not kind.generates:
            raise ValueError(f"normalise: only generative kinds have options; kind is {self.kind}")
        if self.targets is not None and not kind.has_numbers:
            raise ValueError(f"targets: only allowed for tasks of kind regression; kind is {self.kind}")
        if self.class_weights is not None and len(self.class_weights) != len(self.labels or ()):
            raise ValueError(f"class_weights: got {len(self.class_weights)} for {len(self.labels or ())} labels")
        if (kind.generates and not has_options) != (self.generation is not None):
            raise ValueError(
                f"generation: required for generative kinds without options, not allowed otherwise; kind is {self.kind}"
            )
        if self.chat is not None and not kind.takes_chats:
            raise ValueError(f"chat: only allowed for tasks of kind causal-lm; kind is {self.kind}")
        if self.tags is not None and not kind.per_word:
            raise ValueError(f"tags: only allowed for tasks of kind token-classification; kind is {self.kind}")
        if self.tags is not None and self.tags.scheme == "none" and is_of_entities(self.metric):
            raise ValueError(f"tags: they mark no entities, but the metric is {self.metric}")
        if self.tags is not None and self.tags.scheme != "none":
            for label in self.labels or ():
                self.tags.part(label)
        if self.kind_code != (code := kind_code(self.kind)):
            raise ValueError(f"kind_code: got {self.kind_code}, but kind {self.kind} has the code {code}")
        if self.kind_settings != kind.settings_of(self.kind_settings):
            raise ValueError(f"kind_settings: got {self.kind_settings}; expected exactly those of kind {self.kind}")
        if not same_form(self.decision, kind.decide(self.task, self.labels, self.kind_settings)):
            raise ValueError(
                f"decision: got {self.decision}, which does not fit the labels and the settings of its kind"
            )
        allowed = kind.metrics_with(self.options_from)
        if self.metric_code is None if is_own(self.metric) else self.metric_code is not None and self.metric in allowed:
            raise ValueError(
                f"metric_code: got {self.metric_code!r} for metric {self.metric!r}; required for a function, not allowed "
                "otherwise"
            )
        if (self.metric_code is None or self.options_from == "row") and self.metric not in allowed:
            raise ValueError(f"metric: got {self.metric!r}; allowed for kind {self.kind}: {', '.join(allowed)}")
        unmeasured = self.is_imported and not self.scores and not self.data
        if not unmeasured and ("validation" not in self.scores or not self.scores.keys() <= self.data.keys()):
            raise ValueError("scores: the validation scores, or the digest of a split's data, are missing")
        if tuple(parent.task for parent in self.reads) != self.bank.fuse:
            raise ValueError(f"reads: expected the banks of bank.fuse, {', '.join(self.bank.fuse) or 'none'}")
        if set(self.parameters) != set(PARTS):
            raise ValueError(f"parameters: expected the parts {', '.join(PARTS)}")
        if set(self.files) - {ROUTER} != set(FILES):
            raise ValueError(f"files: expected {', '.join(FILES)}, and optionally {ROUTER}")
        return self

    @property
    def is_imported(self) -> bool:
        """Whether the bank was imported from another library's files."""
        return self.origin is not None and self.origin.is_imported

    @property
    def started_from(self) -> str:
        """Description of what the bank started from."""
        if self.origin is not None and self.origin.is_imported:
            return self.origin.in_words
        if self.start is not None:
            return self.start.in_words
        return "a fresh bank" if self.parent is None else f"a copy of {self.parent.task!r}"

    @property
    def counted_split(self) -> Literal["validation", "test"]:
        """The split that is reported: test if there is one."""
        return "test" if "test" in self.scores else "validation"

    @property
    def score(self) -> float | None:
        """The task's metric on the reported split, just after it was learned; None if undefined or not measured."""
        return self.scores[self.counted_split].scores.get(self.metric) if self.is_measured else None

    @property
    def errors(self) -> dict[str, float]:
        """The errors of a regression on the reported split; see `continual_petl.heads.metric_names.ERRORS`."""
        known = self.scores[self.counted_split].scores if self.is_measured and kind_of(self).has_numbers else {}
        return {name: known[name] for name in ERROR_NAMES if name in known}

    @property
    def is_measured(self) -> bool:
        """Whether there are scores; False for a bank that was imported without rows."""
        return bool(self.scores)

    @property
    def num_examples(self) -> int:
        """Number of rows of the reported split."""
        return self.scores[self.counted_split].num_examples if self.is_measured else 0

    @property
    def seal(self) -> str:
        """Digest over the whole certificate as it was written; the next entry of the chain names it."""
        return self._seal or seal_of(self.model_dump(mode="json"))


def write_certificate(path: Path, certificate: Certificate) -> None:
    """Write a certificate with its seal."""
    write_record(path, certificate)


def read_certificate(path: Path) -> Certificate:
    """Read a certificate, or raise `StoreError` naming the file and what is wrong with it."""
    try:
        certificate, seal = read_record(path, Certificate, f"task {path.parent.name!r}")
    except FileNotFoundError:
        raise StoreError(f"{path}: missing; the bank's folder is incomplete or was edited") from None
    certificate._seal = seal
    return certificate
