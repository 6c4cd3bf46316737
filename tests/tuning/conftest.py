"""A small model to tune, and a store to tune it into."""

from __future__ import annotations

from collections.abc import Iterator
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
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(0).standard_normal((24, 32)).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["t"]), helper.make_node("Relu", ["t"], ["y"])],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 32])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path_factory.mktemp("onnx") / "product.onnx"
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
