import pytest

from tvmfuse._tvm import te, tirx, tvm, tvm_ffi
from tvmfuse._tvm.names import with_plain_names
from tvmfuse.kernels import dlight
from tvmfuse.targets import resolve


def relu(name: str, rows: str = "n") -> tirx.PrimFunc:
    """Return a function whose parameter and symbolic extent have these names."""
    n = te.var(rows, "int64")
    x = te.placeholder((n, 8), "float32", name=name)
    y = te.compute((n, 8), lambda i, j: tirx.max(x[i, j], tirx.const(0, "float32")), name="y")
    return te.create_prim_func([x, y])


@pytest.mark.parametrize(
    ("name", "plain"),
    [("conv1/kernel:0", "conv1_kernel_0"), ("495", "v495"), ("größe", "gr__e"), ("x", "x")],
)
def test_every_parameter_becomes_an_identifier(name: str, plain: str) -> None:
    assert with_plain_names(relu(name)).params[0].name == plain


def test_function_stays_the_same_but_for_the_names() -> None:
    func = relu("a/b", rows="batch size")
    assert tvm_ffi.structural_equal(func, with_plain_names(func), map_free_vars=True)


def test_symbolic_extents_are_renamed_wherever_they_are_used() -> None:
    names = set()
    func = with_plain_names(relu("x", rows="batch size"))
    tvm_ffi.structural_walk(func, (tvm.ir.Var, lambda var: names.add(var.name)))
    assert "batch_size" in names
    assert "batch size" not in names


def test_tvm_still_writes_names_into_metal_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    target = resolve("metal:m1")
    mod, _ = dlight.schedule(tvm.IRModule({"main": relu("x")}), target)
    (func,) = mod.functions.values()

    def rename(var: tvm.ir.Var) -> tvm.ir.Var:
        return renamed.setdefault(var, tvm.ir.Var("a/b", var.ty)) if var.name == "x" else var

    renamed: dict[tvm.ir.Var, tvm.ir.Var] = {}
    func = tvm_ffi.structural_map(func, (tvm.ir.Var, rename))
    built = tvm.compile(tvm.IRModule({"main": func}), target.tvm())
    assert "a/b" in built.mod.imports[0].inspect_source()
