"""The common style of all figures: no background, so that they fit light and dark pages; colours that everyone can tell
apart (Okabe and Ito 2008, https://jfly.uni-koeln.de/color); names escaped and shortened for plotly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

from continual_petl.report.run_facts import MAX_TASKS

if TYPE_CHECKING:
    import plotly.graph_objects as go

Drawing: TypeAlias = dict[str, Any]
"""A figure as plotly JSON."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#B8A800")
SCALE = [
    [0.0, "#00224e"], [1 / 9, "#123570"], [2 / 9, "#3b496c"], [3 / 9, "#575d6d"], [4 / 9, "#707173"],
    [5 / 9, "#8a8678"], [6 / 9, "#a59c74"], [7 / 9, "#c3b369"], [8 / 9, "#e1cc55"], [1.0, "#fee838"],
]  # fmt: skip
"""Cividis (Nunez et al. 2018) as in plotly for Python; plotly.js has other colours under this name."""
MUTED = "rgba(128, 128, 128, 0.35)"
_NAMED = 40
MARKED = 60
"""Maximum number of points of a line that are marked."""
MAX_WRITTEN = 12
"""Maximum number of rows of a heat map whose cells contain their numbers."""
_ROUNDING, _AROUND = 1e-6, 0.05
"""The largest difference that counts as rounding, as a share of the value, and the margin beyond the ends of an axis, as a
share of its length."""
CLEAR = "rgba(0, 0, 0, 0)"
MAX_BARS = 250
"""Maximum number of bars in a run of more than `MAX_TASKS` tasks."""


def colour(number: int) -> str:
    """Return the colour with this number; colours repeat after eight."""
    return COLOURS[number % len(COLOURS)]


def as_figure(drawing: Drawing) -> go.Figure:
    """Return a drawing as a plotly figure, which validates it."""
    import plotly.graph_objects as go  # takes half a second, and a page needs only the JSON

    return go.Figure(drawing)


@cache
def plotly_js() -> str:
    """Return plotly's JavaScript, as `plotly.offline.get_plotlyjs` does, but without importing plotly."""
    spec = find_spec("plotly")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("package_data").joinpath("plotly.min.js").read_text("utf-8")


def drawing(traces: Sequence[Mapping[str, Any]], *, x: str = "", y: str, height: int = 380, **layout: Any) -> Drawing:
    """Return a figure with titled axes as plotly JSON; plotly does not validate it, since that would take most of the time.

    Args:
        traces: the traces as plotly JSON; see `scatter`, `bar` and `heatmap`.
        x: title of the horizontal axis, unless ``xaxis`` has one.
        y: title of the vertical axis.
        height: in pixels.
        layout: other keys of plotly's layout; ``xaxis`` and ``yaxis`` are merged with the common ones.
    """
    # Without a type, plotly guesses one from the values, including dates.
    axis = {"gridcolor": MUTED, "zerolinecolor": MUTED, "automargin": True, "type": "linear"}
    for name in ("xaxis", *(name for name in ("yaxis", "yaxis2") if name == "yaxis" or name in layout)):
        if layout.get(name, {}).get("type") != "log":
            layout[name] = {**_range_of(traces, name.replace("axis", "")), **layout.get(name, {})}
    base = {
        # plotly's default template is longer than most figures, and has a background.
        "template": {},
        "height": height,
        "margin": {"l": 64, "r": 24, "t": 24, "b": 56},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#777777"},
        "legend": {"orientation": "h", "y": 1.12, "x": 0},
        "hoverlabel": {"namelength": -1},
        "xaxis": {**axis, **titled(x)} | layout.pop("xaxis", {}),
        "yaxis": {**axis, **titled(y)} | layout.pop("yaxis", {}),
    }
    return {"data": list(traces), "layout": {**base, **layout}}


def _range_of(traces: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return a range for an axis without values, or whose values are equal up to rounding; otherwise an empty dict.

    Args:
        traces: the traces of the figure.
        name: plotly's short name of the axis: x, y or y2.
    """
    own = [trace for trace in traces if trace.get(f"{name[0]}axis", name[0]) == name]
    plain = {trace["type"] for trace in own} <= {"scatter"} and not any("stackgroup" in trace for trace in own)
    values = [value for trace in own for value in trace.get(name[0], ()) if isinstance(value, int | float)]
    if not plain:  # bars and areas begin at zero, so only their length can be undefined
        return {"range": [0, 1]} if name != "x" and values and not any(values) else {}
    if not values:
        return {"range": [0, 1]}
    low, high = min(values), max(values)
    if not _is_constant(low, high) or (high == low and name == "x"):
        return {}
    if name != "x":
        low, high = scale_of_constant(low)
    around = _AROUND * max(1.0, abs(low), abs(high))
    return {"range": [low - around, high + around]}


def _is_constant(low: float, high: float) -> bool:
    return high - low <= _ROUNDING * max(abs(low), abs(high))


def scale_of_constant(value: float) -> tuple[float, float]:
    """Return the ends of a scale for values that are all the same: 0 and 1 if that includes them, as it does most scores.

    Example:
        >>> scale_of_constant(0.9), scale_of_constant(-0.3), scale_of_constant(21.5), scale_of_constant(-4.0)
        ((0.0, 1.0), (-1.0, 1.0), (0.0, 21.5), (-4.0, 0.0))
    """
    if -1 <= value <= 1:
        return (0.0, 1.0) if value >= 0 else (-1.0, 1.0)
    return min(0.0, value), max(0.0, value)


def around_zero(values: Sequence[float | None]) -> dict[str, Any]:
    """Return an axis for differences, so that zero is drawn as zero, not as noise magnified to the height of the page."""
    edge = max(0.05, 1.2 * max((abs(value) for value in values if value is not None), default=0.0))
    return {"range": [-edge, edge]}


def scatter(**parts: Any) -> dict[str, Any]:
    """Return a trace of lines or marks."""
    return {"type": "scatter", **parts}


def line(
    x: Iterable[float],
    y: Iterable[float | None],
    name: str,
    number: int,
    hover: str,
    *,
    style: Mapping[str, Any] | None = None,
    **parts: Any,
) -> dict[str, Any]:
    """Return a line; where a value is unknown (NaN or None), it has a gap.

    Args:
        x: where its points are.
        y: their values.
        name: its name in the legend.
        number: the number of its colour.
        hover: the text of a point, with plotly's placeholders.
        style: other keys of plotly's ``line``, such as ``dash``.
        parts: other keys of the trace, such as its mode; without one, its points are not marked.
    """
    return scatter(
        x=list(x),
        y=gaps(y),
        name=shown(name),
        mode=parts.pop("mode", "lines"),
        line={"color": colour(number), **(style or {})},
        hovertemplate=f"{hover}<extra></extra>",
        **parts,
    )


def mode(*, marks: bool) -> str:
    """Return the mode of a line, whose points may be marked."""
    return "lines+markers" if marks else "lines"


def spread(
    x: Sequence[float], values: Sequence[Sequence[float]], hover: str, *, marks: bool = False, **parts: Any
) -> list[dict[str, Any]]:
    """Return lines of the best, the median and the worst of some values at each place; see `line`."""
    drawn: tuple[tuple[str, Callable[[Sequence[float]], float], str], ...] = (
        ("best", max, "dot"),
        ("median", median, "solid"),
        ("worst", min, "dot"),
    )
    return [
        line(
            x,
            (of(v) if v else None for v in values),
            name,
            n,
            hover,
            mode=mode(marks=marks),
            style={"dash": dash},
            **parts,
        )
        for n, (name, of, dash) in enumerate(drawn)
    ]


def gaps(values: Iterable[float | None]) -> list[float | None]:
    """Return values for JSON, which has no NaN: an unknown value is null, which plotly leaves out."""
    return [None if value is None or value != value else value for value in values]


def bar(**parts: Any) -> dict[str, Any]:
    """Return a trace of bars."""
    return {"type": "bar", **parts}


def heatmap(z: Sequence[Sequence[float | None]], **parts: Any) -> dict[str, Any]:
    """Return a heat map; if all its values are the same, its colour scale is that of `scale_of_constant`."""
    values = [value for row in z for value in row if value is not None]
    low, high = min(values, default=0.0), max(values, default=0.0)
    ends = dict(zip(("zmin", "zmax"), scale_of_constant(low), strict=True)) if _is_constant(low, high) else {}
    return {"type": "heatmap", "z": z, **ends, **parts}


def named_axis(names: Sequence[str]) -> dict[str, Any]:
    """Return an axis with these names at 0, 1, 2, ..."""
    return {"tickmode": "array", "tickvals": list(range(len(names))), "ticktext": list(names)}


def grid(
    z: Iterable[Iterable[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    colorbar: Mapping[str, Any],
    text: Sequence[Sequence[str | int]],
    written: str = "%{z:.3f}",
    hover: str = "%{text}",
    parts: Mapping[str, Any] | None = None,
    **layout: Any,
) -> Drawing:
    """Return a heat map with named rows, the first one on top, and named columns.

    Args:
        z: the values, row by row; unknown ones (NaN or None) are gaps.
        rows: names of the rows.
        columns: names of the columns.
        colorbar: the scale of the colours, as plotly JSON; see `titled`.
        text: a text for each cell.
        written: what is written into the cells if there are few, with plotly's placeholders.
        hover: the text of a cell on hover.
        parts: other keys of the heat map.
        layout: as in `drawing`; ``height`` is kept between 320 and 900 pixels.
    """
    heat = heatmap(
        [gaps(row) for row in z],
        text=text,
        texttemplate=written if len(rows) <= MAX_WRITTEN else None,
        hovertemplate=f"{hover}<extra></extra>",
        hoverongaps=False,
        colorbar=colorbar,
        colorscale=SCALE,
        xgap=1,
        ygap=1,
        **(parts or {}),
    )
    layout["height"] = int(min(900, max(320, layout["height"])))
    yaxis = {"autorange": "reversed", **named_axis(rows)}
    return drawing([heat], xaxis=named_axis(columns), yaxis=yaxis, **layout)


def titled(text: str) -> dict[str, Any]:
    """Return an axis or scale with this title."""
    return {"title": {"text": text}}


def line_at(axis: str, value: float, line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a straight line across the whole figure at a value of ``axis`` (x or y)."""
    across = "y" if axis == "x" else "x"
    ends = {f"{axis}0": value, f"{axis}1": value, f"{across}0": 0, f"{across}1": 1}
    return {"type": "line", **ends, f"{axis}ref": axis, f"{across}ref": f"{across} domain", "line": dict(line)}


def task_axis(tasks: Sequence[str]) -> dict[str, Any]:
    """Return an axis with an entry for each task: its name, or its number if the names do not fit."""
    if len(tasks) > _NAMED:
        return titled("task, by number")
    return {**titled("task"), "tickvals": [*range(1, len(tasks) + 1)], "ticktext": [*map(tick, tasks)]}


def tick(name: str, limit: int = 18) -> str:
    """Return a name shortened for an axis; the full name is shown on hover."""
    return shown(name if len(name) <= limit else name[: limit - 1] + "…")


def shown(text: str) -> str:
    """Escape a text for plotly, which interprets a few HTML tags."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def tasks_of_a_bar(count: int) -> int:
    """Return how many tasks share a bar."""
    return 1 if count <= MAX_TASKS else -(-count // MAX_BARS)


def bars_in_words(count: int) -> str:
    """Describe the bars; empty if each task has its own bar."""
    size = tasks_of_a_bar(count)
    return "" if size == 1 else f" Each bar is the mean of {size:,} of the {count:,} tasks, in learning order."


def task_bars(
    tasks: Sequence[str], parts: Mapping[str, Sequence[float | None]], *, y: str, number: str, unit: str
) -> Drawing:
    """Return a bar for each task, or for every few tasks, divided into parts.

    Args:
        tasks: their names, in the order they were learned.
        parts: by name, the size of a part for each task; None if it is unknown: it is then left out of a bar's mean.
        y: title of the vertical axis.
        number: plotly's number format, with a prefix.
        unit: suffix of the numbers.
    """
    size = tasks_of_a_bar(len(tasks))
    starts = range(0, len(tasks), size)
    ends = [min(start + size, len(tasks)) for start in starts]
    names = [f"mean of tasks {start + 1:,} to {end:,}" for start, end in zip(starts, ends, strict=True)]
    traces = [
        bar(
            x=[start + (size + 1) / 2 if size > 1 else start + 1 for start in starts],
            y=[_mean(values[start:end]) for start, end in zip(starts, ends, strict=True)],
            name=words,
            marker={"color": colour(index), "line": {"width": 0}},
            customdata=names if size > 1 else list(map(shown, tasks)),
            hovertemplate=f"%{{customdata}}<br>{words}{number} {unit}<extra></extra>",
        )
        for index, (words, values) in enumerate(parts.items())
    ]
    axis = {"title": {"text": f"task, by number; {size:,} tasks per bar"}} if size > 1 else task_axis(tasks)
    return drawing(traces, xaxis=axis, y=y, barmode="stack", bargap=0.1)


def _mean(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return known[0] if len(known) == 1 else sum(known) / max(1, len(known))
