"""Help for tests of patterns and kernels, ours and third parties'.

:func:`check_pattern` is the whole contract of a pattern in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tvmfuse._tvm import relax, tvm
from tvmfuse.passes.collect import collect
from tvmfuse.passes.partition import partition
from tvmfuse.patterns.base import Case, Generator, Operand, Pattern
from tvmfuse.patterns.registry import Registry
from tvmfuse.patterns.trace import Builder, Graph, operand_names
from tvmfuse.plan import Candidate, FusionPlan, Group, RunTime
from tvmfuse.tolerance import TOLERANCES

Array = npt.NDArray[Any]
CompileModule = Callable[[Any], Any]
"""Takes a partitioned module, returns a Relax executable for this machine's CPU."""


def assert_close(actual: Array, expected: Array, *, dtype: str | None = None) -> None:
    """Assert that ``actual`` is ``expected`` within the tolerance of a dtype.

    Parameters
    ----------
    actual, expected : ndarray
        Of one shape; NaN must be in the same places.
    dtype : str, optional
        The dtype computed in; default that of ``actual``.

    Raises
    ------
    AssertionError
        Shapes differ, or the largest difference is beyond the tolerance.
    """
    tolerance = TOLERANCES.get(dtype or str(actual.dtype))
    assert actual.shape == expected.shape, f"shape {actual.shape} instead of {expected.shape}"
    if tolerance is None:
        np.testing.assert_array_equal(actual, expected)
        return
    scale = np.abs(expected[np.isfinite(expected)]).max(initial=1e-30)
    found, exact, allowed = actual.astype(float), expected.astype(float), tolerance.kernel * scale
    wrong = ~np.isclose(found, exact, rtol=0, atol=allowed, equal_nan=True)
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise AssertionError(
            f"{np.count_nonzero(wrong)} of {wrong.size} values are further off than {allowed:.3g}, "
            f"the first {found[place]:.6g} at {place} instead of {exact[place]:.6g}"
        )


def random_array(
    shape: Sequence[int],
    dtype: str,
    *,
    seed: int = 0,
    spread: float = 1.0,
    bounds: tuple[int, int] = (-8, 8),
) -> Array:
    """Return normally distributed values, the same ones for the same seed.

    Integers lie between ``bounds``, the upper one left out; booleans are fair.
    """
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if "int" in dtype:
        low = max(bounds[0], 0) if dtype.startswith("u") else bounds[0]
        return rng.integers(low, bounds[1], shape).astype(dtype)
    return (spread * rng.standard_normal(shape)).astype(dtype)


def build(case: Case, graph: Graph, dtype: str) -> tuple[Any, dict[str, Array]]:
    """Build the module of a case and a value for each of its operands.

    Parameters
    ----------
    case : Case
        Shapes and options.
    graph : callable
        The graph to build, ``graph(op, x, …, *, option, …)``.
    dtype : str
        Type of every operand that has none of its own.

    Returns
    -------
    tuple of (IRModule, dict of str to ndarray)
        A module with the function "main", whose inputs are the operands that are not
        constant, and the values of all operands that the graph may use.
    """
    names = [name for name in operand_names(graph) if name in case.operands]
    values = {
        name: _random_operand(case.operands[name], dtype, seed=seed)
        for seed, name in enumerate(names)
    }
    inputs = {n: _input(n, case.operands[n], dtype) for n in _input_names(case, names)}
    constants = {n: relax.const(values[n], str(values[n].dtype)) for n in names if n not in inputs}
    block = relax.BlockBuilder()
    with block.function("main", list(inputs.values())):
        with block.dataflow():
            operands = {**dict.fromkeys(operand_names(graph)), **inputs, **constants}
            results = graph(Builder(block, dtype), **operands, **case.options)
            if not isinstance(results, tuple):
                results = (results,)
            outputs = [block.emit_output(result) for result in results]
        block.emit_func_output(outputs[0] if len(outputs) == 1 else relax.Tuple(outputs))
    return relax.transform.CanonicalizeBindings()(block.get()), values


def compile_plainly(mod: Any) -> Any:
    """Compile a partitioned module by TVM alone, group by group, without schedules."""
    target = tvm.target.Target("llvm")
    merged = tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseTIR(),
        ]
    )(mod)
    pipeline = relax.get_default_pipeline(target)
    return tvm.compile(merged, target, relax_pipeline=pipeline)


def run(executable: Any, inputs: Sequence[Array]) -> list[Array]:
    """Run "main" on the CPU and return its outputs."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    outputs = machine["main"](*[tvm.runtime.tensor(array) for array in inputs])
    if hasattr(outputs, "numpy"):
        return [outputs.numpy()]
    return [output.numpy() for output in outputs]


def check_pattern(
    pattern: Generator,
    *,
    dtypes: Sequence[str] = ("float32",),
    compile_module: CompileModule = compile_plainly,
) -> None:
    """Check a pattern against its contract.

    Each case must match as a whole, exactly once, and the fused module must agree with
    NumPy in float64; each near miss must be refused as a whole.

    Raises
    ------
    AssertionError
        The pattern breaks its contract; the message names the case.
    """
    for case in pattern.cases:
        for dtype in dtypes:
            check_case(pattern, case, dtype, compile_module=compile_module)
    for case in pattern.near_misses:
        check_near_miss(pattern, case)


def check_case(
    pattern: Generator, case: Case, dtype: str, *, compile_module: CompileModule = compile_plainly
) -> None:
    """Check one case in one dtype: found once, and right when fused and when not."""
    mod, values = build(case, graph_of(pattern, case), dtype)
    whole = covers_of_everything(pattern, mod)
    assert len(whole) == 1, f"{pattern.name}, {case.name}: matches as a whole {len(whole)} times"
    groups = tuple(Group(candidate, RunTime(1.0, 2.0)) for candidate in whole[0])
    fused = partition(mod, FusionPlan(groups))
    for module in (fused, partition(mod, FusionPlan())):
        check_numbers(pattern, case, values, executable=compile_module(module))


def check_numbers(
    pattern: Generator, case: Case, values: Mapping[str, Array], *, executable: Any
) -> None:
    """Check that the module of a case, compiled by any means, agrees with NumPy.

    Parameters
    ----------
    pattern, case
        What was built.
    values : Mapping of str to ndarray
        The operands, as :func:`build` returned them.
    executable : relax executable
        For this machine's CPU.
    """
    outputs = run(executable, [values[name] for name in _input_names(case, list(values))])
    exact = _exact(pattern, case, values)
    assert len(outputs) == len(exact), f"{pattern.name}, {case.name}: {len(outputs)} outputs"
    for output, expected in zip(outputs, exact, strict=True):
        assert_close(output, expected)


def check_near_miss(pattern: Generator, case: Case) -> None:
    """Check that a pattern does not match a graph as a whole."""
    mod, _ = build(case, graph_of(pattern, case), "float32")
    whole = covers_of_everything(pattern, mod)
    assert not whole, f"{pattern.name} must refuse: {case.name}; it matched {whole[0][0].label}"


def graph_of(pattern: Generator, case: Case) -> Graph:
    """Return the graph of a case: its own, else its pattern's."""
    if case.graph is not None:
        return case.graph
    assert isinstance(pattern, Pattern), f"{pattern.name}: case {case.name!r} needs a graph"
    return pattern.graph


def covers_of_everything(pattern: Generator, mod: Any) -> list[tuple[Candidate, ...]]:
    """Return what takes the place of the whole function, each by the candidates of ``pattern``.

    That is one candidate, or several of which each computes once more what they share.
    """
    collected = collect(mod, Registry((pattern,)))
    graph = collected.graphs["main"]
    everything = list(range(len(graph.deps)))
    covers: list[tuple[Candidate, ...]] = [
        (c,) for c in collected.candidates if list(c.provides) == everything
    ]
    copying = tuple(c for c in collected.candidates if c.recomputes)
    shared = {binding for c in copying for binding in c.recomputes}
    provided = [binding for c in copying for binding in c.provides]
    is_inside = not shared.intersection(graph.results)  # a result is nobody's to compute again
    is_cover = is_inside and sorted([*provided, *shared]) == everything
    return [*covers, copying] if is_cover else covers


def _exact(pattern: Generator, case: Case, values: Mapping[str, Array]) -> list[Array]:
    reference = case.reference
    if reference is None:
        assert isinstance(pattern, Pattern), f"{pattern.name}: {case.name!r} needs a reference"
        reference = pattern.reference
    names = operand_names(graph_of(pattern, case))
    operands = {n: _widened(values[n]) if n in values else None for n in names}
    result = reference(**operands, **case.options)
    return list(result) if isinstance(result, tuple) else [result]


def _widened(array: Array) -> Array:
    """Return floats in float64, and integers and booleans as they are."""
    return array if array.dtype.kind in "iub" else array.astype(np.float64)


def _random_operand(operand: Operand, dtype: str, *, seed: int) -> Array:
    dtype = operand.dtype or dtype
    spread, bounds = operand.spread, operand.bounds
    return random_array(operand.shape, dtype, seed=seed, spread=spread, bounds=bounds)


def _input_names(case: Case, names: Sequence[str]) -> Iterator[str]:
    return (name for name in names if not case.operands[name].is_constant)


def _input(name: str, operand: Operand, dtype: str) -> Any:
    return relax.Var(name, relax.TensorType(operand.shape, operand.dtype or dtype))
