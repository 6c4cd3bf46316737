"""Run a compiled model, by position or by name."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmfuse import bundle
from tvmfuse._tvm import relax, tvm, tvm_ffi
from tvmfuse.errors import BundleError, InputError
from tvmfuse.frontend import Signature, TensorSpec
from tvmfuse.runtime.arguments import Array, fit_inputs, fit_targets, name_arguments, refuse_unknown
from tvmfuse.runtime.samples import random_inputs
from tvmfuse.runtime.timing import Timing, measure
from tvmfuse.runtime.weights import WeightMemory

if TYPE_CHECKING:
    from tvmfuse.compiled import Compiled


class Session:
    """A compiled model, ready to be called from any number of threads.

    Calls take turns: one TVM machine cannot run two at a time. For calls in
    parallel load one session for each thread.

    Parameters
    ----------
    library : tvm.runtime.Module or tvm.runtime.Executable
        Holds ``main``, which takes the inputs, then one tuple of all parameters.
    params : iterable of numpy.ndarray
        The weights, in the order of that tuple.
    signature : Signature
        Names, shapes and dtypes of inputs and outputs.
    device : tvm.runtime.Device
        Where it runs.
    """

    def __init__(
        self,
        library: tvm.runtime.Module | tvm.runtime.Executable,
        params: Iterable[Array],
        *,
        signature: Signature,
        device: tvm.runtime.Device,
    ) -> None:
        self.signature = signature
        self._main = relax.VirtualMachine(library, device)["main"]
        self._slots = [_Slot(spec, device) for spec in signature.inputs]
        memory = WeightMemory()
        self._params = tvm_ffi.convert([_weight(array, device, memory) for array in params])
        self._is_direct = tuple(_is_direct(spec.dtype, device) for spec in signature.outputs)
        self._lock = threading.Lock()

    @classmethod
    def of(cls, compiled: Compiled) -> Session:
        """Return a session of a model that was compiled in this process.

        Raises
        ------
        BundleError
            It was compiled for a device that this machine lacks.
        """
        return cls(
            compiled.executable,
            compiled.params.values(),
            signature=compiled.signature,
            device=_device(compiled.target.attrs, owner=compiled.model_name),
        )

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Names, shapes and dtypes of the inputs."""
        return self.signature.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Names, shapes and dtypes of the outputs."""
        return self.signature.outputs

    def __call__(
        self, *args: Any, out: Mapping[str, Array] | None = None, **kwargs: Any
    ) -> Array | tuple[Array, ...]:
        """Run the model.

        Parameters
        ----------
        *args, **kwargs : numpy.ndarray or any DLPack tensor on the host
            The inputs, in order or by name; or one mapping from names to inputs,
            for names that are no Python identifiers. Each must have exactly the
            shape and dtype of :attr:`inputs`.
        out : Mapping of str to numpy.ndarray, optional
            Arrays to write outputs into, by name.

        Returns
        -------
        numpy.ndarray or tuple of numpy.ndarray
            The output, or all of them in order where there are several. They are
            the caller's own: no later call changes them.

        Raises
        ------
        InputError
            An argument is missing, unknown, or of another shape or dtype.
        """
        feeds = name_arguments(self.inputs, args, kwargs)
        outputs = self._run(feeds, out or {})
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        """Run the model as ONNX Runtime's ``InferenceSession.run`` does.

        Parameters
        ----------
        names : sequence of str, optional
            Outputs to return, in this order; all of them where not given.
        feeds : Mapping of str to numpy.ndarray or DLPack tensor
            The inputs by name.

        Raises
        ------
        InputError
            A name is unknown, or an input is missing or does not fit.
        """
        known = [spec.name for spec in self.outputs]
        wanted = known if names is None else list(names)
        refuse_unknown("output", wanted, known)
        outputs = dict(zip(known, self._run(feeds, {}), strict=True))
        return [outputs[name] for name in wanted]

    def benchmark(self, feeds: Mapping[str, Any] | None = None, *, rounds: int = 20) -> Timing:
        """Time the model in this process, with the copies in and out.

        Parameters
        ----------
        feeds : Mapping of str to numpy.ndarray or DLPack tensor, optional
            The inputs by name; made up where not given.
        rounds : int
            Rounds of about 50 ms each; each gives one median.
        """
        chosen = random_inputs(self.inputs) if feeds is None else feeds
        return measure(lambda: self._run(chosen, {}), rounds=rounds)

    def _run(self, feeds: Mapping[str, Any], out: Mapping[str, Array]) -> list[Array]:
        arrays = fit_inputs(self.inputs, feeds)
        targets = fit_targets(self.outputs, out)
        with self._lock:
            tensors = [slot.fill(array) for slot, array in zip(self._slots, arrays, strict=True)]
            result = self._main(*tensors, self._params)
            results = [result] if isinstance(result, tvm.runtime.Tensor) else result
            # Copied under the lock: an output can be an input's own memory.
            return [
                _copy(found, target, is_direct=is_direct)
                for found, target, is_direct in zip(results, targets, self._is_direct, strict=True)
            ]


def load(path: str | os.PathLike[str]) -> Session:
    """Check a bundle and load it.

    Parameters
    ----------
    path : str or path
        A bundle's directory. It is code: load only what you would also execute.

    Raises
    ------
    BundleError
        The bundle is damaged, or needs another machine.
    EnvironmentMismatchError
        It was made with another TVM.
    """
    found = bundle.read(path)
    # Before the library: TVM's own complaint about a device speaks of loaders.
    device = _device(found.manifest["target"]["attrs"], owner=str(found.path))
    library = tvm.runtime.load_module(str(found.library))
    return Session(library, found.params(), signature=found.signature, device=device)


class _Slot:
    """Where an input is put for TVM.

    A tensor of a fixed shape is kept and filled anew for each call: to make one
    costs as much as copying some ten thousand numbers.
    """

    def __init__(self, spec: TensorSpec, device: tvm.runtime.Device) -> None:
        self._device = device
        self._tensor = None
        self._memory = None
        if all(isinstance(extent, int) for extent in spec.shape):
            self._tensor = tvm.runtime.empty(spec.shape, spec.dtype, device)
            self._memory = np.from_dlpack(self._tensor) if _is_direct(spec.dtype, device) else None

    def fill(self, array: Array) -> tvm.runtime.Tensor:
        """Return a tensor with the values of an array that fits, contiguous or not."""
        if self._tensor is None:
            return _tensor(array, self._device)
        if self._memory is None:
            return self._tensor.copyfrom(array)
        np.copyto(self._memory, array)
        return self._tensor


def _tensor(array: Array, device: tvm.runtime.Device) -> tvm.runtime.Tensor:
    return tvm.runtime.empty(array.shape, array.dtype.name, device).copyfrom(array)


def _weight(array: Array, device: tvm.runtime.Device, memory: WeightMemory) -> tvm.runtime.Tensor:
    if array.nbytes == 0 or not _is_direct(array.dtype.name, device):
        return _tensor(array, device)
    place = memory.empty(array.shape, array.dtype)
    np.copyto(place, array)
    return tvm.runtime.from_dlpack(place)


def _is_direct(dtype: str, device: tvm.runtime.Device) -> bool:
    """Whether NumPy can work on the memory of a tensor itself."""
    is_native = np.dtype(dtype).kind != "V"  # bfloat16 and float8 are "void" to NumPy
    return is_native and device.dlpack_device_type() == tvm.cpu().dlpack_device_type()


def _copy(tensor: tvm.runtime.Tensor, target: Array | None, *, is_direct: bool) -> Array:
    """Return a copy of a result, in ``target`` where given."""
    found = np.from_dlpack(tensor) if is_direct else tensor.numpy()
    if target is None:
        return found.copy() if is_direct else found
    if target.shape != found.shape:
        raise InputError(
            f"session: out has the shape {list(target.shape)}, the output {list(found.shape)}"
        )
    np.copyto(target, found)
    return target


def _device(attrs: Mapping[str, Any], *, owner: str) -> tvm.runtime.Device:
    """Return the device that code for a target runs on."""
    device = tvm.runtime.device_from_target(dict(attrs), 0)
    if not device.exist:
        raise BundleError(
            f"session: {owner} needs a {attrs['kind']} device, but TVM finds none on this machine; "
            "run it on one that has it, or compile the model with --target cpu"
        )
    return device
