"""A typical endpoint for peft adapters: FastAPI, one request at a time.

``python -m experiments.benchmarks.peers.peft_endpoint BACKBONE NUM_TASKS LENGTH THREADS`` prints its address.
"""

from __future__ import annotations

import socket
import sys
import threading
from typing import Any

import uvicorn
from fastapi import FastAPI

from experiments.benchmarks.peers.peft_rows import make


def main(backbone: str, num_tasks: str, length: str, threads: str) -> None:
    """Serve until the process is ended."""
    predicted, one_at_a_time = make(backbone, int(num_tasks), int(length), int(threads)), threading.Lock()
    app = FastAPI()

    @app.post("/v1/predict")
    def predict(body: dict[str, Any]) -> dict[str, Any]:
        with one_at_a_time:
            return predicted(body)

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        print(f"serving at http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, access_log=False, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
