"""Help is fast because nothing heavy is imported; flags and exit codes are stable."""

from __future__ import annotations

import subprocess
import sys

import pytest

from continual_petl.cli import main as cli
from continual_petl.cli.parser import build_parser, commands
from continual_petl.errors import ForgettingError, InputError, Interrupted, IsolationError, StoreError

LIMITS = {"--limits.cell_mb", "--limits.unpacked_gb", "--limits.ratio"}
# A command that is not here may still change.
COMMANDS = {
    "init": {"--output", "--name", "--backbone", "--force", "--json", "--rows", *LIMITS},
    "run": {
        "--start-from",
        "--data-dir",
        "--run-dir",
        "--dry-run",
        "--discard-progress",
        "--replace",
        "--check",
        "--jobs",
        "--executor",
        "--wait",
        "--log",
        "--log-banks",
        "--quiet",
        "--verbose",
        "--json",
    },
    "learn": {
        "--start-from",
        "--evaluate",
        "--remote-code",
        "--discard-progress",
        "--replace",
        "--check",
        "--dry-run",
        "--wait",
        "--log",
        "--log-banks",
        "--quiet",
        "--verbose",
        "--json",
    },
    "sweep": {
        "--data-dir",
        "--run-dir",
        "--task",
        "--trials",
        "--minutes",
        "--jobs",
        "--executor",
        "--keep",
        "--quiet",
        "--json",
    },
    "forget": {"--task", "--entry", "--json", "--remote-code", "--yes"},
    "verify": {"--public-key", "--task", "--data", "--digests", "--jobs", "--remote-code", "--json"},
    "reevaluate": {"--remote-code", "--wait", "--json"},
    "predict": {
        *(
            "--task",
            "--raw-csv",
            "--task-column",
            "--input",
            "--output",
            "--bad-rows",
            "--batch-size",
            "--reject",
            "--candidates",
            "--stream",
            "--remote-code",
            "--json",
        ),
        *LIMITS,
    },
    "ablate": {"--task", "--split", "--spans", "--output", "--html", "--remote-code", "--json"},
    "export": {"--task", "--format", "--to", "--remote-code", "--json"},
    "serve": {
        "--host",
        "--port",
        "--allowed-host",
        "--token-file",
        "--window-ms",
        "--batch-rows",
        "--max-rows",
        "--max-characters",
        "--max-body-bytes",
        "--max-waiting",
        "--client-timeout",
        "--timeout",
        "--resident-bytes",
        "--reject",
        "--log-texts",
        "--engine",
        "--replicas",
        "--remote-code",
    },
    "push": {"--task", "--format", "--private", "--revision", "--remote-code", "--json"},
    "import": {"--base", "--data", "--json", "--kind", "--labels", "--pooling", "--remote-code", "--task", "--wait"},
    "report": {"--output", "--open", "--serve", "--port", "--rows", "--beside", "--remote-code", "--json"},
    "list": {"--json", "--remote-code"},
    "show": {"--task", "--json", "--remote-code"},
    "sign": {"--json", "--key", "--remote-code"},
    "similar": {"--task", "--json", "--remote-code", "--top"},
    "diff": {"--json", "--remote-code"},
    "doctor": {"--run-dir", "--json"},
    "streams": {"--json"},
    "schema": set(),
}

_PROBE = """
import sys
from continual_petl.cli.main import main
try:
    main([*sys.argv[1:], "--help"])
except SystemExit:
    pass
heavy = {"torch", "transformers", "datasets", "lightning", "wandb", "numpy", "pydantic", "rich", "yaml"}
print("HEAVY", sorted(heavy & set(sys.modules)))
"""


@pytest.mark.parametrize("command", [[], *([name] for name in commands())])
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", _PROBE, *command], capture_output=True, text=True, check=True)
    assert "HEAVY []" in done.stdout
    assert "continual-petl" in done.stdout
    assert "examples:" in done.stdout


def test_commands_and_flags_are_frozen() -> None:
    parser = build_parser()
    (choices,) = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
    found = {
        name: {flag for action in sub._actions for flag in action.option_strings} - {"-h", "--help"}
        for name, sub in choices.items()
    }
    assert {name: found.get(name) for name in COMMANDS} == COMMANDS


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("x"), 2),
        (ForgettingError("x"), 1),
        (IsolationError("x"), 1),
        (StoreError("x"), 1),
        (Interrupted("x", 2), 130),
        (Interrupted("x", 15), 143),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError("x"), 3),
    ],
)
def test_exit_code_matches_the_error(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from continual_petl.cli.commands import schema

    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(schema, "execute", fail)
    assert cli.main(["schema"]) == code
    assert ("Traceback" in capsys.readouterr().err) == (code == 3)


@pytest.mark.parametrize("words", [["--training.epochs"], ["--seed", "--name"], ["stray"]])
def test_overrides_without_a_value_are_refused(words: list[str]) -> None:
    with pytest.raises(InputError, match=r"value is missing|not understood"):
        cli.parse_overrides(words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["lern"], "there is no command 'lern' (did you mean 'learn'?); the commands are init, "),
        (["runn", "s.yaml"], "(did you mean 'run'?)"),
        (["list", "x", "--jsn"], "unrecognized arguments: --jsn (did you mean '--json'?)"),
    ],
)
def test_an_unknown_command_or_option_exits_with_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


def test_help_without_docstrings_lists_options() -> None:
    words = [sys.executable, "-OO", "-m", "continual_petl", "list", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "--json" in done.stdout
