"""The message that refuses a run that does not match its certificates."""

from __future__ import annotations

from collections.abc import Sequence

from continual_petl.store.certificate.finding import TaskCheck

MAX_PROBLEMS = 5
"""Number of problems that the message lists in full."""


def problems_of(checks: Sequence[TaskCheck]) -> list[str]:
    """Return the distinct problems that checks have found."""
    return list(dict.fromkeys(problem for check in checks for problem in check.problems))


def refusal(where: str, problems: Sequence[str]) -> str:
    """Return the message that refuses a run, listing what is wrong with it."""
    listed = " ".join(f"{problem.rstrip('.')}." for problem in problems[:MAX_PROBLEMS])
    more = f" (and {len(problems) - MAX_PROBLEMS} more)" if len(problems) > MAX_PROBLEMS else ""
    return f"{where}: it does not match its certificates, so it is not used. {listed}{more}"
