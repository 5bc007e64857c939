"""``python -m continual_petl`` and the command ``continual-petl``."""

from __future__ import annotations

import sys

from continual_petl._process import own_process
from continual_petl.cli import main as command_line


def main() -> int:
    """Run one command, in a process of its own, and return its exit code."""
    own_process(shares_cores=sys.argv[1:2] == ["serve"])
    return command_line.main()


if __name__ == "__main__":
    sys.exit(main())
