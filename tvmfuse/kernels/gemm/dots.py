"""Instructions that multiply small integers and add the products up in int32 lanes.

Each takes a *word* of every row (four bytes: two or four neighbouring operands of the
sum) and a vector of words of the columns. LLVM does not find them in plain loops, so a
schedule puts them there by name, as a tensor intrinsic of TVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from tvmfuse._tvm import s_tir, tvm
from tvmfuse.kernels import blocks, tiling
from tvmfuse.kernels.blocks import Block, Loop, Schedule

DOT = "tvmfuse.dot"


@dataclass(frozen=True)
class Dot:
    """One instruction.

    Parameters
    ----------
    lanes : int
        Int32 sums in one vector.
    group : int
        Products that each sum takes at once.
    row_dtype, column_dtype : str
        Types of the operands; a word holds ``group`` of them.
    intrinsic : str
        LLVM's name.
    adds : bool
        Whether it adds to sums; else it returns the products' sum alone.
    """

    lanes: int
    group: int
    row_dtype: str
    column_dtype: str
    intrinsic: str
    adds: bool = True


DOTS: Mapping[str, Dot] = MappingProxyType(
    {
        "vpdpbusd512": Dot(16, 4, "uint8", "int8", "llvm.x86.avx512.vpdpbusd.512"),
        "vpdpbusd256": Dot(8, 4, "uint8", "int8", "llvm.x86.avx512.vpdpbusd.256"),
        "sdot": Dot(4, 4, "int8", "int8", "llvm.aarch64.neon.sdot.v4i32.v16i8"),
        # Exact for every 8-bit operand: pairs of int16 never leave int32, where the pairs
        # of vpmaddubsw may leave int16.
        "pmaddwd512": Dot(16, 2, "int16", "int16", "llvm.x86.avx512.pmaddw.d.512", adds=False),
        "pmaddwd256": Dot(8, 2, "int16", "int16", "llvm.x86.avx2.pmadd.wd", adds=False),
    }
)

# The first whose features are all there.
_BY_FEATURES = (
    ("vpdpbusd512", {"avx512f", "avx512vnni"}),
    ("pmaddwd512", {"avx512bw"}),
    ("vpdpbusd256", {"avxvnni"}),
    ("pmaddwd256", {"avx2"}),
    ("sdot", {"dotprod"}),
)
_FOR_WIDE = {"vpdpbusd512": "pmaddwd512", "vpdpbusd256": "pmaddwd256"}


def best(features: Set[str]) -> str:
    """Return the name of the best instruction of a CPU for 8-bit operands, or ""."""
    return next((name for name, needed in _BY_FEATURES if needed <= features), "")


def for_columns(name: str, dtype: str) -> str:
    """Return the instruction to use beside ``name`` for columns of ``dtype``, or ""."""
    if not name or DOTS[name].column_dtype == dtype or dtype == "int8":
        return name
    return _FOR_WIDE.get(name, "")


@cache
def registered(name: str) -> str:
    """Make an instruction known to TVM; return the name by which a schedule asks for it."""
    dot = DOTS[name]
    intrinsic = f"tvmfuse.{name}"
    what, how = (
        tvm.script.from_source(_source(dot, body)) for body in (_definition(dot), _call(dot))
    )
    s_tir.TensorIntrin.register(intrinsic, what, how, override=True)
    return intrinsic


def of(sch: Schedule, block: Block) -> str:
    """Return the instruction that a family emitted ``block`` for, or ""."""
    return str(sch.get(block).annotations.get(DOT, ""))


def unrollings(steps: int, body: int, dot: str) -> tuple[int, ...]:
    """Return how far a sum by ``dot`` may be unrolled, see :func:`tiling.unrollings`.

    Where the instruction does not add, LLVM adds up the products of several steps first,
    in registers that it does not have.
    """
    is_whole = not dot or DOTS[dot].adds
    return tiling.unrollings(steps, body) if is_whole else (1,)


def apply(sch: Schedule, anchor: Block, first: Loop, columns: Loop, dot: str) -> None:
    """Add up words of a sum by one instruction for each vector of columns.

    Parameters
    ----------
    sch : Schedule
        The schedule.
    anchor : Block
        The product; its innermost loops are the columns and the parts of a word.
    first : Loop
        The outermost loop of the sum.
    columns : Loop
        The columns, whole vectors.
    dot : str
        The instruction.
    """
    vectors, lanes = blocks.split(sch, columns, [None, DOTS[dot].lanes])
    sch.unroll(vectors)
    sch.set_scope(anchor, 0, "local")
    init = sch.decompose_reduction(anchor, first)
    sch.vectorize(sch.get_loops(init)[-1])
    sch.tensorize(lanes, registered(dot))


def _definition(dot: Dot) -> str:
    return f"""
        for i in range({dot.lanes}):
            for k in range({dot.group}):
                with T.sblock("update"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    C[vi] = C[vi] + T.cast(A[vk], "int32") * T.cast(B[vi, vk], "int32")
"""


def _call(dot: Dot) -> str:
    size, sums = dot.lanes * dot.group, f"int32x{dot.lanes}"
    word = f'T.reinterpret("int32", A.vload([0], dtype="{dot.row_dtype}x{dot.group}"))'
    rows = f'T.reinterpret("{dot.row_dtype}x{size}", T.broadcast({word}, {dot.lanes}))'
    columns = f'B.vload([0, 0], dtype="{dot.column_dtype}x{size}")'
    before = f'C.vload([0], dtype="{sums}")'
    operands = f"{before}, {rows}, {columns}" if dot.adds else f"{rows}, {columns}"
    call = f'T.call_llvm_pure_intrin("{sums}", "{dot.intrinsic}", {operands})'
    return f"""
        C[T.ramp(T.int32(0), 1, {dot.lanes})] = {call if dot.adds else f"{before} + {call}"}
"""


def _source(dot: Dot, body: str) -> str:
    def buffer(shape: str, dtype: str, scope: str = "global") -> str:
        return f'T.Buffer(({shape}), "{dtype}", offset_factor=1, scope="{scope}")'

    return f"""
@T.prim_func(s_tir=True)
def intrinsic(
    A: {buffer(f"{dot.group},", dot.row_dtype)},
    B: {buffer(f"{dot.lanes}, {dot.group}", dot.column_dtype)},
    C: {buffer(f"{dot.lanes},", "int32", "local")},
) -> None:
    with T.sblock("root"):
        T.reads(C[0:{dot.lanes}], A[0:{dot.group}], B[0:{dot.lanes}, 0:{dot.group}])
        T.writes(C[0:{dot.lanes}])
{body}
"""
