"""Gradient checkpointing does not change the learned bank; the certificate records the setting."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import learn
from tests.desk import bank_digests
from tests.streams_in_code import stream, task, task_of_kind
from tests.usual import few

Folder = Callable[..., Path]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("bert", task("one", num_rows=16, training={"backbone_dropout": True})),
    ("bert", task("one", num_rows=16, bank={"preset": "mam", "bottleneck": 4, "length": 2, "hidden": 4})),
    ("gpt2", task_of_kind("causal-lm", "one")),
    ("t5", task_of_kind("seq2seq", "one")),
    ("bert", task("one", num_rows=16, bank={"preset": "lora", "layers": "top-1"}, training={"prefix_cache": "on"})),
]


@pytest.mark.parametrize(("family", "case"), few(CASES, 3))
def test_bank_is_the_same_and_the_certificate_records_the_setting(
    backbone_folder: Folder, tmp_path: Path, family: str, case: dict[str, Any]
) -> None:
    digests = []
    for on in (False, True):
        training = {"epochs": 1, "gradient_checkpointing": on}
        run = learn(stream(backbone_folder(family), [case], training=training), tmp_path / str(on))
        digests.append(bank_digests(run))
        assert all(check.ok for check in run.verify())
        (certificate,) = (tmp_path / str(on)).glob("banks/one/bank.json")
        written = json.loads(certificate.read_text())["training"]
        assert written.get("gradient_checkpointing", "left out") == (True if on else "left out")
    assert digests[0] == digests[1]
