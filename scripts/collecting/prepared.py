"""Models built under several plans, kept in a folder until the machine is quiet."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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

_PLANNERS, _ABOUT, _PARAMS = "planners.json", "about.json", "params.safetensors"


@dataclass(frozen=True)
class Plan:
    """A plan of a model.

    Parameters
    ----------
    groups : tuple of tuple of int
        The bindings of every group.
    alike : tuple of str
        The planners that make it; none where a newer cost model led them elsewhere.
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
        What is in the library, in order, by a digest of the plan.
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
    """Build a model under every plan that has not been built yet.

    Parameters
    ----------
    entry : Entry
        The model.
    folder : Path
        Takes a folder for each model, with one for each library of it.
    target : str
        This machine.
    sampled : int
        Random plans, beside those of the planners.
    tuned_by : str, optional
        A tuning store; the one in use where not given. Its records and those of the packs
        give a library more where they fit.

    Returns
    -------
    int
        Kernels that were built.
    """
    device = calibrated(targets.resolve(target))
    model = import_model(entry.source, shapes=entry.shapes)
    planned, ways = _plans(model.module, device, sampled)
    planners = {name: _digest_of(plan) for name, plan in ways.items()}
    known = {name for each in read(folder, entry) for name in each.plans}
    missing = {planners[name]: plan for name, plan in ways.items() if planners[name] not in known}
    place, count = folder / entry.name, 0
    if missing:
        built = variants.build(planned, missing, device, signature=model.signature)
        count += len(built.kernels)
        _write(place / str(len(_libraries(place))), entry, device, planned.module, built, missing)
    with kernel_records(tuned_by, device, allow_family=True) as records:
        own = f"{TUNED} {planners['optimal']}"
        if records is not None and own not in known:
            best = {own: ways["optimal"]}
            built = variants.build(
                planned, best, device, signature=model.signature, records=records
            )
            if any(kernel.schedule == "tuned" for kernel in built.kernels.values()):
                count += len(built.kernels)
                _write(
                    place / str(len(_libraries(place))), entry, device, planned.module, built, best
                )
                planners[TUNED] = own
    _write_json(place / _PLANNERS, planners)
    return count


def is_there(folder: Path, entry: Entry) -> bool:
    """Whether a model has been prepared."""
    return (folder / entry.name / _PLANNERS).exists()


def read(folder: Path, entry: Entry) -> Iterator[Prepared]:
    """Yield the libraries of a model that have been prepared."""
    file = folder / entry.name / _PLANNERS
    planners = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for library in _libraries(folder / entry.name):
        row = json.loads((library / _ABOUT).read_text(encoding="utf-8"))
        yield Prepared(
            library,
            entry.name,
            entry.family,
            entry.inputs,
            Signature.from_json(row["signature"]),
            {name: _plan(name, plan, planners) for name, plan in row["plans"].items()},
            {name: data.kernel_of(text) for name, text in row["kernels"].items()},
        )


def _libraries(folder: Path) -> list[Path]:
    """Return the folders of the libraries of a model, those that are whole."""
    return sorted(file.parent for file in folder.glob(f"*/{_ABOUT}"))


def _plan(name: str, row: Mapping[str, Any], planners: Mapping[str, str]) -> Plan:
    alike = tuple(planner for planner, plan in planners.items() if plan == name)
    return Plan(tuple(map(tuple, row["groups"])), alike, tuple(row["params"]))


def _plans(
    module: Any, target: Target, sampled: int
) -> tuple[_pipeline.Planned, dict[str, FusionPlan]]:
    """Return a canonical module, and the plan of each planner."""
    planned = _pipeline.plan(module, target, options=_pipeline.Options(fuse=False))
    found = collect(planned.module, planned.registry)
    model, prior = shipped.best(target.cost_family, target.peaks).model, Roofline(target.peaks)
    ways: dict[str, tuple[Strategy, CostModel]] = {
        **{name: (way, model) for name, way in STRATEGIES.items()},
        "prior": (STRATEGIES["optimal"], prior),
        **{f"sampled-{i}": (Sampled(i), prior) for i in range(sampled)},
    }
    return planned, {
        name: choose(found.graphs, found.candidates, judge, strategy=way)
        for name, (way, judge) in ways.items()
    }


def _of_main(plan: FusionPlan) -> list[Any]:
    return [group for group in plan.groups if group.candidate.function == "main"]


def _groups(plan: FusionPlan) -> tuple[tuple[int, ...], ...]:
    return tuple(group.candidate.bindings for group in _of_main(plan))


def _digest_of(plan: FusionPlan) -> str:
    """Return what is equal for plans that fuse alike."""
    fused = sorted((g.candidate.bindings, g.candidate.pattern) for g in _of_main(plan))
    return hashlib.sha256(json.dumps(fused).encode()).hexdigest()[:16]


def _write(
    folder: Path,
    entry: Entry,
    target: Target,
    module: Any,
    built: variants.Variants,
    plans: Mapping[str, FusionPlan],
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
        named[name] = {"groups": _groups(plans[name]), "params": keys}
    safetensors.numpy.save_file(weights, folder / _PARAMS)
    about = {
        "signature": built.signature.to_json(),
        "plans": named,
        "kernels": dict(_kernels(entry, module, built)),
    }
    _write_json(folder / _ABOUT, about)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file that is whole or not there."""
    unfinished = path.with_name("unfinished.json")
    unfinished.write_text(json.dumps(content), encoding="utf-8")
    unfinished.rename(path)


def _digest(array: Any) -> str:
    about = f"{array.dtype}{array.shape}".encode()
    return hashlib.sha256(about + array.tobytes()).hexdigest()


def _kernels(entry: Entry, module: Any, built: variants.Variants) -> Iterator[tuple[str, str]]:
    about = {"model": entry.name, "model_family": entry.family}
    for name, kernel in observing.timeable(module, built.kernels, **about).items():
        yield name, next(data.lines([kernel], []))
