"""Make the banks of an opened run usable elsewhere: as files for other libraries, on the Hub, or as modules in memory."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from continual_petl.engine.predictions import Predictions
from continual_petl.hub.address import check_repo
from continual_petl.store.open_run import check_local
from continual_petl.store.store import Store

# Opening a run needs no torch; see `continual_petl.engine.run`.
if TYPE_CHECKING:
    from continual_petl.export.task_model import TaskModel
    from continual_petl.hub.push import Pushed


class Sharing(Predictions):
    """A run's exports and uploads, in addition to its predictions."""

    store: Store

    address: str | None
    """Where the run was downloaded from; None if it is a folder on this machine."""

    def export(self, task: str, format: str, folder: str | Path) -> Path:
        """Write a task's bank in a format that other libraries load; return the folder. See `export.write.export_task`.

        Args:
            task: a learned task.
            format: ``merged``: a `transformers` checkpoint; ``peft``: a `peft` adapter;
                ``adapters``: an adapter of `adapters`.
            folder: where the files go; must not exist.

        Raises:
            InputError: if the task is not learned, the folder cannot be used, or the format cannot express the bank.
            ExportError: if the exported model does not give the same outputs as the bank; then nothing is written.

        Example::

            run.export("agnews", "merged", "exported/agnews")
            transformers.pipeline("text-classification", model="exported/agnews")("some text")
        """
        from continual_petl.export.write import check_request, export_task

        self.check_learned(task)
        check_request(self.store, format, folder)  # before the session imports torch
        return export_task(self.session.models, task, format, folder)

    def push(
        self,
        repo: str,
        *,
        task: str | None = None,
        format: str = "peft",
        private: bool = False,
        revision: str | None = None,
    ) -> Pushed:
        """Upload the run, or the export of one task, to the Hub as one commit; only what changed is sent.

        Args:
            repo: the repository, ``USER/NAME``; created if it does not exist.
            task: upload only this task, exported, so that others can load it without this package; see `export`.
            format: format of that export: ``peft`` or ``merged``.
            private: create the repository as private, and refuse one that is public.
            revision: the branch; created if it does not exist. None means ``main``.

        Raises:
            InputError: if nothing has been learned, the task cannot be exported, the Hub cannot be reached or refuses the
                upload, or the repository holds something else.
            ExportError: as in `export`.
            StoreError: if the run is damaged.
            RunInUseError: if another process writes to the run.

        Example::

            run.push("user/mine", private=True)
            run.push("user/mine-agnews", task="agnews")
        """
        from continual_petl.hub.push import check_export, push_export, push_run

        check_repo(repo)
        if task is None:
            check_local(self.address or self.store.folder)
            return push_run(self.store, repo, private=private, revision=revision)
        check_export(self.store, task, format)
        with TemporaryDirectory() as place:
            folder = self.export(task, format, Path(place, "export"))
            return push_export(folder, task, repo, private=private, revision=revision)

    def model(self, task: str) -> TaskModel:
        """Return a task's backbone and bank as one frozen `nn.Module`: tokenised inputs in, logits out.

        Args:
            task: a learned task.

        Raises:
            InputError: if the task is not learned.

        Example::

            run.model("agnews")(**tokenizer(["some text"], return_tensors="pt")).softmax(-1)
        """
        self.check_learned(task)
        from continual_petl.export.task_model import TaskModel

        return TaskModel(self.session.models.held(task))
