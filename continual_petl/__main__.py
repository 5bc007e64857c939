"""``python -m continual_petl`` and the command ``continual-petl``."""

from __future__ import annotations

import sys

from continual_petl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
