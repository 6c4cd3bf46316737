"""A plan as one web page that needs nothing else: numbers, kernels, reasons, the plan itself."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from tvmfuse.plan import FusionPlan
from tvmfuse.report.explanation import Alone, Explanation
from tvmfuse.report.units import Unit

_LONGEST = 1e-9  # a bar of nothing has no width


def page(
    explanation: Explanation,
    units: Sequence[Unit],
    plan: FusionPlan,
    *,
    name: str,
    target: str,
    device: str,
) -> str:
    """Return the page.

    Parameters
    ----------
    explanation : Explanation
        What becomes of the operators, and why.
    units : sequence of Unit
        The kernels in order.
    plan : FusionPlan
        The plan; it is in the page as JSON.
    name, target : str
        Of the model and of the target.
    device : str
        The machine that the times are predicted for.
    """
    body = "\n".join(
        [
            _header(explanation, name=name, target=target, device=device),
            _patterns(units),
            _section("Kernels", _kernels(units), about="in the order of the model"),
            _section("Not fused", _alone(explanation), about="and why not"),
            _section("Nearly matched", _near(explanation), about="the first condition that failed"),
            _section("Matches not used", _refused(explanation), about="", is_open=False),
        ]
    )
    frame = files("tvmfuse.report").joinpath("page.html").read_text(encoding="utf-8")
    data = json.dumps(plan.to_json()).replace("<", "\\u003c")
    parts = {"title": escape(f"{name} on {target}"), "body": body, "plan": data}
    return re.sub(r"{{(\w+)}}", lambda place: parts[place[1]], frame)


def _header(explanation: Explanation, *, name: str, target: str, device: str) -> str:
    figures = [
        (_us(explanation.fused_us), "a run, predicted"),
        (_us(explanation.unfused_us), "with every operator by itself"),
        (f"{explanation.n_fused_ops} of {explanation.n_ops}", "operators in groups"),
        (str(len(explanation.fused) + len(explanation.alone)), "groups and single operators"),
    ]
    cells = "".join(
        f"<div class='figure'><b>{escape(value)}</b><span>{escape(what)}</span></div>"
        for value, what in figures
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in explanation.notes)
    return (
        f"<header><h1>{escape(name)}</h1><p>{escape(target)} · {escape(device)}</p>"
        f"<div class='figures'>{cells}</div>{notes}</header>"
    )


def _patterns(units: Sequence[Unit]) -> str:
    """Draw where the predicted time goes, by what made the kernels."""
    times: defaultdict[str, float] = defaultdict(float)
    for unit in units:
        times[unit.pattern or "single operators"] += unit.time_us
    total = max(sum(times.values()), _LONGEST)
    parts, keys = [], []
    ordered = sorted(times.items(), key=lambda item: -item[1])
    for number, (pattern, time_us) in enumerate(ordered):
        share = 100 * time_us / total
        colour = f"c{number % 8}"
        title = f"{pattern}: {_us(time_us)}, {share:.0f} %"
        parts.append(f"<i class='{colour}' style='width:{share:.2f}%' title='{escape(title)}'></i>")
        keys.append(f"<span><i class='{colour}'></i>{escape(title)}</span>")
    return (
        "<section><h2>Where the time goes <small>predicted, by pattern</small></h2>"
        f"<div class='stack'>{''.join(parts)}</div>"
        f"<div class='keys'>{''.join(keys)}</div></section>"
    )


def _kernels(units: Sequence[Unit]) -> str:
    longest = max([unit.apart_us for unit in units], default=0.0) or _LONGEST
    rows = []
    for number, unit in enumerate(units):
        reads = " ".join(f"<a href='#k{i}'>{i}</a>" for i in unit.reads)
        badge = f"<em>{escape(unit.pattern)}</em>" if unit.pattern else ""
        fused, apart = (100 * us / longest for us in (unit.time_us, unit.apart_us))
        bars = f"<u style='width:{apart:.1f}%'></u><u class='fused' style='width:{fused:.1f}%'></u>"
        saved = _us(unit.saved_us) if unit.pattern else ""
        rows.append(
            f"<tr id='k{number}'><td class='n'>{number}</td><td>{badge}{escape(unit.title)}</td>"
            f"<td class='nodes'>{escape(', '.join(unit.nodes))}</td><td class='n'>{reads}</td>"
            f"<td class='n'>{_us(unit.time_us)}</td><td class='n'>{saved}</td>"
            f"<td class='bars'>{bars}</td></tr>"
        )
    return _table(("#", "operators", "nodes", "reads", "time", "saved", "together and apart"), rows)


def _alone(explanation: Explanation) -> str:
    return _rows(
        ("operator", "node", "time", "why"),
        ((op.op, op.node, _known_us(op.time_us), _why(op)) for op in explanation.alone),
    )


def _why(op: Alone) -> str:
    return op.reason or ("no pattern met it" + (f"; nearest was {op.near}" if op.near else ""))


def _near(explanation: Explanation) -> str:
    return _rows(
        ("pattern", "operators found", "up to", "why it is not used"),
        (
            (miss.pattern, miss.found, miss.nodes[-1], miss.condition)
            for miss in explanation.nearest
        ),
    )


def _refused(explanation: Explanation) -> str:
    return _rows(
        ("pattern", "operators", "nodes", "together", "apart", "reason"),
        (
            (
                match.pattern,
                " + ".join(match.ops),
                ", ".join(dict.fromkeys(match.nodes)),
                _known_us(match.fused_us),
                _known_us(match.unfused_us),
                match.reason,
            )
            for match in explanation.refused
        ),
    )


def _section(title: str, content: str, *, about: str, is_open: bool = True) -> str:
    is_open_ = " open" if is_open else ""
    return (
        f"<section><details{is_open_}><summary><h2>{title} <small>{about}</small></h2></summary>"
        f"{content}</details></section>"
    )


def _rows(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return _table(
        heads,
        ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows],
    )


def _table(heads: Sequence[str], rows: Sequence[str]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _known_us(time_us: float | None) -> str:
    return "" if time_us is None else _us(time_us)


def _us(time_us: float) -> str:
    if abs(time_us) >= 1e3:
        return f"{time_us / 1e3:.3g} ms"
    return f"{time_us:.3g} µs"
