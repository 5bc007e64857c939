"""Lightning's CSV logger, except that a run that is started again continues its file; Lightning's would empty the file."""

from __future__ import annotations

import csv
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from typing_extensions import override

from continual_petl.store.files.reading import refuse_link


class ContinuedCSV(CSVLogger):
    """Writes ``metrics.csv`` and ``hparams.yaml``, one of each for a run, however often it is started."""

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
            with open(self.metrics_file_path, encoding="utf-8", newline="") as file:
                # A killed process may have left half a line.
                whole = [line for line in file if line.endswith("\n")]
            rows = list(csv.DictReader(whole))
            self.metrics_keys = sorted(rows[0]) if rows else []
            self._write(rows) if rows else os.unlink(self.metrics_file_path)

    @override
    def _check_log_dir_exists(self) -> None:
        """Keep what is there."""

    @override
    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        with open(self.metrics_file_path, encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        self._write(rows)

    def _write(self, rows: list[dict[str, Any]]) -> None:
        """Write all rows in one step, so that none is lost if the process is killed."""
        beside = f"{self.metrics_file_path}.new"
        try:
            with open(beside, "w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, fieldnames=self.metrics_keys)
                writer.writeheader()
                writer.writerows(rows)
            os.replace(beside, self.metrics_file_path)
        except OSError:
            with suppress(OSError):
                os.unlink(beside)
            raise
