"""A compiled model: what the pipeline makes and a bundle keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tvmfuse.errors import TuningError
from tvmfuse.plan import FusionPlan
from tvmfuse.targets import Target

if TYPE_CHECKING:
    import numpy as np
    import tvm

    from tvmfuse.frontend import Signature

Schedule = Literal[
    "family",  # the zero-trial schedule of its kernel family
    "tuned",  # a record of the tuning store
    "generic",  # plain parallel and vectorised loops
    "none",  # a library or a runtime function: nothing to schedule
    "fallback",  # the fused form failed to build; its parts run instead
]


@dataclass(frozen=True)
class KernelInfo:
    """One kernel of a compiled model, for people to read.

    Parameters
    ----------
    name : str
        Its function in the library.
    family : str
        Kernel family, see ``kernels/``; "" where it has none.
    pattern : str
        Pattern that formed its group; "" for an operator on its own.
    schedule : str
        Where its schedule came from, see :data:`Schedule`.
    note : str
        What else there is to say: why it fell back, which record it uses.
    nodes : tuple of str
        The nodes of the model that it computes, at every place that it is called from.
    places : tuple of tuple of int
        The bindings that it computes, for each place that it is called from.
    """

    name: str
    family: str
    pattern: str
    schedule: Schedule
    note: str = ""
    nodes: tuple[str, ...] = ()
    places: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Compiled:
    """A model compiled for one target.

    Parameters
    ----------
    model_name : str
        What a person calls the model: usually the name of its file.
    executable : tvm.runtime.Executable
        Its function ``main`` takes the inputs in order, then one tuple that holds
        every parameter in order, and returns a tensor or a tuple of tensors.
    params : Mapping of str to numpy.ndarray
        The weights, in the order of that tuple.
    signature : Signature
        Names, shapes and dtypes of the inputs and outputs.
    target : Target
        The device that it was compiled for.
    plan : FusionPlan
        What was fused, and why the rest was not.
    kernels : tuple of KernelInfo
        Every kernel in the library.
    seconds : Mapping of str to float
        Time that each stage took, in order.
    """

    model_name: str
    executable: tvm.runtime.Executable
    params: Mapping[str, np.ndarray[Any, Any]]
    signature: Signature
    target: Target
    plan: FusionPlan
    kernels: tuple[KernelInfo, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def untuned(self) -> tuple[str, ...]:
        """Names of the kernels that could have a tuning record and have none for this device."""
        return tuple(kernel.name for kernel in self.kernels if kernel.schedule == "family")

    def require_tuned(self) -> None:
        """Raise where a kernel that could be tuned is not.

        Raises
        ------
        TuningError
            It names them.
        """
        if self.untuned:
            raise TuningError(
                f"compile: a record of every kernel is required, but {len(self.untuned)} have "
                f"none for this device: {', '.join(self.untuned)}; run tvmfuse tune first"
            )
