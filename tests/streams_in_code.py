"""Small streams with rows given in Python: learnable tasks over the tiny tokenizer's words."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from continual_petl.streams.schema.stream_spec import StreamSpec
from continual_petl.streams.stream import TaskStream
from tests.tiny import WORDS

TRAINING = {"epochs": 2, "batch_size": 8, "learning_rate": 0.02, "precision": "fp32"}


def classification_rows(name: str, num_rows: int, *, pairs: bool = False) -> list[dict[str, Any]]:
    """Return distinct rows whose label is determined by one word in the text."""
    draw = random.Random(name)
    rows: list[dict[str, Any]] = []
    seen: set[tuple[str, ...]] = set()
    while len(rows) < num_rows:
        label = draw.randrange(2)
        words = [*draw.choices(WORDS[10:], k=draw.randrange(2, 12)), WORDS[label]]
        draw.shuffle(words)
        if tuple(words) not in seen:
            seen.add(tuple(words))
            row = {"text": " ".join(words), "label": ("no", "yes")[label]}
            rows.append(row | ({"text_pair": " ".join(draw.choices(WORDS, k=4))} if pairs else {}))
    return rows


def write_rows(path: Path, name: str, *, pairs: bool = False) -> None:
    """Write a folder with the splits train, validation and test as JSON Lines."""
    path.mkdir(parents=True)
    rows = classification_rows(name, 72, pairs=pairs)
    for split, part in (("train", rows[:40]), ("validation", rows[40:56]), ("test", rows[56:])):
        (path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))


def task(name: str, *, num_rows: int = 40, pairs: bool = False, **more: Any) -> dict[str, Any]:
    """Return a classification task with its rows."""
    rows = classification_rows(name, num_rows + 32, pairs=pairs)
    data = {"train": rows[:num_rows], "validation": rows[num_rows:-16], "test": rows[-16:]}
    columns = {"columns": {"text_pair": "text_pair"}} if pairs else {}
    return {"name": name, "kind": "classification", "data": data, **columns, **more}


def regression_task(name: str, *, num_rows: int = 40, **more: Any) -> dict[str, Any]:
    """Return a task whose target is half the number of words."""
    rows = [
        {"text": row["text"], "label": 0.5 * len(row["text"].split())}
        for row in classification_rows(name, num_rows + 32)
    ]
    data = {"train": rows[:num_rows], "validation": rows[num_rows:-16], "test": rows[-16:]}
    return {"name": name, "kind": "regression", "data": data, **more}


def stream(backbone: Path, /, tasks: Sequence[dict[str, Any]], **more: Any) -> TaskStream:
    """Return a stream on a tiny backbone; ``training`` overrides defaults for short training."""
    training = TRAINING | more.pop("training", {})
    spec = {
        "name": "tiny",
        "seed": 3,
        "backbone": {"name": str(backbone), "pooling": "mean"},
        "bank": {"preset": "houlsby", "bottleneck": 4},
    }
    return TaskStream(StreamSpec.model_validate({**spec, "training": training, "tasks": list(tasks), **more}))


def row_of_kind(kind: str, draw: random.Random) -> dict[str, Any]:
    """Return a row whose answer is determined by single words of its input, or by the brightness of its image."""
    words = draw.choices(WORDS[10:40], k=draw.randint(2, 5))
    match kind:
        case "multilabel":
            return {"text": " ".join(words), "label": sorted({("x", "y", "z")[int(word[1:]) % 3] for word in words})}
        case "token-classification":
            return {"tokens": words, "tags": [("O", "B-P", "I-P")[int(word[1:]) % 3] for word in words]}
        case "seq2seq" | "causal-lm":
            return {"source": " ".join(words), "target": f"{words[0]} {words[-1]}"}
        case "image-classification":
            label = draw.randrange(2)
            light = [[[draw.randrange(100) + 150 * label] * 3 for _ in range(6)] for _ in range(6)]
            return {"image": light, "label": ("dark", "light")[label]}
        case "multiple-choice":
            options = [f"{draw.choice(WORDS[40:60])} {word}" for word in dict.fromkeys(words)]
            place = draw.randrange(len(options) + 1)
            options.insert(place, draw.choice(WORDS[:5]))
            return {"source": " ".join(words), "options": options, "label": place}
        case "question-answering":
            context = [*words, draw.choice(WORDS[:5]), draw.choice(WORDS[60:64]), *draw.choices(WORDS[10:40], k=3)]
            text = " ".join(context[len(words) : len(words) + 2])
            answers = {"text": [text], "answer_start": [len(" ".join(words)) + 1]}
            return {"question": words[0], "context": " ".join(context), "answers": answers}
    raise AssertionError(kind)


def task_of_kind(kind: str, name: str | None = None, *, num_rows: int = 32, **more: Any) -> dict[str, Any]:
    """Return a task of the given kind with its rows."""
    name = name or kind
    if kind == "classification":
        return task(name, num_rows=num_rows, **more)
    if kind == "regression":
        return regression_task(name, num_rows=num_rows, **more)
    draw = random.Random(name)
    rows = [row_of_kind(kind, draw) for _ in range(num_rows + 24)]
    data = {"train": rows[:num_rows], "validation": rows[num_rows:-12], "test": rows[-12:]}
    generation = {"generation": {"max_new_tokens": 4}} if kind in {"seq2seq", "causal-lm"} else {}
    return {"name": name, "kind": kind, "data": data, **generation, **more}


def with_columns(task: dict[str, Any], **names: str) -> dict[str, Any]:
    """Return the task with columns renamed in its data, and the new names in ``columns``."""
    data = {
        split: [{names.get(key, key): value for key, value in row.items()} for row in rows]
        for split, rows in task["data"].items()
    }
    return task | {"data": data, "columns": task.get("columns", {}) | names}


def generating_stream(backbone: Path, generation: dict[str, Any], **more: Any) -> TaskStream:
    """Return a stream for a decoder: two tasks that generate texts, one with beam search, and a classification task."""
    tasks = [
        task_of_kind("causal-lm", "texts", generation=generation),
        task_of_kind("causal-lm", "beams", generation={"num_beams": 2, "max_new_tokens": 4}),
        task("labels", num_rows=16),
    ]
    return stream(backbone, tasks, **more)
