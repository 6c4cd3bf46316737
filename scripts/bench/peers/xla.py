"""XLA: the model as jaxonnxruntime's jax function, compiled by jit.

XLA has no knob for its threads but counts the CPUs that it may run on, so the
process is pinned to as many of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ["JAX_TRACEBACK_FILTERING"] = "off"  # an error's last line is then the error itself

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from jaxonnxruntime import call_onnx, config
from jaxonnxruntime.core import handler

Array = np.ndarray[Any, Any]


def load(
    model: str, feeds: Mapping[str, Array], threads: int
) -> tuple[Callable[[], list[Array]], str]:
    """Compile an ONNX file; see ``tvmfuse/runtime/worker.py``."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    # What was compiled stays beside the model for the next process.
    jax.config.update("jax_compilation_cache_dir", str(Path(model).parent / f"xla-{threads}"))
    inputs = dict(feeds)
    call = compiled(model, inputs)
    return lambda: [np.asarray(output) for output in call(inputs)], f"jax {jax.__version__}"


def compiled(model: str, inputs: dict[str, Array]) -> Any:
    """Return an ONNX file as an executable of jax, for inputs of these shapes."""
    jax.config.update("jax_enable_x64", True)  # noqa: FBT003 - ONNX's indices are int64
    # Shapes may come from Constant nodes; a wrong result would be found out.
    config.update("jaxort_only_allow_initializers_as_static_args", False)  # noqa: FBT003
    function, weights = call_onnx.call_onnx_model(onnx.load(model), inputs)
    # Weights are closed over: constants, as they are for every other side.
    return jax.jit(lambda given: function(weights, given)).lower(inputs).compile()


def layer_norm(
    x: jax.Array, scale: jax.Array, bias: jax.Array, *, axis: int = -1, epsilon: float = 1e-5, **_
) -> jax.Array:
    """Normalise over the axes from ``axis`` on."""
    axes = tuple(range(axis % x.ndim, x.ndim))
    centred = x - jnp.mean(x, axes, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axes, keepdims=True)
    return centred * jax.lax.rsqrt(variance + epsilon) * scale + bias


def gather_nd(data: jax.Array, indices: jax.Array, *, batch_dims: int = 0) -> jax.Array:
    """Gather slices of ``data``."""
    if batch_dims:
        raise NotImplementedError("GatherND with batch_dims")
    return data[tuple(jnp.moveaxis(indices, -1, 0))]


def hard_sigmoid(x: jax.Array, *, alpha: float = 0.2, beta: float = 0.5) -> jax.Array:
    """Return alpha x + beta within 0 and 1."""
    return jnp.clip(alpha * x + beta, 0, 1)


def global_max_pool(x: jax.Array) -> jax.Array:
    """Return the largest value of each channel."""
    return jnp.max(x, tuple(range(2, x.ndim)), keepdims=True)


def register(operator: str, function: Callable[..., jax.Array], *, versions: range) -> type:
    """Return a class that tells jaxonnxruntime how to compute an operator in its versions."""

    def prepare(cls: type, node: Any, inputs: Any) -> Callable[..., jax.Array]:
        node.attrs_dict.update(node.attrs)
        return function

    methods = {f"version_{version}": classmethod(prepare) for version in versions}
    return handler.register_op(operator)(type(operator, (handler.Handler,), methods))


# jaxonnxruntime 0.3.0 lacks these, and calls jnp.clip by names that jax has dropped. It finds
# handlers for as long as somebody holds them.
HANDLERS = (
    register("Clip", jnp.clip, versions=range(11, 14)),
    register("GatherND", gather_nd, versions=range(11, 14)),
    register("GlobalMaxPool", global_max_pool, versions=range(1, 2)),
    register("HardSigmoid", hard_sigmoid, versions=range(6, 7)),
    register("IsNaN", jnp.isnan, versions=range(9, 21)),
    register("LayerNormalization", layer_norm, versions=range(17, 18)),
)
