"""Scores the options of a task: how likely each of a few texts is to follow a row's source, according to a bank.

The score of an option is the sum of the log-probabilities of its tokens, as in lm-evaluation-harness (EleutherAI,
``ConfigurableTask.process_results`` in lm_eval/api/task.py: ``acc``, and with ``normalise: characters`` ``acc_norm``).
Unlike in lm-evaluation-harness, the end token is included: a bank has learned where an answer ends, and without the end
token, an option would never score lower than a longer option that begins with it.

Shape suffixes: B rows, K options, W tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from continual_petl.backbones.backbone import Backbone
from continual_petl.banks.bank import Bank
from continual_petl.heads.generation import GenerationHead, token_log_probabilities
from continual_petl.heads.head import IGNORED
from continual_petl.learner.answer import answer, head_of
from continual_petl.learner.task_plan import TaskPlan


def option_scores(backbone: Backbone, bank: Bank, plan: TaskPlan, batch: dict[str, Tensor]) -> Tensor:
    """Return the score of every option for every row, float32 ``(B, K)``; -inf where a row has fewer than K options.

    Options are scored one at a time, so that a forward pass has no more rows than the batch.

    Args:
        backbone: a backbone that generates.
        bank: the bank of a task with options, in eval mode.
        plan: the task.
        batch: an evaluation batch; see `continual_petl.streams.batches.collate.collate`.
    """
    head, options, characters_KB = head_of(bank), plan.options or (), batch.get("option_characters")
    assert isinstance(head, GenerationHead)
    num_options = len(options) if characters_KB is None else len(characters_KB)
    keys = [name for name in batch if name not in ("index", "labels", "option_characters")]
    scores = []
    for place, parts in enumerate(zip(*(batch[name].chunk(num_options) for name in keys), strict=True)):
        own = dict(zip(keys, parts, strict=True))
        own["labels"] = own.pop("targets")
        found_BW = token_log_probabilities(head, answer(backbone, bank, plan.pooling, own), own["labels"])
        divisor: Tensor | int = 1
        if plan.normalise == "tokens":
            divisor = (own["labels"] != IGNORED).sum(1)
        elif plan.normalise == "characters":
            divisor = len(options[place]) if characters_KB is None else characters_KB[place].clamp(min=1)
        scores_B = found_BW.sum(1) / divisor
        if characters_KB is not None:
            scores_B = scores_B.masked_fill(characters_KB[place] == 0, -torch.inf)
        scores.append(scores_B)
    return torch.stack(scores, dim=1)
