"""The OpenAPI reference says what is accepted and what is answered, no more and no less."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.testclient import TestClient

from continual_petl import learn
from continual_petl.serve import ServeSettings, make_app
from continual_petl.serve.catalog import Catalog
from continual_petl.serve.problems import Problem
from continual_petl.serve.rows import PredictRequest, asked_of
from tests.serve.conftest import TRAINING, Open
from tests.serve.declared import validator
from tests.serve.test_predict import PIXEL
from tests.streams_in_code import stream, task, task_of_kind

LIMITS = ServeSettings(max_rows=3, max_characters=20, max_waiting=3)
GIF = base64.b64encode(base64.b64decode(PIXEL)).decode()

texts = st.sampled_from(["w1", "w1 w2", "", " ", "\t\n", "w" * 20, "w" * 21, "é", "\u3000"])
odd: st.SearchStrategy[Any] = st.sampled_from([None, 1, 1.5, True, [], {}, [[]], ["w1"], [["w1", "w2"]]])
texts_or_odd = texts | odd
lists = st.lists(texts_or_odd, max_size=4) | st.lists(texts, min_size=2, max_size=3)
message = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["user", "assistant", "system", "human", 1]),
        "from": st.sampled_from(["user", "human", "gpt", "robot", None]),
        "content": texts_or_odd,
        "value": texts_or_odd,
        "name": st.none() | texts,
    },
) | st.fixed_dictionaries({"role": st.just("user"), "content": texts})
conversations = st.lists(message, max_size=3) | texts_or_odd
keys = {
    "text": texts_or_odd,
    "text_pair": texts_or_odd,
    "source": texts_or_odd,
    "tokens": lists | texts_or_odd,
    "messages": conversations,
    "image": st.sampled_from([GIF, "", "!", "QQ=", 5]),
    "options": lists,
    "other": texts,
}
objects = st.lists(st.sampled_from(list(keys)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: keys[name] for name in names})
)
rows = texts_or_odd | lists | objects | conversations
requests = st.fixed_dictionaries(
    {"inputs": rows | st.lists(rows, max_size=4)},
    optional={
        "task": st.sampled_from([None, "first", "pairs", "tags", 1, [], ["first"], [None], ["first", 1]]),
        "unknown": st.sampled_from([None, "reject", "nearest", "guess", 1]),
        "stream": st.sampled_from([False, True, None, 1]),
        "more": st.just(1),
    },
)


def _refused(body: Any, catalog: Catalog) -> Problem | None:
    """Return the problem with a request before anything is computed."""
    try:
        asked_of(PredictRequest.model_validate(body), catalog, LIMITS)
    except Problem as problem:
        return problem
    except ValidationError as error:
        return Problem(422, "bad_request", str(error))
    return None


@pytest.fixture(scope="module")
def catalog(learned: Path) -> Catalog:
    """Return the tasks of the run that no test changes."""
    return Catalog(learned)


@pytest.fixture(scope="module")
def valid(learned: Path) -> Callable[[Any], bool]:
    """Return a function that compares a request with its schema."""
    schema = validator(make_app(learned, LIMITS), "PredictRequest")
    return lambda body: bool(schema.is_valid(body))


def _same(body: Any, catalog: Catalog, valid: Callable[[Any], bool]) -> None:
    problem, is_valid = _refused(body, catalog), valid(body)
    if problem is None:
        assert is_valid, body
    elif is_valid and body.get("task") is None:
        # A schema cannot say how many characters the parts of a row have together.
        assert problem.code == "too_many_characters", (body, problem.message)
    elif not is_valid:
        assert problem.status in (404, 413, 422)


@given(body=requests)
@settings(max_examples=300)
def test_schema_is_what_is_accepted(body: Any, catalog: Catalog, valid: Callable[[Any], bool]) -> None:
    _same(body, catalog, valid)


@pytest.mark.slow
@given(body=requests)
@settings(max_examples=20_000)
def test_schema_is_what_is_accepted_in_many_cases(body: Any, catalog: Catalog, valid: Callable[[Any], bool]) -> None:
    _same(body, catalog, valid)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("first", "w1"), ("first", {"text": "w1"}), ("pairs", ["w1", "w2"]), ("pairs", {"text": "w1", "text_pair": "w2"}),
        ("tags", "w1 w2"), ("tags", ["w1", "w2"]), ("tags", {"tokens": ["w1"]}), ("tags", ["w1", "w2", "w3"]),
        (None, "w1"), (None, ["w1", "w2"]), (None, {"tokens": ["w1", "w2"]}), (None, {"text": "w1"}),
    ],
)  # fmt: skip
def test_rows_in_the_form_of_their_task_are_valid(
    catalog: Catalog, valid: Callable[[Any], bool], name: str | None, row: Any
) -> None:
    for inputs in ([row], [row] * 3, row if not isinstance(row, list) else [row]):
        body = {"inputs": inputs, "task": name}
        assert valid(body)
        assert _refused(body, catalog) is None


PAIRS = [["w1", "w2"], {"text": "w1", "text_pair": "w2"}]


@pytest.mark.parametrize("row", PAIRS)
@pytest.mark.parametrize("unknown", ["reject", "nearest"])
def test_pair_is_not_answered_as_words(
    backbone_folder: Callable[..., Path], tmp_path: Path, opened: Open, row: Any, unknown: str
) -> None:
    tasks = [task("first", num_rows=24), task_of_kind("token-classification", "tags")]
    run = learn(stream(backbone_folder(), tasks, training=TRAINING), tmp_path / "run")
    client = opened(tmp_path / "run")
    response = client.post("/v1/predict", json={"inputs": [row], "unknown": unknown})
    assert (response.status_code, response.json()["error"]["row"]) == (422, 1)
    assert (
        "no task that can be found without a name accepts such rows: name the task"
        in response.json()["error"]["message"]
    )
    with pytest.raises(Exception, match="no task that can be found without a name accepts such rows"):
        run.predict([("w1", "w2")], unknown="nearest")
    words = {"inputs": [{"tokens": ["w1", "w2"]}, {"tokens": "w1 w2"}], "unknown": "nearest"}
    assert [each["task"] for each in client.post("/v1/predict", json=words).json()["predictions"]] == ["tags", "tags"]


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (["w1", "w2"], "first"),
        ({"text": "w1", "text_pair": "w2"}, "first"),
        ({"text": "w1", "text_pair": "w2"}, "tags"),
        (["w1"], "pairs"),
        (["w1", "w2", "w3"], "pairs"),
        ("w1", "pairs"),
        ({"tokens": ["w1", "w2"]}, "pairs"),
        ([["w1", "w2"]], "pairs"),
        ([["w1", "w2"]], "tags"),
        (["w1", "w2", "w3"], None),
        (["w1"], None),
        ([["w1", "w2"]], None),
        ({"text": "w1", "options": ["w1", "w2"]}, None),
    ],
)
def test_row_in_the_form_of_another_kind_is_refused(client: TestClient, row: Any, name: str | None) -> None:
    response = client.post("/v1/predict", json={"inputs": [row], "task": name, "unknown": "nearest"})
    assert (response.status_code, response.json()["error"]["row"]) == (422, 1)
    assert "each row" in response.json()["error"]["message"]


def test_predictions_of_each_kind_have_their_own_type(client: TestClient) -> None:
    reference = client.get("/openapi.json").json()
    assert reference == json.loads(json.dumps(reference))
    types = reference["components"]["schemas"]
    kinds = [
        each["$ref"].rpartition("/")[2] for each in types["Predictions"]["properties"]["predictions"]["items"]["anyOf"]
    ]
    inputs = ["w1", ["w1", "w2"], ["w1", "w2"], "w1 w2", "w1"]
    body = {"inputs": inputs, "task": ["first", "pairs", "tags", "many", None], "unknown": "nearest"}
    wanted = ["LabelPrediction", "LabelPrediction", "TagsPrediction", "LabelsPrediction"]
    found = client.post("/v1/predict", json=body).json()["predictions"]
    for record, kind in zip(found, wanted, strict=False):
        assert [each for each in kinds if validator(client.app, each).is_valid(record)] == [kind]
    assert set(found[-1]) >= {"task_probability", "runners_up"}


@pytest.mark.parametrize(
    "path", ["/v1/predict", "/v1/tasks", "/v1/tasks/first", "/metrics", "/health/live", "/health/ready"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE"])
def test_method_that_a_path_does_not_have(client: TestClient, path: str, method: str) -> None:
    """The client compares the response with the reference."""
    response = client.request(method, path)
    has = "POST" if path == "/v1/predict" else "GET"
    if method != has:
        assert (response.status_code, response.headers["allow"]) == (405, has)


def test_path_with_a_slash_at_its_end_is_unknown(client: TestClient) -> None:
    for path in ("/v1/tasks/", "/v1/predict/", "/health/live/"):
        assert client.get(path, follow_redirects=False).status_code == 404


def test_reference_names_every_type_that_it_uses(client: TestClient) -> None:
    reference = client.get("/openapi.json").json()
    used = {part.split('"')[0] for part in json.dumps(reference).split('"#/components/schemas/')[1:]}
    assert used | {"PredictRequest"} == set(reference["components"]["schemas"])
    names = [operation["operationId"] for path in reference["paths"].values() for operation in path.values()]
    assert sorted(names) == ["counted", "live", "predict", "ready", "task", "tasks"]
