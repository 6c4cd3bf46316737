"""Convolution and normalisation in NumPy, plainly: what the patterns are checked against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def conv2d(
    x: Any,
    weight: Any,
    *,
    strides: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0, 0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
) -> Any:
    """Convolve tap by tap.

    Parameters
    ----------
    x : ndarray, four axes in the order of ``data_layout``
    weight : ndarray, four axes in the order of ``kernel_layout``
    padding : four ints
        Top, left, bottom, right.

    Returns
    -------
    ndarray
        In ``data_layout``.
    """
    x = x.transpose([data_layout.index(axis) for axis in "NCHW"])
    weight = weight.transpose([kernel_layout.index(axis) for axis in "OIHW"])
    top, left, bottom, right = padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    batch, channels, _, _ = x.shape
    filters, _, taps_y, taps_x = weight.shape
    x = x.reshape(batch, groups, channels // groups, *x.shape[2:])
    weight = weight.reshape(groups, filters // groups, *weight.shape[1:])
    height = (x.shape[3] - dilation[0] * (taps_y - 1) - 1) // strides[0] + 1
    width = (x.shape[4] - dilation[1] * (taps_x - 1) - 1) // strides[1] + 1
    y = np.zeros((batch, groups, filters // groups, height, width))
    for i in range(taps_y):
        for j in range(taps_x):
            rows = slice(i * dilation[0], i * dilation[0] + height * strides[0], strides[0])
            columns = slice(j * dilation[1], j * dilation[1] + width * strides[1], strides[1])
            window = x[:, :, :, rows, columns]
            y += np.einsum("ngchw,gfc->ngfhw", window, weight[:, :, :, i, j])
    y = y.reshape(batch, filters, height, width)
    return y.transpose(["NCHW".index(axis) for axis in data_layout])


def layer_norm(x: Any, gamma: Any, beta: Any, *, epsilon: float = 1e-5) -> Any:
    """Normalise over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred / np.sqrt(variance + epsilon) * gamma + beta


def rms_norm(x: Any, gamma: Any, *, epsilon: float = 1e-5) -> Any:
    """Divide by the root of the mean square over the last axis."""
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * gamma


def group_norm(x: Any, gamma: Any, beta: Any, *, groups: int, epsilon: float = 1e-5) -> Any:
    """Normalise groups of the channels of (batch, channels, ...)."""
    parted = x.reshape(len(x), groups, -1)
    ones = np.ones(parted.shape[2])
    normal = layer_norm(parted, ones, 0 * ones, epsilon=epsilon).reshape(x.shape)
    by_channel = (-1, *[1] * (x.ndim - 2))
    return normal * gamma.reshape(by_channel) + beta.reshape(by_channel)


def softmax(x: Any) -> Any:
    """Exponentiate and normalise over the last axis."""
    raised = np.exp(x - x.max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)
