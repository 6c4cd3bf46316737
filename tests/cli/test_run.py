from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tvmfuse.runtime import npz

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

X = np.arange(6, dtype="float32").reshape(2, 3)


def test_outputs_of_given_inputs_are_saved_by_name(cli: Cli, folder: Path, tmp_path: Path) -> None:
    npz.write({"x:0": X}, tmp_path / "in.npz")
    out = tmp_path / "out.npz"
    answer = cli("run", folder, "--inputs", tmp_path / "in.npz", "--save", out)
    assert answer.code == 0
    assert "float32[2, 3]" in answer.out
    np.testing.assert_allclose(npz.read(out)["y"], X * [1, 2, 3] + 0.5)


def test_the_seed_chooses_the_inputs(cli: Cli, folder: Path, tmp_path: Path) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        cli("run", folder, "--seed", seed, "--save", tmp_path / name)
    a, b, c = (npz.read(tmp_path / name)["y"] for name in "abc")
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


@pytest.mark.peers
def test_agreement_is_0(cli: Cli, folder: Path, affine_onnx: Path) -> None:
    answer = cli("run", folder, "--compare", "onnxruntime", "--model", affine_onnx)
    assert answer.code == 0
    assert "agrees" in answer.out


@pytest.mark.peers
def test_disagreement_is_1_and_says_where(cli: Cli, folder: Path, other_onnx: Path) -> None:
    compare = ("--compare", "onnxruntime", "--model", other_onnx)
    answer = cli("run", folder, *compare)
    assert answer.code == 1
    assert "DIFFERS" in answer.out
    found = cli("run", folder, *compare, "--json").json
    assert found["agrees"] is False
    (y,) = found["outputs"]
    assert list(y) == ["name", "shape", "dtype", "error", "same_nans", "close", "note"]
    assert y["close"] is False


@pytest.fixture
def other_onnx(affine_onnx: Path, tmp_path: Path) -> Path:
    """The same model with another addend."""
    import onnx

    model = onnx.load(affine_onnx)
    addend = next(each for each in model.graph.initializer if each.name == "b")
    addend.float_data[:] = [0.75]
    onnx.save(model, tmp_path / "other.onnx")
    return tmp_path / "other.onnx"


def test_json_without_a_comparison_lists_the_outputs(cli: Cli, folder: Path) -> None:
    found = cli("run", folder, "--json").json
    assert list(found) == ["schema", "command", "outputs"]
    assert found["outputs"] == [{"name": "y", "shape": [2, 3], "dtype": "float32"}]


@pytest.mark.parametrize(
    "arguments",
    [["--compare", "onnxruntime"], ["--model", "m.onnx"]],
    ids=" ".join,
)
def test_half_a_comparison_is_refused(cli: Cli, folder: Path, arguments: list[str]) -> None:
    answer = cli("run", folder, *arguments)
    assert answer.code == 2
    assert "both --compare onnxruntime and --model MODEL" in answer.error


def test_an_unknown_peer_is_named(cli: Cli, folder: Path) -> None:
    answer = cli("run", folder, "--compare", "foo", "--model", "m.onnx")
    assert answer.code == 2
    assert "--compare takes onnxruntime, but got 'foo'" in answer.error


def test_a_model_file_is_no_bundle(cli: Cli, affine_onnx: Path) -> None:
    answer = cli("run", affine_onnx)
    assert answer.code == 2
    assert "it is a file; 'tvmfuse compile' makes a bundle of an ONNX file" in answer.error


@pytest.mark.peers
def test_another_model_is_refused_with_its_inputs(
    cli: Cli, folder: Path, other_inputs: Path
) -> None:
    answer = cli("run", folder, "--compare", "onnxruntime", "--model", other_inputs)
    assert answer.code == 2
    assert "with the inputs x:0, but has other: give the right file" in answer.error


@pytest.fixture
def other_inputs(affine_onnx: Path, tmp_path: Path) -> Path:
    """The same model with another name for its input."""
    import onnx

    model = onnx.load(affine_onnx)
    model.graph.input[0].name = "other"
    model.graph.node[0].input[0] = "other"
    onnx.save(model, tmp_path / "other_inputs.onnx")
    return tmp_path / "other_inputs.onnx"


@pytest.mark.peers
@pytest.mark.parametrize("content", [None, "dear diary"])
def test_a_reference_that_cannot_run_is_2(
    cli: Cli, folder: Path, tmp_path: Path, content: str | None
) -> None:
    model = tmp_path / "m.onnx"
    if content is not None:
        model.write_text(content)
    answer = cli("run", folder, "--compare", "onnxruntime", "--model", model)
    assert answer.code == 2
    assert f"ONNX Runtime cannot run {model}" in answer.error


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"x": X}, "there is no input 'x'; the inputs are x:0"),
        ({"x:0": X[:1]}, "input 'x:0' must be float32 [2, 3], but got float32 [1, 3]"),
        ({"x:0": X.astype("int64")}, "but got int64 [2, 3]"),
    ],
    ids=["name", "shape", "dtype"],
)
def test_inputs_that_do_not_fit_are_named(
    cli: Cli, folder: Path, tmp_path: Path, feeds: dict[str, np.ndarray], message: str
) -> None:
    npz.write(feeds, tmp_path / "in.npz")
    answer = cli("run", folder, "--inputs", tmp_path / "in.npz")
    assert answer.code == 2
    assert message in answer.error


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none/out.npz", "there is no folder"),
        (".", "it is a folder; choose another name"),
    ],
)
def test_a_place_that_cannot_be_saved_to_is_told_before_the_run(
    cli: Cli, folder: Path, tmp_path: Path, name: str, message: str
) -> None:
    answer = cli("run", folder, "--save", tmp_path / name)
    assert answer.code == 2
    assert message in answer.error
    assert "load" not in answer.err  # no stage had begun


def test_a_seed_below_zero_is_2(cli: Cli, folder: Path) -> None:
    answer = cli("run", folder, "--seed", "-1")
    assert answer.code == 2
    assert "--seed" in answer.error


def test_a_damaged_bundle_is_2(cli: Cli, folder: Path) -> None:
    library = folder / "lib.so"
    library.write_bytes(library.read_bytes()[:-1])
    answer = cli("run", folder)
    assert answer.code == 2
    assert "lib.so was changed or damaged" in answer.error
    assert answer.out == ""


def test_a_place_without_a_bundle_is_2(process: Cli, tmp_path: Path) -> None:
    answer = process("run", tmp_path / "nowhere.tvmfuse")
    assert answer.code == 2
    assert "is not a tvmfuse bundle: no such folder" in answer.error


@pytest.mark.peers
@pytest.mark.parametrize(
    ("dtype", "code", "limit"),
    [("float16", 0, "at most 0.01 apart (float16)"), ("float32", 1, "at most 0.001 apart")],
)
def test_what_passes_depends_on_the_type_that_is_computed_in(
    cli: Cli, tmp_path: Path, dtype: str, code: int, limit: str
) -> None:
    bundle, model = tmp_path / "net.tvmfuse", tmp_path / "net.onnx"
    assert cli("compile", scaled(dtype, 1.0, model), "-o", bundle).code == 0
    other = scaled(dtype, 1.002, tmp_path / "other.onnx")
    answer = cli("run", bundle, "--compare", "onnxruntime", "--model", other)
    assert answer.code == code, answer.out
    assert limit in answer.out
    strict = cli("run", bundle, "--compare", "onnxruntime", "--model", other, "--rtol", "1e-4")
    assert strict.code == 1


def scaled(dtype: str, factor: float, path: Path) -> Path:
    """Write a model that multiplies in ``dtype``, and takes and returns float32."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=kind),
        helper.make_node("Mul", ["h", "c"], ["m"]),
        helper.make_node("Cast", ["m"], ["y"], to=TensorProto.FLOAT),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    constant = numpy_helper.from_array(np.array([factor], dtype), "c")
    graph = helper.make_graph(nodes, "scaled", [x], [y], [constant])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path
