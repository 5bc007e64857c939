"""The OpenAPI reference says what is accepted and what is answered, no more and no less."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import ValidationError
from starlette.testclient import TestClient

from continual_petl import Run, forget, learn
from continual_petl.serve import ServeSettings
from continual_petl.serve.accepted_rows import AcceptedRows
from continual_petl.serve.catalog import Catalog
from continual_petl.serve.problems import Problem
from continual_petl.serve.request_rows import PredictRequest, asked_of
from continual_petl.serve.request_schema import request_schemas
from continual_petl.store.certificate.certificate import ROUTER, Certificate
from continual_petl.store.store import Store
from tests.chats import chat_of
from tests.learned import LearnedRuns
from tests.serve.conftest import TRAINING, Open, until
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
valid_rows = st.sampled_from(
    [
        "w1", {"text": "w1"}, {"source": "w1"}, {"tokens": "w1 w2"}, {"tokens": ["w1"]}, ["w1", "w2"], ["w1"], {"image": GIF},
        {"text": "w1", "text_pair": "w2"}, {"source": "w1", "options": ["w1", "w2"]}, {"messages": "w1"},
        {"messages": [{"role": "user", "content": "w1"}]}, [{"role": "user", "content": "w1"}], {"image": "QQ=="},
        {"messages": [{"role": "user", "content": "w1"}], "options": ["w1", "w2"]}, {"image": GIF + "\n"},
        [{"role": "user", "content": "w1"}, {"role": "assistant", "content": "w1"}], "\x1c", "\x85", "\ufeff",
        {"messages": [{"role": "user", "content": "w1"}, {"role": "system", "content": "w1"}]},
    ]
)  # fmt: skip
rows |= valid_rows
names = st.sampled_from(
    [None, "first", "pairs", "tags", "labels", "writing", "pictures", "talk", "choice", "chosen", "none"]
)
requests = st.fixed_dictionaries(
    {"inputs": rows | st.lists(rows, max_size=4) | st.lists(valid_rows, min_size=1, max_size=3)},
    optional={
        "task": names | st.lists(names, min_size=1, max_size=3) | st.sampled_from([1, [], [None], ["first", 1]]),
        "reject": st.sampled_from([None, "never", 0.05, 1e-9, "guess", 0, 0.0, 1, 1.0, True]),
        "stream": st.sampled_from([False, True, None, 1]),
        "more": st.just(1),
    },
)


STORES = Path(__file__).parents[1] / "golden" / "stores" / "written"


class Tasks(Catalog):
    """The learned tasks of golden stores, some of them changed, without a run folder."""

    def __init__(self, *certificates: Certificate) -> None:
        self._certificates = {certificate.task: certificate for certificate in certificates}

    def certificate(self, task: str) -> Certificate:
        """Return a task's certificate."""
        if task not in self._certificates:
            raise Problem(404, "unknown_task", task)
        return self._certificates[task]

    def taken(self) -> AcceptedRows:
        """Return which rows the tasks take."""
        return AcceptedRows.union(map(AcceptedRows.by, self._certificates.values()))


def _tasks(*names: str) -> Tasks:
    """Return tasks by their names; four of them are made from others."""
    found: dict[str, Certificate] = {}
    for store in map(Store, STORES.iterdir()):
        found |= {
            task: store.certificate(task).model_copy(update={"files": {ROUTER: "0" * 64}}) for task in store.tasks
        }
    writing, own = found["writing"], {"generation": None, "normalise": "characters", "labels": None}
    chat = {"kind": "causal-lm", "chat": chat_of(system="w1")}
    for name, changes in (("talk", chat), ("choice", own), ("chosen", own | chat)):
        found[name] = writing.model_copy(update={"task": name, **changes})
    found["off"] = found["first"].model_copy(update={"task": "off", "files": {}})
    return Tasks(*(found[name] for name in names))


RUNS = (
    (), ("off",), ("first",), ("pairs",), ("tags",), ("writing",), ("pictures",), ("talk",), ("choice",), ("chosen",),
    ("first", "pairs"), ("first", "pairs", "tags"), ("labels", "writing"), ("off", "pairs"), ("off", "writing"),
    ("writing", "talk", "choice", "chosen"), ("talk", "chosen"),
)  # fmt: skip
"""Which tasks a run has."""


def _refused(body: Any, catalog: Catalog) -> Problem | None:
    """Return the problem with a request before anything is computed."""
    try:
        asked_of(PredictRequest.model_validate(body), catalog, LIMITS)
    except Problem as problem:
        return problem
    except ValidationError as error:
        return Problem(422, "bad_request", str(error))
    return None


def _valid(catalog: Catalog, limits: ServeSettings = LIMITS) -> Callable[[Any], bool]:
    """Return a function that compares a request with its schema."""
    schemas = request_schemas(limits, catalog.taken())
    root = {"$ref": "#/components/schemas/PredictRequest", "components": {"schemas": schemas}}
    Draft202012Validator.check_schema(root)
    schema = Draft202012Validator(root)
    return lambda body: bool(schema.is_valid(body))


@pytest.fixture(scope="module")
def catalog(learned: Path) -> Catalog:
    """Return the tasks of the run that no test changes."""
    return Catalog(learned)


@pytest.fixture(scope="module")
def valid(catalog: Catalog) -> Callable[[Any], bool]:
    """Return a function that compares a request with its schema."""
    return _valid(catalog)


@pytest.fixture(scope="module", params=RUNS, ids="-".join)
def run_with(request: pytest.FixtureRequest) -> tuple[Catalog, Callable[[Any], bool]]:
    """Return the tasks of a run, and what compares a request with its schema."""
    tasks = _tasks(*request.param)
    return tasks, _valid(tasks)


def _same(body: Any, catalog: Catalog, valid: Callable[[Any], bool]) -> None:
    problem, is_valid = _refused(body, catalog), valid(body)
    if problem is None:
        assert is_valid, body
    elif is_valid:
        assert problem.status in (404, 409, 413), (body, problem.status, problem.message)
    else:
        assert problem.status in (404, 409, 413, 422)


@given(body=requests)
@settings(max_examples=60)
def test_schema_is_what_is_accepted(body: Any, run_with: tuple[Catalog, Callable[[Any], bool]]) -> None:
    _same(body, *run_with)


@pytest.mark.slow
@given(body=requests)
@settings(max_examples=5_000)
def test_schema_is_what_is_accepted_in_many_cases(body: Any, run_with: tuple[Catalog, Callable[[Any], bool]]) -> None:
    _same(body, *run_with)


FORMS: dict[str, list[Any]] = {
    "first": ["w1", {"text": "w1"}],
    "pairs": [["w1", "w2"], {"text": "w1", "text_pair": "w2"}],
    "tags": ["w1", ["w1", "w2"], ["w1"], {"tokens": ["w1"]}, {"tokens": "w1 w2"}],
    "writing": ["w1", {"source": "w1"}],
    "pictures": [{"image": GIF}],
    "talk": ["w1", {"messages": "w1"}, [{"role": "user", "content": "w1"}], {"messages": [{"from": "human", "value": "w1"}]}],
    "choice": [{"source": "w1", "options": ["w1", "w2"]}],
    "chosen": [{"messages": "w1", "options": ["w1", "w2"]}],
}  # fmt: skip
"""All ways to write a row of each task."""


@pytest.mark.parametrize("name", FORMS)
def test_schema_follows_the_task(name: str) -> None:
    """A run with one task takes the rows of this task, named or not, and no others."""
    tasks = _tasks(name)
    valid, own = _valid(tasks), FORMS[name]
    for row in [row for forms in FORMS.values() for row in forms]:
        named = {"inputs": [row], "task": name}
        assert valid(named) == (_refused(named, tasks) is None) == (row in own), (name, row)
        unnamed = {"inputs": [row]}
        assert valid(unnamed) == (_refused(unnamed, tasks) is None), (name, row)
        assert not valid(unnamed) or row in own or isinstance(row, dict)


def test_row_of_another_task_is_refused_as_a_conflict() -> None:
    tasks = _tasks("first", "pairs", "off")
    valid = _valid(tasks)
    for body, message in (
        ({"inputs": [["w1", "w2"]], "task": "first"}, "row 1: it is a list; each row must be a text"),
        ({"inputs": ["w1", "w1"], "task": ["first", "pairs"]}, "row 2: it is a text; each row must be a list of two texts"),
        ({"inputs": ["w1", "w1"], "task": ["first"]}, "task: 1 tasks for 2 rows"),
    ):  # fmt: skip
        problem = _refused(body, tasks)
        assert valid(body)
        assert problem is not None
        assert (problem.status, message in problem.message) == (409, True), problem.message


def test_a_text_with_half_a_character_is_not_called_empty() -> None:
    problem = _refused({"inputs": [{"messages": "w1 \ud800"}]}, _tasks("talk"))
    assert problem is not None
    assert (problem.status, "surrogate" in problem.message) == (422, True), problem.message


def test_only_tasks_that_can_be_found_take_rows_without_a_name() -> None:
    tasks = _tasks("off", "pairs")
    valid, body = _valid(tasks), dict[str, Any]()
    assert valid({"inputs": "w1", "task": "off"})
    for body in ({"inputs": "w1"}, {"inputs": ["w1"], "task": [None]}):
        problem = _refused(body, tasks)
        assert not valid(body)
        assert problem is not None
        assert problem.status == 422
        assert problem.message == (
            "row 1: it is a text, and no task that can be found without a name accepts such rows: name the task; without "
            "it, each row must be a list of two texts, or an object with the keys text and text_pair"
        )
    tasks = _tasks("off")
    for body in ({"inputs": "w1"}, {"inputs": "w1", "task": None}, {"inputs": ["w1"], "task": [None]}):
        problem = _refused(body, tasks)
        assert not _valid(tasks)(body)
        assert problem is not None
        assert (problem.status, problem.code) == (422, "no_routing")


def test_keys_of_a_kind_that_no_task_has_are_refused() -> None:
    """A pair of texts may be an object with the keys of a kind of pairs, but only in a run with a task of this kind."""
    tasks, body = _tasks("first", "pairs"), {"inputs": [{"question": "w1", "context": "w2"}]}
    problem = _refused(body, tasks)
    assert not _valid(tasks)(body)
    assert problem is not None
    assert (problem.status, "it has the keys 'context', 'question'" in problem.message) == (422, True), problem.message


def test_options_count_among_the_characters_of_a_row() -> None:
    tasks = _tasks("choice")
    assert _refused({"inputs": [{"source": "w" * 8, "options": ["w" * 6, "v" * 6]}], "task": "choice"}, tasks) is None
    problem = _refused({"inputs": [{"source": "w" * 9, "options": ["w" * 6, "v" * 6]}], "task": "choice"}, tasks)
    assert problem is not None
    assert (problem.status, problem.message) == (413, "row 1: 21 characters; at most 20 are allowed: shorten it")


def test_streams_are_described_only_where_a_task_can_be_streamed() -> None:
    for names, engine, streams in (
        (("labels", "writing"), "local", True), (("labels", "writing"), "ray", False), (("labels",), "local", False),
    ):  # fmt: skip
        tasks, limits = _tasks(*names), ServeSettings(engine=engine)
        body = {"inputs": "w1", "task": names[-1], "stream": True}
        assert _valid(tasks, limits)(body) is streams
        assert _valid(tasks, limits)(body | {"stream": False})
    problem = _refused({"inputs": "w1", "task": "labels", "stream": True}, _tasks("labels", "writing"))
    assert problem is not None
    assert (problem.status, problem.code) == (409, "no_stream")


@given(body=requests)
@settings(max_examples=40)
def test_valid_request_is_answered(body: Any, client: TestClient, catalog: Catalog) -> None:
    """The client compares the response with the reference."""
    response = client.post("/v1/predict", json=body)
    if _valid(catalog, ServeSettings())(body):
        assert response.status_code in (200, 404, 409, 413), (body, response.text)
    else:
        assert response.status_code in (404, 409, 413, 422), (body, response.text)


def test_schema_follows_learned_and_forgotten_tasks(
    backbone_folder: Callable[..., Path], tmp_path: Path, opened: Open
) -> None:
    folder, tasks = tmp_path / "run", [task("first", num_rows=24)]
    learn(stream(backbone_folder(), tasks, training=TRAINING), folder)
    client, pair = opened(folder), {"inputs": [["w1", "w2"]], "reject": "never"}

    def follows(status: int) -> bool:
        reference = client.get("/openapi.json").json()
        root = {"$ref": "#/components/schemas/PredictRequest", "components": reference["components"]}
        assert Draft202012Validator(root).is_valid({"inputs": "w1"})
        return bool(Draft202012Validator(root).is_valid(pair)) is (status == 200) and (
            client.post("/v1/predict", json=pair).status_code == status
        )

    assert follows(422)
    learn(stream(backbone_folder(), [*tasks, task("pairs", num_rows=24, pairs=True)], training=TRAINING), folder)
    until(lambda: follows(200))
    forget(folder, "pairs")
    until(lambda: follows(422))


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


@pytest.fixture(scope="module")
def without_pairs(backbone_folder: Callable[..., Path], learned_runs: LearnedRuns) -> Run:
    """Return a run with tasks on texts and words."""
    tasks = [task("first", num_rows=24), task_of_kind("token-classification", "tags")]
    return Run(learned_runs(stream(backbone_folder(), tasks, training=TRAINING)))


@pytest.mark.parametrize("row", PAIRS)
@pytest.mark.parametrize("limit", [0.05, "never"])
def test_pair_is_not_answered_as_words(without_pairs: Run, opened: Open, row: Any, limit: float | str) -> None:
    run = without_pairs
    client = opened(run.store.folder)
    response = client.post("/v1/predict", json={"inputs": [row], "reject": limit})
    assert (response.status_code, response.json()["error"]["row"]) == (422, 1)
    assert (
        "no task that can be found without a name accepts such rows: name the task"
        in response.json()["error"]["message"]
    )
    with pytest.raises(Exception, match="no task that can be found without a name accepts such rows"):
        run.predict([("w1", "w2")], reject="never")
    words = {"inputs": [{"tokens": ["w1", "w2"]}, {"tokens": "w1 w2"}], "reject": "never"}
    assert [each["task"] for each in client.post("/v1/predict", json=words).json()["predictions"]] == ["tags", "tags"]


@pytest.mark.parametrize(
    ("row", "name", "status"),
    [
        (["w1", "w2"], "first", 409),
        ({"text": "w1", "text_pair": "w2"}, "first", 409),
        ({"text": "w1", "text_pair": "w2"}, "tags", 409),
        (["w1"], "pairs", 409),
        (["w1", "w2", "w3"], "pairs", 409),
        ("w1", "pairs", 409),
        ({"tokens": ["w1", "w2"]}, "pairs", 409),
        ([["w1", "w2"]], "pairs", 422),
        ([["w1", "w2"]], "tags", 422),
        (["w1", "w2", "w3"], None, 422),
        (["w1"], None, 422),
        ([["w1", "w2"]], None, 422),
        ({"text": "w1", "options": ["w1", "w2"]}, None, 422),
    ],
)
def test_row_in_the_form_of_another_kind_is_refused(
    client: TestClient, row: Any, name: str | None, status: int
) -> None:
    limit = {"reject": "never"} if name is None else {}
    response = client.post("/v1/predict", json={"inputs": [row], "task": name, **limit})
    assert (response.status_code, response.json()["error"]["row"]) == (status, 1)
    assert "each row" in response.json()["error"]["message"]


def test_predictions_of_each_kind_have_their_own_type(client: TestClient) -> None:
    reference = client.get("/openapi.json").json()
    assert reference == json.loads(json.dumps(reference))
    assert isinstance(client.app, FastAPI)
    types = reference["components"]["schemas"]
    kinds = [
        each["$ref"].rpartition("/")[2] for each in types["Predictions"]["properties"]["predictions"]["items"]["anyOf"]
    ]
    inputs = ["w1", ["w1", "w2"], ["w1", "w2"], "w1 w2", "w1"]
    body = {"inputs": inputs, "task": ["first", "pairs", "tags", "many", None], "reject": "never"}
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
