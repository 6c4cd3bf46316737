"""Import a Relax module, and read the signatures of Relax functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfuse._tvm import relax, tirx
from tvmfuse.errors import ModelError
from tvmfuse.frontend.model import Model, Shapes, Signature, TensorSpec
from tvmfuse.frontend.precision import precision


def import_relax(module: Any, shapes: Shapes, *, keep_params: bool) -> Model:
    """Import a Relax module; see :func:`tvmfuse.frontend.import_model`."""
    label = "the Relax module"
    main = _main(module, label)
    n_inputs = int(_attribute(main, "num_input", len(main.params)))
    names = [param.name for param in main.params[:n_inputs]]
    if _attribute(main, "params", None) is not None and not keep_params:
        module = _bind_weights(module, n_inputs)
    module = bind_extents(module, shapes, names, label)
    return Model("module", module, read_signature(module, names, None, label))


def bind_extents(module: Any, shapes: Shapes, names: Sequence[str], label: str) -> Any:
    """Bind the symbolic extents of the inputs of ``main``.

    Parameters
    ----------
    module : IRModule
        Its function ``main`` takes the inputs first.
    shapes : Mapping of str to tuple of int
        Shapes of inputs, by name.
    names : sequence of str
        The inputs' names, in order.
    label : str
        What the model is called in messages.

    Raises
    ------
    ModelError
        ``shapes`` names no input, contradicts a fixed extent or itself, or
        leaves an extent open.
    """
    inputs = dict(zip(names, module["main"].params, strict=False))
    unknown = sorted(set(shapes) - set(inputs))
    if unknown:
        raise ModelError(
            f"{label}: a shape is given for {unknown[0]!r}, which is no input; "
            f"the inputs are {', '.join(map(repr, inputs)) or 'none'}"
        )
    values: dict[Any, int] = {}
    for name, shape in shapes.items():
        for extent, value in zip(inputs[name].ty.shape or (), shape, strict=False):
            if isinstance(extent, tirx.Var):
                values.setdefault(extent, value)
    for name, shape in shapes.items():
        extents = list(inputs[name].ty.shape or ())
        if [values[e] if e in values else int(e) for e in extents] != list(shape):
            raise ModelError(
                f"{label}: the input {_spec(name, inputs[name].ty, label)} cannot have the shape "
                f"{list(shape)}: keep fixed extents, and give one value for each open one"
            )
    if values:
        module = relax.transform.BindSymbolicVars(values)(module)
    _check_closed(module, names, label)
    return module


def read_signature(
    module: Any, inputs: Sequence[str], outputs: Sequence[str] | None, label: str
) -> Signature:
    """Read off the types of a module what it takes, returns and computes in.

    Parameters
    ----------
    module : IRModule
        Its function ``main`` takes the inputs first and returns one tensor or
        a tuple of tensors.
    inputs, outputs : sequence of str
        Names, in order; outputs without names are called ``output_0`` ….
    label : str
        What the model is called in messages.

    Raises
    ------
    ModelError
        An input or output is no tensor.
    """
    main = module["main"]
    result = main.ret_ty
    types = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    outputs = outputs or [f"output_{k}" for k in range(len(types))]
    return Signature(
        inputs=tuple(_spec(n, p.ty, label) for n, p in zip(inputs, main.params, strict=False)),
        outputs=tuple(_spec(n, kind, label) for n, kind in zip(outputs, types, strict=True)),
        precision=precision(module),
    )


def _main(module: Any, label: str) -> Any:
    functions = {var.name_hint: function for var, function in module.functions_items()}
    if not isinstance(functions.get("main"), relax.Function):
        raise ModelError(
            f"{label}: a model needs a Relax function 'main', but there is "
            f"{', '.join(map(repr, sorted(functions))) or 'no function'}"
        )
    return functions["main"]


def _bind_weights(module: Any, n_inputs: int) -> Any:
    module, params = relax.frontend.detach_params(module)
    weights = dict(zip(module["main"].params[n_inputs:], params["main"], strict=True))
    return relax.transform.BindParams("main", weights)(module)


def _check_closed(module: Any, names: Sequence[str], label: str) -> None:
    specs = [
        _spec(name, param.ty, label)
        for name, param in zip(names, module["main"].params, strict=False)
    ]
    left = [spec for spec in specs if any(isinstance(extent, str) for extent in spec.shape)]
    if left:
        shape = ",".join("1" if isinstance(e, str) else str(e) for e in left[0].shape)
        raise ModelError(
            f"{label}: every extent of an input must be known, but these are open: "
            f"{', '.join(map(str, left))}: bind each, for example with "
            f"--shape '{left[0].name}={shape}' (your extents for 1), or in Python with "
            f"shapes={{{left[0].name!r}: ({shape},)}}"
        )


def _spec(name: str, kind: Any, label: str) -> TensorSpec:
    if not isinstance(kind, relax.TensorType) or kind.ndim < 0:
        raise ModelError(f"{label}: {name!r} must be a tensor of known rank, but it is a {kind}")
    if not isinstance(kind.shape, relax.ShapeExpr):
        return TensorSpec(name, tuple(f"{name}_{k}" for k in range(kind.ndim)), str(kind.dtype))
    shape = tuple(int(e) if isinstance(e, tirx.IntImm) else str(e) for e in kind.shape)
    return TensorSpec(name, shape, str(kind.dtype))


def _attribute(function: Any, name: str, default: Any) -> Any:
    return function.attrs[name] if function.attrs and name in function.attrs else default
