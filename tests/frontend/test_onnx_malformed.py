"""Damaged and unsupported models: one line that names file, place and cause, and no noise."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tvmfuse.errors import ModelError
from tvmfuse.frontend import import_model

FLOAT = TensorProto.FLOAT
GOOD = "g (float[2,3] x) => (float[2,3] y) { y = Neg(x) }"


def model_of(graph: str, *, opset: int = 20) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> {graph}')


# Files. Each entry: what is written to a folder, and words of the message.


def write(path: Path, content: bytes | onnx.ModelProto) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.SerializeToString())
    return path


def with_external_data(folder: Path, location: str, **entries: str) -> Path:
    model = model_of(
        "g (float[2,3] x) => (float[2,3] y)"
        "<float[2,3] w = {1.0,2.0,3.0,4.0,5.0,6.0}> { y = Add(x, w) }"
    )
    tensor = model.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return write(folder / "m.onnx", model)


def outside(folder: Path, location: str) -> Path:
    (folder / "inner").mkdir()
    (folder / "secret.bin").write_bytes(bytes(24))
    return with_external_data(folder / "inner", location.format(folder=folder))


def linked(folder: Path) -> Path:
    (folder / "inner").mkdir()
    (folder / "secret.bin").write_bytes(bytes(24))
    (folder / "inner" / "w.bin").symlink_to(folder / "secret.bin")
    return with_external_data(folder / "inner", "w.bin")


def short_data(folder: Path) -> Path:
    (folder / "w.bin").write_bytes(bytes(8))
    return with_external_data(folder, "w.bin", length="24")


def forbidden(folder: Path) -> Path:
    path = write(folder / "m.onnx", model_of(GOOD))
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    return path


FILES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing file": (
        lambda d: d / "none.onnx",
        "there is no such file: give the path of an ONNX file",
    ),
    "folder": (lambda d: d, "this is a folder"),
    "empty file": (lambda d: write(d / "m.onnx", b""), "the file is empty: export the model again"),
    "text": (lambda d: write(d / "m.onnx", b"hello, world\n"), "not an ONNX file"),
    "zeros": (lambda d: write(d / "m.onnx", bytes(64)), "not an ONNX file"),
    "random bytes": (
        lambda d: write(d / "m.onnx", np.random.default_rng(0).bytes(4096)),
        "not an ONNX file",
    ),
    "cut short": (
        lambda d: write(d / "m.onnx", model_of(GOOD).SerializeToString()[:-9]),
        "cut short",
    ),
    "PyTorch archive": (lambda d: write(d / "m.pt", b"PK\3\4"), "torch.onnx.export"),
    "exported program": (lambda d: write(d / "m.pt2", b"PK\3\4"), "torch.export.load"),
    "TensorFlow Lite": (lambda d: write(d / "m.tflite", b"TFL3"), "tf2onnx"),
    "no right to read": (forbidden, "cannot be read"),
    "external data missing": (
        lambda d: with_external_data(d, "gone.bin"),
        "the data of 'w' is missing",
    ),
    "external data above the folder": (
        lambda d: outside(d, "../secret.bin"),
        "must be in the model's folder.*'../secret.bin'",
    ),
    "external data by absolute path": (
        lambda d: outside(d, "{folder}/secret.bin"),
        "must be in the model's folder",
    ),
    "external data through a link": (linked, "must be in the model's folder"),
    "external data without a place": (
        lambda d: with_external_data(d, ""),
        "must be in the model's folder",
    ),
    "external data cut short": (short_data, "'w'"),
    "external data at a wrong offset": (
        lambda d: (write(d / "w.bin", bytes(24)), with_external_data(d, "w.bin", offset="x"))[1],
        "cannot be read",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_damaged_file_is_refused(name, tmp_path, capfd):
    make, words = FILES[name]
    path = make(tmp_path)
    with pytest.raises(ModelError, match=words) as caught:
        import_model(path)
    check_message(caught.value, str(path), capfd)


# Models. Each entry: a graph, or a function that makes a model, and words of the message.


def changed(graph: str, change: Callable[[onnx.ModelProto], Any], *, opset: int = 20):
    def make() -> onnx.ModelProto:
        model = model_of(graph, opset=opset)
        change(model)
        return model

    return make


def interface(inputs: list[Any], outputs: list[Any], *nodes: onnx.NodeProto, **options: Any):
    def make() -> onnx.ModelProto:
        graph = helper.make_graph(list(nodes), "g", inputs, outputs, **options)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    return make


def value(name: str, dtype: int = FLOAT, shape: Any = (2, 3)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def with_weight(tensor: onnx.TensorProto, *nodes: onnx.NodeProto):
    nodes = nodes or (helper.make_node("Add", ["x", "w"], ["y"]),)
    return interface([value("x")], [value("y")], *nodes, initializer=[tensor])


def weight(change: Callable[[onnx.TensorProto], Any]) -> onnx.TensorProto:
    tensor = numpy_helper.from_array(np.ones((2, 3), "f4"), "w")
    change(tensor)
    return tensor


def set_dims(*dims: int) -> Callable[[onnx.TensorProto], None]:
    def change(tensor: onnx.TensorProto) -> None:
        tensor.dims[:] = dims

    return change


def endless_loop() -> onnx.ModelProto:
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Neg", ["a"], ["b"])],
        "body",
        [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), value("a")],
        [value("d", TensorProto.BOOL, []), value("b")],
    )
    loop = helper.make_node("Loop", ["", "go", "x"], ["y"], name="forever", body=body)
    return interface([value("x"), value("go", TensorProto.BOOL, [])], [value("y")], loop)()


def domain(model: onnx.ModelProto) -> None:
    model.graph.node[0].domain = "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))


XY = "g (float[2,3] x) => (float[2,3] y)"
IMAGE = "g (float[1,3,4,4] x) => (float[a,b,c,d] y)"

MODELS: dict[str, tuple[Any, str]] = {
    "nothing at all": (onnx.ModelProto, "holds no graph"),
    "no graph": (
        changed(GOOD, lambda m: m.ClearField("graph")),
        "holds no graph",
    ),
    "no opset": (changed(GOOD, lambda m: m.ClearField("opset_import")), "which opset"),
    "opset of the future": (
        changed(GOOD, lambda m: setattr(m.opset_import[0], "version", 9999)),
        "opset 9999 is newer than",
    ),
    "format of the past": (changed(GOOD, lambda m: setattr(m, "ir_version", 2)), "version 3"),
    "no outputs": (changed(GOOD, lambda m: m.graph.ClearField("output")), "no outputs"),
    "unknown operator": (f"{XY} {{ y = Frobnicate(x) }}", "Frobnicate .*node 'y'"),
    "two unknown operators": (
        f"{XY} {{ a = Frobnicate(x) b = Frobnicate(a) y = Quux(b) }}",
        r"Frobnicate \(2×, first in node 'a'\), Quux",
    ),
    "foreign domain": (changed(f"{XY} {{ y = Relu(x) }}", domain), r"com\.example\.Relu"),
    "unknown operator in a branch": (
        "g (float[2,3] x, bool c) => (float[2,3] y) { y = If(c) <"
        "then_branch = t () => (float[2,3] a) { a = Frobnicate(x) },"
        "else_branch = e () => (float[2,3] a) { a = Neg(x) }> }",
        "Frobnicate",
    ),
    "loop": (endless_loop, r"'forever' \(Loop\) must run a number of times that is known"),
    "random choices": (f"{XY} {{ y = Multinomial(x) }}", "Multinomial"),
    "cycle": (f"{XY} {{ a = Add(x, b) b = Neg(a) y = Abs(b) }}", "topologically sorted.*'b'"),
    "nodes out of order": (f"{XY} {{ y = Neg(a) a = Abs(x) }}", "topologically sorted.*'a'"),
    "undefined value": (f"{XY} {{ y = Add(x, nope) }}", "'nope'"),
    "undefined output": (f"{XY} {{ q = Neg(x) }}", "'y'"),
    "value defined twice": (f"{XY} {{ y = Neg(x) y = Abs(x) }}", "single static assignment.*'y'"),
    "input defined again": (f"{XY} {{ x = Neg(x) y = Abs(x) }}", "single static assignment.*'x'"),
    "too few operands": (f"{XY} {{ y = Add(x) }}", "Add"),
    "too many operands": (f"{XY} {{ y = Neg(x, x) }}", "Neg"),
    "unknown attribute": (f"{XY} {{ y = Neg<depth=3>(x) }}", "depth"),
    "attribute of the wrong type": (f'{XY} {{ y = Softmax<axis="last">(x) }}', "axis"),
    "axis out of range": (f"{XY} {{ y = Softmax<axis=7>(x) }}", "Softmax.*axis"),
    "shapes that do not broadcast": (
        f"{XY} <float[4] w = {{1.0,1.0,1.0,1.0}}> {{ y = Add(x, w) }}",
        "Add.*Incompatible dimensions",
    ),
    "matmul of unequal depths": (
        f"{XY} <float[2,2] w = {{1.0,1.0,1.0,1.0}}> {{ y = MatMul(x, w) }}",
        "MatMul.*Incompatible dimensions",
    ),
    "operands of two types": (
        f"{XY} <int64[3] w = {{1,1,1}}> {{ y = Add(x, w) }}",
        "Add.*type",
    ),
    "reshape to another size": (
        f"{XY} <int64[2] s = {{5,5}}> {{ y = Reshape(x, s) }}",
        r"node 'y' \(Reshape\)",
    ),
    "groups that do not divide": (
        f"{IMAGE} <float[4,1,1,1] w = {{1.0,1.0,1.0,1.0}}> {{ y = Conv<group=2>(x, w) }}",
        r"node 'y' \(Conv\)",
    ),
    "stride of zero": (
        f"{IMAGE} <float[1,3,1,1] w = {{1.0,1.0,1.0}}> {{ y = Conv<strides=[0,0]>(x, w) }}",
        "Conv.*strides",
    ),
    "kernel larger than the image": (
        f"{IMAGE} {{ y = MaxPool<kernel_shape=[9,9]>(x) }}",
        "MaxPool",
    ),
    "gather beyond the end": (
        "g (float[2,3] x) => (float[1,3] y) <int64[1] i = {9}> { y = Gather(x, i) }",
        r"node 'y' \(Gather\).*index 9 is outside of 2 elements",
    ),
    "gather before the start": (
        "g (float[2,3] x) => (float[1,3] y) <int64[1] i = {-3}> { y = Gather(x, i) }",
        "index -3 is outside of 2 elements",
    ),
    "gather elements beyond the end": (
        f"{XY} <int64[2,3] i = {{0,0,0,0,0,5}}> {{ y = GatherElements(x, i) }}",
        "index 5 is outside of 2 elements",
    ),
    "gather from a constant beyond the end": (
        f"{XY} <float[2] t = {{1.0,2.0}}, int64 i = {{4}}> {{ s = Gather(t, i) y = Mul(x, s) }}",
        "Gather",
    ),
    "results of no type": (f"{XY} {{ y = Constant() }}", "Constant"),
    "two inputs of one name": (
        interface([value("x"), value("x")], [value("y")], helper.make_node("Neg", ["x"], ["y"])),
        "two inputs of the graph are called 'x'",
    ),
    "two constants of one name": (
        interface(
            [value("x")],
            [value("y")],
            helper.make_node("Add", ["x", "w"], ["y"]),
            initializer=[weight(lambda _: None), weight(lambda _: None)],
        ),
        "two constants of the graph are called 'w'",
    ),
    "input without a name": (
        interface([value("")], [value("y")], helper.make_node("Neg", [""], ["y"])),
        "empty name",
    ),
    "output without a name": (
        interface([value("x")], [value("")], helper.make_node("Neg", ["x"], ["y"])),
        "empty name",
    ),
    "constant without a name": (
        with_weight(weight(lambda t: setattr(t, "name", ""))),
        "empty name",
    ),
    "constant shorter than its shape": (
        with_weight(weight(lambda t: setattr(t, "raw_data", t.raw_data[:8]))),
        r"the data of the constant 'w' does not fit its shape \[2, 3\]",
    ),
    "constant longer than its shape": (
        with_weight(weight(set_dims(2, 2))),
        r"'w' does not fit its shape \[2, 2\]",
    ),
    "constant without data": (
        with_weight(weight(lambda t: t.ClearField("raw_data"))),
        "'w' does not fit its shape",
    ),
    "constant of 2**40 elements": (with_weight(weight(set_dims(1 << 20, 1 << 20))), "'w'"),
    "constant of negative extent": (
        with_weight(weight(set_dims(-2, 3))),
        r"'w' has a negative extent: \[-2, 3\]",
    ),
    "constant of unknown type": (
        with_weight(weight(lambda t: setattr(t, "data_type", 99))),
        "'w' has elements of type 99",
    ),
    "constant in a file, without its folder": (
        with_weight(weight(lambda t: setattr(t, "data_location", TensorProto.EXTERNAL))),
        "give the path of the model",
    ),
    "int4 input": (
        interface(
            [value("x", TensorProto.INT4)],
            [value("y", TensorProto.INT4)],
            helper.make_node("Identity", ["x"], ["y"]),
        ),
        "'x' has elements of type int4",
    ),
    "float8 input": (
        interface(
            [value("x", TensorProto.FLOAT8E4M3FN)],
            [value("y", TensorProto.FLOAT8E4M3FN)],
            helper.make_node("Identity", ["x"], ["y"]),
        ),
        "'x' has elements of type float8e4m3fn",
    ),
    "text input": (
        interface(
            [value("x", TensorProto.STRING)],
            [value("y", TensorProto.STRING)],
            helper.make_node("Identity", ["x"], ["y"]),
        ),
        "'x' has elements of type string",
    ),
    "complex input": (
        interface(
            [value("x", TensorProto.COMPLEX64)],
            [value("y", TensorProto.COMPLEX64)],
            helper.make_node("Identity", ["x"], ["y"]),
        ),
        "'x' has elements of type complex64",
    ),
    "input of no type": (
        interface(
            [onnx.ValueInfoProto(name="x")], [value("y")], helper.make_node("Neg", ["x"], ["y"])
        ),
        "'x' must be a tensor",
    ),
    "sequence input": (
        interface(
            [helper.make_tensor_sequence_value_info("x", FLOAT, [2, 3])],
            [value("y")],
            helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0),
        ),
        "'x' must be a tensor, but it is a sequence",
    ),
    "open extents": ("g (float[n,3] x) => (float[n,3] y) { y = Neg(x) }", r"x\[n,3\]"),
    "extents below zero": (
        interface([value("x", shape=[-1, 3])], [value("y")], helper.make_node("Neg", ["x"], ["y"])),
        r"x\[\?,3\]",
    ),
    "input of unknown rank": (
        interface([value("x", shape=None)], [value("y")], helper.make_node("Neg", ["x"], ["y"])),
        r"x\[any rank\]",
    ),
    "read where values tell the shape": (
        "g (float[2,3] x) => (float[m] y) <int64 k = {0}> "
        "{ n = NonZero(x) i = Gather<axis=0>(n, k) y = Cast<to=1>(i) }",
        r"node 'i' \(Gather\).*the values of 'n' tell its shape",
    ),
    "layer norm that returns its mean": (
        f"{XY} <float[3] s = {{1.0,1.0,1.0}}> {{ n, m = LayerNormalization(x, s) y = Add(n, m) }}",
        r"node 'n' \(LayerNormalization\).*Mean",
    ),
}


def test_there_are_at_least_sixty_damaged_models():
    assert len(FILES) + len(MODELS) >= 60


@pytest.mark.parametrize("name", MODELS)
def test_damaged_model_is_refused(name, capfd):
    source, words = MODELS[name]
    model = model_of(source) if isinstance(source, str) else source()
    with pytest.raises(ModelError, match=words) as caught:
        import_model(model)
    check_message(caught.value, model.graph.name or "model", capfd)


@pytest.mark.parametrize("name", ["too deep", "too wide"])
def test_large_graph_is_no_problem(name):
    graph = (
        [helper.make_node("Neg", [f"v{k}"], [f"v{k + 1}"]) for k in range(3000)]
        if name == "too deep"
        else [helper.make_node("Neg", ["v0"], [f"v{k + 1}"]) for k in range(3000)]
    )
    model = interface([value("v0")], [value("v3000")], *graph)()
    assert import_model(model).signature.outputs[0].shape == (2, 3)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"z": (2, 3)}, "'z', which is no input; the inputs are 'x'"),
        ({"x": (2, 3, 1)}, "'x' has 2 axes, but the shape given has 3"),
        ({"x": (2, 4)}, "fixed extent 3 at axis 1, but the shape given has 4"),
    ],
    ids=["no input", "rank", "fixed extent"],
)
def test_shape_that_does_not_fit_is_refused(shapes, words):
    with pytest.raises(ModelError, match=words):
        import_model(model_of("g (float[n,3] x) => (float[n,3] y) { y = Neg(x) }"), shapes=shapes)


def check_message(error: ModelError, label: str, capfd: pytest.CaptureFixture[str]) -> None:
    text = str(error)
    assert text.startswith(f"{label}: ")
    assert "\n" not in text
    assert len(text) < 600 + len(label)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bits_end_in_a_model_or_in_a_sentence(seed, tmp_path):
    generator = np.random.default_rng(seed)
    cases = sorted((Path(__file__).parents[1] / "cases" / "onnx").glob("*.onnx"))
    refusals = []
    for _ in range(100):
        content = bytearray(generator.choice(cases).read_bytes())
        for place in generator.integers(len(content), size=generator.choice([1, 2, 8])):
            content[place] ^= 1 << generator.integers(8)
        path = write(tmp_path / "m.onnx", bytes(content))
        try:
            import_model(path)
        except ModelError as error:
            refusals.append(str(error))
    assert refusals
    assert not [text for text in refusals if "\n" in text]
