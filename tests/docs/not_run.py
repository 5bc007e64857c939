"""Blocks of the pages that are not run, each with the reason. They are parsed or compiled; all others run.

An entry that no page uses any more fails a test, and so does a block that cannot be run and is not here.
"""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "continual-petl run stream.yaml --log wandb --log tensorboard": (
        "writes what only their own programs read; covered by tests/callbacks/test_loggers.py"
    ),
    "continual-petl report runs/support-desk --serve": "serves until it is stopped",
    **{
        f"continual-petl serve runs/{words}": "serves until it is stopped; covered by tests/serve/test_server.py"
        for words in (
            "stream",
            "mine",
            "mine --host 0.0.0.0 --allowed-host models.example.org --token-file token.txt",
        )
    },
    **{
        f"continual-petl run {words}": "needs the Hub, or copies of its data; covered by tests/cli/test_catalog_run.py"
        for words in (
            "classic5 --dry-run",
            "classic5 --data-dir copies --dry-run",
            "classic5 --data-dir data --dry-run",
            "classic5 --backbone minilm --data-dir data --tasks.*.limits.train 500",
            "unified-view --data-dir data --tasks.mnli.data.local null --tasks.en-ro.data.local my_en_ro",
        )
    },
    "continual-petl push runs/stream user/stream": "needs the Hub; docs/how-to/hub.md pushes to one on this machine",
    "continual-petl run stream.yaml --executor ray": "needs Ray's own processes; covered by tests/engine/test_on_ray.py",
    "continual-petl run stream.yaml --jobs 4": "needs four cores; tests/engine/test_parallel.py learns with fewer",
    "continual-petl sweep stream.yaml sweep.yaml --jobs 4": "needs four cores; tests/sweep/test_grid.py runs with fewer",
}
"""Commands of continual-petl that are parsed but not run."""

SCRIPTS: dict[str, str] = {
    "python try_it.py minilm": "needs the changes that docs/how-to/new-kind.md makes; covered by tests/docs/test_new_kind.py",
}
"""Scripts of a page that are compiled and not run."""

PROGRAMS: dict[str, str] = {
    "curl": "may not be installed, and nothing serves; tests/serve/test_server.py has it",
    "hf": "asks for a token, or downloads with a program of its own; tests/hub/test_download.py has what it leaves",
    "make": "makes an environment of its own from a package index; the target has to exist",
    "openssl": "may not be installed; tests/docs/stand_ins.py writes the keys",
    "pip": "needs a package index; the extra has to exist",
    "torchrun": "starts processes on several machines; the script has to be shown on the page",
}
"""Programs that no block runs."""

PYTHON: dict[str, str] = {
    "SFTTrainer": "needs TRL and the Hub; tests/streams/test_tokenise_chats.py compares what is learned",
    "jobs=2": "starts two processes with a backbone each; tests/engine/test_parallel.py has it",
}
"""Words of a Python block that is only compiled."""

TEXTS: dict[str, str] = {
    "CONTRIBUTING.md": "the map of the rooms; tests/docs/test_contributing.py holds it against tests/house.py",
}
"""Pages that may show text that is no code."""
