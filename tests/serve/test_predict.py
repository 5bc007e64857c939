"""POST /v1/predict answers as `Run.predict` does, and refuses invalid requests with the row and the reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from continual_petl import Run, learn
from continual_petl.predictor.predictor import Predictor
from tests.router.rows import labelled_task, routed_stream, rows_of
from tests.serve.conftest import Open

PIXEL = "R0lGODlhAQABAIAAAP///wAAACwAAAAAAQABAAACAkQBADs="
TEXTS = ["w1 w20 w30", "w0 w41", "w1 w1 w50 w60 w70 w12"]


def _predicted(client: TestClient, inputs: Any, task: Any = None, **more: Any) -> Any:
    response = client.post("/v1/predict", json={"inputs": inputs, "task": task, **more})
    assert response.status_code == 200, response.text
    return response.json()["predictions"]


def _close(found: dict[str, float], wanted: Any) -> bool:
    # In a batch of several tasks, the matrix products have other shapes and round differently.
    return found == pytest.approx(dict(wanted), abs=1e-5)


def test_texts_of_a_named_task(client: TestClient, run: Run) -> None:
    found = _predicted(client, TEXTS, "first")
    for record, text, answer in zip(found, TEXTS, run.predict(TEXTS, "first"), strict=True):
        assert (record["task"], record["text"], record["answer"]) == ("first", text, answer.value)
        assert _close(record["probabilities"], answer.probabilities)


def test_one_row_is_a_list_of_one_record(client: TestClient, run: Run) -> None:
    (record,) = _predicted(client, TEXTS[0], "second")
    assert record["answer"] == run.predict(TEXTS[0], "second").value


def test_rows_of_several_tasks_share_a_request(client: TestClient, run: Run) -> None:
    inputs = [TEXTS[0], ["w1 w2", "w3"], ["w10", "w11", "w12"], {"text": TEXTS[1]}, {"tokens": ["w10", "w20"]}]
    tasks = ["first", "pairs", "tags", "many", "tags"]
    found = _predicted(client, inputs, tasks)
    alone = [
        run.predict(TEXTS[0], "first"),
        run.predict([("w1 w2", "w3")], "pairs")[0],
        run.predict([["w10", "w11", "w12"]], "tags")[0],
        run.predict(TEXTS[1], "many"),
        run.predict([["w10", "w20"]], "tags")[0],
    ]
    assert [record["answer"] for record in found] == [answer.value for answer in alone]
    assert found[1]["text_pair"] == "w3"
    assert found[2]["tokens"] == ["w10", "w11", "w12"]


def test_rows_without_a_task_are_routed(client: TestClient, run: Run) -> None:
    inputs = [*TEXTS, ["w1 w2", "w3 w4"]]
    routed = run.predict([*TEXTS, ("w1 w2", "w3 w4")], reject="never")
    for record, wanted in zip(_predicted(client, inputs, reject="never"), routed, strict=True):
        assert (record["task"], record["answer"]) == (wanted.task, wanted.value)
        assert record["task_probability"] == pytest.approx(wanted.task_probability, abs=1e-5)
        assert record["known"] == pytest.approx(wanted.known, abs=1e-3)
        assert _close(record["runners_up"], wanted.runners_up)


def test_banks_in_upper_layers_resume_from_the_pass_that_found_the_task(
    backbone_folder: Callable[..., Path], tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = {"preset": "houlsby", "bottleneck": 4, "layers": "1"}
    tasks = [labelled_task("low"), labelled_task("high")]
    run = learn(routed_stream(backbone_folder(), tasks, bank=bank), tmp_path / "run", progress=False)
    texts = [row["text"] for name in ("low", "high") for row in rows_of(name, 6, 7)]
    client = opened(tmp_path / "run")
    names = ["low", *[None] * (len(texts) - 1)]
    _predicted(client, texts, names, reject="never")  # verifies the banks first
    below: list[object] = []
    resume = Predictor.resume

    def resumed(predictor: Predictor, *given: Any, **more: Any) -> Any:
        below.append(given[2])
        return resume(predictor, *given, **more)

    monkeypatch.setattr(Predictor, "resume", resumed)
    found = _predicted(client, texts, names, reject="never")
    assert [states is not None for states in below] == [
        True,
        False,
    ]  # the rows whose task was found, then the named row
    wanted = run.predict(texts, [record["task"] for record in found])
    for record, answer in zip(found, wanted, strict=True):
        assert record["answer"] == answer.value
        assert _close(record["probabilities"], answer.probabilities)


def test_named_and_unnamed_rows_share_a_request(client: TestClient, run: Run) -> None:
    named, found = _predicted(client, [TEXTS[0], TEXTS[0]], ["first", None], reject="never")
    assert "task_probability" not in named
    assert found["task_probability"] > 0


def test_unknown_row_gets_no_prediction(client: TestClient) -> None:
    (record,) = _predicted(client, "w99 " * 60)
    if record["task"] is None:
        assert record["answer"] is None
        assert record["runners_up"]
    (nearest,) = _predicted(client, "w99 " * 60, reject="never")
    assert nearest["answer"] is not None
    assert nearest["known"] == pytest.approx(record["known"], abs=1e-3)
    (limited,) = _predicted(client, "w99 " * 60, reject=0.999)
    assert limited["task"] is None or limited["known"] >= 0.999
    assert list(limited)[1:3] == ["task_probability", "known"]


@pytest.mark.parametrize(
    ("body", "status", "code", "fragment"),
    [
        ({"inputs": ["w1"], "task": "first", "reject": 0.05}, 409, "bad_request", "reject: the request names the task"),
        ({"inputs": ["w1"], "task": "frist"}, 404, "unknown_task", "task 'frist' has not been learned; learned tasks: first"),
        ({"inputs": [], "task": "first"}, 422, "no_rows", "give at least one row"),
        ({"inputs": ["w1", 3], "task": "first"}, 422, "bad_row", "row 2: it is a number; each row must be a text"),
        ({"inputs": ["w1", "  "], "task": "first"}, 422, "bad_row", "row 2: text: empty; each row must be a text"),
        ({"inputs": ["w1", "w2"], "task": "pairs"}, 409, "bad_row", "row 1: it is a text; each row must be a list of two"),
        ({"inputs": [["w1", "w2"]], "task": "first"}, 409, "bad_row", "row 1: it is a list; each row must be a text"),
        ({"inputs": [{"txt": "w1"}], "task": "first"}, 422, "bad_row", "it has the keys 'txt'; each row must be a text"),
        ({"inputs": [{"tokens": ["w1"]}], "task": "first"}, 409, "bad_row", "it has the keys 'tokens'"),
        ({"inputs": [{"image": "aaaa"}], "task": "first"}, 422, "bad_row", "it has the keys 'image'"),
        ({"inputs": [["w1", 2]], "task": "tags"}, 422, "bad_row", "row 1: tokens: word 2 is 2; each row must be a list of"),
        ({"inputs": [None]}, 422, "bad_row", "row 1: it is null; each row must be a text, or an object with the"),
        ({"inputs": [["w1", "w2", "w3"]]}, 422, "bad_row", "row 1: it is a list"),
        ({"inputs": [{"image": "not base64!"}]}, 422, "bad_row", "row 1: it is an image, and no task that can be found"),
        ({"inputs": [{"image": PIXEL}]}, 422, "bad_row", "no task that can be found without a name accepts"),
        ({"inputs": [{"text": ["w1", "w2"]}]}, 422, "bad_row", "row 1: text: ['w1', 'w2'] is not a text; each"),
        ({"inputs": [{"text": 1, "text_pair": "w1"}], "task": "pairs"}, 422, "bad_row", "row 1: text: 1 is not a text; "),
        ({"inputs": ["w1 \ud800"], "task": "first"}, 422, "bad_row", "row 1: text: no text, since \\ud800 is half of"),
        ({"inputs": ["w1"], "task": ["first", "first"]}, 409, "bad_request", "2 tasks for 1 rows"),
        ({"inputs": [["w"] * 200], "task": "tags"}, 409, "bad_row", "row 1 has 200 words"),
    ],
)  # fmt: skip
def test_bad_request_is_refused_with_its_reason(
    client: TestClient, learned: Path, body: Any, status: int, code: str, fragment: str
) -> None:
    response = client.post(
        "/v1/predict", content=__import__("json").dumps(body), headers={"content-type": "application/json"}
    )
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert fragment in error["message"]
    assert str(learned) not in response.text
    assert "Traceback" not in response.text


def test_problem_of_one_row_names_its_number(client: TestClient) -> None:
    response = client.post("/v1/predict", json={"inputs": ["w1", "w2", ""], "task": "first"})
    assert response.json()["error"]["row"] == 3


@pytest.mark.parametrize(
    ("inputs", "tasks", "row"),
    [
        ([*["w1"] * 70, ["w"] * 200, "w1"], [*["first"] * 70, "tags", "first"], 71),
        (["w1", ["w"] * 200, ["w"] * 200], [None, "tags", "tags"], 2),
    ],
)
def test_problem_found_in_a_batch_names_its_row(client: TestClient, inputs: Any, tasks: Any, row: int) -> None:
    """Rows are predicted in parts, and some are left out, but the error gives the row's number in the request."""
    response = client.post("/v1/predict", json={"inputs": inputs, "task": tasks})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["row"]) == (409, "bad_row", row)
    assert f"row {row} " in error["message"]


_OBJECT = (
    "send an object with the key inputs, and optionally task, reject, candidates and stream; /docs describes a request"
)
_TASK = "give the name of a task, a list with a name or null for each row, or null; /docs describes a request"
_INPUTS = "give one row (a text or an object), or a list of rows; /docs describes a request"


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"", 422, f"the body is empty, or null; {_OBJECT}"),
        (b"null", 422, f"the body is empty, or null; {_OBJECT}"),
        (b"[]", 422, f"the body is a list; {_OBJECT}"),
        (b'"w1"', 422, f"the body is a text; {_OBJECT}"),
        (b"true", 422, f"the body is true; {_OBJECT}"),
        (b"{}", 422, f"inputs: it is missing; {_INPUTS}"),
        (b'{"inputs": 5}', 422, f"inputs: it is a number; {_INPUTS}"),
        (b'{"inputs": null}', 422, f"inputs: it is null; {_INPUTS}"),
        (b'{"inputs": false, "task": 1}', 422, f"inputs: it is false; {_INPUTS}"),
        (b'{"inputs": "w1", "task": 1}', 422, f"task: it is a number; {_TASK}"),
        (b'{"inputs": "w1", "task": {}}', 422, f"task: it is an object; {_TASK}"),
        (b'{"inputs": "w1", "task": ["first", 2]}', 422, f"task: element 2 of the list is a number; {_TASK}"),
        (
            b'{"inputs": "w1", "reject": "guess"}',
            422,
            "reject: it is 'guess'; give a number above 0 and below 1, 'never' or null; /docs describes a request",
        ),
        (
            b'{"inputs": "w1", "reject": 1.5}',
            422,
            "reject: it is 1.5; give a number above 0 and below 1, 'never' or null; /docs describes a request",
        ),
        (
            b'{"inputs": "w1", "stream": "yes"}',
            422,
            "stream: it is 'yes'; give true or false; /docs describes a request",
        ),
        (
            b'{"inputs": "w1", "stream": 1}',
            422,
            "stream: it is a number; give true or false; /docs describes a request",
        ),
        (
            b'{"inputs": "w1", "tsk": "first"}',
            422,
            "'tsk' is not a key of a request (did you mean 'task'?); allowed: inputs, task, reject, candidates, stream; "
            "/docs describes a request",
        ),
        (
            b'{"inputs": "\xff"}',
            400,
            "the body cannot be read as JSON: byte 13 is not UTF-8; encode the text as UTF-8",
        ),
        (
            b"{",
            400,
            "the body cannot be read as JSON: character 2 is not valid JSON (Expecting property name enclosed in "
            "double quotes); write it with a JSON library",
        ),
        (
            b"[" * 100_000,
            400,
            "the body cannot be read as JSON: its brackets are nested too deeply; a request needs at most six levels",
        ),
        (
            b'{"inputs": [' + b'{"a":' * 100_000,
            400,
            "the body cannot be read as JSON: its brackets are nested too deeply; a request needs at most six levels",
        ),
        *(
            (
                b'{"inputs": ' + number + b"}",
                400,
                "the body cannot be read as JSON: it has NaN, an infinity, or a number with too many digits; a request needs "
                "no numbers",
            )
            for number in (b"NaN", b"-Infinity", b"9" * 5000)
        ),
    ],
)
def test_body_that_is_no_request_is_refused_in_words(
    client: TestClient, content: bytes, status: int, message: str
) -> None:
    response = client.post("/v1/predict", content=content, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()) == (status, {"error": {"code": "bad_request", "message": message}})


def test_unknown_paths_methods_and_hosts_are_refused_in_words(client: TestClient) -> None:
    for method, path, status, message in (
        ("GET", "/v1/none", 404, "there is no path '/v1/none': /docs lists all paths"),
        ("DELETE", "/v1/predict", 405, "the path '/v1/predict' has no method DELETE; allowed: POST"),
    ):
        response = client.request(method, path)
        assert (response.status_code, response.json()["error"]["message"]) == (status, message)
    response = client.get("/v1/tasks", headers={"host": "evil.example.org"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "bad_host")
    assert response.json()["error"]["message"] == (
        "the header Host is 'evil.example.org', which this endpoint does not allow: use its own name, or start it with "
        "--allowed-host NAME"
    )


@pytest.mark.parametrize(
    "content",
    [
        b'{"inputs": ["w1"], "task": "first", "task": "second"}',
        b'{"inputs": [{"text": "w1", "text": "w2"}], "task": "first"}',
    ],
)
def test_key_given_twice_is_refused(client: TestClient, content: bytes) -> None:
    response = client.post("/v1/predict", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 422
    assert "twice in one object: give it once" in response.json()["error"]["message"]


def test_texts_sent_as_a_form_are_refused(client: TestClient) -> None:
    """A page on another site can make a browser send a form, but not JSON."""
    response = client.post(
        "/v1/predict", content=b'{"inputs": ["w1"], "task": "first"}', headers={"content-type": "text/plain"}
    )
    assert response.status_code == 415
    assert "send the header Content-Type: application/json" in response.json()["error"]["message"]


def test_problem_of_one_request_does_not_affect_others(client: TestClient, run: Run) -> None:
    """Rows of several requests can share a batch, and only encoding them shows that one is too long."""
    from concurrent.futures import ThreadPoolExecutor

    bodies = [{"inputs": [["w"] * 200], "task": "tags"}] + [{"inputs": [text], "task": "first"} for text in TEXTS]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda body: client.post("/v1/predict", json=body), bodies))
    assert [response.status_code for response in found] == [409, 200, 200, 200]
    assert [r.json()["predictions"][0]["answer"] for r in found[1:]] == [a.value for a in run.predict(TEXTS, "first")]
