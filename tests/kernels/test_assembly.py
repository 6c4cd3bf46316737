"""The hot loops keep their accumulators in registers: read from LLVM's assembly.

A vector store in the reduction loop means that an accumulator was spilled, or never
reached a register; either costs more than half of the speed.
"""

import pytest

from tests.kernels.assembly import AARCH64, AARCH64_INTEGERS, X86, X86_INTEGERS, fma_loops
from tvmfuse._tvm import registers, te, tirx, tvm
from tvmfuse.kernels import attention, conv, families, gemm, planes
from tvmfuse.kernels.attention_parts import Attention, tiles
from tvmfuse.kernels.gemm import integer
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.tiling import gemm_tile
from tvmfuse.passes.schedule import machine_of
from tvmfuse.targets import resolve

CPUS = ("x86-64-v3", "x86-64-v4", "neoverse-n1")


def hot_loop(emit, cpu, dialects=(X86, AARCH64)):
    target = resolve(f"cpu:{cpu}")
    function = te.create_prim_func(emit(machine_of(target)))
    scheduled = families.schedule(function, machine_of(target))
    assert not scheduled.note
    module = tvm.IRModule({"main": scheduled.function.with_attr("global_symbol", "main")})
    assembly = tvm.compile(
        module, target.tvm(), tir_pipeline=registers.PIPELINE
    ).mod.inspect_source("asm")
    return fma_loops(assembly, dialects[cpu == "neoverse-n1"])[0]


def with_epilogue(inputs, result):
    bias = te.placeholder(result.shape[-1:], name="bias")
    zero = tirx.const(0, "float32")
    out = te.compute(result.shape, lambda *i: te.max(result[i] + bias[i[-1]], zero), name="out")
    return [*inputs, bias, out]


def matmul(rows, columns, dtype="float32"):
    def emit(machine):
        x = te.placeholder((rows, 256), dtype, name="x")
        tile = gemm_tile(rows, columns, machine)
        shape = (-(-columns // tile.columns), 256, tile.columns)
        panels = te.placeholder(shape, dtype, name="panels")
        product = gemm.emit_packed(x, panels, columns, machine, out_dtype="float32")
        return with_epilogue([x, panels], product)

    return emit


def convolution(size, channels, kernel):
    def emit(machine):
        block = machine.block
        shape = (1, channels // block, size, size, block)
        x = te.placeholder(shape, name="x")
        packed = (channels // block, channels // block, kernel, kernel, block, block)
        weight = te.placeholder(packed, name="weight")
        pad = kernel // 2
        window = Window((kernel, kernel), padding=(pad, pad, pad, pad))
        return with_epilogue([x, weight], conv.emit(x, weight, window, machine))

    return emit


WORK = {
    "matmul of 128 rows": matmul(128, 768),
    "matmul of 127 rows": matmul(127, 768),
    "matmul of a ragged width": matmul(128, 1000),
    "matmul of float16": matmul(128, 768, "float16"),
    "matmul of bfloat16": matmul(128, 768, "bfloat16"),
    "3x3 convolution": convolution(28, 128, 3),
    "1x1 convolution of 7x7 pixels": convolution(7, 256, 1),
}


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("name", WORK)
def test_the_reduction_stays_in_registers(name, cpu):
    loop = hot_loop(WORK[name], cpu)
    assert loop.vector_stores == 0
    assert loop.stack_accesses == 0


def depthwise_planes(machine):
    x, weight = te.placeholder((1, 16, 56, 56)), te.placeholder((16, 1, 3, 3))
    window = Window((3, 3), padding=(1, 1, 1, 1))
    return with_epilogue([x, weight], planes.emit(x, weight, window, machine))


@pytest.mark.parametrize("cpu", CPUS)
def test_a_depthwise_sum_is_stored_once_after_all_taps(cpu):
    loop = hot_loop(depthwise_planes, cpu)
    assert loop.fma == 9 * loop.vector_stores


@pytest.mark.parametrize("cpu", CPUS)
def test_a_step_of_the_product_is_one_multiply_add_for_each_accumulator(cpu):
    machine = machine_of(resolve(f"cpu:{cpu}"))
    tile = gemm_tile(128, 768, machine)
    rows = gemm.rows_for(128, tile.columns, machine)
    accumulators = rows * tile.columns // machine.lanes
    steps, rest = divmod(hot_loop(WORK["matmul of 128 rows"], cpu).fma, accumulators)
    assert rest == 0
    assert steps in (1, 2, 4, 8)


def integer_matmul(rows, columns):
    def emit(machine):
        x = te.placeholder((rows, 256), "uint8", name="x")
        chosen = integer.plan("uint8", "int8", machine)
        tile = integer.tile(rows, columns, chosen, machine)
        shape = (columns // tile.columns, 256 // chosen.group, tile.columns, chosen.group)
        panels = te.placeholder(shape, chosen.column_dtype, name="panels")
        sums = te.placeholder((columns,), "int32", name="sums")
        arguments = [x, panels, sums] if chosen.shift else [x, panels]
        product = integer.emit_integers(x, panels, sums, columns, chosen, machine)
        return [*arguments, product]

    return emit


@pytest.mark.parametrize("cpu", ["x86-64-v3", "x86-64-v4", "cascadelake", "neoverse-n1"])
def test_an_integer_product_is_one_instruction_for_each_accumulator(cpu):
    machine = machine_of(resolve(f"cpu:{cpu}"))
    tile = integer.tile(128, 768, integer.plan("uint8", "int8", machine), machine)
    loop = hot_loop(integer_matmul(128, 768), cpu, (X86_INTEGERS, AARCH64_INTEGERS))
    assert (loop.vector_stores, loop.stack_accesses) == (0, 0)
    steps, rest = divmod(loop.fma, tile.rows * tile.columns // machine.lanes)
    assert rest == 0
    assert steps in (1, 2, 4, 8)


@pytest.mark.parametrize("cpu", CPUS)
def test_both_products_of_attention_stay_in_registers(cpu):
    target = resolve(f"cpu:{cpu}")
    operands = [te.placeholder((1, 2, 96, 64), name=name) for name in "qkv"]

    def describe(q, k, v):
        access = {"query": lambda *i: q[i], "key": lambda *i: k[i], "value": lambda *i: v[i]}
        return Attention(1, 2, 96, 96, 64, 64, **access, score=lambda product, *_: product)

    machine = machine_of(target)
    function = te.create_prim_func([*operands, attention.emit(describe, operands, machine)])
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    built = tvm.compile(module, target.tvm(), tir_pipeline=registers.PIPELINE)
    loops = fma_loops(built.mod.inspect_source("asm"), AARCH64 if cpu == "neoverse-n1" else X86)
    cut = tiles(describe(*operands), machine)
    products = [loop for loop in loops if loop.fma == 4 * cut.rows * cut.columns // machine.lanes]
    assert cut.columns == cut.key_columns
    assert len(products) == 2
    for loop in products:
        assert (loop.vector_stores, loop.stack_accesses) == (0, 0)
