"""Let large results pass by the caches.

A processor reads a cache line before it writes a part of it, unless the store is marked as
non-temporal: then memory sees two streams instead of three where one is copied. TVM 0.27 has
no such store. It takes functions in LLVM's text, though, and inlines them; here the vector
stores below a loop that a schedule marks become calls of them.

Such stores are not ordered with others. What TVM's threads signal their end by is an atomic
exchange, which waits for them; a thread sees its own ones anyway.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

PRAGMA = "pragma_tvmfuse_streamed"
"""Annotation of a loop. The vectors stored below it must begin at multiples of their length."""

_LLVM = {"float16": "half", "float32": "float", "float64": "double"}
_ALIGNMENT = 64  # bytes, at which results begin


def streamed(body: Any) -> Any:
    """Return a statement whose marked loops store as they are asked to."""
    scratch: list[Any] = []
    tvm_ffi.structural_walk(body, (tirx.AllocBuffer, lambda s: scratch.append(s.buffer.data)))

    def marked(statement: Any) -> Any:
        return _streamed(statement, scratch) if statement.attr_key == PRAGMA else statement

    return tvm_ffi.structural_map(body, (tirx.AttrStmt, marked))


def _streamed(marked: Any, scratch: list[Any]) -> Any:
    """Return the loop below a mark, with the functions that its stores became."""
    needed: dict[str, str] = {}

    def stored(store: Any) -> Any:
        kind = tvm.DataType(str(store.value.ty.dtype))
        if not _is_covered(store, kind, scratch):
            return store
        name = f"tvmfuse_stream_{kind}"
        needed[name] = _function(name, kind)
        first = tirx.BufferLoad(store.buffer, [store.indices[0].base])
        return tirx.Evaluate(tirx.call_extern("int32", name, tirx.address_of(first), store.value))

    body = tvm_ffi.structural_map(marked.body, (tirx.BufferStore, stored))
    for text in needed.values():
        body = tirx.AttrStmt(marked.node, "pragma_import_llvm", tvm.ir.StringImm(text), body)
    return body


def _is_covered(store: Any, kind: Any, scratch: list[Any]) -> bool:
    (index, *more) = store.indices
    return (
        not more
        and isinstance(index, tirx.Ramp)
        and str(index.stride) == "1"
        and _element(kind) in _LLVM
        and not any(store.buffer.data.same_as(data) for data in scratch)
    )


def _element(kind: Any) -> str:
    return str(kind).partition("x")[0]


def _function(name: str, kind: Any) -> str:
    vector = f"<{kind.lanes} x {_LLVM[_element(kind)]}>"
    alignment = min(_ALIGNMENT, kind.itemsize * kind.lanes)
    return (
        f"define i32 @{name}(ptr %to, {vector} %value) {{\n"
        f"  store {vector} %value, ptr %to, align {alignment}, !nontemporal !0\n"
        "  ret i32 0\n}\n!0 = !{i32 1}\n"
    )
