"""Integer convolution and matmul, which TVM 0.27's ONNX importer lacks.

``QLinear*`` operators compute on dequantised values and quantise the result,
which is the form that ONNX itself calls QDQ: the same numbers up to one unit
where a float32 sum falls on the edge between two, and kernels that fuse.
"""

from __future__ import annotations

import onnx

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx.node import Node, dtype_of, is_constant


def convert_cast(node: Node) -> relax.Expr:
    """Convert ``Cast``, but leave weights of bytes to the compiler, which knows what reads them.

    TVM 0.27 widens every constant at once, to four times its size.
    """
    value = node.inputs[0]
    is_weight = (
        is_constant(value)
        and dtype_of(value) in ("int8", "uint8")
        and value.ty.ndim > 1
        and int(node.attrs["to"]) == onnx.TensorProto.FLOAT
    )
    return relax.op.astype(value, "float32") if is_weight else node.default()


def convert_conv_integer(node: Node) -> relax.Expr:
    """Convert ``ConvInteger``: both operands minus their zero points, summed in int32."""
    data, weight = (_centred(node, index, channels_first=index == 1) for index in (0, 1))
    return node.convert("Conv", [data, weight], node.attrs)


def convert_qlinear_conv(node: Node) -> relax.Expr:
    """Convert ``QLinearConv``."""
    data = _dequantised(node, 0)
    weight = _dequantised(node, 3, axis=0)
    operands = [data, weight]
    if node.input(8) is not None:
        scale = node.array(1) * node.array(4)
        operands.append(relax.const((node.array(8) * scale).astype("float32")))
    return _quantised(node, node.convert("Conv", operands, node.attrs), scale=6)


def convert_qlinear_matmul(node: Node) -> relax.Expr:
    """Convert ``QLinearMatMul``."""
    left = _dequantised(node, 0, axis=-2)
    right = _dequantised(node, 3, axis=-1)
    return _quantised(node, relax.op.matmul(left, right), scale=6)


def _centred(node: Node, index: int, *, channels_first: bool) -> relax.Expr:
    operand = node.inputs[index]
    value = relax.op.astype(operand, "int32")
    if node.input(index + 2) is not None:
        zero_point = node.array(index + 2).astype("int32")
        if channels_first and zero_point.ndim == 1:
            zero_point = zero_point.reshape(-1, *(1,) * (int(operand.ty.ndim) - 1))
        value = relax.op.subtract(value, relax.const(zero_point))
    return node.emit(value)


def _dequantised(node: Node, index: int, *, axis: int = 1) -> relax.Expr:
    """Return operand ``index``, whose scale and zero point follow it, as float32."""
    operands = list(node.inputs[index : index + 3])
    return node.emit(node.convert("DequantizeLinear", operands, {"axis": axis}))


def _quantised(node: Node, value: relax.Expr, *, scale: int) -> relax.Expr:
    operands = [node.emit(value), node.inputs[scale], node.inputs[scale + 1]]
    return node.convert("QuantizeLinear", operands, {})
