"""Parse YAML text into plain data, and record the line of every key.

Scalars follow the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema), not YAML 1.1 as in PyYAML:
``1e-3`` is a number, ``no`` and ``2024-01-01`` are strings. Unlike in either version, ``007`` is a string, since a label
must not lose its zeros. Nesting, the number of entries and the size after alias expansion are limited, so no file can
exhaust memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from continual_petl.spelling import half_character
from continual_petl.streams.schema.consistency import KeyPath
from continual_petl.streams.stream_file.size_limits import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_ENTRIES,
    MAX_TASKS,
    shorten,
    whole_number,
)

CORE = {
    "null": (re.compile(r"(?:~|null|Null|NULL|)\Z"), [*"~nN", ""]),
    "bool": (re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")),
    "int": (re.compile(r"(?:[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+)\Z"), list("-+0123456789")),
    "float": (
        re.compile(
            r"""(?:[-+]?(?:(?:\.[0-9]+|(?:0|[1-9][0-9]*)\.[0-9]*)(?:[eE][-+]?[0-9]+)?|(?:0|[1-9][0-9]*)[eE][-+]?[0-9]+)
            |[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z""",
            re.VERBOSE,
        ),
        list("-+0123456789."),
    ),
}
"""For each tag, the pattern of its unquoted scalars, and the characters that they can begin with."""
_HINTS = {
    r"'\t'": "indent with spaces, not with tabs",
    "mapping values are not allowed here": "check the indentation of this line and the one above; a text that contains a "
    "colon has to be in quotes",
    "could not find expected ':'": "check indentation, and look for a missing colon or quote in this line and the one above",
    "scanning a quoted scalar": "a quote is missing",
    "but found '<block mapping start>'": "check the indentation of this line",
    "expected <block end>": "check the indentation of this line, and look for a missing quote",
}
"""The likely mistake, keyed by a part of PyYAML's message."""
_TAG = "tag:yaml.org,2002:"


class _Composer(yaml.SafeLoader):
    """PyYAML's composer with the implicit types of YAML 1.2 and limits on nesting and the number of entries."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's class attribute)
    _depth = 0
    _num_nodes = 0
    _in_tasks = False

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        self._num_nodes += 1
        if self._depth > MAX_DEPTH:
            mark = self.get_mark()
            raise yaml.MarkedYAMLError(problem=f"nested more than {MAX_DEPTH} levels deep", problem_mark=mark)
        if self._num_nodes > 2 * MAX_ENTRIES:  # keys are nodes too
            why = f"more than {MAX_ENTRIES} entries: is this a data file?"
            raise yaml.MarkedYAMLError(problem=why, problem_mark=self.get_mark())
        if self._depth == 2 and isinstance(index, yaml.ScalarNode):
            self._in_tasks = index.value == "tasks"
        if self._depth == 3 and self._in_tasks and isinstance(parent, yaml.SequenceNode) and index >= MAX_TASKS:
            why = f"more than {MAX_TASKS:,} tasks: divide them among several streams, each with its own run folder"
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=why, problem_mark=mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


for _name, (_pattern, _first) in CORE.items():
    _Composer.add_implicit_resolver(_TAG + _name, _pattern, _first)


@dataclass
class Parsed:
    """Plain data, the line of every key path in it, and its problems as line, key path and paragraph."""

    tree: Any = None
    lines: dict[KeyPath, int] = field(default_factory=dict)
    problems: list[tuple[int, KeyPath, str]] = field(default_factory=list)


def parse(text: str) -> Parsed:
    """Read one YAML document; mistakes are collected in ``problems``, never raised."""
    parsed = Parsed()
    loader = None
    try:
        loader = _Composer(text)
        node = loader.get_single_node()
        if node is not None:
            parsed.tree = _Builder(parsed).build(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        context, begin = error.context, error.context_mark
        if context and begin and mark and begin.line != mark.line:
            context += f" that begins on line {begin.line + 1}"
        why = ", ".join(part for part in (context, error.problem) if part)
        hint = next((f": {hint}" for words, hint in _HINTS.items() if words in why), "")
        parsed.problems.append((mark.line + 1 if mark else 1, (), f"this is not readable as YAML: {why}{hint}"))
    except yaml.YAMLError as error:  # a character that YAML forbids
        why = " ".join(str(error).split())
        parsed.problems.append((1, (), f"this is not readable as YAML: {why}"))
    except (ValueError, OverflowError):  # PyYAML does not check YAML versions and character codes
        line = 1 if loader is None else loader.get_mark().line + 1
        why = "a character code or YAML version whose number is too large"
        parsed.problems.append((line, (), f"this is not readable as YAML: {why}"))
    finally:
        if loader is not None:
            loader.dispose()
    return parsed


def plain_scalar(text: str) -> Any:
    """Return the value of an unquoted ``text``: null, a boolean, a number, or the text itself.

    Raises:
        ValueError: if it is a whole number beyond the largest float.

    Example:
        >>> plain_scalar("1e-3"), plain_scalar("no"), plain_scalar("007"), plain_scalar("0x10")
        (0.001, 'no', '007', 16)
    """
    for name, (pattern, _) in CORE.items():
        if pattern.match(text):
            return _convert(name, text)
    return text


def _convert(name: str, text: str) -> Any:
    if name == "null":
        return None
    if name == "bool":
        return text[0] in "tT"
    if name == "int":
        return whole_number(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


class _Builder:
    """Converts nodes to data; aliases are expanded in place, within limits."""

    def __init__(self, parsed: Parsed) -> None:
        self.parsed = parsed
        self.num_entries = 0
        self.num_characters = 0

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self.num_entries += 1
        self.num_characters += len(node.value) if isinstance(node, yaml.ScalarNode) else 0
        bounds = (
            (len(path), MAX_DEPTH, "levels"),
            (self.num_entries, MAX_ENTRIES, "entries"),
            (self.num_characters, MAX_BYTES, "characters"),
        )
        for number, bound, what in bounds:
            if number > bound:
                raise yaml.MarkedYAMLError(
                    problem=f"its aliases (*name) expand to more than {bound} {what}; write the values out",
                    problem_mark=node.start_mark,
                )
        self.parsed.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.build(item, (*path, number)) for number, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        return self._problem(node, path, f"the tag {_short(node.tag)} is not supported: remove it")

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        name = node.tag.removeprefix(_TAG)
        if name == "str":
            return node.value if (half := half_character(node.value)) is None else self._half(node, path, half)
        if name not in CORE:
            return self._problem(node, path, f"the tag {_short(node.tag)} is not supported: remove it")
        try:
            return _convert(name, node.value)
        except (ValueError, IndexError):
            return self._problem(node, path, f"got {node.value[:60]!r}, which is not a number that can be read")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag != _TAG + "str":
                shown = repr(key.value) if isinstance(key, yaml.ScalarNode) else "a list or mapping"
                self._problem(key, path, f"the key {shown} is not text: put it in quotes")
            elif key.value == "<<" and key.style is None:
                self._problem(key, path, "merge keys (<<) are not part of YAML 1.2: write the keys out")
            elif (half := half_character(key.value)) is not None:
                self._half(key, path, half)
            elif key.value in lines:
                why = f"is written twice, first on line {lines[key.value]}: keep one of the two"
                self._problem(key, (*path, key.value), why)
            else:
                lines[key.value] = self.parsed.lines[(*path, key.value)] = line
                result[key.value] = self.build(value, (*path, key.value))
        return result

    def _half(self, node: yaml.Node, path: KeyPath, half: str) -> None:
        why = f"the text holds {half}, half of a surrogate pair: write the complete character"
        self._problem(node, path, why)

    def _problem(self, node: yaml.Node, path: KeyPath, text: str) -> None:
        self.parsed.problems.append((node.start_mark.line + 1, path, text))


def _short(tag: str) -> str:
    return shorten("!!" + tag.removeprefix(_TAG) if tag.startswith(_TAG) else tag, 60)
