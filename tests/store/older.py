"""A run folder as older releases wrote it, made from one of today's."""

from __future__ import annotations

from pathlib import Path

from continual_petl.store.folder.stream_seal import sealed_stream

JOINED = {"files", "parent"}
JOINED_EARLY = {"class_weights", "generation", "max_target_length"}
OPTIONS = {"depth", "input_norm", "reparametrise", "hidden", "implementation", "density", "penalty"}


def without_defaults(file: Path) -> None:
    """Rewrite the stream file of a run or a sweep as releases without the key ``defaults`` wrote it."""
    text = file.read_text()
    assert "\ndefaults: 1\n" in text
    lines = [line for line in text.splitlines(keepends=True) if line != "defaults: 1\n"]
    if lines[-1].startswith("# SHA-256"):
        file.write_bytes(sealed_stream("".join(lines[:-1])))
    else:
        file.write_text("".join(lines))
