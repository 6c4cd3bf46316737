"""A small model to tune, and a store to tune it into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tvmfuse.store import Session, Store, open_store
from tvmfuse.store.devices import device_of, target_key
from tvmfuse.targets import Target, resolve
from tvmfuse.tuning.history import StoreHistory


@pytest.fixture(scope="session")
def product_onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matrix product with a relu, which has a dozen ways to be scheduled."""
    return _products(tmp_path_factory.mktemp("onnx") / "product.onnx", 16, (24, 32))


@pytest.fixture(scope="session")
def products_onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several products, each of another size: work for a while."""
    path = tmp_path_factory.mktemp("onnx") / "products.onnx"
    return _products(path, 96, (128, 192, 320, 256, 448, 160))


def _products(path: Path, rows: int, widths: Sequence[int]) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for i, (depth, width) in enumerate(pairwise(widths)):
        weight = rng.standard_normal((depth, width)).astype("float32")
        weights.append(numpy_helper.from_array(weight, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"t{i}"]))
        value = f"r{i}"
        nodes.append(helper.make_node("Relu", [f"t{i}"], [value]))
    graph = helper.make_graph(
        nodes,
        path.stem,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, widths[0]])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [rows, widths[-1]])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


@pytest.fixture
def target() -> Target:
    return resolve("cpu")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "trials.db") as opened:
        yield opened


@pytest.fixture
def history(store: Store, target: Target) -> StoreHistory:
    session = Session("tvmfuse tune", "host")
    store.add_session(session)
    return StoreHistory(store, device_of(target), target_key(target), session)
