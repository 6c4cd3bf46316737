"""tvmfuse: plan, fuse, schedule and tune subgraphs for Apache TVM.

Importing it is quick and does not import TVM; each name below is loaded when it
is first used. It also registers ``relax_pipeline="tvmfuse"`` with ``tvm.compile``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tvmfuse.errors import TvmFuseError
from tvmfuse.integrations import relax_pipeline as _relax_pipeline

if TYPE_CHECKING:
    from tvmfuse._api import compile, pipeline, tune  # noqa: A004 - the public name
    from tvmfuse.bundle import save
    from tvmfuse.compiled import Compiled
    from tvmfuse.frontend import import_model
    from tvmfuse.patterns.base import Case, Operand, Pattern
    from tvmfuse.patterns.plugins import unregister
    from tvmfuse.patterns.registry import register
    from tvmfuse.runtime import InferenceSession, Session, load
    from tvmfuse.targets import resolve as target

__version__ = "0.1.0"

__all__ = [
    "Case",
    "Compiled",
    "InferenceSession",
    "Operand",
    "Pattern",
    "Session",
    "TvmFuseError",
    "compile",
    "import_model",
    "load",
    "pipeline",
    "register",
    "save",
    "target",
    "tune",
    "unregister",
]

_HOMES = {
    "Case": ("tvmfuse.patterns.base", "Case"),
    "Compiled": ("tvmfuse.compiled", "Compiled"),
    "InferenceSession": ("tvmfuse.runtime", "InferenceSession"),
    "Operand": ("tvmfuse.patterns.base", "Operand"),
    "Pattern": ("tvmfuse.patterns.base", "Pattern"),
    "Session": ("tvmfuse.runtime", "Session"),
    "compile": ("tvmfuse._api", "compile"),
    "import_model": ("tvmfuse.frontend", "import_model"),
    "load": ("tvmfuse.runtime", "load"),
    "pipeline": ("tvmfuse._api", "pipeline"),
    "register": ("tvmfuse.patterns.registry", "register"),
    "save": ("tvmfuse.bundle", "save"),
    "target": ("tvmfuse.targets", "resolve"),
    "tune": ("tvmfuse._api", "tune"),
    "unregister": ("tvmfuse.patterns.plugins", "unregister"),
}

_relax_pipeline.install()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
