"""The documentation is complete: every public name, key and command is included, and nothing loads from the network."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

import continual_petl
from continual_petl import callbacks, streams
from continual_petl.cli.parser import build_parser
from continual_petl.streams.stream_file.json_schema import json_schema
from docs.hooks import made_pages, offline
from tests.docs.blocks import ROOT

REFERENCE = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md")}


def test_public_names_are_in_the_reference() -> None:
    shown = {name.rsplit(".", 1)[1] for text in REFERENCE.values() for name in re.findall(r"^::: (\S+)", text, re.M)}
    shown |= set(re.findall(r"\w+Error|Interrupted", (ROOT / "continual_petl" / "errors.py").read_text("utf-8")))
    public = {*continual_petl.__all__, *streams.__all__} | {name for name in vars(callbacks) if name[0].isupper()}
    assert public - shown == set()


def test_stream_file_keys_have_a_row() -> None:
    page = made_pages.stream_file_page()
    schema = json_schema()
    definitions = [schema, *(made_pages._mapping(below) for below in schema["$defs"].values())]
    for key, below in ((key, below) for node in definitions for key, below in node["properties"].items()):
        (row, *_) = re.findall(rf"^\| `{key}` \| .+ \|$", page, re.M)
        assert " ".join(below["description"].split()).replace("|", r"\|") in page, row


@pytest.mark.parametrize(
    "row",
    [
        "| `batch_size` | whole number (at least 1) | `32` | Rows per batch on one device, before `accumulate`; ",
        "| `weight_decay` | number (at least 0) | `0.01` | Weight decay (decoupled in adamw and adamw_8bit, L2 in adam and ",
        "| `epochs` | whole number (at least 1), or `null` | `null` | Passes over the training split; null means ",
        "| `betas` | list of number (at least 0, below 1) and number (at least 0, below 1) | `[0.9, 0.999]` |",
        "| `evaluate` | `auto`, `all`, `sample`, `certified` | `auto` |",
        "| `tasks` | list of [an entry of tasks](#an-entry-of-tasks) (at least 1 entry) | *required* |",
        "| `labels` | text, or list of text, or whole number, or `null` | `null` |",
    ],
)
def test_rows_show_type_bounds_default_and_meaning(row: str) -> None:
    assert row in made_pages.stream_file_page()


def test_a_mapping_without_a_section_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(made_pages.SECTIONS, "LimitsSpec")
    with pytest.raises((ValueError, KeyError), match="LimitsSpec"):
        made_pages.stream_file_page()


def test_commands_have_a_section() -> None:
    page = made_pages.command_line_page()
    names = re.search(r"\{(.+?)\}", build_parser().format_usage().replace("\n", "")) or re.search("()", "")
    shown = re.findall(r"^## (.+)$", page, re.M)
    assert {"run", "learn", "verify", "predict", "report", "init", "doctor", "schema"} <= set(shown)
    assert all(f"usage: continual-petl {name}" in page for name in shown), names


def test_contributing_links_are_relative_to_docs() -> None:
    assert made_pages.contributing_page("see [x](docs/a.md)") == "see [x](a.md)"


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="//fonts.example/x.css">',
        '<link rel="preconnect" href="https://fonts.example" crossorigin>',
        '<img src="http://example.org/x.png">',
    ],
)
def test_page_loading_from_the_network_fails_the_build(html: str, tmp_path: Path) -> None:
    config = MkDocsConfig()
    config.load_dict({"site_name": "x", "site_dir": str(tmp_path)})
    (tmp_path / "a.html").write_text('<a href="https://example.org">fine</a><img src="x.png"><link rel="canonical">')
    offline.on_post_build(config)
    (tmp_path / "b.html").write_text(html)
    with pytest.raises(PluginError, match=r"b\.html loads .*example"):
        offline.on_post_build(config)


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("nav:")[-1]
    listed = set(re.findall(r"([\w/-]+\.md)", nav))
    on_disk = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert listed == on_disk | {"contributing.md", "reference/stream-file.md", "reference/command-line.md"}


@pytest.mark.parametrize(("link", "code"), [("other.md", 0), ("nowhere.md", 1), ("other.md#nowhere", 1)])
def test_a_dead_link_fails_the_build(tmp_path: Path, link: str, code: int) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    (command,) = re.findall(r"^\tNO_MKDOCS_2_WARNING=1 \$\(bin\)/(mkdocs build [^#\n]*)", makefile, re.M)
    validation = re.search(r"^validation:\n(?:  .*\n)+", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M)
    assert validation is not None
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Start\n\n[a page]({link})\n")
    (tmp_path / "docs" / "other.md").write_text("# Other\n")
    (tmp_path / "mkdocs.yml").write_text(f"site_name: x\n{validation[0]}")
    built = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=tmp_path, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, check=False, text=True,
    )  # fmt: skip
    assert built.returncode == code, built.stderr
