"""Results of other packages beside a run: read strictly from a stranger's file, marked, and never verified."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from continual_petl.errors import InputError
from continual_petl.report import beside
from continual_petl.report.beside import in_terminal, read_trials, section_of
from continual_petl.report.console import SafeConsole
from continual_petl.report.run_facts import RunFacts
from continual_petl.report.write import write_comparison

TASKS = ("one", "two")
LINE: dict[str, Any] = {
    "method": "EWC",
    "kind": "regularisation",
    "package": "avalanche-lib 0.6.0",
    "stream": "classic5",
    "protocol": "task",
    "order": 1,
    "seed": 13,
    "adapted": "all layers",
    "settings": {"ewc_lambda": 0.4},
    "tuning": False,
    "matrix": [[0.9, 0.1], [0.5, 0.8]],
    "tasks": ["one", "two"],
    "seconds": 12,
    "trained_parameters": 1234567,
    "kept_bytes": 4321,
    "keeps_old_rows": False,
    "commit": "1" * 40,
    "versions": {"torch": "2.13.0"},
    "machine": {"cores": 2},
}

TUNING = LINE | {"tuning": True, "tasks": ["one"], "matrix": [[0.5]]}
"""Settings are chosen on the first tasks alone."""


def written(folder: Path, *lines: object) -> Path:
    file = folder / "others.jsonl"
    texts = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    file.write_bytes(b"".join(text + b"\n" for text in texts))
    return file


def test_metrics_come_from_the_matrix(tmp_path: Path) -> None:
    joint = LINE | {"method": "joint", "matrix": [[None, None], [0.6, 0.8]], "keeps_old_rows": True}
    (ewc, upper) = read_trials(written(tmp_path, LINE, joint, TUNING), ("two", "one"))
    # By hand: (0.5 + 0.8) / 2, 0.5 - 0.9 and 0.9 - 0.5.
    assert ewc.metrics == pytest.approx({"ACC": 0.65, "BWT": -0.4, "forgetting": 0.4})
    assert upper.metrics["ACC"] == pytest.approx(0.7)
    assert math.isnan(upper.metrics["BWT"])
    assert {name: upper.to_json()[name] for name in joint} == joint
    assert [upper.to_json()[name] for name in ("acc", "bwt", "forgetting", "verified")] == [0.7, None, None, False]


def test_results_of_the_comparison_with_other_methods_are_read() -> None:
    file = Path(__file__).parents[2] / "experiments/zoo/results/classic5.ndjson"
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    shown = [line for line in lines if not line["tuning"]]
    trials = read_trials(file, shown[0]["tasks"])
    assert [trial.method for trial in trials] == [line["method"] for line in shown]
    assert len(shown) < len(lines)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"{", "line 2: not JSON"),
        (b"[1]", "line 2: found list; each line must be one JSON object"),
        (b'{"method": "a", "method": "b"}', "line 2: the key 'method' is there twice; give it once"),
        (b'{"seconds": NaN}', "line 2: not JSON"),
        (b"[" * 100_000, "line 2: not JSON"),
        (b'{"method": "\\ud800"}', "line 2: not JSON"),
        (b"\xff", "line 2: not JSON"),
        (LINE | {"seconds": 1e999}, "line 2: not JSON"),
        (LINE | {"metod": "x"}, "line 2: .*unknown key 'metod'.*did you mean 'method'"),
        (LINE | {"seed": "1"}, "line 2: .*key seed: got '1'; allowed: a whole number or null"),
        (LINE | {"method": ""}, "line 2: .*key method: got ''; allowed: text, not empty"),
        (LINE | {"matrix": [[0.9, 1.5], [0.5, 0.8]]}, r"line 2: .*key matrix\.0\.1: got 1\.5; allowed: a number"),
        (LINE | {"matrix": [[0.9, "0.1"], [0.5, 0.8]]}, r"line 2: .*key matrix\.0\.1: got '0\.1'"),
        (LINE | {"matrix": [[0.9], [0.5, 0.8]]}, "line 2: .*matrix: it must have 2 rows of 2 scores"),
        (LINE | {"matrix": []}, "line 2: .*matrix: it must have 2 rows of 2 scores"),
        (LINE | {"tasks": ["one", "one"]}, "line 2: .*tasks: a name is there twice"),
        (LINE | {"tasks": [], "matrix": []}, "line 2: .*key tasks"),
        (LINE | {"kept_bytes": -1}, "line 2: .*key kept_bytes: got -1"),
        (LINE | {"tasks": ["one", "three"]}, "line 2: its tasks are one, three, those of the run one, two"),
        ({"method": "a"}, "line 2: .*key package: is missing"),
    ],
)
def test_bad_lines_are_refused_in_one_paragraph(line: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=says) as caught:
        read_trials(written(tmp_path, LINE, line), TASKS)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"--beside {tmp_path / 'others.jsonl'}, line 2: ")


def test_deep_settings_are_read_or_refused(tmp_path: Path) -> None:
    for depth in (10, 300, 5_000):
        deep = b'{"a": ' * depth + b"1" + b"}" * depth
        line = json.dumps(LINE).encode().replace(b'{"ewc_lambda": 0.4}', deep)
        try:
            (trial,) = read_trials(written(tmp_path, line), TASKS)
        except InputError:
            assert depth > 10
        else:
            assert json.dumps(trial.to_json())


@pytest.mark.parametrize("content", [[], [LINE | {"tuning": True}], [b"", b"  "]])
def test_a_file_without_trials_is_refused(content: list[object], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it has no finished trial"):
        read_trials(written(tmp_path, *content), TASKS)


def test_files_that_are_too_large_or_cannot_be_read_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, LINE, LINE)
    for name, most in (("MAX_TRIALS", 1), ("MAX_BYTES", file.stat().st_size - 1)):
        with monkeypatch.context() as patch:
            patch.setattr(beside, name, most)
            with pytest.raises(InputError, match="it has more than"):
                read_trials(file, TASKS)
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match="cannot be read"):
            read_trials(path, TASKS)


def test_table_marks_other_packages(facts: RunFacts, tmp_path: Path) -> None:
    count = len(facts.results.tasks)
    tasks = list(facts.results.tasks)
    line = LINE | {"method": "<b>[red]", "tasks": tasks, "matrix": [[0.5] * count] * count, "kept_bytes": None}
    trials = read_trials(written(tmp_path, line), tasks)
    section = section_of(facts, trials)
    own, other = [[cell.text for cell in cells] for cells in section.tables[0].rows]
    heads = list(section.tables[0].heads)
    assert own[heads.index("ACC")] == f"{facts.results.acc:.4f}"
    assert own[heads.index("parameters trained")] == f"{facts.growth[-1].stored:,}"
    assert other[heads.index("package")] == "avalanche-lib 0.6.0, not verified by this package"
    assert [other[heads.index(name)] for name in ("ACC", "BWT", "forgetting")] == ["0.5000", "0", "0"]
    assert [other[heads.index(name)] for name in ("parameters trained", "kept", "keeps old rows")] == [
        "1,234,567",
        "not known",
        "no",
    ]
    assert "but some of the run's are not" in section.lines[1]
    page = write_comparison(tmp_path / "page", [facts], more=[section]).read_text("utf-8")
    assert "&lt;b&gt;[red]" in page
    assert "Beside other packages" in page
    console = SafeConsole(width=200)
    with console.capture() as captured:
        console.print(in_terminal(facts, trials))
    assert "<b>[red]" in captured.get()
