"""The Python client returns records, and raises the endpoint's errors."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pandas as pd
import pytest
from starlette.testclient import TestClient

from continual_petl import InputError, Run
from continual_petl.serve import Client, EndpointError


@pytest.fixture
def asking(client: TestClient) -> Iterator[Client]:
    """Return a client for the shared endpoint."""
    with Client("http://127.0.0.1", transport=client._transport) as found:
        yield found


def test_one_row_is_one_record_and_a_list_is_a_list(asking: Client, run: Run) -> None:
    text = "w1 w20 w30"
    assert asking.predict(text, "first")["answer"] == run.predict(text, "first").value
    found = asking.predict([text, text], ["first", "second"])
    assert [record["task"] for record in found] == ["first", "second"]
    assert asking.predict(text, reject="never")["task"] is not None
    assert len(asking.predict(text, candidates=2)["candidates"]) == 2
    assert [record["text"] for record in asking.predict([text, "w2 w3"], "first")] == [text, "w2 w3"]
    with pytest.raises(EndpointError):
        asking.predict((text, "w2 w3"), "first")  # a tuple is one row, and this task reads single texts


def test_rows_may_be_in_any_container(asking: Client) -> None:
    texts = ["w1 w20 w30", "w2 w3"]
    expected = [asking.predict(text, "first")["answer"] for text in texts]
    frame = pd.DataFrame({"text": texts}, index=[5, 5])
    tasks: Any = np.array(["first", "first"])
    for rows in (
        frame,
        frame["text"],
        np.array(texts),
        iter(texts),
        frame.to_dict("records"),
        frame.itertuples(index=False),
    ):
        assert [record["answer"] for record in asking.predict(rows, tasks)] == expected
    row = namedtuple("row", ["text"])
    assert asking.predict(row(texts[0]), "first")["answer"] == expected[0]
    assert asking.predict({"tokens": np.array(["w1", "w2"])}, "tags") == asking.predict(
        {"tokens": ["w1", "w2"]}, "tags"
    )
    with pytest.raises(
        InputError, match=r"inputs: got a Series of pandas whose index names columns.*series.to_dict\(\)"
    ):
        asking.predict(frame.iloc[0], "first")
    with pytest.raises(InputError, match="inputs: got a set, which has no order"):
        asking.predict(set(texts), "first")
    with pytest.raises(InputError, match="inputs: Object of type bytes is not JSON serializable; give texts"):
        asking.predict([b"w1"], "first")


def test_tasks(asking: Client, learned: Path) -> None:
    assert [entry["task"] for entry in asking.tasks()] == ["first", "second", "pairs", "tags", "many"]
    one = asking.task("second")
    certificate = Run(learned).store.certificate("second")
    assert (one["kind"], one["labels"], one["seal"]) == ("classification", ["no", "yes"], certificate.seal)
    assert one["certificate"]["backbone"] == certificate.backbone


def test_refusal_is_raised_with_its_fields(asking: Client) -> None:
    with pytest.raises(EndpointError, match="task 'frist' has not been learned") as caught:
        asking.predict("w1", "frist")
    assert (caught.value.status, caught.value.code) == (404, "unknown_task")
    with pytest.raises(EndpointError) as caught:
        asking.predict(["w1", ""], "first")
    assert caught.value.row == 2


def _answering(status: int, **more: Any) -> Client:
    return Client("http://x", transport=httpx2.MockTransport(lambda request: httpx2.Response(status, **more)))


def test_retry_after_and_foreign_errors() -> None:
    body = {"error": {"code": "busy", "message": "9 rows are waiting"}}
    with pytest.raises(EndpointError, match="9 rows") as caught:
        _answering(429, json=body, headers={"retry-after": "7"}).predict("w1")
    assert caught.value.retry_after == 7
    with pytest.raises(EndpointError, match="a proxy's page") as caught:
        _answering(502, text="a proxy's page").predict("w1")
    assert (caught.value.code, caught.value.row) == ("http", None)


def test_token_is_sent() -> None:
    seen = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers["authorization"])
        return httpx2.Response(200, json={"tasks": []})

    Client("http://x", token="abc", transport=httpx2.MockTransport(answer)).tasks()
    assert seen == ["Bearer abc"]
