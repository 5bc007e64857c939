"""The way to learn with a Trainer of your own: prepare a task's data and give the learner a fresh bank for it."""

from __future__ import annotations

from continual_petl.backbones.backbone import load_tokenizer
from continual_petl.learner.learner import ContinualLearner
from continual_petl.learner.plan import plan_task
from continual_petl.streams.datamodule import TaskDataModule
from continual_petl.streams.prepare import prepare_task
from continual_petl.streams.schema import TaskSpec
from continual_petl.streams.stream import TaskStream


def begin_task(learner: ContinualLearner, stream: TaskStream, task: TaskSpec | str) -> TaskDataModule:
    """Add a task of a stream to a learner and return its data, ready for ``Trainer.fit``.

    The learner then holds one bank more, the only one that can be trained. Nothing is written to disk: a course
    (`continual_petl.learn`) does that, and with it resuming, certificates and the result matrix.

    Args:
        learner: on the backbone that the stream names.
        stream: the tasks.
        task: one of them, or its name.

    Raises:
        InputError: if the task's data cannot be used.
        ValueError: if the learner has a bank of this task already.

    Example::

        learner = ContinualLearner(load_backbone("minilm"))
        for task in stream:
            data = begin_task(learner, stream, task)
            L.Trainer(max_epochs=3, callbacks=[NoForgetting()]).fit(learner, datamodule=data)
    """
    spec, backbone = stream.spec, learner.backbone
    chosen = stream[task] if isinstance(task, str) else task
    tokenizer = load_tokenizer(spec.backbone.name, revision=spec.backbone.revision)
    data = prepare_task(spec, chosen, tokenizer, backbone.max_length)
    plan = plan_task(spec, chosen, data.labels, backbone)
    learner.add_task(plan)
    return TaskDataModule(
        data,
        pad_token_id=int(tokenizer.pad_token_id or 0),
        batch_size=plan.training.batch_size,
        eval_batch_size=plan.training.eval_batch_size or plan.training.batch_size,
        seed=spec.seed,
        num_workers=plan.training.num_workers,
    )
