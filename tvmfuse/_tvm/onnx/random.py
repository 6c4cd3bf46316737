"""Random numbers, which TVM 0.27's ONNX importer lacks: they are drawn when importing.

NumPy draws them, by the node's seed or else by its name. So a compiled model is a function: it
gives the same numbers in every run, and two imports of one file give the same model. Their
distribution is the one that the node asks for.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx.node import Node, dtype_of, extents

Array = np.ndarray[Any, Any]
Draw = Callable[[np.random.Generator, list[int]], Array]

_MOST = 2**27  # as many as a folded constant may have


def convert_random_normal(node: Node) -> relax.Expr:
    """Convert ``RandomNormal`` and ``RandomNormalLike``."""
    mean, scale = float(node.attrs.get("mean", 0.0)), float(node.attrs.get("scale", 1.0))
    return _drawn(node, lambda generator, shape: generator.normal(mean, scale, shape))


def convert_random_uniform(node: Node) -> relax.Expr:
    """Convert ``RandomUniform`` and ``RandomUniformLike``."""
    low, high = float(node.attrs.get("low", 0.0)), float(node.attrs.get("high", 1.0))
    return _drawn(node, lambda generator, shape: generator.uniform(low, high, shape))


def convert_bernoulli(node: Node) -> relax.Expr:
    """Convert ``Bernoulli``: one where a uniform number is below the probability.

    ONNX 1.23 defines it by ``Greater``, which gives one with the opposite probability.
    """
    probability = node.inputs[0]
    uniform = _drawn(node, lambda generator, shape: generator.uniform(size=shape), dtype="float32")
    is_one = relax.op.less(uniform, relax.op.astype(probability, "float32"))
    return relax.op.astype(is_one, _dtype(node))


def _drawn(node: Node, draw: Draw, *, dtype: str = "") -> relax.Expr:
    shape = _shape(node)
    if int(np.prod(shape)) > _MOST:
        raise NotImplementedError(
            f"at most {_MOST} random numbers are drawn, but these are {shape}"
        )
    given = node.attrs.get("seed")
    seed = zlib.crc32(node.label.encode()) if given is None else _bits(float(given))
    values = draw(np.random.default_rng(seed), shape)
    dtype = dtype or _dtype(node)
    return relax.const(
        values.astype(np.float64 if dtype == "float64" else np.float32).astype(dtype), dtype
    )


def _bits(seed: float) -> int:
    """Return a whole number for a seed, a float in ONNX."""
    return int(np.float32(seed).view(np.uint32))


def _shape(node: Node) -> list[int]:
    if "shape" in node.attrs:
        return [int(extent) for extent in node.attrs["shape"]]
    found = extents(node.inputs[0])
    if found is None:
        raise NotImplementedError("the shape of random numbers must be known when compiling")
    return list(found)


def _dtype(node: Node) -> str:
    given = node.attrs.get("dtype")
    if given is not None:
        return str(onnx.helper.tensor_dtype_to_np_dtype(int(given)))
    return dtype_of(node.inputs[0]) if node.inputs else "float32"
