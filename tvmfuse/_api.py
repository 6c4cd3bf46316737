"""The calls that most users need."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from os import PathLike
from typing import Any

from tvmfuse import _pipeline, targets
from tvmfuse.calibrate import calibrated
from tvmfuse.compiled import Compiled
from tvmfuse.frontend import import_model
from tvmfuse.plan import Records
from tvmfuse.store.location import VARIABLE
from tvmfuse.targets import Target
from tvmfuse.tuning import cost_models, planning
from tvmfuse.tuning.budget import budget
from tvmfuse.tuning.campaign import Settings, tune_model
from tvmfuse.tuning.records import kernel_records
from tvmfuse.tuning.reports import Report
from tvmfuse.tuning.retraining import after_tuning
from tvmfuse.tuning.sessions import open_history
from tvmfuse.tuning.task import Strategy
from tvmfuse.tuning.tuner import Status


def compile(  # noqa: A001 - the public name
    source: Any,
    target: str | Target = "cpu",
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    fuse: bool = True,
    db: str | PathLike[str] | None = None,
    records: Records | None = None,
    allow_family: bool = False,
    require_tuned: bool = False,
    planner: str = "optimal",
    cost_model: str = cost_models.LEARNED,
    max_memory: str | int | None = None,
    measure_budget: str | float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Compiled:
    """Compile a model.

    Parameters
    ----------
    source : str, PathLike, onnx.ModelProto, torch.export.ExportedProgram or tvm.IRModule
        The model, or the path of an ONNX file.
    target : str or Target
        The device: ``cpu``, ``cpu:x86-64-v3``, ``cuda:sm_80``, ``metal:m1``.
    shapes : Mapping of str to sequence of int, optional
        Shapes that bind the dynamic extents of inputs, by the inputs' names.
    fuse : bool
        Whether to fuse; without, every operator is a kernel of its own.
    db : str or PathLike, optional
        The tuning store: a SQLite file or a ``postgresql://`` URL that must be there. Where not
        given, the one that ``TVMFUSE_DB`` names, else the nearest ``tuning_logs/`` upward, else
        the user's; with the packs beneath it. Each kernel takes its best record for this device.
    records : Records, optional
        Where to look records up in place of a store.
    allow_family : bool
        Whether records of other devices of the same family will do; the kernels' notes say so.
    require_tuned : bool
        Whether a kernel without a record is an error.
    planner : str
        How to choose what to fuse: "optimal", or to compare "none", "fuse-ops", "saved-bytes",
        "saved-time", "everything".
    cost_model : str
        What predicts times: "learned" from measurements, "prior" for the roofline alone, or a
        file that ``tvmfuse cost train`` wrote.
    max_memory : str or int, optional
        What values between kernels may take at any time, in bytes or as ``"64MiB"``.
    measure_budget : str or float, optional
        Measure candidates whose gain is in doubt for so many seconds, or for ``"30s"``; only
        where the target is this machine.
    progress : callable, optional
        Is called with the name of each stage as it begins.

    Returns
    -------
    Compiled
        Give it to :func:`tvmfuse.save`, or to :meth:`tvmfuse.Session.of` to run it here.

    Raises
    ------
    ModelError
        The model is damaged, or holds what cannot be imported.
    TargetError
        No device has the name ``target``.
    TuningError
        ``require_tuned`` is given, and a kernel has no record; the message names it.
    StoreError
        The store ``db`` is missing, damaged, or does not answer.
    InputError
        ``max_memory`` is no size, or ``measure_budget`` no time.
    CostModelError
        ``planner`` is none of those above.
    MemoryLimitError
        No plan was found that keeps to ``max_memory``.
    LoweringError
        An operator cannot be lowered, or no code can be generated for the target.
    EnvironmentMismatchError
        There is no C++ compiler.
    """
    asked: dict[str, Any] = {
        "planner": planner,
        "max_memory": max_memory,
        "measure_budget": measure_budget,
    }
    planning.check(**asked)
    device = _device(target)
    model = import_model(source, shapes=shapes)
    opened = nullcontext(records) if records else _records(db, device, allow_family=allow_family)
    with opened as found:
        told = planning.options(model, device, **asked, cost_model=cost_model, db=_database(db))
        options = _pipeline.Options(fuse=fuse, records=found, **told)
        compiled = _pipeline.build(model, device, options=options, progress=progress)
    if require_tuned:
        compiled.require_tuned()
    return compiled


def tune(
    source: Any,
    target: str | Target = "cpu",
    *,
    trials: int | None = None,
    time: str | float | None = None,
    within: str | float | None = None,
    db: str | PathLike[str] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    resume: bool = False,
    strategy: Strategy = "auto",
    learn: bool = True,
    progress: Callable[[Status], None] = lambda _: None,
) -> Report:
    """Search faster kernels for a model on this machine; :func:`compile` uses what was found.

    Parameters
    ----------
    source : str, PathLike, onnx.ModelProto, torch.export.ExportedProgram or tvm.IRModule
        The model, or the path of an ONNX file.
    target : str or Target
        A CPU that is this machine.
    trials : int, optional
        Stop after so many candidates.
    time : str or float, optional
        Stop after so many seconds, or ``"5m"``; five minutes where no budget is given.
    within : str or float, optional
        Stop when no more than this share (``0.05`` or ``"5%"``) is expected to be saved still.
    db : str or PathLike, optional
        The tuning store, which is made where it is not there; as of :func:`compile`.
    shapes : Mapping of str to sequence of int, optional
        Shapes that bind the dynamic extents of inputs, by the inputs' names.
    seed : int
        Chooses the candidates that are tried.
    resume : bool
        Whether what the store holds is not measured again.
    strategy : str
        Which spaces are searched: "auto" takes ours, and TVM's for kernels that no family covers;
        "families" ours alone; "metaschedule" TVM's alone.
    learn : bool
        Whether the cost model of this device may learn from it afterwards, which builds the model
        once more, times its kernels for about 15 s, and trains for as long at most.
    progress : callable, optional
        Is told after each trial where the search stands.

    Returns
    -------
    Report
        What became of each kernel, and the times of the whole model.

    Raises
    ------
    TuningError
        The target is not this machine, or no worker can be started.
    StoreError
        The store cannot be opened or written to.
    """
    device = _device(target)
    settings = Settings(budget(trials, time, within), seed=seed, resume=resume, strategy=strategy)
    model = import_model(source, shapes=shapes)
    database, command = _database(db), "tvmfuse.tune"
    with open_history(database, device, settings, command=command) as history:
        chosen = cost_models.resolve(cost_models.LEARNED, device, database=database)
        how: dict[str, Any] = {"settings": settings, "cost_model": chosen.model}
        report = tune_model(model, device, history, **how, progress=progress)
    if not learn:
        return report
    learned = after_tuning(
        model, device, database=database, command=command, prepared_s=report.first_s
    )
    return replace(report, learned=learned)


def pipeline(
    target: Target | None = None,
    *,
    db: str | PathLike[str] | None = None,
    allow_family: bool = False,
    options: _pipeline.Options | None = None,
) -> Any:
    """Return the stages as one TVM pass, for ``tvm.compile(mod, relax_pipeline=...)``.

    Parameters
    ----------
    target : Target, optional
        The device; where not given, TVM's current target tells.
    db : str or PathLike, optional
        The tuning store, as of :func:`compile`.
    allow_family : bool
        Whether records of other devices of the same family will do.
    options : Options, optional
        What to fuse.

    Returns
    -------
    tvm.transform.Pass
        Relax operators in, kernels and runtime calls out; weights stay constants.
    """
    return _pipeline.pipeline(
        target,
        options=options,
        records=lambda device: _records(db, device, allow_family=allow_family),
    )


def _records(
    db: str | PathLike[str] | None, device: Target, *, allow_family: bool
) -> AbstractContextManager[Records | None]:
    return kernel_records(_database(db), device, allow_family=allow_family)


def _database(db: str | PathLike[str] | None) -> str | None:
    return os.environ.get(VARIABLE) if db is None else os.fspath(db)


def _device(target: str | Target) -> Target:
    if isinstance(target, Target):
        return target
    return calibrated(targets.resolve(target))
