"""Upload a run, or the export of one task, to the Hugging Face Hub.

Every digest of the run is checked first. Only what changed is uploaded, as one commit; the same command
resumes an interrupted upload. README.md becomes a model card: later pushes update only the part between its two marker
comments. Log in once with `hf auth login`.

A run on the Hub is given as hf://USER/REPO or hf://USER/REPO@REVISION to predict, verify, list, show, diff, report, similar,
ablate and export. To learn more tasks, download it: hf download USER/REPO --local-dir runs/mine.

examples:
  continual-petl push runs/mine user/mine --private
  continual-petl push runs/mine user/mine-agnews agnews
  continual-petl verify hf://user/mine
"""

from __future__ import annotations

import argparse

from continual_petl.cli.shared_options import add_json, add_remote_code, add_run, add_task
from continual_petl.errors import InputError

PLACE = 260


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments and options."""
    add_run(command)
    command.add_argument("repo", metavar="REPO", help="the repository, USER/NAME; created if it does not exist")
    text = "upload only this task, as an export that others can load without this package, to a repository of its own"
    add_task(command, text)
    text = "format of TASK: a peft adapter (default), or bank and backbone merged into a transformers checkpoint"
    command.add_argument("--format", choices=("peft", "merged"), help=text)
    command.add_argument(
        "--private", action="store_true", help="create the repository as private; refuse one that is public"
    )
    command.add_argument(
        "--revision", metavar="BRANCH", help="the branch; created if it does not exist (default: main)"
    )
    add_remote_code(command)
    add_json(command)


def execute(arguments: argparse.Namespace, overrides: list[tuple[str, str]]) -> int:
    """Run the command; return the exit code."""
    from continual_petl.cli._console import print_json, say
    from continual_petl.engine.run import Run

    if arguments.format is not None and arguments.task is None:
        raise InputError("--format: needs TASK, which was not given; a whole run is pushed as it is")
    run = Run(arguments.run, remote_code=arguments.remote_code)
    options = {"private": arguments.private, "revision": arguments.revision}
    done = run.push(arguments.repo, task=arguments.task, format=arguments.format or "peft", **options)
    if arguments.json:
        print_json(done.to_json())
    else:
        outcome = "pushed to" if done.changed else "nothing has changed; already at"
        say(f"{outcome} {done.url}, commit {done.commit}")
    return 0
