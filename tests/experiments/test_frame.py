"""The framework of the benchmarks: turns, results, options, workers. Nothing is timed."""

from __future__ import annotations

import doctest
import importlib
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from continual_petl.errors import InputError
from experiments.benchmarks import alternate as turns
from experiments.benchmarks import markdown, options
from experiments.benchmarks.alternate import Candidate, alternate, medians
from experiments.benchmarks.bench import TABLES, render
from experiments.benchmarks.environments import constraints, make_environments
from experiments.benchmarks.machine import Machine
from experiments.benchmarks.peers.client import Peer, PeerError
from experiments.benchmarks.peers.scouting import Trial, fastest, finalists, settings_of
from experiments.benchmarks.peers.serve import answer_all
from experiments.benchmarks.peers.setting import Setting, from_request
from experiments.benchmarks.result import Result, read_result

RESULTS = Path(__file__).parents[2] / "experiments" / "benchmarks" / "results"
SETTING = Setting(folder="folder", method="lora", layers=(1, 2))
MACHINE = Machine(
    processor="a CPU", units=("avx2",), cores=2, threads=2, memory=2**34, system="Linux", device="cpu",
    load_before=(0.1, 0.2, 0.3),
)  # fmt: skip


def _result(samples: dict[str, list[float]], facts: dict[str, object], table: str = "inference") -> Result:
    return Result(
        table=table,
        command="python -m experiments.benchmarks inference",
        commit="0" * 40,
        changed=False,
        began="2026-01-01 00:00",
        machine=MACHINE,
        versions={"ours": {"torch": "2.13.0"}},
        settings=options.parse([table, "--quick"], TABLES).settings(),
        unit="seconds",
        samples=samples,
        medians=medians(samples),
        facts=facts,
    )


def _inference(bank: float) -> Result:
    candidates = {
        "ours, bare": {"setting": "fp32", "bare": None},
        "ours, lora": {"setting": "fp32", "bare": "ours, bare"},
    }
    return _result({"ours, bare": [1.0, 1.0, 3.0], "ours, lora": [bank] * 3}, {"candidates": candidates})


def test_candidates_take_turns_and_the_warm_up_is_dropped() -> None:
    log: list[str] = []

    def block(name: str) -> float:
        log.append(name)
        return float(len(log))

    samples = alternate([Candidate(n, lambda n=n: block(n)) for n in "abc"], repetitions=2, warmup=1)  # type: ignore[misc]
    assert "".join(log) == "abcabcabc"
    assert samples == {"a": [4.0, 7.0], "b": [5.0, 8.0], "c": [6.0, 9.0]}


def test_samples_so_far_are_kept_after_every_round() -> None:
    kept: list[dict[str, list[float]]] = []
    values = iter((9.0, 1.0, 2.0))
    one = Candidate("one", lambda: next(values))
    alternate([one], repetitions=2, warmup=1, keep=lambda samples: kept.append({"one": list(samples["one"])}))
    assert kept == [{"one": []}, {"one": [1.0]}, {"one": [1.0, 2.0]}]


def test_two_candidates_of_one_name_are_refused() -> None:
    one = Candidate("one", lambda: 1.0)
    with pytest.raises(InputError, match="two candidates have the same name: one, one"):
        alternate([one, one], repetitions=1, warmup=0)


def test_measuring_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="0 candidates"):
        alternate([], repetitions=5, warmup=0)


def test_a_median_of_fewer_than_five_needs_quick() -> None:
    with pytest.raises(InputError, match="--repetitions: got 4; medians need at least 5"):
        options.parse(["step", "--repetitions", "4"], TABLES)
    assert options.parse(["step", "--repetitions", "4", "--quick"], TABLES).repetitions == 4


@pytest.mark.parametrize("size", ["32", "32x", "0x4", "axb", "-1x4"])
def test_invalid_batch_size_is_refused(size: str) -> None:
    with pytest.raises(InputError, match="it must be rows x tokens"):
        options.parse(["step", f"--batch={size}"], TABLES)


def test_processor_seconds_are_for_one_thread() -> None:
    with pytest.raises(InputError, match="use it with --threads 1 --device cpu"):
        options.parse(["step", "--clock", "cpu", "--threads", "2"], TABLES)
    assert options.parse(["step", "--clock", "cpu", "--threads", "1"], TABLES).clock == "cpu"


def test_an_unknown_peer_is_refused() -> None:
    with pytest.raises(InputError, match="got nobody; give a comma-separated list from peft, adapters"):
        options.parse(["step", "--peers", "peft,nobody"], TABLES)


def test_the_command_is_kept_without_paths() -> None:
    given = ["step", "--out", "/a/b", "--peft-python=/c/python", "--batch", "8x16", "--peers", ""]
    command = options.parse(given, TABLES).command
    assert command == (
        "python -m experiments.benchmarks step --out FOLDER --peft-python=PYTHON --batch 8x16 --peers ''"
    )


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    result = _inference(1.01)
    file, shown = result.write(tmp_path, render(result))
    assert read_result(file) == result
    assert shown.read_text() == render(read_result(file))


def test_medians_that_are_not_those_of_the_samples_are_refused(tmp_path: Path) -> None:
    file, _ = _inference(1.01).write(tmp_path, "")
    changed = json.loads(file.read_text())
    changed["medians"]["ours, lora"] = 0.5
    file.write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="its medians do not match its samples"):
        read_result(file)


def test_every_committed_table_is_made_from_its_raw_numbers() -> None:
    for file in RESULTS.glob("*.json"):
        assert render(read_result(file)) == file.with_suffix(".md").read_text(encoding="utf-8"), file.name


def test_a_table_says_whether_its_target_was_met() -> None:
    assert "0.5 % slower than the bare backbone; the target is at most 4.0 %: met" in render(_inference(1.005))
    assert "50.0 % slower than the bare backbone; the target is at most 4.0 %: missed" in render(_inference(1.5))


def test_worker_reports_errors_and_continues() -> None:
    def broken() -> None:
        raise RuntimeError("out of order")

    asked = io.StringIO('{"do": "broken"}\n{"do": "nothing"}\nno json\n{"do": "double", "value": 2}\n')
    answers = io.StringIO()
    answer_all(asked, answers, {"broken": broken, "double": lambda value: 2 * value})
    told = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert told[0]["error"] == "RuntimeError: out of order"
    assert "there is no command 'nothing'; the commands are broken, double" in told[1]["error"]
    assert "JSONDecodeError" in told[2]["error"]
    assert told[3] == {"answer": 4}


def test_setting_roundtrips_to_a_worker() -> None:
    assert from_request(json.loads(json.dumps(SETTING.request()))) == SETTING


def test_missing_environment_error_says_how_to_create_it(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"there is no Python at .*experiments.benchmarks environments"):
        Peer("peft", str(tmp_path / "python"), "with_peft", threads=1)


def test_dead_worker_error_has_its_last_output() -> None:
    with pytest.raises(PeerError, match=r"peer 'peft' ended during 'begin': .*no_such_worker"):
        Peer("peft", sys.executable, "no_such_worker", threads=1)


def test_a_worker_that_takes_too_long_is_ended() -> None:
    with pytest.raises(PeerError, match="peer 'slow': 'begin' took longer than 0 s and was stopped"):
        Peer("slow", sys.executable, "plain", threads=1, patience=0.0)


def test_peers_run_on_our_torch_and_peft_on_our_transformers() -> None:
    ours = _pinned(options.ROOT / "constraints.txt")
    for peer in options.PEERS:
        theirs = _pinned(constraints(peer))
        same = theirs.keys() & ours.keys() if peer == "peft" else {"torch", "numpy"}
        assert {name: theirs[name] for name in same} == {name: ours[name] for name in same}
        assert peer in theirs


def _pinned(file: Path) -> dict[str, str]:
    lines = (line for line in file.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#"))
    return {name: version for name, _, version in (line.partition("==") for line in lines)}


def test_unknown_environment_is_refused() -> None:
    with pytest.raises(InputError, match="environments: got 'nobody'; it must be one of peft, adapters"):
        make_environments(["nobody"])


def test_finalists_are_the_defaults_and_near_fastest_settings() -> None:
    settings = settings_of(SETTING, ratio=1.0, quick=False)
    assert len(settings) == 7
    times = [9.0, 1.1, 1.0, 1.2, None, 5.0, 1.15]
    trials = [Trial(setting, time) for setting, time in zip(settings, times, strict=True)]
    assert finalists(trials) == [settings[0], settings[1], settings[2], settings[6]]
    assert fastest(trials) == settings[2]


def test_settings_tried_on_a_gpu() -> None:
    settings = settings_of(replace(SETTING, device="cuda"), ratio=1.0, quick=False)
    assert [(setting.precision, setting.execution) for setting in settings] == [
        ("fp32", "eager"),
        ("bf16", "eager"),
        ("bf16", "compiled"),
        ("bf16", "graph"),
    ]


def test_bf16_is_not_tried_where_it_is_emulated() -> None:
    assert {s.precision for s in settings_of(SETTING, ratio=100.0, quick=False)} == {"fp32"}


def test_peer_without_a_working_setting_is_reported() -> None:
    with pytest.raises(PeerError, match="no setting worked: out of memory"):
        finalists([Trial(SETTING, None, "out of memory")])


@pytest.mark.parametrize("name", ["alternate", "markdown", "tables.growth", "tables.mixed", "tables.breakdown"])
def test_doctests_pass(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"experiments.benchmarks.{name}")).failed == 0


def test_spread_of_constant_samples_is_zero() -> None:
    assert turns.spread([2.0, 2.0, 2.0]) == 0.0
    assert markdown.number(1e-9, 2) == "0"
