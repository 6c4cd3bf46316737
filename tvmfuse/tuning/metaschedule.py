"""Search TVM's own space of a kernel, by MetaSchedule's rules and its evolutionary search.

It serves kernels that no family covers. Only the proposing is TVM's, with its cost model of
boosted trees, which learns from what was measured: candidates are built, checked and timed by
our workers, and kept in our store.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tvmfuse._tvm import s_tir, tvm
from tvmfuse._tvm.failures import FAILURES
from tvmfuse._tvm.imports import import_tensor_intrinsics
from tvmfuse.kernels import traces
from tvmfuse.store.records import to_text
from tvmfuse.tuning.space import TRACE, Point

ms = s_tir.meta_schedule

_BATCH = 6
_MOST_TRIALS = 10_000
# Stock settings replay 2,500 traces before the first is measured.
_WARM_UP = 2 * _BATCH  # measured candidates before TVM's cost model ranks; TVM's own number is 100
_POPULATION = {
    "population_size": 64,
    "init_min_unmeasured": 16,
    "genetic_num_iters": 2,
    "genetic_max_fail_count": 4,
    "max_fail_count": 3,
}


@dataclass
class TraceSearch:
    """What is known of one kernel in TVM's space, and what to measure next.

    It takes the place of :class:`tvmfuse.tuning.strategy.Search`; each point is a trace.

    Parameters
    ----------
    module : str
        TVM's JSON of the kernel's module.
    target : Any
        The TVM target.
    default : Mapping
        The zero-trial kernel, which is proposed first.
    seed : int
        Chooses what is drawn.
    costs : dict
        Times of what was measured, in microseconds; None where it failed.
    is_exhausted : bool
        Whether TVM has nothing more to propose.
    """

    module: str
    target: Any
    default: Point = field(default_factory=dict)
    seed: int = 0
    costs: dict[str, float | None] = field(default_factory=dict)
    is_exhausted: bool = False
    _context: Any = None
    _cost_model: Any = None
    _database: Any = field(default_factory=ms.database.MemoryDatabase)
    _proposed: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def best_us(self) -> float:
        """The shortest time so far; infinite before the first success."""
        return min((cost for cost in self.costs.values() if cost is not None), default=float("inf"))

    def propose(self, count: int) -> list[Point]:
        """Return up to ``count`` points to measure next; the default comes first of all."""
        if not self.costs:
            return [self.default]
        try:
            self._tell()
            found = self._started().search_strategy.generate_measure_candidates()
        except FAILURES:  # no rule fits, or one of them fails on this kernel
            found = None
        if not found:
            self.is_exhausted = True
            return []
        self._proposed = [(_text(each), each) for each in found]
        points: list[Point] = [{TRACE: text} for text, _ in self._proposed]
        return points[:count]

    def observe(self, point: Point, time_us: float | None, *, asked: Point | None = None) -> None:
        """Take note of a measurement; None stands for a failure."""
        text = str(point.get(TRACE, ""))
        self.costs[text] = time_us
        if text and time_us is not None:
            self._database.commit_tuning_record(self._record(text, time_us))

    def potential(self) -> float:
        """Return the share of the time that a model expects still to be saved: it has none."""
        return 0.0

    def _started(self) -> Any:
        if self._context is None:
            import_tensor_intrinsics()
            context = ms.TuneContext(
                mod=tvm.ir.load_json(self.module),
                target=self.target,
                space_generator="post-order-apply",
                search_strategy=ms.search_strategy.EvolutionarySearch(**_POPULATION),
                rand_state=self.seed % 2**31 or 1,
                num_threads=1,
            )
            self._cost_model = ms.cost_model.XGBModel(
                num_warmup_samples=_WARM_UP, num_tuning_cores=1, adaptive_training=False
            )
            context.pre_tuning(
                max_trials=_MOST_TRIALS,
                num_trials_per_iter=_BATCH,
                design_spaces=context.generate_design_space(),
                database=self._database,
                cost_model=self._cost_model,
            )
            self._context = context
        return self._context

    def _tell(self) -> None:
        """Hand the results of the last candidates to TVM; those not tried count as failed."""
        if not self._proposed:
            return
        times = [self.costs.get(text) for text, _ in self._proposed]
        results = [
            ms.runner.RunnerResult(None, "failed")
            if time is None
            else ms.runner.RunnerResult([time * 1e-6], None)
            for time in times
        ]
        candidates = [candidate for _, candidate in self._proposed]
        self._cost_model.update(self._context, candidates, results)
        self._context.search_strategy.notify_runner_results(candidates, results)
        self._proposed = []

    def _record(self, text: str, time_us: float) -> Any:
        module = tvm.ir.load_json(self.module)
        workload = self._database.commit_workload(module)
        data = [json.loads(text), [time_us * 1e-6], None, None]
        return ms.database.TuningRecord.from_json(data, workload)


def _text(candidate: Any) -> str:
    return to_text(traces.to_json(candidate.sch.trace))
