"""The kernels of models, side by side: the rows that fusion_counts.py counts, and their table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

SIDES = ("ours", "tvm", "onnxruntime", "inductor", "xla")
TITLES = dict(zip(SIDES, ("tvmfuse", "TVM", "ONNX Runtime", "torch.compile", "XLA"), strict=True))
_CAUSE = 160  # characters of it that are told


@dataclass(frozen=True)
class Row:
    """The kernels of one model.

    Parameters
    ----------
    name : str
        The model's name.
    ours, tvm, onnxruntime, inductor, xla : int, optional
        Kernels of one inference; None where a side does not run the model.
    conversions : int, optional
        Those of ours that only give a tensor another layout.
    gain_us : float, optional
        How much less time our plan is predicted to take than TVM's choice from the same
        candidates, in µs.
    causes : Mapping of str to str
        Why a number is missing, by the side.
    """

    name: str
    ours: int | None = None
    tvm: int | None = None
    onnxruntime: int | None = None
    inductor: int | None = None
    xla: int | None = None
    conversions: int | None = None
    gain_us: float | None = None
    causes: Mapping[str, str] = field(default_factory=dict)

    def is_known(self, side: str) -> bool:
        """Tell whether a side was counted, or could not be."""
        return getattr(self, side) is not None or side in self.causes

    def without(self, sides: Collection[str]) -> Row:
        """Forget what was counted of some sides."""
        causes = {side: cause for side, cause in self.causes.items() if side not in sides}
        return replace(self, **dict.fromkeys(sides), causes=causes)

    @property
    def excess(self) -> str:
        """Say whose count ours is above, and what that buys."""
        above = [
            f"{self.ours - count} above {title}"
            for title, count in (("TVM", self.tvm), ("ONNX Runtime", self.onnxruntime))
            if self.ours is not None and count is not None and self.ours > count
        ]
        if not above:
            return ""
        text = " and ".join(above)
        if self.conversions:
            text += f"; {self.conversions} of ours convert layouts"
        if self.gain_us is not None:
            text += f"; predicted {self.gain_us:.0f} µs faster than TVM's choice"
        return text


def markdown(rows: Sequence[Row]) -> str:
    """Return the table as it stands in README, with why numbers are missing."""
    lines = [
        f"{date.today()}, kernels of one inference on a CPU: loops in one parallel region for us "
        "and TVM; for ONNX Runtime the nodes of its optimised graph that do work, for "
        "torch.compile the calls of generated and of library kernels, for XLA the fusions, loops "
        "and library calls of its program.",
        "",
        f"| model | {' | '.join(TITLES.values())} | where there are more, and why |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        counts = (row.ours, row.tvm, row.onnxruntime, row.inductor, row.xla)
        cells = ["–" if count is None else str(count) for count in counts]
        lines.append(f"| {row.name} | {' | '.join(cells)} | {row.excess} |")
    return "\n".join([*lines, *_missing(rows)]) + "\n"


def _missing(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each cause why a side has no number for some models."""
    by_cause: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for side in SIDES:
            if getattr(row, side) is None:
                cause = row.causes.get(side, "not asked")
                by_cause.setdefault((side, " ".join(cause.split())[:_CAUSE]), []).append(row.name)
    if by_cause:
        yield ""
    for side in SIDES:
        for (of, cause), names in by_cause.items():
            if of == side:
                yield f"- No number of {TITLES[side]} for {', '.join(names)}: {cause}"
