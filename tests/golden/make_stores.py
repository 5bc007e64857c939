"""Makes the golden stores: runs as the release before 1.0 wrote them, which every later release reads, checks and continues.

They were made once, with

    python -m tests.golden.make_stores /golden && cp -r /golden/* tests/golden/stores/

and are never made again to let a test pass: what is in them is a promise. Names of files and words of messages may change;
banks, certificates and answers may not. Backbones are tiny and random, and rows are words that mean nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from continual_petl import Run, learn
from continual_petl.cli.main import main as command
from continual_petl.errors import Interrupted
from tests.engine.test_resume import SignalAt
from tests.store.golden_rows import SPECS, answers_of, half_learned, stream_of
from tests.tiny import PREPROCESSOR, make_model, make_tokenizer


def make(folder: Path) -> None:
    """Write backbones, runs, and the answers of every bank to some rows."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.chdir(folder)  # backbone paths are relative to this folder, wherever it is copied
    for family in sorted({family for family, _ in SPECS.values()}):
        backbone = Path("backbones", family)
        make_model(family).save_pretrained(backbone)
        if family == "vit":
            (backbone / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR), encoding="utf-8")
        else:
            make_tokenizer(family).save_pretrained(backbone)
    for name in SPECS:
        learn(stream_of(name), Path("written", name))
    learn(stream_of("encoder", epochs=1), Path("written", "encoder"), replace=["pairs"])
    assert command(["forget", "written/encoder", "dropped", "--yes"]) == 0
    with suppress(Interrupted):
        learn(half_learned(), Path("written", "half"), callbacks=[SignalAt(5)])
    answers: dict[str, Any] = {}
    for name in [*SPECS, "half"]:
        run = Run(Path("written", name))
        answers[name] = {
            "digests": {task: run.store.certificate(task).digest for task in run.store.tasks},
            "R": run.results.to_json()["R"],
            "answers": {task: answers_of(run, task) for task in run.store.tasks},
        }
    shutil.copytree("written/half", "finished")
    whole = learn(half_learned(), Path("finished"))
    answers["half"]["finished"] = whole.store.certificate("second").digest
    shutil.rmtree("finished")
    for stray in [*Path("written").glob("*/.lock"), *Path("written").glob("*/logs")]:
        shutil.rmtree(stray) if stray.is_dir() else stray.unlink()
    Path("answers.json").write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    torch.set_num_threads(1)
    make(Path(sys.argv[1]).absolute())
