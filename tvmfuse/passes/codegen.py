"""TVM's own passes before and after ours, and its code generator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from tvmfuse._tvm import branches, registers, relax, tirx, tvm, tvm_ffi
from tvmfuse.errors import LoweringError

Rule = Callable[[Any, Any], Any]  # (relax.BlockBuilder, relax.Call) -> relax.Expr
_NONE: Mapping[str, Rule] = MappingProxyType({})

# How TVM fails to generate code: its own errors, and what LLVM's verifier reports.
FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, LoweringError)


def dispatch_libraries(mod: Any, target: Any, *, own: Mapping[str, Rule] = _NONE) -> Any:
    """Let TVM's library passes take sorting and sampling, which are no kernels of ours.

    Parameters
    ----------
    mod : tvm.IRModule
        Relax operators.
    target : tvm.target.Target
        The device.
    own : Mapping of str to callable
        Legalisations, by operator, of what these passes would take but should not.
    """
    for var, function in mod.functions.items():
        if isinstance(function, relax.Function) and _operators(function) & set(own):
            taken = _Taken(mod, own)
            taken.builder_.update_func(var, taken.visit_expr(function))
            mod = taken.builder_.get()
    return _run(mod, target, relax.pipeline.library_dispatch_passes(target))


def _operators(function: Any) -> set[str]:
    found: set[str] = set()
    note = lambda call: found.add(str(getattr(call.op, "name", "")))  # noqa: E731
    tvm_ffi.structural_walk(function, (relax.Call, note))
    return found


@relax.expr_functor.mutator
class _Taken(relax.PyExprMutator):
    """Legalises some operators."""

    def __init__(self, mod: Any, rules: Mapping[str, Rule]) -> None:
        super().__init__(mod)
        self._rules = rules

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        rule = self._rules.get(str(getattr(call.op, "name", "")))
        return rule(self.builder_, call) if rule else call


def lower_views(mod: Any, target: Any) -> Any:
    """Lower what stands outside groups; a reshape becomes a view of the same bytes."""
    passes = [
        relax.transform.LegalizeOps(),
        relax.transform.RewriteDataflowReshape(),
        relax.transform.DeadCodeElimination(),
    ]
    return _run(mod, target, passes)


def finish(mod: Any, target: Any) -> Any:
    """Plan memory and turn the graph into calls of the runtime."""
    passes = [
        relax.transform.ToNonDataflow(),
        relax.transform.RemovePurityChecking(),
        relax.transform.CallTIRRewrite(),
        *branches.finalize_passes(mod, target),
    ]
    return _run(mod, target, passes)


def generate(mod: Any, target: Any) -> Any:
    """Compile a module of scheduled kernels.

    Returns
    -------
    tvm.runtime.Executable
        With its function ``main``.
    """
    with target:
        return tvm.compile(
            finish(mod, target),
            target,
            relax_pipeline=_nothing(),
            tir_pipeline=registers.PIPELINE,
        )


def generate_kernels(kernels: Mapping[str, Any], target: Any) -> Any:
    """Compile scheduled kernels alone, each under a name of its own.

    Returns
    -------
    tvm.runtime.Executable
        With a function for each.
    """
    named = {name: each.with_attr("global_symbol", name) for name, each in kernels.items()}
    with target:
        return tvm.compile(tvm.IRModule(named), target, tir_pipeline=registers.PIPELINE)


def broken_kernels(mod: Any, target: Any) -> Iterator[tuple[str, str]]:
    """Yield each kernel for which no code can be generated, and why.

    Parameters
    ----------
    mod : tvm.IRModule
        Scheduled kernels.
    target : tvm.target.Target
        The device.
    """
    for var, function in mod.functions.items():
        if not isinstance(function, tirx.PrimFunc):
            continue
        alone = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
        try:
            with target:
                tvm.compile(alone, target, tir_pipeline=registers.PIPELINE)
        except FAILURES as error:
            yield str(var.name_hint), one_line(error)


def one_line(error: Exception) -> str:
    """Return the last line of what an error says: TVM prints whole programs before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]


def _run(mod: Any, target: Any, passes: list[Any]) -> Any:
    with target:
        return tvm.transform.Sequential(passes)(mod)


def _nothing() -> Any:
    return tvm.transform.Sequential([])
