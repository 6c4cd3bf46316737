"""Models built under several plans, kept in a folder until the machine is quiet."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from collecting.entries import Entry
from tvmfuse import Session, _pipeline, targets
from tvmfuse._tvm import tvm
from tvmfuse.calibrate import calibrated
from tvmfuse.cost import data, shipped
from tvmfuse.cost.data import MeasuredKernel
from tvmfuse.cost.roofline import Roofline
from tvmfuse.frontend import Signature, import_model
from tvmfuse.passes.collect import collect
from tvmfuse.plan import CostModel, FusionPlan
from tvmfuse.planner import STRATEGIES, Sampled, Strategy, choose
from tvmfuse.targets import Target
from tvmfuse.targets.export import export
from tvmfuse.tuning import observing, variants
from tvmfuse.tuning.records import kernel_records

TUNED = "tuned"
"""The plan whose kernels have the decisions of records."""

_ABOUT, _PARAMS = "about.json", "params.safetensors"


@dataclass(frozen=True)
class Plan:
    """A plan of a model.

    Parameters
    ----------
    groups : tuple of tuple of int
        The bindings of every group.
    alike : tuple of str
        The planners that made it.
    params : tuple of str
        Names of its weights in the file.
    """

    groups: tuple[tuple[int, ...], ...]
    alike: tuple[str, ...]
    params: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """A model that was built under several plans, in a folder.

    Parameters
    ----------
    folder : Path
        Where its library and weights are.
    name, family : str
        The model.
    inputs : Mapping of str to Mapping
        What to feed it, as in ``models.toml``.
    signature : Signature
        Of the model.
    plans : Mapping of str to Plan
        What is in the library, in order.
    kernels : Mapping of str to MeasuredKernel
        What its kernels compute, with no time yet.
    """

    folder: Path
    name: str
    family: str
    inputs: Mapping[str, Mapping[str, Any]]
    signature: Signature
    plans: Mapping[str, Plan]
    kernels: Mapping[str, MeasuredKernel]

    def sessions(self) -> Mapping[str, Session]:
        """Load it, ready to run under each plan."""
        library = tvm.runtime.load_module(str(self.folder / "lib.so"))
        with safetensors.safe_open(self.folder / _PARAMS, framework="np") as file:
            params = {
                name: [file.get_tensor(each) for each in plan.params]
                for name, plan in self.plans.items()
            }
        return variants.sessions(library, params, signature=self.signature)


def prepare(entry: Entry, folder: Path, target: str, *, sampled: int, tuned_by: str | None) -> int:
    """Build a model under every plan that differs from those before it.

    Parameters
    ----------
    entry : Entry
        The model.
    folder : Path
        Takes a folder for each library.
    target : str
        This machine.
    sampled : int
        Random plans, beside those of the planners.
    tuned_by : str, optional
        A tuning store, whose records give a second library where they fit.

    Returns
    -------
    int
        Kernels.
    """
    device = calibrated(targets.resolve(target))
    model = import_model(entry.source, shapes=entry.shapes)
    planned, chosen, alike = _plans(model.module, device, sampled)
    built = variants.build(planned, chosen, device, signature=model.signature)
    plans = {name: Plan(_groups(plan), alike[name]) for name, plan in chosen.items()}
    _write(folder / entry.name, entry, device, planned.module, built, plans)
    if tuned_by is None:
        return len(built.kernels)
    with kernel_records(tuned_by, device, allow_family=True) as records:
        best = {TUNED: chosen[next(name for name in chosen if "optimal" in alike[name])]}
        tuned = variants.build(planned, best, device, signature=model.signature, records=records)
    if any(kernel.schedule == "tuned" for kernel in tuned.kernels.values()):
        own = {TUNED: Plan(_groups(best[TUNED]), (TUNED,))}
        _write(folder / f"{entry.name}.{TUNED}", entry, device, planned.module, tuned, own)
    return len(built.kernels) + len(tuned.kernels)


def is_there(folder: Path, entry: Entry) -> bool:
    """Whether a model has been prepared."""
    return (folder / entry.name / _ABOUT).exists()


def read(folder: Path, entry: Entry) -> Iterator[Prepared]:
    """Yield what has been prepared of a model."""
    for name in (entry.name, f"{entry.name}.{TUNED}"):
        file = folder / name / _ABOUT
        if not file.exists():
            continue
        row = json.loads(file.read_text(encoding="utf-8"))
        yield Prepared(
            folder / name,
            entry.name,
            entry.family,
            entry.inputs,
            Signature.from_json(row["signature"]),
            {name: _plan(plan) for name, plan in row["plans"].items()},
            {name: data.kernel_of(text) for name, text in row["kernels"].items()},
        )


def _plan(row: Mapping[str, Any]) -> Plan:
    return Plan(tuple(map(tuple, row["groups"])), tuple(row["alike"]), tuple(row["params"]))


def _plans(
    module: Any, target: Target, sampled: int
) -> tuple[_pipeline.Planned, dict[str, FusionPlan], dict[str, tuple[str, ...]]]:
    """Return a canonical module, the plans of it that differ, and the planners of each."""
    planned = _pipeline.plan(module, target, options=_pipeline.Options(fuse=False))
    found = collect(planned.module, planned.registry)
    model, prior = shipped.best(target.cost_family, target.peaks).model, Roofline(target.peaks)
    ways: dict[str, tuple[Strategy, CostModel]] = {
        **{name: (way, model) for name, way in STRATEGIES.items()},
        "prior": (STRATEGIES["optimal"], prior),
        **{f"sampled-{i}": (Sampled(i), prior) for i in range(sampled)},
    }
    chosen: dict[str, FusionPlan] = {}
    same: dict[object, list[str]] = {}
    for name, (way, judge) in ways.items():
        plan = choose(found.graphs, found.candidates, judge, strategy=way)
        key = frozenset((g.candidate.bindings, g.candidate.pattern) for g in _of_main(plan))
        if key not in same:
            chosen[name] = plan
        same.setdefault(key, []).append(name)
    return planned, chosen, {names[0]: tuple(names) for names in same.values()}


def _of_main(plan: FusionPlan) -> list[Any]:
    return [group for group in plan.groups if group.candidate.function == "main"]


def _groups(plan: FusionPlan) -> tuple[tuple[int, ...], ...]:
    return tuple(group.candidate.bindings for group in _of_main(plan))


def _write(
    folder: Path,
    entry: Entry,
    target: Target,
    module: Any,
    built: variants.Variants,
    plans: Mapping[str, Plan],
) -> None:
    """Write a library, its weights, each once, and what there is to know about it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    export(built.library, target, folder)
    weights: dict[str, Any] = {}
    named = {}
    for name, params in built.params.items():
        own = [np.asarray(array, order="C") for array in params]
        keys = [_digest(array) for array in own]
        weights.update(zip(keys, own, strict=True))
        named[name] = replace(plans[name], params=tuple(keys))
    safetensors.numpy.save_file(weights, folder / _PARAMS)
    about = {
        "signature": built.signature.to_json(),
        "plans": {name: asdict(plan) for name, plan in named.items()},
        "kernels": dict(_kernels(entry, module, built)),
    }
    unfinished = folder / "unfinished.json"
    unfinished.write_text(json.dumps(about), encoding="utf-8")
    unfinished.rename(folder / _ABOUT)


def _digest(array: Any) -> str:
    about = f"{array.dtype}{array.shape}".encode()
    return hashlib.sha256(about + array.tobytes()).hexdigest()


def _kernels(entry: Entry, module: Any, built: variants.Variants) -> Iterator[tuple[str, str]]:
    about = {"model": entry.name, "model_family": entry.family}
    for name, kernel in observing.timeable(module, built.kernels, **about).items():
        yield name, next(data.lines([kernel], []))
