"""Variable names that C++ takes.

TVM 0.27 writes the names of variables into CUDA, Metal and OpenCL text as they
are. Parameters are named after the values of the model, and ONNX models call
those ``conv1/kernel:0`` or ``495``. For CUDA the compiler refuses the text; for
Metal nobody notices before the library is loaded on a Mac.
"""

from __future__ import annotations

import re

from tvmfuse._tvm import tirx, tvm, tvm_ffi


def with_plain_names(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the same function, each variable named by an identifier of C++.

    Names need not be distinct: the code generators number those that clash.
    """
    renamed: dict[tvm.ir.Var, tvm.ir.Var] = {}

    def rename(var: tvm.ir.Var) -> tvm.ir.Var:
        if _is_plain(var.name):
            return var
        if var not in renamed:
            renamed[var] = tvm.ir.Var(_plain(var.name), var.ty)
        return renamed[var]

    return tvm_ffi.structural_map(func, (tvm.ir.Var, rename))


def _is_plain(name: str) -> bool:
    return name.isascii() and name.isidentifier()


def _plain(name: str) -> str:
    plain = re.sub(r"\W", "_", name, flags=re.ASCII)
    return plain if _is_plain(plain) else f"v{plain}"
