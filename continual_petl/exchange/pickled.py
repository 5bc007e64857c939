"""Reads tensors from files of ``torch.save`` without executing anything, and without believing what they claim.

``torch.load(weights_only=True)`` executes no code either, but a few kilobytes can make it allocate any amount of memory: a
tensor larger than its storage, a compressed storage, or calls of the classes that it allows. So the description of the
tensors (a pickle) is read on its own first, with stand-ins for everything that it names; every tensor has to fit into its
storage, and every storage into the file; only then are the tensors made from the file's bytes.

Both formats are read: zip archives, and that of torch before 1.6 (torch/serialization.py, ``_legacy_load``).
"""

from __future__ import annotations

import io
import math
import pickletools
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from continual_petl.errors import InputError

_DTYPES = {
    **{"DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16},
    **{"BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32},
    **{"ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool},
}
_MAX_DIMENSIONS = 64
_MAGIC = 0x1950A86A20F9469CFC6C
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, AssertionError, EOFError, struct.error, RecursionError)


@dataclass(frozen=True)
class _Storage:
    dtype: torch.dtype
    key: str
    size: int

    @property
    def num_bytes(self) -> int:
        return self.size * self.dtype.itemsize


@dataclass(frozen=True)
class _View:
    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_pickled(path: Path, content: bytes) -> dict[str, Tensor]:
    """Return the tensors in a file written by ``torch.save``, by their names.

    Args:
        path: the file, for messages.
        content: its bytes.

    Raises:
        InputError: if it is damaged, claims more than it contains, or holds anything but named tensors.
    """
    try:
        described, stored = (_zipped if content.startswith(b"PK") else _legacy)(content)
        views = _named(described)
        if views is None:
            raise InputError(f"folder: {path} does not contain a mapping from names to tensors; it is not an adapter.")
        flat = {view.storage: _flat(view.storage, stored) for view in views.values()}
        return {name: _made(view, flat[view.storage]) for name, view in views.items()}
    except _Refused as error:
        raise InputError(
            f"folder: {path} holds more than tensors ({error}), so it could execute code, or it is damaged. "
            "Save the adapter again with use_safetensors=True."
        ) from error
    except InputError:
        raise
    except (*_DAMAGED, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise InputError(f"folder: {path} cannot be read ({str(error)[:300]}); it may be damaged.") from error


class _Refused(Exception):
    """The file names something that no adapter needs."""


def _described(handle: io.BytesIO) -> Any:
    """Return what the next pickle of a file describes, with a `_View` for each tensor.

    Only what ``torch.save`` writes for named tensors is understood (opcodes of Python's ``pickletools``).
    """
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def above_mark() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    argument: Any
    for code, argument, _ in pickletools.genops(handle):
        match code.name:
            case "STOP":
                return stack.pop()
            case "MARK":
                marks.append(len(stack))
            case "POP":
                stack.pop()
            case "PROTO":
                pass
            case "NONE" | "NEWFALSE" | "NEWTRUE":
                stack.append({"NONE": None, "NEWFALSE": False, "NEWTRUE": True}[code.name])
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE" | "SHORT_BINSTRING":
                stack.append(argument)
            case "EMPTY_TUPLE" | "EMPTY_LIST" | "EMPTY_DICT":
                stack.append({"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}[code.name]())
            case "TUPLE":
                stack.append(tuple(above_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                size = int(code.name[-1])
                stack[-size:] = [tuple(stack[-size:])]
            case "APPEND" | "APPENDS":
                items = above_mark() if code.name == "APPENDS" else [stack.pop()]
                stack[-1].extend(items)
            case "SETITEM" | "SETITEMS":
                items = above_mark() if code.name == "SETITEMS" else [stack.pop(-2), stack.pop()]
                if not all(isinstance(key, str) for key in items[::2]):
                    raise ValueError("a key is not text")  # the hash of nested tuples can take for ever
                stack[-1].update(zip(items[::2], items[1::2], strict=True))
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(_named_by(argument))
            case "BINPERSID":
                stack.append(_storage(*stack.pop()))
            case "REDUCE":
                arguments = stack.pop()
                stack.append(stack.pop()(*arguments))
            case "BUILD" if isinstance(stack[-2], OrderedDict):
                stack.pop()  # the metadata of a state dict
            case other:
                raise _Refused(f"opcode {other}")
    raise ValueError("it ends in the middle")


def _named_by(name: str) -> Any:
    """Return the stand-in for something that the file names: module, space, name."""
    known: dict[str, Any] = {
        "collections OrderedDict": lambda: OrderedDict(),  # never a copy of another one, which would multiply the size
        "torch._utils _rebuild_tensor_v2": _view,
        "torch._utils _rebuild_parameter": lambda tensor, *_: tensor,
        **{f"torch {storage}": dtype for storage, dtype in _DTYPES.items()},
    }
    if name not in known:
        raise _Refused(name.replace(" ", ".")[:200])
    return known[name]


def _storage(kind: Any, dtype: Any, key: Any, _place: Any, size: Any, part: Any = None) -> _Storage:
    if kind != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, str) or part is not None:
        raise ValueError("a storage is not described as torch does")
    return _Storage(dtype, key, _count(size))


def _zipped(content: bytes) -> tuple[Any, Mapping[str, memoryview | bytes]]:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        entries = {entry.filename: entry for entry in file.infolist()}
        # torch.save never compresses; entries that share their bytes, or unpack to more, would multiply the file's size.
        if sum(entry.file_size for entry in entries.values()) > len(content) or any(
            entry.compress_type != zipfile.ZIP_STORED for entry in entries.values()
        ):
            raise ValueError("it is compressed, or its parts claim more bytes than it has")
        (described,) = (name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl"))
        root = described.removesuffix("data.pkl")
        if f"{root}byteorder" in entries and file.read(f"{root}byteorder") != b"little":
            raise ValueError("its byte order is not little-endian")
        start = f"{root}data/"
        stored = {name.removeprefix(start): file.read(name) for name in entries if name.startswith(start)}
        return _described(io.BytesIO(file.read(described))), stored


def _legacy(content: bytes) -> tuple[Any, Mapping[str, memoryview | bytes]]:
    handle = io.BytesIO(content)
    magic, _, about = (_described(handle) for _ in range(3))
    if magic != _MAGIC or not about.get("little_endian"):
        raise ValueError("not a file of torch.save, or its byte order is not little-endian")
    described, keys = _described(handle), _described(handle)
    sizes = {view.storage.key: view.storage for view in (_named(described) or {}).values()}
    stored, whole = {}, memoryview(content)
    for key in keys:
        (size,) = struct.unpack("<q", handle.read(8))
        start = handle.tell()
        if size != sizes[key].size:
            raise ValueError(f"storage {key[:100]!r} does not have the size that is claimed")
        stored[key] = whole[start : start + sizes[key].num_bytes]
        handle.seek(start + sizes[key].num_bytes)
    return described, stored


def _named(described: Any) -> dict[str, _View] | None:
    """Return the views by their names; None if this is anything else."""
    if not isinstance(described, dict):
        return None
    named = all(isinstance(name, str) and isinstance(view, _View) for name, view in described.items())
    if named:
        "".join(described).encode()  # raises ValueError for a lone surrogate, which could not be printed
    return dict(described) if named else None


def _view(storage: Any, offset: Any, shape: Any, strides: Any, _grad: Any, _hooks: Any, more: Any = None) -> _View:
    """Return a tensor's description, after checking that it fits into its storage, and has no element twice."""
    if more:
        raise _Refused("tensors with metadata")  # such as a negative view, whose storage has other signs
    if not isinstance(storage, _Storage) or len(shape) > _MAX_DIMENSIONS:
        raise ValueError("a tensor is not described as torch does")
    sizes, steps = tuple(map(_count, shape)), tuple(map(_count, strides))
    last = _count(offset) + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    if 0 not in sizes and (last >= storage.size or math.prod(sizes) > storage.size):
        raise ValueError(f"a tensor of shape {str(sizes)[:100]} claims more numbers than its storage has")
    return _View(storage, offset, sizes, steps)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"got a {type(value).__name__} where a size belongs, or a negative one")
    return value


def _flat(storage: _Storage, stored: Mapping[str, memoryview | bytes]) -> Tensor:
    """Return the numbers of a storage."""
    content = stored[storage.key]
    if len(content) != storage.num_bytes:
        raise ValueError(f"storage {storage.key[:100]!r} does not have the size that is claimed")
    return torch.frombuffer(bytearray(content), dtype=storage.dtype) if content else torch.empty(0, dtype=storage.dtype)


def _made(view: _View, flat: Tensor) -> Tensor:
    """Return a tensor with the numbers of its storage."""
    if 0 in view.shape:
        return flat.new_empty(view.shape)
    return flat.as_strided(view.shape, view.strides, view.offset)
