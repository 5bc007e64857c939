"""Runs strategies of avalanche-lib, unmodified, on streams that `experiments.zoo.rows` wrote.

This file runs in an environment of its own and imports nothing of this repository. For each line of its input, ``[FOLDER,
SETTINGS]`` in JSON, it prints the result as a line of JSON. A row is an integer tensor ``(K, L)``: token ids, mask and, if
there are any, token types.

What the strategies see as the model has only parameters that are trained: a frozen backbone is outside of the modules,
because A-GEM, EWC and MIR use all parameters of a model, and its copies share it. It is always in eval mode, as in our runs.

* protocol ``task``: the loss of a row is over the classes of its own task, which is what one head per task computes. DER++,
  ER-ACE and iCaRL have losses of their own, over all classes. At test, the scores of other tasks' classes are left out.
* protocols ``class`` and ``domain``: the loss is over all classes; at test, the scores of classes not seen yet are left out.

Shape suffixes: B rows, K rows of integers, L tokens, D width, C classes.
"""

from __future__ import annotations

import copy
import json
import random
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from transformers import AutoModel

warnings.filterwarnings("ignore")
try:
    import torchvision  # noqa: F401
except (ImportError, RuntimeError):
    # The wheel on the package index needs CUDA. Avalanche imports only its transforms; this declares the operators that are
    # missing when the rest of it is imported again.
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        library.define(schema)  # type: ignore[no-untyped-call]

from avalanche.benchmarks import nc_benchmark, tensors_benchmark  # noqa: E402
from avalanche.core import SupervisedPlugin  # noqa: E402
from avalanche.training import supervised  # noqa: E402
from avalanche.training.plugins import EvaluationPlugin  # noqa: E402

RANK = 8
ADAPTED = ("query", "value", "q_proj", "v_proj", "q_lin", "v_lin")
"""Names of the projections that get a LoRA, in the families BERT, RoBERTa, ELECTRA, Llama, OPT and DistilBERT."""
BYTES = 4
"""Bytes per token or number kept."""


class Frozen:
    """A frozen backbone, which all copies of a model share; its projections add the LoRA of the model that runs."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.lora: nn.ModuleDict | None = None
        self.widths: dict[str, tuple[int, int]] = {}
        for path, module in model.named_modules():
            if path.rpartition(".")[2] in ADAPTED and isinstance(module, nn.Linear):
                self.widths[path.replace(".", "/")] = (module.in_features, module.out_features)
                module.register_forward_hook(partial(self._add, path.replace(".", "/")))

    def __deepcopy__(self, memo: dict[int, Any]) -> Frozen:
        return self

    def _add(self, path: str, module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if self.lora is None:
            return output
        added: Tensor = self.lora[path](given[0].float())
        return output + added.to(output.dtype)


class Features(nn.Module):
    """Maps rows to the features ``(B, D)`` of the backbone, with a LoRA, with all of its weights trained, or frozen."""

    def __init__(self, stream: dict[str, Any], adapted: str) -> None:
        super().__init__()
        self.bf16 = stream["precision"] == "bf16"
        dtype = torch.bfloat16 if self.bf16 and adapted != "all" else torch.float32
        model = AutoModel.from_pretrained(stream["backbone"], dtype=dtype, attn_implementation=stream["attention"])
        self.width, self.pooling = model.config.hidden_size, stream["pooling"]
        if self.pooling != "pooler" and getattr(model, "pooler", None) is not None:
            model.pooler = None
        self.trained = model if adapted == "all" else None
        self.frozen = Frozen(model.requires_grad_(adapted == "all"))
        self.lora = None
        if adapted == "lora":
            if not self.frozen.widths:
                raise SystemExit(f"backbone: it has no projections named {', '.join(ADAPTED)}; adapt all")
            self.lora = nn.ModuleDict({path: _low_rank(*widths) for path, widths in self.frozen.widths.items()})
        self.train()

    @property
    def backbone(self) -> nn.Module:
        """The backbone: the one that is trained, or the one that all copies share."""
        return self.frozen.model if self.trained is None else self.trained

    def train(self, mode: bool = True) -> Features:
        """Set the mode; the backbone stays in eval mode."""
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x_BKL: Tensor) -> Tensor:
        """Return the features."""
        longest = int(x_BKL[:, 1].sum(1).max())
        ids_BL, mask_BL, *types = x_BKL[:, :, :longest].unbind(1)
        self.frozen.lora = self.lora
        given = {"input_ids": ids_BL, "attention_mask": mask_BL} | ({"token_type_ids": types[0]} if types else {})
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16 and self.trained is not None):
            output = self.backbone(**given)
        if self.pooling == "pooler":
            vector_BD: Tensor = output.pooler_output
            return vector_BD.float()
        states_BLD: Tensor = output.last_hidden_state.float()
        if self.pooling == "first":
            return states_BLD[:, 0]
        mean_BD: Tensor = (states_BLD * mask_BL[..., None]).sum(1) / mask_BL.sum(1, keepdim=True).clamp(min=1)
        return mean_BD


def _low_rank(width_in: int, width_out: int) -> nn.Module:
    down, up = nn.Linear(width_in, RANK, bias=False), nn.Linear(RANK, width_out, bias=False)
    nn.init.zeros_(up.weight)
    return nn.Sequential(down, up)


def head(width: int, size: int) -> nn.Linear:
    """Return a linear head with BERT's initialisation."""
    found = nn.Linear(width, size)
    nn.init.trunc_normal_(found.weight, 0.0, 0.02, -0.04, 0.04)
    nn.init.zeros_(found.bias)
    return found


class OwnTask(nn.CrossEntropyLoss):
    """Cross-entropy over the classes of each row's own task."""

    def __init__(self, classes: list[list[int]]) -> None:
        super().__init__()
        size = max(map(max, classes)) + 1
        self.same_CC = torch.zeros(size, size, dtype=torch.bool)
        for own in classes:
            self.same_CC[torch.tensor(own)[:, None], torch.tensor(own)] = True

    def forward(self, output_BC: Tensor, target_B: Tensor) -> Tensor:
        """Return the loss."""
        return super().forward(
            output_BC.masked_fill(~self.same_CC[target_B], torch.finfo(output_BC.dtype).min), target_B
        )


class Observer(SupervisedPlugin):  # type: ignore[misc]  # no type information
    """Counts steps, and collects what a strategy predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.seen: list[tuple[Tensor, Tensor]] = []

    def after_training_iteration(self, strategy: Any, **kwargs: Any) -> None:
        """Count a step."""
        self.steps += 1

    def after_eval_forward(self, strategy: Any, **kwargs: Any) -> None:
        """Collect a batch."""
        self.seen.append((strategy.mb_output.float(), strategy.mb_y))

    def accuracy(self, allowed: list[int]) -> float:
        """Return the accuracy over the collected rows, among the allowed classes."""
        scores_BC, target_B = (torch.cat(parts) for parts in zip(*self.seen, strict=True))
        self.seen = []
        left_out_C = torch.ones(scores_BC.shape[1], dtype=torch.bool)
        left_out_C[allowed] = False
        return (scores_BC.masked_fill(left_out_C, -torch.inf).argmax(1) == target_B).double().mean().item()


def make_strategy(method: str, stream: dict[str, Any], classes: list[list[int]], settings: dict[str, Any]) -> Any:
    """Return a strategy with its model, optimizer and loss; ``strategy.plugins[0]`` is an `Observer`."""
    memory, batch, size = settings["memory"], settings["batch_size"], max(map(max, classes)) + 1
    features = Features(stream, "none" if method == "slda" else settings["adapted"])
    parts = {"feature_extractor": features, "classifier": head(features.width, size)}
    model = nn.Sequential(*parts.values())
    rate, strength = settings.get("learning_rate", 0.0), settings.get("strength")
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    criterion = OwnTask(classes) if settings["protocol"] == "task" else nn.CrossEntropyLoss()
    usual = {
        "train_mb_size": batch,
        "eval_mb_size": 64,
        "train_epochs": settings["epochs"],
        "evaluator": EvaluationPlugin(),
        "plugins": [Observer()],
    }
    common = {"model": model, "optimizer": optimizer, "criterion": criterion, **usual}
    makers = {
        "naive": partial(supervised.Naive, **common),
        "cumulative": partial(supervised.Cumulative, **common),
        "er": partial(supervised.Replay, mem_size=memory, **common),
        "derpp": partial(supervised.DER, mem_size=memory, alpha=strength, beta=0.5, **common),
        "er_ace": partial(supervised.ER_ACE, mem_size=memory, batch_size_mem=batch, **common),
        "agem": partial(supervised.AGEM, patterns_per_exp=memory // len(classes), sample_size=batch, **common),
        "ewc": partial(supervised.EWC, ewc_lambda=strength, **common),
        "si": partial(supervised.SynapticIntelligence, si_lambda=strength, **common),
        "mas": partial(supervised.MAS, lambda_reg=strength, **common),
        "lwf": partial(supervised.LwF, alpha=strength, temperature=2.0, **common),
        "gdumb": partial(supervised.GDumb, mem_size=memory, **common),
        "mir": partial(supervised.MIR, mem_size=memory, subsample=2 * batch, batch_size_mem=batch, **common),
        "icarl": partial(
            supervised.ICaRL,
            **(parts | usual),
            optimizer=optimizer,
            memory_size=memory,
            buffer_transform=None,
            fixed_memory=True,
        ),
        "slda": partial(
            supervised.StreamingLDA,
            **(usual | {"train_epochs": 1}),
            slda_model=features,
            criterion=criterion,
            input_size=features.width,
            num_classes=size,
            shrinkage_param=strength,
        ),
    }
    return makers[method]()


def kept(method: str, strategy: Any) -> tuple[int, int]:
    """Return how many rows of earlier tasks a strategy holds, and the bytes of all that it holds for later tasks."""
    own: Any = strategy.plugins[1]
    rows: list[Any] = []
    tensors: list[Tensor] = []
    if method in ("er", "gdumb", "mir"):
        rows = list(own.storage_policy.buffer)
    elif method in ("derpp", "er_ace"):
        rows = list(strategy.storage_policy.buffer)
    elif method == "cumulative":
        rows = list(strategy.dataset)
    elif method == "agem":
        rows = [row for buffer in own.buffers for row in buffer]
    elif method == "icarl":
        rows = [(row,) for rows in own.x_memory for row in rows]
        tensors = [*own.class_means.values(), *strategy.model.parameters()]  # the old model
    elif method == "ewc":
        tensors = [
            each.data
            for by_task in (own.saved_params, own.importances)
            for of in by_task.values()
            for each in of.values()
        ]
    elif method == "si":
        tensors = [each.data for of in (*own.ewc_data, own.syn_data["cum_trajectory"]) for each in of.values()]
    elif method == "mas":
        tensors = [each.data for of in (own.params, own.importance) for each in of.values()]
    elif method == "lwf":
        tensors = list(own.lwf.prev_model.parameters())
    elif method == "slda":
        tensors = [strategy.muK, strategy.cK, strategy.Sigma]
    if method == "derpp":
        tensors = [row[-1] for row in rows]
    if method == "gdumb":
        tensors = list(own.init_model.parameters())
    return len(rows), BYTES * (sum(int(row[0][1].sum()) for row in rows) + sum(each.numel() for each in tensors))


def read(folder: Path, names: list[str], split: str, most: int | None = None) -> list[tuple[Tensor, Tensor]]:
    """Return at most so many rows ``(N, K, L)`` and their classes ``(N,)`` of one split of each task."""
    found = []
    for name in names:
        tensors = load_file(folder / f"{name}-{split}.safetensors")
        layers = [tensors[each] for each in ("ids", "mask", "types") if each in tensors]
        found.append((torch.stack(layers, 1)[:most], tensors["labels"][:most]))
    width = max(x_NKL.shape[2] for x_NKL, _ in found)
    # Padding is masked, whatever its ids are.
    return [(nn.functional.pad(x_NKL, (0, width - x_NKL.shape[2])), y_N) for x_NKL, y_N in found]


class Rows(TensorDataset):
    """Rows and classes, as Avalanche reads them."""

    @property
    def targets(self) -> list[int]:
        """The classes."""
        found: list[int] = self.tensors[1].tolist()
        return found

    def __getitem__(self, place: int) -> Any:
        """Return one row; Avalanche expects its class as a number."""
        return self.tensors[0][place], int(self.tensors[1][place])


def benchmark_of(
    train: list[tuple[Tensor, Tensor]], test: list[tuple[Tensor, Tensor]], classes: list[list[int]]
) -> Any:
    """Return a benchmark whose experiences are the tasks, in order; iCaRL needs one with an order of classes."""
    # Such a benchmark must have rows of every class, and each class in one task.
    if sum(map(len, classes)) == len({label for _, label_N in train for label in label_N.tolist()}):
        joined = [tuple(torch.cat(parts) for parts in zip(*each, strict=True)) for each in (train, test)]
        return nc_benchmark(
            *(Rows(*each) for each in joined),
            n_experiences=len(classes),
            task_labels=False,
            shuffle=False,
            fixed_class_order=[one for own in classes for one in own],
            per_exp_classes={number: len(own) for number, own in enumerate(classes)},
        )
    return tensors_benchmark(train, test, task_labels=[0] * len(train), complete_test_set_only=False)


def run(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Learn the tasks with a strategy; return the matrix of accuracies, costs and what the strategy keeps."""
    stream = json.loads((folder / "stream.json").read_text(encoding="utf-8"))
    tasks = stream["tasks"][: settings.get("num_tasks")]
    names, classes = [task["name"] for task in tasks], [task["classes"] for task in tasks]
    train, test = read(folder, names, "train", settings.get("rows")), read(folder, names, settings["judge"])
    random.seed(settings["seed"])
    torch.manual_seed(settings["seed"])
    method, settings = settings["method"], copy.copy(settings)
    if method == "gdumb":
        # It learns its memory alone: as many steps as the others do on the rows of a task.
        mean = sum(len(labels) for _, labels in train) / len(train)
        settings["epochs"] = round(settings["epochs"] * mean / min(settings["memory"], mean))
    benchmark = benchmark_of(train, test, classes)
    strategy = make_strategy(method, stream, classes, settings)
    observer = strategy.plugins[0]
    matrix, learning = [], 0.0
    for number, experience in enumerate(benchmark.train_stream):
        began = time.perf_counter()
        strategy.train(experience)
        learning += time.perf_counter() - began
        seen = sorted({one for own in classes[: number + 1] for one in own})
        row: list[float | None] = [None] * len(tasks)
        for other in range(number + 1):
            strategy.eval(benchmark.test_stream[other])
            row[other] = observer.accuracy(classes[other] if settings["protocol"] == "task" else seen)
        matrix.append(row)
    rows, size = kept(method, strategy)
    return {
        "matrix": matrix,
        "seconds": learning,
        "steps": observer.steps,
        "trained_parameters": sum(each.numel() for each in strategy.model.parameters() if each.requires_grad),
        "kept_rows": rows,
        "kept_bytes": size,
    }


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever else is printed does not get between the answers
    for line in sys.stdin:
        folder, settings = json.loads(line)
        print(json.dumps(run(Path(folder), settings)), file=answers, flush=True)
