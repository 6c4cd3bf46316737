"""The order of the stages, and what they keep: numbers, names, and how a model is called."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from scipy import special

import tvmfuse
from tests import graphs
from tvmfuse import _pipeline, testing
from tvmfuse._pipeline import Options
from tvmfuse._tvm import relax, tirx, tvm
from tvmfuse.errors import LoweringError
from tvmfuse.frontend import import_model
from tvmfuse.kernels import legalize
from tvmfuse.passes import codegen, verify
from tvmfuse.passes.canonicalise import canonicalise
from tvmfuse.passes.layout import layout
from tvmfuse.passes.lower import lower
from tvmfuse.passes.parameters import lift_parameters
from tvmfuse.passes.partition import partition
from tvmfuse.passes.schedule import machine_of, schedule
from tvmfuse.patterns.references import conv2d
from tvmfuse.plan import Candidate, RunTime
from tvmfuse.targets import resolve

op = relax.op

RNG = np.random.default_rng(0)
WEIGHTS = {
    "kernel": RNG.normal(0, 0.2, (16, 3, 3, 3)),
    "bias": RNG.normal(0, 1, 16),
    "scale": RNG.uniform(0.5, 2, 16),
    "shift": RNG.normal(0, 1, 16),
    "mean": RNG.normal(0, 1, 16),
    "variance": RNG.uniform(0.5, 2, 16),
    "matrix": RNG.normal(0, 0.3, (16, 5)),
}
X = testing.random_array((2, 3, 6, 7), "float32")


def network() -> onnx.ModelProto:
    """Return convolution, batch norm, relu, pooling and a product, as ONNX has them."""
    nodes = [
        helper.make_node("Conv", ["x", "kernel", "bias"], ["c"], pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "matrix"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 5])],
        [numpy_helper.from_array(w.astype("float32"), name) for name, w in WEIGHTS.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def expected() -> Any:
    """Return what the network computes, in float64."""
    w = {name: value.astype("float32").astype(np.float64) for name, value in WEIGHTS.items()}
    wide = {name: value[:, None, None] for name, value in w.items() if value.ndim == 1}
    y = conv2d(X.astype(np.float64), w["kernel"], padding=(1, 1, 1, 1)) + wide["bias"]
    y = (y - wide["mean"]) / np.sqrt(wide["variance"] + 1e-5) * wide["scale"] + wide["shift"]
    return np.maximum(y, 0).mean((2, 3)) @ w["matrix"]


def test_a_network_equals_numpy_by_two_kernels_and_conversions() -> None:
    compiled = _pipeline.build(import_model(network()), resolve("cpu"))
    testing.assert_close(tvmfuse.Session.of(compiled)(X), expected())
    families = [kernel.family for kernel in compiled.kernels]
    assert "chained" in families  # the convolution with the mean of what it gives
    assert "gemm" in families
    assert not any(kernel.note for kernel in compiled.kernels)


@pytest.mark.parametrize("spec", ["llvm", {"kind": "llvm", "num-cores": 2}])
def test_weights_that_stay_inputs_compile_and_are_right(spec: Any) -> None:
    model = import_model(network(), keep_params=True)
    mod, params = relax.frontend.detach_params(model.module)
    executable = tvm.compile(mod, tvm.target.Target(spec), relax_pipeline=_pipeline.pipeline())
    machine = relax.VirtualMachine(executable, tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(X), *params["main"])
    testing.assert_close(found.numpy(), expected())


def test_each_stage_returns_a_well_formed_module() -> None:
    target = resolve("cpu")
    machine = machine_of(target)
    planned = _pipeline.plan(import_model(network()).module, target)
    stages = {"canonicalise": planned.module}
    stages["partition"] = partition(planned.module, planned.plan)
    stages["layout"] = layout(stages["partition"], machine).module
    stages["lower"] = lower(stages["layout"], target.tvm(), legalize.rules(machine)).module
    stages["views"] = codegen.lower_views(stages["lower"], target.tvm())
    stages["schedule"] = schedule(stages["views"], target).module
    stages["parameters"] = lift_parameters(stages["schedule"]).module
    for name, mod in stages.items():
        verify.check(mod, name)


def test_every_kernel_of_a_network_is_one() -> None:
    prepared = _pipeline.prepare(import_model(network()).module, resolve("cpu"))
    for name, kernel in prepared.schedules.kernels.items():
        assert verify.is_one_kernel(verify.kernel_facts(kernel.function)), name


class Never:
    """Predicts that no fusion is worth it."""

    def predict(self, candidate: Candidate) -> RunTime:
        return RunTime(fused_us=2.0 * len(candidate.bindings), unfused_us=1.0)


def test_the_cost_model_decides_what_is_fused() -> None:
    model = import_model(network())
    compiled = _pipeline.build(model, resolve("cpu"), options=Options(cost_model=Never()))
    assert compiled.plan.groups == ()
    assert {rejection.stage for rejection in compiled.plan.rejections} >= {"plan"}
    testing.assert_close(tvmfuse.Session.of(compiled)(X), expected())


def test_without_fusion_nothing_is_planned_or_rejected() -> None:
    planned = _pipeline.plan(
        import_model(network()).module, resolve("cpu"), options=Options(fuse=False)
    )
    assert (planned.plan.groups, planned.plan.rejections) == ((), ())


def test_equal_layers_share_one_kernel() -> None:
    def graph(x: Any) -> Any:
        for seed in range(3):
            weight = testing.random_array((16, 16, 3, 3), "float32", seed=seed, spread=0.1)
            x = op.nn.relu(op.nn.conv2d(x, relax.const(weight), padding=1))
        return x

    compiled = graphs.compiled(graphs.module(graph, (1, 16, 8, 8)))
    # The first one reads its input as it lies, the two others read blocks.
    assert [kernel.family for kernel in compiled.kernels].count("conv") == 2
    assert len(compiled.params) == 3


IDENTITIES: dict[str, Any] = {
    "an input as the output": lambda x: x,
    "an input as two outputs": lambda x: [x, x],
    "one value as two outputs": lambda x: [op.nn.relu(x), op.nn.relu(x)],
    "a constant as an output": lambda x: [op.nn.relu(x), relax.const(np.float32(3))],
    "a view of an input": lambda x: op.reshape(x, (21, 12)),
    "a view of a result": lambda x: op.reshape(op.nn.relu(x), (21, 12)),
    "a view between two kernels": lambda x: op.nn.relu(
        op.matmul(op.reshape(op.exp(x), (36, 7)), relax.const(np.eye(7, dtype="float32")))
    ),
}


@pytest.mark.parametrize("name", IDENTITIES)
def test_graphs_of_hardly_any_operator_compile(name: str) -> None:
    mod = graphs.module(IDENTITIES[name], X)
    plain = testing.run(testing.compile_plainly(mod), [X])
    for found, exact in zip(graphs.run(mod, X), plain, strict=True):
        testing.assert_close(found, exact.astype(np.float64))


def test_symbolic_extents_compile_and_are_right() -> None:
    rows = tirx.Var("rows", "int64")
    x = relax.Var("x", relax.TensorType((rows, 24), "float32"))
    weight = testing.random_array((24, 16), "float32", seed=1)
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.nn.gelu(op.matmul(x, relax.const(weight))))
            out = builder.emit_output(op.nn.softmax(y, -1))
        builder.emit_func_output(out)
    executable = tvm.compile(builder.get(), "llvm", relax_pipeline="tvmfuse")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    for count in (1, 7):
        values = testing.random_array((count, 24), "float32")
        z = values.astype(np.float64) @ weight
        exact = special.softmax(z * special.ndtr(z), -1)
        testing.assert_close(machine["main"](tvm.runtime.tensor(values)).numpy(), exact)


def test_canonical_modules_keep_the_signature() -> None:
    mod = import_model(network()).module
    before, after = mod["main"], canonicalise(mod)["main"]
    assert [str(p.name) for p in after.params] == [str(p.name) for p in before.params]
    assert str(after.ret_ty) == str(before.ret_ty)


def test_every_stage_returns_a_well_formed_module_where_that_is_checked() -> None:
    options = Options(verify=True)
    compiled = _pipeline.build(import_model(network()), resolve("cpu"), options=options)
    assert compiled.seconds["verify"] > 0
    assert "verify" not in _pipeline.build(import_model(network()), resolve("cpu")).seconds


def test_a_stage_that_breaks_a_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(mod: Any, plan: Any) -> Any:
        del plan
        x = relax.Var("x", relax.TensorType((2,), "float32"))
        body = relax.SeqExpr([], relax.Var("unbound", x.ty))
        return tvm.IRModule({**mod.functions, "stray": relax.Function([x], body, x.ty)})

    monkeypatch.setattr("tvmfuse._pipeline.order.partition", broken)
    with pytest.raises(LoweringError, match="partition returned one that is not"):
        _pipeline.build(import_model(network()), resolve("cpu"), options=Options(verify=True))
