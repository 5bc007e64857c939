"""Mutates inputs (bits, bytes, lines, inserted fragments of the language, splices), and generates random ones."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

MAX_SIZE = 64 * 2**10
"""Maximum size of an input, so that if the time limit is exceeded, the reader is slow rather than the input large."""


def mutate(data: bytes, others: Sequence[bytes], tokens: Sequence[bytes], draw: Random) -> bytes:
    """Return ``data`` after one to six small changes."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        _change(changed, others, tokens, draw)
    return bytes(changed[:MAX_SIZE])


def noise(draw: Random) -> bytes:
    """Return fewer than 400 random bytes, half of the time only characters that are common in YAML."""
    size = draw.randrange(400)
    if draw.random() < 0.5:
        return draw.randbytes(size)
    return bytes(draw.choice(b" \n\t:-,[]{}&*!|>'\"%@`#?~<=.0123456789aebnxU\\") for _ in range(size))


def _change(data: bytearray, others: Sequence[bytes], tokens: Sequence[bytes], draw: Random) -> None:
    begin = draw.randrange(len(data) + 1)
    end = min(len(data), begin + draw.choice((1, 1, 2, 4, 16, 64)))
    match draw.randrange(9):
        case 0 if data:
            data[min(begin, len(data) - 1)] ^= 1 << draw.randrange(8)
        case 1:
            data[begin:begin] = draw.randbytes(draw.choice((1, 1, 2, 8)))
        case 2:
            del data[begin:end]
        case 3 | 4:
            data[begin:begin] = draw.choice(tokens)
        case 5:
            data[begin:end] = draw.choice(tokens)
        case 6:
            other = draw.choice(others)
            cut = draw.randrange(len(other) + 1)
            data[begin:] = other[cut:]
        case 7:
            data[begin:begin] = data[begin:end] * draw.choice((1, 2, 50))
        case _:
            _change_line(data, tokens, draw)


def _change_line(data: bytearray, tokens: Sequence[bytes], draw: Random) -> None:
    """Replace the value on a line and keep its key, since most valid inputs are lines of ``key: value``."""
    lines = bytes(data).split(b"\n")
    number = draw.randrange(len(lines))
    key, colon, _ = lines[number].partition(b":")
    lines[number] = key + colon + b" " + draw.choice(tokens)
    data[:] = b"\n".join(lines)
