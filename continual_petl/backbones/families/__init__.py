"""The model families supported out of the box. Importing this package registers them."""

from __future__ import annotations

from continual_petl.backbones.anatomy import Anatomy, register_anatomy
from continual_petl.backbones.families.decoders import DECODERS
from continual_petl.backbones.families.encoder_decoders import ENCODER_DECODERS
from continual_petl.backbones.families.encoders import ENCODERS
from continual_petl.backbones.families.images import IMAGES

FAMILIES: tuple[Anatomy, ...] = (*ENCODERS, *ENCODER_DECODERS, *DECODERS, *IMAGES)

for _anatomy in FAMILIES:
    register_anatomy(_anatomy)
