"""Made-up rows, for quick runs of studies without the data."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from experiments.studies.trial import TASKS, Known

_TEXT = "the a one this of in with by red green small large old new cat dog house tree man day hand thing works"
WORDS = tuple(_TEXT.split())
ROWS = {"train": 48, "validation": 20, "test": 20}
LABELS = 3


def make_up(folder: Path) -> Path:
    """Write a folder of rows for every known task, the same rows each time; return ``folder``."""
    for name, known in TASKS.items():
        drawn = random.Random(name)
        (folder / name).mkdir(parents=True)
        for split, count in ROWS.items():
            rows = (json.dumps(_row(known, drawn, number)) for number in range(count))
            (folder / name / f"{split}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
        if known.kind == "classification":
            labels = json.dumps([f"label {number}" for number in range(LABELS)])
            (folder / name / "labels.json").write_text(labels, encoding="utf-8")
    return folder


def _row(known: Known, drawn: random.Random, number: int) -> dict[str, Any]:
    texts = {known.rows[0]: _text(drawn)} | ({"text_pair": _text(drawn)} if known.pair else {})
    match known.kind:
        case "regression":
            return texts | {"label": round(drawn.uniform(0, 5), 2)}
        case "seq2seq":
            return texts | {"target": _text(drawn)}
        case _:
            return texts | {"label": number % LABELS}


def _text(drawn: random.Random) -> str:
    return " ".join(drawn.choices(WORDS, k=drawn.randint(3, 12)))
