"""Turns errors from the Hub and the network into short messages: what failed, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from continual_petl.errors import InputError, StoreError
from continual_petl.hub.address import Address

_LOG_IN = "Log in with `hf auth login`, using a token that has this permission."


@contextmanager
def explained(address: Address, doing: str) -> Iterator[None]:
    """Turn exceptions that huggingface_hub raises in the block into an `InputError`.

    Args:
        address: the repository.
        doing: ``downloaded`` or ``pushed``.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        yield
    except (InputError, StoreError, TypeError, AttributeError, LookupError, AssertionError):
        raise  # ours, or a bug
    except Exception as error:  # network errors, whose types depend on the HTTP client that huggingface_hub uses
        if isinstance(error, LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE:
            raise offline(address, doing) from error
        raise InputError(f"{address}: it cannot be {doing}: {_why(error, address)}") from error


def _why(error: Exception, address: Address) -> str:
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    match error:
        case GatedRepoError():
            return "the repository is gated: request access on its page, then log in with `hf auth login`."
        case RepositoryNotFoundError():
            return "the Hub has no such repository (if it is private, log in with `hf auth login`)."
        case RevisionNotFoundError():
            return f"the repository has no revision {address.revision or 'main'!r}."
        case HFValidationError() | LocalEntryNotFoundError():
            return _first_line(error)
        case HfHubHTTPError() | EntryNotFoundError():
            code = getattr(getattr(error, "response", None), "status_code", None)
            if code in (401, 403):
                return f"the Hub does not allow it ({_first_line(error)}). {_LOG_IN}"
            if code == 412:
                return "the repository has changed in the meantime. Nothing was committed; push again."
            return f"{_first_line(error)}. {_AGAIN}"
    cause = error.__cause__ or error  # network errors, whose types depend on the client used by huggingface_hub
    return (
        f"the Hub ({constants.ENDPOINT}) cannot be reached, or the connection broke ({type(cause).__name__}: "
        f"{_first_line(cause)}). {_AGAIN}"
    )


_AGAIN = "Run the same command again to continue where this one stopped."


def offline(address: Address, doing: str) -> InputError:
    """Return the error if access to the Hub is disabled."""
    cached = "" if doing == "pushed" else " and its cache has no complete copy"
    return InputError(
        f"{address}: it cannot be {doing}: access to the Hub is disabled (HF_HUB_OFFLINE){cached}. Unset the variable if "
        "there is a network."
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200].rstrip(".") or type(error).__name__
