"""The public calls: what a user types first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvmfuse
from tests import graphs
from tvmfuse import errors, testing
from tvmfuse._tvm import relax, tirx, tvm

X = np.array([[1, -2, 3], [0, 0.5, -1]], "float32")
AFFINE = X * np.array([1, 2, 3], "float32") + np.float32(0.5)


def test_every_public_name_is_there() -> None:
    for name in tvmfuse.__all__:
        assert getattr(tvmfuse, name) is not None
    assert set(dir(tvmfuse)) == {*tvmfuse.__all__, "__version__"}
    assert tvmfuse.compile.__name__ == "compile"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'fuze'"):
        tvmfuse.fuze  # noqa: B018


def test_no_public_name_hides_a_module() -> None:
    # A name that is loaded lazily would become the module once that is imported.
    folder = Path(tvmfuse.__file__).parent
    modules = {path.stem for path in folder.iterdir() if path.suffix in ("", ".py")}
    assert modules & set(tvmfuse.__all__) == set()


@pytest.mark.parametrize("kind", ["path", "text", "proto"])
def test_a_model_compiles_from_a_file_or_from_memory(kind: str, affine_onnx: Path) -> None:
    source: Any = {
        "path": affine_onnx,
        "text": str(affine_onnx),
        "proto": onnx.load(affine_onnx),
    }[kind]
    compiled = tvmfuse.compile(source)
    testing.assert_close(tvmfuse.Session.of(compiled)(X), AFFINE.astype(np.float64))
    assert [spec.name for spec in compiled.signature.inputs] == ["x:0"]


def test_a_relax_module_compiles() -> None:
    compiled = tvmfuse.compile(graphs.module(relax.op.nn.relu, X))
    np.testing.assert_array_equal(tvmfuse.Session.of(compiled)(X), np.maximum(X, 0))


def test_a_target_may_be_a_value() -> None:
    compiled = tvmfuse.compile(graphs.module(relax.op.nn.relu, X), tvmfuse.target("cpu:x86-64-v3"))
    assert compiled.target.spec == "cpu:x86-64-v3"


def test_shapes_bind_open_extents() -> None:
    rows = tirx.Var("rows", "int64")
    x = relax.Var("x", relax.TensorType((rows, 3), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.nn.relu(x)))
    compiled = tvmfuse.compile(builder.get(), shapes={"x": (2, 3)})
    assert compiled.signature.inputs[0].shape == (2, 3)
    np.testing.assert_array_equal(tvmfuse.Session.of(compiled)(X), np.maximum(X, 0))


def test_without_fusion_every_operator_is_a_kernel(affine_onnx: Path) -> None:
    fused, plain = (tvmfuse.compile(affine_onnx, fuse=fuse) for fuse in (True, False))
    assert (len(fused.kernels), len(plain.kernels)) == (1, 2)
    assert len(fused.plan.groups) == 1
    assert plain.plan.groups == ()


def test_progress_names_each_stage_in_order(affine_onnx: Path) -> None:
    told: list[str] = []
    compiled = tvmfuse.compile(affine_onnx, progress=told.append)
    assert told == [
        "canonicalise",
        "collect",
        "plan",
        "partition",
        "layout",
        "lower",
        "schedule",
        "build",
    ]
    assert list(compiled.seconds) == told
    assert all(seconds >= 0 for seconds in compiled.seconds.values())


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("missing.onnx", "cpu", errors.ModelError),
        (__file__, "cpu", errors.ModelError),
        (42, "cpu", errors.ModelError),
        (None, "tpu", errors.TargetError),
        (None, "cuda", errors.TargetError),
        (None, "cpu:commodore", errors.TargetError),
        (None, None, errors.TargetError),
        (None, 3, errors.TargetError),
    ],
)
def test_bad_input_is_one_line_of_our_own(
    source: Any, target: Any, error: type[Exception], affine_onnx: Path
) -> None:
    with pytest.raises(error) as caught:
        tvmfuse.compile(affine_onnx if source is None else source, target)
    assert isinstance(caught.value, tvmfuse.TvmFuseError)
    assert "\n" not in str(caught.value)


def test_a_compiled_model_is_saved_and_loaded(affine_onnx: Path, tmp_path: Path) -> None:
    path = tmp_path / "affine.tvmfuse"
    tvmfuse.save(tvmfuse.compile(affine_onnx), path)
    testing.assert_close(tvmfuse.load(path)(X), AFFINE.astype(np.float64))


def test_the_pipeline_is_a_pass_of_tvm(affine_onnx: Path) -> None:
    mod = tvmfuse.import_model(affine_onnx).module
    executable = tvm.compile(mod, "llvm", relax_pipeline=tvmfuse.pipeline())
    machine = relax.VirtualMachine(executable, tvm.cpu())
    found = machine["main"](tvm.runtime.tensor(X)).numpy()
    testing.assert_close(found, AFFINE.astype(np.float64))


def test_compiling_in_a_fresh_process_needs_nothing_but_the_package(affine_onnx: Path) -> None:
    code = (
        "import sys, tvmfuse\n"
        "compiled = tvmfuse.compile(sys.argv[1])\n"
        "print(len(compiled.kernels), 'onnxruntime' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(affine_onnx)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "1 False\n"


def test_a_compile_is_told_how_to_plan() -> None:
    module = graphs.module(lambda x: relax.op.nn.relu(relax.op.tanh(x)), X)
    groups = {
        planner: len(tvmfuse.compile(module, planner=planner).plan.groups)
        for planner in ("optimal", "none", "everything")
    }
    assert groups == {"optimal": 1, "none": 0, "everything": 1}
    compiled = tvmfuse.compile(module, cost_model="prior", max_memory="1MiB", measure_budget=5)
    assert any("roofline alone" in note for note in compiled.plan.notes)
    assert len(compiled.plan.groups) == 1


def test_what_is_in_doubt_is_measured_and_its_measured_time_decides() -> None:
    weight = relax.const(np.full((256, 512), 1 / 256, "float32"))
    module = graphs.module(lambda x: relax.op.nn.relu(relax.op.matmul(x, weight)), (64, 256))
    asked: dict[str, Any] = {"cost_model": "prior", "planner": "everything"}
    (guessed,) = tvmfuse.compile(module, **asked).plan.groups
    assert guessed.time.is_doubtful
    assert guessed.predicted is None

    plan = tvmfuse.compile(module, **asked, measure_budget="2m").plan
    (decided,) = plan.groups
    assert decided.predicted == guessed.time
    assert min(decided.time.fused_us, decided.time.unfused_us) > 0
    assert decided.time.fused_us != guessed.time.fused_us
    # What was measured is known far better than what was predicted.
    assert decided.time.doubt_us < 0.1 * decided.time.unfused_us


def test_ill_formed_planning_is_refused_before_the_model_is_read() -> None:
    with pytest.raises(errors.CostModelError, match="knows optimal"):
        tvmfuse.compile("missing.onnx", planner="best")
    with pytest.raises(errors.InputError, match="a size such as 64MiB, but got '1 apple'"):
        tvmfuse.compile("missing.onnx", max_memory="1 apple")
    with pytest.raises(errors.InputError, match="--measure-budget must be like 90s"):
        tvmfuse.compile("missing.onnx", measure_budget="soon")


def test_a_memory_limit_that_no_plan_keeps_is_an_error() -> None:
    module = graphs.module(lambda x: relax.op.nn.softmax(relax.op.permute_dims(x)), X)
    with pytest.raises(errors.MemoryLimitError, match="allow more"):
        tvmfuse.compile(module, planner="none", max_memory=8)
