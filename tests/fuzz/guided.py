"""``python -m tests.fuzz.guided TARGET FOLDER [libFuzzer options]``: coverage-guided fuzzing.

Needs Atheris (https://github.com/google/atheris, 3.0 has wheels for Python 3.11): ``pip install atheris``. Nothing
else here uses it. Useful options: ``-max_total_time=600 -max_len=4096 -seed=1``. FOLDER gets a file for each finding and
keeps the inputs that reached new lines; the fuzzer continues after a finding, and reports every error once.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from pathlib import Path
from typing import Any


def _dictionary(tokens: list[bytes], path: Path) -> None:
    """Write fragments of the input language as a dictionary for libFuzzer."""
    lines = {'"' + "".join(f"\\x{byte:02x}" for byte in token) + '"' for token in tokens if 0 < len(token) <= 60}
    path.write_text("\n".join(sorted(lines)) + "\n", encoding="ascii")


def main(argv: list[str]) -> None:
    """Fuzz a target until it is stopped, for instance by one of libFuzzer's limits."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["continual_petl.streams", "continual_petl.banks.config.spec", "yaml"]):
        importlib.import_module("continual_petl.streams.stream_file.yaml_file")
        importlib.import_module("continual_petl.streams.preparation.labels")
    from tests.fuzz.target import attempt
    from tests.fuzz.targets import TARGETS

    target, folder = TARGETS[argv[1]], Path(argv[2])
    kept, found = folder / "kept", folder / "found"
    for path in (kept, found):
        path.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(target.seeds):
        (kept / f"seed-{number}").write_bytes(seed)
    _dictionary(target.tokens, folder / "tokens.dict")
    known: set[str] = set()

    def one(data: bytes) -> None:
        finding = attempt(target, data)
        if finding is not None and finding.what not in known:
            known.add(finding.what)
            (found / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
            print(f"FOUND {finding.what}: {data[:200]!r}", file=sys.stderr, flush=True)

    atheris.Setup([argv[0], str(kept), f"-dict={folder / 'tokens.dict'}", *argv[3:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv)
