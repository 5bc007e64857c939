"""Plans in which one setting is changed, for every setting in the schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from continual_petl.banks.config.choice import BankChoice
from continual_petl.heads.decision import Decision
from continual_petl.heads.tag_scheme import TagReading
from continual_petl.heads.targets import Targets
from continual_petl.learner.task_plan import TaskPlan
from continual_petl.streams.schema.chat_spec import ResolvedChat, digest_of
from continual_petl.streams.schema.generation import GenerationSpec
from continual_petl.streams.schema.training_spec import ResolvedTraining

Path = tuple[str | int, ...]
CHAT = ResolvedChat(template="-", digest=digest_of("-"), system=None, loss_on="response", tokens={}, end=0)
WHOLE = TaskPlan(
    task="one",
    kind="classification",
    pair=False,
    labels=("a", "b"),
    bank=BankChoice(preset="houlsby").resolve(),
    training=ResolvedTraining(epochs=2, learning_rate=0.1),
    pooling="first",
    metric="accuracy",
    metric_code="a" * 64,
    seed=1,
    class_weights=(1.0, 2.0),
    generation=GenerationSpec(),
    max_target_length=8,
    chat=CHAT,
    tags=TagReading(scheme="IOB2", position="prefix", separator="-", outside=("O",)),
    targets=Targets(mean=0.0, deviation=1.0),
    decision=Decision(thresholds=(0.25, 0.5)),
)
"""A plan with a value for every field but `normalise`, so that each of them can be changed."""
_VALUES = (
    True,
    False,
    3,
    0.25,
    "one",
    "first",
    "regression",
    "lowrank",
    "0-1",
    "b" * 64,
    ("one", "two"),
    (0.5, 0.5),
    (0.5, 3.0),
    {"c": "d"},
)


def paths(model: BaseModel = WHOLE, above: Path = ()) -> Iterator[Path]:
    """Yield the path of every setting of a plan, down to those of a modification."""
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from paths(value, (*above, name))
        elif name == "modifications":
            yield from paths(value[0], (*above, name, 0))
        else:
            yield (*above, name)


def changed(path: Path, plan: Any = WHOLE) -> Any:
    """Return a plan in which the setting with this path has another value that its type allows."""
    first, *rest = path
    if isinstance(plan, tuple):
        return (changed(tuple(rest), plan[0]), *plan[1:])
    now = getattr(plan, str(first))
    new = changed(tuple(rest), now) if rest else _other(plan, str(first), now)
    return plan.model_copy(update={first: new})


def name_of(path: Path) -> str:
    """Return the name under which a setting with this path is expected in messages."""
    names = {
        "metric_code": "the code of the metric",
        "kind_code": "the code of the kind",
        "targets": "the scale of the targets",
    }
    return f"training.{path[1]}" if path[0] == "training" else names.get(str(path[0]), str(path[0]))


def _other(model: BaseModel, name: str, now: Any) -> Any:
    field = type(model).model_fields[name]
    annotation: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    for value in (*_literals(field.annotation), *_VALUES):
        try:
            found = TypeAdapter(annotation).validate_python(value)
        except ValidationError:
            continue
        if found != now:
            return found
    raise AssertionError(f"{type(model).__name__}.{name}: add a value of its type")


def _literals(annotation: Any) -> Iterator[Any]:
    for each in get_args(annotation):
        if isinstance(each, str | bool | int):
            yield each
        yield from _literals(each)


def learned_paths() -> list[Path]:
    """Return the settings that two plans of one task may differ in: all but its name."""
    return [path for path in paths() if path != ("task",)]
