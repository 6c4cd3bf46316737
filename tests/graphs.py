"""Small Relax modules, compiled by the whole pipeline for a machine of one's choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tvmfuse import _pipeline
from tvmfuse._pipeline import Options
from tvmfuse._tvm import relax
from tvmfuse.compiled import Compiled
from tvmfuse.frontend import import_model
from tvmfuse.kernels.tiling import Machine
from tvmfuse.runtime import Session
from tvmfuse.targets import Target, resolve

Array = np.ndarray[Any, Any]

UNFUSED = Options(fuse=False)


def module(graph: Callable[..., Any], *inputs: tuple[int, ...] | Array) -> Any:
    """Build a module from a function of Relax variables; what is used twice is computed once.

    Parameters
    ----------
    graph : callable
        Returns one Relax expression, or a list of several results.
    *inputs : tuple of int or ndarray
        For each operand, its shape (float32), or an array of its shape and dtype.
    """
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", _type(given)) for i, given in enumerate(inputs)]
    with builder.function("main", params):
        with builder.dataflow():
            results = graph(*params)
            several = isinstance(results, list)
            outputs = [builder.emit_output(r) for r in (results if several else [results])]
        builder.emit_func_output(relax.Tuple(outputs) if several else outputs[0])
    shared = relax.transform.EliminateCommonSubexpr()(builder.get())
    return relax.transform.CanonicalizeBindings()(shared)


def on(machine: Machine) -> Target:
    """Return this machine's CPU with the vectors and cores of ``machine``."""
    host = resolve("cpu")
    return replace(
        host,
        vector_bytes=4 * machine.lanes,
        vector_registers=machine.registers,
        peaks=replace(
            host.peaks,
            cores=machine.cores,
            cache_bytes={**host.peaks.cache_bytes, "l2": machine.l2_bytes},
        ),
    )


def compiled(mod: Any, *, target: Target | None = None, options: Options | None = None) -> Compiled:
    """Compile a module by the whole pipeline."""
    return _pipeline.build(import_model(mod), target or resolve("cpu"), options=options)


def run(model: Compiled | Any, *arrays: Array, **options: Any) -> list[Array]:
    """Run a compiled model, or compile a module first, and return its outputs."""
    if not isinstance(model, Compiled):
        model = compiled(model, **options)
    outputs = Session.of(model)(*arrays)
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def _type(given: Sequence[int] | Array) -> Any:
    if isinstance(given, np.ndarray | np.generic):
        return relax.TensorType(given.shape, given.dtype.name)
    return relax.TensorType(given, "float32")
