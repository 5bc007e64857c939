"""The command: ``python -m experiments.benchmarks TABLE [--quick] [--out FOLDER] ...``.

``render FILE.json ...`` regenerates the Markdown of results, ``readme`` what README and docs/results.md say;
``environments`` creates the peers' environments.
"""

from __future__ import annotations

import sys
from pathlib import Path

from continual_petl._process import keep_freed_memory
from continual_petl.errors import InputError
from experiments.benchmarks.bench import TABLES, render, run
from experiments.benchmarks.environments import make_environments
from experiments.benchmarks.markdown import replace_section
from experiments.benchmarks.options import ROOT, parse
from experiments.benchmarks.peers.client import PeerError
from experiments.benchmarks.result import read_result
from experiments.benchmarks.summary import BEGIN, END, section, summary


def main(arguments: list[str]) -> int:
    """Run the command; return 2 if the input is invalid."""
    try:
        match arguments:
            case ["render", *files]:
                for file in map(Path, files):
                    file.with_suffix(".md").write_text(render(read_result(file)), encoding="utf-8")
            case ["readme"]:
                replace_section(ROOT / "README.md", BEGIN, END, summary())
                replace_section(ROOT / "docs" / "results.md", BEGIN, END, section())
            case ["environments", *more]:
                make_environments(more)
            case _:
                keep_freed_memory()
                run(parse(arguments, TABLES))
    except (InputError, PeerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
