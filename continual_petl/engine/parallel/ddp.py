"""Fit one task in several processes on this machine with Lightning's DDP; the main process does everything else.

Lightning's launchers do not suit a run: ``ddp`` executes the whole command again in each process, lock and commits included,
and ``ddp_spawn`` has to pickle the backbone with its hooks. So the run starts the processes, as Lightning documents for
externally launched processes (`LightningEnvironment`: ``LOCAL_RANK`` and similar variables). Each process holds the whole
bank and is reused for all tasks. These processes only run the fit: the first one writes the checkpoint and the best bank into
the progress folder. Prediction, scoring and committing stay in the main process.
"""

from __future__ import annotations

import logging
import signal
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace

from lightning.fabric.plugins.environments.lightning import find_free_network_port

from continual_petl.engine.parallel.processes import IN_A_SCRIPT, Slot, WorkerDied
from continual_petl.engine.parallel.worker import Report, RunSetup
from continual_petl.engine.sharded import SHARDED
from continual_petl.engine.signals import StopRequest
from continual_petl.errors import Interrupted, IsolationError
from continual_petl.learner import TaskPlan

_RETRIES = 2
_POLL = 0.2
_GRACE = 5.0
"""Seconds to wait for a killed process to be detected after another process has failed because of it."""
_log = logging.getLogger(__name__)


class LocalRanks:
    """Processes that share the fit of each task, one task after another; implements `Ranks`.

    Args:
        setup: describes the run to the workers.
        world_size: number of processes.
    """

    def __init__(self, setup: RunSetup, world_size: int) -> None:
        self._setup, self.world_size = replace(setup, shares_fits=True), world_size
        self._slots: list[Slot] = []

    def notice(self, plan: TaskPlan) -> str:
        """Return the notice for the certificate."""
        rows, how = plan.training.batch_size, ""
        if self._setup.spec.trainer.get("strategy") == SHARDED:
            how = f", each with a part of the backbone ({SHARDED})"
        return (
            f"task {plan.name!r} was learned by {self.world_size} processes{how}: each step took {self.world_size} batches "
            f"of {rows} rows"
        )

    def fit(self, task: str, request: StopRequest) -> None:
        """Fit a task; if a process is killed, resume from the last checkpoint, a few times.

        Raises:
            Interrupted: if a stop was requested, or processes were killed too often.
            IsolationError: if the processes end with different banks.
        """
        for attempt in range(1 + _RETRIES):
            try:
                reports = self._fit(task, request)
            except WorkerDied:
                self.close(at_once=True)
                reports = []
            request.stop_here(f"while task {task!r} was being learned; its progress is saved")
            for report in reports:
                report.raise_error()
            if self._setup.spec.trainer.get("strategy") == SHARDED:
                self.close()  # no further bank can be built on a sharded backbone
            if reports and all(report.state == "learned" for report in reports):
                self._compare(task, reports)
                return
            if attempt < _RETRIES:
                _log.warning("task %r: one of its processes was killed; it resumes from its last checkpoint.", task)
        raise Interrupted(
            f"task {task!r}: one of the {self.world_size} processes that share it was killed {1 + _RETRIES} times. The "
            "usual cause is a lack of memory: each holds its own backbone. Use fewer devices or a smaller "
            f"batch_size; the same command resumes from the last checkpoint. ({IN_A_SCRIPT})",
            signal.SIGKILL,
        )

    def close(self, *, at_once: bool = False) -> None:
        """End the processes."""
        slots, self._slots = self._slots, []
        for slot in slots:
            if at_once:
                slot.signal(signal.SIGKILL)
            slot.close()

    def _fit(self, task: str, request: StopRequest) -> list[Report]:
        """Return the reports of all processes; as soon as one fails, end the others, which would wait for it forever."""
        futures: dict[Future[Report], Slot] = {}
        done: list[Report] = []
        reported = False
        # Errors at startup count too: a process that is already fitting would wait forever for one that never starts.
        try:
            if not self._slots:
                self._start()
            for slot in self._slots:
                futures[slot.submit(task)] = slot
            left = set(futures)
            while left:
                ended, left = wait(left, timeout=_POLL, return_when=FIRST_COMPLETED)
                done += [futures[future].result(future) for future in ended]
                if left and any(report.state == "failed" for report in done):
                    # A process that waits for a killed one fails, and its report may arrive before the death is noticed here.
                    for future in wait(left, timeout=_GRACE, return_when=FIRST_COMPLETED).done:
                        futures[future].result(future)
                    self.close(at_once=True)
                    return done
                if request.signal_number is not None and not reported:
                    reported = True
                    for slot in self._slots:
                        slot.signal(signal.SIGTERM)
        except BaseException:
            self.close(at_once=True)
            raise
        return done

    def _start(self) -> None:
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(find_free_network_port()),
            "WORLD_SIZE": str(self.world_size),
            "NODE_RANK": "0",
            # Lightning would choose another number of threads, which would change the last bits of the bank.
            "OMP_NUM_THREADS": str(self._setup.num_threads),
        }
        self._slots = [Slot(self._setup, {**shared, "LOCAL_RANK": str(rank)}) for rank in range(self.world_size)]
        for slot in self._slots:
            slot.start()

    @staticmethod
    def _compare(task: str, reports: list[Report]) -> None:
        digests = sorted({report.digest for report in reports})
        if len(digests) > 1:
            raise IsolationError(
                f"task {task!r}: the processes that shared it ended with different banks (digests "
                f"{', '.join(digest[:12] for digest in digests)}), so none of them is valid. The cause may be a callback "
                "that writes to parameters in one process only, or a Trainer plugin that does not synchronise gradients."
            )
