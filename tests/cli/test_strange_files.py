"""Hostile data files: every command that reads data refuses them in one paragraph, with file and position."""

from __future__ import annotations

import bz2
import codecs
import gzip
import re
import sys
from pathlib import Path

import pytest

from tests.cli.bench import DATA, Bench
from tests.streams.strange_files import ROWS, csv_text, cut, json_lines, nested, table, write_table

FILES: dict[str, tuple[bytes, str]] = {
    "latin.csv": (
        csv_text().encode("latin-1"),
        "byte 12, on line 2, is not UTF-8; text must be UTF-8. If the file is WINDOWS-1252 (usual in Western Europe; Latin-1 "
        "is part of it), convert it: iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW-FILE",
    ),
    "latin.jsonl": (
        json_lines([{"text": "a", "label": "y"}, *ROWS]).encode("latin-1"),
        "byte 39, on line 2, is not UTF-8",
    ),
    "late.csv": (csv_text(ROWS * 2000).encode() + b"caf\xe9,y\n", "byte 860,014, on line 80,002, is not UTF-8"),
    "end.csv": (csv_text().encode() + "ende,n\u00e9".encode()[:-1], "on line 42, is not UTF-8"),
    "marked.csv": (csv_text().encode("utf-16"), "byte 0, on line 1, is a byte order mark of UTF-16"),
    "marked.jsonl": (json_lines().encode("utf-16"), "convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW-FILE"),
    "wide.csv": (
        csv_text().encode("utf-32"),
        "a byte order mark of UTF-32; text must be UTF-8. If the file is UTF-32, convert it: iconv -f UTF-32 -t UTF-8 FILE",
    ),
    "packed.csv.gz": (gzip.compress(csv_text().encode("latin-1")), "convert it: gzip -dc < FILE | iconv -f WINDOWS-1252"),
    "packed.jsonl": (bz2.compress(json_lines().encode("latin-1")), "convert it: bzip2 -dc < FILE | iconv -f WINDOWS-1252"),
    "plain.csv.gz": (csv_text().encode(), "the name ends in .gz, but the file is not compressed with gzip: rename it"),
    "little.csv": (
        csv_text().encode("utf-16-le"),
        "byte 1, on line 1, is a NUL byte; text must be UTF-8. If the file is UTF-16LE, ",
    ),
    "zeros.jsonl": (bytes(10_000), "line 1 holds many NUL bytes, so this is binary data, or a part of the file was never"),
    "big.jsonl": (json_lines().encode("utf-16-be"), "iconv -f UTF-16BE -t UTF-8 FILE"),
    "open.csv": (
        (csv_text() + 'a,"b\n' + "c,n\n" * 9).encode(),
        "row 41, on line 42, opens a cell with a quotation mark that is never closed, so the rest of the file is part of the "
        "cell",
    ),
    "last.csv": ((csv_text() + '"a').encode(), "row 41, on line 42, opens a cell with a quotation mark that is never closed"),
    "cut.csv.gz": (cut(csv_text()), "the compressed file is damaged or incomplete (Compressed file ended before"),
    "cut.jsonl.gz": (cut(json_lines()), "before the end-of-stream marker was reached). Copy, download or compress it again."),
    "damaged.csv.gz": (cut(csv_text())[:60] + b"x" * 99, "the compressed file is damaged or incomplete (Error -3"),
    "blank.csv": (b"  \n \n\n", "there is no header line, as the first line is blank; it must name every column once."),
    "deep.jsonl": (nested().encode(), "3: nested too deeply (brackets within brackets) to be read. Repair it"),
}  # fmt: skip
COMMANDS = {
    "init": ["init", "FILE", "--output", "FOLDER/new.yaml"],
    "dry run": ["run", "FOLDER/stream.yaml", "--run-dir", "FOLDER/run", "--dry-run"],
    "run": ["run", "FOLDER/stream.yaml", "--run-dir", "FOLDER/run", "--quiet"],
    "predict": ["predict", "FOLDER/run", "--task", "single", "--input", "FILE"],
}


def refused(bench: Bench, command: str, file: str, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return a command's error message for a file that it refuses."""
    (bench.folder / "stream.yaml").write_text(bench.stream.replace(DATA, f"data: {file}"))
    before = bench.learned()
    capsys.readouterr()
    code = bench.main(*(word.replace("FILE", file) for word in COMMANDS[command]), *options)
    shown = capsys.readouterr()
    assert (code, shown.out) == (2, ""), shown
    assert "Traceback" not in shown.err
    assert len(shown.err.splitlines()) == 1, shown.err
    assert bench.learned() == before
    assert not (bench.folder / "new.yaml").exists()
    return shown.err


@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_file_is_refused(bench: Bench, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, (content, says) in FILES.items():
        file = bench.folder / name
        file.write_bytes(content)
        said = refused(bench, command, str(file), capsys)
        assert f"{file}:" in said
        assert re.sub(r"\bFILE\b(?<!NEW-FILE)", str(file), says) in said


@pytest.mark.parametrize("command", COMMANDS)
def test_parquet_file_without_rows_is_refused(bench: Bench, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_table(bench.folder / "none.parquet", table(["a"]).slice(1))
    says = {
        "init": "none.parquet: there are no rows; give files with rows",
        "predict": "none.parquet: it has no rows; give",
    }
    assert says.get(command, "none.parquet): it has 0 rows but needs at least 1; check the file") in refused(
        bench, command, str(file), capsys
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_irregular_file_is_refused(bench: Bench, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    (bench.folder / "endless.csv").symlink_to("/dev/zero")
    for file in ("/dev/zero", str(bench.folder / "endless.csv")):
        said = refused(bench, command, file, capsys)
        assert f"{file}: this is not a regular file but a device, pipe or socket: save the rows as a file" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_limits_can_be_raised(bench: Bench, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = bench.folder / "long.csv"
    file.write_text(csv_text([*ROWS, {"text": "word " * 5000, "label": "y"}]), encoding="utf-8")
    if "run" in command:
        said = refused(bench, command, str(file), capsys, "--tasks.*.limits.cell_mb", "0.02")
        options = ["--tasks.*.limits.cell_mb", "0.05"]
    else:
        said = refused(bench, command, str(file), capsys, "--limits.cell_mb", "0.02")
        options = ["--limits.cell_mb", "0.05"]
    assert "long.csv: row 41, on line 42, has a cell of more than 0.02 million characters (limits.cell_mb)" in said
    assert bench.main(*(word.replace("FILE", str(file)) for word in COMMANDS[command]), *options) == 0
    if command == "init":  # the drafted stream has the same limits
        assert "limits: {cell_mb: 0.05}" in (bench.folder / "new.yaml").read_text()


def test_predict_uses_the_limits_of_the_task(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    kept = bench.folder / "run" / "stream.yaml"
    kept.write_text(kept.read_text().replace("cell_mb: 4.0", "cell_mb: 0.000002", 1))
    file = bench.folder / "rows.csv"
    file.write_text(csv_text(), encoding="utf-8")
    assert bench.main("predict", "FOLDER/run", "--task", "single", "--input", str(file)) == 2
    assert "more than 2e-06 million characters (limits.cell_mb)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "option", "says"),
    [
        ("init", ["--limits.ratio", "0"], "--limits.ratio: got 0; it must be a finite number greater than 0"),
        (
            "predict",
            ["--limits.cell_mb", "nan"],
            "--limits.cell_mb: got nan; it must be a finite number greater than 0",
        ),
        ("predict", ["--limits.unpacked_gb", "inf"], "--limits.unpacked_gb: got inf"),
        ("init", ["--rows", "0"], "--rows: got 0; must be at least 1"),
    ],
)
def test_invalid_limits_are_refused(
    bench: Bench, command: str, option: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(bench, command, str(bench.folder / "data" / "single" / "train.jsonl"), capsys, *option)


def test_too_long_text_for_predict_is_refused(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main("predict", "FOLDER/run", "--task", "single", "w1 " * 900, "--limits.cell_mb", "0.002") == 2
    said = capsys.readouterr().err
    assert "text 1: the text has more than 0.002 million characters (limits.cell_mb). If the file" in said
    assert "--limits.cell_mb 0.005 for init" in said


def test_init_reads_a_limited_number_of_rows(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    file = bench.folder / "rows.csv"
    file.write_text(csv_text(), encoding="utf-8")
    assert bench.main("init", str(file), "--output", "FOLDER/new.yaml", "--rows", "30") == 0
    assert "in 30 of 40 rows" in capsys.readouterr().out


PACKAGES = {"s3": "s3fs", "gs": "gcsfs", "abfs": "adlfs", "sftp": "paramiko"}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("protocol", PACKAGES)
def test_address_that_needs_a_package_is_refused(
    bench: Bench, command: str, protocol: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[protocol], None)
    address = f"{protocol}://bucket/rows.csv"
    said = refused(bench, command, address, capsys)
    assert address in said
    assert "download the file" in said
    if "run" in command:
        assert f"pip install {PACKAGES[protocol]}, or download the files and give their paths." in said


def test_utf_8_byte_order_mark_is_accepted(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "marked.csv"
    file.write_bytes(codecs.BOM_UTF8 + csv_text().encode())
    assert bench.main("predict", "FOLDER/run", "--task", "single", "--input", str(file)) == 0
