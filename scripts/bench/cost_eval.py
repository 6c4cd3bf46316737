"""Judge the cost model and the planners by what was measured; write the table of README.

Only architectures count that training never saw (``held_out_families`` of
``models.toml``). Kernels and decisions are judged by one file of measurements; plans as
a whole by every plan of a model in it, each of which was run end to end::

    python scripts/bench/cost_eval.py --data FILE.jsonl --target cpu:x86-64-v3
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tvmfuse import targets
from tvmfuse.cost import data, examples, judging
from tvmfuse.cost.data import Measurements
from tvmfuse.cost.judging import Decision, ModelScore
from tvmfuse.cost.roofline import Roofline
from tvmfuse.plan import Candidate, CostModel, FunctionGraph
from tvmfuse.planner import STRATEGIES, choose
from tvmfuse.tuning import cost_models

RESULTS = Path(__file__).parent / "results"
MODELS_TOML = Path(__file__).parent.parent / "models.toml"

Place = tuple[int, ...]  # the bindings of a group

TUNED = "tuned"
COMPOSED = 200  # plans put together from measured groups, for each model


@dataclass(frozen=True)
class Regret:
    """How much longer than the best plan a model takes under each.

    Parameters
    ----------
    model : str
        The model.
    plans : int
        Plans run end to end.
    end_to_end : Mapping of str to float
        Share by which the plan of each planner takes longer than the quickest.
    composed : float
        The same of our plan, against plans put together from measured groups.
    noise : float
        Quartile range of the model's time, as a share.
    """

    model: str
    plans: int
    end_to_end: Mapping[str, float]
    composed: float
    noise: float


def main(argv: Sequence[str] | None = None) -> int:
    """Judge, print and write the table."""
    args = _arguments(argv)
    held_out = tomllib.loads(MODELS_TOML.read_text(encoding="utf-8"))["held_out_families"]
    measured = [found for path in args.data for found in data.read(path)]
    _, unseen = examples.split(measured, held_out)
    peaks = unseen[0].run.peaks
    target = replace(targets.resolve(args.target), peaks=peaks)
    chosen = cost_models.resolve(args.cost_model, target)
    learned, prior = (judging.judge(unseen, model) for model in (chosen.model, Roofline(peaks)))
    regrets = [
        regret(name, unseen, chosen.model) for name in sorted({p.model for p in _plans(unseen)})
    ]
    lines = [*_head(unseen, chosen.note), *_kernels(learned, prior)]
    lines += [_cost(unseen, chosen.model), "", *_regrets(regrets)]
    args.into.mkdir(parents=True, exist_ok=True)
    (args.into / "cost_model.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = {
        "note": chosen.note,
        "learned": [asdict(score) for score in learned],
        "prior": [asdict(score) for score in prior],
        "regrets": [asdict(each) for each in regrets],
    }
    text = json.dumps(result, indent=1) + "\n"
    (args.into / "cost_model.json").write_text(text, encoding="utf-8")
    print("\n".join(lines))
    return 0


def regret(name: str, measured: Sequence[Measurements], model: CostModel) -> Regret:
    """Compare the plans of a model."""
    plans = [plan for plan in _plans(measured) if plan.model == name]
    times: defaultdict[str, list[float]] = defaultdict(list)
    for plan in plans:
        times[plan.plan].append(plan.us)
    # The plan with tuned schedules is no other choice of groups.
    taken = {plan: statistics.median(us) for plan, us in times.items() if plan != TUNED}
    least = min(taken.values())
    kernels = [k for found in measured for k in found.kernels if k.model == name]
    apart = sum(us for place, us in judging.place_times(kernels).items() if len(place) == 1)
    groups = {d.kernel.places[0]: d for d in judging.decisions(kernels)}
    ours = apart - saved_us(groups, _chosen(groups, model))
    others = [apart - saved_us(groups, _random(groups, seed)) for seed in range(COMPOSED)]
    return Regret(
        model=name,
        plans=len(taken),
        end_to_end={plan: us / least - 1 for plan, us in taken.items()},
        composed=ours / min(ours, *others) - 1,
        noise=statistics.median(plan.spread_us / plan.us for plan in plans),
    )


def saved_us(groups: Mapping[Place, Decision], chosen: Sequence[Place]) -> float:
    """Return what some groups save by their measured times."""
    return sum(groups[place].apart_us - groups[place].fused_us for place in chosen)


def _chosen(groups: Mapping[Place, Decision], model: CostModel) -> list[Place]:
    """Return the measured groups that the planner would choose."""
    candidates = [
        Candidate(d.kernel.pattern, d.kernel.family, "main", place, d.kernel.graph)
        for place, d in groups.items()
    ]
    size = 1 + max((b for place in groups for b in place), default=0)
    graph = FunctionGraph("main", ((),) * size)
    found = choose({"main": graph}, candidates, model)
    return [group.candidate.bindings for group in found.groups]


def _random(groups: Mapping[Place, Decision], seed: int) -> list[Place]:
    """Return measured groups at random that do not overlap: many of them."""
    chance = random.Random(seed)
    places = list(groups)
    chance.shuffle(places)
    chosen: list[Place] = []
    taken: set[int] = set()
    for place in places:
        if taken.isdisjoint(place) and chance.random() < 0.9:
            chosen.append(place)
            taken.update(place)
    return chosen


def _plans(measured: Sequence[Measurements]) -> list[data.MeasuredPlan]:
    return [plan for found in measured for plan in found.plans]


def _head(unseen: Sequence[Measurements], note: str) -> list[str]:
    run = unseen[0].run
    return [
        f"{run.created[:10]}, {run.device}, {run.target}, {run.threads} threads; {note}.",
        "All models below are of architectures that training never saw.",
        "",
    ]


def _kernels(learned: Sequence[ModelScore], prior: Sequence[ModelScore]) -> list[str]:
    lines = [
        "| model | kernels | rank correlation | median error | noise | fuse or not "
        "| roofline: rank, error, fuse or not |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for score, before in zip(learned, prior, strict=True):
        lines.append(
            f"| {score.model} | {score.kernels} | {score.rank_correlation:.3f} | "
            f"{_percent(score.median_error)} | {_percent(score.noise)} | "
            f"{score.right} of {score.decisions} | {before.rank_correlation:.3f}, "
            f"{_percent(before.median_error)}, {before.right} of {before.decisions} |"
        )
    right, all_ = sum(s.right for s in learned), sum(s.decisions for s in learned)
    before = sum(s.right for s in prior)
    lines += [
        "",
        f"*Fuse or not* counts groups whose fused and unfused times differ by over 3 %: "
        f"{_percent(right / max(1, all_))} right, {_percent(before / max(1, all_))} by the "
        "roofline. *Noise*: how far apart equal kernels of different plans were measured.",
        "",
    ]
    return lines


def _cost(unseen: Sequence[Measurements], model: CostModel) -> str:
    """Return what predicting costs, beside the roofline alone."""
    candidates = [
        Candidate(k.pattern, k.family, f"{k.model} {i}", k.places[0], k.graph)
        for found in unseen
        for i, k in enumerate(found.kernels)
    ]
    each_us = []
    for predictor in (model, Roofline(unseen[0].run.peaks)):
        start = time.perf_counter()
        predictor.predict_all(candidates)
        each_us.append((time.perf_counter() - start) / len(candidates) * 1e6)
    return (
        f"A candidate is predicted in {each_us[0]:.0f} µs, by the roofline alone in "
        f"{each_us[1]:.0f} µs, of {len(candidates)} at once; equal ones are predicted once."
    )


def _regrets(regrets: Sequence[Regret]) -> list[str]:
    names = [name for name in (*STRATEGIES, "prior") if any(name in r.end_to_end for r in regrets)]
    titles = {"optimal": "ours", "prior": "ours, by the roofline"}
    shown = " | ".join(titles.get(name, name) for name in names)
    lines = [
        f"| longer than the quickest plan | plans | {shown} | ours, composed | noise |",
        "| --- " * (len(names) + 4) + "|",
    ]
    for each in regrets:
        cells = (
            _percent(each.end_to_end[name]) if name in each.end_to_end else "" for name in names
        )
        lines.append(
            f"| {each.model} | {each.plans} | {' | '.join(cells)} | {_percent(each.composed)} | "
            f"{_percent(each.noise)} |"
        )
    means = {
        name: statistics.geometric_mean(1 + r.end_to_end[name] for r in regrets) - 1
        for name in names
        if all(name in r.end_to_end for r in regrets)
    }
    shown = " | ".join(_percent(means[name]) if name in means else "" for name in names)
    lines.append(f"| geometric mean | | {shown} | | |")
    return [*lines, "", _verdict(regrets, means)]


def _verdict(regrets: Sequence[Regret], means: Mapping[str, float]) -> str:
    """Return how our plans fare against the best that was run, and against each planner."""
    run = [each.end_to_end["optimal"] for each in regrets if "optimal" in each.end_to_end]
    composed = [each.composed for each in regrets]
    rivals = [name for name in means if name not in ("optimal", "prior")]
    lost = [name for name in rivals if means[name] <= means["optimal"]]
    better = f"not better than {', '.join(lost)}" if lost else "better than each other planner"
    return (
        f"Ours takes {_percent(statistics.mean(run))} longer than the quickest plan on average, "
        f"{_percent(max(run))} at worst (to reach: 2 and 5 %), and is {better} in the geometric "
        f"mean. Composed of measured groups and held against {COMPOSED} such plans at random: "
        f"{_percent(statistics.mean(composed))} and {_percent(max(composed))}."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--cost-model", default="learned", metavar="NAME")
    parser.add_argument("--into", type=Path, default=RESULTS, metavar="DIR")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
