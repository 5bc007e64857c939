"""Create a separate environment for each peer, so that its dependencies do not affect other peers or ours.

    python -m experiments.benchmarks environments [--index-url ADDRESS]

torch is installed first and separately, from the given index (PyTorch's CPU builds save a large download), in the same
version as ours: otherwise two versions of torch would be compared.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

from continual_petl.errors import InputError
from experiments.benchmarks.options import ENVIRONMENTS, PEERS

CONSTRAINTS = Path(__file__).parent / "peers"


def make_environments(arguments: Sequence[str]) -> None:
    """Create or update the environments of the peers.

    Raises:
        InputError: if a peer is unknown, or pip cannot install its packages.
    """
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks environments", description=__doc__)
    parser.add_argument("--into", type=Path, default=ENVIRONMENTS, help="folder for the environments")
    parser.add_argument("--index-url", help="package index for torch (default: pip's)")
    parser.add_argument(
        "peers", nargs="*", default=list(PEERS), help=f"peers to set up: {', '.join(PEERS)} (default: all)"
    )
    given = parser.parse_args(arguments)
    for name in given.peers:
        if name not in PEERS:
            raise InputError(f"environments: got {name!r}; it must be one of {', '.join(PEERS)}.")
        # A server for the table `serve`.
        packages = [name, "safetensors", *(["litserve"] if name == "peft" else [])]
        make_environment(given.into / name, packages, constraints(name), given.index_url)


def constraints(name: str) -> Path:
    """Return the file with the exact versions of a peer's environment."""
    return CONSTRAINTS / f"constraints-{name}.txt"


def make_environment(folder: Path, packages: Sequence[str], versions: Path, index: str | None = None) -> None:
    """Create or update an environment with torch and some packages.

    Args:
        folder: the environment.
        packages: the packages besides torch.
        versions: file with the exact versions, as for pip's ``--constraint``.
        index: package index for torch; None means pip's.

    Raises:
        InputError: if pip cannot install them.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"creating {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True)
    for group, source in ((["torch"], index), (packages, None)):
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        command += ["--constraint", str(versions), *(["--index-url", source] if source else []), *group]
        if subprocess.run(command, check=False).returncode:
            raise InputError(
                f"environments: pip could not install {', '.join(group)} into {folder.name}: see pip's message above."
            )
