"""Architecture rules: imports point down, no pickle, no machine paths, light modules stay light.

Each rule is also tested with a file that breaks it, since a check that never fails proves nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from tests.house import (
    FLOOR_OF,
    ROOT,
    circles,
    imported_files,
    imports,
    machine_paths,
    missing_docstrings,
    pickle_uses,
    source_files,
    upward_imports,
)

pytestmark = pytest.mark.smoke

SOURCES = dict(source_files())
HEAVY = {"torch", "transformers", "datasets", "lightning", "wandb", "pandas", "numpy"}


def _committed() -> list[str]:
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, check=True, text=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.split("\0") if (ROOT / name).is_file()]


def test_every_package_has_a_level_and_every_file_is_scanned() -> None:
    rooms = {name.split(".")[1] for name in SOURCES if name.count(".")}
    assert rooms <= set(FLOOR_OF)
    assert {"continual_petl.streams", "continual_petl.callbacks", "continual_petl.metrics"} <= set(SOURCES)


def test_imports_point_down() -> None:
    assert [
        wrong
        for module, path in SOURCES.items()
        for wrong in upward_imports(module, path.read_text("utf-8"), is_package=path.name == "__init__.py")
    ] == []


def test_no_circular_imports() -> None:
    """``__init__`` files are left out: their lazy exports name modules that import other modules of the same package."""
    files = {module: path for module, path in SOURCES.items() if path.name != "__init__.py"}
    graph = {module: imported_files(module, path.read_text("utf-8"), files) for module, path in files.items()}
    assert circles(graph) == []


def test_circular_import_is_detected() -> None:
    files = {"p.a", "p.b", "p.c"}
    assert imported_files("p.a", "if TYPE_CHECKING:\n    from p.b import B\nimport p.c", files) == {"p.b", "p.c"}
    assert circles({"p.a": {"p.b"}, "p.b": {"p.c"}, "p.c": {"p.b"}}) == [["p.b", "p.c"]]
    assert circles({"p.a": {"p.b"}, "p.b": {"p.c"}, "p.c": set()}) == []


@pytest.mark.parametrize(
    ("module", "source", "fragment"),
    [
        ("continual_petl.banks.x", "from continual_petl.store import Store", "banks may not import store"),
        ("continual_petl.banks.x", "import continual_petl.store.folder", "may not import store, "),
        ("continual_petl.banks.x", "def f():\n    from continual_petl import cli", "may not import cli, "),
        (
            "continual_petl.banks.x",
            "if TYPE_CHECKING:\n    from continual_petl.learner import L",
            "may not import learner, ",
        ),
        ("continual_petl.banks.x", "from ..heads import Head", "may not import heads, "),
        ("continual_petl.banks.x", "from .. import heads", "may not import heads, "),
        ("continual_petl.banks.x", "importlib.import_module('continual_petl.report')", "may not import report, "),
        ("continual_petl.heads.x", "from continual_petl.metrics import acc", "may not import metrics, "),
        ("continual_petl.streams.x", "import streams.schema", "write continual_petl.streams.schema"),
        ("continual_petl.engine.x", "from callbacks import Progress", "write continual_petl.callbacks.Progress"),
        ("continual_petl.cli.x", "from continual_petl import learn", "not from the facade"),
        ("continual_petl.cli.x", "import continual_petl", "not from the facade"),
        ("continual_petl.errors", "from continual_petl.seeding import derive_seed", "may not import seeding, "),
        ("continual_petl.attic.x", "", "unknown package 'attic'"),
        (
            "continual_petl.streams.sources.x",
            "import continual_petl.streams.encoding.rows",
            "may not import encoding, ",
        ),
        ("continual_petl.streams.encoding", "import continual_petl.streams.attic.x", "unknown part of streams"),
    ],
)
def test_upward_import_is_detected(module: str, source: str, fragment: str) -> None:
    (sentence,) = upward_imports(module, source)
    assert fragment in sentence


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("continual_petl.engine.x", "from continual_petl import store"),
        ("continual_petl.engine.x", "from continual_petl.streams.schema.stream_spec import StreamSpec"),
        ("continual_petl.banks.attach", "from .bank import Bank\nfrom ..errors import InputError"),
        ("continual_petl", "from continual_petl.cli import main"),
        ("continual_petl.banks.x", "import torch, transformers.models"),
    ],
)
def test_downward_import_is_allowed(module: str, source: str) -> None:
    assert upward_imports(module, source) == []


def test_relative_imports_are_resolved_from_the_package() -> None:
    assert imports("continual_petl.banks", "from .bank import A", is_package=True) == [
        (1, "continual_petl.banks.bank.A")
    ]
    assert imports("continual_petl.banks.x", "from .bank import A") == [(1, "continual_petl.banks.bank.A")]


def test_pickle_is_not_used() -> None:
    experiments = {str(path.relative_to(ROOT)): path for path in (ROOT / "experiments").rglob("*.py")}
    found = [
        wrong for name, path in (SOURCES | experiments).items() for wrong in pickle_uses(name, path.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import dump",
        "torch.save(x, path)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
    ],
)
def test_pickle_use_is_detected(source: str) -> None:
    assert pickle_uses("x", source)
    assert not pickle_uses("x", "torch.load(path, weights_only=True); json.load(f); np.load(f, allow_pickle=False)")


def test_committed_files_contain_no_machine_paths() -> None:
    found = []
    for name in _committed():
        try:
            found += machine_paths(name, (ROOT / name).read_text("utf-8"))
        except UnicodeDecodeError:
            continue  # not text
    assert found == []


@pytest.mark.parametrize("folder", ["work", "root", "home/someone", "Users/someone"])
def test_machine_path_is_detected(folder: str) -> None:
    assert machine_paths("x", f"see '/{folder}/data/a.csv'")
    assert not machine_paths(
        "x", f"see https://example.org/{folder}/data, ~/{folder}/x, ${{HOME}}/{folder}/x, /home/you/x"
    )


def test_public_objects_have_docstrings() -> None:
    assert [
        wrong for module, path in SOURCES.items() for wrong in missing_docstrings(module, path.read_text("utf-8"))
    ] == []


def test_missing_docstring_is_detected() -> None:
    assert missing_docstrings("x", "def f(): ...\nclass _C: ...") == ["x has no docstring", "x:1 f has no docstring"]


@pytest.mark.parametrize("module", ["continual_petl", "continual_petl.errors", "continual_petl.banks.config.presets",
                                    "continual_petl.streams.schema.stream_spec", "continual_petl.__main__"])  # fmt: skip
def test_light_modules_import_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True, text=True)
    assert HEAVY & set(done.stdout.split()) == set()


def test_constraints_pin_every_requirement_of_the_project() -> None:
    pinned = {}
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            name, separator, version = line.partition("==")
            assert separator, f"constraints.txt: {line!r} is not NAME==VERSION"
            assert version
            pinned[_canonical(name)] = version
    with open(ROOT / "pyproject.toml", "rb") as handle:
        project = tomllib.load(handle)["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    names = {_canonical(re.split(r"[\s<>=!~;\[]", each, maxsplit=1)[0]) for each in wanted}
    assert names - set(pinned) == set()


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_hooks_and_ci_use_existing_make_targets() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    hooks = re.findall(r"entry: make ([a-z-]+)", (ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    in_ci = re.findall(r"^ *run ([a-z-]+)", (ROOT / ".ci" / "run").read_text("utf-8"), flags=re.MULTILINE)
    (check,) = re.findall(r"^check: ([a-z -]+?)  ##", makefile, flags=re.MULTILINE)
    assert hooks
    assert set(hooks) <= targets
    assert {"lint", "types", "docs", "test", "wheel", "test-slow"} <= set(check.split())
    assert sorted(in_ci) == sorted(["environment", *check.split()])
    assert set(in_ci) <= targets
