"""What all tests share: one TVM thread, a home of their own, and honest skips."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from tvmfuse.compiled import Compiled

# Several workers run tests at once, each on a core; TVM reads this when it starts its threads.
os.environ.setdefault("TVM_NUM_THREADS", "1")
# Readline sets it in pytest itself, and workers inherit it: results would break at 80 columns.
os.environ.pop("COLUMNS", None)


@pytest.fixture(autouse=True, scope="session")
def _home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep whatever tvmfuse writes for its user inside the tests' own folder."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
            patch.setenv(variable, str(home))
        patch.delenv("TVMFUSE_DB", raising=False)
        yield home


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests whose device or package this machine lacks, and say what it is."""
    for marker, (is_present, reason) in REQUIREMENTS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not is_present():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def has_nvidia_gpu() -> bool:
    """Whether the CUDA driver is installed and sees a device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    failed = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    return not failed and count.value > 0


def has_metal() -> bool:
    """Whether this is a Mac with Apple silicon."""
    return (platform.system(), platform.machine()) == ("Darwin", "arm64")


def has_onnxruntime() -> bool:
    """Whether ONNX Runtime is installed."""
    return importlib.util.find_spec("onnxruntime") is not None


REQUIREMENTS: dict[str, tuple[Callable[[], bool], str]] = {
    "gpu": (has_nvidia_gpu, "no NVIDIA GPU with a driver"),
    "metal": (has_metal, "no Mac with Apple silicon"),
    "peers": (has_onnxruntime, "onnxruntime is not installed: pip install 'tvmfuse[peers]'"),
}


@pytest.fixture(scope="session")
def compiled() -> Compiled:
    """A model of one multiplication and one addition, compiled by TVM alone."""
    from tvmfuse._tvm import relax, tvm
    from tvmfuse.compiled import Compiled, KernelInfo
    from tvmfuse.frontend import Signature, TensorSpec
    from tvmfuse.plan import FusionPlan
    from tvmfuse.targets import resolve

    params = {"w": np.array([1, 2, 3], "float32"), "b": np.array(0.5, "float32")}
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    types = [relax.TensorType(array.shape, array.dtype.name) for array in params.values()]
    weights = relax.Var("params", relax.TupleType(types))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, weights]):
        with builder.dataflow():
            scaled = builder.emit(relax.op.multiply(x, relax.TupleGetItem(weights, 0)))
            y = builder.emit_output(relax.op.add(scaled, relax.TupleGetItem(weights, 1)))
        builder.emit_func_output(y)
    target = resolve("cpu")
    pipeline = relax.get_default_pipeline(target.tvm())
    return Compiled(
        model_name="affine",
        executable=tvm.compile(builder.get(), target.tvm(), relax_pipeline=pipeline),
        params=params,
        signature=Signature(
            inputs=(TensorSpec("x:0", (2, 3), "float32"),),
            outputs=(TensorSpec("y", (2, 3), "float32"),),
        ),
        target=target,
        plan=FusionPlan(),
        kernels=(KernelInfo("multiply_add", "elementwise", "elementwise", "generic"),),
        seconds={"compile": 0.1},
    )


@pytest.fixture(scope="session")
def affine_onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of :func:`compiled` as an ONNX file."""
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Mul", ["x:0", "w"], ["t"]), helper.make_node("Add", ["t", "b"], ["y"])],
        "affine",
        [helper.make_tensor_value_info("x:0", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [
            helper.make_tensor("w", TensorProto.FLOAT, [3], [1, 2, 3]),
            helper.make_tensor("b", TensorProto.FLOAT, [], [0.5]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path_factory.mktemp("onnx") / "affine.onnx"
    onnx.save(model, path)
    return path
