"""Cut one group out of a model, with the values that reach it there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvmfuse import _pipeline
from tvmfuse._pipeline import Planned
from tvmfuse._tvm import relax, tvm
from tvmfuse.errors import ModelError
from tvmfuse.frontend import Model, import_model
from tvmfuse.passes.outline import outside_values, renamed, with_blocks
from tvmfuse.passes.rewrite import with_functions
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.plan import Candidate
from tvmfuse.runtime import Session, npz
from tvmfuse.targets import Target

Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Cutout:
    """A group as a model of its own.

    Parameters
    ----------
    module : tvm.IRModule
        Its ``main`` computes the group; weights are constants in it.
    inputs : Mapping of str to ndarray
        The values that its inputs have in the model.
    """

    module: Any
    inputs: Arrays


def cut_out(
    model: Model, planned: Planned, target: Target, candidate: Candidate, feeds: Arrays
) -> Cutout:
    """Cut the operators of a candidate out of a model.

    Parameters
    ----------
    model : Model
        What the frontend made.
    planned : Planned
        What the candidate was found in.
    target : Target
        A device of this machine, which computes the values without any fusion.
    candidate : Candidate
        The operators.
    feeds : Mapping of str to ndarray
        Inputs of the model.

    Raises
    ------
    ModelError
        Its operators read a size or a tuple, which cannot be an input.
    """
    flow = Dataflow.of(candidate.function, planned.module[candidate.function])
    outside = outside_values(flow, candidate.bindings)
    if any(not isinstance(var.ty, relax.TensorType) for var in outside):
        raise ModelError(
            f"bisect: {candidate.label} reads what is no tensor, and cannot be cut out: "
            "bind all sizes with --shape, or report it with the model"
        )
    values = _values(model, planned, target, outside, feeds)
    return Cutout(_module(flow, candidate.bindings, outside), values)


def _module(flow: Dataflow, members: Sequence[int], outside: Sequence[Any]) -> Any:
    names = {var: relax.Var(f"in{i}", var.ty) for i, var in enumerate(outside)}
    params = list(names.values())
    outputs = flow.outputs(members) or members[-1:]
    bindings = []
    for member in members:
        old = flow.var(member)
        kind = relax.Var if member in outputs else relax.DataflowVar
        names[old] = kind(str(old.name), old.ty)
        bindings.append(relax.VarBinding(names[old], renamed(flow.value(member), names)))
    results = [names[flow.var(output)] for output in outputs]
    result = results[0] if len(results) == 1 else relax.Tuple(results)
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
    main = relax.Function(params, body, result.ty, is_pure=True)
    module = tvm.IRModule({"main": main.with_attr("global_symbol", "main")})
    return relax.transform.Normalize()(module)


def _values(
    model: Model,
    planned: Planned,
    target: Target,
    wanted: Sequence[Any],
    feeds: Arrays,
) -> dict[str, np.ndarray[Any, Any]]:
    """Compute some variables of the model without any fusion, named as :func:`_module` does."""
    main = planned.module["main"]
    given = dict(zip(main.params, (spec.name for spec in model.signature.inputs), strict=True))
    values = {var: feeds[given[var]] for var in wanted if var in given}
    inner = [var for var in wanted if var not in given]
    if inner:
        computed = _computed(model, planned, target, inner, feeds)
        values.update(zip(inner, computed, strict=True))
    return {f"in{i}": np.asarray(values[var]) for i, var in enumerate(wanted)}


def _computed(
    model: Model, planned: Planned, target: Target, wanted: Sequence[Any], feeds: Arrays
) -> Sequence[np.ndarray[Any, Any]]:
    main = planned.module["main"]
    leaving = [var for var in wanted if isinstance(var, relax.DataflowVar)]
    names = {var: relax.Var(str(var.name), var.ty) for var in leaving}
    blocks = [
        [relax.VarBinding(names.get(b.var, b.var), renamed(b.value, names)) for b in block.bindings]
        for block in main.body.blocks
    ]
    rebuilt = with_blocks(main, blocks)
    result = relax.Tuple([names.get(var, var) for var in wanted])
    body = relax.SeqExpr(rebuilt.body.blocks, result)
    function = relax.Function(main.params, body, result.ty, is_pure=True, attrs=main.attrs)
    module = with_functions(planned.module, {"main": function})
    module = relax.transform.DeadCodeElimination()(relax.transform.Normalize()(module))
    options = _pipeline.Options(fuse=False)
    session = Session.of(_pipeline.build(import_model(module), target, options=options))
    given = [feeds[spec.name] for spec in model.signature.inputs]
    return session.run(None, dict(zip((spec.name for spec in session.inputs), given, strict=True)))


def write(
    cutout: Cutout,
    folder: Path,
    *,
    candidate: Candidate,
    about: str,
    target: str,
    rtol: float,
    pattern_files: Sequence[Path] = (),
) -> Path:
    """Write a folder that shows the fault by itself: ``python FOLDER/reproduce.py``.

    Parameters
    ----------
    cutout : Cutout
        The group and its inputs.
    folder : Path
        Where; made if it is not there.
    candidate : Candidate
        The group.
    about : str
        What it is of, for people.
    target : str
        Name of the target.
    rtol : float
        Largest max|a-b| / max|b| that passes.
    pattern_files : sequence of Path
        Python files that bring the pattern.
    """
    folder.mkdir(parents=True, exist_ok=True)
    case = {
        "about": about,
        "pattern": candidate.pattern,
        "target": target,
        "rtol": rtol,
        "inputs": list(cutout.inputs),
    }
    (folder / "case.json").write_text(json.dumps(case, indent=1), encoding="utf-8")
    (folder / "module.json").write_text(tvm.ir.save_json(cutout.module), encoding="utf-8")
    (folder / "module.txt").write_text(cutout.module.script(), encoding="utf-8")
    npz.write(cutout.inputs, folder / "inputs.npz")
    for i, path in enumerate(pattern_files):
        shutil.copyfile(path, folder / f"patterns_{i}.py")
    shutil.copyfile(Path(__file__).with_name("reproduce.py"), folder / "reproduce.py")
    return folder
