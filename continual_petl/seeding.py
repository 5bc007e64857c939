"""Seeds that depend only on names, never on what ran before, so that the order of tasks does not matter."""

from __future__ import annotations

import hashlib


def derive_seed(stream_seed: int, *names: str | int) -> int:
    """Return a 63-bit seed that is a pure function of the stream's seed and ``names``.

    Args:
        stream_seed: the ``seed`` of the stream file.
        names: what the randomness is for, most general first: the task's name, then a purpose, then counters.

    Example:
        >>> derive_seed(13, "agnews", "init") == derive_seed(13, "agnews", "init")
        True
        >>> derive_seed(13, "agnews", "init") == derive_seed(13, "yelp", "init")
        False
    """
    # The separators keep ("a", "bc") and ("ab", "c") from colliding.
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in (stream_seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
