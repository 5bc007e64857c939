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
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    start = f"{address}: it cannot be {doing}: "
    try:
        yield
    except (InputError, StoreError):
        raise
    except HFValidationError as error:
        raise InputError(f"{start}{_first_line(error)}") from error
    except GatedRepoError as error:
        raise InputError(
            f"{start}the repository is gated: request access on its page, then log in with `hf auth login`."
        ) from error
    except RepositoryNotFoundError as error:
        raise InputError(
            f"{start}the Hub has no such repository (if it is private, log in with `hf auth login`)."
        ) from error
    except RevisionNotFoundError as error:
        raise InputError(f"{start}the repository has no revision {address.revision or 'main'!r}.") from error
    except LocalEntryNotFoundError as error:
        if constants.HF_HUB_OFFLINE:
            raise offline(address, doing) from error
        raise InputError(f"{start}{_first_line(error)}") from error
    except (HfHubHTTPError, EntryNotFoundError) as error:
        code = getattr(getattr(error, "response", None), "status_code", None)
        if code in (401, 403):
            raise InputError(f"{start}the Hub does not allow it ({_first_line(error)}). {_LOG_IN}") from error
        if code == 412:
            raise InputError(
                f"{start}the repository has changed in the meantime. Nothing was committed; push again."
            ) from error
        raise InputError(f"{start}{_first_line(error)}. {_AGAIN}") from error
    except (TypeError, AttributeError, LookupError, AssertionError):
        raise  # a bug
    except Exception as error:  # network errors, whose types depend on the client used by huggingface_hub
        cause = error.__cause__ or error
        raise InputError(
            f"{start}the Hub ({constants.ENDPOINT}) cannot be reached, or the connection broke "
            f"({type(cause).__name__}: {_first_line(cause)}). {_AGAIN}"
        ) from error


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
