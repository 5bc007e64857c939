"""A local Hub: repositories in memory, and the part of the Hub's API that `huggingface_hub` uses for models, and `datasets`
for reading.

It serves the requests that the client makes: repositories, branches, the tree, preupload, LFS, commits, and files with their
ETag. It also refuses what the Hub refuses: writing without a token, reading private repositories without one, commits onto an
old parent, and LFS files that were never uploaded.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

TOKEN = "hf_of_the_tests"


@dataclass
class File:
    """A file of a commit."""

    content: bytes
    lfs: bool

    @property
    def oid(self) -> str:
        """Git's digest of the file, or the SHA-256 of an LFS file."""
        if self.lfs:
            return hashlib.sha256(self.content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(self.content) + self.content).hexdigest()


@dataclass
class Repo:
    """A repository: its branches, each a list of commit names, and the files of each commit."""

    private: bool
    branches: dict[str, list[str]] = field(default_factory=dict)
    commits: dict[str, dict[str, File]] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, File]) -> str:
        """Add a commit to a branch."""
        name = hashlib.sha1(f"{branch} {len(self.commits)} {sorted(files)}".encode()).hexdigest()
        self.commits[name] = files
        self.branches.setdefault(branch, []).append(name)
        return name

    def sha(self, revision: str) -> str | None:
        """Return the commit of a branch or commit."""
        if revision in self.branches:
            return self.branches[revision][-1]
        return revision if revision in self.commits else None


class LocalHub(ThreadingHTTPServer):
    """The server; ``asked`` lists the requests since it was last cleared."""

    daemon_threads = True

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.lfs: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.served: dict[str, bytes] = {}
        """Content that is sent instead of the listed one, by path: what a faulty server or proxy does."""
        self.break_after: int | None = None
        """Number of LFS files to accept, after which uploads break off in the middle; None accepts all."""
        super().__init__(("127.0.0.1", 0), _Answer)

    @property
    def address(self) -> str:
        """The server's URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self, repo: str, revision: str = "main") -> dict[str, bytes]:
        """Return the files of a branch."""
        found = self.repos[repo]
        sha = found.sha(revision)
        assert sha is not None
        return {path: file.content for path, file in found.commits[sha].items()}

    def change(self, repo: str, changes: dict[str, bytes | None]) -> None:
        """Commit changes to main, as another user would."""
        found = self.repos[repo]
        files = dict(found.commits[found.branches["main"][-1]])
        for path, content in changes.items():
            if content is None:
                del files[path]
            else:
                files[path] = File(content, path.endswith(".safetensors"))
        found.commit("main", files)

    def sent(self, method: str, part: str = "") -> list[str]:
        """Return the requests with this method whose path contains ``part``."""
        return [each for each in self.asked if each.startswith(f"{method} ") and part in each]


@contextmanager
def local_hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """Yield a Hub that huggingface_hub uses, with a token and with its cache in ``home``."""
    with LocalHub() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        for name, value in {
            "HF_HUB_OFFLINE": False,
            "HF_HUB_DISABLE_XET": True,  # its client is not written in Python and uses another server
            "ENDPOINT": server.address,
            "HUGGINGFACE_CO_URL_TEMPLATE": server.address + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HOME": str(home),
            "HF_HUB_CACHE": str(home / "hub"),
        }.items():
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        # It keeps the address of the Hub that it was made for.
        monkeypatch.setattr("transformers.utils.hub._hf_api", None)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server
        server.shutdown()


class _Answer(BaseHTTPRequestHandler):
    server: LocalHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # buffered, so that headers and content are sent at once

    def log_message(self, *_: Any) -> None:
        """Write nothing."""

    def do_GET(self) -> None:
        self._route()

    do_HEAD = do_POST = do_PUT = do_GET

    def _route(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if path.startswith("/api/agent"):  # requested by huggingface_hub itself, not on behalf of a test
            self._send(404, {})
            return
        self.server.asked.append(f"{self.command} {path}")
        for pattern, answer in _ROUTES.items():
            if found := re.fullmatch(pattern, f"{self.command} {path}"):
                answer(self, **found.groupdict())
                return
        self._send(404, {"error": f"no such route: {self.command} {path}"})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            content = b""
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return content
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _send(self, status: int, value: Any, headers: dict[str, str] | None = None, size: int | None = None) -> None:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in (headers or {}).items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(content) if size is None else size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _may_write(self) -> bool:
        if self.headers.get("Authorization") == f"Bearer {TOKEN}":
            return True
        self._body()
        self._send(401, {"error": "Invalid username or password."})
        return False

    def _repo(self, name: str) -> Repo | None:
        repo = self.server.repos.get(name)
        if repo is None or (repo.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"):
            self._body()
            self._send(401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
            return None
        return repo

    def _commit_of(self, repo: Repo, revision: str) -> str | None:
        if (sha := repo.sha(revision)) is None:
            self._send(404, {"error": f"Invalid rev id: {revision}"}, {"X-Error-Code": "RevisionNotFound"})
        return sha

    def create(self) -> None:
        if not self._may_write():
            return
        given = json.loads(self._body())
        name = f"{given['organization']}/{given['name']}"
        url = {"url": f"{self.server.address}/{name}"}
        if name in self.server.repos:
            self._send(409, url | {"error": "You already created this model repo"})
            return
        repo = self.server.repos[name] = Repo(private=given.get("visibility") == "private")
        repo.commit("main", {".gitattributes": File(b"*.safetensors filter=lfs\n", False)})
        self._send(200, url)

    def branch(self, name: str, branch: str) -> None:
        if not self._may_write() or (repo := self._repo(name)) is None:
            return
        self._body()
        if branch in repo.branches:
            self._send(409, {"error": "Reference already exists"})
            return
        repo.branches[branch] = [repo.branches["main"][-1]]
        self._send(200, {})

    def info(self, name: str, revision: str | None = None) -> None:
        if (repo := self._repo(name)) is None or (sha := self._commit_of(repo, revision or "main")) is None:
            return
        siblings = [{"rfilename": path} for path in repo.commits[sha]]
        self._send(200, {"id": name, "sha": sha, "private": repo.private, "tags": [], "siblings": siblings})

    def tree(self, name: str, revision: str) -> None:
        if (repo := self._repo(name)) is None or (sha := self._commit_of(repo, revision)) is None:
            return
        listed: list[dict[str, Any]] = []
        for path, file in repo.commits[sha].items():
            entry = {"type": "file", "path": path, "size": len(file.content), "oid": file.oid[:40]}
            lfs = {"oid": file.oid, "size": len(file.content), "pointerSize": 134}
            listed.append(entry | ({"lfs": lfs} if file.lfs else {}))
        self._send(200, listed)

    def validate(self) -> None:
        text = json.loads(self._body())["content"]
        good = text.startswith("---\n") and "\n---\n" in text
        errors = [] if good else [{"message": "no metadata"}]
        self._send(200 if good else 400, {"errors": errors, "warnings": []})

    def preupload(self, name: str, revision: str) -> None:
        if not self._may_write() or (repo := self._repo(name)) is None:
            return
        files = json.loads(self._body())["files"]
        if (sha := self._commit_of(repo, revision)) is None:
            return
        answers = []
        for file in files:
            there = repo.commits[sha].get(file["path"])
            mode = "lfs" if file["path"].endswith(".safetensors") else "regular"
            oid = None if there is None else there.oid
            answers.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self._send(200, {"files": answers})

    def batch(self, name: str) -> None:
        if not self._may_write() or self._repo(name) is None:
            return
        objects = []
        for each in json.loads(self._body())["objects"]:
            upload = {"upload": {"href": f"{self.server.address}/lfs/{each['oid']}", "header": {}}}
            known = each["oid"] in self.server.lfs
            objects.append({"oid": each["oid"], "size": each["size"]} | ({} if known else {"actions": upload}))
        self._send(200, {"transfer": "basic", "objects": objects})

    def put(self, oid: str) -> None:
        if self.server.break_after is not None and len(self.server.lfs) >= self.server.break_after:
            self.rfile.read(100)
            self.close_connection = True
            self.connection.close()
            return
        content = self._body()
        if hashlib.sha256(content).hexdigest() != oid:
            self._send(400, {"error": "the content has another digest"})
            return
        self.server.lfs[oid] = content
        self._send(200, {})

    def commit(self, name: str, revision: str) -> None:
        if not self._may_write() or (repo := self._repo(name)) is None:
            return
        lines = [json.loads(line) for line in self._body().splitlines()]
        newest = repo.branches[revision][-1]
        if lines[0]["value"].get("parentCommit", newest) != newest:
            self._send(412, {"error": "A commit has happened since. Please refresh and try again."})
            return
        files = dict(repo.commits[newest])
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = File(base64.b64decode(value["content"]), False)
            elif line["key"] == "lfsFile":
                files[value["path"]] = File(self.server.lfs[value["oid"]], True)
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        sha = repo.commit(revision, files)
        self._send(200, {"commitUrl": f"{self.server.address}/{name}/commit/{sha}", "commitOid": sha})

    def resolve(self, name: str, revision: str, path: str) -> None:
        if (repo := self._repo(name)) is None or (sha := self._commit_of(repo, revision)) is None:
            return
        file = repo.commits[sha].get(path)
        if file is None:
            self._send(404, {"error": "Entry not found"}, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha})
            return
        headers = {"ETag": f'"{file.oid}"', "X-Repo-Commit": sha}
        if file.lfs:
            headers |= {"X-Linked-Etag": f'"{file.oid}"', "X-Linked-Size": str(len(file.content))}
        self._send(200, self.server.served.get(path, file.content), headers)


_NAME = r"(?P<name>[\w.-]+/[\w.-]+)"
_ROUTES: dict[str, Callable[..., None]] = {
    r"POST /api/repos/create": _Answer.create,
    r"POST /api/validate-yaml": _Answer.validate,
    rf"POST /api/models/{_NAME}/branch/(?P<branch>.+)": _Answer.branch,
    rf"GET /api/(models|datasets)/{_NAME}": _Answer.info,
    rf"GET /api/(models|datasets)/{_NAME}/revision/(?P<revision>.+)": _Answer.info,
    rf"GET /api/(models|datasets)/{_NAME}/tree/(?P<revision>[^/]+)(/.*)?": _Answer.tree,
    rf"POST /api/models/{_NAME}/preupload/(?P<revision>.+)": _Answer.preupload,
    rf"POST /api/models/{_NAME}/commit/(?P<revision>.+)": _Answer.commit,
    rf"POST /{_NAME}\.git/info/lfs/objects/batch": _Answer.batch,
    r"PUT /lfs/(?P<oid>[0-9a-f]{64})": _Answer.put,
    rf"(GET|HEAD) /(datasets/)?{_NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)": _Answer.resolve,
}
