"""A single row returns a single answer; a list of rows returns a list."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import pytest
from numpy.typing import NDArray

from continual_petl import InputError, Run
from continual_petl.heads.predictions import Prediction
from continual_petl.predictor.predictor import Predictor
from tests.engine.test_kinds import stream_of_kinds
from tests.learned import LearnedRuns

Folder = Callable[..., Path]
PAIR = ("w1 w2", "w3")


@pytest.mark.parametrize(("row", "task"), [("w1 w2", "one"), ("w1 w2", "tags"), (PAIR, "pairs")])
def test_single_row_returns_an_answer_not_a_list(run: Run, row: Any, task: str) -> None:
    (expected,) = run.predict([row], task)
    assert run.predict(row, task) == expected
    assert Predictor(run.session.models).predict(row, task) == expected
    assert run.predict_all(row, [task]) == {task: expected}


def test_tuple_is_always_one_row_and_a_list_always_several(run: Run) -> None:
    assert run.predict(("w1", "w2", "w3"), "tags") == run.predict([["w1", "w2", "w3"]], "tags")[0]
    assert len(run.predict(["w1", "w2"], "tags")) == 2
    refused: list[Callable[[], Any]] = [
        lambda: run.predict(PAIR, "one"),
        lambda: run.predict_all(PAIR, ["pairs", "one"]),
    ]
    for call in refused:
        with pytest.raises(
            InputError, match=r"each row of this task is a text; a tuple is always one row: give several"
        ):
            call()
    with pytest.raises(InputError, match="a single row was given together with a list of 2 tasks"):
        run.predict(PAIR, ["one", "one"])


def test_row_of_the_wrong_type_is_refused(run: Run) -> None:
    with pytest.raises(InputError, match="task 'pairs': row 1 is 'w1'; each row of this task is a pair of texts"):
        run.predict("w1", "pairs")
    with pytest.raises(InputError, match=r"a single row was given together with a list of 2 tasks: .* use predict_all"):
        run.predict("w1", ["one", "wide"])
    with pytest.raises(InputError, match=r"rows: got 7 of type int; give one row .* or a list of rows"):
        run.predict(7, "one")  # type: ignore[call-overload]
    with pytest.raises(InputError, match="row 1 is b'w1'; each row of this task is a text"):
        run.predict(b"w1", "one")


@pytest.mark.parametrize(
    ("rows", "task", "number"),
    [
        ("", "one", 1),
        (["w1", " \n"], "one", 2),
        (["w1", ""], ["one", "wide"], 2),
        (("w1", ""), "pairs", 1),
        ([("w1", "w2"), (" ", "w3")], "pairs", 2),
        ([["w1", " "]], "tags", 1),
    ],
)
def test_empty_text_is_refused_as_in_training(run: Run, rows: Any, task: Any, number: int) -> None:
    says = rf"row {number} is .* \((empty|word 2 is ' ')\); each row of this task is a "
    with pytest.raises(InputError, match=says):
        run.predict(rows, task)
    with pytest.raises(InputError, match=says):
        run.predict_all(rows, ["wide"] if isinstance(task, list) else [task])


def test_rows_may_be_any_iterable(run: Run) -> None:
    texts = ["w1 w2", "w3"]
    expected = run.predict(texts, "one")
    assert run.predict(iter(texts), "one") == expected
    assert run.predict(np.array(texts), "one") == expected


def test_one_image_is_a_path_an_array_or_an_image_of_pillow(
    learned_runs: LearnedRuns, backbone_folder: Folder, tmp_path: Path
) -> None:
    from PIL import Image

    run = Run(learned_runs(stream_of_kinds(backbone_folder("vit"), ("image-classification",))))
    name = "image-classification"
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    (expected,) = run.predict([pixels], name)
    content = (tmp_path / "one.png").read_bytes()
    with Image.open(tmp_path / "one.png") as opened:
        ones: list[Any] = [tmp_path / "one.png", str(tmp_path / "one.png"), opened, pixels, {"bytes": content}]
        assert [run.predict(one, name) for one in ones] == [expected] * len(ones)
    assert run.predict(np.stack([pixels] * 3, -1), name) == expected, (
        "an array with three channels must count as one image"
    )
    several: Any = np.stack([pixels, pixels])
    assert run.predict(several, name) == run.predict([pixels, pixels], name)


def typed(run: Run, image: Path, pixels: NDArray[np.uint8]) -> None:
    """Never called: a type checker has to infer these types."""
    assert_type(run.predict("text", "one"), Prediction)
    assert_type(run.predict(image, "one"), Prediction)
    assert_type(run.predict(["text"], "one"), list[Prediction])
    assert_type(run.predict([("a", "b")], ["one"]), list[Prediction])
    assert_type(run.predict(("a", "b"), "one"), Prediction)
    assert_type(run.predict({"text": "a"}), Prediction)
    assert_type(run.predict(pixels, "one"), Prediction)
    assert_type(run.predict(iter(["a"])), list[Prediction])
    assert_type(run.predict_all("text", ["one"]), dict[str, Prediction])
    assert_type(run.predict_all(["text"], ["one"]), dict[str, list[Prediction]])
