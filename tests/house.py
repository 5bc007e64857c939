"""The architecture rules as functions: which package may import which, and what committed files may not contain.

The functions depend on source text only, so that ``test_house.py`` can test each rule with a text that breaks it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

FLOORS = (
    {"__main__"},
    {"cli"},
    {"serve", "sweep"},
    {"engine"},
    {"callbacks"},
    {"hub"},
    {"report"},
    {"predictor"},
    {"router"},
    {"exchange"},
    {"store"},
    {"learner"},
    {"kinds"},
    {"streams"},
    {"heads", "metrics"},
    {"banks"},
    {"backbones"},
    {"_hub_cache"},
    {"kind_registry"},
    {"_strict_model", "kind"},
    {"added", "own_code"},
    {"digests", "errors", "seeding", "spelling", "_lazy", "_notebook", "_version"},
    {"_process"},
)
"""Top floor first. A package may import itself and packages on lower floors, nothing else, even under TYPE_CHECKING."""

FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

INSIDE = {
    "banks": (
        {"mixed"},
        {"ablated_view", "states_below", "merge"},
        {"attach"},
        {"attention_hooks", "bank", "prompt_hooks", "recompute"},
        {"forms", "own_parameters"},
        {"config"},
    ),
    "streams": (
        {"batches", "stream"},
        {"scaffold"},
        {"preparation", "stream_file"},
        {"encoding"},
        {"sources"},
        {"reader"},
        {"schema", "embedded"},
        {"protocols"},
    ),
    "engine": (
        {"commands"},
        {"run"},
        {"import_adapter"},
        {"learn", "forget", "reevaluate", "dry_run"},
        {"verify", "ablation"},
        {"parallel"},
        {"task"},
        {"start_from"},
        {"task_run"},
        {"scoring", "checks"},
        {"changed_settings"},
        {"session", "trainers"},
        {"sharded"},
        {"signals"},
    ),
    "exchange": (
        {"export_task", "import_adapter", "task_model"},
        {"expressible"},
        {"merged", "peft", "adapterhub"},
        {"imported"},
        {"readme", "check_readme"},
        {"readme_code", "compare", "adapter_files", "adapted_model"},
        {"classes", "model_card", "subject", "pickled"},
        {"formats"},
    ),
    "store": (
        {"commit", "inspect", "model_cache", "open_run", "signature"},
        {"verify", "forget"},
        {"store", "bank_cache"},
        {"folder_reader"},
        {"dependencies"},
        {"folder", "strict_load"},
        {"ledger"},
        {"certificate"},
        {"files"},
    ),
}
"""Subpackages and modules of the larger packages, top floor first; ``__init__`` may re-export from any of them."""

PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
MACHINE_PATH = re.compile(r"(?<![\w.$}~-])/(?:(?:work|root)/|(?:home|Users)/(?!you\b)\w)")
LINKED = ("streams", "callbacks")


def source_files() -> Iterator[tuple[str, Path]]:
    """Yield the module name and the path of every source file, and files in linked folders only once."""
    for top, package in (("continual_petl", "continual_petl"), *((x, f"continual_petl.{x}") for x in LINKED)):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT / top).with_suffix("").parts
            if top == "continual_petl" and parts[0] in LINKED:
                continue
            yield ".".join((package, *(part for part in parts if part != "__init__"))), path


@cache  # several rules ask for the same files
def imports(module: str, source: str, *, is_package: bool = False) -> list[tuple[int, str]]:
    """Return the line and the absolute name of everything that ``module`` imports, at any depth and in any branch.

    ``from a import b`` counts as ``a.b``, since ``b`` may be a module. ``import_module`` counts if its argument is constant.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".") if is_package else module.split(".")[:-1]
                base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [node.module])])
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                found.append((node.lineno, node.args[0].value))
    return found


def upward_imports(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """Return one sentence for each import in ``module`` that is not from a lower floor."""
    if module == "continual_petl":
        return []  # the facade: it re-exports from any floor, and no package may import it
    room = module.split(".")[1]
    if room not in FLOOR_OF:
        return [f"{module}: unknown package {room!r}; add it to FLOORS in tests/house.py"]
    wrong = []
    for line, name in imports(module, source, is_package=is_package):
        parts = name.split(".")
        if parts[0] in LINKED:
            wrong.append(f"{module}:{line} imports {name!r}: write continual_petl.{name}")
        elif parts[0] == "continual_petl":
            other = parts[1] if len(parts) > 1 else ""
            if other not in FLOOR_OF:
                wrong.append(f"{module}:{line} imports {name!r}: import from the package, not from the facade")
            elif other != room and FLOOR_OF[other] <= FLOOR_OF[room]:
                wrong.append(f"{module}:{line} imports {name!r}: {room} may not import {other}, which is not below it")
            elif room == other and room in INSIDE and module.count(".") > 1:
                wrong += _upward_inside(room, module, line, name)
    return wrong


def _upward_inside(whole: str, module: str, line: int, name: str) -> list[str]:
    floor_of = {room: number for number, rooms in enumerate(INSIDE[whole]) for room in rooms}
    room, other = module.split(".")[2], name.split(".")[2]
    if room not in floor_of or other not in floor_of:
        return [f"{module}:{line} imports {name!r}: unknown part of {whole}; add it to INSIDE in tests/house.py"]
    if room == other or floor_of[room] < floor_of[other]:
        return []
    return [f"{module}:{line} imports {name!r}: {room} may not import {other}, which is not below it"]


def imported_files(module: str, source: str, files: Collection[str]) -> set[str]:
    """Return which of ``files`` a module imports, at any depth and in any branch."""
    names = {name for _, name in imports(module, source, is_package=False)}
    return {file for name in names for file in (name, name.rpartition(".")[0]) if file in files and file != module}


def circles(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other directly or indirectly, sorted."""
    below: dict[str, set[str]] = {}
    for module in graph:
        seen, left = set[str](), list(graph[module])
        while left:
            each = left.pop()
            if each not in seen:
                seen.add(each)
                left += graph[each]
        below[module] = seen
    found = {tuple(sorted(b for b in below[a] if a in below[b])) for a in graph if a in below[a]}
    return [list(group) for group in sorted(found)]


def pickle_uses(where: str, source: str) -> list[str]:
    """Return one sentence for each import or call in ``source`` that could write or read a pickle."""
    wrong = [
        f"{where}:{line} imports {name!r}"
        for line, name in imports(where, source, is_package=False)
        if name.split(".")[0] in PICKLES
    ]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        keywords = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
        called = f"{getattr(node.func.value, 'id', '?')}.{node.func.attr}"
        if called == "torch.save" or (called == "torch.load" and keywords.get("weights_only") is not True):
            wrong.append(f"{where}:{node.lineno} calls {called}: banks are JSON and safetensors")
        if keywords.get("allow_pickle"):
            wrong.append(f"{where}:{node.lineno} calls {called} with allow_pickle")
    return wrong


def machine_paths(where: str, text: str) -> list[str]:
    """Return one sentence for each line of ``text`` that contains an absolute path of a developer's machine."""
    return [
        f"{where}:{number} contains a path of one machine: {line.strip()[:80]}"
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]


def missing_docstrings(module: str, source: str) -> list[str]:
    """Return one sentence for each missing docstring of the module or of a public function or class at its top level."""
    tree = ast.parse(source)
    wrong = [] if ast.get_docstring(tree) else [f"{module} has no docstring"]
    wrong += [
        f"{module}:{node.lineno} {node.name} has no docstring"
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if not node.name.startswith("_") and not ast.get_docstring(node)
    ]
    return wrong
