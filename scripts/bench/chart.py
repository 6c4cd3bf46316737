"""Draw lines over a logarithmic or a plain axis as SVG, without a library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 460, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 34, 44
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#7f7f7f")
_TICKS = 5
_MARKED = 8  # points of a line that are few enough to be marked


@dataclass(frozen=True)
class Line:
    """One line.

    Parameters
    ----------
    name : str
        Stands in the legend; "" where it has no entry of its own.
    points : sequence of (float, float)
        Its points, from left to right.
    colour : int
        Number of its colour.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: int = 0


@dataclass(frozen=True)
class Panel:
    """One diagram.

    Parameters
    ----------
    title, x, y : str
        What is shown, and what the axes mean.
    lines : sequence of Line
        The lines.
    is_log_x, is_log_y : bool
        Whether an axis is logarithmic; its values are above 0 then.
    """

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    is_log_x: bool = False
    is_log_y: bool = False


def svg(panels: Sequence[Panel]) -> str:
    """Return panels side by side as the text of an SVG file."""
    width = _WIDTH * len(panels)
    drawn = [
        f'<g transform="translate({_WIDTH * number} 0)">{_panel(panel)}</g>'
        for number, panel in enumerate(panels)
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" '
        f'font-family="sans-serif" font-size="11">'
        f'<rect width="{width}" height="{_HEIGHT}" fill="white"/>'
    )
    return "\n".join([head, *drawn, "</svg>", ""])


def _panel(panel: Panel) -> str:
    xs = [x for line in panel.lines for x, _ in line.points]
    ys = [y for line in panel.lines for _, y in line.points]
    across = _Scale(min(xs), max(xs), _LEFT, _WIDTH - _RIGHT, panel.is_log_x)
    up = _Scale(min(ys), max(ys), _HEIGHT - _BOTTOM, _TOP, panel.is_log_y)
    parts = [_text(_WIDTH / 2, 16, panel.title, weight="bold")]
    for value in across.ticks():
        at = across.at(value)
        parts.append(f'<path d="M{at:.1f} {_TOP}V{_HEIGHT - _BOTTOM}" stroke="#ddd"/>')
        parts.append(_text(at, _HEIGHT - _BOTTOM + 15, f"{value:.3g}"))
    for value in up.ticks():
        at = up.at(value)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 6, at + 4, f"{value:.3g}", anchor="end"))
    parts.append(_text(_WIDTH / 2, _HEIGHT - 10, panel.x))
    turned = f'transform="rotate(-90 13 {_HEIGHT / 2})"'
    parts.append(_text(13, _HEIGHT / 2, panel.y, extra=turned))
    named = 0
    for line in panel.lines:
        colour = _COLOURS[line.colour % len(_COLOURS)]
        path = "L".join(f"{across.at(x):.1f} {up.at(y):.1f}" for x, y in line.points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if len(line.points) <= _MARKED:
            for x, y in line.points:
                dot = f'cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="2.5"'
                parts.append(f'<circle {dot} fill="{colour}"/>')
        if line.name:
            at = _TOP + 12 + 14 * named
            parts.append(_text(_WIDTH - _RIGHT - 6, at, line.name, anchor="end", fill=colour))
            named += 1
    return "".join(parts)


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    is_log: bool

    def at(self, value: float) -> float:
        """Return where a value lies."""
        low, high, here = (self._place(each) for each in (self.low, self.high, value))
        return self.start + (self.end - self.start) * (here - low) / ((high - low) or 1.0)

    def ticks(self) -> list[float]:
        """Return some values between the ends, both included."""
        low, high = self._place(self.low), self._place(self.high)
        steps = [low + (high - low) * number / (_TICKS - 1) for number in range(_TICKS)]
        return [math.exp(step) if self.is_log else step for step in steps]

    def _place(self, value: float) -> float:
        return math.log(value) if self.is_log else value


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "middle",
    weight: str = "normal",
    fill: str = "#222",
    extra: str = "",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="{fill}" {extra}>{escape(text)}</text>'
    )
