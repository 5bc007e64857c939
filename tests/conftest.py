"""Every test is seeded, runs on one thread, and uses tiny backbones on disk."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.learned import LearnedRuns

# More threads only slow down models of this size; processes that tests start inherit this setting.
os.environ["OMP_NUM_THREADS"] = "1"
# Tests never use the internet, nor do the processes that they start.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "disabled"}
# W&B would report its own errors over the internet, from threads that are started again in every forked process.
os.environ["WANDB_ERROR_REPORTING"] = "false"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # otherwise it warns in every forked process
# Processes that a shell starts in the background ignore SIGINT, which some tests raise.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """Prepare a process that runs tests; the controller of pytest-xdist runs none and needs no torch."""
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        return
    import hypothesis
    import torch

    from tests.quick import make_quick

    phases = [phase for phase in hypothesis.Phase if phase is not hypothesis.Phase.explain]
    hypothesis.settings.register_profile("any machine", deadline=None, phases=phases)
    hypothesis.settings.load_profile("any machine")
    torch.set_num_threads(1)
    make_quick()


def pytest_collection_finish() -> None:
    """Exclude everything imported so far from garbage collection, which would traverse all of torch again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    import torch

    from continual_petl.backbones.auto_defaults import select_as

    torch.manual_seed(0)
    select_as(None)  # undo what a worker in this process may have selected


@pytest.fixture(scope="session")
def backbone_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that maps a family to the folder of a tiny model with its tokenizer or image processor."""
    from tests.learned import made_once, shared_folder
    from tests.tiny import PREPROCESSOR, make_model, make_tokenizer

    folder = shared_folder(tmp_path_factory) / "backbones"

    def get(family: str = "bert") -> Path:
        def make(place: Path) -> None:
            make_model(family).save_pretrained(place)
            if family == "vit":
                (place / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR), encoding="utf-8")
            else:
                make_tokenizer(family).save_pretrained(place)

        return made_once(folder / family, make)

    return get


@pytest.fixture(scope="session")
def learned_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnedRuns]:
    """Return the runs that tests start from, each learned once; see `tests/learned.py`."""
    from tests.learned import LearnedRuns, shared_folder

    runs = LearnedRuns(shared_folder(tmp_path_factory) / "learned")
    yield runs
    assert runs.changed() == [], "a test has changed a run that others read; it needs a copy"
