"""Fragments of YAML, of JSON and of the stream schema, and values that often break readers."""

from __future__ import annotations

from continual_petl.banks.config.presets import PRESETS
from continual_petl.streams.stream_file.json_schema import Schema, cached_schema
from tests.kinds import METRICS

ODD_NUMBERS = (
    *("0", "-0", "-1", "1e999", "-1e999", "1e999999", "1e-999", ".inf", "-.inf", ".nan", "NaN", "Infinity", "0x", "0o"),
    *(str(2**63), str(2**63 - 1), str(-(2**63)), str(2**64), "0x" + "f" * 4000, "9" * 4301, "-" + "1" * 9999, "1_000"),
    *("007", "0o17", "1.", ".5", "1e-3", "+1", "2024-01-01", "1:30", "0.1e", "٣", "0-9999999999", "top-9999999999"),
)
ODD_TEXTS = (
    *(
        "../x",
        "/abs",
        "a/b",
        "..",
        ".",
        "CON",
        "con.txt",
        "a.",
        "a ",
        "a\n",
        "~",
        "~root",
        "~\0",
        "a\0b",
        "C:\\x",
        "a" * 300,
    ),
    *(
        "n\u0430me",
        "\uff41",
        "\u202egpj.exe",
        "\u200b",
        "\ufeff",
        "\x1b[2J\x1b]0;x\x07",
        "\r",
        "\x7f",
        "\x85",
        "\u2028",
        "\ud800",
    ),
    *(
        "<script>alert(1)</script>",
        "[bold]x[/bold]",
        "[/]",
        "${HOME}",
        "${}",
        "${A\0}",
        "${NO_SUCH}",
        "file:///etc/passwd",
    ),
    *(
        "no",
        "yes",
        "null",
        "<<",
        "=",
        "- a",
        "a: b",
        "#",
        "'",
        '"',
        "\\",
        "\t",
        " ",
        "",
        "\U0001f600",
        "\uffff",
        "\ue000list",
    ),
)
YAML = (
    *(
        b": ",
        b"- ",
        b"? ",
        b", ",
        b"[",
        b"]",
        b"{",
        b"}",
        b"\n",
        b"\n  ",
        b"\n- ",
        b"---\n",
        b"\n...\n",
        b"--- ",
        b"# x\n",
    ),
    *(
        b"&a ",
        b"*a",
        b"&a [*a]",
        b"&a {x: *a}",
        b"<<: *a\n",
        b"!!python/object:os.system ",
        b"!!str ",
        b"!!int ",
        b"!!map ",
    ),
    *(
        b"!!binary ",
        b"!!set ",
        b"!x ",
        b"!<%FF> ",
        b"!",
        b"%YAML 1.1\n",
        b"%YAML 99999.1\n",
        b"%TAG ! x\n",
        b"%YAML " + b"9" * 4400,
    ),
    *(
        b"|\n",
        b">\n",
        b"|9\n",
        b"|-\n",
        b">+\n",
        b"'",
        b'"',
        b'"\\x00"',
        b'"\\ud800"',
        b'"\\U0010FFFF"',
        b'"\\UFFFFFFFF"',
        b'"\\e"',
    ),
    *(
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b"\xfe\xff",
        b"\x00",
        b"\xed\xa0\x80",
        b"\xc2\x85",
        b"\xe2\x80\xa8",
        b"\r",
        b"\r\n",
        b"\t",
    ),
    *(
        b"[" * 50,
        b"{a: " * 50,
        b"- " * 50,
        b"? " * 50,
        b"'" * 50,
        b"[" * 9000,
        b"\n" * 500,
        b"a: &a [1,1]\nb: &b [*a,*a]\n",
    ),
)


def schema_words() -> list[str]:
    """Return every key and every fixed value in the stream schema."""
    words: dict[str, None] = dict.fromkeys(
        (*PRESETS, *METRICS, *(name for names in METRICS.values() for name in names))
    )
    _collect(cached_schema(), words)
    return [word for word in words if word]


def _collect(node: object, words: dict[str, None]) -> None:
    if isinstance(node, dict):
        words |= dict.fromkeys(node.get("properties", {}))
        words |= dict.fromkeys(str(value) for value in (*node.get("enum", ()), node.get("const", "")))
        for below in node.values():
            _collect(below, words)
    elif isinstance(node, list):
        for below in node:
            _collect(below, words)


def yaml_tokens() -> list[bytes]:
    """Return fragments of stream files."""
    words = schema_words()
    pairs = [f"\n{word}: " for word in words]
    texts = (*words, *pairs, *ODD_NUMBERS, *ODD_TEXTS)
    return [*YAML, *(text.encode("utf-8", "surrogatepass") for text in texts)]


def override_tokens() -> list[bytes]:
    """Return fragments of overrides: dotted keys and their values."""
    keys = [f"{above}{word}" for word in schema_words() for above in ("", "--", "tasks.a.", "training.", ".")]
    more = [
        "--",
        "=",
        "\n",
        "\n--",
        "tasks.0.",
        "tasks.9",
        "tasks." + "9" * 4400 + ".name",
        ".",
        "..",
        "bank.modifications.0.",
    ]
    return [*(text.encode() for text in (*keys, *more)), *yaml_tokens()]


def json_tokens() -> list[bytes]:
    """Return fragments of JSON files."""
    signs = (
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        '"',
        '"names": ',
        "null",
        "true",
        "[" * 9000,
        '{"a":' * 9000,
        '"\\ud800"',
        '"\\u0000"',
    )
    return [
        text.encode("utf-8", "surrogatepass") for text in (*signs, *ODD_NUMBERS, *ODD_TEXTS, '"a"', '"A"', "1", '"1"')
    ]


def node_of(name: str) -> Schema:
    """Return the schema of one definition, or of the whole stream."""
    schema = cached_schema()
    node: Schema = schema if name == "StreamSpec" else schema["$defs"][name]
    return node
