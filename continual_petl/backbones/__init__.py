"""Backbones: load them, and locate the sites of a bank in each model family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from continual_petl._lazy import lazy_names
from continual_petl.backbones.families import FAMILIES as FAMILIES  # registers them in any import order

if TYPE_CHECKING:
    from continual_petl.backbones.anatomy import Anatomy as Anatomy
    from continual_petl.backbones.anatomy import Attention as Attention
    from continual_petl.backbones.anatomy import FeedForward as FeedForward
    from continual_petl.backbones.anatomy import OutputHead as OutputHead
    from continual_petl.backbones.anatomy import Pooling as Pooling
    from continual_petl.backbones.anatomy import Projection as Projection
    from continual_petl.backbones.anatomy import PromptSite as PromptSite
    from continual_petl.backbones.anatomy import Stack as Stack
    from continual_petl.backbones.anatomy import find_anatomy as find_anatomy
    from continual_petl.backbones.anatomy import known_families as known_families
    from continual_petl.backbones.anatomy import register_anatomy as register_anatomy
    from continual_petl.backbones.backbone import Backbone as Backbone
    from continual_petl.backbones.backbone import load_backbone as load_backbone
    from continual_petl.backbones.packaged import minilm_path as minilm_path
    from continual_petl.backbones.sites import Sites as Sites
    from continual_petl.backbones.tokenizer import load_tokenizer as load_tokenizer

__getattr__, __dir__, __all__ = lazy_names(__name__)
