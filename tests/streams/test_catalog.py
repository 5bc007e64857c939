"""Packaged stream files are valid and have the published orders; quickstart uses only packaged data and models."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from continual_petl.errors import InputError
from continual_petl.streams import embedded
from continual_petl.streams.preparation.prepare import check_data
from continual_petl.streams.schema.stream_spec import DataSpec
from continual_petl.streams.stream_file.catalog import ALIASES, catalog, description, find_stream
from continual_petl.streams.stream_file.yaml_file import load_stream, load_task

CATALOG = Path(__file__).parents[2] / "streams" / "catalog"
EXPERIMENTS = Path(__file__).parents[2] / "experiments"
DOCS = (Path(__file__).parents[2] / "docs" / "catalog.md").read_text("utf-8")

# Copied from de Masson d'Autume et al. 2019, both papers by Wang et al. 2023, and Zhao et al. 2024 (superni, whose tasks are
# numbered), rather than read from the catalog.
ORDERS = {
    "classic5": "yelp agnews dbpedia amazon yahoo",
    "classic5-2": "dbpedia yahoo agnews amazon yelp",
    "classic5-3": "yelp yahoo amazon dbpedia agnews",
    "classic5-4": "agnews yelp amazon yahoo dbpedia",
    "long15": "mnli cb wic copa qqp boolqa rte imdb yelp amazon sst2 dbpedia agnews multirc yahoo",
    "long15-5": "multirc boolqa wic mnli cb copa qqp rte imdb sst2 dbpedia agnews yelp amazon yahoo",
    "long15-6": "yelp amazon mnli cb copa qqp rte imdb sst2 dbpedia agnews yahoo multirc boolqa wic",
    "glue": "cola sst2 mrpc stsb qqp mnli qnli rte",
    "unified-view": "xsum en-ro mnli sst2",
    "superni": "1572 363 1290 181 002 1510 639 1729 073 1590 748 511 591 1687 875",
    "superni-2": "748 073 1590 639 1572 1687 591 363 1510 1729 181 511 002 1290 875",
    "trace": "c-stance fomc meetingbank py150 scienceqa numglue-cm numglue-ds 20minuten",
    "trace-2": "numglue-cm numglue-ds fomc 20minuten c-stance py150 meetingbank scienceqa",
}


@pytest.mark.parametrize("file", sorted(CATALOG.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_catalog_file_is_valid_and_named_as_its_stream(file: Path) -> None:
    assert load_stream(file).name == file.stem


def test_streams_are_found_by_name_and_published_number() -> None:
    assert list(catalog()) == sorted([*ORDERS, "quickstart", "digits"])
    assert {name: find_stream(name).stem for name in ALIASES} == {"classic5-1": "classic5", "long15-4": "long15"}
    for name, file in catalog().items():
        assert find_stream(name) == file
        assert 20 < len(description(file)) < 120
        assert description(file).endswith(".")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        InputError, match=r"^clasic5: there is no such file.*did you mean 'classic5'\?.*long15-6, quickstart"
    ):
        find_stream("clasic5")


def test_misspelt_file_name_gets_a_suggestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stream.yaml").write_text("")
    with pytest.raises(InputError, match=r"streem.yaml: there is no such file.*did you mean '.*/stream.yaml'\?"):
        find_stream(str(tmp_path / "streem.yaml"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"\(did you mean 'stream.yaml'\?\)"):
        find_stream("streem.yaml")
    with pytest.raises(InputError, match=r"no such catalog stream; the catalog has"):
        find_stream("no-folder/streem.yaml")
    for unlike in ("zzzz.yaml", "a\0b/stream.yaml", "z" * 300):
        with pytest.raises(InputError, match=r"no such catalog stream; the catalog has"):
            find_stream(unlike)


@pytest.mark.parametrize("name", ORDERS)
def test_a_catalog_stream_has_its_published_order(name: str) -> None:
    names = [task.name for task in load_stream(catalog()[name]).tasks]
    if name.startswith("superni"):
        names = [each.partition("_")[0].removeprefix("task") for each in names]
    assert names == ORDERS[name].split()


@pytest.mark.parametrize("family", ["classic5", "long15", "superni", "trace"])
def test_a_task_is_the_same_in_every_order(family: str) -> None:
    first, *others = (load_stream(file) for name, file in catalog().items() if name.partition("-")[0] == family)
    tasks = {task.name: task for task in first.tasks}
    assert len(others) == {"classic5": 3, "long15": 2, "superni": 1, "trace": 1}[family]
    for other in others:
        assert {task.name: task for task in other.tasks} == tasks
        assert other.model_copy(update={"name": first.name, "tasks": first.tasks}) == first


@pytest.mark.parametrize("file", sorted(EXPERIMENTS.rglob("*.yaml")), ids=lambda file: file.stem)
def test_experiment_stream_is_valid(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CONTINUAL_PETL_DATA", str(tmp_path))
    if file.parent.name == "later":
        assert load_task(file).name == file.stem
        return
    spec = load_stream(file)
    assert spec.name == file.stem
    # Only streams in full_scale/ and sizes/ may leave out data_dir.
    own = "data_dir: ${CONTINUAL_PETL_DATA}" in file.read_text("utf-8")
    assert own or file.parent.name in ("full_scale", "sizes")
    assert spec.data_dir == str(tmp_path if own else file.parent)


@pytest.mark.slow
def test_quickstart_is_the_embedded_stream_on_the_packaged_backbone() -> None:
    spec = load_stream(CATALOG / "quickstart.yaml")
    assert spec.backbone.name == "minilm"
    assert [task.name for task in spec.tasks] == list(embedded.names())
    for task in spec.tasks:
        assert isinstance(task.data, DataSpec)
        assert (task.data.path, task.data.name) == ("embedded", task.name)
        row = embedded.load(task.name)["train"][0]
        assert set(row) == {task.columns.text, task.columns.label} | ({task.columns.text_pair} - {None})


def test_quickstart_is_short() -> None:
    spec = load_stream(CATALOG / "quickstart.yaml")
    rows = sum(spec.resolved_training(task).num_steps(len(embedded.load(task.name)["train"])) for task in spec.tasks)
    assert rows <= 12_000


def test_digits_are_the_embedded_images() -> None:
    spec = load_stream(CATALOG / "digits.yaml", [("backbone.name", "./my/vit")])
    assert {task.kind for task in spec.tasks} == {"image-classification"}
    assert [check_data(spec, task) for task in spec.tasks] == [tuple("01234"), tuple("56789"), ("even", "odd")]


def test_instruction_streams_read_their_published_formats(tmp_path: Path) -> None:
    rows = [{"input": f"a{n}", "output": [f"b{n}", "c"], "id": str(n)} for n in range(6)]
    spec = load_stream(catalog()["superni"], [("data_dir", str(tmp_path))])
    for split in ("train", "validation", "test"):
        path = tmp_path / spec.tasks[0].name / f"{split}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert check_data(spec, spec.tasks[0]) is None
    (tmp_path / "C-STANCE").mkdir()
    for name in ("train", "eval", "test"):
        pairs = [{"prompt": f"{name} {n}", "answer": "A"} for n in range(6)]
        (tmp_path / "C-STANCE" / f"{name}.json").write_text(json.dumps(pairs))
    spec = load_stream(catalog()["trace"], [("data_dir", str(tmp_path))])
    assert check_data(spec, spec.tasks[0]) is None
    # The metrics of Table 1 of Wang et al. 2023; their accuracy is exact_match here, and choice_match for ScienceQA.
    metrics = "exact_match exact_match rougeL edit_similarity choice_match exact_match exact_match sari"
    assert [task.metric for task in spec.tasks] == metrics.split()


def test_docs_list_every_stream_in_order() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| ([^|]*) \|", DOCS, re.MULTILINE)
    assert {name: order.split() for name, order in rows} == {
        name: [task.name for task in load_stream(file).tasks] for name, file in catalog().items()
    }


def test_documented_stream_is_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)
    (tmp_path / "mine.yaml").write_text(block)
    spec = load_stream(tmp_path / "mine.yaml")
    data = spec.resolved_data(spec.tasks[0])
    assert isinstance(data, DataSpec)
    assert data.local == str(tmp_path / "data" / "dbpedia")
