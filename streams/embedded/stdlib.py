"""Docstrings of the standard library, read from its ``.py`` files with ``ast``: nothing is imported or run.

Only modules that every supported CPython (3.11 to 3.14) ships, regardless of which optional system packages are installed,
are read: no ``tkinter``, nothing that PEP 594 or 632 removed, no test folders.
"""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from continual_petl.errors import InputError
from continual_petl.streams.embedded.text import summary

Outcome = Literal["value", "nothing", "unknown"]

# Chosen because they have many docstrings per line, so that parsing is fast.
MODULES = tuple(
    """
    asyncio bdb calendar codecs collections concurrent configparser contextlib datetime decimal difflib doctest
    email enum fractions ftplib functools http imaplib importlib inspect io ipaddress logging mailbox
    multiprocessing numbers pathlib pdb random selectors shutil smtplib socketserver ssl statistics symtable tarfile
    tempfile threading traceback typing unittest urllib wsgiref xml xmlrpc zipfile
    """.split()  # noqa: SIM905  one name per line would take up most of the file
)

_SKIPPED_FOLDERS = {"__pycache__", "test", "tests"}
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True, kw_only=True, order=True)
class Docstring:
    """One documented class or function: its cleaned summary and the facts that tasks predict."""

    text: str
    package: str
    signature: str
    """``Class.method(a, b=1)`` without ``self``; the bare name for a class."""
    kind: Literal["class", "function"]
    outcome: Outcome


def library_folder() -> Path:
    """Return the folder of the standard library's sources.

    Raises:
        InputError: if this Python does not include them.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    if not (folder / "asyncio" / "tasks.py").is_file():
        raise InputError(
            f"The embedded stream is made from the sources of Python's standard library, and {folder} does not hold "
            "them (some small builds ship it zipped or compiled). Use an ordinary CPython, or name other data."
        )
    return folder


def source_files(folder: Path, name: str) -> list[Path]:
    """Return the files of a module or package, including a pure Python version such as ``_pydatetime.py``."""
    inside = (
        p for p in (folder / name).rglob("*.py") if not _SKIPPED_FOLDERS.intersection(p.parts[len(folder.parts) :])
    )
    files = [*inside, *(p for p in (folder / f"{name}.py", folder / f"_py{name}.py") if p.is_file())]
    if not files:
        raise InputError(
            f"The embedded stream needs the sources of the standard module {name!r}, and {folder} has neither a folder "
            f"nor a file of that name. Use a complete CPython (3.11 to 3.14), or name other data."
        )
    return files


@cache
def docstrings() -> tuple[Docstring, ...]:
    """Return every usable docstring of :data:`MODULES` in a fixed order."""
    folder = library_folder()
    found = {d for name in MODULES for file in source_files(folder, name) for d in read_file(file, name)}
    return tuple(sorted(found))


def read_file(file: Path, package: str) -> Iterator[Docstring]:
    """Yield the usable docstrings of one file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about invalid escapes in the library's strings
        tree = ast.parse(file.read_bytes())
    yield from _walk(tree.body, package, "")


def _walk(body: Sequence[ast.stmt], package: str, outer: str) -> Iterator[Docstring]:
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            blocks = [node.body, node.orelse, *(h.body for h in getattr(node, "handlers", []))]
            for block in blocks:
                yield from _walk(block, package, outer)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = summary(ast.get_docstring(node, clean=False) or "")
            is_class = isinstance(node, ast.ClassDef)
            if text is not None:
                yield Docstring(
                    text=text,
                    package=package,
                    signature=node.name if isinstance(node, ast.ClassDef) else _signature(node, outer),
                    kind="class" if is_class else "function",
                    outcome="unknown" if isinstance(node, ast.ClassDef) else _outcome(node),
                )
            if is_class:
                yield from _walk(node.body, package, node.name)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, outer: str) -> str:
    arguments = ast.unparse(node.args)
    first, _, rest = arguments.partition(", ")
    if first in {"self", "cls", "/"}:
        arguments = rest.removeprefix("/, ")
    return f"{outer}.{node.name}({arguments})" if outer else f"{node.name}({arguments})"


def _outcome(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Outcome:
    """Return whether a call can return a value; ``unknown`` for a generator or a body that is only a placeholder."""
    if all(_is_placeholder(statement) for statement in node.body):
        return "unknown"
    waiting: list[ast.AST] = list(node.body)
    value = False
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, ast.Yield | ast.YieldFrom):
            return "unknown"
        if isinstance(inner, ast.Return) and inner.value is not None:
            value = value or not (isinstance(inner.value, ast.Constant) and inner.value.value is None)
        if not isinstance(inner, _SCOPES):
            waiting.extend(ast.iter_child_nodes(inner))
    return "value" if value else "nothing"


def _is_placeholder(statement: ast.stmt) -> bool:
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass | ast.Raise)
