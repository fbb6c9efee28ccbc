"""Charts with matplotlib, which the extra ``fdbqueue[notebook]`` has. Only a call of a function here imports it.

The colours are Okabe and Ito's, which colour-blind readers can tell apart. Each bar has its number beside it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING, Any

from fdbqueue.base.reprs import escape
from fdbqueue.reads.queue_rows import ITEM_STATES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fdbqueue.reads.inspecting import Inspection

COLOURS = {name: state.colour for name, state in ITEM_STATES.items()}
OTHERS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
INK, FAINT = "#333333", "#dddddd"
STYLE: dict[Any, Any] = {
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
DOTS_PER_INCH = 110
LEAST_BARS = 4
"""Fewer bars are drawn no wider than these."""


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure, in inches, and its axes side by side. It belongs to no window and to no global state.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise ModuleNotFoundError("Charts need matplotlib: pip install 'fdbqueue[notebook]'.", name="matplotlib")
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with rc_context(STYLE):
        figure = _drawing()(figsize=(width, height), layout="constrained", dpi=DOTS_PER_INCH)
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, columns, squeeze=False)[0]
    return figure, list(axes)


@cache
def _drawing() -> type[Figure]:
    """Return a class of figures that notebooks show as pictures, also without `%matplotlib inline`."""
    from matplotlib.figure import Figure

    class Drawing(Figure):
        def _repr_png_(self) -> bytes:
            return png(self)

    return Drawing


def png(figure: Figure) -> bytes:
    """Return a figure as a PNG."""
    written = io.BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()


def bars(axes: Axes, title: str, counts: dict[str, int], colours: dict[str, str] | None = None) -> None:
    """Draw a horizontal bar for each number, the first one at the top, with the number beside it."""
    names = list(counts)
    axes.barh(names, list(counts.values()), color=[(colours or {}).get(name, OTHERS[0]) for name in names], height=0.7)
    for name, count in counts.items():
        axes.annotate(f" {count:,}", (count, name), va="center")
    axes.set_ylim(max(LEAST_BARS, len(names)) - 0.5, -0.5)  # the first one at the top
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlim(0, 1.3 * max(1, *counts.values()))
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(left=False)


def lines(
    axes: Axes,
    title: str,
    places: Sequence[float],
    numbers: Mapping[str, Sequence[float]],
    *,
    axis: str = "seconds ago",
) -> None:
    """Draw numbers over time, or over something else that `axis` names. Lines differ by colour and by mark."""
    marks = "o^sDvP*"
    for at, (name, told) in enumerate(numbers.items()):
        colour = COLOURS.get(name, OTHERS[at % len(OTHERS)])
        mark = marks[at % len(marks)] if len(told) < 40 else "None"
        axes.plot(places, told, color=colour, linewidth=1.6, label=name, marker=mark, markersize=3.0)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_ylim(bottom=min((0.0, *chain.from_iterable(numbers.values()))))
    axes.set_xlabel(axis)
    axes.grid(visible=True, color=FAINT, linewidth=0.6)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value == int(value) else f"{value:,.1f}")
    axes.xaxis.set_major_formatter(
        lambda value, _: f"{abs(value):,.0f}" if value == int(value) else f"{abs(value):,.1f}"
    )
    if len(numbers) > 1:
        axes.legend(frameon=False, fontsize=8)


def inspection_figure(shown: Inspection) -> Figure:
    """Draw an inspection: the states, the ages, and the depth over time if there were earlier looks."""
    panels = 1 + bool(shown.ages_s) + (len(shown.history) > 1)
    figure, axes = new_figure(3.4 * panels, 2.2, panels)
    rest = iter(axes)
    states = {state: getattr(shown.stats, state) for state in COLOURS}
    bars(next(rest), "items by state", {state: n for state, n in states.items() if n or state != "claimed"}, COLOURS)
    if shown.ages_s:
        bars(next(rest), shown.ages_title, _middle(shown.age_counts))
    if len(shown.history) > 1:
        ago = [one.at - shown.at for one in shown.history]
        there = {state: [getattr(one.stats, state) for one in shown.history] for state in ("available", "leased")}
        lines(next(rest), "depth, as this process saw it", ago, there)
    return figure


def _middle(counts: dict[str, int]) -> dict[str, int]:
    """Return the numbers without the zeros at both ends."""
    there = [at for at, count in enumerate(counts.values()) if count]
    return dict(list(counts.items())[there[0] : there[-1] + 1])


def inspection_html(shown: Inspection) -> str:
    """Return an inspection as a page of HTML. Without matplotlib its charts are text."""
    if find_spec("matplotlib") is None:
        told = "\n\n".join(shown.charts())
        charts = f"<pre>{escape(told)}</pre>"
    else:
        import base64

        picture = base64.b64encode(png(inspection_figure(shown))).decode()
        charts = f'<img alt="items by state, ages and depth" src="data:image/png;base64,{picture}"/>'
        charts += f"<p>{escape(shown.facts)}</p>"
    tables = "".join(one._repr_html_() for one in shown.tables())
    troubles = shown.troubles._repr_html_() if shown.troubles else ""
    return f"<p><b>{escape(shown.title)}</b></p>{troubles}{charts}{tables}"
