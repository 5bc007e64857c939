"""``stream.yaml`` of a run: its last line is a comment with the digest of the lines above, so that changes are detected.

Later tasks are learned with its settings (seed, backbone, data), which no certificate covers. To change it on purpose, edit
it and pass it to ``continual-petl run`` like any other stream file: the run writes it again.
"""

from __future__ import annotations

import hashlib

from continual_petl.errors import StoreError
from continual_petl.store.files.reading import read_file
from continual_petl.store.folder.run_folder import RunFolder
from continual_petl.streams.stream_file.size_limits import MAX_BYTES

_MARK = b"# SHA-256 of the lines above: "
_NUM_BYTES = len(_MARK) + 64 + 1


def sealed_stream(text: str) -> bytes:
    """Return the bytes of a run's ``stream.yaml``: the stream, and the digest in a comment."""
    content = text.encode()
    return content + _seal(content)


def check_stream(store: RunFolder) -> None:
    """Raise `StoreError` if a run's ``stream.yaml`` was changed or damaged: later tasks depend on it."""
    if (problem := stream_problem(store)) is not None:
        raise StoreError(problem)


def stream_problem(store: RunFolder) -> str | None:
    """Describe in one paragraph what is wrong with a run's ``stream.yaml``; None if it is unchanged."""
    path = store.stream_file
    try:
        content = read_file(path, MAX_BYTES + _NUM_BYTES)
    except FileNotFoundError:
        return f"{path}: missing. Restore it from a copy."
    except StoreError as error:
        return str(error)
    text, seal = content[:-_NUM_BYTES], content[-_NUM_BYTES:]
    if seal == _seal(text):
        return None
    return (
        f"{path}: it has changed since it was written: it was edited or damaged. Later tasks would be learned with these "
        "settings. Restore it from a copy; if it was edited on purpose, `continual-petl run "
        f"{path} --run-dir {store.folder}` checks it and writes it again, and so does a run of your own stream file"
    )


def _seal(content: bytes) -> bytes:
    return _MARK + hashlib.sha256(content).hexdigest().encode() + b"\n"
