"""Chat templates and conversations for the tiny tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from continual_petl.kind import HowEncoded
from continual_petl.streams.encoding.chat_template import resolve_chat
from continual_petl.streams.encoding.rows import TokenisedRows
from continual_petl.streams.encoding.tokenise_chats import tokenise_chats
from continual_petl.streams.schema.chat_spec import ChatSpec, LossOn, ResolvedChat
from continual_petl.streams.sources.conversations import Message
from tests.tiny import make_model, make_tokenizer

_ROLES = "{'system': 'w82', 'user': 'w80', 'assistant': 'w81'}[message['role']]"
_BEGIN = "{% for message in messages %}[CLS] {{ " + _ROLES + " }} "
_END = "\n{% endfor %}{% if add_generation_prompt %}[CLS] w81 {% endif %}"
PLAIN = _BEGIN + "{{ message['content'] }} [SEP]" + _END
"""A template that adds only words of the tiny vocabulary, without ``{% generation %}``; answers end with the end token."""
MARKED = (
    _BEGIN
    + "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }} [SEP]{% endgeneration %}"
    + "{% else %}{{ message['content'] }} [SEP]{% endif %}"
    + _END
)
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML with ``{% generation %}``, as in TRL's documentation."""
CHATML_PLAIN = CHATML.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def chat_tokenizer(template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer like GPT-2's, with a few merges and the tokens of ChatML."""
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=330, initial_alphabet=ByteLevel.alphabet(), special_tokens=["<|im_start|>", "<|im_end|>", "<|end|>"]
    )
    backend.train_from_iterator(["user assistant system the answer is a question\n\n the of and to in"] * 9, trainer)
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        eos_token="<|end|>",
        bos_token="<|im_start|>",
        extra_special_tokens=["<|im_end|>"],
        model_input_names=["input_ids", "attention_mask"],
    )
    tokenizer.chat_template = template
    return tokenizer


def chat_backbone(folder: Path, template: str | None = MARKED, family: str = "llama") -> Path:
    """Write a tiny backbone whose tokenizer has a chat template; return its folder."""
    make_model(family).save_pretrained(folder)
    tokenizer = make_tokenizer(family)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def user(text: str) -> Message:
    """Return a user message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """Return an assistant message."""
    return {"role": "assistant", "content": text}


def chats(count: int, turns: int = 1, start: int = 0) -> list[dict[str, Any]]:
    """Return conversations in the tiny tokenizer's words; each answer repeats the first word of its question."""
    rows = []
    for number in range(start, start + count):
        words = [f"w{(number + 7 * turn) % 40}" for turn in range(turns)]
        rows.append({"messages": [m for word in words for m in (user(f"{word} w50"), assistant(f"{word} w60"))]})
    return rows


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


CHAT_TOKENIZER: Any = chat_tokenizer()


def chat_of(template: str | None = None, loss_on: LossOn = "response", **given: Any) -> ResolvedChat:
    """Return resolved chat settings with a template, by default the tokenizer's."""
    return resolve_chat(ChatSpec(template=template, loss_on=loss_on, **given), CHAT_TOKENIZER)


def encoded(messages: list[Message], chat: ResolvedChat, max_length: int = 4000, **given: Any) -> TokenisedRows:
    """Encode a conversation as one row; its last message is the answer."""
    *source, last = messages
    return tokenise_chats([source], [last["content"]], how(max_length, chat=chat, **given))


def how(max_length: int, **given: Any) -> HowEncoded:
    """Return how conversations are encoded."""
    return HowEncoded(tokenizer=CHAT_TOKENIZER, max_length=max_length, **given)
