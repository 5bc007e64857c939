"""Conversations become the tokens and labels that TRL trains on, or are refused; what is too long loses its oldest turns.

The oracles restate TRL 0.24.0: ``tokenize_fn`` and ``DataCollatorForLanguageModeling`` in ``trl/trainer/sft_trainer.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets  # type: ignore[import-untyped]
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from continual_petl.errors import InputError
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.encoding.chat_template import UnusableChat, render, resolve_chat
from continual_petl.streams.encoding.rows import IGNORED, TokenisedRows
from continual_petl.streams.encoding.tokenise_chats import tokenise_chats
from continual_petl.streams.schema.chat_spec import MAX_TEMPLATE, ChatSpec, LossOn, ResolvedChat
from continual_petl.streams.sources.conversations import Message
from tests.chats import CHATML, CHATML_PLAIN, assistant, chat_tokenizer, user

TOKENIZER: Any = chat_tokenizer()
CHATML_WITH_BREAK = CHATML_PLAIN.replace(
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}",
    "{{ '\\n' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>\\n' }}{% endif %}",
).replace("{% if message['role'] == 'assistant' %}", "{% if message['role'] == 'assistant' %}{% generation %}")
"""ChatML whose marks enclose the line break after an answer, which prefixes count as part of it."""
THINKING = CHATML_PLAIN.replace(
    "{% if message['role'] == 'assistant' %}{{ message['content']",
    "{% if message['role'] == 'assistant' %}{{ ('<think></think>' if loop.last else '') + message['content']",
)
"""Like Qwen3's: only the last answer is written with its thoughts."""


def chat_of(template: str | None = None, loss_on: LossOn = "response", **given: Any) -> ResolvedChat:
    return resolve_chat(ChatSpec(template=template, loss_on=loss_on, **given), TOKENIZER)


def encoded(messages: list[Message], chat: ResolvedChat, max_length: int = 4000, **given: Any) -> TokenisedRows:
    *source, last = messages
    return tokenise_chats([source], [last["content"]], TOKENIZER, max_length, chat=chat, **given)


def labelled(rows: TokenisedRows) -> tuple[list[int], list[int]]:
    batch = collate(rows, [0], 0, kind="causal-lm", train=True)
    return batch["input_ids"][0].tolist(), batch["labels"][0].tolist()


def trl_labels(messages: list[Message], template: str) -> tuple[list[int], list[int]]:
    """TRL with assistant_only_loss."""
    out = TOKENIZER.apply_chat_template(
        messages, chat_template=template, return_dict=True, tokenize=True, return_assistant_tokens_mask=True
    )
    ids = out["input_ids"]
    return ids, [token if mask else IGNORED for token, mask in zip(ids, out["assistant_masks"], strict=True)]


def trl_completion(messages: list[Message], template: str) -> tuple[list[int], list[int]]:
    """TRL on a prompt and a completion, the last message."""
    options: dict[str, Any] = {"chat_template": template, "tokenize": True, "return_dict": True}
    prompt = TOKENIZER.apply_chat_template(messages[:-1], add_generation_prompt=True, **options)["input_ids"]
    ids = TOKENIZER.apply_chat_template(messages, **options)["input_ids"]
    return ids, [IGNORED] * len(prompt) + ids[len(prompt) :]


def begins_answer(messages: list[Message], template: str) -> bool:
    """Whether TRL would not warn of a "Mismatch between tokenized prompt and the start of tokenized prompt+completion"."""
    options: dict[str, Any] = {"chat_template": template, "tokenize": True, "return_dict": True}
    prompt = TOKENIZER.apply_chat_template(messages[:-1], add_generation_prompt=True, **options)["input_ids"]
    whole = TOKENIZER.apply_chat_template(messages, **options)["input_ids"]
    return bool(whole[: len(prompt)] == prompt)


texts = st.text(alphabet="the answer\n?ä\u4e2d\U0001f600 ", min_size=1, max_size=12).filter(str.strip)
conversations = st.builds(
    lambda system, turns: (
        [{"role": "system", "content": each} for each in system]
        + [message for one, other in turns for message in (user(one), assistant(other))]
    ),
    st.lists(texts, max_size=1),
    st.lists(st.tuples(texts, texts), min_size=1, max_size=4),
)


def check_equal(messages: list[Message], chat: ResolvedChat, theirs: tuple[list[int], list[int]]) -> None:
    """Compare ids and labels; tokens after the last label have no effect on the loss, and are left out."""
    whole = [messages[: number + 1] for number, each in enumerate(messages) if each["role"] == "assistant"]
    exact = [begins_answer(part, chat.template) for part in whole]
    if not all(exact[:-1]) and chat.loss_on == "response" and not chat.has_marks:
        with pytest.raises(InputError, match="not certain which tokens"):
            encoded(messages, chat, max_target_length=2000)
        return
    ids, labels = labelled(encoded(messages, chat, max_target_length=2000))
    if not exact[-1]:
        # TRL warns and trains on a token that prediction never sees; here source and answer are tokens of their own.
        source = tokenise_chats([messages[:-1]], None, TOKENIZER, 4000, chat=chat, max_target_length=2000)
        assert ids[: len(source.ids)] == source.ids.tolist()
        assert TOKENIZER.decode(theirs[0]).startswith(TOKENIZER.decode(ids))
        last = TOKENIZER.decode(labels[len(source.ids) :])
        assert last in (messages[-1]["content"] + end for end in ("<|im_end|>", "<|im_end|>\n"))
        return
    assert ids == theirs[0][: len(ids)]
    assert labels == theirs[1][: len(ids)]
    assert set(theirs[1][len(ids) :]) <= {IGNORED}


@given(conversations)
def test_marked_answers_have_the_labels_of_trl(messages: list[Message]) -> None:
    check_equal(messages, chat_of(CHATML), trl_labels(messages, CHATML))


@given(conversations)
def test_without_marks_prefixes_find_the_same_labels(messages: list[Message]) -> None:
    check_equal(messages, chat_of(CHATML_PLAIN), trl_labels(messages, CHATML_WITH_BREAK))


@given(conversations)
def test_last_has_the_labels_of_trl_for_a_prompt_and_its_completion(messages: list[Message]) -> None:
    check_equal(messages, chat_of(CHATML_PLAIN, "last"), trl_completion(messages, CHATML_PLAIN))
    ids, labels = trl_labels(messages, CHATML)
    last = max(
        n for n, label in enumerate(labels) if label == IGNORED and n + 1 < len(ids) and labels[n + 1] != IGNORED
    )
    check_equal(messages, chat_of(CHATML, "last"), (ids, [IGNORED] * (last + 1) + labels[last + 1 :]))


@given(conversations)
@settings(max_examples=20)
def test_all_learns_every_token(messages: list[Message]) -> None:
    ids = TOKENIZER.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
    check_equal(messages, chat_of(loss_on="all"), (ids, ids))


@given(conversations)
@settings(max_examples=20)
def test_prediction_is_given_what_training_puts_before_the_answer(messages: list[Message]) -> None:
    rows = tokenise_chats([messages[:-1]], None, TOKENIZER, 4000, chat=chat_of())
    assert TOKENIZER.decode(rows.ids).endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert np.array_equal(rows.ids, encoded(messages, chat_of()).ids)
    assert rows.target_ids is None
    assert rows.references is None


LLAMA_3 = (
    "{% for message in messages %}{% set content = '<|' + message['role'] + '|>\\n\\n' %}"
    "{% set content = content + message['content'] | trim + eos_token %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n\\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}"
    "{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% for message in messages %}"
    "{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<turn>' + role + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<turn>model\\n' }}{% endif %}"
)


@pytest.mark.parametrize(("template", "ends"), [(LLAMA_3, "<|end|>"), (MISTRAL, "<|end|>"), (GEMMA, "<|im_end|>\n")])
def test_templates_built_like_those_of_known_families_need_no_marks(template: str, ends: str) -> None:
    messages = [user("a"), assistant("the answer"), user("c"), assistant("is it?")]
    rows = encoded(messages, chat_of(template))
    assert rows.learned is not None
    assert TOKENIZER.decode(rows.ids[rows.learned]).strip(" ") == "the answer" + ends
    assert TOKENIZER.decode(rows.target_ids).strip(" ") == "is it?" + ends
    prompt = tokenise_chats([messages[:-1]], None, TOKENIZER, 4000, chat=chat_of(template))
    assert np.array_equal(prompt.ids, rows.ids)
    ids, labels = labelled(encoded(messages, chat_of(template, "all")))
    assert ids == labels
    assert ids[: len(prompt.ids)] == prompt.ids.tolist()


def test_a_template_that_writes_earlier_answers_differently_needs_marks_or_last() -> None:
    messages = [user("a"), assistant("b"), user("c"), assistant("d")]
    with pytest.raises(InputError) as caught:
        encoded(messages, chat_of(THINKING))
    text = str(caught.value)
    assert text.startswith(
        "rows, row 1, 'c': the chat template has no {% generation %}, and what it writes before or for"
    )
    assert "message 2, of the assistant, changes" in text
    assert "put {% generation %} before the text of an assistant message and {% endgeneration %} after" in text
    assert text.endswith("; or write loss_on: last.")
    ids, labels = labelled(encoded(messages, chat_of(THINKING, "last")))
    assert TOKENIZER.decode([token for token in labels if token != IGNORED]) == "<think></think>d<|im_end|>\n"
    assert TOKENIZER.decode(ids).startswith("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>")


def test_marks_on_some_answers_only_are_refused() -> None:
    template = CHATML.replace(
        "{% if message['role'] == 'assistant' %}", "{% if message['role'] == 'assistant' and loop.last %}"
    )
    with pytest.raises(
        InputError, match=r"marks 1 stretches of tokens in a conversation with 2 messages of the assistant"
    ):
        encoded([user("a"), assistant("b"), user("c"), assistant("d")], chat_of(template))


def test_marks_that_begin_after_the_generation_prompt_are_refused() -> None:
    template = CHATML.replace("{% generation %}", "{{ 'the ' }}{% generation %}")
    with pytest.raises(InputError, match="do not begin where the chat template ends with add_generation_prompt"):
        encoded([user("a"), assistant("b")], chat_of(template))


def test_marks_without_the_token_that_ends_an_answer_are_refused() -> None:
    template = CHATML.replace(
        "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}",
        "{{ message['content'] }}{% endgeneration %}{{ '<|im_end|>' }}",
        1,
    )
    with pytest.raises(
        InputError, match=r"ends before the token that ends an answer.* put \{% generation %\} before the text"
    ):
        encoded([user("a"), assistant("b")], chat_of(template))


def test_a_template_that_leaves_a_message_out_is_refused() -> None:
    template = CHATML.replace(
        "{% for message in messages %}", "{% for message in messages if message['role'] != 'system' %}"
    )
    with pytest.raises(
        InputError, match=r"leaves out, or changes, a message of the system, 'be kind'; change the conversation"
    ):
        encoded([{"role": "system", "content": "be kind"}, user("a"), assistant("b")], chat_of(template))
    with pytest.raises(
        InputError, match=r"^chat\.template \(.*leaves out, or changes, a message of the system, 'be kind'"
    ):
        chat_of(template, system="be kind")
    with pytest.raises(InputError, match="leaves out, or changes, a message of the assistant, '<b>B'"):
        encoded([user("a"), assistant("<b>B")], chat_of(CHATML.replace("content']", "content'] | replace('<b>', '')")))


def test_a_long_conversation_loses_its_oldest_turns_but_not_the_system_prompt() -> None:
    old = [m for n in range(5) for m in (user(f"question {n}"), assistant(f"answer {n}"))]
    messages = [{"role": "system", "content": "be kind"}, *old, user("the last"), assistant("is it")]
    whole = encoded(messages, chat_of(), 2000, max_target_length=30)
    short = int(whole.lengths[0]) - 20
    rows = encoded(messages, chat_of(), short + 30, max_target_length=30)
    text = TOKENIZER.decode(rows.ids)
    assert (whole.num_truncated, rows.num_truncated, rows.num_targets_truncated) == (0, 1, 0)
    assert int(rows.lengths[0]) <= short
    assert text.startswith("<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nquestion ")
    assert "question 0" not in text
    assert text.endswith(
        "question 4<|im_end|>\n<|im_start|>assistant\nanswer 4<|im_end|>\n<|im_start|>user\nthe last<|im_end|>"
        "\n<|im_start|>assistant\n"
    )
    assert rows.learned is not None
    assert "question" not in TOKENIZER.decode(rows.ids[rows.learned])
    predicted = tokenise_chats([messages[:-1]], None, TOKENIZER, short + 30, chat=chat_of(), max_target_length=30)
    assert np.array_equal(predicted.ids, rows.ids)


def test_the_end_of_a_single_long_message_is_cut() -> None:
    rows = encoded([user("zy" * 200), assistant("b")], chat_of(), 100, max_target_length=20)
    assert (rows.num_truncated, int(rows.lengths[0])) == (1, 80)
    assert TOKENIZER.decode(rows.ids).endswith("zy<|im_end|>\n<|im_start|>assistant\n")
    target = encoded([user("a"), assistant("zy" * 40)], chat_of(), 100, max_target_length=20)
    assert (target.num_targets_truncated, target.target_lengths.tolist()) == (1, [20])
    assert target.references == ("zy" * 40,)


def test_a_system_prompt_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"tokens of the system prompt and the last message, of which 1 are of this message"
    ):
        encoded([{"role": "system", "content": "z" * 90}, user("a"), assistant("b")], chat_of(), 100)


def test_the_system_prompt_of_the_task_begins_every_conversation() -> None:
    messages = [user("a"), assistant("b"), user("c"), assistant("d")]
    given = encoded([{"role": "system", "content": "be kind"}, *messages], chat_of())
    added = encoded(messages, chat_of(system="be kind"))
    assert labelled(added) == labelled(given)


def test_the_tokenizer_stays_as_it_was() -> None:
    before = TOKENIZER.backend_tokenizer.to_str()
    encoded([user("a"), assistant("b")], chat_of())
    assert TOKENIZER.backend_tokenizer.to_str() == before


def test_the_certificate_text_renders_whatever_the_tokenizer_says_later() -> None:
    chat = chat_of(CHATML.replace("<|im_end|>", "{{ eos_token }}").replace("'{{ eos_token }}'", "eos_token"))
    other = chat_tokenizer(None)
    other.eos_token = "<|im_end|>"
    assert chat.end == TOKENIZER.convert_tokens_to_ids("<|end|>")
    assert render(other, chat, [user("a")]) == "<|im_start|>user\na<|end|>\n"


def test_the_end_of_an_answer_is_the_first_special_token_after_it() -> None:
    assert chat_of().end == TOKENIZER.convert_tokens_to_ids("<|im_end|>")
    none = CHATML_PLAIN.replace("<|im_end|>", "###")
    with pytest.raises(
        InputError, match=r"no special token follows the text of an assistant message .* put \{\{ eos_token"
    ):
        chat_of(none)


def test_templates_come_from_the_tokenizer_the_stream_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text(CHATML_PLAIN, encoding="utf-8")
    assert chat_of().template == CHATML
    assert chat_of(str(file)) == chat_of(CHATML_PLAIN)
    assert chat_of(CHATML_PLAIN).spec == ChatSpec(template=CHATML_PLAIN)


@pytest.mark.parametrize(
    ("template", "what"),
    [
        (
            "nowhere.jinja",
            "'nowhere.jinja' is no UTF-8 file of at most 100,000 characters with a Jinja template ({{ ... }}",
        ),
        (".", "is no UTF-8 file"),
        ("/dev/zero", "is no UTF-8 file"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ raise_exception('only ducks') }}", "TemplateError: only ducks; change the conversation"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ strftime_now('%d') }}", "it uses 'strftime_now', so that a conversation becomes another text tomorrow"),
        ("{{ [1, 2] | random }}", "it uses 'random'"),
        ("{{ 'a' * 300000 }}", "makes 300,000 characters of a conversation of 12; allowed are 200,048"),
        ("{# " + "a" * MAX_TEMPLATE + " #}{{ 1 }}", "it has 100,013 characters; allowed are 100,000"),
    ],
)
def test_templates_that_cannot_be_used_are_refused(template: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        chat_of(template)
    assert str(caught.value).startswith("chat.template")
    assert what in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize("content", [b"\xff{{", b"hello", b"{" * 400_001])
def test_files_that_hold_no_template_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "chat.jinja"
    file.write_bytes(content)
    with pytest.raises(InputError, match=r"chat\.jinja' is no UTF-8 file of at most 100,000 characters with a Jinja"):
        chat_of(str(file))


@pytest.mark.parametrize("template", [None, {"tool_use": CHATML}])
def test_a_tokenizer_without_a_template_is_refused_with_the_ways_out(template: Any) -> None:
    tokenizer: PreTrainedTokenizerFast = chat_tokenizer(template)
    with pytest.raises(InputError) as caught:
        resolve_chat(ChatSpec(), tokenizer)
    for way in ("no chat template", "-Instruct or -Chat", "under chat.template", "columns source and target"):
        assert way in str(caught.value)


def test_an_error_in_one_row_names_the_row() -> None:
    template = CHATML.replace(
        "{{ '\\n' }}", "{% if 'duck' in message['content'] %}{{ raise_exception('duck') }}{% endif %}{{ '\\n' }}"
    )
    with pytest.raises(
        InputError, match=r"^rows, row 2, 'duck': the chat template cannot render this conversation: TemplateE"
    ):
        tokenise_chats([[user("a")], [user("duck")]], ["b", "b"], TOKENIZER, 200, chat=chat_of(template))
    with pytest.raises(
        InputError,
        match=r"under chat\.template\. 1 more cannot be used, for this or another reason; the next is row 3\.$",
    ):
        tokenise_chats([[user("a")], *[[user("duck")]] * 2], None, TOKENIZER, 200, chat=chat_of(template))
    with pytest.raises(UnusableChat, match="duck"):
        render(TOKENIZER, chat_of(template), [user("duck")])


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"digest": "0" * 64}, "does not match the template"),
        ({"tokens": {"tools": "a"}}, "'tools' is not the name of a special token"),
        ({"template": "a" * 100_001}, "at most 100000 characters"),
    ],
)
def test_a_certificate_that_was_changed_is_refused(changed: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        ResolvedChat.model_validate(chat_of().model_dump() | changed)


@pytest.mark.filterwarnings("default")
def test_batches_are_those_of_trl_itself_where_it_is_installed(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    tokenizer: Any = chat_tokenizer()
    tokenizer.pad_token = "<|end|>"
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    rows = [
        [user("a question"), assistant("the answer"), user("and?"), assistant("is it")],
        [user("x"), assistant("y")],
    ]
    arguments = trl.SFTConfig(
        output_dir=str(tmp_path), assistant_only_loss=True, max_length=512, report_to=[], use_cpu=True
    )
    trainer = trl.SFTTrainer(
        model=LlamaForCausalLM(config),
        args=arguments,
        train_dataset=datasets.Dataset.from_list([{"messages": row} for row in rows]),
        processing_class=tokenizer,
    )
    theirs = trainer.data_collator([trainer.train_dataset[0], trainer.train_dataset[1]])
    encoded_rows = tokenise_chats(
        [row[:-1] for row in rows],
        [row[-1]["content"] for row in rows],
        tokenizer,
        512,
        chat=resolve_chat(ChatSpec(), tokenizer),
    )
    ours = collate(encoded_rows, [0, 1], tokenizer.pad_token_id, kind="causal-lm", train=True)
    width = ours["labels"].shape[1]
    assert torch.equal(theirs["labels"][:, :width], ours["labels"])
    assert torch.equal(
        theirs["input_ids"][:, :width][ours["attention_mask"] == 1], ours["input_ids"][ours["attention_mask"] == 1]
    )
    assert (theirs["labels"][:, width:] == IGNORED).all()
