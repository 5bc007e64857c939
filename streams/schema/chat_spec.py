"""Settings of causal-lm tasks that learn conversations: the chat template, a system prompt, and the tokens to learn."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from continual_petl._strict_model import StrictModel, UserSpec
from continual_petl.streams.schema.data_spec import Text

MAX_TEMPLATE = 100_000
"""Maximum number of characters of a template."""
LossOn = Literal["response", "last", "all"]

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")
_KEY = re.compile(r"[a-z_]{1,60}_token")


def is_template(text: str) -> bool:
    """Return whether a string is a Jinja template, as opposed to the path of one."""
    return "{%" in text or "{{" in text


class ChatSpec(UserSpec):
    """How conversations become text (causal-lm), and which of their tokens are learned."""

    template: Text | None = None
    """A Jinja chat template: the path of a file, or the template itself; null means the tokenizer's own."""
    system: Text | None = None
    """A system prompt for every conversation; the conversations themselves must then have no system message."""
    loss_on: LossOn = "response"
    """Which tokens are learned: every assistant message (response), only the last one (last), or all tokens (all)."""

    @field_validator("system")
    @classmethod
    def _is_filled(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise ValueError("it is blank: write a system prompt, or leave system out")
        return value


class ResolvedChat(StrictModel):
    """Everything that determines how a conversation becomes text; the certificate stores it, so no file is needed later."""

    template: Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE)]
    """The text of the chat template."""
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of the template."""
    system: Text | None
    loss_on: LossOn
    tokens: dict[str, str]
    """The special tokens that the template may use, by name, such as bos_token."""
    end: Annotated[int, Field(strict=True, ge=0, lt=2**31)]
    """Id of the token that ends an assistant message, at which generation stops."""

    @model_validator(mode="after")
    def _consistent(self) -> ResolvedChat:
        if self.digest != digest_of(self.template):
            raise ValueError("digest: it does not match the template")
        if wrong := [key for key in self.tokens if _KEY.fullmatch(key) is None]:
            raise ValueError(f"tokens: {wrong[0]!r:.80} is not the name of a special token, such as bos_token")
        return self

    @property
    def has_marks(self) -> bool:
        """Whether the template marks the text of assistant messages with ``{% generation %}``."""
        return _MARKS.search(self.template) is not None

    @property
    def spec(self) -> ChatSpec:
        """The settings as written in a stream file, with the text of the template instead of a path."""
        return ChatSpec(template=self.template, system=self.system, loss_on=self.loss_on)


def named_tokens(tokens: Mapping[str, object]) -> dict[str, str]:
    """Return the special tokens that a certificate can hold: single ones with a name such as bos_token."""
    return {key: str(token) for key, token in tokens.items() if isinstance(token, str) and _KEY.fullmatch(key)}


def digest_of(template: str) -> str:
    """Return the SHA-256 of a template."""
    return hashlib.sha256(template.encode()).hexdigest()
