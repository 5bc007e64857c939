"""Generate reference pages when the site is built: every key of a stream file, every command.

`mkdocs.yml` registers this file as a hook. Generated pages are not committed, so they cannot be out of date.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from continual_petl.cli.parser import build_parser
from continual_petl.errors import counted
from continual_petl.streams.stream_file.json_schema import json_schema

Node = dict[str, Any]
ROOT = Path(__file__).parents[2]

SECTIONS = {
    "BackboneSpec": "backbone",
    "BankChoice": "bank",
    "Modification": "an entry of bank.modifications",
    "TrainingSpec": "training",
    "TrainingOverride": "training of a task",
    "ScheduleSpec": "schedule",
    "TaskSpec": "an entry of tasks",
    "DataSpec": "data",
    "ColumnsSpec": "columns",
    "SplitSpec": "split",
    "TagsSpec": "tags",
    "LimitsSpec": "limits",
    "GenerationSpec": "generation",
    "ChatSpec": "chat",
    "RoutingSpec": "routing",
    "TaskRoutingSpec": "routing of a task",
}
"""Maps each definition in the schema to the heading of its section, in the order of the page."""

_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "pattern": "matches `{}`",
}
_COUNTS = {
    "minItems": ("at least", "entry", "entries"),
    "maxItems": ("at most", "entry", "entries"),
    "minProperties": ("at least", "key", "keys"),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to the site."""
    made = {
        "reference/stream-file.md": stream_file_page(),
        "reference/command-line.md": command_line_page(),
        "contributing.md": contributing_page((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")),
    }
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    r"""Unescape `\|` in the code on a page: GitHub needs the backslash inside tables, Python-Markdown would show it.

    Example:
        >>> on_page_markdown("| `a \\| b` | c |")
        '| `a | b` | c |'
    """
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace(r"\|", "|"), markdown)


def contributing_page(text: str) -> str:
    """Return CONTRIBUTING.md as a page, with links relative to docs/."""
    return re.sub(r"\]\(docs/", "](", text)


def stream_file_page() -> str:
    """Return the stream file reference: a table of keys for each mapping."""
    schema = json_schema()
    parts = [
        "# The stream file\n",
        "Every key of a stream file, generated from the JSON Schema that also validates it (`continual-petl schema` prints "
        "it, for editors that complete YAML). Unknown keys are errors. *required* means that there is no default.\n",
        "## the stream\n",
        *_table(schema),
    ]
    for name, title in SECTIONS.items():
        definition = schema["$defs"][name]
        parts += [f"## {title}\n", _text(definition["description"].split("\n\nRead it")[0]) + "\n"]
        parts += _table(_mapping(definition))
    if unlisted := sorted(set(schema["$defs"]) - set(SECTIONS)):
        raise ValueError(f"docs/hooks/made_pages.py: no section for {', '.join(unlisted)}: add it to SECTIONS")
    return "\n".join(parts) + "\n"


def _mapping(node: Node) -> Node:
    """Return the alternative that is a mapping."""
    return next(option for option in [node, *node.get("anyOf", [])] if "properties" in option)


def _table(node: Node) -> list[str]:
    rows = ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, below in node["properties"].items():
        if key in node.get("required", ()):
            default = "*required*"
        else:
            default = f"`{_plain(below['default'])}`" if "default" in below else ""
        cells = (f"`{key}`", kind_of(below), default, _text(below.get("description", "")))
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return [*rows, ""]


def kind_of(node: Node) -> str:
    """Describe the allowed values in words: type or choices, and bounds."""
    if "$ref" in node:
        title = SECTIONS[node["$ref"].rsplit("/", 1)[1]]
        return f"[{title}](#{title.replace('.', '').replace(' ', '-')})"
    if parts := node.get("anyOf") or node.get("oneOf"):
        return ", or ".join(dict.fromkeys(kind_of(part) for part in parts))
    if "const" in node:
        return f"`{_plain(node['const'])}`"
    if "enum" in node:
        return ", ".join(f"`{_plain(value)}`" for value in node["enum"])
    bounds = [text.format(node[key]) for key, text in _BOUNDS.items() if key in node]
    bounds += [f"{how} {counted(node[key], one, many)}" for key, (how, one, many) in _COUNTS.items() if key in node]
    match node["type"]:
        case "array":
            if "prefixItems" in node:
                name = "list of " + " and ".join(kind_of(item) for item in node["prefixItems"])
                bounds = []
            else:
                name = f"list of {kind_of(node['items'])}"
        case "object":
            below = node.get("additionalProperties")
            keys = node.get("propertyNames", {}).get("enum")
            name = "mapping" if keys is None else "mapping from " + ", ".join(f"`{key}`" for key in keys)
            if isinstance(below, dict):
                name += f" to {kind_of(below)}"
        case "string":
            name = "text"
        case "null":
            name = "`null`"
        case other:
            name = {"integer": "whole number", "number": "number", "boolean": "`true`, `false`"}[other]
    return f"{name} ({', '.join(bounds)})" if bounds else name


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _text(description: str) -> str:
    return " ".join(description.split())


def command_line_page() -> str:
    """Return the command reference: the output of ``--help`` for every command."""
    parser = build_parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    parts = [
        "# The command line\n",
        "The output of `continual-petl COMMAND --help` for every command. Exit codes: 0 success; 1 a check failed; 2 invalid "
        "input; 3 an internal error; 4 another process is writing to the run; 128 + n ended by signal n.\n",
    ]
    for name, command in commands.choices.items():
        command.formatter_class = _Narrow
        parts += [f"## {name}\n", f"```text\n{command.format_help().rstrip()}\n```\n"]
    return "\n".join(parts)


class _Narrow(argparse.RawDescriptionHelpFormatter):
    """Formats help at a fixed width, so that the pages do not depend on the terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=110)
