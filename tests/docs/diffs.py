"""Diff blocks show changes to the package; this module computes the changed files."""

from __future__ import annotations

from pathlib import Path

from tests.docs.blocks import ROOT, Block


def applied(block: Block, root: Path = ROOT) -> tuple[str, str]:
    """Return the file that a diff block changes, and its new text.

    The block names the file in a line ``--- FILE``. Each hunk begins with ``@@``; its lines are kept (a space), removed (-)
    or added (+). The kept and removed lines of a hunk must together occur in the file exactly once.

    Raises:
        BrokenPage: if the file does not exist, or a hunk does not match.
    """
    first, *hunks = block.text.split("@@\n")
    name = first.removeprefix("--- ").strip()
    if not (root / name).is_file() or not hunks:
        raise block.broken(
            f"a diff must begin with `--- FILE`, naming an existing file, and have a hunk after `@@`: got {name!r}"
        )
    text = (root / name).read_text(encoding="utf-8")
    for hunk in hunks:
        lines = hunk.splitlines()
        if wrong := [line for line in lines if line and line[0] not in " +-"]:
            raise block.broken(f"each line of a hunk must begin with a space, + or -: got {wrong[0]!r}")
        old = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "+")
        new = "".join(f"{line[1:]}\n" for line in lines if line[:1] != "-")
        if text.count(old) != 1:
            raise block.broken(f"these lines occur {text.count(old)} times in {name}, not once:\n{old}")
        text = text.replace(old, new)
    return name, text
