"""The endpoint of `peft_endpoint` on LitServe (https://github.com/Lightning-AI/LitServe), with one worker process.

``python -m experiments.benchmarks.peers.litserve_endpoint BACKBONE NUM_TASKS LENGTH THREADS`` prints its address. LitServe
passes each request to its worker process. It also starts other processes, which keep running if only this one is killed.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from typing import Any
from urllib.request import urlopen

import litserve  # type: ignore[import-not-found]

from experiments.benchmarks.peers.peft_rows import make


class Adapters(litserve.LitAPI):  # type: ignore[misc]
    """Predicts with one adapter at a time.

    Args:
        settings: arguments of `make`; the model is created in the worker process.
    """

    def __init__(self, *settings: Any) -> None:
        super().__init__(api_path="/v1/predict")
        self._settings = settings

    def setup(self, device: str) -> None:
        """Create the model."""
        self._predicted = make(*self._settings)

    def predict(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the response to a request."""
        return self._predicted(body)


def main(backbone: str, num_tasks: str, length: str, threads: str) -> None:
    """Serve until the process is ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    threading.Thread(target=_announce, args=(f"http://127.0.0.1:{port}",), daemon=True).start()
    api = Adapters(backbone, int(num_tasks), int(length), int(threads))
    server = litserve.LitServer(api, accelerator="cpu", timeout=False)
    server.run(host="127.0.0.1", port=port, log_level="warning", access_log=False, generate_client_file=False)


def _announce(address: str) -> None:
    while True:
        try:
            with urlopen(f"{address}/health"):
                break
        except OSError:
            time.sleep(0.2)
    print(f"serving at {address}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
