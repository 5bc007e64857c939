"""The measurement of how much a row's outputs depend on its batch, on tiny tasks."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from continual_petl import Run
from continual_petl.heads.predictions import ROUNDING
from continual_petl.predictor.routes import ROUNDING as ROUTE_ROUNDING
from experiments.benchmarks.batch_rounding import measure, stream_of, writing_stream_of
from experiments.benchmarks.waiting import CHOSEN, SETTINGS, busy
from tests.docs.blocks import ROOT
from tests.streams_in_code import classification_rows


@pytest.mark.slow
def test_numbers_texts_and_options_are_compared(backbone_folder: Callable[..., Path], tmp_path: Path) -> None:
    for name in ("stsb", "xsum", "trec"):
        (tmp_path / name).mkdir()
        for split, count in (("train", 24), ("validation", 12), ("test", 12)):
            rows: list[dict[str, Any]] = classification_rows(f"{name} {split}", count, pairs=name == "stsb")
            if name == "stsb":
                rows = [row | {"label": 0.5 * len(row["text"].split())} for row in rows]
            elif name == "xsum":
                rows = [{"source": row["text"], "target": row["text"][:6]} for row in rows]
            else:
                rows = [row | {"label": int(row["label"] == "yes")} for row in rows]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (tmp_path / name / f"{split}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "trec" / "labels.json").write_text(json.dumps({"names": ["w1", "w2"]}))
    bank = {"preset": "houlsby", "bottleneck": 8}
    folders = [str(backbone_folder(family)) for family in ("bert", "bart")]
    numbers = tmp_path / "numbers"
    shutil.copytree(tmp_path / "stsb", numbers / "stsb")
    found = measure(tmp_path / "run", stream_of(numbers, folders[0], bank))
    assert 0 <= found["stsb"]["largest change in deviations"] < 0.1
    found = measure(tmp_path / "written", writing_stream_of(tmp_path, folders[1], bank))
    assert found["xsum"]["predictions"] == found["trec"]["predictions"] == 48
    for name in ("xsum", "xsum-sampled", "xsum-beams"):
        assert found[name]["other text"] == found[name]["other text, both near a tie"]
    assert found["xsum-beams"]["share of rows near a tie"] == 1
    assert found["trec"]["other label"] == found["trec"]["other label, both near a tie"]


@pytest.mark.slow
def test_rows_alone_and_in_batches_are_compared(backbone_folder: Callable[..., Path], tmp_path: Path) -> None:
    for name in ("trec", "amazon"):
        rows = classification_rows(name, 48)
        for split, part in (("train", rows[:24]), ("validation", rows[24:32]), ("test", rows[32:])):
            (tmp_path / name).mkdir(exist_ok=True)
            text = "\n".join(json.dumps(row) for row in part)
            (tmp_path / name / f"{split}.jsonl").write_text(text, encoding="utf-8")
    bank = {"preset": "houlsby", "bottleneck": 8}
    found = measure(tmp_path / "run", stream_of(tmp_path, str(backbone_folder()), bank))
    assert set(found) == {"trec", "amazon"}
    for task in found.values():
        assert task["predictions"] == 64
        assert task["other label"] == task["other label, both near a tie"]
        assert 0 <= task["largest change of a gap below 1"] <= task["largest change of the gap"] < 0.1
        # The random model gives all rows nearly the same vector: rounding in bf16 moves it as far as another row does.
        assert 0 <= task["routing"]["largest change of the share that is known"] <= 1
        assert task["routing"]["of these not marked as near ties"] == 0
    record = Run(tmp_path / "run").session.store.certificate("trec")
    assert record.environment.precision == "bf16"


def test_documented_numbers_are_those_of_the_result() -> None:
    tasks = json.loads((ROOT / "experiments/benchmarks/batch_rounding.json").read_text("utf-8"))["tasks"].values()
    text = " ".join((ROOT / "docs/explanation/bit-identity.md").read_text("utf-8").split())
    small, large = (max(task[f"largest change of {what}"] for task in tasks) for what in ("a gap below 1", "the gap"))
    share, count = max(task["share of rows near a tie"] for task in tasks), sum(task["predictions"] for task in tasks)
    assert f"changed by up to {small:.3f} if it was below 1, and by up to {large:.3f} if it was larger" in text
    assert f"no label changed in {count:,} predictions, and up to {share:.0%}".replace("%", " %") in text
    assert not any(task["other label"] for task in tasks)
    assert 2 * small <= ROUNDING["bf16"]
    routes = [task["routing"] for task in tasks]
    for name, allowed in zip(routes[0], ROUTE_ROUNDING["bf16"], strict=False):
        assert 2 * max(route[name] for route in routes) <= allowed


def test_busy_processes_end_with_the_measurement() -> None:
    assert {name for setting in SETTINGS for name in setting} == {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    with pytest.raises(KeyError), busy(1):
        raise KeyError


def test_documented_seconds_of_waiting_threads_are_those_of_the_result() -> None:
    medians = json.loads((ROOT / "experiments/benchmarks/waiting.json").read_text("utf-8"))["medians"]
    busy_medians, alone = medians["beside 2 busy processes"], medians["alone"]
    text = " ".join((ROOT / "docs/how-to/deploy.md").read_text("utf-8").split())
    slow, soon = busy_medians["GOMP_SPINCOUNT=300000"], busy_medians["GOMP_SPINCOUNT=1000"]
    assert f"a small task takes {slow:.0f} s, but {soon:.0f} s with `GOMP_SPINCOUNT=1000`" in text
    assert {round(alone[f"GOMP_SPINCOUNT={rounds}"]) for rounds in (300000, 1000)} == {15}
    assert "Alone, both take about 15 s" in text
    assert busy_medians[CHOSEN] < 1.1 * soon


def test_documented_change_of_numbers_is_that_of_the_result() -> None:
    result = json.loads((ROOT / "experiments/benchmarks/number_rounding.json").read_text("utf-8"))["numbers"]["stsb"]
    text = " ".join((ROOT / "docs/explanation/bit-identity.md").read_text("utf-8").split())
    assert f"In {result['predictions']} predictions of a similarity" in text
    assert (
        f"by up to {result['largest change']:.3f}, which is {result['largest change in deviations']:.3f} standard deviations"
        in text
    )


def test_documented_changes_of_texts_are_those_of_the_result() -> None:
    result = json.loads((ROOT / "experiments/benchmarks/text_rounding.json").read_text("utf-8"))
    text = " ".join((ROOT / "docs/explanation/bit-identity.md").read_text("utf-8").split())
    greedy, sampled, beams = (result["texts"][name] for name in ("xsum", "xsum-sampled", "xsum-beams"))
    options = result["options"]["trec"]
    assert {each["predictions"] for each in (greedy, sampled, beams, options)} == {800}
    assert f"{greedy['other text']} of 800 greedy texts, {sampled['other text']} of 800 sampled ones" in text
    assert f"{beams['other text']} of 800 found with four beams came out differently" in text
    shares = [f"{100 * each['share of rows near a tie']:.0f} %" for each in (greedy, sampled)]
    assert f"near a tie ({shares[0]} of greedy and {shares[1]} of sampled texts are)" in text
    for each in (greedy, sampled):
        assert each["other text"] == each["other text, both near a tie"]
    assert not options["other label"]
    assert (
        "no chosen option changed; the gap between the two best changed by up to "
        f"{options['largest change of the gap']:.2f}" in text
    )
    assert 2 * options["largest change of the gap"] <= 10 * ROUNDING["bf16"]
