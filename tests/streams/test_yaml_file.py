"""The meaning of a valid stream file: values, paths, and writing it back to YAML."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl.errors import InputError
from continual_petl.streams.schema.stream_spec import DataSpec, StreamSpec
from continual_petl.streams.stream_file.yaml_file import dump_stream, load_stream, load_task
from continual_petl.streams.stream_file.yaml_nodes import parse

DESIGN = """\
name: support-desk
seed: 13
backbone:
  name: minilm
  revision: null
  max_length: 128
bank: {preset: houlsby, bottleneck: 32, layers: 3-5}
training: {epochs: 3, batch_size: 32, learning_rate: 1e-3, precision: auto}
trainer: {devices: 1}
tasks:
  - name: agnews
    kind: classification
    data: {path: json, data_files: {train: data/train.jsonl.gz, test: data/test.jsonl.gz}}
    columns: {text: text, label: label}
    labels: [no, yes, 007, 1]
  - name: stsb
    kind: regression
    data: data/stsb
    bank:
      modifications:
        - {form: bottleneck, modifies: ffn, insertion: parallel, composition: scaled, scale: 4.0, rank: 512}
      layernorms: frozen
    training: {epochs: 10, gradient_clip: null}
"""


def _write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_example_stream_is_read(tmp_path: Path) -> None:
    stream = load_stream(_write(tmp_path / "stream.yaml", DESIGN))
    first, second = stream.tasks
    assert stream.training.learning_rate == 1e-3
    assert stream.bank.layers == "3-5"
    assert first.labels == ("no", "yes", "007", "1")
    assert stream.resolved_training(second).epochs == 10
    assert stream.resolved_training(second).gradient_clip is None
    assert stream.resolved_bank(second).modifications[0].bottleneck == 512
    assert stream.resolved_data(second) == str(tmp_path / "data" / "stsb")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1.0E+2", 100.0),
        (".5", 0.5),
        ("-3", -3),
        ("0x1F", 31),
        ("0o17", 15),
        ("017", "017"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("no", "no"),
        ("on", "on"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("2024-01-01", "2024-01-01"),
        ("'1'", "1"),
        ("1.2.3", "1.2.3"),
        ("-.inf", -math.inf),
        ("=", "="),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    found = parse(f"key: {text}\n").tree["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("bomb", ["[" * 100_000, "{a: " * 5_000, "- " * 5_000])
def test_deep_nesting_is_bounded(bomb: str) -> None:
    (problem,) = parse(f"a: 1\nb: {bomb}" if bomb[0] != "-" else bomb).problems
    assert "nested more than 40 levels deep" in problem[2] or "not readable" in problem[2]


@pytest.mark.slow
def test_aliases_cannot_expand_without_bound() -> None:
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
    )
    (problem,) = parse(laughs).problems
    assert "expand to more than 200000 entries" in problem[2]
    chain = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 100))
    (problem,) = parse(chain).problems
    assert "expand to more than 40 levels" in problem[2]
    (problem,) = parse("a: &a [*a]\n").problems
    assert "expand to more than 40 levels" in problem[2]


def test_a_few_aliases_are_fine() -> None:
    assert parse("a: &x {k: [1]}\nb: *x\n").tree == {"a": {"k": [1]}, "b": {"k": [1]}}


def test_paths_are_relative_to_the_file_and_variables_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "/corpora")
    monkeypatch.setenv("HOME", "/someone")
    monkeypatch.setenv("USERPROFILE", "/someone")
    text = """\
name: s
backbone: ./models/bert
tasks:
  - {name: a, kind: classification, data: a.csv, labels: names.json}
  - {name: b, kind: classification, data: "${WHERE}/b.csv"}
  - {name: c, kind: classification, data: {path: csv, data_files: {train: ["~/c.csv", c.csv]}}}
"""
    stream = load_stream(_write(tmp_path / "s.yaml", text))
    a, b, c = stream.tasks
    assert stream.backbone.name == str(tmp_path / "models" / "bert")
    assert stream.resolved_data(a) == str(tmp_path / "a.csv")
    assert stream.resolved_labels(a) == str(tmp_path / "names.json")
    assert stream.resolved_data(b) == "/corpora/b.csv"
    data = stream.resolved_data(c)
    assert isinstance(data, DataSpec)
    assert data.data_files == {"train": ("/someone/c.csv", str(tmp_path / "c.csv"))}
    base = load_stream(_write(tmp_path / "s.yaml", text + "data_dir: ${WHERE}\n"))
    assert base.resolved_data(a) == "/corpora/a.csv"


def test_task_file_paths_are_relative_to_its_folder(tmp_path: Path) -> None:
    task = load_task(_write(tmp_path / "t.yaml", "name: a\nkind: classification\ndata: a.csv\nlabels: l.json\n"))
    assert (task.data, task.labels) == (str(tmp_path / "a.csv"), str(tmp_path / "l.json"))


@pytest.mark.parametrize(("variable", "value"), [("UNSET_HERE", None), ("EMPTY_HERE", "")])
def test_an_unset_variable_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str | None
) -> None:
    if value is not None:
        monkeypatch.setenv(variable, value)
    text = f"name: s\nbackbone: b\ntasks:\n- name: a\n  kind: regression\n  data: ${{{variable}}}/a.csv\n"
    with pytest.raises(InputError, match=rf":6: key tasks\.0\.data \(task a\): .* variable {variable}, which is not"):
        load_stream(_write(tmp_path / "s.yaml", text))


def test_example_stream_roundtrips(tmp_path: Path) -> None:
    stream = load_stream(_write(tmp_path / "stream.yaml", DESIGN))
    dumped = dump_stream(stream)
    assert load_stream(_write(tmp_path / "elsewhere.yaml", dumped)) == stream
    assert dump_stream(load_stream(tmp_path / "elsewhere.yaml")) == dumped
    assert yaml.safe_load(dumped)["training"]["learning_rate"] == 1e-3, "other YAML readers must read the same number"


def test_values_without_yaml_representation_are_refused() -> None:
    stream = StreamSpec.model_validate(
        {
            "name": "s",
            "backbone": "b",
            "trainer": {"logger": object()},
            "tasks": [{"name": "a", "kind": "regression", "data": "a.csv"}],
        }
    )
    with pytest.raises(InputError, match=re.escape("key trainer.logger: a object cannot be written")):
        dump_stream(stream)


_names = st.from_regex(r"[a-z][a-z0-9._-]{0,6}[a-z0-9]", fullmatch=True).filter(
    lambda name: name.split(".")[0] not in {"con", "prn", "aux", "nul"} and not re.match(r"(com|lpt)\d", name)
)
_text = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), _text,
    st.sampled_from(["no", "1e-3", "007", "0o7", "null", "~", "1:30", "<<", "=", "*a", "&a", "!x", "- a"]),
)  # fmt: skip
_rows = st.lists(st.dictionaries(_text, _scalars, max_size=3), min_size=1, max_size=3)
_training = st.fixed_dictionaries(
    {},
    optional={
        "epochs": st.integers(1, 9),
        "learning_rate": st.floats(1e-9, 1),
        "gradient_clip": st.none() | st.floats(1e-3, 9),
        "optimizer": st.sampled_from(["adamw", "adam"]),
        "betas": st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)),
        "backbone_dropout": st.booleans(),
        "prefix_cache": st.sampled_from(["auto", "on", "off"]),
    },
)
_banks = st.sampled_from(
    ["lora", {"preset": "houlsby", "rank": 3, "layers": 2}, {"modifications": [], "layernorms": "own"}]
)
_tasks = st.fixed_dictionaries(
    {"kind": st.just("classification"), "data": st.fixed_dictionaries({"train": _rows}) | st.just("/d/x.csv")},
    optional={
        "training": _training,
        "bank": _banks,
        "labels": st.lists(_text, min_size=2, max_size=3, unique=True),
        "metric": st.sampled_from(["macro_f1", "matthews"]),
        "limits": st.fixed_dictionaries({}, optional={"train": st.none() | st.integers(1, 99)}),
    },
)


@pytest.mark.slow
@given(
    tasks=st.dictionaries(_names, _tasks, min_size=1, max_size=3),
    training=_training,
    trainer=st.dictionaries(_text.map("x{}".format), _scalars | st.lists(_scalars, max_size=2), max_size=2),
    bank=_banks,
)
@settings(max_examples=30, deadline=None, derandomize=True)
def test_a_dumped_stream_reads_back_as_an_equal_one(
    tmp_path_factory: pytest.TempPathFactory,
    tasks: dict[str, dict[str, Any]],
    training: dict[str, Any],
    trainer: dict[str, Any],
    bank: Any,
) -> None:
    spec = StreamSpec.model_validate(
        {
            "name": "s",
            "backbone": "minilm",
            "data_dir": "/d",
            "bank": bank,
            "training": training,
            "trainer": trainer,
            "tasks": [{"name": name, **task} for name, task in tasks.items()],
        }
    )
    file = tmp_path_factory.mktemp("round") / "s.yaml"
    file.write_text(dump_stream(spec), encoding="utf-8", newline="")
    assert load_stream(file) == spec


def _heavy_modules_after(code: str) -> str:
    heavy = {"torch", "transformers", "datasets", "lightning", "numpy", "pandas"}
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sorted({heavy} & set(sys.modules)))"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_checking_a_stream_file_imports_nothing_heavy(tmp_path: Path) -> None:
    file = _write(tmp_path / "stream.yaml", DESIGN)
    code = f"""
import continual_petl.streams.schema.stream_spec
from continual_petl.streams import TaskStream, dump_stream, json_schema
dump_stream(TaskStream.from_yaml({str(file)!r}).spec), json_schema()
"""
    assert _heavy_modules_after(code) == ""


def test_heavy_import_is_detected() -> None:
    assert _heavy_modules_after("import numpy") == "numpy"
