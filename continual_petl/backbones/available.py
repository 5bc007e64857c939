"""Checks with a single request that a backbone exists, before `transformers` requests its files one by one.

For each file that it cannot get, `transformers` queries the Hub several times with pauses in between, so a misspelt name
takes more than a minute to fail.
"""

from __future__ import annotations

import difflib
import os
from contextlib import suppress
from itertools import islice

from continual_petl.backbones.backbone_files import CONFIG, files_there
from continual_petl.errors import LONGEST_TYPO, InputError

PACKAGED = ("minilm",)
"""Names of models available as packages."""
ALLOWED = (
    "Give 'minilm' (which generates no text), a folder with config.json and weights, or the id of a model on the Hub that "
    "this machine can reach or has in its cache."
)
"""Describes the names that are allowed, for error messages."""
_LOOKED_AT = 1_000
"""Maximum number of entries of the working directory to inspect."""


class MissingBackboneError(InputError):
    """There is no backbone with this name; ``similar`` is a similar name, if there is one."""

    def __init__(self, message: str, similar: str | None = None) -> None:
        self.near = similar
        super().__init__(message, key=("name",))

    def in_run(self, name: str) -> MissingBackboneError:
        """Return the error for a run that was learned on a backbone with another name."""
        return MissingBackboneError(f"{self} The run was learned on backbone {name!r}.", self.near)


def check_available(name: str, revision: str | None) -> None:
    """Check that a backbone can be loaded from somewhere: a package, a folder, the Hub's cache, or the Hub.

    The Hub is queried at most once, without retries, and not at all in offline mode.

    Args:
        name: as in `load_backbone`.
        revision: commit, branch or tag of a Hub id.

    Raises:
        MissingBackboneError: if there is no backbone with this name; the message suggests a similar name.
    """
    is_path = os.path.isabs(name) or name.startswith(("./", "../", "~"))
    if is_path and not os.path.exists(name):
        raise MissingBackboneError(f"backbone {name!r} cannot be loaded: there is no such folder. {ALLOWED}")
    if name in PACKAGED or os.path.exists(name) or files_there(name, revision, (CONFIG,)):
        return
    if (why := _missing_on_hub(name, revision)) is not None:
        similar = similar_name(name)
        hint = "" if similar is None else f" (did you mean {similar!r}?)"
        raise MissingBackboneError(f"backbone {name!r} cannot be loaded{hint}: {why} {ALLOWED}", similar)


def similar_name(name: str) -> str | None:
    """Return the packaged model or local folder with the name most similar to a missing one."""
    known = {candidate.casefold(): candidate for candidate in _similar_names()}
    matches = difflib.get_close_matches(name[:LONGEST_TYPO].casefold(), known, n=1)
    return known[matches[0]] if matches else None


def _similar_names() -> list[str]:
    """Return the names of packaged models, and of folders in the working directory that contain a model."""
    names = list(PACKAGED)
    with suppress(OSError), os.scandir() as entries:
        names += [entry.name for entry in islice(entries, _LOOKED_AT) if os.path.isfile(f"{entry.name}/{CONFIG}")]
    return names


def _missing_on_hub(name: str, revision: str | None) -> str | None:
    """Return why a name cannot be loaded from the Hub, as sentences, or None if it can."""
    from huggingface_hub import constants

    no_folder = "There is no folder of this name, and"
    if constants.HF_HUB_OFFLINE:
        return f"{no_folder} access to the Hub is disabled (HF_HUB_OFFLINE) and its cache holds no such model."
    from huggingface_hub import get_hf_file_metadata, hf_hub_url  # takes half a second; not needed for folders
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        # A request for the file's metadata only, which huggingface_hub does not retry.
        get_hf_file_metadata(hf_hub_url(name, CONFIG, revision=revision))
    except HFValidationError:
        return f"{no_folder} it is not a valid model id on the Hub either: these have the form NAME or USER/NAME."
    except GatedRepoError:
        return (
            f"{no_folder} the model on the Hub is gated: request access on its page, then log in with `hf auth login`."
        )
    except RepositoryNotFoundError:
        return f"{no_folder} the Hub has no such model (or it is private: then log in with `hf auth login`)."
    except RevisionNotFoundError:
        return f"{no_folder} the model on the Hub has no revision {revision!r}."
    except EntryNotFoundError:
        return f"{no_folder} the repository on the Hub has no config.json."
    except Exception as error:  # network errors, whose types depend on the HTTP client that huggingface_hub uses
        reason = str(error).strip().partition("\n")[0][:200]
        cause = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        return (
            f"{no_folder} the Hub ({constants.ENDPOINT}) cannot be reached ({cause}) and its cache holds no such model."
        )
    return None
