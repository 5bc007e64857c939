"""What must not change when the code is rearranged: banks, certificates' probes, data, scores and answers, bit for bit.

    python -m tests.same_bits --print                 # the digests of this checkout, as JSON
    python -m tests.same_bits --against COMMIT        # compares them with those of a commit, computed here and now
    python -m tests.same_bits --write                 # renews tests/golden/same_bits.json, if a commit says why

Bits depend on processor and libraries, so a comparison with a commit computes both sides in the same environment. The
committed file holds the digests of one environment; in another, only what does not depend on rounding is compared
(`test_same_bits.py`): the data, and the names and shapes of what is stored.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from continual_petl import Run, learn
from continual_petl.banks.config.presets import PRESETS
from continual_petl.errors import Interrupted
from continual_petl.kind_registry import kind_names
from continual_petl.store.certificate.environment import current_environment
from tests.banks.taken import refusal
from tests.engine.test_resume import SignalAt
from tests.small import small
from tests.streams_in_code import classification_rows, stream, task, task_of_kind
from tests.tiny import PREPROCESSOR, make_model, make_tokenizer

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "golden" / "same_bits.json"
FAMILIES = ("bert", "gpt2", "bart")
KINDS = {
    "bert": (
        *("classification", "regression", "multilabel", "token-classification"),
        *("multiple-choice", "question-answering"),
    ),
    "gpt2": ("causal-lm", "regression", "token-classification"),
    "bart": ("seq2seq", "multilabel", "token-classification"),
    "vit": ("image-classification",),
}
TEXTS = [row["text"] for row in classification_rows("same bits", 5)]

Found = dict[str, Any]


def compute(folder: Path) -> dict[str, Found]:
    """Learn everything in an empty folder, and return what is compared, by run and task."""
    os.chdir(folder)  # backbone paths are relative to it
    for family in KINDS:
        path = Path("backbones", family)
        make_model(family).save_pretrained(path)
        if family == "vit":
            (path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR), encoding="utf-8")
        else:
            make_tokenizer(family).save_pretrained(path)
    found: dict[str, Found] = {}
    for family in FAMILIES:
        tasks = [task(each, num_rows=16, bank=small(each)) for each in PRESETS if refusal(family, each) is None]
        found |= _learned(f"presets {family}", family, tasks, epochs=1)
    for family, kinds in KINDS.items():
        tasks = [task_of_kind(kind, num_rows=16) for kind in kinds if kind in kind_names()]
        if family == "bert":
            tasks.append(task("pairs", num_rows=16, pairs=True))
        found |= _learned(f"kinds {family}", family, tasks, accumulate=2)
    found |= _again()
    return found


def _learned(name: str, family: str, tasks: list[dict[str, Any]], **training: Any) -> dict[str, Found]:
    run = learn(_stream(family, tasks, **training), Path(name))
    return _read(name, run)


def _stream(family: str, tasks: list[dict[str, Any]], **training: Any) -> Any:
    pooling = {} if family == "vit" else {"pooling": "mean"}
    return stream(
        Path("backbones", family), tasks, backbone={"name": f"backbones/{family}", **pooling}, training=training
    )


def _again() -> dict[str, Found]:
    """Stop and resume a task, and replace another one."""
    tasks = [task("first", num_rows=16), task("resumed", num_rows=24, bank=small("lora"))]
    with suppress(Interrupted):
        learn(_stream("bert", tasks), Path("again"), callbacks=[SignalAt(4)])
    learn(_stream("bert", tasks), Path("again"))
    return _read("again", learn(_stream("bert", tasks, epochs=3), Path("again"), replace=["first"]))


def _read(name: str, run: Run) -> dict[str, Found]:
    """Return what a run has stored, and what it answers: for each task alone, and for texts of several tasks at once."""
    found: dict[str, Found] = {}
    texts: list[str] = []
    for each in run.store.tasks:
        certificate = run.store.certificate(each)
        bank = run.store.bank_folder(each)
        found[f"{name}: {each}"] = {
            "bank": _digest((bank / "bank.safetensors").read_bytes()),
            "probe": _digest((bank / "probe.safetensors").read_bytes()),
            "tensors": _digest(
                json.dumps([(key, tensor.shape) for key, tensor in certificate.tensors.items()]).encode()
            ),
            "data": dict(certificate.data),
            "scores": {split: dict(scores.scores) for split, scores in certificate.scores.items()},
        }
        if certificate.kind != "image-classification" and not certificate.pair and certificate.options_from != "row":
            found[f"{name}: {each}"]["answers"] = _answers(run, TEXTS, [each] * len(TEXTS))
            texts.append(each)
    if len(texts) > 1:
        found[f"{name}: mixed batch"] = {"answers": _answers(run, TEXTS[:1] * len(texts), texts)}
    return found


def _answers(run: Run, rows: list[str], tasks: list[str]) -> str:
    found = run.predict(rows, task=tasks)
    values = [[answer.value, answer.probabilities and dict(answer.probabilities)] for answer in found]
    return _digest(json.dumps(values).encode())


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def environment() -> dict[str, str]:
    """Return what determines the bits here."""
    made = current_environment(torch.device("cpu"), "fp32", "sdpa").model_dump(mode="json")
    return {key: str(made[key]) for key in made if key not in ("python", "continual_petl")}


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Yield a folder with the files of a commit, and this file."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "checkout"
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--detach", folder, commit], check=True)
        try:
            shutil.copy(__file__, folder / "tests" / "same_bits.py")
            yield folder
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", folder], check=True)


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Return where two values differ, with both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted({*one, *other})
        return [line for key in keys for line in differences(one.get(key), other.get(key), f"{path}/{key}")]
    return [] if one == other else [f"{path}: {str(one)[:80]} and {str(other)[:80]}"]


def printed(folder: Path) -> Any:
    """Return the digests of a checkout, computed in a process of its own."""
    variables = os.environ | {"PYTHONPATH": str(folder), "CONTINUAL_PETL_CACHE": "off", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.same_bits", "--print"]
    done = subprocess.run(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(arguments: list[str]) -> int:
    """Run one of the three commands; return 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.same_bits", description=__doc__)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--print", action="store_true")
    group.add_argument("--write", action="store_true")
    group.add_argument("--against", metavar="COMMIT")
    given = parser.parse_args(arguments)
    if given.print:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as scratch:
            found = compute(Path(scratch))
            os.chdir(ROOT)
        print("\n" + json.dumps(found))
        return 0
    here = printed(ROOT)
    if given.write:
        FILE.write_text(json.dumps({"environment": environment(), "found": here}, indent=1) + "\n", encoding="utf-8")
        return 0
    with checkout(given.against) as folder:
        there = printed(folder)
    new = here.keys() - there.keys()
    lines = differences(there, {name: entry for name, entry in here.items() if name not in new})
    print(
        "\n".join(lines) or f"the same in all {len(there)} entries", *(f"new: {name}" for name in sorted(new)), sep="\n"
    )
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
