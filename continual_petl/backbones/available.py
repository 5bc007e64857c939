"""Whether there is a backbone of some name at all, found out once before `transformers` asks for one file after the other.

For each file that it cannot get, `transformers` asks the Hub several times with pauses between; a misspelt name then takes
more than a minute.
"""

from __future__ import annotations

import difflib
import os
from contextlib import suppress
from itertools import islice

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from continual_petl.backbones.files import CONFIG, files_there
from continual_petl.errors import LONGEST_TYPO, InputError

PACKAGED = ("minilm",)
"""Names of the models that come as packages."""
_ALLOWED = (
    "Give 'minilm', a folder with config.json and weights, or the id of a model on the Hub that this machine can reach or "
    "has in its cache."
)
_LOOKED_AT = 1_000
"""Entries of the working directory."""


class MissingBackboneError(InputError):
    """There is no backbone of this name; ``near`` is one that is written much like it, if there is one."""

    def __init__(self, message: str, near: str | None = None) -> None:
        self.near = near
        super().__init__(message, key=("name",))


def check_available(name: str, revision: str | None) -> None:
    """Check that a backbone can be loaded from somewhere: a package, a folder, the Hub's cache, or the Hub.

    The Hub is asked at most once, without a second try; not at all where it is switched off.

    Args:
        name: as in `load_backbone`.
        revision: of a Hub id.

    Raises:
        MissingBackboneError: if there is none of this name; it says which is written much like it.
    """
    is_path = os.path.isabs(name) or name.startswith(("./", "../", "~"))
    if is_path and not os.path.exists(name):
        raise MissingBackboneError(f"backbone {name!r} cannot be loaded: there is no such folder. {_ALLOWED}")
    if name in PACKAGED or os.path.exists(name) or files_there(name, revision, (CONFIG,)):
        return
    if (why := _missing_on_hub(name, revision)) is not None:
        near = near_name(name)
        hint = "" if near is None else f" (did you mean {near!r}?)"
        raise MissingBackboneError(f"backbone {name!r} cannot be loaded{hint}: {why} {_ALLOWED}", near)


def near_name(name: str) -> str | None:
    """Return the packaged model or local folder whose name is most like that of one that is not there."""
    known = {each.casefold(): each for each in _near()}
    found = difflib.get_close_matches(name[:LONGEST_TYPO].casefold(), known, n=1)
    return known[found[0]] if found else None


def _near() -> list[str]:
    """Return the names of packaged models, and of folders in the working directory that hold a model."""
    found = list(PACKAGED)
    with suppress(OSError), os.scandir() as entries:
        found += [each.name for each in islice(entries, _LOOKED_AT) if os.path.isfile(f"{each.name}/{CONFIG}")]
    return found


def _missing_on_hub(name: str, revision: str | None) -> str | None:
    """Return why the Hub has nothing to load under a name, as sentences; None if it has."""
    no_folder = "There is no folder of this name, and"
    if constants.HF_HUB_OFFLINE:
        return f"{no_folder} the Hub is switched off (HF_HUB_OFFLINE) and its cache holds no such model."
    try:
        # Asked for what describes the file, not for the file; huggingface_hub tries this once.
        get_hf_file_metadata(hf_hub_url(name, CONFIG, revision=revision))
    except HFValidationError:
        return f"{no_folder} it cannot be the id of a model on the Hub either, which reads NAME or USER/NAME."
    except GatedRepoError:
        return (
            f"{no_folder} the model on the Hub is gated: ask for access on its page, then log in with `hf auth login`."
        )
    except RepositoryNotFoundError:
        return f"{no_folder} the Hub has no such model (or it is private: then log in with `hf auth login`)."
    except RevisionNotFoundError:
        return f"{no_folder} the model on the Hub has no revision {revision!r}."
    except EntryNotFoundError:
        return f"{no_folder} what the Hub has under it holds no config.json."
    except Exception as error:  # of the network: which errors there are depends on the client that huggingface_hub uses
        said = str(error).strip().partition("\n")[0][:200]
        what = f"{type(error).__name__}: {said}" if said else type(error).__name__
        return (
            f"{no_folder} the Hub ({constants.ENDPOINT}) cannot be reached ({what}) and its cache holds no such model."
        )
    return None
