"""Runs written by an earlier release can be verified, resumed and extended, and give the same answers.

They are in tests/golden/stores; `tests.store.golden_rows` contains the data that they were learned from. The answers are
equal bit for bit if torch, the processor and the number of threads are those in the certificate; otherwise `verify` and these
tests allow for rounding.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from continual_petl import Run, learn
from continual_petl.store.certificate.environment import current_environment
from tests.store.golden_rows import SPECS, answers_of, half_learned, stream_of
from tests.streams_in_code import task_of_kind

STORES = Path(__file__).parent.parent / "golden" / "stores"
EXPECTED: dict[str, Any] = json.loads((STORES / "answers.json").read_text("utf-8"))
NEW = {"encoder": "classification", "decoder": "causal-lm", "writer": "seq2seq"}
CLOSE = 1e-4
"""Tolerance for probabilities and numbers in another environment, where sums are taken in another order."""


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the golden stores, which becomes the working directory."""
    monkeypatch.chdir(shutil.copytree(STORES, tmp_path / "stores"))
    return tmp_path / "stores"


def same_environment(run: Run) -> bool:
    """Return whether a run's answers must be equal bit for bit in this environment."""
    certified = run.store.certificate(run.store.tasks[0]).environment
    here = current_environment(torch.device("cpu"), certified.precision, certified.attention)
    return not certified.differences(here)


def check_unchanged(run: Run, name: str) -> None:
    """Check that certificates, banks, scores and answers are those in answers.json."""
    expected, same = EXPECTED[name], same_environment(run)
    for check in run.verify(data=True):
        assert check.ok, check.problems
        assert not same or check.how.startswith("digests and probe, bit for bit"), check
    for task, digest in expected["digests"].items():
        assert run.store.certificate(task).digest == digest
        for found, answer in zip(answers_of(run, task), expected["answers"][task], strict=True):
            if same:
                assert found == answer
            elif isinstance(answer["value"], float):
                assert found["value"] == pytest.approx(answer["value"], abs=CLOSE)
            else:
                assert found["value"] == answer["value"]
                assert found["probabilities"] == pytest.approx(answer["probabilities"], abs=CLOSE)
    R = run.results.to_json()["R"]
    assert [row[: len(expected["R"])] for row in R[: len(expected["R"])]] == expected["R"]


OLD = ("results.jsonl", "tombstones")
"""What run folders had before there were ledgers; what it says is in the ledger that the next command writes."""


def files_of(run: Path) -> dict[str, bytes]:
    """Return the files that no later command may change: banks, certificates, and those that a ledger replaces."""
    files = [run / OLD[0], *(run / "banks").rglob("*"), *(run / OLD[1]).rglob("*")]
    return {str(file): file.read_bytes() for file in files if file.is_file()}


@pytest.mark.parametrize("name", SPECS)
def test_golden_run_gives_the_same_answers(stores: Path, name: str) -> None:
    before = files_of(stores / "written" / name)
    check_unchanged(Run(Path("written", name)), name)
    assert files_of(stores / "written" / name) == before
    assert not (stores / "written" / name / "ledger.jsonl").exists(), "reading must not write"


@pytest.mark.parametrize("name", NEW)
def test_golden_run_can_learn_a_task(stores: Path, name: str) -> None:
    before = files_of(stores / "written" / name)
    more = [task_of_kind(NEW[name], "new", num_rows=16, bank={"preset": "lora", "rank": 2})]
    run = learn(stream_of(name, more=more, epochs=1), Path("written", name))
    assert run.store.tasks[-1] == "new"
    check_unchanged(run, name)
    assert before.items() <= files_of(stores / "written" / name).items()
    # From now on, the ledger says everything, and the old files are not needed.
    chain, results = run.store.chain(), run.store.results()
    (stores / "written" / name / OLD[0]).unlink()
    shutil.rmtree(stores / "written" / name / OLD[1], ignore_errors=True)
    again = Run(Path("written", name))
    assert (again.store.chain(), again.store.results()) == (chain, results)
    check_unchanged(again, name)


def test_golden_unfinished_task_resumes_to_the_same_bank(stores: Path) -> None:
    assert (stores / "written" / "half" / ".progress").is_dir()
    run = learn(half_learned(), Path("written", "half"))
    check_unchanged(run, "half")
    if same_environment(run):
        assert run.store.certificate("second").digest == EXPECTED["half"]["finished"]


def test_golden_chain_has_a_dropped_and_a_replaced_task(stores: Path) -> None:
    run = Run(stores / "written" / "encoder")
    dropped = {tombstone.task for tombstone in run.store.tombstones()}
    assert dropped == {"dropped", "pairs"}
    assert "pairs" in run.store.tasks
    assert "dropped" not in run.store.tasks
