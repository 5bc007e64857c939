"""Valid seed inputs: every stream and task in this repository, every kind, every preset."""

from __future__ import annotations

import json
import re

from continual_petl.banks.config.choice import BankChoice
from continual_petl.banks.config.presets import PRESETS
from continual_petl.streams.schema.stream_spec import BackboneSpec, StreamSpec, TaskSpec
from continual_petl.streams.stream_file.dump import dump_stream
from tests.house import ROOT
from tests.kinds import METRICS

_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def streams() -> list[bytes]:
    """Return stream files."""
    catalog = [path.read_bytes() for path in sorted((ROOT / "streams" / "catalog").glob("*.yaml"))]
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    blocks = [block.encode() for page in pages for block in _BLOCK.findall(page.read_text("utf-8"))]
    return [*catalog, *blocks, *(dump_stream(stream).encode() for stream in _made())]


def _made() -> list[StreamSpec]:
    backbone = BackboneSpec(name="minilm")
    rows = {"train": ({"text": "good", "label": "yes"}, {"text": "bad \x1b[2J", "label": "<b>no</b>"})}
    tasks = [TaskSpec(name=f"t{number}", kind=kind, data=f"{kind}.csv") for number, kind in enumerate(METRICS)]
    whole = StreamSpec(name="kinds", backbone=backbone, tasks=tuple(tasks))
    one = tuple([TaskSpec(name="a", kind="classification", data=rows, labels=("no", "yes"))])
    presets = [StreamSpec(name="p", backbone=backbone, bank=BankChoice(preset=name), tasks=one) for name in PRESETS]
    written = [
        StreamSpec(name="w", backbone=backbone, bank=BankChoice(modifications=row.modifications), tasks=one)
        for row in PRESETS.values()
        if row.modifications
    ]
    return [whole, *presets, *written]


def tasks() -> list[bytes]:
    """Return files of one task."""
    made = [f"name: a\nkind: {kind}\ndata: x.csv\nmetric: {names[0]}\n" for kind, names in METRICS.items()]
    more = [
        "name: a\nkind: classification\ndata: {path: json, data_files: {train: [a, b]}}\nlabels: [no, yes]\n"
        "bank: {preset: mam}\n"
    ]
    return [text.encode() for text in made + more]


def labels() -> list[bytes]:
    """Return JSON files of labels."""
    lists = (
        ["no", "yes"],
        [0, 1, 2],
        {"names": ["a", "b"]},
        ["../x", "<b>", "\x1b[2J", "\u202ex"],
        [str(n) for n in range(200)],
    )
    return [json.dumps(names).encode() for names in lists] + [json.dumps(["ä", "ö"], ensure_ascii=False).encode()]


def overrides() -> list[bytes]:
    """Return command-line options, one word per line."""
    texts = (
        "--training.epochs\n1\n--tasks.a.bank\nlora",
        "--seed=3\n--tasks.0.training.learning_rate=1e-3",
        "--backbone.max_length=16\n--backbone=minilm\n--bank.bottleneck=4",
        "--tasks.a.labels=[no, yes]\n--tasks.b.data={path: json, data_files: {train: a}}",
        "--tasks.a.data.train.0.text='x'\n--data_dir=/tmp\n--trainer.devices=1\n--tasks.0.name=z\n--tasks.z.kind=regression",
    )
    return [text.encode() for text in texts]


TRIAL_TASKS = ("one", "two")
"""The tasks of the run beside which other results are shown."""


def trials() -> list[bytes]:
    """Return files of results of other packages."""
    trial = {"method": "EWC", "package": "a 1.0", "tasks": TRIAL_TASKS, "matrix": [[0.9, None], [0.5, 0.8]]}
    more = {"settings": {"a": [1, {"b": None}]}, "order": ["one", "two"], "seed": 1, "seconds": 2.5, "kept_bytes": 7}
    lines = [json.dumps(each).encode() for each in (trial, trial | more, trial | {"tuning": True})]
    return [lines[0], b"\n".join(lines) + b"\n"]
