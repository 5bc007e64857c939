"""Conversations become the tokens and labels that TRL trains on, or are refused; the oldest turns are dropped to fit.

The functions ``trl_*`` restate ``tokenize_fn`` and ``DataCollatorForLanguageModeling`` in ``trl/trainer/sft_trainer.py`` of
TRL 0.24.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from continual_petl.errors import InputError
from continual_petl.kind import HowEncoded
from continual_petl.streams.batches.collate import collate
from continual_petl.streams.encoding.chat_template import resolve_chat
from continual_petl.streams.encoding.rows import IGNORED, Texts, TokenisedRows
from continual_petl.streams.encoding.tokenise_chats import tokenise_chats
from continual_petl.streams.schema.chat_spec import ChatSpec, ResolvedChat
from continual_petl.streams.sources.conversations import Message
from tests.chats import CHAT_TOKENIZER, CHATML, CHATML_PLAIN, assistant, chat_of, chat_tokenizer, encoded, how, user

CHATML_WITH_BREAK = CHATML_PLAIN.replace(
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}",
    "{{ '\\n' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>\\n' }}{% endif %}",
).replace("{% if message['role'] == 'assistant' %}", "{% if message['role'] == 'assistant' %}{% generation %}")
"""ChatML whose {% generation %} marks include the line break after an answer; without marks, it is a label too."""
THINKING = CHATML_PLAIN.replace(
    "{% if message['role'] == 'assistant' %}{{ message['content']",
    "{% if message['role'] == 'assistant' %}{{ ('<think></think>' if loop.last else '') + message['content']",
)
"""Like the template of Qwen3, which keeps the thinking part of the last answer only."""


def labelled(rows: TokenisedRows) -> tuple[list[int], list[int]]:
    batch = collate(rows, [0], 0, kind="causal-lm", train=True)
    return batch["input_ids"][0].tolist(), batch["labels"][0].tolist()


def trl_labels(messages: list[Message], template: str) -> tuple[list[int], list[int]]:
    """Return the ids and labels that TRL trains on with assistant_only_loss."""
    out = CHAT_TOKENIZER.apply_chat_template(
        messages, chat_template=template, return_dict=True, tokenize=True, return_assistant_tokens_mask=True
    )
    ids = out["input_ids"]
    return ids, [token if mask else IGNORED for token, mask in zip(ids, out["assistant_masks"], strict=True)]


def trl_completion(messages: list[Message], template: str) -> tuple[list[int], list[int]]:
    """Return the ids and labels that TRL trains on if the last message is the completion, and the others the prompt."""
    options: dict[str, Any] = {"chat_template": template, "tokenize": True, "return_dict": True}
    prompt = CHAT_TOKENIZER.apply_chat_template(messages[:-1], add_generation_prompt=True, **options)["input_ids"]
    ids = CHAT_TOKENIZER.apply_chat_template(messages, **options)["input_ids"]
    return ids, [IGNORED] * len(prompt) + ids[len(prompt) :]


def begins_answer(messages: list[Message], template: str) -> bool:
    """Return whether the conversation's tokens start with the prompt's; if not, TRL warns of a "Mismatch"."""
    options: dict[str, Any] = {"chat_template": template, "tokenize": True, "return_dict": True}
    prompt = CHAT_TOKENIZER.apply_chat_template(messages[:-1], add_generation_prompt=True, **options)["input_ids"]
    whole = CHAT_TOKENIZER.apply_chat_template(messages, **options)["input_ids"]
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
    whole = [messages[: number + 1] for number, message in enumerate(messages) if message["role"] == "assistant"]
    exact = [begins_answer(part, chat.template) for part in whole]
    if not all(exact[:-1]) and chat.loss_on == "response" and not chat.has_marks:
        with pytest.raises(InputError, match="not certain which tokens"):
            encoded(messages, chat, max_target_length=2000)
        return
    ids, labels = labelled(encoded(messages, chat, max_target_length=2000))
    if not exact[-1]:
        # TRL warns, and trains on a token that never occurs in prediction; here, source and answer are tokenised separately.
        source = tokenise_chats(
            [messages[:-1]],
            None,
            how(4000, chat=chat, max_target_length=2000),
        )
        assert ids[: len(source.ids)] == source.ids.tolist()
        assert CHAT_TOKENIZER.decode(theirs[0]).startswith(CHAT_TOKENIZER.decode(ids))
        last = CHAT_TOKENIZER.decode(labels[len(source.ids) :])
        assert last in (messages[-1]["content"] + end for end in ("<|im_end|>", "<|im_end|>\n"))
        return
    assert ids == theirs[0][: len(ids)]
    assert labels == theirs[1][: len(ids)]
    assert set(theirs[1][len(ids) :]) <= {IGNORED}


@given(conversations)
@settings(max_examples=20)
def test_marked_answers_have_the_labels_of_trl(messages: list[Message]) -> None:
    check_equal(messages, chat_of(CHATML), trl_labels(messages, CHATML))


@given(conversations)
@settings(max_examples=20)
def test_without_marks_prefixes_find_the_same_labels(messages: list[Message]) -> None:
    check_equal(messages, chat_of(CHATML_PLAIN), trl_labels(messages, CHATML_WITH_BREAK))


@given(conversations)
@settings(max_examples=20)
def test_last_has_the_labels_of_trl_for_a_prompt_and_its_completion(messages: list[Message]) -> None:
    check_equal(messages, chat_of(CHATML_PLAIN, "last"), trl_completion(messages, CHATML_PLAIN))
    ids, labels = trl_labels(messages, CHATML)
    last = max(
        n for n, label in enumerate(labels) if label == IGNORED and n + 1 < len(ids) and labels[n + 1] != IGNORED
    )
    check_equal(messages, chat_of(CHATML, "last"), (ids, [IGNORED] * (last + 1) + labels[last + 1 :]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "test",
    [
        test_marked_answers_have_the_labels_of_trl,
        test_without_marks_prefixes_find_the_same_labels,
        test_last_has_the_labels_of_trl_for_a_prompt_and_its_completion,
    ],
)
@given(messages=conversations)
def test_labels_are_those_of_trl_in_many_conversations(test: Any, messages: list[Message]) -> None:
    test.hypothesis.inner_test(messages)


@given(conversations)
@settings(max_examples=20)
def test_all_learns_every_token(messages: list[Message]) -> None:
    ids = CHAT_TOKENIZER.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
    check_equal(messages, chat_of(loss_on="all"), (ids, ids))


@given(conversations)
@settings(max_examples=20)
def test_prediction_is_given_what_training_puts_before_the_answer(messages: list[Message]) -> None:
    rows = tokenise_chats([messages[:-1]], None, how(4000, chat=chat_of()))
    assert CHAT_TOKENIZER.decode(rows.ids).endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert np.array_equal(rows.ids, encoded(messages, chat_of()).ids)
    assert rows.target_ids is None
    assert rows.texts is None


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
    assert CHAT_TOKENIZER.decode(rows.ids[rows.learned]).strip(" ") == "the answer" + ends
    assert CHAT_TOKENIZER.decode(rows.target_ids).strip(" ") == "is it?" + ends
    prompt = tokenise_chats([messages[:-1]], None, how(4000, chat=chat_of(template)))
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
    assert "message 2, an assistant message, changes" in text
    assert "put {% generation %} before the text of an assistant message and {% endgeneration %} after" in text
    assert text.endswith("; or write loss_on: last.")
    ids, labels = labelled(encoded(messages, chat_of(THINKING, "last")))
    assert CHAT_TOKENIZER.decode([token for token in labels if token != IGNORED]) == "<think></think>d<|im_end|>\n"
    assert CHAT_TOKENIZER.decode(ids).startswith("<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>")


def test_marks_on_some_answers_only_are_refused() -> None:
    template = CHATML.replace(
        "{% if message['role'] == 'assistant' %}", "{% if message['role'] == 'assistant' and loop.last %}"
    )
    with pytest.raises(InputError, match=r"mark 1 span of tokens in a conversation with 2 assistant messages"):
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


def test_a_long_conversation_loses_its_oldest_turns_but_not_the_system_prompt() -> None:
    old = [m for n in range(5) for m in (user(f"question {n}"), assistant(f"answer {n}"))]
    messages = [{"role": "system", "content": "be kind"}, *old, user("the last"), assistant("is it")]
    whole = encoded(messages, chat_of(), 2000, max_target_length=30)
    short = int(whole.lengths[0]) - 20
    rows = encoded(messages, chat_of(), short + 30, max_target_length=30)
    text = CHAT_TOKENIZER.decode(rows.ids)
    assert (whole.num_truncated, rows.num_truncated, rows.num_targets_truncated) == (0, 1, 0)
    assert int(rows.lengths[0]) <= short
    assert text.startswith("<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nquestion ")
    assert "question 0" not in text
    assert text.endswith(
        "question 4<|im_end|>\n<|im_start|>assistant\nanswer 4<|im_end|>\n<|im_start|>user\nthe last<|im_end|>"
        "\n<|im_start|>assistant\n"
    )
    assert rows.learned is not None
    assert "question" not in CHAT_TOKENIZER.decode(rows.ids[rows.learned])
    predicted = tokenise_chats(
        [messages[:-1]],
        None,
        how(short + 30, chat=chat_of(), max_target_length=30),
    )
    assert np.array_equal(predicted.ids, rows.ids)


def test_the_end_of_a_single_long_message_is_cut() -> None:
    rows = encoded([user("zy" * 200), assistant("b")], chat_of(), 100, max_target_length=20)
    assert (rows.num_truncated, int(rows.lengths[0])) == (1, 80)
    assert CHAT_TOKENIZER.decode(rows.ids).endswith("zy<|im_end|>\n<|im_start|>assistant\n")
    target = encoded([user("a"), assistant("zy" * 40)], chat_of(), 100, max_target_length=20)
    assert (target.num_targets_truncated, target.target_lengths.tolist()) == (1, [20])
    assert target.texts == Texts(("zy" * 40,))


def test_a_system_prompt_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"the system prompt and the last message have 107 tokens, of which 1 are the message.s own"
    ):
        encoded([{"role": "system", "content": "z" * 90}, user("a"), assistant("b")], chat_of(), 100)


def test_the_system_prompt_of_the_task_begins_every_conversation() -> None:
    messages = [user("a"), assistant("b"), user("c"), assistant("d")]
    given = encoded([{"role": "system", "content": "be kind"}, *messages], chat_of())
    added = encoded(messages, chat_of(system="be kind"))
    assert labelled(added) == labelled(given)


def test_the_tokenizer_stays_as_it_was() -> None:
    before = CHAT_TOKENIZER.backend_tokenizer.to_str()
    encoded([user("a"), assistant("b")], chat_of())
    assert CHAT_TOKENIZER.backend_tokenizer.to_str() == before


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
        HowEncoded(tokenizer=tokenizer, max_length=512, chat=resolve_chat(ChatSpec(), tokenizer)),
    )
    ours = collate(encoded_rows, [0, 1], tokenizer.pad_token_id, kind="causal-lm", train=True)
    width = ours["labels"].shape[1]
    assert torch.equal(theirs["labels"][:, :width], ours["labels"])
    assert torch.equal(
        theirs["input_ids"][:, :width][ours["attention_mask"] == 1], ours["input_ids"][ours["attention_mask"] == 1]
    )
    assert (theirs["labels"][:, width:] == IGNORED).all()
