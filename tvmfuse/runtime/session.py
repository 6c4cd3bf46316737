"""Run a compiled model, by position or by name."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tvmfuse import bundle
from tvmfuse._tvm import relax, threads, tvm, tvm_ffi
from tvmfuse._tvm.kernel_clock import KernelClock
from tvmfuse.errors import BundleError
from tvmfuse.frontend import Signature, TensorSpec
from tvmfuse.runtime.arguments import Array, fit_inputs, fit_targets, name_arguments, refuse_unknown
from tvmfuse.runtime.memory import LargePages
from tvmfuse.runtime.samples import random_inputs
from tvmfuse.runtime.timing import Timing, measure
from tvmfuse.runtime.transfer import Slot, is_direct, results_of, weight

if TYPE_CHECKING:
    from tvmfuse.compiled import Compiled


class Session:
    """A compiled model, ready to be called from any number of threads.

    Calls take turns: one TVM machine cannot run two at a time. For calls in
    parallel load one session for each thread, and set ``TVM_NUM_THREADS`` to the
    cores that each may use: as many calls run at once as the cores suffice for.

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
    entry : str
        Name of the function, where it is not ``main``.
    """

    def __init__(
        self,
        library: tvm.runtime.Module | tvm.runtime.Executable,
        params: Iterable[Array],
        *,
        signature: Signature,
        device: tvm.runtime.Device,
        entry: str = "main",
    ) -> None:
        self.signature = signature
        self._library, self._device, self._entry = library, device, entry
        self._main = relax.VirtualMachine(library, device)[entry]
        self._slots = [Slot(spec, device) for spec in signature.inputs]
        pages = LargePages()
        weights = [weight(array, device, pages) for array in params]
        self._params = tvm_ffi.convert(weights)
        memories = (slot.memory for slot in self._slots if slot.memory is not None)
        self._kept = [*pages.mappings, *memories]
        self._is_direct = tuple(is_direct(spec.dtype, device) for spec in signature.outputs)
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
            the caller's own: no later call changes them. Large ones begin at a
            multiple of 64 bytes; passed to a session, such an array is not copied.

        Raises
        ------
        InputError
            An argument is missing, unknown, or of another shape or dtype.
        """
        feeds = name_arguments(self.inputs, args, kwargs)
        outputs = self._run(feeds, out or {})
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, names: Iterable[str] | None, feeds: Mapping[str, Any]) -> list[Array]:
        """Run the model as ONNX Runtime's ``InferenceSession.run`` does.

        Parameters
        ----------
        names : iterable of str, optional
            Outputs to return, in this order; all of them where not given.
        feeds : Mapping of str to numpy.ndarray or DLPack tensor
            The inputs by name.

        Raises
        ------
        InputError
            A name is unknown, or an input is missing or does not fit.
        """
        if names is None:
            return self._run(feeds, {})
        known, wanted = [spec.name for spec in self.outputs], list(names)
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

    def kernel_times(self, feeds: Mapping[str, Any] | None = None) -> list[tuple[str, float]]:
        """Run the model once and time each kernel in its place.

        Its weights have gone cold and its inputs are warm as in any other run.

        Parameters
        ----------
        feeds : Mapping of str to numpy.ndarray or DLPack tensor, optional
            The inputs by name; made up where not given.

        Returns
        -------
        list of (str, float)
            Name and microseconds of every kernel, in order.

        Raises
        ------
        EnvironmentMismatchError
            There is no C++ compiler.
        """
        chosen = random_inputs(self.inputs) if feeds is None else feeds
        arrays = fit_inputs(self.inputs, chosen)
        with self._lock:
            main, clock = self._timed
            tensors = [slot.fill(array) for slot, array in zip(self._slots, arrays, strict=True)]
            clock.take()
            main(*tensors, self._params)
            return [call for call in clock.take() if not call[0].startswith("vm.builtin.")]

    @cached_property
    def _timed(self) -> tuple[Any, KernelClock]:
        """A second machine, with the same weights, whose calls are timed."""
        clock, machine = KernelClock(), relax.VirtualMachine(self._library, self._device)
        clock.attach(machine)
        return machine[self._entry], clock

    def _run(self, feeds: Mapping[str, Any], out: Mapping[str, Array]) -> list[Array]:
        arrays = fit_inputs(self.inputs, feeds)
        targets = fit_targets(self.outputs, out)
        with self._lock, threads.turns():
            tensors = [slot.fill(array) for slot, array in zip(self._slots, arrays, strict=True)]
            result = self._main(*tensors, self._params)
            results = [result] if isinstance(result, tvm.runtime.Tensor) else result
            # Under the lock: an output can be memory that the next call fills anew.
            return results_of(
                results, targets, is_direct=self._is_direct, kept=(*self._kept, *arrays)
            )


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


def _device(attrs: Mapping[str, Any], *, owner: str) -> tvm.runtime.Device:
    """Return the device that code for a target runs on."""
    device = tvm.runtime.device_from_target(dict(attrs), 0)
    if not device.exist:
        raise BundleError(
            f"session: {owner} needs a {attrs['kind']} device, but TVM finds none on this machine; "
            "run it on one that has it, or compile the model with --target cpu"
        )
    return device
