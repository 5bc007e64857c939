"""Backbones: where the sites of a bank are in each model family, and how one is loaded."""

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
from continual_petl.backbones.families import FAMILIES as FAMILIES
