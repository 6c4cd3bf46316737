"""Hold a pattern to its contract, and say of each of its tests how it went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from tvmfuse import _pipeline, testing
from tvmfuse._tvm import tvm
from tvmfuse.passes import codegen
from tvmfuse.passes.canonicalise import canonicalise
from tvmfuse.passes.verify import is_one_kernel, kernel_facts
from tvmfuse.patterns.base import Case, Generator
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.plugins import describe
from tvmfuse.patterns.registry import Registry
from tvmfuse.plan import Candidate, RunTime
from tvmfuse.targets import Target


@dataclass(frozen=True)
class Verdict:
    """How one test of a pattern went.

    Parameters
    ----------
    pattern, test, case : str
        Names of the pattern, the test and the case.
    fault : str
        What is wrong; "" where it passed.
    """

    pattern: str
    test: str
    case: str
    fault: str = ""


class AlwaysFuse:
    """A cost model under which every candidate is worth it, the larger the more."""

    def predict(self, candidate: Candidate) -> RunTime:
        """Return one microsecond saved for each operator."""
        return RunTime(fused_us=1.0, unfused_us=1.0 + len(candidate.bindings))


def verdicts(
    pattern: Generator, target: Target, *, dtypes: Sequence[str] = ("float32",)
) -> Iterator[Verdict]:
    """Run every test of a pattern.

    Parameters
    ----------
    pattern : Generator
        The pattern, with its cases and near misses.
    target : Target
        A CPU that code runs on here.
    dtypes : sequence of str
        Element types of the cases.

    Yields
    ------
    Verdict
        Whether the pattern is met in the form that models have when patterns look at them.
        For each case: whether it is matched once, right, and one kernel. For each near
        miss: whether it is refused.
    """
    if not pattern.cases:
        yield Verdict(pattern.name, "has cases", "", "it has none, so nothing shows that it works")
        return
    yield _verdict(pattern, "is met in models", "", partial(_check_met, pattern))
    for case, dtype in product(pattern.cases, dtypes):
        label = f"{case.name} ({dtype})" if len(dtypes) > 1 else case.name
        yield _verdict(
            pattern, "matches once", label, partial(testing.check_case, pattern, case, dtype)
        )
        for test, check in (("is right", check_pipeline), ("is one kernel", check_one_kernel)):
            yield _verdict(pattern, test, label, partial(check, pattern, case, dtype, target))
    for case in pattern.near_misses:
        check_miss = partial(testing.check_near_miss, pattern, case)
        yield _verdict(pattern, "refuses", case.name, check_miss)


def check_pipeline(pattern: Generator, case: Case, dtype: str, target: Target) -> None:
    """Check that the kernels which the pipeline makes of a case agree with NumPy."""
    mod, values = testing.build(case, testing.graph_of(pattern, case), dtype)
    executable = tvm.compile(
        mod, target.tvm(), relax_pipeline=_pipeline.pipeline(target, options=_only(pattern))
    )
    testing.check_numbers(pattern, case, values, executable=executable)


def check_one_kernel(pattern: Generator, case: Case, dtype: str, target: Target) -> None:
    """Check that a case becomes one kernel, in the sense of :mod:`tvmfuse.passes.verify`."""
    mod, _ = testing.build(case, testing.graph_of(pattern, case), dtype)
    prepared = _pipeline.prepare(mod, target, options=_only(pattern))
    for rejection in prepared.plan.rejections:
        assert rejection.stage != "lower", f"it was dissolved: {rejection.reason}"
    for name, origin in prepared.lowered.origins.items():
        kernel = prepared.schedules.kernels.get(name)
        if origin.pattern == pattern.name and kernel is not None and kernel.family:
            facts = kernel_facts(kernel.function)
            assert is_one_kernel(facts), (
                f"{name} is {facts.loop_nests} loop nests in {facts.parallel_regions} parallel "
                f"regions, with {facts.scratch_bytes} bytes between them"
            )


def _check_met(pattern: Generator) -> None:
    """Check that some case is still matched once a model has been simplified."""
    seen = []
    for case in pattern.cases:
        mod, _ = testing.build(case, testing.graph_of(pattern, case), "float32")
        simple = canonicalise(mod)
        if testing.covers_of_everything(pattern, simple):
            return
        operators = Dataflow.of("main", simple["main"]).operators
        seen.append(" + ".join(name.removeprefix("relax.") for name in operators))
    raise AssertionError(
        f"patterns see models in a simpler form, where its cases are {'; '.join(seen)}: "
        "write the graph like that"
    )


def _only(pattern: Generator) -> _pipeline.Options:
    return _pipeline.Options(registry=Registry((pattern,)), cost_model=AlwaysFuse())


def _verdict(pattern: Generator, test: str, case: str, check: Callable[[], None]) -> Verdict:
    try:
        check()
    except AssertionError as error:
        return Verdict(pattern.name, test, case, codegen.one_line(error))
    except Exception as error:  # noqa: BLE001 - a pattern of somebody else's may raise anything
        return Verdict(pattern.name, test, case, describe(error))
    return Verdict(pattern.name, test, case)
