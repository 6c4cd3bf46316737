"""The converters that TVM 0.27's ONNX importer lacks or gets wrong, by operator."""

from __future__ import annotations

from tvm.relax.frontend.onnx import onnx_frontend

from tvmfuse._tvm.onnx import (
    arithmetic,
    elementwise,
    grouped,
    indexing,
    losses,
    normalization,
    quantized,
    random,
    recurrent,
    resize,
    rotary,
    shapes,
)

CONVERTERS = {
    "Bernoulli": random.convert_bernoulli,
    "Cast": quantized.convert_cast,
    "Clip": elementwise.convert_clip,
    "Compress": indexing.convert_compress,
    "Constant": shapes.convert_constant,
    "ConvInteger": quantized.convert_conv_integer,
    "DequantizeLinear": grouped.convert_dequantize_linear,
    "EyeLike": shapes.convert_eye_like,
    "Equal": arithmetic.convert_equal,
    "GRU": recurrent.convert_gru,
    "Gather": indexing.convert_gather,
    "GatherElements": indexing.convert_gather_elements,
    "InstanceNormalization": normalization.convert_instance_normalization,
    "LSTM": recurrent.convert_lstm,
    "LayerNormalization": normalization.convert_layer_normalization,
    "NegativeLogLikelihoodLoss": losses.convert_negative_log_likelihood_loss,
    "OneHot": indexing.convert_one_hot,
    "Pad": elementwise.convert_pad,
    "Pow": arithmetic.convert_pow,
    "QLinearConv": quantized.convert_qlinear_conv,
    "QLinearMatMul": quantized.convert_qlinear_matmul,
    "RNN": recurrent.convert_rnn,
    "RandomNormal": random.convert_random_normal,
    "RandomNormalLike": random.convert_random_normal,
    "RandomUniform": random.convert_random_uniform,
    "RandomUniformLike": random.convert_random_uniform,
    "ReduceMean": arithmetic.convert_reduce_mean,
    "Resize": resize.convert_resize,
    "RotaryEmbedding": rotary.convert_rotary_embedding,
    "SoftmaxCrossEntropyLoss": losses.convert_softmax_cross_entropy_loss,
    "TopK": indexing.convert_top_k,
    "Unsqueeze": shapes.convert_unsqueeze,
    "com.microsoft.DynamicQuantizeLSTM": recurrent.convert_dynamic_quantize_lstm,
    "com.microsoft.MatMulNBits": grouped.convert_matmul_n_bits,
    "com.microsoft.RotaryEmbedding": rotary.convert_microsoft_rotary_embedding,
}

# TVM keeps these operators of com.microsoft under their bare names, and takes
# any operator of any domain for the one that it knows by that name.
_MICROSOFT = frozenset(
    {
        "Attention",
        "BiasGelu",
        "EmbedLayerNormalization",
        "FastGelu",
        "MatMulInteger16",
        "SkipLayerNormalization",
    }
)


def qualified(domain: str, op: str) -> str:
    """Return an operator's name, with its domain unless that is ONNX's own."""
    return op if domain in ("", "ai.onnx") else f"{domain}.{op}"


def supported_operators() -> frozenset[str]:
    """Return every operator that can be imported, by qualified name."""
    names = set(CONVERTERS)
    for name in onnx_frontend._get_convert_map():
        names.add(qualified("com.microsoft", name) if name in _MICROSOFT else name)
    return frozenset(names)
