"""The ``push`` command, and ``hf://`` addresses in the commands that read a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from continual_petl import Run
from continual_petl.cli.main import main
from tests.hub.local_hub import LocalHub

RUN = "hf://user/run"


@pytest.fixture
def pushed(hub: LocalHub, folder: Path, capsys: Any) -> Path:
    """Return a run that is on the Hub as user/run."""
    Run(folder).push("user/run")
    capsys.readouterr()
    return folder


def test_push_says_where(hub: LocalHub, folder: Path, capsys: Any) -> None:
    assert main(["push", str(folder), "user/run", "--private", "--revision", "v1"]) == 0
    commit = hub.repos["user/run"].branches["v1"][-1]
    assert capsys.readouterr().out == f"pushed to {hub.address}/user/run/tree/v1, commit {commit}\n"
    assert main(["push", str(folder), "user/run", "--private", "--revision", "v1"]) == 0
    assert capsys.readouterr().out.startswith("nothing has changed; already at ")
    assert main(["push", str(folder), "user/one", "--task", "one", "--format", "merged", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {
        "repo": "user/one",
        "revision": None,
        "commit": hub.repos["user/one"].branches["main"][-1],
        "url": f"{hub.address}/user/one",
        "changed": True,
    }


@pytest.mark.parametrize(
    "words",
    [
        ["predict", RUN, "w1 w20", "--task", "one"],
        ["verify", RUN],
        ["list", RUN],
        ["show", RUN, "one"],
        ["show", RUN],
        ["report", RUN, "--output", "page"],
        ["report", RUN, "--json"],
        ["export", RUN, "one", "--format", "peft", "--to", "adapter"],
        ["similar", RUN, "one"],
    ],
    ids=lambda words: " ".join(words[:1] + words[2:]),
)
def test_commands_that_read_take_a_run_on_the_hub(
    pushed: Path, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 0


def test_diff_compares_with_a_run_on_the_hub(pushed: Path, capsys: Any) -> None:
    assert main(["diff", str(pushed), RUN]) == 0


@pytest.mark.parametrize(
    "words",
    [
        ["forget", RUN, "one"],
        ["sign", RUN, "--key", "key.pem"],
        ["reevaluate", RUN],
        ["learn", RUN, "task.yaml"],
        ["run", "stream.yaml", "--run-dir", RUN],
        ["push", RUN, "user/copy"],
    ],
    ids=lambda words: words[0],
)
def test_commands_that_write_say_to_download_first(
    pushed: Path, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = "[{text: w1, label: a}, {text: w2, label: b}]"
    task = f"{{name: x, kind: classification, data: {{train: {rows}}}}}"
    Path("task.yaml").write_text(task)
    Path("stream.yaml").write_text((pushed / "stream.yaml").read_text("utf-8"))
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "a run on the Hub can only be read, and this needs a run folder on this machine" in said
    assert "hf download user/run --local-dir runs/run" in said
    assert not Path("hf:").exists()


def test_report_needs_a_folder_of_its_own(pushed: Path, capsys: Any) -> None:
    assert main(["report", RUN]) == 2
    assert "--output: a run on the Hub has no folder for its report" in capsys.readouterr().err


def test_changed_run_ends_with_exit_code_1(hub: LocalHub, pushed: Path, capsys: Any) -> None:
    content = hub.files("user/run")["banks/one/bank.safetensors"]
    hub.change("user/run", {"banks/one/bank.safetensors": content[:-1] + b"\x55"})
    for words in (["list", RUN], ["verify", RUN], ["predict", RUN, "w1", "--task", "one"]):
        assert main(words) == 1
        assert "does not match its certificates, so it is not used. task 'one'" in capsys.readouterr().err


def test_format_needs_a_task(pushed: Path, capsys: Any) -> None:
    assert main(["push", str(pushed), "user/run", "--format", "merged"]) == 2
    assert "--format: needs TASK, which was not given; a whole run is pushed as it is" in capsys.readouterr().err
