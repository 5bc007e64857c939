"""The command: ``python -m experiments.sizes [--rows N] [--length N] [--out FOLDER]``.

Computes the sizes of every published model with every bank, measures the small model, and writes ``sizes.json`` and
``README.md``. It takes a minute, and nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from experiments.sizes.estimate import BANKS, sizes
from experiments.sizes.measure import LENGTH, ROWS, SMALL, compared
from experiments.sizes.published import NAMES, published

HERE = Path(__file__).parent
_HEADS = ("backbone", "parameters", "bank", "weights bf16", "int8", "nf4", "kept", "with checkpointing", "total")


def result(rows: int, length: int) -> dict[str, Any]:
    """Return everything that the page shows."""
    found = {
        name: {bank: vars(sizes(published(name), given, rows, length)) for bank, given in BANKS.items()}
        for name in NAMES
    }
    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }
    batch = {"rows": rows, "length": length}
    return {"batch": batch, "banks": BANKS, "sizes": found, "small": compared(), "versions": versions}


def table(found: dict[str, Any], bank: str) -> str:
    """Return the table of one bank."""
    lines = ["| " + " | ".join(_HEADS) + " |", "|---" + "|---:" * (len(_HEADS) - 1) + "|"]
    for name, banks in found["sizes"].items():
        own = banks[bank]
        learning = 4 * own["bank"] + own["gradients"] + own["moments"]
        total = own["nf4"] + learning + own["kept_checkpointing"]
        counts = (f"{own['backbone']:,}", f"{own['bank']:,}")
        rest = (own[key] for key in ("bf16", "int8", "nf4", "kept", "kept_checkpointing"))
        lines.append("| " + " | ".join([name, *counts, *map(_gb, rest), _gb(total)]) + " |")
    return "\n".join(lines)


def page(found: dict[str, Any]) -> str:
    """Return the text of README.md."""
    rows, length = found["batch"]["rows"], found["batch"]["length"]
    small = found["small"]
    ratios = [
        own[f"measured{suffix}"] / own[f"estimated{suffix}"]
        for own in small.values()
        for suffix in ("", "_checkpointing")
    ]
    tables = "\n\n".join(f"`{json.dumps(given)}`:\n\n{table(found, bank)}" for bank, given in found["banks"].items())
    return f"""# Memory needed to learn one bank on decoders of 0.6 to 8 billion parameters

Written by `python -m experiments.sizes` from [sizes.json](sizes.json). Computed from the published configurations, without
weights; the formulas are in [estimate.py](estimate.py). Sizes are in GB (10^9 bytes), for batches of {rows} rows of
{length:,} tokens in bf16. *Kept* are the activations that the backward pass needs, *with checkpointing* those with
`training: {{gradient_checkpointing: true}}`. *Total* is the sum of nf4 weights, activations with checkpointing, and the bank
in float32 with its gradients and AdamW's moments (16 bytes per parameter of the bank). A step also takes temporary memory,
mostly for the gradient of the logits, which is not included.

{tables}

Measured on a model of {SMALL.num_hidden_layers} layers and width {SMALL.hidden_size} with {ROWS} rows of {LENGTH} tokens
on the CPU, {min(ratios):.2f} to {max(ratios):.2f} times the estimated bytes are still allocated after a forward pass, without
and with checkpointing, for both banks.

[qwen3_8b.yaml](qwen3_8b.yaml) is a stream for a single GPU of 24 GB. It has not been run here.
"""


def _gb(number: int) -> str:
    return f"{number / 1e9:.2f}"


def main(arguments: list[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m experiments.sizes", description=__doc__, allow_abbrev=False)
    parser.add_argument("--rows", type=int, default=4, help="rows per batch")
    parser.add_argument("--length", type=int, default=1024, help="tokens per row")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the result and the page")
    given = parser.parse_args(arguments)
    if given.rows < 1 or given.length < 2:
        parser.error(
            f"--rows and --length: got {given.rows} and {given.length}; at least one row of two tokens is needed"
        )
    found = result(given.rows, given.length)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "sizes.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (given.out / "README.md").write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
