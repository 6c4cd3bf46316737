"""Check what a model is called with, before TVM sees it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tvmfuse.errors import InputError
from tvmfuse.frontend import TensorSpec

Array = np.ndarray[Any, Any]


def name_arguments(
    specs: Sequence[TensorSpec], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return inputs by name.

    Parameters
    ----------
    specs : sequence of TensorSpec
        The model's inputs, in order.
    args, kwargs : sequence, Mapping
        Inputs by position and by name; or one mapping alone in ``args``.

    Raises
    ------
    InputError
        There are too many, or one is given twice.
    """
    if len(args) == 1 and isinstance(args[0], Mapping) and not kwargs:
        return args[0]
    if len(args) > len(specs):
        names = ", ".join(spec.name for spec in specs)
        raise InputError(
            f"session: required are {len(specs)} inputs ({names}), but got {len(args)}"
        )
    feeds = {spec.name: value for spec, value in zip(specs, args, strict=False)}
    if not kwargs:
        return feeds
    for name in feeds.keys() & kwargs.keys():
        raise InputError(f"session: input {name!r} is given twice, by position and by name")
    return {**feeds, **kwargs}


def fit_inputs(specs: Sequence[TensorSpec], feeds: Mapping[str, Any]) -> list[Array]:
    """Return the inputs in order, as arrays of exactly the shape and dtype required.

    Parameters
    ----------
    specs : sequence of TensorSpec
        The model's inputs, in order.
    feeds : Mapping of str to numpy.ndarray or DLPack tensor
        The inputs by name.

    Raises
    ------
    InputError
        A name is missing or unknown, or an input has another shape or dtype.
    """
    sizes: dict[str, int] = {}
    arrays = []
    for spec in specs:
        array = feeds.get(spec.name)
        # What fits at once, as in most calls, is not looked at twice: this is in every call's time.
        if type(array) is not np.ndarray or array.shape != spec.shape or array.dtype != spec.dtype:
            array = _fit_input(spec, specs, feeds, sizes)
        arrays.append(array)
    if len(feeds) != len(specs):
        refuse_unknown("input", feeds, [spec.name for spec in specs])
    return arrays


def fit_targets(specs: Sequence[TensorSpec], out: Mapping[str, Array]) -> list[Array | None]:
    """Return, for every output in order, the array to write it into, if any.

    Raises
    ------
    InputError
        A name is unknown, or an array does not fit or cannot be written to.
    """
    if not out:
        return [None] * len(specs)
    refuse_unknown("output", out, [spec.name for spec in specs])
    for spec in specs:
        if spec.name in out and not _is_target(spec, out[spec.name]):
            raise InputError(
                f"session: out[{spec.name!r}] must be a writable NumPy array, {_required(spec)}"
            )
    return [out.get(spec.name) for spec in specs]


def refuse_unknown(role: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise :class:`InputError` for the first name that the model does not have."""
    for name in given:
        if name not in known:
            raise InputError(
                f"session: there is no {role} {name!r}; the {role}s are {', '.join(known)}"
            )


def _fit_input(
    spec: TensorSpec, specs: Sequence[TensorSpec], feeds: Mapping[str, Any], sizes: dict[str, int]
) -> Array:
    if spec.name not in feeds:
        refuse_unknown("input", feeds, [each.name for each in specs])  # it may be misspelt
        raise InputError(f"session: input {spec.name!r}, {_required(spec)}, is missing")
    array = _as_array(spec, feeds[spec.name])
    known = "".join(f" with {name} = {sizes[name]}" for name in spec.shape if name in sizes)
    if array.dtype != spec.dtype or not _has_shape(array, spec, sizes):
        raise InputError(
            f"session: input {spec.name!r} must be {_required(spec)}{known}, "
            f"but got {array.dtype} {list(array.shape)}"
        )
    return array


def _as_array(spec: TensorSpec, value: Any) -> Array:
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    found = type(value).__name__
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            found += f", which NumPy cannot read ({error})"
    raise InputError(
        f"session: input {spec.name!r} must be a NumPy array or a DLPack tensor on the host, "
        f"{_required(spec)}, but got {found}"
    )


def _has_shape(array: Array, spec: TensorSpec, sizes: dict[str, int]) -> bool:
    """Compare extents; the first size met of one that has a name is its size from then on."""
    if array.shape == spec.shape:
        return True
    return array.ndim == len(spec.shape) and all(
        found == (sizes.setdefault(extent, found) if isinstance(extent, str) else extent)
        for extent, found in zip(spec.shape, array.shape, strict=True)
    )


def _is_target(spec: TensorSpec, array: Any) -> bool:
    return (
        isinstance(array, np.ndarray)
        and array.flags.writeable
        and array.dtype == spec.dtype
        and _has_shape(array, spec, {})
    )


def _required(spec: TensorSpec) -> str:
    return f"{spec.dtype} [{', '.join(map(str, spec.shape))}]"
