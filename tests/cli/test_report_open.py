"""``report --open`` without a graphical browser prints the address and does not block the terminal."""

from __future__ import annotations

import webbrowser
from typing import Any

import pytest

from continual_petl.cli.commands.report import _open


def _none() -> Any:
    raise webbrowser.Error("could not locate runnable browser")


@pytest.mark.parametrize("get", [_none, lambda: webbrowser.GenericBrowser("w3m")])
def test_address_is_printed_without_a_browser(get: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(webbrowser, "get", get)
    monkeypatch.setattr(webbrowser, "open", lambda address: pytest.fail("no browser may be started"))
    _open("http://127.0.0.1:1/")
    assert capsys.readouterr().out == "no browser was found; the address is http://127.0.0.1:1/\n"


def test_browser_is_opened_with_the_address(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    given: list[str] = []
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.BackgroundBrowser("browser"))

    def opened(address: str) -> bool:
        given.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", opened)
    _open("http://127.0.0.1:1/")
    assert given == ["http://127.0.0.1:1/"]
    assert capsys.readouterr().out == ""
