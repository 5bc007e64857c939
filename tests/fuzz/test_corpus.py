"""Past findings stay fixed, and the harness detects what it is meant to detect."""

from __future__ import annotations

import mmap
import resource
import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import run
from tests.fuzz.mutation import mutate, noise
from tests.fuzz.target import Target, attempt, corpus
from tests.fuzz.targets import TARGETS

KEPT = [(name, path) for name in TARGETS for path in corpus(name)]


def seeds() -> list[bytes]:
    return [b"key: value\n"]


@pytest.mark.parametrize(("name", "path"), KEPT, ids=[f"{name}-{path.stem}" for name, path in KEPT])
def test_past_findings_stay_fixed(name: str, path: Path) -> None:
    finding = attempt(TARGETS[name], path.read_bytes())
    assert finding is None, finding.what


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_has_a_corpus_and_valid_seeds(name: str) -> None:
    assert corpus(name)
    for seed in TARGETS[name].make_seeds()[::4]:  # the slow test below tries all of them
        assert attempt(TARGETS[name], seed) is None


def check_one(name: str, draw: Random) -> None:
    target = TARGETS[name]
    made = target.generate(draw) if target.generate and draw.random() < 0.6 else draw.choice(target.seeds)
    data = noise(draw) if draw.random() < 0.1 else mutate(made, target.seeds, target.tokens, draw)
    finding = attempt(target, data)
    assert finding is None, finding


HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


@settings(max_examples=200, deadline=None, derandomize=True, database=None, suppress_health_check=HEALTH)
@given(st.sampled_from(sorted(TARGETS)), st.integers(0, 2**32))
def test_any_input_is_accepted_or_refused(name: str, seed: int) -> None:
    check_one(name, Random(seed))


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, derandomize=True, database=None, suppress_health_check=HEALTH)
@given(st.sampled_from(sorted(TARGETS)), st.randoms(use_true_random=False))
def test_any_grammar_input_is_accepted_or_refused(name: str, draw: Random) -> None:
    check_one(name, draw)  # Hypothesis makes every draw, so it can look for small examples


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_any_input_is_accepted_or_refused_many_examples(name: str, tmp_path: Path) -> None:
    assert run.main([name, "--count", "1000", "--seed", "7", "--found", str(tmp_path)]) == 0


def test_same_seed_gives_the_same_inputs() -> None:
    made = [list(run.inputs(TARGETS["labels"], 80, Random(seed))) for seed in (1, 1, 2)]
    assert made[0] == made[1]
    assert made[0] != made[2]


def raises(data: bytes) -> None:
    if b"x" in data:
        raise KeyError("x")


def test_unexpected_error_is_found_and_minimised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = Target("raises", raises, (ValueError,), seeds, seeds)
    finding = attempt(target, b"key: x" + b"y" * 100)
    assert finding is not None
    assert finding.what.startswith("KeyError: test_corpus.py:raises")
    assert run.shrink(target, finding).data == b"x"
    monkeypatch.setitem(TARGETS, "raises", target)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "input").write_bytes(b"xyz")
    argv = ["raises", "--count", "20", "--corpus", str(tmp_path / "more"), "--found", str(tmp_path / "found")]
    assert run.main(argv) == 1
    assert '"inputs": 20' in capsys.readouterr().out
    assert [path.read_bytes() for path in (tmp_path / "found").iterdir()] == [b"x"]


def test_limit_on_memory_leaves_out_what_the_process_used_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def allocate(data: bytes) -> None:
        bytearray(2**28)

    monkeypatch.setattr(run, "_MEMORY", 2**29)
    monkeypatch.setitem(TARGETS, "allocates", Target("allocates", allocate, (), seeds, seeds))
    with mmap.mmap(-1, 2**30):
        assert run.main(["allocates", "--count", "1"]) == 0
    monkeypatch.setattr(run, "_MEMORY", 2**27)
    assert run.main(["allocates", "--count", "1"]) == 1


def test_expected_error_is_not_a_finding() -> None:
    assert attempt(Target("raises", raises, (KeyError,), seeds, seeds), b"x") is None


def test_slow_input_is_found() -> None:
    def spin(data: bytes) -> None:
        until = time.process_time() + len(data) / 100
        while time.process_time() < until:
            pass

    target = Target("spins", spin, (ValueError,), seeds, seeds)
    slow, hung = (attempt(target, b"x" * size, max_seconds=seconds) for size, seconds in ((10, 0.05), (10**4, 0.05)))
    assert slow is not None
    assert slow.what.startswith("took ")
    assert hung is not None
    assert hung.what == "still going on after 0.15 s"


def test_memory_hungry_input_is_found() -> None:
    def grow(data: bytes) -> None:
        # The peak never falls, so allocate up to it, and then 64 MiB more.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        now = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
        held.append(bytearray(b"x") * (max(peak - now, 0) + 64 * 2**20))

    held: list[bytearray] = []
    target = Target("grows", grow, (ValueError,), seeds, seeds)
    finding = attempt(target, b"x", max_bytes=2**20)
    assert finding is not None
    assert finding.what.endswith("MiB")
