"""Check that the built site loads nothing from the network, so that it opens from a disk as well as from a server.

`mkdocs.yml` registers this file as a hook: a page that would load a script, a style, a font or a picture from elsewhere fails
the build. Links that a reader may click are fine.
"""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
_LOADED_LINKS = {
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "modulepreload",
    "certificate",
}


class _Loads(HTMLParser):
    """Collect the addresses that a browser loads automatically."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the address that an element loads, if any."""
        given = {name: value or "" for name, value in attrs}
        if tag == "link" and _LOADED_LINKS & set(given.get("rel", "").split()):
            self.addresses.append(given.get("href", ""))
        elif tag in _LOADED and _LOADED[tag] in given:
            self.addresses.append(given[_LOADED[tag]])


def network_loads(html: str) -> list[str]:
    """Return the addresses on other machines that a page loads by itself.

    Example:
        >>> network_loads('<script src="https://cdn.example/x.js"></script><a href="https://example.org">a link</a>')
        ['https://cdn.example/x.js']
    """
    parser = _Loads()
    parser.feed(html)
    return [address for address in parser.addresses if address.startswith(("http:", "https:", "//"))]


def on_post_build(config: MkDocsConfig) -> None:
    """Check every page of the built site."""
    for file in sorted(Path(config.site_dir).rglob("*.html")):
        if found := network_loads(file.read_text(encoding="utf-8")):
            raise PluginError(f"{file.name} loads {found[0]}: the site has to open without a network")
