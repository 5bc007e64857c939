"""One trial: tasks learned one after another with one type of bank. Its settings determine its result."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from continual_petl._strict_model import StrictModel
from continual_petl.streams.schema.stream_spec import StreamSpec

Method = Literal["learn", "ablate", "sweep", "replay", "joint"]


@dataclass(frozen=True)
class Known:
    """The entry in a stream file for a task whose rows are in a folder of the same name."""

    kind: str = "classification"
    metric: str = "accuracy"
    pair: bool = False
    rows: tuple[str, str] = ("text", "label")
    """Columns of the input and of the label or target."""


# Scores as in Houlsby et al. 2019, Table 1, except for mrpc: accuracy instead of F1.
TASKS: dict[str, Known] = {
    "agnews": Known(),
    "yelp": Known(),
    "amazon": Known(),
    "dbpedia": Known(),
    "yahoo": Known(),
    "trec": Known(),
    "sst2": Known(),
    "cola": Known(metric="matthews"),
    "rte": Known(pair=True),
    "mrpc": Known(pair=True),
    "stsb": Known(kind="regression", metric="spearman", pair=True),
    "clinc150": Known(),
    "xsum": Known(kind="seq2seq", metric="rouge2", rows=("source", "target")),
    "rosts_en_ro": Known(kind="seq2seq", metric="bleu", rows=("source", "target")),
}


class Trial(StrictModel):
    """The tasks to learn, their rows, and the settings. Trials with the same key give the same result on one machine."""

    tasks: tuple[str, ...]
    """Names in `TASKS`, in the order in which they are learned."""
    bank: str | dict[str, Any]
    """The bank, as in a stream file."""
    training: dict[str, Any]
    """Training settings, as in a stream file; missing keys take their defaults."""
    seed: int
    limits: dict[str, int] = Field(default_factory=dict)
    """Maximum rows per split."""
    backbone: str = "minilm"
    quantize: str | None = None
    """How the backbone's weights are quantised, as in a stream file."""
    max_length: int = 64
    """Maximum tokens per row."""
    method: Method = "learn"
    """learn: an ordinary run; ablate: the same, then evaluated without the adapters in spans of layers; sweep: a search over
    settings; replay, joint: one model for all tasks, learned with rows of earlier tasks, or all at once."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the method, or of the tasks (generation, max_target_length)."""

    @property
    def settings(self) -> dict[str, Any]:
        """All settings that differ from their defaults, so new options do not change the keys of earlier trials."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @property
    def key(self) -> str:
        """The key of the trial: a digest of its settings."""
        text = json.dumps(self.settings, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def stream(self, data: Path, backbone: str | None = None) -> StreamSpec:
        """Return the stream of this trial.

        Args:
            data: the folder that has one subfolder of rows per task.
            backbone: path of the backbone, if it differs from the name in the trial.
        """
        tree = {
            "name": f"trial-{self.key}",
            "seed": self.seed,
            "defaults": 2,  # the rows of the committed results
            "data_dir": str(data.resolve()),
            "backbone": {"name": backbone or self.backbone, "max_length": self.max_length}
            | ({} if self.quantize is None else {"quantize": self.quantize}),
            "bank": self.bank,
            "training": self.training,
            "evaluate": "all",
            "routing": "off",  # the task of every row is given
            "tasks": [self._task(name, data) for name in self.tasks],
        }
        return StreamSpec.model_validate(tree)

    def _task(self, name: str, data: Path) -> dict[str, Any]:
        known = TASKS[name]
        entry: dict[str, Any] = {"name": name, "kind": known.kind, "data": name, "metric": known.metric}
        if known.pair:
            entry["columns"] = {"text_pair": "text_pair"}
        if known.kind == "classification" and (data / name / "labels.json").is_file():
            entry["labels"] = f"{name}/labels.json"
        if known.kind == "seq2seq":
            entry |= self.options
        return entry | ({"limits": self.limits} if self.limits else {})


def data_digest(data: Path, task: str) -> str:
    """Return a digest of a task's files, so that results on different rows are not mixed up."""
    digest = hashlib.sha256()
    for file in sorted((data / task).iterdir()):
        if file.name == "labels.json" or file.name.split(".")[0] in ("train", "validation", "test"):
            digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def backbone_digest(folder: Path) -> str:
    """Return a digest of a local backbone's configuration, weights and tokenizer."""
    digest = hashlib.sha256()
    for file in sorted({*folder.glob("config.json"), *folder.glob("*.safetensors"), *folder.glob("tokenizer*")}):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
