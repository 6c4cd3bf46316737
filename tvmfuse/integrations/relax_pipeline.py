"""Offer ``relax_pipeline="tvmfuse"`` to ``tvm.compile``, without importing TVM.

TVM keeps its named pipelines in a dictionary of ``tvm.relax.pipeline`` and looks
for no entry points. So whoever imports tvmfuse gets the name registered as soon
as that module is there: now, or when it is imported later.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

NAME = "tvmfuse"
_MODULE = "tvm.relax.pipeline"


def install() -> None:
    """Register the pipeline now, or when TVM is imported."""
    loaded = sys.modules.get(_MODULE)
    if loaded is not None:
        _register(loaded)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _register(module: ModuleType) -> None:
    module.PIPELINE_MAP.setdefault(NAME, _pipeline)


def _pipeline(**options: Any) -> Any:
    """Make the pipeline: imported late, since it needs all of tvmfuse."""
    from tvmfuse._api import pipeline

    return pipeline(**options)


class _Finder(MetaPathFinder):
    """Finds ``tvm.relax.pipeline`` as usual, and registers when it has been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Executes the module by its own loader, then registers the pipeline."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _register(module)
