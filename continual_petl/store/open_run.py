"""Open a run folder and look up tasks; errors about unknown names list the runs or tasks that exist.

Nothing here imports torch, so that commands that do not need the model respond quickly.
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

from continual_petl.errors import MAX_NAMES, InputError, StoreError, did_you_mean, known_names
from continual_petl.kind_registry import allow_kind, kind_code, not_allowed
from continual_petl.store.certificate.certificate import ROUTER
from continual_petl.store.files.reading import parse_json, read_file, refuse_link
from continual_petl.store.folder.progress import not_learned
from continual_petl.store.store import Store
from continual_petl.streams.stream_file.file_types import refuse_other_type
from continual_petl.streams.stream_file.similar_files import did_you_mean_path
from continual_petl.streams.stream_file.yaml_file import own_kinds_in


def is_on_hub(run: str | Path) -> bool:
    """Return whether a run is given by its address on the Hub: ``hf://USER/RUN``."""
    return str(run).startswith("hf:/")  # Path turns "hf://" into "hf:/"


def check_local(run: str | Path) -> None:
    """Raise `InputError` if a run that must be a folder on this machine is given by its address on the Hub."""
    if is_on_hub(run):
        repo = str(run).removeprefix("hf:").strip("/").partition("@")[0]
        raise InputError(
            f"{run}: a run on the Hub can only be read, and this needs a run folder on this machine. Download it first: "
            f"`hf download {repo} --local-dir runs/{repo.rpartition('/')[2]}`. `continual-petl push` uploads it again."
        )


def allow_kinds(folder: str | Path, *, permitted: bool = True) -> None:
    """Import the kinds of the user's own that a run's certificates and stream name; a run on the Hub is not downloaded yet.

    Args:
        folder: the run folder.
        permitted: whether the user has allowed it; if not, kinds that are not imported yet are refused.

    Raises:
        InputError: if their code is not the certified one, in which case it is not imported, or cannot be imported.
    """
    if is_on_hub(folder):
        return
    for file in sorted(Path(folder).glob("banks/*/bank.json")):
        content = read_file(file)
        if b'"kind_code"' in content and (tree := parse_json(content, str(file))).get("kind_code"):
            _allow(str(tree.get("kind")), str(tree["kind_code"]), permitted=permitted)
    for name in own_kinds_in(Path(folder) / "stream.yaml"):
        _allow(name, None, permitted=permitted)


def _allow(name: str, digest: str | None, *, permitted: bool) -> None:
    if not permitted and kind_code(name) is None:
        raise InputError(not_allowed(name))
    allow_kind(name, digest)


def open_store(folder: str | Path) -> Store:
    """Return the store of a run folder, without reading its stream.

    Raises:
        InputError: if the folder holds no run, or is an address on the Hub.
        StoreError: if its stream.yaml is a link.
    """
    check_local(folder)
    store = Store(Path(folder))
    refuse_link(store.stream_file)
    if not os.path.isfile(store.stream_file):  # also False for strings that are not valid paths
        inside = sorted(file.parent.name for file in islice(store.folder.glob("*/stream.yaml"), 100))
        if inside:
            raise InputError(
                f"{store.folder}: no run here, but it contains the runs {known_names(inside)}; give one of them"
            )
        refuse_other_type(store.folder, "a run folder")
        if os.path.isfile(store.folder):
            raise InputError(
                f"{store.folder}: this is a file, but a run folder is expected here; give a folder such as runs/NAME"
            )
        there = "no stream.yaml in it" if os.path.isdir(store.folder) else f"no such folder in {Path.cwd()}"
        hint = did_you_mean_path(store.folder, [store.folder.parent, Path("runs")], _is_run)
        raise InputError(
            f"{store.folder}: no run here ({there}){hint}; give a folder that `continual-petl run` created, such as runs/NAME"
        )
    return store


def _is_run(folder: Path) -> bool:
    return (folder / "stream.yaml").is_file()


def check_learned(store: Store, task: str) -> None:
    """Raise `InputError`, listing the learned tasks, unless ``task`` is one; `StoreError` if its bank is missing."""
    if not store.has(task):
        if lost := store.missing().get(task):
            raise StoreError(lost)
        # Listed in the order they were learned; if there are too many to list, the most similar ones come first.
        known = known_names(store.tasks, task if len(store.tasks) > MAX_NAMES else "")
        raise InputError(f"{not_learned(store, task)}{did_you_mean(task, store.tasks)}; learned tasks: {known}")


def check_can_route(store: Store) -> None:
    """Raise `InputError` unless rows can be routed to at least one learned task."""
    if not any(ROUTER in store.certificate(task).files for task in store.tasks):
        raise InputError(
            f"task: none was given, and no task of {store.folder} was learned with routing, so rows cannot be routed to a "
            "task: name the task (on the command line: --task or --task-column). With `routing: full` in the stream file, "
            "rows can be routed to the tasks that are learned from then on."
        )
