from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812

from tvmfuse._tvm import relax, tvm
from tvmfuse.errors import ModelError
from tvmfuse.frontend import TensorSpec, import_model


@I.ir_module
class Symbolic:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32"), y: R.Tensor(("n", 4), "float32")) -> R.Tuple(  # noqa: N805
        R.Tensor(("n", 4), "float32"), R.Tensor(("n", 4), "float32")
    ):
        with R.dataflow():
            a = R.add(x, y)
            b = R.multiply(x, y)
            R.output(a, b)
        return (a, b)


def test_symbolic_extents_are_bound_by_one_shape(run):
    model = import_model(Symbolic, shapes={"y": (3, 4)})
    assert model.signature.inputs == (
        TensorSpec("x", (3, 4), "float32"),
        TensorSpec("y", (3, 4), "float32"),
    )
    assert [spec.name for spec in model.signature.outputs] == ["output_0", "output_1"]
    x = np.full((3, 4), 2, "f4")
    found = run(model, {"x": x, "y": x})
    np.testing.assert_array_equal(found["output_0"], x + x)
    np.testing.assert_array_equal(found["output_1"], x * x)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({}, r"these are open: x: float32\[n, 4\].*--shape 'x=1,4'"),
        ({"z": (1, 4)}, "'z', which is no input; the inputs are 'x', 'y'"),
        ({"x": (3, 5)}, r"x: float32\[n, 4\] cannot have the shape \[3, 5\]"),
        ({"x": (3,)}, r"cannot have the shape \[3\]"),
        ({"x": (3, 4), "y": (2, 4)}, "cannot have the shape"),
    ],
    ids=["open", "no input", "fixed extent", "rank", "contradiction"],
)
def test_wrong_shapes_are_refused(shapes, words):
    with pytest.raises(ModelError, match=words):
        import_model(Symbolic, shapes=shapes)


def test_module_without_main_is_refused():
    module = tvm.IRModule({"forward": Symbolic["main"]})
    with pytest.raises(ModelError, match="'main', but there is 'forward'"):
        import_model(module)


def test_input_that_is_no_tensor_is_refused():
    pair = relax.Var("p", relax.TupleType([relax.TensorType([2], "float32")]))
    builder = relax.BlockBuilder()
    with builder.function("main", [pair]):
        builder.emit_func_output(builder.emit(relax.TupleGetItem(pair, 0)))
    with pytest.raises(ModelError, match="'p' must be a tensor"):
        import_model(builder.get())


@pytest.mark.parametrize(
    "source", [3, None, {"a": 1}, np.zeros(3)], ids=["int", "None", "dict", "array"]
)
def test_what_is_no_model_is_refused(source):
    with pytest.raises(ModelError, match="a model is the path of an ONNX file"):
        import_model(source)


def test_exported_program_without_torch_says_what_to_install():
    """Such an object can come from elsewhere, for example from a pickle."""
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("PyTorch is installed")

    class ExportedProgram:
        graph_signature = SimpleNamespace(user_inputs=("x",), user_outputs=("y",))

    ExportedProgram.__module__ = "torch.export.exported_program"
    with pytest.raises(ModelError, match=r"pip install 'tvmfuse\[torch\]'"):
        import_model(ExportedProgram())
