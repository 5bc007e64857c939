"""Commands and code blocks of the pages that are only parsed or compiled, each with the reason; all others are run.

A test fails if no page uses an entry any more, or if a block cannot be run and is not listed here.
"""

from __future__ import annotations

COMMANDS: dict[str, str] = {
    "continual-petl run stream.yaml --log wandb --log tensorboard": (
        "writes logs that only wandb and TensorBoard can read; covered by tests/callbacks/test_loggers.py"
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
        f"continual-petl run {words}": "needs data from the Hub, or copies of it; covered by tests/cli/test_catalog_run.py"
        for words in (
            "classic5 --dry-run",
            "classic5 --data-dir copies --dry-run",
            "classic5 --data-dir data --dry-run",
            "classic5 --backbone minilm --data-dir data --tasks.*.limits.train 500",
            "unified-view --data-dir data --tasks.mnli.data.local null --tasks.en-ro.data.local my_en_ro",
        )
    },
    "continual-petl push runs/stream user/stream": "needs the Hub; docs/how-to/hub.md pushes to a local stand-in",
    "continual-petl run stream.yaml --executor ray": "needs a Ray cluster; covered by tests/engine/test_on_ray.py",
    "continual-petl run stream.yaml --jobs 4": "needs four cores; fewer are covered by tests/engine/test_parallel.py",
    "continual-petl sweep stream.yaml sweep.yaml --jobs 4": "needs four cores; fewer are covered by tests/sweep/test_grid.py",
}
"""Commands of continual-petl that are parsed but not run."""

PROGRAMS: dict[str, str] = {
    "curl": "may not be installed, and no server is running; covered by tests/serve/test_server.py",
    "hf": "asks for a token, or downloads from the Hub; tests/hub/test_download.py covers the downloaded folder",
    "make": "installs an environment from a package index; only the target is checked, which must exist",
    "openssl": "may not be installed; tests/docs/stand_ins.py writes the keys",
    "pip": "needs a package index; only the extra is checked, which must exist",
    "torchrun": "starts processes on several machines; only the script is checked, which must be a file of the page",
}
"""Programs that are not run."""

PYTHON: dict[str, str] = {
    "SFTTrainer": "needs TRL and the Hub; tests/streams/test_tokenise_chats.py compares the learned tokens",
    "jobs=2": "starts two processes with a backbone each; covered by tests/engine/test_parallel.py",
}
"""A Python block that contains one of these texts is compiled but not run."""

TEXTS: dict[str, str] = {
    "CONTRIBUTING.md": "the layout of the packages; tests/docs/test_contributing.py compares it with tests/house.py",
}
"""Pages that may contain blocks of plain text."""
