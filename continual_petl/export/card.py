"""README.md of an export, which the Hub shows as its model card: a description, and the lines of Python that use it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from continual_petl.export.classes import AUTO
from continual_petl.export.model_card import HERE, base_model, new_card
from continual_petl.export.subject import Subject
from continual_petl.heads.kinds import GENERATIVE
from continual_petl.learner.answer import start_token
from continual_petl.learner.task_plan import TaskPlan

_POOLED = {
    "first": "states[:, 0]",
    "pooler": "output.pooler_output",
    "mean": "(states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)",
    "last": "states[range(len(states)), mask.cumsum(1).argmax(1)]",
}


def peft_card(subject: Subject, auto: str, config: Mapping[str, Any], *, with_head: bool) -> str:
    """Return the text of README.md of an adapter of `peft`.

    Args:
        subject: the task.
        auto: the class of transformers that loads the model.
        config: the adapter's configuration.
        with_head: whether the adapter contains the head.
    """
    kind, form = subject.plan.kind, config["peft_type"]
    text = f"""An adapter of [peft](https://huggingface.co/docs/peft) ({form}) for a task of kind {kind}, exported by
continual-petl. On the rows in the task's certificate, its outputs match those of the certified bank within 1e-5 in float32.
"""
    text += _in_vllm(config) if kind == "causal-lm" and form == "LORA" else ""
    text += _labels_and_code(subject, _code(subject, auto, config, with_head))
    return new_card(base_model(subject.backbone.name), "peft", ("peft", "continual-learning"), subject.plan.name, text)


def checkpoint_card(subject: Subject) -> str:
    """Return the text of README.md of a merged checkpoint."""
    plan = subject.plan
    text = f"""A checkpoint of [transformers](https://huggingface.co/docs/transformers) for a task of kind {plan.kind}: a bank
of continual-petl, merged into its backbone. On the rows in the task's certificate, its outputs match those of the certified
bank within 1e-5 in float32.
"""
    auto = AUTO[plan.kind]
    reader = "AutoImageProcessor" if subject.tokenizer is None else "AutoTokenizer"
    lines = [f"from transformers import {auto}, {reader}", "", f'FOLDER = "{HERE}"']
    lines += [f"model = {auto}.from_pretrained(FOLDER).eval()"]
    if subject.tokenizer is None:
        lines += [f'inputs = {reader}.from_pretrained(FOLDER)([image], return_tensors="pt")']
    else:
        lines += [f"tokenizer = {reader}.from_pretrained(FOLDER)", *_texts(plan)]
    lines += [_outputs(subject)]
    return new_card(
        base_model(subject.backbone.name),
        "transformers",
        ("continual-learning",),
        plan.name,
        text + _counted_tokens(plan) + _labels_and_code(subject, lines),
    )


def _texts(plan: TaskPlan) -> list[str]:
    """Return the code that encodes a text (for a task on conversations, a message) the way training did."""
    if plan.chat is None:
        return [_TWO_TEXTS]
    system = [] if plan.chat.system is None else [{"role": "system", "content": plan.chat.system}]
    return [
        f"messages = {[*system, {'role': 'user', 'content': 'some text'}]!r}",
        "options = {'add_generation_prompt': True, 'return_dict': True, 'return_tensors': 'pt'}",
        "inputs = tokenizer.apply_chat_template(messages, **options)",
    ]


def _template(plan: TaskPlan) -> list[str]:
    """Return the line that gives the backbone's tokenizer the chat template of the task, if it has one."""
    return [] if plan.chat is None else [f"tokenizer.chat_template = {plan.chat.template!r}"]


def _counted_tokens(plan: TaskPlan) -> str:
    """Return a note for a causal-lm with options against repetition: `generate` applies them to the source too."""
    spec = plan.generation
    if plan.kind != "causal-lm" or spec is None or (spec.repetition_penalty == 1 and not spec.no_repeat_ngram_size):
        return ""
    return """
For `repetition_penalty` and `no_repeat_ngram_size`, `generate` also counts the tokens of the source; continual-petl counts
only those of the generated text, so its texts can differ.
"""


def _in_vllm(config: Mapping[str, Any]) -> str:
    """Return a note if vLLM does not load a LoRA adapter, or computes something else (vllm/lora/peft_helper.py)."""
    if refused := [name for name, key in (("DoRA", "use_dora"), ("modules_to_save",) * 2) if config.get(key)]:
        return f"\nvLLM does not load it ({', '.join(refused)}): use peft, as below.\n"
    ranks, alphas = config["rank_pattern"], config["alpha_pattern"]
    factors = {alphas.get(name, config["lora_alpha"]) / ranks.get(name, config["r"]) for name in {*ranks, *alphas}}
    if all(math.isclose(factor, config["lora_alpha"] / config["r"]) for factor in factors):
        return ""
    return """
Its modules have different factors (`alpha_pattern`). vLLM ignores `alpha_pattern`, and so would compute something else: use
peft, as below, or learn the task with the same `scale` for all modifications.
"""


_TWO_TEXTS = 'inputs = tokenizer(["some text", "and another"], padding=True, return_tensors="pt")'


def _outputs(subject: Subject) -> str:
    """Return the line that computes the outputs, if the model has the task's head."""
    if subject.plan.generation is None:
        return "logits = model(**inputs).logits"
    return f"ids = model.generate(**inputs, max_new_tokens={subject.plan.generation.max_new_tokens})"


def _named(plan: TaskPlan) -> str:
    """Return the words that introduce the labels of a task."""
    if plan.options_from is None:
        return "Labels, in the order of the outputs"
    by = "" if plan.normalise == "none" else f", divided by the option's number of {plan.normalise}"
    return (
        "The prediction is the option with the highest sum of log-probabilities of its tokens, the end token included, after "
        f"the text{by}"
    )


def _labels_and_code(subject: Subject, lines: Sequence[str]) -> str:
    labels = subject.plan.labels
    told = "" if labels is None else f"\n{_named(subject.plan)}: {', '.join(map(repr, labels))}.\n"
    if subject.plan.options_from == "row":
        told = f"\n{_named(subject.plan)}. Each row has its own options.\n"
    code = "\n".join(lines)
    return f"{told}\n```python\n{code}\n```\n"


def adapters_card(subject: Subject, base: str, *, with_head: bool) -> str:
    """Return the text of README.md of an adapter of `adapters`.

    Args:
        subject: the task.
        base: the name or path that the backbone is loaded from.
        with_head: whether the head is in the format of `adapters`, so that `load_adapter` loads it too.
    """
    plan = subject.plan
    text = f"""An adapter of [adapters](https://docs.adapterhub.ml) 1.3 for a task of kind {plan.kind}, exported by
continual-petl. On the rows in the task's certificate, its outputs match those of the certified bank within 1e-5 in float32.
"""
    auto = AUTO[plan.kind] if plan.kind in GENERATIVE else "AutoModel"
    side = "right" if subject.tokenizer is None else subject.tokenizer.padding_side
    separate = plan.kind not in GENERATIVE and not with_head
    options = ""
    if subject.bank.prefixes():
        text += """
Load the model with `attn_implementation="eager"`, as below: with sdpa, adapters 1.3 hides prefixes from a decoder's tokens.
"""
        options = ', attn_implementation="eager"'
    if with_head:
        lines = ["from adapters import AutoAdapterModel", "from transformers import AutoTokenizer"]
        lines += ["", f'BASE, ADAPTER = {base!r}, "{HERE}"', f"model = AutoAdapterModel.from_pretrained(BASE{options})"]
    else:
        lines = ["import adapters"]
        lines += ["from safetensors.torch import load_file"] if separate else []
        lines += [f"from transformers import {auto}, AutoTokenizer", "", f'BASE, ADAPTER = {base!r}, "{HERE}"']
        lines += [f"model = {auto}.from_pretrained(BASE{options})", "adapters.init(model)"]
    lines += ["model.set_active_adapters(model.load_adapter(ADAPTER, use_safetensors=True))", "model.eval()"]
    lines += [f'tokenizer = AutoTokenizer.from_pretrained(BASE, padding_side="{side}")']
    if plan.kind != "seq2seq":
        lines += ["tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token"]
    lines += [*_template(plan), *_texts(plan)]
    lines += _separate(subject, {"peft_type": None}) if separate else [_outputs(subject)]
    text += _labels_and_code(subject, lines)
    tags = ("adapter-transformers", "continual-learning")
    return new_card(base_model(subject.backbone.name), "adapter-transformers", tags, plan.name, text)


def _code(subject: Subject, auto: str, config: Mapping[str, Any], with_head: bool) -> list[str]:
    """Return the lines of Python that compute the outputs of a row."""
    plan, base = subject.plan, repr(config["base_model_name_or_path"])
    revision = "" if config["revision"] is None else f", revision={config['revision']!r}"
    separate = not with_head and plan.kind not in GENERATIVE
    images = subject.tokenizer is None
    # For some model types AutoTokenizer builds the family's own tokenizer, even if the files declare the general one.
    general = type(subject.tokenizer).__name__ in {"PreTrainedTokenizerFast", "TokenizersBackend"}
    reader = "AutoImageProcessor" if images else "PreTrainedTokenizerFast" if general else "AutoTokenizer"
    labels = f", num_labels={plan.num_outputs}" if with_head else ""
    lines = ["from peft import PeftModel"]
    lines += ["from safetensors.torch import load_file"] if separate else []
    lines += [f"from transformers import {auto}, {reader}", ""]
    lines += [f'BASE, ADAPTER = {base}, "{HERE}"']
    lines += [f"base = {auto}.from_pretrained(BASE{labels}{revision})"]
    lines += ["model = PeftModel.from_pretrained(base, ADAPTER).eval()"]
    if subject.tokenizer is None:
        lines += [f'inputs = {reader}.from_pretrained(BASE{revision})([image], return_tensors="pt")']
    else:
        side = subject.tokenizer.padding_side
        lines += [f'tokenizer = {reader}.from_pretrained(BASE, padding_side="{side}"{revision})']
        lines += ["tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token"] if plan.kind != "seq2seq" else []
        if plan.chat is None and plan.kind == "causal-lm" and config["peft_type"] == "PROMPT_TUNING":
            # peft would count the padding between prompt and text as positions.
            lines += ['inputs = tokenizer(["some text"], return_tensors="pt")  # one at a time, without padding']
        else:
            lines += [*_template(plan), *_texts(plan)]
    if not separate:
        return [*lines, _outputs(subject)]
    return [*lines, *_separate(subject, config)]


def _separate(subject: Subject, config: Mapping[str, Any]) -> list[str]:
    """Return the lines that apply a head from a separate file."""
    lines = []
    if subject.backbone.anatomy.output_head == "seq2seq":
        lines += ['ids = inputs["input_ids"]  # the decoder reads the text as well, shifted by its start token']
        start = start_token(subject.backbone)
        lines += [f'inputs["decoder_input_ids"] = ids.roll(1, 1).index_fill(1, ids.new_tensor([0]), {start})']
    lines += ["output = model(**inputs)"]
    skipped = config.get("num_virtual_tokens", 0) if subject.backbone.anatomy.output_head != "seq2seq" else 0
    skipped = skipped if config["peft_type"] == "PROMPT_TUNING" else 0
    cut = f"[:, {skipped}:]  # without the prompt" if skipped else ""
    lines += [f"states = output.last_hidden_state{cut}"]
    if subject.tokenizer is not None:
        lines += ['mask = inputs["attention_mask"]']
    token = subject.plan.kind == "token-classification"
    pooled = "states" if token else _POOLED[subject.plan.pooling]
    if subject.tokenizer is None and subject.plan.pooling == "mean":
        pooled = "states.mean(1)"
    lines += ['head = load_file(f"{ADAPTER}/head.safetensors")']
    return [*lines, f'logits = {pooled} @ head["weight"].T + head["bias"]']
