"""A few rows of every task kind over the vocabulary of the tiny tokenizer."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from transformers import ViTConfig

from continual_petl.streams.encoding.image_processing import ImageProcessing, image_processing

CONFIG = ViTConfig(image_size=4)


def images() -> ImageProcessing:
    """Return the image processing of a backbone that takes images of 4 by 4 pixels and has no preprocessor file."""
    return image_processing(str(Path(__file__).parent), None, CONFIG)


def row_of(kind: str, draw: random.Random) -> dict[str, Any]:
    """Return a random row for a task of the given kind."""

    def words(most: int) -> list[str]:
        return [f"w{draw.randrange(40)}" for _ in range(draw.randint(1, most))]

    match kind:
        case "classification":
            return {"text": " ".join(words(6)), "label": draw.choice("ab")}
        case "regression":
            return {"text": " ".join(words(6)), "label": draw.random()}
        case "multilabel":
            return {"text": " ".join(words(6)), "label": draw.sample(["x", "y", "z"], draw.randrange(4))}
        case "token-classification":
            tokens = words(6)
            return {"tokens": tokens, "tags": [draw.choice(["O", "B-P", "I-P"]) for _ in tokens]}
        case "seq2seq" | "causal-lm":
            return {"source": " ".join(words(6)), "target": " ".join(words(4))}
        case "image-classification":
            image = [[draw.randrange(256) for _ in range(3)] for _ in range(3)]
            return {"image": image, "label": draw.choice("ab")}
        case "multiple-choice":
            options = [*dict.fromkeys(words(4)), "w41 w42"]
            return {"source": " ".join(words(6)), "options": options, "label": draw.choice(options)}
        case "question-answering":
            context = words(6)
            place = draw.randrange(len(context))
            start = len(" ".join([*context[:place], ""]))
            answers = {"text": [context[place]], "answer_start": [start]}
            return {"question": " ".join(words(4)), "context": " ".join(context), "answers": answers}
    raise ValueError(kind)


FIRST: dict[str, list[dict[str, Any]]] = {
    "classification": [{"text": "w1", "label": "a"}, {"text": "w2 w3", "label": "b"}],
    "regression": [{"text": "w1", "label": 0.5}, {"text": "w2 w3", "label": 1}],
    "multilabel": [{"text": "w1", "label": ["x", "y", "z"]}, {"text": "w2 w3", "label": []}],
    "token-classification": [{"tokens": ["w1", "w2", "w3"], "tags": ["O", "B-P", "I-P"]}],
    "seq2seq": [{"source": "w1 w2", "target": "w3"}],
    "causal-lm": [{"source": "w1 w2", "target": "w3"}],
    "question-answering": [
        {"question": "w1", "context": "w2 w3", "answers": {"text": ["w3"], "answer_start": [3]}},
    ],
    "multiple-choice": [{"source": "w1 w2", "options": ["w3", "w4 w5"], "label": "w3"}],
    "image-classification": [{"image": [[0, 1], [2, 3]], "label": "a"}, {"image": [[9, 9], [9, 9]], "label": "b"}],
}
"""For each kind, rows that together have every label."""


def rows_of(kind: str, num_rows: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return ``num_rows`` rows, starting with those of `FIRST`."""
    draw = random.Random(f"{kind} {seed}")
    return (FIRST[kind] + [row_of(kind, draw) for _ in range(num_rows)])[:num_rows]
