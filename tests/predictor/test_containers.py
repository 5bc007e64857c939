"""Rows in any container get the answers of the plain list of rows, in its order, or are refused by name."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_petl import InputError, Run, learn
from tests.engine.test_kinds import stream_of_kinds
from tests.learned import LearnedRuns
from tests.router.rows import labelled_task, routed_stream
from tests.streams_in_code import stream, task, task_of_kind, with_columns

Folder = Callable[..., Path]
TEXTS = ["w1 w2", "w3", "w4 w5 w6"]
PAIRS = [("w1 w2", "w3"), ("w4", "w5"), ("w6", "w7 w8")]
WORDS = [["w1", "w2"], ["w3"], ["w4", "w5", "w6"]]


def _frame(rows: Any, *names: str) -> pd.DataFrame:
    cells = list(zip(*rows, strict=True)) if len(names) > 1 else [rows]
    columns = {name: list(cell) for name, cell in zip(names, cells, strict=True)}
    return pd.DataFrame({"id": [3, 1, 2], **columns, "label": ["no", "yes", "no"]}, index=[9, 9, 0])


def _tables(rows: Any, *names: str) -> list[Any]:
    frame = _frame(rows, *names)
    row = namedtuple("row", list(names))  # type: ignore[misc]
    named = [dict(zip(names, each if len(names) > 1 else (each,), strict=True)) for each in rows]
    return [
        frame,
        frame.to_dict("records"),
        frame.to_dict("list"),
        {name: frame[name] for name in frame.columns},
        frame.itertuples(),
        [each for _, each in frame.iterrows()],
        pa.Table.from_pandas(frame),
        datasets.Dataset.from_list(named),
        datasets.Dataset.from_list(named).to_iterable_dataset(),
        [row(**each) for each in named],
        (each for each in named),
        pd.Series(named),
    ]


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [("one", TEXTS, ("text",)), ("pairs", PAIRS, ("text", "text_pair")), ("tags", WORDS, ("tokens",))],
)
def test_tables_are_read_by_the_names_of_their_columns(run: Any, name: str, rows: Any, columns: Any) -> None:
    expected = run.predict(rows, name)
    assert len(expected) == 3
    for table in _tables(rows, *columns):
        assert run.predict(table, name) == expected, type(table)
    for table in _tables(rows, *columns):
        assert run.predict_all(table, [name]) == {name: expected}, type(table)
    for table in _tables(rows, *columns):
        assert run.predict(table, [name] * 3) == expected, type(table)
    (first,) = run.predict(rows[:1], name)
    record = _frame(rows, *columns).to_dict("records")[0]
    frame = _frame(rows, *columns)
    texts = frame.drop(columns=["id"])
    for one in (record, frame.iloc[0], pd.Series(record), texts.iloc[0], pd.Series(texts.iloc[0].to_dict())):
        assert run.predict(one, name) == first
        assert run.predict_all(one, [name]) == {name: first}


@pytest.mark.parametrize(
    "listed",
    [np.array, pd.Series, pd.Index, pa.array, iter, lambda rows: np.array(rows, dtype=object),
     lambda rows: pd.Series(rows, index=["b", "c", "a"]), lambda rows: datasets.Dataset.from_dict({"x": rows})["x"]],
)  # fmt: skip
def test_texts_in_other_containers(run: Any, listed: Any) -> None:
    expected = run.predict(TEXTS, "one")
    assert run.predict(listed(TEXTS), "one") == expected
    assert run.predict_all(listed(TEXTS), iter(["one"])) == {"one": expected}
    assert run.predict(TEXTS, np.array(["one", "wide", "one"])) == run.predict(TEXTS, ["one", "wide", "one"])
    assert run.predict(TEXTS, pd.Series(["one", "wide", "one"])) == run.predict(TEXTS, ["one", "wide", "one"])


def test_arrays_and_strings_of_numpy_are_rows(run: Any) -> None:
    assert run.predict(np.array("w1 w2"), "one") == run.predict("w1 w2", "one")
    assert run.predict([np.str_("w1 w2")], "one") == run.predict(["w1 w2"], "one")
    assert run.predict([np.array(["w1", "w2"])], "tags") == run.predict([["w1", "w2"]], "tags")
    assert run.predict(pd.Series([np.array(["w1", "w2"])]), "tags") == run.predict([["w1", "w2"]], "tags")
    assert run.predict({"tokens": ["w1", "w2"]}, "tags") == run.predict([["w1", "w2"]], "tags")[0]
    assert run.predict({"tokens": [["w1", "w2"], ["w3"]]}, "tags") == run.predict(WORDS[:2], "tags")
    assert run.predict([], "one") == run.predict(pd.DataFrame({"text": []}), "one") == []


def test_each_task_reads_its_own_columns(run: Any) -> None:
    frame = _frame(PAIRS, "text", "text_pair").assign(tokens=WORDS)
    texts = [text for text, _ in PAIRS]
    assert run.predict_all(frame, ["one", "pairs", "wide", "tags"]) == {
        "one": run.predict(texts, "one"),
        "pairs": run.predict(PAIRS, "pairs"),
        "wide": run.predict(texts, "wide"),
        "tags": run.predict(WORDS, "tags"),
    }
    mixed = run.predict(
        [{"text": "w1"}, {"text": "w1", "text_pair": "w2"}, {"tokens": ["w3"]}], ["one", "pairs", "tags"]
    )
    assert mixed == run.predict(["w1", ("w1", "w2"), ["w3"]], ["one", "pairs", "tags"])


@pytest.mark.parametrize(
    ("rows", "name", "says"),
    [
        (pd.DataFrame({"txt": ["w1"]}), "one", r"row 1: task 'one' reads the column 'text'; found 'txt'. Rename the column"),
        (pd.DataFrame({"text": ["w1"]}), "pairs", "task 'pairs' reads the columns 'text' and 'text_pair'; found 'text'"),
        (pd.DataFrame({"text": ["w1", None]}), "one", "row 2: task 'one' reads the column 'text', which is null here"),
        (pd.DataFrame({"text": [1]}), "one", "row 1: task 'one' reads the column 'text' as a text; here it holds 1"),
        ({}, "one", "row 1: task 'one' reads the column 'text'; found no column"),
        ({"label": "a"}, "one", "row 1: task 'one' reads the column 'text'; found 'label'"),
        ({"text": ["w1", "w2"], "label": ["a"]}, "one", "rows: the columns are of different lengths: 'text' 2, 'label' 1"),
        ({"text": ["w1", "w2"], "label": "a"}, "one", "rows: the column 'text' is a list of 2, but 'label' is 'a'"),
        (datasets.DatasetDict(test=datasets.Dataset.from_list([{"text": "a"}])), "one", "with the splits 'test'; choose one"),
        (
            {"text": pd.Series(["w1", "w2"]), "text_pair": pd.Series(["w3", "w4"], index=[1, 0])},
            "pairs",
            "rows: its columns are Series with different indexes; give a DataFrame, or lists of cells",
        ),
        (pd.Series(["w1", "w2"], index=["text", "b"]), "one", r"got a Series of pandas of 2 whose index has 'text'.*to_dict"),
        (pd.Series(["w1", "w2"], index=["text", "text"]), "one", r"it may be one row or several: .*series.tolist\(\)"),
        (pd.Series([["w1"], ["w2"]], index=["tokens", "b"]), "tags", r"got a Series of pandas of 2 whose index has 'tokens'"),
        ([pd.Series(["w1", "w2"], index=["text", "text"])], "one", "a row of a table with two columns named 'text'"),
        ({"w1", "w2"}, "one", "rows: got a set, which has no order"),
        ([["w1", "w2"]], "one", r"row 1 is \['w1', 'w2'\]; each row of this task is a text"),
        ([["w1", "w2"]], "pairs", r"row 1 is \['w1', 'w2'\]; each row of this task is a pair of texts, as a tuple"),
        (np.array([["w1", "w2"]]), "pairs", r"each row of this task is a pair of texts, as a tuple"),
        (np.zeros(3), "one", r"3 rows .*: row 1 is 0\.0; row 2 is 0\.0; row 3 is 0\.0; each row of this task is a text$"),
        ([None, "w1", "", *[3] * 9], "one",
         r"^task 'one': 11 rows cannot be used: row 1 is None .missing.; row 3 is '' .empty.; row 4 is 3; .* and 6 more; "
         r"each row of this task is a text$"),
        (("w1", "w2"), "one", r"row 1 is \('w1', 'w2'\); .* a text; a tuple is always one row: give several"),
        (("w1", "w2", "w3"), "pairs", "a pair of texts.*; a tuple is always one row: give several rows in a list"),
        (["w1", None], "one", "row 2 is None .missing.; each row of this task is a text"),
        (["w1", float("nan")], "one", "row 2 is nan; each row of this task is a text"),
        (b"w1", "one", "row 1 is b'w1'; each row of this task is a text"),
        (bytearray(b"w1"), "one", "rows: got a bytearray, which is not a container of rows"),
        (Path("w1.txt"), "one", "row 1 is PosixPath.'w1.txt'.; each row of this task is a text"),
        (None, "one", "rows: got None of type NoneType; give one row"),
        (["w1", "w\ud800"], "one", r"row 2 is .*no text, since \\ud800 is half of a surrogate pair"),
        ([("w1", "w\ud800")], "pairs", r"row 1 is .*no text, since \\ud800 is half of a surrogate pair"),
        ([["w1", "w\udc00"]], "tags", r"row 1 is .*no text, since \\udc00 is half of a surrogate pair"),
    ],
)  # fmt: skip
def test_other_rows_are_refused_by_name(run: Any, rows: Any, name: str, says: str) -> None:
    calls: list[Callable[[], Any]] = [lambda: run.predict(rows, name), lambda: run.predict_all(rows, [name])]
    for call in calls:
        with pytest.raises(InputError, match=says) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tasks", [{"one": 1}, {"one", "wide"}, pd.DataFrame({"one": ["x"]})])
def test_tasks_in_another_container_are_refused(run: Any, tasks: Any) -> None:
    with pytest.raises(InputError, match=r"task: got a|learned tasks: "):
        run.predict(["w1"], tasks)


@pytest.mark.parametrize("tasks", [None, 3])
def test_what_is_no_task_is_refused_as_such(run: Any, tasks: Any) -> None:
    with pytest.raises(InputError, match=rf"task: got {tasks}; give the name of a task, or a list of names"):
        run.predict_all(["w1"], tasks)


def test_no_task_has_no_predictions(run: Any) -> None:
    assert run.predict_all(["w1"], []) == run.predict_all("w1", []) == {}
    assert run.predict_all(pd.DataFrame({"text": ["w1"]}), []) == {}


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    rows=st.lists(st.sampled_from(["w1", "w2 w3", "w4 w5 w6", "w7"]), min_size=1, max_size=12), seed=st.integers(0, 99)
)
def test_order_and_number_of_answers_are_those_of_the_rows(run: Any, rows: list[str], seed: int) -> None:
    alone = {text: run.predict(text, "one").value for text in set(rows)}
    frame = pd.DataFrame({"text": rows}).sample(frac=1, random_state=seed)
    found = run.predict(frame, "one")
    assert [answer.value for answer in found] == [alone[text] for text in frame["text"]]


def test_own_columns_come_before_standard_ones(backbone_folder: Folder, tmp_path: Path) -> None:
    tasks = [
        with_columns(task("topics", num_rows=16), text="question", label="topic"),
        with_columns(task_of_kind("token-classification", "entities", num_rows=16), tokens="words", tags="names"),
    ]
    run: Any = learn(stream(backbone_folder(), tasks, training={"epochs": 1, "batch_size": 16}), tmp_path / "run")
    expected = run.predict(TEXTS, "topics")
    assert run.predict(pd.DataFrame({"question": TEXTS, "text": TEXTS[::-1]}), "topics") == expected
    assert run.predict(pd.DataFrame({"text": TEXTS}), "topics") == expected
    assert run.predict({"question": TEXTS}, "topics") == expected
    assert run.predict({"question": TEXTS[0]}, "topics") == expected[0]
    both = pd.DataFrame({"question": TEXTS, "words": WORDS})
    assert run.predict_all(both, ["topics", "entities"]) == {
        "topics": expected,
        "entities": run.predict(WORDS, "entities"),
    }


def test_images_in_tables_and_arrays(learned_runs: LearnedRuns, backbone_folder: Folder, tmp_path: Path) -> None:
    from PIL import Image

    run: Any = Run(learned_runs(stream_of_kinds(backbone_folder("vit"), ("image-classification",))))
    name = "image-classification"
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    images = [pixels, 255 - pixels]
    expected = run.predict(images, name)
    drawn = [Image.fromarray(image) for image in images]
    for number, each in enumerate(drawn):
        each.save(tmp_path / f"{number}.png")
    paths = [str(tmp_path / f"{number}.png") for number in range(2)]
    content = [Path(path).read_bytes() for path in paths]
    data = datasets.Dataset.from_dict({"image": paths}).cast_column("image", datasets.Image())
    several: list[Any] = [
        np.stack(images), drawn, paths, np.array(paths), [{"bytes": each} for each in content],
        pd.DataFrame({"image": paths}), {"image": images}, {"image": np.stack(images)},
        {"image": drawn}, [{"image": each} for each in drawn], data,
        pd.DataFrame({"image": drawn}),
    ]  # fmt: skip
    for each in several:
        assert run.predict(each, name) == expected, each
    for one in ({"image": pixels}, {"image": drawn[0]}, {"image": {"bytes": content[0]}}, drawn[0]):
        assert run.predict(one, name) == expected[0]


def test_lines_of_an_image_are_not_images(learned_runs: LearnedRuns, backbone_folder: Folder) -> None:
    run: Any = Run(learned_runs(stream_of_kinds(backbone_folder("vit"), ("image-classification",))))
    name = "image-classification"
    colour = np.random.default_rng(0).integers(0, 256, size=(8, 8, 3), dtype=np.uint8)
    grey = colour[:, :, 0]
    for image in (colour, grey):
        (expected,) = run.predict([image], name)
        assert run.predict(image, name) == expected
        assert run.predict([image.tolist()], name) == run.predict({"image": [image.tolist()]}, name) == [expected]
    assert run.predict({"image": grey.tolist()}, name) == run.predict(grey, name)
    thin = colour[:, :3, 0]
    assert run.predict(thin, name) == run.predict([np.stack([thin] * 3, axis=-1)], name)[0]
    several = [[grey.tolist()] * 2, iter([grey.tolist()] * 2), np.stack([grey] * 2)]
    for rows in several:
        assert run.predict(rows, name) == run.predict([grey, grey], name)
    lines: list[Callable[[], Any]] = [
        lambda: colour.tolist(),
        lambda: list(colour),
        lambda: iter(colour),
        lambda: pd.Series(list(colour)),
        lambda: {"image": colour.tolist()},
        lambda: colour[:, :, :1].tolist(),
        lambda: grey.tolist(),
        lambda: list(grey),
        lambda: [thin],
    ]
    for make in lines:
        for call in (run.predict, lambda rows, task: run.predict_all(rows, [task])):
            with pytest.raises(InputError, match=r"rows: got \d+ x .*numbers, which may be one image.*\[image\]"):
                call(make(), name)


def test_routed_rows_and_similar_tasks(learned_runs: LearnedRuns, backbone_folder: Folder) -> None:
    tasks = [labelled_task("low"), labelled_task("high")]
    run: Any = Run(learned_runs(routed_stream(backbone_folder(), tasks)))
    expected = run.predict(TEXTS, reject="never")
    frame = pd.DataFrame({"text": TEXTS, "label": ["a", "b", "c"]})
    for table in (frame, frame["text"], {"text": TEXTS}, iter(TEXTS), pa.Table.from_pandas(frame), np.array(TEXTS)):
        assert run.predict(table, reject="never") == expected
    alone = run.predict(frame.iloc[0], reject="never")
    assert (alone.task, alone.value) == (expected[0].task, expected[0].value)
    assert alone.probabilities == pytest.approx(expected[0].probabilities)
    assert alone.known == pytest.approx(expected[0].known)
    assert run.similar(frame) == run.similar(iter(TEXTS)) == run.similar(TEXTS)
    with pytest.raises(InputError, match=r"row 1: a row without a task name is read from .*; this one has 'body'"):
        run.predict(pd.DataFrame({"body": TEXTS}))
    with pytest.raises(InputError, match="got a set, which has no order"):
        run.predict(set(TEXTS))
    for empty in (pd.DataFrame({"text": [""]}), {"text": ""}, [{"text": None}], pd.DataFrame({"text": [None]})):
        with pytest.raises(
            InputError, match=r"^row 1: a row without a task name reads the column 'text', which is (null|empty)"
        ):
            run.predict(empty)
    with pytest.raises(InputError, match=r"the columns 'text' and 'source', which are empty here: fill one of them"):
        run.predict([{"text": "", "source": None}])
    with pytest.raises(InputError, match=r"got a Series of pandas of 2 whose index has 'text'"):
        run.predict(pd.Series(["w1", "w2"], index=["text", "b"]))


def test_generated_rows(learned_runs: LearnedRuns, backbone_folder: Folder) -> None:
    run: Any = Run(learned_runs(stream_of_kinds(backbone_folder("gpt2"), ("causal-lm",))))
    expected = run.predict(TEXTS, "causal-lm")
    assert run.predict(pd.DataFrame({"source": TEXTS}), "causal-lm") == expected
    assert "".join(run.generate({"source": TEXTS[0]}, "causal-lm")) == expected[0].value
    with pytest.raises(InputError, match="row: got a list of 3 rows; give a single row"):
        run.generate(pd.DataFrame({"source": TEXTS}), "causal-lm")
