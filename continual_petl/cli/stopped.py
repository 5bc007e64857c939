"""The message after Ctrl-C or SIGTERM outside of training: what is saved, and what the same command does next."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from pathlib import Path

from continual_petl.errors import StoreError


def when_stopped(how: str, arguments: argparse.Namespace) -> str:
    """Return the message.

    Args:
        how: the first words of the message, such as ``stopped``.
        arguments: the arguments of the command; `learn_and_show` adds ``all_learned``, and `run` the folder that it learns
            into.
    """
    if getattr(arguments, "all_learned", False):
        return f"{how} after all tasks were learned and saved; the same command shows the result"
    if arguments.command not in ("run", "learn", "sweep"):
        return f"{how}; the same command starts again from the beginning"
    folder = arguments.run if arguments.command == "learn" else arguments.run_dir
    if folder is None or not _holds_progress(Path(folder), is_run=arguments.command != "sweep"):
        return f"{how} before anything was learned or saved; the same command starts from the beginning"
    return f"{how}; progress is saved, and the same command resumes from there"


def _holds_progress(folder: Path, *, is_run: bool) -> bool:
    if not is_run or not os.path.isdir(folder):
        return os.path.exists(folder)
    from continual_petl.store.folder.progress import half_learned
    from continual_petl.store.store import Store

    with suppress(StoreError, OSError):
        store = Store(folder)
        return bool(store.tasks or half_learned(store))
    return True  # the run is damaged, so something had been saved
