"""The forms by name. To add one, write a file here, a file of the same name in `banks/forms`, and a line below."""

from __future__ import annotations

from continual_petl.banks.config.forms.additive import AdditiveConfig
from continual_petl.banks.config.forms.attention import AttentionConfig
from continual_petl.banks.config.forms.base import FormConfig
from continual_petl.banks.config.forms.bottleneck import BottleneckConfig
from continual_petl.banks.config.forms.decomposed import DecomposedConfig
from continual_petl.banks.config.forms.lowrank import LowRankConfig
from continual_petl.banks.config.forms.prompt import PromptConfig
from continual_petl.banks.config.forms.rescale import RescaleConfig
from continual_petl.banks.config.forms.sparse import SparseConfig

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
"""In the order in which the schema and the table of legal combinations list them."""
