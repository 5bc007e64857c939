"""Run a page from top to bottom: its blocks in order, in one folder and one Python namespace."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from continual_petl import kind_registry
from continual_petl.banks.config import forms
from continual_petl.report.figures import registry as figures
from tests.docs.blocks import Block, BrokenPage, blocks_of
from tests.docs.not_run import PYTHON, TEXTS
from tests.docs.shell import run_block
from tests.docs.yaml_blocks import check_yaml

FILES = ("csv", "jsonl", "json", "ini", "dockerfile")
"""Languages of blocks that are only written to files."""


def run_page(page: str, text: str, folder: Path) -> set[str]:
    """Run every block of a page; ``folder`` has to be the working directory.

    Returns:
        The entries of `tests.docs.not_run` that were needed.

    Raises:
        BrokenPage: at the first block that fails, is in an unknown language, or is a script that no command of the page runs.
    """
    used: set[str] = set()
    namespace: dict[str, Any] = {"__name__": "__page__"}
    blocks = blocks_of(page, text)
    try:
        for block in blocks:
            match block.language:
                case "python":
                    _run_python(block, blocks, namespace, folder, used)
                case "yaml":
                    check_yaml(block, folder)
                case "bash":
                    run_block(block, folder, used)
                case "text" if page in TEXTS:
                    used.add(page)
                case language if language in FILES and block.title is not None:
                    (folder / block.title).write_text(block.text, encoding="utf-8")
                case language:
                    raise block.broken(f"a block of language {language!r} cannot be run (title: {block.title})")
    finally:
        kind_registry.REGISTRY.registered.clear()  # those that the page has added
        kind_registry._codes.clear()
        forms.REGISTRY.registered.clear()
        for name in [name for name, figure in figures._of_run.items() if figure.draw.__module__ == "__page__"]:
            del figures._of_run[name]
    return used


def _compiled(block: Block, text: str, name: str) -> Any:
    try:
        return compile(text, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise block.broken("".join(traceback.format_exception(error))) from None


def _run_python(block: Block, blocks: list[Block], namespace: dict[str, Any], folder: Path, used: set[str]) -> None:
    # The added line breaks give tracebacks and syntax errors the line numbers of the page.
    code = _compiled(block, "\n" * (block.line - 1) + block.text, block.page)
    try:
        if block.title is not None:
            (folder / block.title).write_text(block.text, encoding="utf-8")
            if not any(block.title in other.text for other in blocks if other.language == "bash"):
                raise block.broken(f"no command of the page runs {block.title}")
        elif only_compiled := [words for words in PYTHON if words in block.text]:
            used.update(only_compiled)
        else:
            exec(code, namespace)
    except BrokenPage:
        raise
    except Exception as error:
        raise block.broken("".join(traceback.format_exception(error))) from error
