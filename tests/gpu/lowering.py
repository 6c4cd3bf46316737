"""The device code that the compiler makes of a fused group, and its launches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from tvm.tirx.build import split_host_device_mods

from tests.gpu.cases import Case
from tvmfuse import _pipeline
from tvmfuse._tvm import relax, tirx, tvm, tvm_ffi
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
    """CUDA or Metal text, and how the host launches it.

    Parameters
    ----------
    kind : str
        ``cuda`` or ``metal``.
    text : str
        All kernels.
    launches : tuple of Launch
        In order.
    output : str
        Name of the buffer that holds the result.
    """

    kind: str
    text: str
    launches: tuple[Launch, ...]
    output: str


def device_code(case: Case, target: Target) -> DeviceCode:
    """Fuse and schedule a group as the compiler does, and generate its device code.

    Parameters
    ----------
    case : Case
        A group that becomes one kernel.
    target : Target
        A GPU.
    """
    mod = _pipeline.prepare(_module(case), target).module
    (kernel,) = (func for func in mod.functions.values() if isinstance(func, tirx.PrimFunc))
    tvm_target = target.tvm()
    lower, _, finish_device = tirx.get_default_tir_pipeline(tvm_target)
    named = tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")})
    host, devices = split_host_device_mods(lower(tirx.transform.BindTarget(tvm_target)(named)))
    ((device_target, device),) = devices.items()
    device = finish_device()(device)
    tags = {
        var.name_hint: [str(tag) for tag in func.attrs["tirx.kernel_launch_params"]]
        for var, func in device.functions_items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVM_COMPILE_FORCE_FALLBACK", "1")  # keep the text; call no compiler
        build = tvm.get_global_func(f"target.build.{target.kind}")
        text = build(device, device_target).inspect_source()
    launches = tuple(_launch(call, tags) for call in _kernel_calls(host))
    return DeviceCode(target.kind, text, launches, output=str(kernel.params[-1].name))


def _module(case: Case) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    inputs = [
        relax.Var(name, relax.TensorType(shape, case.dtype)) for name, shape in case.shapes.items()
    ]
    with builder.function("main", inputs):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(case.relax(*inputs)))
        builder.emit_func_output(out)
    return builder.get()


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
