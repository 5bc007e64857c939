"""Read untrusted text files, compressed or not, as streams within the task's limits; messages say where a fault is.

A few megabytes of ``.gz`` can unpack to any size, so nothing is read before it has been checked.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import re
import shlex
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from continual_petl.errors import InputError, show
from continual_petl.streams.reader.bounds import check_unpacked, memory_reported
from continual_petl.streams.schema.limits_spec import DEFAULTS, LimitsSpec


def _by_arrow(name: str) -> Callable[[Any], Any]:
    def unpack(file: Any) -> Any:
        import pyarrow as pa  # importing it takes a moment

        return pa.CompressedInputStream(file, name)

    return unpack


_OPEN: dict[str, Callable[[Any], Any]] = {
    "gzip": gzip.open,
    "bz2": lambda file: _Parts(file, bz2.BZ2Decompressor),
    "xz": lambda file: _Parts(file, lzma.LZMADecompressor),
    "zstd": _by_arrow("zstd"),
    "lz4": _by_arrow("lz4"),
}
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ\0": "xz",
    b"PK\3\4": "zip",
    b"PK\5\6": "zip",
    b"PK\7\10": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"Rar!\x1a\x07": "rar",
    b"7z\xbc\xaf": "7z",
}
"""First bytes of compressed files, whatever they are called; those of bz2 are letters, see `_BZ2`."""
_BZ2 = re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)")
_BINARY = (".parquet", ".arrow", ".feather")
_UNPACK = {"gzip": "gzip -dc <", "bz2": "bzip2 -dc <", "xz": "xz -dc <", "zstd": "zstd -dc <", "lz4": "lz4 -dc <"}
_SPREADSHEET = "a spreadsheet of Excel: save its sheet as csv (UTF-8) there, and give that file"
_PAGE = (
    "which servers send in place of a file that is missing or needs a login: open it in a browser to see what it says, and "
    "download the file again"
)
_LFS = "a pointer of Git LFS and not the file itself: run `git lfs pull` in its repository"
_ANNEX = "a pointer of git-annex and not the file itself: run `git annex get` in its repository"
_OTHER = {
    rb"version https://git-lfs\.github\.com/spec/v\d+\s*(\Z|[\r\n])": _LFS,
    rb"/annex/objects/\S+\s*(\Z|[\r\n])": _ANNEX,
    rb"(?i)(<!doctype html[^>]*>|<html(\s[^>]*)?>)\s*(\Z|<)": f"an HTML page, {_PAGE}",
    rb"<\?xml\s[^>]*\?>\s*(\Z|<)": f"an XML document, {_PAGE}",
    rb"\xd0\xcf\x11\xe0": _SPREADSHEET,
    rb"%PDF-\d\.\d\s*(\Z|[\r\n])": "a PDF document: copy its text into a text file or a table, and give that",
}
"""How files begin that hold no rows, and what they are. What follows the first characters counts too, since a text may begin
with them."""
_ANSWERS = (
    b"404: Not Found",
    b"Entry not found",
    b"Repository not found",
    b"Invalid username or password.",
    b"Not Found",
)
"""What servers send in place of a file, as its whole content."""
_DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)
_HEAD = 2**16
"""Number of bytes that decide what a file is, if it is none of the formats."""
_NULS = "\0" * 16
"""As many or more of them are no text."""
_LINE_OF_CELLS = 16
"""Maximum length of a line, in multiples of the maximum cell size: images can be long lists of numbers."""


@dataclass(frozen=True)
class TextFile:
    """One text file.

    Args:
        path: path of the file.
        place: beginning of the messages; names the file.
        limits: limits of its task.
    """

    path: str
    place: str
    limits: LimitsSpec = DEFAULTS

    @property
    def max_line(self) -> int:
        """Maximum number of characters of a line."""
        return _LINE_OF_CELLS * self.limits.cell_chars

    def lines(self, newline: Literal["", "\n"] = "\n") -> Iterator[str]:
        r"""Yield the lines with their line ends, without a byte order mark.

        Args:
            newline: with ``"\n"``, only line feeds end a line, as in JSON Lines; with ``""``, ``\n``, ``\r`` and ``\r\n`` do,
                as in tables.

        Raises:
            InputError: if the file is damaged, not UTF-8, or exceeds a limit.
        """
        for block in self.blocks(newline):
            yield from io.StringIO(block, newline=newline)

    def blocks(self, newline: Literal["", "\n"] = "\n", at_once: int = 2**18) -> Iterator[str]:
        """Yield the content in pieces of about ``at_once`` characters that end where a line does; otherwise like `lines`."""
        most, before = self.max_line, 0  # characters before the block
        begun, size = list[str](), 0  # pieces of the line that goes on in the next piece
        for piece in self.pieces(at_once):
            end = piece.rfind("\n") + 1
            if not newline:
                end = max(end, piece.rfind("\r", 0, -1) + 1)  # a line feed may follow the last character
            ended = not newline and begun and begun[-1].endswith("\r") and piece[0] != "\n"
            if end or ended:
                block = "".join([*begun, piece[:end]])
                if len(block) > most:
                    for at, line in enumerate(io.StringIO(block, newline=newline)):
                        if len(line) > most:
                            raise self._long_line(before, newline, at)
                before += len(block)
                yield block
                begun, size = [], 0
            begun.append(piece[end:])
            size += len(begun[-1])
            if size > most:
                raise self._long_line(before, newline)
        if size:
            yield "".join(begun)

    def _long_line(self, before: int, newline: str, further: int = 0) -> InputError:
        number = self._line_after(before, newline) + further
        return InputError(
            f"{self.place}: line {number:,} is longer than {self.max_line:,} characters ({_LINE_OF_CELLS} times "
            "limits.cell_mb): does this file have one row per line? "
            f"{self.limits.hint('cell_mb', 2 * self.limits.cell_mb)}"
        )

    def pieces(self, size: int = 2**18) -> Iterator[str]:
        """Yield the content in pieces of at most ``size`` characters; otherwise like `lines`."""
        before = 0
        try:
            with (
                memory_reported(self.place),
                self._open() as raw,
                io.TextIOWrapper(raw, "utf-8-sig", newline="") as text,
            ):
                while piece := text.read(size):
                    if "\0" in piece:
                        self._check_nuls(piece, before)
                    before += len(piece)
                    yield piece
        except UnicodeDecodeError:
            raise self._bad_byte() from None

    def _line_after(self, size: int, newline: str = "\n") -> int:
        """Return the number of the line that follows ``size`` characters; only errors need it, so nothing else counts."""
        number, pieces, ends = 1, self.pieces(), io.IncrementalNewlineDecoder(None, translate=not newline)
        while size > 0 and (piece := next(pieces, "")):
            number += ends.decode(piece[:size], final=size <= len(piece)).count("\n")
            size -= len(piece)
        return number

    def _check_nuls(self, piece: str, before: int) -> None:
        """Refuse many NUL characters, as in a file of which a part was never written; a few are characters like others."""
        if _NULS in piece or piece.count("\0") > max(len(_NULS), len(piece) / 16):
            line = self._line_after(before) + piece.count("\n", 0, piece.index("\0"))
            raise InputError(
                f"{self.place}: line {line:,} holds many NUL bytes, so this is binary data, or a part of the file was never "
                "written: give a file of UTF-8 text, or copy, download or write it again"
            )

    def _open(self) -> io.BufferedReader:
        try:
            packing = _packing_of(self.path)
            if packing is None and self.path.lower().endswith(".gz"):
                raise InputError(
                    f"{self.place}: the name ends in .gz, but the file is not compressed with gzip: rename it, or "
                    "download or compress it again"
                )
            if packing is None:
                file = open(self.path, "rb")  # noqa: SIM115 (closed by the reader)
            elif packing in _OPEN:
                file = io.BufferedReader(_Unpacking(self, _OPEN[packing]), 2**20)
            else:
                raise self._archive(packing)
        except OSError as error:
            raise InputError(
                f"{self.place}: cannot be opened: {error.strerror or error}: check its permissions"
            ) from error
        head = file.peek(tarfile.BLOCKSIZE)[: tarfile.BLOCKSIZE]
        if head.startswith(codecs.BOM_UTF32_LE):  # begins with the byte order mark of UTF-16
            problem: InputError | None = self._undecodable(0, 1, "a byte order mark of UTF-32", "UTF-32")
        elif head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            problem = self._undecodable(0, 1, "a byte order mark of UTF-16", "UTF-16")
        elif _is_tar(head):
            problem = self._archive("tar")
        else:
            problem = self._with_nul(head)
        if problem is None:
            return file
        file.close()
        raise problem

    def _with_nul(self, head: bytes) -> InputError | None:
        """Return the error for binary data, or for UTF-16 without a byte order mark, where most letters have a zero byte."""
        at = head.find(0)
        odd, even = head[1::2].count(0), head[::2].count(0)
        if len(head) > 2 and max(odd, even) >= len(head) / 4 and min(odd, even) <= len(head) / 8:
            name = "UTF-16LE" if odd > even else "UTF-16BE"
            return self._undecodable(at, head[:at].count(b"\n") + 1, "a NUL byte", name)
        try:
            codecs.getincrementaldecoder("utf-8")().decode(head)
        except UnicodeDecodeError:
            if at >= 0:
                return InputError(
                    f"{self.place}: byte {at:,} is a NUL byte, so this is binary data: give a file of UTF-8 text"
                )
        return None

    def _archive(self, name: str) -> InputError:
        if name == "zip" and _is_workbook(self.path):
            return InputError(f"{self.place}: this is {_SPREADSHEET}.")
        return InputError(
            f"{self.place}: this is a {name} file, which is not supported: unpack it, and give the file inside"
        )

    def _bad_byte(self) -> InputError:
        """Return the error for a file that is not UTF-8, with the position of the first invalid byte."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        offset, line = 0, 1
        with self._open() as raw:
            while piece := raw.readline(2**20):
                pending = len(decoder.getstate()[0])
                try:
                    decoder.decode(piece)
                except UnicodeDecodeError as error:
                    at = offset - pending + error.start
                    break
                offset += len(piece)
                line += piece.endswith(b"\n")
            else:
                at = offset - len(decoder.getstate()[0])  # the last character is incomplete
        return self._undecodable(
            at, line, "not UTF-8", "WINDOWS-1252", " (usual in Western Europe; Latin-1 is part of it)"
        )

    def _undecodable(self, at: int, line: int, what: str, encoding: str, about: str = "") -> InputError:
        path, convert = shlex.quote(self.path), f"iconv -f {encoding} -t UTF-8"
        packing = _packing_of(self.path)
        command = f"{_UNPACK[packing]} {path} | {convert}" if packing in _UNPACK else f"{convert} {path}"
        return InputError(
            f"{self.place}: byte {at:,}, on line {line:,}, is {what}; text must be UTF-8. If the file is {encoding}{about}, "
            f"convert it: {command} > NEW-FILE; or save it as UTF-8 in the program that created it."
        )


def _packing_of(path: str) -> str | None:
    """Return how a file is compressed, judged by its first bytes, not its name."""
    with open(path, "rb") as file:
        found = _packing_by(file.read(16))
    if found is None and zipfile.is_zipfile(path):  # a zip archive may be preceded by other bytes
        return "zip"
    return found


def _packing_by(start: bytes) -> str | None:
    if _BZ2.match(start):
        return "bz2"
    return next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)


def refuse_other(place: str, path: str) -> None:
    """Refuse a file that is none of the formats, but is often found in place of one: an empty one, a page, a pointer.

    Raises:
        InputError: naming what it is, and what to do.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise InputError(f"{place}: cannot be opened: {error.strerror or error}: check its permissions") from error
    if not head:
        raise InputError(f"{place}: this file is empty (0 bytes): download or write it again, or leave it out")
    start = head.removeprefix(codecs.BOM_UTF8).lstrip()
    for first, what in _OTHER.items():
        found = re.match(first, start)
        if found and not _is_row(found[0], start):
            raise InputError(f"{place}: this is {what}.")
    packing = _packing_by(head)
    if packing is not None and path.lower().endswith(_BINARY):
        if packing not in _OPEN:
            raise TextFile(path, place)._archive(packing)
        raise InputError(
            f"{place}: this is a {packing} file in spite of its name: unpack it, and give the file inside, or name it for "
            "what it holds"
        )
    # A server ends its answer without a new line. In a text file, where each line is a row, this tells it from a row.
    is_line = path.lower().endswith(".txt")
    if head in _ANSWERS if is_line else start.rstrip().lower() in map(bytes.lower, _ANSWERS):
        raise InputError(
            f"{place}: this file says {show(head.decode('utf-8', 'replace').strip())} and nothing else, {_PAGE}."
        )


def _is_row(found: bytes, start: bytes) -> bool:
    """Return whether a page is the first of many, one in each line."""
    return re.search(rb"[\r\n]" + re.escape(found[:5]), start) is not None and found[:1] == b"<"


def refuse_unknown(place: str, path: str) -> None:
    """Refuse a file of no known suffix if its content says what it is; do nothing if it may be text.

    Raises:
        InputError: as in `refuse_other`, and for archives, spreadsheets and other binary data.
    """
    refuse_other(place, path)
    next(TextFile(path, place).pieces(), None)


def _is_workbook(path: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return "xl/workbook.xml" in archive.namelist()
    except (OSError, ValueError, NotImplementedError, struct.error, zipfile.BadZipFile):  # damaged
        return False


def _is_tar(block: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True


class _Unpacking(io.RawIOBase):
    """A stream of a file's unpacked bytes, which stops with an error if there are too many."""

    def __init__(self, file: TextFile, unpack: Callable[[Any], Any]) -> None:
        self._file, self._size = file, 0
        self._packed = open(file.path, "rb")  # noqa: SIM115 (closed below)
        self._content = unpack(self._packed)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count: int = self._content.readinto(buffer)
        except _DAMAGED as error:
            raise InputError(
                f"{self._file.place}: cannot be read: the compressed file is damaged or incomplete ({error}). Copy, "
                "download or compress it again."
            ) from error
        self._size += count
        check_unpacked(self._file.place, self._packed.tell(), self._size, self._file.limits)
        return count

    def close(self) -> None:
        self._content.close()
        self._packed.close()
        super().close()


class _Parts(io.RawIOBase):
    """The unpacked bytes of one or more compressed parts; the standard library ignores what follows them and is none.

    Args:
        file: the compressed file.
        new: returns a decompressor of `bz2` or `lzma` for a part.
    """

    def __init__(self, file: Any, new: Callable[[], Any]) -> None:
        self._file, self._new = file, new
        self._part = new()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        size = len(buffer)
        while True:
            data = b""
            if self._part.eof:
                data = self._part.unused_data.lstrip(b"\0")  # files may be padded with zeros
                while not data and (piece := self._file.read(2**16)):
                    data = piece.lstrip(b"\0")
                if not data:
                    return 0
                self._part = self._new()
            elif self._part.needs_input:
                data = self._file.read(2**16)
                if not data:
                    raise EOFError("Compressed file ended before the end-of-stream marker was reached")
            if found := self._part.decompress(data, size):
                buffer[: len(found)] = found
                return len(found)
