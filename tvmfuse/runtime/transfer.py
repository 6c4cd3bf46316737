"""Carry values between NumPy and TVM, without a copy where neither side would notice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tvmfuse._tvm import tvm
from tvmfuse.errors import InputError
from tvmfuse.frontend import TensorSpec
from tvmfuse.runtime.arguments import Array
from tvmfuse.runtime.memory import ALIGNMENT, LargePages

_WORTH_SHARING = 1 << 16  # bytes; to wrap an array costs as much as copying these


class Slot:
    """Where an input is put for TVM.

    A tensor of a fixed shape is kept and filled anew for each call: to make one
    costs as much as copying some ten thousand numbers. A large array whose memory
    TVM's kernels can read where it lies is not copied at all.
    """

    def __init__(self, spec: TensorSpec, device: tvm.runtime.Device) -> None:
        self._device = device
        self._tensor = None
        self.memory: Array | None = None
        self._is_direct = is_direct(spec.dtype, device)
        if all(isinstance(extent, int) for extent in spec.shape):
            self._tensor = tvm.runtime.empty(spec.shape, spec.dtype, device)
            self.memory = np.from_dlpack(self._tensor) if self._is_direct else None

    def fill(self, array: Array) -> tvm.runtime.Tensor:
        """Return a tensor with the values of an array that fits, contiguous or not."""
        if self._is_direct and _can_be_shared(array):
            return tvm.runtime.from_dlpack(array)
        if self._tensor is None:
            return tensor_of(array, self._device)
        if self.memory is None:
            return self._tensor.copyfrom(array)
        np.copyto(self.memory, array)
        return self._tensor


def tensor_of(array: Array, device: tvm.runtime.Device) -> tvm.runtime.Tensor:
    """Return a copy of an array on a device."""
    return tvm.runtime.empty(array.shape, array.dtype.name, device).copyfrom(array)


def weight(array: Array, device: tvm.runtime.Device, pages: LargePages) -> tvm.runtime.Tensor:
    """Return a copy of an array on a device; on the host it lies in ``pages``."""
    if array.nbytes == 0 or not is_direct(array.dtype.name, device):
        return tensor_of(array, device)
    place = pages.empty(array.shape, array.dtype)
    np.copyto(place, array)
    return tvm.runtime.from_dlpack(place)


def is_direct(dtype: str, device: tvm.runtime.Device) -> bool:
    """Whether NumPy can work on the memory of a tensor itself."""
    is_native = np.dtype(dtype).kind != "V"  # bfloat16 and float8 are "void" to NumPy
    return is_native and device.dlpack_device_type() == tvm.cpu().dlpack_device_type()


def results_of(
    tensors: Sequence[tvm.runtime.Tensor],
    targets: Sequence[Array | None],
    *,
    is_direct: Sequence[bool],
    kept: Sequence[Array],
) -> list[Array]:
    """Return the values of results as arrays that nothing else will change.

    Parameters
    ----------
    tensors : sequence of tvm.runtime.Tensor
        What the model returned.
    targets : sequence of numpy.ndarray or None
        Where to write each result, if anywhere.
    is_direct : sequence of bool
        Whether NumPy can read the memory of each.
    kept : sequence of numpy.ndarray
        Memory that the session or its caller goes on using.

    Raises
    ------
    InputError
        A target has another shape than its result.
    """
    found: list[Array] = []
    shared: list[Array] = []  # a second output may be the same memory
    for tensor, target, direct in zip(tensors, targets, is_direct, strict=True):
        array = np.from_dlpack(tensor) if direct else tensor.numpy()
        if target is not None:
            found.append(_into(array, target))
        elif not direct:
            found.append(array)  # a copy already
        elif array.nbytes < _WORTH_SHARING or _is_of_any(array, (*kept, *shared)):
            found.append(array.copy())
        else:
            shared.append(array)
            found.append(array)
    return found


def _is_of_any(array: Array, others: Sequence[Array]) -> bool:
    # Compares bounds only, in a fraction of the time that looking at them in Python takes.
    return any(np.may_share_memory(array, other) for other in others)


def _can_be_shared(array: Array) -> bool:
    return (
        array.nbytes >= _WORTH_SHARING
        and array.flags.c_contiguous
        and array.flags.writeable  # NumPy lends no memory that must not be written
        and array.ctypes.data % ALIGNMENT == 0
    )


def _into(array: Array, target: Array) -> Array:
    if target.shape != array.shape:
        raise InputError(
            f"session: out has the shape {list(target.shape)}, the output {list(array.shape)}"
        )
    np.copyto(target, array)
    return target
