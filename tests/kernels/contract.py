"""The contract of every kernel family: one kernel, by the family's own schedule, right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from tvmfuse import testing
from tvmfuse._tvm import registers, te, tvm
from tvmfuse.kernels import approx, families
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.layout.forms import PLAIN, Blocked, Form
from tvmfuse.targets import resolve

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
Tensor = Any  # te.Tensor

# Whatever vectors a schedule counts on, LLVM breaks them into those of this machine.
MACHINES: Mapping[str, Machine] = {
    "4 lanes": Machine(lanes=4, registers=32, cores=2, l2_bytes=1 << 19),
    "8 lanes": Machine(lanes=8, registers=16, cores=4, l2_bytes=1 << 18),
    "16 lanes": Machine(lanes=16, registers=32, cores=2, l2_bytes=2 << 20),
}


@dataclass(frozen=True)
class Case:
    """One kernel and what it must compute.

    Parameters
    ----------
    name : str
        What is special about it.
    shapes : tuple of tuple of int
        Plain shapes of the operands.
    emit : callable
        ``emit(machine, *tensors)`` returns the result as a TE tensor.
    reference : callable
        Returns the result of plain float64 arrays.
    forms : callable, optional
        ``forms(machine)`` returns how each operand lies in memory; plain where not given.
    is_blocked : bool
        Whether the result lies in channel blocks.
    """

    name: str
    shapes: tuple[Shape, ...]
    emit: Callable[..., Tensor]
    reference: Callable[..., Array]
    forms: Callable[[Machine], Sequence[Form]] | None = None
    is_blocked: bool = False


@dataclass(frozen=True)
class Epilogue:
    """What a kernel computes from the result before it writes it.

    Parameters
    ----------
    shapes : callable
        ``shapes(result)`` returns the plain shapes of its operands.
    emit : callable
        ``emit(result, *operands)`` returns the new result.
    reference : callable
        The same in NumPy.
    """

    shapes: Callable[[Shape], tuple[Shape, ...]]
    emit: Callable[..., Tensor]
    reference: Callable[..., Array]


def check(case: Case, machine: Machine, family: str, *, epilogue: Epilogue | None = None) -> None:
    """Emit, schedule, compile and run a kernel, and compare it with NumPy.

    Raises
    ------
    AssertionError
        Another family scheduled it, it is wrong, or it wrote outside its result.
    """
    operands = [
        testing.random_array(shape, "float32", seed=i) for i, shape in enumerate(case.shapes)
    ]
    expected = case.reference(*(operand.astype(np.float64) for operand in operands))
    forms: list[Form] = list(case.forms(machine)) if case.forms else [PLAIN] * len(operands)
    out_form = Blocked(machine.block) if case.is_blocked else PLAIN
    more: list[Array] = []
    if epilogue is not None:
        shapes = epilogue.shapes(expected.shape)
        more = [testing.random_array(s, "float32", seed=50 + i) for i, s in enumerate(shapes)]
        forms += [out_form] * len(more)
        expected = epilogue.reference(expected, *(a.astype(np.float64) for a in more))
    arrays = [f.arrange(a) for f, a in zip(forms, [*operands, *more], strict=True)]
    tensors = [te.placeholder(a.shape, name=f"x{i}") for i, a in enumerate(arrays)]
    result = case.emit(machine, *tensors[: len(operands)])
    if epilogue is not None:
        result = epilogue.emit(result, *tensors[len(operands) :])
    found = run([*tensors, result], arrays, machine, family=family)
    testing.assert_close(_plain(found, expected.shape) if case.is_blocked else found, expected)


def run(
    tensors: Sequence[Tensor], arrays: Sequence[Array], machine: Machine, *, family: str
) -> Array:
    """Run the kernel that computes the last of ``tensors`` from the others."""
    scheduled = families.schedule(te.create_prim_func(list(tensors)), machine)
    assert (scheduled.family, scheduled.note) == (family, "")
    function = scheduled.function.with_attr("global_symbol", "main")
    module = tvm.IRModule({"main": function})
    library = tvm.compile(module, target=host(), tir_pipeline=registers.PIPELINE)
    shape = tuple(int(extent) for extent in tensors[-1].shape)
    # One element more than the result, to see whether something is written behind it.
    memory = np.full(int(np.prod(shape)) + 1, 77.0, "float32")
    out = tvm.runtime.tensor(memory)
    view = out._create_view(shape)
    library["main"](*(tvm.runtime.tensor(array) for array in arrays), view)
    *values, guard = out.numpy()
    assert guard == 77.0, "the kernel wrote behind its result"
    return np.array(values, "float32").reshape(shape)


@cache
def host() -> Any:
    """Return the TVM target of this machine."""
    return resolve("cpu").tvm()


def stretched(x: Tensor, index: Sequence[Any]) -> Any:
    """Return the element of ``x`` at ``index``, which an extent of one stretches."""
    return x[tuple(0 if int(d) == 1 else i for d, i in zip(x.shape, index, strict=True))]


def along(axis: int) -> Callable[[Shape], tuple[Shape, ...]]:
    """Return shapes of a vector along ``axis`` of a result, and of the result itself."""

    def shapes(result: Shape) -> tuple[Shape, ...]:
        place = axis % len(result)
        return tuple(d if i == place else 1 for i, d in enumerate(result)), result

    return shapes


def scaled_residual_relu(axis: int) -> Epilogue:
    """Scale by a vector along ``axis``, add a tensor, and cut off below zero."""

    def emit(result: Tensor, scale: Tensor, residual: Tensor) -> Tensor:
        return te.compute(
            result.shape,
            lambda *i: approx.relu(result[i] * stretched(scale, i) + residual[i]),
            name="epilogue",
        )

    def reference(result: Array, scale: Array, residual: Array) -> Array:
        return np.maximum(result * scale + residual, 0)

    return Epilogue(along(axis), emit, reference)


def _plain(blocked: Array, shape: Shape) -> Array:
    n, c, h, w = shape
    return blocked.transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w)[:, :c]
