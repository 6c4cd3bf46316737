"""Nothing that could run somebody's code is ever read: no pickle, by no way."""

from __future__ import annotations

import ast
from pathlib import Path

import tvmfuse

_FORBIDDEN = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}


def test_nothing_of_ours_reads_a_pickle() -> None:
    files = sorted(Path(tvmfuse.__file__).parent.rglob("*.py"))
    assert len(files) > 100
    for path in files:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & _FORBIDDEN, path
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in _FORBIDDEN, path
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path
