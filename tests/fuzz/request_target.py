"""The body of a prediction request as a fuzz target: it is refused with a reason, or every row has a valid form."""

from __future__ import annotations

import json
from functools import cache

from pydantic import ValidationError

from continual_petl.serve.catalog import Catalog
from continual_petl.serve.problems import Problem
from continual_petl.serve.request_rows import PredictRequest, asked_of
from continual_petl.serve.settings import ServeSettings
from tests.fuzz.dictionary import json_tokens
from tests.fuzz.target import Target
from tests.house import ROOT

_SETTINGS = ServeSettings(max_rows=50, max_characters=500, max_waiting=50)
_TEXTS = (
    {"inputs": ["w1 w2", {"text": "w3"}], "task": "TEXT"},
    {"inputs": "w1", "reject": "never", "candidates": 3},
)
_OTHERS = (
    {
        "inputs": [
            ["w1", "w2"],
            {"text": "w1", "text_pair": "w2"},
            {"tokens": ["w1"]},
            {"source": "w1"},
            {"image": "aGk="},
        ]
    },
    {"inputs": ["w1", ["w2", "w3"]], "task": [None, "TEXT"]},
)


@cache
def _catalogs() -> tuple[Catalog, ...]:
    return tuple(Catalog(ROOT / "tests" / "golden" / "stores" / "written" / name) for name in ("encoder", "images"))


def _check(data: bytes) -> None:
    """Read a request; check that each accepted row is text, a pair, a list of words, or image bytes, but never a path."""
    failures: list[Problem] = []
    request = PredictRequest.model_validate_json(data)
    for catalog in _catalogs():
        try:
            asked = asked_of(request, catalog, _SETTINGS)
        except Problem as problem:
            failures.append(problem)
            continue
        assert 0 < len(asked.rows) == len(asked.tasks) <= _SETTINGS.max_rows
        for row, task in zip(asked.rows, asked.tasks, strict=True):
            if task is not None and catalog.certificate(task).kind == "image-classification":
                assert isinstance(row, dict)
            if isinstance(row, dict):
                assert isinstance(row["bytes"], bytes)
            else:
                texts = [row] if isinstance(row, str) else list(row)
                assert all(isinstance(text, str) for text in texts)
                assert sum(map(len, texts)) <= _SETTINGS.max_characters
    for failure in failures:
        assert 400 <= failure.status < 500, failure
        json.dumps(failure.to_json()).encode()
    if len(failures) == len(_catalogs()):
        raise failures[0]


def _seeds() -> list[bytes]:
    tasks = [task for catalog in _catalogs() for task in catalog.seals]
    named = [json.dumps(body).replace("TEXT", task).encode() for body in (*_TEXTS, *_OTHERS) for task in tasks]
    return list(dict.fromkeys(named))


REQUEST_TARGET = Target("request", _check, (Problem, ValidationError), _seeds, json_tokens)
