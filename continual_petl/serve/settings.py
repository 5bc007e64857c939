"""The settings of an endpoint: where it listens, who may use it, how rows share batches, and its limits."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from continual_petl._strict_model import UserSpec
from continual_petl.errors import InputError
from continual_petl.streams.schema.routing_spec import Reject

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_MIN_TOKEN = 16
"""Minimum number of characters of a token; a shorter one could be guessed."""
_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Numbers of kernels that oneDNN keeps, and that torch keeps in each thread; 1,024 each by default."""
_KERNELS = 128
_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0)]


class ServeSettings(UserSpec):
    """How a run is served.

    Raises:
        InputError: if a value is not allowed.
    """

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port to listen on; 0 means any free one."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that requests may have in their Host header. On a loopback address, the loopback names are always allowed; on
    other addresses, at least one name has to be given."""
    token_file: Path | None = None
    """File with the token that requests need; None: no token is needed."""
    window_ms: Annotated[float, Field(ge=0, le=60_000)] = 5.0
    """How long the first row of a batch waits for others, in milliseconds."""
    batch_rows: _Count = 64
    """Maximum number of rows that are computed together."""
    max_rows: _Count = 512
    """Maximum number of rows of one request."""
    max_characters: _Count = 20_000
    """Maximum number of characters of one row."""
    max_body_bytes: _Count = 8 * 2**20
    """Maximum size of a request's body in bytes."""
    max_waiting: _Count = 2048
    """Maximum number of waiting rows; requests beyond that are refused with status 429."""
    timeout_s: _Seconds = 30.0
    """Seconds after which a request fails with status 504."""
    client_s: _Seconds = 30.0
    """Seconds that a client may take to send the head of a request, to send its body, and to read a part of the response."""
    max_connections: _Count | None = None
    """Maximum number of connections; None means half of the file descriptors that this process may have, at most 1,024."""
    resident_bytes: Annotated[int, Field(ge=0)] | None = None
    """Memory limit for all banks together, in bytes; 0 keeps one bank, and None means 1 GiB. See `Run`."""
    reject: Reject = None
    """The limit below which rows without a task name get no prediction, unless a request gives one. See `Run.predict`."""
    watch_s: _Seconds = 1.0
    """Seconds between two checks of the run folder for tasks that other processes have learned or forgotten."""
    log_texts: bool = False
    """Whether the log contains the texts of rows and predictions."""
    remote_code: bool = False
    """Whether Python code that comes with the backbone may be executed. See `Run`."""
    engine: Literal["local", "ray"] = "local"
    """``local``: rows are predicted in this process; ``ray``: in replicas on Ray Serve."""
    replicas: _Count = 1
    """Number of replicas on Ray Serve."""

    @model_validator(mode="after")
    def _check(self) -> ServeSettings:
        for name in self.allowed_hosts:
            if not name or "*" in name.removeprefix("*."):
                raise InputError(
                    f"allowed_hosts: got {name!r}; give a name such as models.example.org, or *.example.org for subdomains"
                )
        if self.max_waiting < self.max_rows:
            raise InputError(
                f"max_waiting: got {self.max_waiting}, but a request may have {self.max_rows} rows, which would always be "
                "refused: raise max_waiting, or lower max_rows"
            )
        if self.replicas > 1 and self.engine != "ray":
            raise InputError(
                f"replicas: got {self.replicas}, but only the ray engine supports replicas; use engine ray"
            )
        if not self.loopback and not self.allowed_hosts:
            raise InputError(
                f"host: {self.host} can be reached from other machines, so the host names of requests must be given, "
                "for instance --allowed-host models.example.org; it is also wise to require a token (--token-file)"
            )
        return self

    @property
    def streams(self) -> bool:
        """Whether texts can be sent in pieces while they are generated."""
        return self.engine == "local"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the endpoint."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def hosts(self) -> list[str]:
        """The names in the Host header that are accepted."""
        own = {*_LOOPBACK_NAMES, self.host} if self.loopback else set()
        return sorted(f"[{name}]" if ":" in name else name for name in {*own, *self.allowed_hosts})

    def token(self) -> str | None:
        """Return the token that requests need; None if they need none.

        Raises:
            InputError: if the file cannot be read, or its token is too short.
        """
        if self.token_file is None:
            return None
        try:
            text = self.token_file.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"token_file: {self.token_file} cannot be read as ASCII text: {error}") from error
        if len(text) < _MIN_TOKEN or len(text.split()) != 1:
            raise InputError(
                f"token_file: {self.token_file} must contain one token of at least {_MIN_TOKEN} characters without spaces; "
                'create one with: python -c "import secrets; print(secrets.token_urlsafe())"'
            )
        return text


def bound_kernel_caches() -> None:
    """Let oneDNN and torch keep fewer compiled kernels, unless the user has configured it; called before torch is imported.

    For bf16 on a CPU, a kernel is compiled for every shape, and takes about 300 kB in each of the two caches. Requests of all
    sizes have thousands of shapes, so the caches would fill, with few hits. A pass through a backbone needs about 20.
    """
    for name in _CACHES:
        os.environ.setdefault(name, str(_KERNELS))
