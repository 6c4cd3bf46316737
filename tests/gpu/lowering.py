"""Small fused functions, and the device code that TVM makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
from tvm.tirx.build import split_host_device_mods

from tvmfuse._tvm import relax, tirx, tvm, tvm_ffi
from tvmfuse.kernels import dlight
from tvmfuse.targets import Target

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """One kernel launch.

    Parameters
    ----------
    kernel : str
        Its name in the text.
    arguments : tuple of str
        Names of the buffers, as the function's parameters are called.
    grid, block : tuple of int
        Blocks in the grid and threads in a block, by x, y and z.
    dynamic_bytes : int
        Dynamic shared memory.
    """

    kernel: str
    arguments: tuple[str, ...]
    grid: Dim3
    block: Dim3
    dynamic_bytes: int


@dataclass(frozen=True)
class DeviceCode:
    """CUDA or Metal text, and how the host launches it."""

    kind: str
    text: str
    launches: tuple[Launch, ...]


def fused(body: Callable[..., relax.Expr], dtype: str, **shapes: tuple[int, ...]) -> tirx.PrimFunc:
    """Return one loop function of everything that ``body`` computes, as FuseTIR merges it.

    Parameters
    ----------
    body : callable
        Takes one Relax variable per shape, by name.
    dtype : str
        Element type of all inputs.
    **shapes : tuple of int
        Shape of each input.
    """
    builder = relax.BlockBuilder()
    inner = [relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in shapes.items()]
    attrs = {"Primitive": 1}
    with builder.function("group", inner, attrs=attrs, private=True):
        with builder.dataflow():
            out = builder.emit_output(
                builder.normalize(body(**dict(zip(shapes, inner, strict=True))))
            )
        builder.emit_func_output(out)
    group = next(var for var in builder.get().get_global_vars() if var.name_hint == "group")
    outer = [relax.Var(name, relax.TensorType(shape, dtype)) for name, shape in shapes.items()]
    with builder.function("main", outer):
        with builder.dataflow():
            out = builder.emit_output(relax.Call(group, outer))
        builder.emit_func_output(out)
    passes = relax.transform
    mod = tvm.transform.Sequential(
        [passes.LegalizeOps(), passes.AnnotateTIROpPattern(), passes.FuseTIR()]
    )(builder.get())
    (func,) = (func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc))
    return func


def output_name(func: tirx.PrimFunc) -> str:
    """Return the name of the one parameter that a function writes: its last."""
    return str(func.params[-1].name)


def lower(func: tirx.PrimFunc, target: Target) -> DeviceCode:
    """Schedule a function by our GPU rules, and generate its device code.

    Parameters
    ----------
    func : tirx.PrimFunc
        Not yet scheduled; all shapes static.
    target : Target
        A GPU.
    """
    named = func.with_attr("global_symbol", "main")
    mod, failed = dlight.schedule(tvm.IRModule({"main": named}), target)
    assert not failed
    tvm_target = target.tvm()
    tir_pipeline, _, finish_device = tirx.get_default_tir_pipeline(tvm_target)
    mod = tir_pipeline(tirx.transform.BindTarget(tvm_target)(mod))
    host, devices = split_host_device_mods(mod)
    ((device_target, device),) = devices.items()
    device = finish_device()(device)
    tags = {
        var.name_hint: [str(tag) for tag in kernel.attrs["tirx.kernel_launch_params"]]
        for var, kernel in device.functions_items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVM_COMPILE_FORCE_FALLBACK", "1")  # keep the text; call no compiler
        build = tvm.get_global_func(f"target.build.{target.kind}")
        text = build(device, device_target).inspect_source()
    return DeviceCode(target.kind, text, tuple(_launch(c, tags) for c in _kernel_calls(host)))


def _kernel_calls(host: tvm.IRModule) -> list[tvm.ir.Call]:
    """Return the calls that launch kernels, in order."""
    calls: list[tvm.ir.Call] = []

    def visit(call: tvm.ir.Call) -> None:
        if getattr(call.op, "name", "") == "tirx.call_ffi_kernel":
            calls.append(call)

    for func in host.functions.values():
        tvm_ffi.structural_walk(func.body, (tvm.ir.Call, visit))
    return calls


def _launch(call: tvm.ir.Call, tags: Mapping[str, list[str]]) -> Launch:
    """Read a launch: the kernel's name, the address of each buffer, one extent per tag."""
    kernel = str(call.args[0].value)
    count = len(call.args) - 1 - len(tags[kernel])
    addresses, values = call.args[1 : count + 1], call.args[count + 1 :]
    simplify = tvm.sym.Analyzer().simplify
    sizes = {
        tag: int(simplify(value).value) for tag, value in zip(tags[kernel], values, strict=True)
    }
    extents = {
        part: tuple(sizes.get(f"{part}.{d}", 1) for d in "xyz")
        for part in ("blockIdx", "threadIdx")
    }
    return Launch(
        kernel=kernel,
        arguments=tuple(address.args[0].name for address in addresses),
        grid=extents["blockIdx"],
        block=extents["threadIdx"],
        dynamic_bytes=sizes.get("tirx.use_dyn_shared_memory", 0),
    )
