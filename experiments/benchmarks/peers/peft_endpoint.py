"""A typical endpoint for peft adapters: FastAPI, one request at a time, calling `set_adapter` for each.

``python -m experiments.benchmarks.peers.peft_endpoint BACKBONE NUM_TASKS LENGTH THREADS`` prints its address.
"""

from __future__ import annotations

import socket
import sys
import threading
from typing import Any

import torch
import transformers
import uvicorn
from fastapi import FastAPI
from peft import LoraConfig, get_peft_model


def make(backbone: str, num_tasks: int, length: int) -> FastAPI:
    """Return the application, with adapters of random values."""
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(backbone)
    base = transformers.AutoModel.from_pretrained(backbone, attn_implementation="sdpa").eval()
    config = LoraConfig(r=8, lora_alpha=8, target_modules=["query", "value"], init_lora_weights=False)
    model: Any = get_peft_model(base, config, adapter_name="t0000")
    for number in range(1, num_tasks):
        model.add_adapter(f"t{number:04}", config)
    model.eval()
    heads = {f"t{number:04}": torch.nn.Linear(base.config.hidden_size, 2) for number in range(num_tasks)}
    one_at_a_time = threading.Lock()
    app = FastAPI()

    @app.post("/v1/predict")
    def predict(body: dict[str, Any]) -> dict[str, Any]:
        task = body["task"]
        batch = tokenizer(body["inputs"], padding=True, truncation=True, max_length=length, return_tensors="pt")
        with one_at_a_time, torch.inference_mode():
            model.set_adapter(task)
            states = model(**batch).last_hidden_state
            mask = batch["attention_mask"][..., None]
            shares = heads[task]((states * mask).sum(1) / mask.sum(1)).softmax(-1).tolist()
        return {"predictions": [{"answer": int(row[1] > row[0]), "probabilities": row} for row in shares]}

    return app


def main(backbone: str, num_tasks: str, length: str, threads: str) -> None:
    """Serve until the process is ended."""
    torch.set_num_threads(int(threads))
    app = make(backbone, int(num_tasks), int(length))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        print(f"serving at http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
