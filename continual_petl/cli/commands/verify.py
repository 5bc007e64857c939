"""Check that no learned task has changed.

Exit code 1 if anything differs from its certificate.

examples:
  continual-petl verify runs/mine
  continual-petl verify runs/mine agnews --data --json
  continual-petl verify runs/mine --digests
  continual-petl verify runs/mine --public-key public.pem
"""

from __future__ import annotations

import argparse
from pathlib import Path

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run, add_task

PLACE = 160


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_run(command, hub=True)
    add_task(command, "name of a learned task (default: all)")
    how = command.add_mutually_exclusive_group()
    how.add_argument("--data", action="store_true", help="also evaluate on the test rows again")
    text = "compare only the chain, files and digests: fast, without loading the backbone; no bank is run"
    how.add_argument("--digests", action="store_true", help=text)
    text = "check in at most N processes, if that saves time (default: one for each core); no effect with --digests"
    command.add_argument("--jobs", metavar="N", type=int, help=text)
    text = "also check that the run was signed with the private key of this Ed25519 public key (a PEM file)"
    command.add_argument("--public-key", metavar="FILE", help=text)
    add_remote_code(command)
    add_json(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli._console import out, print_json, progress, say
    from continual_petl.engine.run import Run
    from continual_petl.report.task_lines import nothing_yet_line
    from continual_petl.report.terminal import check_table
    from continual_petl.store.folder.progress import half_learned
    from continual_petl.store.signature import check_signature

    run = Run(arguments.run, remote_code=arguments.remote_code)
    with progress("certificates") as advance:
        checks = run.verify(
            arguments.task, data=arguments.data, probe=not arguments.digests, jobs=arguments.jobs, progress=advance
        )
    if arguments.public_key is not None:
        checks.append(check_signature(run.store, Path(arguments.public_key)))
    unchanged = all(check.ok for check in checks)
    if arguments.json:
        print_json([check.to_json() for check in checks])
    else:
        if checks:
            out().print(check_table(checks))
        # A problem in a file that all tasks share is found for each of them, but reported once.
        say(*dict.fromkeys(problem for check in checks for problem in check.problems))
        if not checks:
            say(nothing_yet_line(half_learned(run.store)))
        if unchanged and (head := run.store.head()) is not None:
            say(f"newest entry of the chain: number {head.index}, seal {head.seal}")
    return 0 if unchanged else 1
