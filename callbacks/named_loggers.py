"""Creates the loggers of a run by name, and checks what they require and whether W&B uploads anything."""

from __future__ import annotations

import csv
import netrc
import os
import secrets
import string
from collections.abc import Sequence
from importlib import util
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from typing_extensions import override

from continual_petl.errors import InputError
from continual_petl.store.files.atomic import replacing
from continual_petl.store.files.reading import refuse_link

Kind = Literal["wandb", "tensorboard", "csv"]
FOLDER = "logs"
"""Where a run folder stores the output of loggers, and their positions."""
_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")


def check_kinds(kinds: Sequence[str]) -> None:
    """Reject unknown loggers, and loggers whose package is missing, before anything is learned.

    Raises:
        InputError: naming the unknown logger or the missing package.
    """
    for kind in kinds:
        if kind not in get_args(Kind):
            raise InputError(f"log: got {kind!r}; allowed: {', '.join(get_args(Kind))}.")
    if "tensorboard" in kinds and not any(map(util.find_spec, ("tensorboard", "tensorboardX"))):
        raise InputError(
            "log: tensorboard is not installed. Install it (pip install 'continual-petl[tensorboard]'), or choose another "
            "logger: csv, wandb."
        )


def made(kind: str, run_folder: Path, run_id: str | None) -> Logger:
    """Return a logger that writes below ``logs`` in a run folder.

    Args:
        kind: the name of the logger.
        run_folder: the run.
        run_id: id of the logger's W&B run; None creates one with `new_id`.
    """
    folder = run_folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "csv":
        return ContinuedCSV(folder, name="csv", version="")
    if kind == "tensorboard":
        return TensorBoardLogger(folder, name="tensorboard", version="", default_hp_metric=False)
    return _wandb(folder, run_folder.resolve().name, run_id or new_id())


def new_id() -> str:
    """Return an id for a W&B run, drawn from the system's random generator, so that learning is not affected."""
    return "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(10))


def _wandb(folder: Path, name: str, run_id: str) -> Logger:
    import wandb

    if wandb.run is not None:
        # Lightning would log into the open run, and close it at the end of ours.
        raise InputError(
            "log: a W&B run is open in this process. End it (wandb.finish()), or log to it: Loggers([WandbLogger()])."
        )
    more: dict[str, Any] = {} if goes_online() is not False else {"mode": "offline"}
    return WandbLogger(
        name=name,
        save_dir=folder,
        project=os.environ.get("WANDB_PROJECT", "continual-petl"),
        id=run_id,
        # W&B must not capture a run's output: it would be printed over the live display.
        settings=wandb.Settings(console="off", silent=True),
        **more,
    )


def goes_online() -> bool | None:
    """Return whether W&B uploads logged values; None if ``WANDB_MODE`` or ``wandb offline`` has already decided this.

    Without an account W&B would prompt for one, and a run in a script would wait for input.
    """
    if os.environ.get("WANDB_MODE"):
        return None
    import wandb

    settings = wandb.Settings()
    if settings.mode not in (None, "online"):
        return None
    return has_account(settings.base_url)


def has_account(url: str = "") -> bool:
    """Return whether there is a W&B key in the environment or in the netrc file, without prompting.

    Args:
        url: URL of the server, if it is not W&B's.
    """
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    netrc_file = os.environ.get("NETRC")
    files = [Path(netrc_file)] if netrc_file else [Path.home() / ".netrc", Path.home() / "_netrc"]
    hosts = [host for host in (urlsplit(url or os.environ.get("WANDB_BASE_URL", "")).hostname, *_HOSTS) if host]
    for file in files:
        try:
            known = netrc.netrc(file)
        except (OSError, netrc.NetrcParseError):
            continue
        return any(host in known.hosts for host in hosts)
    return False


def is_disabled() -> bool:
    """Return whether the user has disabled W&B."""
    return os.environ.get("WANDB_MODE") == "disabled"


def loggers_notice(kinds: Sequence[str]) -> list[str]:
    """Return notices about the loggers to show before a run begins."""
    if "wandb" not in kinds:
        return []
    if is_disabled():
        return [
            "W&B: WANDB_MODE is set to 'disabled', so nothing is logged to W&B; the missing tasks will be logged by a later "
            "run without that setting."
        ]
    if goes_online() is False:
        return [
            "W&B: no account was found, so the run is kept on disk, in logs/wandb of the run folder; after `wandb "
            "login`, `wandb sync` uploads it. Set WANDB_MODE to change this."
        ]
    return []


class ContinuedCSV(CSVLogger):
    """Lightning's CSV logger, except that a run that is started again continues its file; Lightning's would empty the file.

    It writes ``metrics.csv`` and ``hparams.yaml``, one of each for a run, however often it is started.
    """

    @property
    @override
    @rank_zero_experiment
    def experiment(self) -> ExperimentWriter:
        """The writer, created when something is first logged."""
        if self._experiment is None:
            self._experiment = _Continued(self.log_dir)
        assert isinstance(self._experiment, ExperimentWriter)
        return self._experiment


class _Continued(ExperimentWriter):
    def __init__(self, log_dir: str) -> None:
        for name in (self.NAME_METRICS_FILE, self.NAME_HPARAMS_FILE):
            refuse_link(Path(log_dir) / name)  # through a link, a file elsewhere would be overwritten
        super().__init__(log_dir)
        if os.path.isfile(self.metrics_file_path):
            rows = self._rows()
            self.metrics_keys = sorted(rows[0]) if rows else []
            self._rewrite(rows) if rows else os.unlink(self.metrics_file_path)

    @override
    def _check_log_dir_exists(self) -> None:
        """Keep what is there."""

    @override
    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        self._rewrite(self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        with open(self.metrics_file_path, encoding="utf-8", newline="") as file:
            # A killed process may have left half a line.
            return list(csv.DictReader([line for line in file if line.endswith("\n")]))

    def _rewrite(self, rows: list[dict[str, Any]]) -> None:
        """Write all rows in one step, so that none is lost if the process is killed."""
        with replacing(Path(self.metrics_file_path)) as beside, open(beside, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=self.metrics_keys)
            writer.writeheader()
            writer.writerows(rows)
