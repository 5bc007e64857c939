"""Published numbers for the same streams, for context only: they are not comparable with ours.

Backbones, numbers of rows and protocols differ; some numbers come from secondary sources, see ``source``. Known errors or
ambiguities are in ``flag``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One published number."""

    method: str
    value: str
    source: str
    flag: str = ""
    """A caveat to consider before quoting it."""


@dataclass(frozen=True)
class Table:
    """The published numbers for one setting."""

    setting: str
    """Backbone, stream, rows."""
    rows: tuple[Published, ...]


_NOTE = "secondary source"
_OLORA = "O-LoRA, Table 2, as later papers quote it"
_FEW = "equals the number in the Progressive Prompts paper for 16 rows per class"

FIVE = (
    Table(
        "BERT-base, five tasks, 115,000 training rows each; average accuracy over four orders",
        (
            Published("A-GEM", "66.9", f"Progressive Prompts; {_NOTE}"),
            Published("MBPA++", "70.6", f"Progressive Prompts; {_NOTE}", "70.7 in the original, 74.2 in LAMOL's rerun"),
            Published("LAMOL", "76.5", _NOTE, "GPT-2, not BERT"),
            Published("IDBR", "76.3", _NOTE, "78.1 in a later comparison, setting unclear"),
            Published(
                "Progressive Prompts", "77.9", _NOTE, "is given the task; 79.9 in a later comparison, setting unclear"
            ),
        ),
    ),
    Table(
        "T5-large, four of the five tasks (no Yelp); average accuracy over three orders",
        (
            Published("sequential fine-tuning", "28.5", _OLORA, f"75.7 when MIGU's authors ran it again; {_FEW}"),
            Published("sequential LoRA", "43.7", _OLORA, "67.9 in MIGU's rerun, 39.3 in LB-CL"),
            Published("replay", "57.8", _OLORA, "38.0 in Progressive Prompts"),
            Published("EWC", "50.3", _OLORA, "40.6 in Progressive Prompts"),
            Published("LFPT5", "72.7", _OLORA, "52.7 in Progressive Prompts and in LFPT5's own table"),
            Published(
                "O-LoRA", "75.8", _OLORA, "the released scripts write the task's name into every prompt, in tests too"
            ),
            Published("Progressive Prompts", "75.1", _OLORA, f"is given the task; {_FEW}"),
            Published("fine-tuning per task", "70.0", _OLORA, "16 rows per class; other methods have 1,000"),
            Published("multi-task", "80.0", _OLORA),
        ),
    ),
)

FIFTEEN = (
    Table(
        "T5-large, all fifteen tasks; average accuracy over orders O4 to O6",
        (
            Published("sequential fine-tuning", "7.4", _OLORA, "68.3 when MIGU's authors ran it again"),
            Published("sequential LoRA", "1.6", _OLORA, "46.0 in MIGU's rerun, 4.2 in LB-CL"),
            Published("replay", "54.2", _OLORA),
            Published("EWC", "45.1", _OLORA),
            Published("LFPT5", "69.2", _OLORA),
            Published(
                "O-LoRA", "69.6", _OLORA, "the released scripts write the task's name into every prompt, in tests too"
            ),
            Published(
                "Progressive Prompts",
                "77.9",
                _OLORA,
                "equals that paper's figure for BERT on five tasks; for this setting, it reports 79.5",
            ),
            Published("fine-tuning per task", "78.1", _OLORA),
            Published("multi-task", "76.5", _OLORA),
        ),
    ),
    Table(
        "BERT-base, fifteen tasks, 1,000 rows per class",
        (
            Published("Progressive Prompts", "69.3", f"Progressive Prompts; {_NOTE}", "is given the task"),
            Published("IDBR", "52.2", f"Progressive Prompts; {_NOTE}"),
        ),
    ),
)

WARNING = (
    "Data, backbones and protocols differ: no number below can be compared with one above. In the files released with "
    "O-LoRA's benchmark, dev.json is byte for byte the same as test.json, so anything tuned on it was tuned on test rows."
)


def shown(tables: tuple[Table, ...]) -> str:
    """Return the tables as Markdown."""
    parts = [WARNING]
    for table in tables:
        rows = [f"| {row.method} | {row.value} | {row.source} | {row.flag} |" for row in table.rows]
        parts.append("\n".join([f"{table.setting}:", "", "| | | source | caveat |", "|---|---:|---|---|", *rows]))
    return "\n\n".join(parts)
