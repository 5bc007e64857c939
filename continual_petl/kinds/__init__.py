"""The kinds of task, one file each; `continual_petl.kind` describes what a kind decides, `continual_petl.kind_registry` finds
them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl._lazy import lazy_names

if TYPE_CHECKING:
    from continual_petl.kinds.bases.texts import OfTexts as OfTexts
    from continual_petl.kinds.causal_lm import CausalLM as CausalLM
    from continual_petl.kinds.classification import Classification as Classification
    from continual_petl.kinds.image_classification import ImageClassification as ImageClassification
    from continual_petl.kinds.multilabel import Multilabel as Multilabel
    from continual_petl.kinds.regression import Regression as Regression
    from continual_petl.kinds.seq2seq import Seq2Seq as Seq2Seq
    from continual_petl.kinds.token_classification import TokenClassification as TokenClassification

__getattr__, __dir__, __all__ = lazy_names(__name__)
