"""Charts as SVG, legible on a light page and on a dark one: what is ink takes the reader's colour scheme."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from tests.benchmarks.samples import Figures

INK = "#010203"
FAINT = "#040506"
"""Stand-ins, which no reader sees: each is replaced by a colour that depends on the scheme."""
SCHEMES = {INK: ("ink", "#1f2328", "#e6edf3"), FAINT: ("faint", "#d0d7de", "#3d444d")}
COLOURS = ("#2f81f7", "#e8710a", "#2da44e", "#bf6bd6", "#d4a017", "#e5534b", "#1b9aaa", "#8b949e")
"""Of middling lightness, so that each can be told from white and from black."""
MARKS = "osD^vPX*"
STYLE: dict[Any, Any] = {
    "axes.edgecolor": FAINT,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "fdbqueue",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
FAR_APART = 20
"""Numbers of which the largest is so many times the smallest stand on a logarithmic axis."""
LABELS_APART = 0.06
"""How far labels stand from each other at least, as a share of the axis."""


def bars(title: str, found: Sequence[Figures]) -> str:
    """Return a chart of the rates: a bar for the median, a line from the lowest round to the highest."""
    with rc_context(STYLE):
        figure = Figure(figsize=(8, 0.9 + 0.42 * len(found)), layout="constrained")
        axes = figure.subplots()
        axes.set_title(title, loc="left", fontsize=10, wrap=True)
        logarithmic = max(row.rate for row in found) > FAR_APART * min(row.rate for row in found)
        axes.set_xscale("log" if logarithmic else "linear")
        places = range(len(found))
        spread = [[row.rate - row.lowest for row in found], [row.highest - row.rate for row in found]]
        colours = [COLOURS[place % len(COLOURS)] for place in places]
        axes.barh(places, [row.rate for row in found], height=0.55, color=colours, zorder=2)
        axes.errorbar(
            [row.rate for row in found],
            places,
            xerr=spread,
            fmt="none",
            ecolor=INK,
            elinewidth=0.8,
            capsize=2,
            zorder=3,
        )
        for place, row in enumerate(found):
            label = _short(row.rate) + ("" if row.ratio is None or place == 0 else f" ({row.ratio:.2f})")
            axes.annotate(label, (row.highest, place), (6, 0), textcoords="offset points", va="center")
        axes.set_yticks(places, [row.name for row in found])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.margins(x=0.18)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        axes.minorticks_off()
        axes.set_xlabel(
            "items per second" + (", logarithmic" if logarithmic else "") + "; in brackets the ratio to the first"
        )
        return _svg(figure)


def lines(title: str, found: Sequence[Figures], axis: str) -> str:
    """Return a chart of the rate, of P99 and, where there are any, of conflicts, along an axis."""
    panels: list[tuple[str, str, Callable[[Figures], float | None]]] = [
        ("items per second", "log", lambda row: row.rate),
        ("P99 of a call, ms", "log", lambda row: row.slow_call and row.slow_call * 1e3),
        ("conflicts per item", "linear", lambda row: row.conflicts),
    ]
    panels = [panel for panel in panels if any(panel[2](row) for row in found)]
    points = sorted({row.at for row in found if row.at is not None})
    with rc_context(STYLE):
        figure = Figure(figsize=(4.2 * len(panels) + 0.8, 3.7), layout="constrained")
        figure.suptitle(title, x=0.01, ha="left", fontsize=10, color=INK)
        for axes, (label, scale, value) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            _panel(axes, found, value)
            axes.set_title(label, loc="left", fontsize=9)
            axes.set_yscale(scale)
            axes.set_xscale("log" if points[-1] > FAR_APART * points[0] else "linear")
            axes.set_xticks(points)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
            if scale == "log":
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
            axes.minorticks_off()
            axes.set_xlabel(axis)
            _name_lines(axes, found, value)
        return _svg(figure)


def _panel(axes: Any, found: Sequence[Figures], value: Callable[[Figures], float | None]) -> None:
    for place, name in enumerate(_names(found)):
        rows = [row for row in found if row.name == name]
        axes.plot(
            [row.at for row in rows],
            [value(row) for row in rows],
            color=COLOURS[place % len(COLOURS)],
            marker=MARKS[place % len(MARKS)],
            markersize=4,
            linewidth=2.2 if place == 0 else 1.4,
            zorder=3,
        )


def _name_lines(axes: Any, found: Sequence[Figures], value: Callable[[Figures], float | None]) -> None:
    """Write each line's name at its end, moved away from where it would stand on another's."""
    axes.figure.canvas.draw()
    ends: list[tuple[float, int, str]] = []
    for place, name in enumerate(_names(found)):
        last = [value(row) for row in found if row.name == name][-1]
        if last is not None:
            at = axes.transAxes.inverted().transform(axes.transData.transform((axes.get_xlim()[1], last)))
            ends.append((float(at[1]), place, name))
    ends.sort()
    heights: list[float] = []
    for height, _, _ in ends:
        heights.append(max(height, heights[-1] + LABELS_APART) if heights else height)
    ceiling = 1 + LABELS_APART
    for at in reversed(range(len(heights))):
        ceiling = heights[at] = min(heights[at], ceiling - LABELS_APART)
    for height, (_, place, name) in zip(heights, ends, strict=True):
        colour = COLOURS[place % len(COLOURS)]
        axes.text(1.02, height, name, color=colour, va="center", fontsize=8, transform=axes.transAxes)


def _names(found: Sequence[Figures]) -> list[str]:
    return list(dict.fromkeys(row.name for row in found))


def _short(value: float) -> str:
    """Return a number in few signs."""
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _svg(figure: Figure) -> str:
    FigureCanvasSVG(figure)
    file = io.StringIO()
    figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    drawing = file.getvalue()
    light = dark = ""
    for stand_in, (name, on_light, on_dark) in SCHEMES.items():
        drawing = drawing.replace(stand_in, f"var(--{name}, {on_light})")
        light += f"--{name}: {on_light}; "
        dark += f"--{name}: {on_dark}; "
    style = f"<style>svg {{ {light}}} @media (prefers-color-scheme: dark) {{ svg {{ {dark}}} }}</style>"
    # Places to two digits behind the point are finer than any screen; what is written is left as it is.
    drawing = re.sub(r'="[^"]*"', lambda places: re.sub(r"(\d\.\d{2})\d+", r"\1", places.group()), drawing)
    return re.sub(r"(<svg[^>]*>)", lambda found: found.group(1) + style, drawing, count=1)
