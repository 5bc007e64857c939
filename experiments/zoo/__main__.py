"""The command: ``python -m experiments.zoo --data FOLDER [--streams NAME ...] [--protocols NAME ...]
[--methods NAME,...] [--seeds N] [--minutes M] [--out FOLDER]`` learns the named streams with every method; finished trials
are not repeated.

``python -m experiments.zoo STREAM.yaml --methods er,ewc,lwf`` compares methods on a stream of your own, whose tasks are
classification of texts. ``python -m experiments.zoo environment`` creates the environment in which avalanche-lib runs;
``pages`` regenerates README of this study and its part of the main README. With ``--quick``, the study is run on made-up rows
with a small random backbone: a smoke test.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from continual_petl.errors import InputError, did_you_mean
from continual_petl.streams.stream import TaskStream
from experiments.benchmarks.environments import make_environment
from experiments.benchmarks.markdown import grid
from experiments.studies.made_up import make_up
from experiments.studies.scale import SEEDS
from experiments.studies.tiny import make_tiny
from experiments.zoo.methods import METHODS, RUN
from experiments.zoo.page import write_pages
from experiments.zoo.result import RESULTS, Line, Results
from experiments.zoo.streams import STREAMS, Named, shorter
from experiments.zoo.trials import PYTHON, Avalanche, Budget, Trials
from experiments.zoo.words import PROTOCOLS

QUICK = Budget(epochs=1, batch_size=8, memory=12, tuning_rows=16)


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(prog="python -m experiments.zoo", description=__doc__, allow_abbrev=False)
    parser.add_argument("what", nargs="?", help="a stream file, or one of the words environment and pages")
    parser.add_argument("--data", type=Path, help="folder with one subfolder of rows per task")
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=list(STREAMS), help="learn only these streams")
    parser.add_argument(
        "--protocols", nargs="+", choices=PROTOCOLS, default=list(PROTOCOLS), help="only these protocols"
    )
    parser.add_argument("--methods", type=lambda text: text.split(","), default=list(RUN), help="only these methods")
    parser.add_argument("--adapted", choices=("lora", "all"), default="lora", help="what is trained besides the head")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds (default 1)")
    parser.add_argument("--orders", type=int, help="number of orders (default: all)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="no trial is started after this time")
    parser.add_argument("--out", type=Path, help="folder for results; default: experiments/zoo/results, or zoo")
    parser.add_argument("--quick", action="store_true", help="smoke test on made-up rows")
    parser.add_argument("--index-url", help="environment: package index for torch (default: pip's)")
    given = parser.parse_args(arguments)
    if given.what is None and given.data is None and not given.quick:
        parser.error("--data is missing: give the folder with rows, a stream file, or the word environment")
    return given


def study(given: argparse.Namespace) -> list[Line]:
    """Learn the named streams; return the trials of whole streams."""
    with ExitStack() as stack:
        data, backbone = given.data, "minilm"
        if given.quick:
            folder = Path(stack.enter_context(TemporaryDirectory()))
            data, backbone = make_up(folder / "data"), str(make_tiny(folder / "tiny"))
        found: list[Line] = []
        for name in given.streams:
            named = shorter(STREAMS[name], 3) if given.quick else STREAMS[name]
            for protocol in (each for each in named.protocols if each in given.protocols):
                trials = Trials(
                    results=Results((given.out or RESULTS) / f"{name}.ndjson"),
                    stream=name,
                    protocol=protocol,
                    read=partial(_read, named, data, backbone),
                    seeds=SEEDS[: given.seeds],
                    orders=min(given.orders or len(named.orders), len(named.orders)),
                    adapted=given.adapted,
                    budget=QUICK if given.quick else Budget(),
                    deadline=given.deadline,
                    avalanche=given.avalanche,
                )
                found += trials.run(_fitting(given.methods, protocol))
        return found


def own_stream(given: argparse.Namespace) -> list[Line]:
    """Learn a stream file with some methods; return the trials of the whole stream."""
    stream = TaskStream.from_yaml(given.what)
    trials = Trials(
        results=Results((given.out or Path("zoo")) / f"{stream.name}.ndjson"),
        stream=stream.name,
        protocol=stream.spec.protocol,  # type: ignore[arg-type]  # `write_rows` refuses revisit
        read=lambda order, seed: TaskStream(stream.spec.model_copy(update={"seed": seed})),
        seeds=tuple(stream.seed + number for number in range(given.seeds)),
        adapted=given.adapted,
        budget=QUICK if given.quick else Budget(),
        deadline=given.deadline,
        avalanche=given.avalanche,
    )
    return list(trials.run(_fitting(given.methods, stream.spec.protocol)))


def _read(named: Named, data: Path, backbone: str, order: int, seed: int) -> TaskStream:
    return named.read(data, backbone, named.orders[order - 1], seed)


def _fitting(methods: list[str], protocol: str) -> list[str]:
    """Return the methods that can learn a stream with this protocol.

    Raises:
        InputError: if a method is unknown.
    """
    for name in methods:
        if name not in RUN:
            raise InputError(
                f"--methods: got {name!r}{did_you_mean(name, list(RUN))}; allowed: {', '.join(RUN)}, with commas "
                "between them."
            )
    return [name for name in methods if protocol != "domain" or not METHODS[name].by_class]


def table(lines: list[Line]) -> str:
    """Return the measures of trials as Markdown."""
    names = ("acc", "forgetting", "bwt", "learned")
    rows = [
        [
            METHODS[line.method].title,
            line.stream,
            line.protocol,
            *(f"{100 * line.measures[name]:.1f}" for name in names),
        ]
        for line in lines
    ]
    return grid(["", "stream", "protocol", "ACC", "forgetting", "BWT", "learning accuracy"], rows)


def main(arguments: list[str]) -> int:
    """Run the command; return 2 if the input is invalid."""
    given = parse(arguments)
    given.deadline, given.avalanche = time.monotonic() + 60 * given.minutes, Avalanche()
    try:
        if given.what == "environment":
            versions = Path(__file__).with_name("constraints.txt")
            packages = ["avalanche-lib", "torchvision", "transformers", "safetensors"]
            make_environment(PYTHON.parents[1], packages, versions, given.index_url)
        elif given.what == "pages":
            write_pages()
        else:
            print(table(study(given) if given.what is None else own_stream(given)))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        given.avalanche.close()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
