"""A test client that compares every response with the one that the endpoint's OpenAPI reference declares."""

from __future__ import annotations

import re
from typing import Any

import httpx2
from fastapi import FastAPI
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

OPEN = ("/", "/docs", "/openapi.json")
"""Paths that are not part of the reference."""


def validator(app: FastAPI, name: str) -> Draft202012Validator:
    """Return what checks a value of one of the named types of the reference."""
    reference = app.openapi()
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": reference["components"]})


def check_declared(app: FastAPI, method: str, path: str, response: httpx2.Response) -> None:
    """Fail unless the status, media type, headers and content of a response are declared for its path."""
    reference = app.openapi()
    found = [declared for each, declared in reference["paths"].items() if _matches(each, path)]
    if not found:
        assert path in OPEN or response.status_code in (400, 404, 405), path
        return
    if method.lower() not in found[0]:
        assert response.status_code in (400, 405, 413), (method, path, response.status_code)
        assert response.status_code != 405 or response.headers["allow"] == ", ".join(map(str.upper, found[0]))
        return
    declared = found[0][method.lower()]["responses"]
    assert str(response.status_code) in declared, (method, path, response.status_code)
    own = declared[str(response.status_code)]
    media = response.headers["content-type"].split(";")[0]
    assert media in own["content"], (method, path, response.status_code, media)
    for name, header in own.get("headers", {}).items():
        assert name in response.headers or "if that is known" in header["description"]
    if media == "application/json":
        schema = own["content"][media]["schema"] | {"components": reference["components"]}
        Draft202012Validator(schema).validate(response.json())


def _matches(declared: str, path: str) -> bool:
    return re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", declared), path) is not None


class CheckedClient(TestClient):
    """A client without a network."""

    def send(self, request: httpx2.Request, **more: Any) -> httpx2.Response:
        """Send a request, and check the response unless it is streamed."""
        response = super().send(request, **more)
        if not more.get("stream"):
            assert isinstance(self.app, FastAPI)
            check_declared(self.app, request.method, request.url.path, response)
        return response
