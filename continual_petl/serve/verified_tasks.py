"""Verifies each task once, before its first prediction, and remembers the outcome."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from continual_petl.engine.session import Session
from continual_petl.engine.verify.whole_run import Checker
from continual_petl.serve.problems import Problem

REFUSED_S = 30
"""Number of seconds before a task that failed is verified again, so that requests for it do not keep the endpoint busy."""
_log = logging.getLogger("continual_petl.serve")


class VerifiedTasks:
    """The tasks of a run whose banks match their certificates.

    Args:
        session: the run; the backbones that its tasks need are loaded before `check` is called.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._verified: dict[str, str] = {}
        self._refused: dict[str, tuple[str, float]] = {}
        self._checker: Checker | None = None

    def refresh(self) -> None:
        """Use the session's current store; called after the run folder has changed."""
        self._checker = None
        has = self._session.store.has
        self._verified = {task: seal for task, seal in self._verified.items() if has(task)}
        self._refused = {task: refusal for task, refusal in self._refused.items() if has(task)}

    def check(self, tasks: Iterable[str]) -> None:
        """Verify the current certificates of tasks that have not been verified yet.

        Raises:
            Problem: if a bank or its probe does not match the certificate.
        """
        for task in dict.fromkeys(tasks):
            seal = self._session.store.certificate(task).seal
            if self._verified.get(task) == seal:
                continue
            refused, until = self._refused.get(task, ("", 0.0))
            if refused != seal or time.monotonic() >= until:
                self._checker = self._checker or Checker(self._session, indexed=True, data=False)
                check = self._checker.check(task)
                if check.ok:
                    self._verified[task] = seal
                    continue
                _log.error("task %s is not served: %s", task, " ".join(check.problems))
                self._refused[task] = seal, time.monotonic() + REFUSED_S
            raise Problem(
                503,
                "not_verified",
                f"task {task!r} does not match its certificate, so it gives no predictions",
                retry_after=REFUSED_S,
            )
