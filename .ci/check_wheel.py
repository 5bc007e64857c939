"""Check the package from outside: build it in two ways, install it in an empty environment, and use it from another folder.

A wheel can be wrong while every test in the checkout passes: a subpackage that nobody listed is missing, a folder is lost
on the way through the sdist, a second top-level name appears, a dependency is only installed by chance. So this script
builds the wheel directly and by way of the sdist, compares both with the files on disk, and then imports, runs and
type-checks the installed package from another directory.

The empty environment gets only the packages that the wheel's metadata requires. They are already installed here, at the same
pinned versions, so they are linked instead of unpacked again; `pip check` must find nothing missing.

Usage: .venv/bin/python .ci/check_wheel.py [--dist FOLDER]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "continual_petl"
ROOMS = {"continual_petl": PACKAGE, "streams": f"{PACKAGE}/streams", "callbacks": f"{PACKAGE}/callbacks"}
SOURCES = (".py", ".j2", ".css", ".js", ".html")
NOT_SOURCE = ("build", "dist", "runs", ".git", ".venv", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")
TYPE_PROBE = (
    "from continual_petl.errors import InputError\n"
    "from continual_petl.streams.schema.stream_spec import StreamSpec\n"
    "reveal_type(InputError)\n"
    "reveal_type(StreamSpec)\n"
)
# The types of other packages do not matter here, and checking torch would take a minute.
TYPE_CONFIG = "[mypy]\nstrict = true\n" + "".join(
    f"[mypy-{name},{name}.*]\nfollow_imports = skip\n"
    for name in ("torch", "transformers", "lightning", "torchmetrics", "datasets", "wandb", "numpy", "rich")
)


def _run(*command: str | Path, cwd: Path, expect: tuple[str, ...] = ()) -> None:
    """Run ``command`` without this checkout on its path; exit if it fails or its output lacks an expected fragment."""
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}}
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    shown = " ".join(str(part) for part in command).replace("\n", "; ")
    missing = [fragment for fragment in expect if fragment not in done.stdout]
    if done.returncode != 0 or missing:
        sys.exit(f"{done.stdout}\nfailed (exit code {done.returncode}, missing from the output: {missing}): {shown}")
    print(f"  {time.monotonic() - started:6.1f} s  {shown}", flush=True)


def files_on_disk() -> set[str]:
    """Return the names that the wheel must contain, from the three source folders (links are not followed)."""
    found = set()
    for folder, inside in ROOMS.items():
        for path in (ROOT / folder).rglob("*"):
            relative = path.relative_to(ROOT / folder)
            wanted = path.suffix in SOURCES or path.name == "py.typed" or relative.match("catalog/*.yaml")
            linked = folder == PACKAGE and relative.parts[0] in ROOMS
            if wanted and not linked:
                found.add(f"{inside}/{relative.as_posix()}")
    return found


def check_contents(wheel: Path) -> None:
    """Stop unless ``wheel`` has one top-level name and exactly the files on disk."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    if (tops := {name.split("/")[0] for name in names}) != {PACKAGE}:
        sys.exit(f"{wheel} installs the top-level names {sorted(tops)}; only {PACKAGE!r} is allowed")
    if names != (expected := files_on_disk()):
        sys.exit(
            f"{wheel} differs from the source folders: missing {sorted(expected - names)}, unexpected "
            f"{sorted(names - expected)}: see packages and package-data in pyproject.toml"
        )


def build(work: Path) -> tuple[Path, Path]:
    """Return a checked wheel and sdist, built from a clean copy: files of an old ``build/`` would end up in the wheel."""
    source = work / "source"
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(*NOT_SOURCE))
    _run(sys.executable, "-m", "build", "--wheel", "--outdir", work / "direct", cwd=source)
    _run(sys.executable, "-m", "build", "--outdir", work / "via_sdist", cwd=source)  # sdist, then the wheel from it
    (direct,) = (work / "direct").glob("*.whl")
    (wheel,) = (work / "via_sdist").glob("*.whl")
    (sdist,) = (work / "via_sdist").glob("*.tar.gz")
    for each in (direct, wheel):
        check_contents(each)
    return wheel, sdist


def required(wheel: Path) -> dict[str, importlib.metadata.Distribution]:
    """Return the distributions of all packages that ``wheel`` requires, by name, as installed here."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        wanted = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
    found: dict[str, importlib.metadata.Distribution] = {}
    seen, todo = set(), [(line, "") for line in wanted]
    while todo:
        line, extra = todo.pop()
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        key = canonicalize_name(requirement.name)
        try:
            found[key] = importlib.metadata.distribution(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            sys.exit(f"{wheel.name} needs {line!r}, which is not in the environment that runs this script")
        new = {(key, each) for each in ("", *requirement.extras)} - seen
        seen |= new
        todo += [(needed, each) for _, each in new for needed in found[key].requires or []]
    return found


def link(distribution: importlib.metadata.Distribution, folder: Path) -> None:
    """Link or copy the files of an installed package into ``folder``, with their byte code but without its scripts."""
    for file in distribution.files or []:
        if ".." in file.parts:
            continue
        pairs = [(Path(str(distribution.locate_file(file))), folder / file)]
        if file.suffix == ".py":
            made = Path(importlib.util.cache_from_source(str(pairs[0][0])))
            pairs.append((made, folder / file.parent / "__pycache__" / made.name))
        for source, target in pairs:
            if source.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(source, target)
                except OSError:  # another file system
                    shutil.copy2(source, target)


def use_from_elsewhere(wheel: Path, work: Path) -> None:
    """Install ``wheel`` in an empty environment and import, run and type-check it from an empty folder."""
    elsewhere = work / "elsewhere"
    elsewhere.mkdir()
    _run(sys.executable, "-m", "venv", "--without-pip", work / "empty", cwd=elsewhere)
    binaries = work / "empty" / ("Scripts" if os.name == "nt" else "bin")
    python = binaries / "python"
    packages = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(work / "empty")}))
    started = time.monotonic()
    found = required(wheel)
    for distribution in found.values():
        link(distribution, packages)
    print(f"  {time.monotonic() - started:6.1f} s  link the {len(found)} packages that the wheel requires", flush=True)
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    _run(*pip, "install", "--quiet", "--no-compile", "--no-index", "--no-deps", wheel, cwd=elsewhere)
    _run(*pip, "check", cwd=elsewhere)
    _run(python, "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)", cwd=elsewhere, expect=(str(work / "empty"),))
    _run(python, "-c", f"import {PACKAGE}.streams.schema.stream_spec, {PACKAGE}.metrics", cwd=elsewhere)
    _run(binaries / "continual-petl", "--help", cwd=elsewhere, expect=("continual-petl",))
    _run(python, "-m", PACKAGE, "--help", cwd=elsewhere, expect=("continual-petl",))
    config = work / "mypy.ini"
    config.write_text(TYPE_CONFIG, encoding="utf-8")
    mypy = (
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        config,
        "--cache-dir",
        os.devnull,
        "--python-executable",
        python,
    )
    known = (
        f"{PACKAGE}.errors.InputError",
        f"{PACKAGE}.streams.schema.stream_spec.StreamSpec",
    )  # Any would mean "not typed"
    _run(*mypy, "-c", TYPE_PROBE, cwd=elsewhere, expect=known)


def main() -> None:
    """Build, check, and leave the checked wheel and sdist in ``--dist``."""
    parser = argparse.ArgumentParser(description="Build the package and check it from an empty environment.")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the checked files are put")
    dist = parser.parse_args().dist
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="check_wheel_") as folder:
        work = Path(folder).resolve()
        wheel, sdist = build(work)
        use_from_elsewhere(wheel, work)
        dist.mkdir(parents=True, exist_ok=True)
        for each in (wheel, sdist):
            shutil.copy2(each, dist)
        took = time.monotonic() - started
    print(f"{wheel.name}: {len(files_on_disk())} files, checked from outside in {took:.0f} s")


if __name__ == "__main__":
    main()
