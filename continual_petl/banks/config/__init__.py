"""The forms that there are, by name: a new one is a file here, one of the same name in `banks/forms`, and a line below."""

from __future__ import annotations

from continual_petl.banks.config.additive import AdditiveConfig
from continual_petl.banks.config.attention import AttentionConfig
from continual_petl.banks.config.base import FormConfig
from continual_petl.banks.config.bottleneck import BottleneckConfig
from continual_petl.banks.config.decomposed import DecomposedConfig
from continual_petl.banks.config.lowrank import LowRankConfig
from continual_petl.banks.config.prompt import PromptConfig
from continual_petl.banks.config.rescale import RescaleConfig
from continual_petl.banks.config.sparse import SparseConfig

FORMS: dict[str, FormConfig] = {
    form.name: form
    for form in (
        BottleneckConfig(),
        LowRankConfig(),
        DecomposedConfig(),
        RescaleConfig(),
        AttentionConfig(),
        PromptConfig(),
        AdditiveConfig(),
        SparseConfig(),
    )
}
"""In the order of the schema and of the table of legal combinations."""
