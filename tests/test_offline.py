"""Plain `pytest` is offline: no variable has to be set, and processes that tests start inherit it."""

from __future__ import annotations

import subprocess
import sys

OFFLINE = (
    "import datasets, huggingface_hub, os; "
    "assert huggingface_hub.constants.HF_HUB_OFFLINE and datasets.config.HF_HUB_OFFLINE; "
    "assert os.environ['WANDB_MODE'] == 'disabled'"
)


def test_the_hub_is_out_of_reach() -> None:
    exec(OFFLINE, {})
    subprocess.run([sys.executable, "-c", OFFLINE], check=True)
