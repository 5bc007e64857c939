"""The address of a run on the Hub: ``hf://USER/RUN``, or ``hf://USER/RUN@REVISION``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from continual_petl.errors import InputError

_REPO = r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*"
_ADDRESS = re.compile(rf"(?:hf:/{{1,2}})?(?P<repo>{_REPO})(?:@(?P<revision>[^\s@]+))?", re.ASCII)


@dataclass(frozen=True)
class Address:
    """Where a run is on the Hub.

    Example:
        >>> Address.of("hf://user/run@v1")
        Address(repo='user/run', revision='v1')
        >>> str(Address.of("user/run"))
        'hf://user/run'
    """

    repo: str
    revision: str | None = None
    """Branch, tag or commit; None means the branch ``main``."""

    @classmethod
    def of(cls, text: str | Path, revision: str | None = None) -> Address:
        """Parse an address; ``hf://`` may be left out, and `Path` may have removed one of its slashes.

        Args:
            text: the address.
            revision: branch, tag or commit, if the address names none.

        Raises:
            InputError: if it is not an address, or there are two revisions.
        """
        match = _ADDRESS.fullmatch(str(text))
        if match is None:
            raise InputError(
                f"{text}: this is not the address of a run on the Hub; expected hf://USER/RUN, or hf://USER/RUN@REVISION "
                "with a branch, tag or commit"
            )
        if revision is not None and match["revision"] is not None:
            raise InputError(f"revision: got {revision!r}, but {text} already names one; give only one of them")
        return cls(match["repo"], revision or match["revision"])

    def __str__(self) -> str:
        return f"hf://{self.repo}" + ("" if self.revision is None else f"@{self.revision}")


def check_repo(repo: str) -> str:
    """Return the name of a repository unchanged, or raise `InputError` if it is not a valid name."""
    if re.fullmatch(_REPO, repo, re.ASCII) is None:
        raise InputError(f"{repo}: this is not the name of a repository on the Hub; expected USER/NAME")
    return repo
