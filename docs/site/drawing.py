"""What pictures are made of: boxes, arrows and texts of one palette, in SVG that follows the reader's colour scheme."""

from __future__ import annotations

from html import escape

PALETTE = {
    "paper": ("#fefefe", "#131416"),
    "ink": ("#1b1f24", "#e6e8eb"),
    "faint": ("#57606b", "#a3abb5"),
    "line": ("#6b7581", "#8f99a5"),
    "soft": ("#eef1f4", "#23272c"),
    "accent": ("#0b63c5", "#7db7ff"),
    "accent-soft": ("#dcebfc", "#16304f"),
    "warm": ("#a8480a", "#ffb27a"),
    "warm-soft": ("#fdeadb", "#472812"),
}
"""Each colour in light and in dark."""


def _scheme(number: int) -> str:
    return ";".join(f"--{name}:{both[number]}" for name, both in PALETTE.items())


STYLE = f":root{{{_scheme(0)}}}@media (prefers-color-scheme:dark){{:root{{{_scheme(1)}}}}}"


class Picture:
    """A picture. Places and sizes are numbers of pixels, from the top left.

    >>> picture = Picture("One box", 120, 60)
    >>> picture.box(10, 10, 100, 40, "a box")
    >>> "a box" in picture.svg()
    True
    """

    def __init__(self, title: str, width: int, height: int) -> None:
        self.title, self.width, self.height = title, width, height
        self._parts: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, text: str = "", kind: str = "soft") -> None:
        """Draw a box with its text in the middle. `kind` is a colour that has a soft form, or "soft" or "paper"."""
        fill = kind if kind in ("soft", "paper") else f"{kind}-soft"
        stroke = "line" if kind in ("soft", "paper") else kind
        self._parts.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5"'
            f' style="fill:var(--{fill});stroke:var(--{stroke});stroke-width:1.3"/>'
        )
        lines = text.split("\n") if text else []
        top = y + height / 2 - (len(lines) - 1) * 9
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + number * 18, line, anchor="middle", middle=True)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: str = "start",
        colour: str = "ink",
        bold: bool = False,
        mono: bool = False,
        size: int = 14,
        middle: bool = False,
    ) -> None:
        family = "ui-monospace,monospace" if mono else "system-ui,sans-serif"
        weight = ";font-weight:600" if bold else ""
        base = ' dominant-baseline="central"' if middle else ""
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{base}'
            f' style="font:{size}px {family};fill:var(--{colour}){weight}" xml:space="preserve">{escape(text)}</text>'
        )

    def arrow(
        self,
        *points: tuple[float, float],
        colour: str = "line",
        dashed: bool = False,
        label: str = "",
        below: bool = False,
    ) -> None:
        """Draw a line with a head through points, with a label at its middle."""
        path = " ".join(f"{'M' if number == 0 else 'L'}{x:g},{y:g}" for number, (x, y) in enumerate(points))
        dash = ";stroke-dasharray:5 4" if dashed else ""
        self._parts.append(
            f'<path d="{path}" marker-end="url(#head-{colour})"'
            f' style="fill:none;stroke:var(--{colour});stroke-width:1.6{dash}"/>'
        )
        if label:
            (x1, y1), (x2, y2) = points[0], points[-1]
            self.text(
                (x1 + x2) / 2, (y1 + y2) / 2 + (18 if below else -7), label, anchor="middle", colour="faint", size=13
            )

    def svg(self) -> str:
        heads = "".join(
            f'<marker id="head-{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7"'
            f' orient="auto">'
            f'<path d="M0,0 L10,5 L0,10 z" style="fill:var(--{name})"/></marker>'
            for name in ("line", "accent", "warm")
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}"'
            f' height="{self.height}" role="img"><title>{escape(self.title)}</title><style>{STYLE}</style>'
            f"<defs>{heads}</defs>\n" + "\n".join(self._parts) + "\n</svg>\n"
        )
