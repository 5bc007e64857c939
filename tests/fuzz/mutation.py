"""Inputs derived from other inputs: bits, bytes, pieces of the language, splices; and random bytes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

MAX_SIZE = 64 * 2**10
"""Inputs stay this small, so that a bound on time says something about the reader and not about the input."""


def mutate(data: bytes, others: Sequence[bytes], tokens: Sequence[bytes], draw: Random) -> bytes:
    """Return ``data`` after one to six small changes."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
        _change(changed, others, tokens, draw)
    return bytes(changed[:MAX_SIZE])


def noise(draw: Random) -> bytes:
    """Return up to 400 bytes without meaning, every second time all of them printable."""
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
    """Leave the key of a line, give it another value: most sound inputs are lines of ``key: value``."""
    lines = bytes(data).split(b"\n")
    number = draw.randrange(len(lines))
    key, colon, _ = lines[number].partition(b":")
    lines[number] = key + colon + b" " + draw.choice(tokens)
    data[:] = b"\n".join(lines)
