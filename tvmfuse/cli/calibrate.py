"""``tvmfuse calibrate``: measure what this machine can do at best."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tvmfuse.cli import console
from tvmfuse.cli.options import AsJson, TargetName

if TYPE_CHECKING:
    from tvmfuse.plan import Peaks


def calibrate_device(*, target: TargetName = "cpu", as_json: AsJson = False) -> None:
    """Measure peak speed, bandwidth and the cost of a kernel; the cost model uses them."""
    from tvmfuse import targets
    from tvmfuse.calibrate import calibrate

    device = targets.resolve(target)
    with console.stages() as begin:
        peaks = calibrate(device, progress=begin)
    if as_json:
        console.print_json("calibrate", {"target": device.spec, "peaks": asdict(peaks)})
    else:
        _print(peaks, target=device.spec)


def _print(peaks: Peaks, *, target: str) -> None:
    rows = [
        ("float32 arithmetic", f"{peaks.gflops:.0f} GFLOP/s", f"{peaks.cores} cores"),
        *(
            (f"read from {level}", f"{rate:.0f} GB/s", _size(peaks.cache_bytes.get(level)))
            for level, rate in peaks.bandwidth_gbps.items()
        ),
        ("start of a kernel", console.duration(peaks.dispatch_us), ""),
    ]
    console.print_table(f"Peaks of {target}, {peaks.source}", ("", ">", ""), rows)


def _size(n_bytes: int | None) -> str:
    return "" if n_bytes is None else f"{n_bytes / 2**10:.0f} KiB"
