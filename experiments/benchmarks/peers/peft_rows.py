"""Predictions as in a typical endpoint for peft adapters: `set_adapter` is called for each request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model

Predict = Callable[[dict[str, Any]], dict[str, Any]]


def make(backbone: str, num_tasks: int, length: int, threads: int) -> Predict:
    """Return a function that maps a request's body to a response's body; the adapters' values are random.

    Like our endpoint, it uses the GPU if there is one.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = transformers.AutoTokenizer.from_pretrained(backbone)
    base = transformers.AutoModel.from_pretrained(backbone, attn_implementation="sdpa").eval()
    config = LoraConfig(r=8, lora_alpha=8, target_modules=["query", "value"], init_lora_weights=False)
    model: Any = get_peft_model(base, config, adapter_name="t0000")
    for number in range(1, num_tasks):
        model.add_adapter(f"t{number:04}", config)
    model.eval().to(device)
    heads = {f"t{number:04}": torch.nn.Linear(base.config.hidden_size, 2, device=device) for number in range(num_tasks)}

    def predict(body: dict[str, Any]) -> dict[str, Any]:
        task = body["task"]
        batch = tokenizer(body["inputs"], padding=True, truncation=True, max_length=length, return_tensors="pt").to(
            device
        )
        with torch.inference_mode():
            model.set_adapter(task)
            states = model(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None]
            shares = heads[task]((states * mask).sum(1) / mask.sum(1)).softmax(-1).tolist()
        return {"predictions": [{"answer": int(row[1] > row[0]), "probabilities": row} for row in shares]}

    return predict
