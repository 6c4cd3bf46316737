"""Name a kernel by what it computes, whatever its variables, buffers and blocks are called.

TVM's structural hash changes between releases, so the key is a hash of the program's text in
which every name is replaced by a number, counted in the order of definition. Equal keys are a
bucket: structural equality has the last word.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from typing import Any

from tvmfuse._tvm import s_tir, tvm, tvm_ffi
from tvmfuse._tvm.failures import FAILURES
from tvmfuse._tvm.versions import installed
from tvmfuse.errors import StoreError
from tvmfuse.store.records import Workload

_ENTRY = "main"
_KEPT_ATTRS = ("tirx.noalias", "s_tir")
_NAMED_BY_FIRST_ARGUMENT = ("sblock",)


def normalise(function: Any) -> Any:
    """Return the module under which a kernel is stored and found.

    TVM finds a record only where the attributes of the function are exactly these.

    Parameters
    ----------
    function : tirx.PrimFunc
        Unscheduled S-TIR, with any attributes.

    Returns
    -------
    tvm.IRModule
        The function alone, under the name ``main``.
    """
    for name in tuple(function.attrs.keys()) if function.attrs else ():
        if name not in _KEPT_ATTRS:
            function = function.without_attr(name)
    function = function.with_attr(dict.fromkeys(_KEPT_ATTRS, True))
    return tvm.IRModule({_ENTRY: function.with_attr("global_symbol", _ENTRY)})


def entry(module: Any) -> Any:
    """Return the one function of a module.

    Raises
    ------
    StoreError
        There is none, or more than one.
    """
    functions = list(module.functions.values())
    if len(functions) != 1:
        raise StoreError(
            f"store: a workload is a module of one function, but got {len(functions)}; "
            "take it apart first"
        )
    return functions[0]


def workload_key(function: Any) -> str:
    """Return the key of a kernel, as 64 hexadecimal digits.

    Parameters
    ----------
    function : tirx.PrimFunc
        Unscheduled S-TIR, with any attributes and names.
    """
    return _key(normalise(function))


def workload(function: Any) -> Workload:
    """Return a kernel as a store keeps it.

    Parameters
    ----------
    function : tirx.PrimFunc
        Unscheduled S-TIR, with any attributes and names.
    """
    module = normalise(function)
    return Workload(
        key=_key(module),
        module=tvm.ir.save_json(module),
        tvm_version=installed()[0],
        summary=_summary(module[_ENTRY]),
    )


def accumulation(function: Any) -> str:
    """Return the element type of a kernel's sums; of its result where it has none."""
    found: list[Any] = []
    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, found.append))
    sums = [block.init.buffer.dtype for block in found if hasattr(block.init, "buffer")]
    return str(sums[0] if sums else function.params[-1].ty.dtype)


def is_same_module(first: str, second: str) -> bool:
    """Whether two modules, as TVM's JSON, are structurally equal."""
    if first == second:
        return True
    try:
        return bool(tvm_ffi.structural_equal(tvm.ir.load_json(first), tvm.ir.load_json(second)))
    except FAILURES:  # another TVM wrote it, in a form that this one does not read
        return False


def block_names(function: Any) -> list[str]:
    """Return the names of the blocks of a kernel, in the order of the program."""
    tree = ast.parse(function.script(show_meta=True))
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    blocks = [call for call in calls if _is_block(call) and call.args]
    blocks.sort(key=lambda call: (call.lineno, call.col_offset))
    return [ast.literal_eval(call.args[0]) for call in blocks]


def _key(module: Any) -> str:
    tree = ast.parse(module.script(show_meta=True))
    return hashlib.sha256("\n".join(_numbered(tree, {})).encode()).hexdigest()


def _numbered(node: Any, numbers: dict[str, int]) -> Iterator[str]:
    """Yield a syntax tree as words; a definition gives a name its next number."""
    if isinstance(node, ast.Name | ast.arg):
        name = node.id if isinstance(node, ast.Name) else node.arg
        if isinstance(node, ast.arg):
            yield from _numbered(node.annotation, numbers)
        if isinstance(node, ast.arg) or isinstance(node.ctx, ast.Store):
            numbers[name] = numbers.get("", 0)
            numbers[""] = numbers[name] + 1
        yield f"#{numbers[name]}" if name in numbers else name
        return
    if isinstance(node, ast.Constant):
        yield repr(node.value)
        return
    if isinstance(node, list):
        yield f"[{len(node)}"
        for child in node:
            yield from _numbered(child, numbers)
        return
    if not isinstance(node, ast.AST):
        yield str(node)
        return
    is_block = isinstance(node, ast.Call) and _is_block(node)
    yield type(node).__name__
    for field, value in ast.iter_fields(node):
        # Python's releases differ in the fields that they leave empty.
        if value not in (None, []) and field != "ctx" and not (is_block and field == "args"):
            yield field
            yield from _numbered(value, numbers)


def _is_block(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in _NAMED_BY_FIRST_ARGUMENT


def _summary(function: Any) -> str:
    """Return what a person reads: the blocks, and the types of the arguments."""
    types = (f"{p.ty.dtype}[{','.join(map(_extent, p.ty.shape))}]" for p in function.params)
    names = [name for name in block_names(function) if name != "root"]
    return f"{'+'.join(names)} ({', '.join(types)})"


def _extent(extent: Any) -> str:
    """Write an extent; one of 64 bits prints as ``T.int64(3)`` otherwise."""
    return str(extent.value if isinstance(extent, tvm.tirx.IntImm) else extent)
