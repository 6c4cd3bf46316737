"""The stages as one pass of TVM."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from tvmfuse._pipeline.options import Options, RecordsOf
from tvmfuse._pipeline.order import prepare
from tvmfuse._tvm import tvm
from tvmfuse.calibrate import calibrated
from tvmfuse.passes import codegen
from tvmfuse.targets import Target


def pipeline(
    target: Target | None = None,
    *,
    options: Options | None = None,
    records: RecordsOf | None = None,
) -> Any:
    """Return the stages as one TVM pass, for ``tvm.compile(mod, relax_pipeline=...)``.

    Parameters
    ----------
    target : Target, optional
        The device; where not given, TVM's current target tells.
    options : Options, optional
        What to fuse.
    records : callable, optional
        Opens the tuning records of a device, in place of those of the options.

    Returns
    -------
    tvm.transform.Pass
        Relax operators in, kernels and runtime calls out; weights stay constants.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvmfuse")
    def run(mod: Any, _context: Any) -> Any:
        device = target or _current_target()
        with records(device) if records is not None else nullcontext() as found:
            given = options or Options()
            prepared = prepare(mod, device, options=replace(given, records=found or given.records))
        return codegen.finish(prepared.module, device.tvm())

    return run


def _current_target() -> Target:
    from tvmfuse.targets.registry import from_tvm

    current = tvm.target.Target.current(allow_none=True)
    return calibrated(from_tvm(current))
