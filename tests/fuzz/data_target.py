"""Data files as a fuzz target: arbitrary bytes, read for training and for `predict`.

The first line of an input is the name of the file, which implies its format; the rest is its content. Most mutations of a
compressed file only damage it, so if the name begins with ``packed-``, the content is compressed after the mutation.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from continual_petl.errors import InputError
from continual_petl.streams.reader.records import read_records
from continual_petl.streams.schema.limits_spec import LimitsSpec
from continual_petl.streams.schema.stream_spec import ColumnsSpec
from continual_petl.streams.sources.read_splits import read_splits
from tests.fuzz.target import Target
from tests.streams.strange_files import ROWS, csv_text, cut, json_lines, nested, table, tarred, write_table, zipped

_FOLDER = Path(tempfile.mkdtemp(prefix="fuzz-data-"))
LIMITS = LimitsSpec(cell_mb=0.01, unpacked_gb=0.001)
TEXTS = ("csv", "tsv", "json", "jsonl", "txt", "conll", "conllu")
NAMES = [
    *(f"rows.{text}{end}" for text in TEXTS for end in ("", ".gz")),
    "rows.parquet",
    "rows.arrow",
    "rows.feather",
    "packed-rows.csv.gz",
]
SQUAD = json.dumps(
    {
        "data": [
            {
                "title": "t",
                "paragraphs": [{"context": "a b", "qas": [{"answers": [{"text": "a", "answer_start": 0}]}]}],
            },
            {"paragraphs": []},
        ]
    }
)
PACK: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def check_data_file(data: bytes) -> None:
    """Read a file in all ways; check that rows are within the limits, and that errors are short and name the file."""
    first, _, content = data.partition(b"\n")
    name = first.decode("latin-1")
    if name not in NAMES:
        name = NAMES[sum(first) % len(NAMES)]
    path = _FOLDER / name
    path.write_bytes(PACK["gz"](content) if name.startswith("packed-") else content)
    problems = []
    for read in (_train, _predict):
        try:
            read(path)
        except InputError as error:
            problems.append(error)
    for problem in problems:
        assert len(str(problem)) < 10_000
        assert str(path) in str(problem)
    if problems:
        raise problems[0]


def _train(path: Path) -> None:
    columns = ColumnsSpec(text="text", label="text2") if path.suffix == ".txt" else ColumnsSpec()
    kind = "token-classification" if ".conll" in path.name else "classification"
    rows = read_splits("t", str(path), columns, limits=LIMITS, kind=kind)["train"]
    texts = [text for row in rows.inputs for text in (row if isinstance(row, list) else [row]) if isinstance(text, str)]
    assert max(map(len, texts), default=0) <= LIMITS.cell_mb * 1e6


def _predict(path: Path) -> None:
    for _, record in read_records(str(path), path, LIMITS):
        assert isinstance(record, dict)


def data_files() -> list[bytes]:
    """Return files of each format, some of them malformed."""
    few = ROWS[:4]
    text, lines = csv_text(few), json_lines(few)
    files = {
        "rows.csv": [
            text,
            'text,label\n"a, ""b""\nc",y\nd,n\n',
            text.replace("\n", "\r\n"),
            "\ufeff" + text,
            text[:-3] + '"',
        ],
        "rows.tsv": [text.replace(",", "\t")],
        "rows.jsonl": [
            lines,
            nested(700),
            '{"text": ["a", {"b": 1}], "label": [1]}\n{"text": "\\ud800", "label": null}\n',
        ],
        "rows.conll": ["-DOCSTART- -X- O\n\nw1 NN B-X\nw2 NN O\n\n# id 1 domain=en\nw3 NN O\n", "a\tO\nb c\tB-X\n"],
        "rows.conllu": ["# sent_id = 1\n1-2\tab" + "\t_" * 8 + "\n1\ta" + "\t_" * 8 + "\n1.1\tb" + "\t_" * 8],
        "rows.json": [
            SQUAD,
            f"[{','.join(lines.splitlines())}]",
            '{"text": {"0": "a"}, "label": {"0": "y"}}',
            "[" * 3000,
        ],
        "rows.txt": ["a\nb\n"],
        "packed-rows.csv.gz": [text, "text,label\n" + "a,y\n" * 5000],
    }
    made = [(name, content.encode()) for name, contents in files.items() for content in contents]
    made += [("rows.csv", text.encode(encoding)) for encoding in ("latin-1", "utf-16", "utf-16-be")]
    made += [
        (f"rows.{kind}.gz", gzip.compress(content.encode())) for kind, content in (("csv", text), ("jsonl", lines))
    ]
    made += [("rows.jsonl", pack(lines.encode())) for pack in (*PACK.values(), zipped, tarred)]
    made += [("rows.csv.gz", cut(text))]
    arrays: list[list[Any]] = [["a", "b"], [["a"], None], [{"k": "v"}, {"k": None}], [0, 1], [b"\xff", b""]]
    made += [
        (name, write_table(_FOLDER / name, table(array)).read_bytes())
        for name in ("rows.parquet", "rows.arrow")
        for array in arrays
    ]
    pq.write_table(table(["w" * 900] * 500), _FOLDER / "seed", compression="zstd")
    made.append(("rows.parquet", (_FOLDER / "seed").read_bytes()))
    return [name.encode() + b"\n" + content for name, content in made]


def data_tokens() -> list[bytes]:
    """Return fragments that have a meaning in one of the formats."""
    marks = [
        b'"',
        b'""',
        b",",
        b"\t",
        b"\n",
        b"\r",
        b"\r\n",
        b"\0",
        b"[",
        b"{",
        b"}",
        b"]",
        b":",
        b"\\u0000",
        b"\\ud800",
    ]
    starts = [
        b"\xff\xfe",
        b"\xfe\xff",
        b"\xef\xbb\xbf",
        b"\x1f\x8b\x08",
        b"PK\x03\x04",
        b"PK\x05\x06",
        b"PAR1",
        b"ARROW1",
    ]
    long = [
        b"[" * 600,
        b"x" * 20_000,
        b'"' * 99,
        b"1e999",
        b"9" * 5000,
        b"\xe9",
        b"\x80",
        b"null",
        b'{"text": {"text": []}}',
        b'"paragraphs": [',
        b'"qas": [{',
        b'"answers": []',
        b"-DOCSTART-",
        b"# sent_id = ",
        b"1-2\t_\t_",
        b"\n\n1\t",
    ]
    return [*marks, *starts, *long, *(name.encode() + b"\n" for name in NAMES)]


DATA_FILES = Target("data-files", check_data_file, (InputError,), data_files, data_tokens)
