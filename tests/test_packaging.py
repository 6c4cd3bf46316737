"""What holds before any code of ours runs: metadata, lean imports, one story in all files."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import setuptools
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]


def run_python(code: str) -> str:
    """Run ``code`` in a fresh interpreter and return what it printed."""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def requirement(name: str, group: list[str]) -> Requirement:
    (found,) = (line for line in map(Requirement, group) if line.name == name)
    return found


def test_the_pinned_pair_is_the_one_that_is_checked_at_start() -> None:
    # Read, not imported: the door to TVM checks the pair itself.
    text = (ROOT / "tvmfuse/_tvm/versions.py").read_text(encoding="utf-8")
    tvm, ffi = (re.search(rf'^{name} = "(.*)"', text, re.M)[1] for name in ("TVM", "FFI_SERIES"))
    assert str(requirement("apache-tvm", PROJECT["dependencies"]).specifier) == f"=={tvm}"
    specifier = requirement("apache-tvm-ffi", PROJECT["dependencies"]).specifier
    assert specifier.contains(f"{ffi}.post0")
    assert specifier.contains(f"{ffi}.post1")
    assert not specifier.contains("0.1.15")
    assert not specifier.contains("0.1.15.post2")


LEAN_MODULES = (
    "tvmfuse",
    "tvmfuse.cli",
    "tvmfuse.cost.features",
    "tvmfuse.cost.roofline",
    "tvmfuse.errors",
    "tvmfuse.plan",
    "tvmfuse.planner",
)


@pytest.mark.parametrize("module", LEAN_MODULES)
def test_importing_it_does_not_import_tvm(module: str) -> None:
    # import-linter reads the code; this also runs the __init__ files of the packages above.
    assert run_python(f"import sys, {module}; print('tvm' in sys.modules)") == "False\n"


def test_help_does_not_import_tvm() -> None:
    code = """
import runpy, sys
sys.argv = ["tvmfuse", "--help"]
try:
    runpy.run_module("tvmfuse", run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
print("tvm" in sys.modules)
"""
    *help_text, has_tvm = run_python(code).splitlines()
    assert any("compile" in line for line in help_text)
    assert has_tvm == "False"


def test_every_package_that_the_code_imports_is_declared() -> None:
    trees = (ast.parse(path.read_text("utf-8")) for path in (ROOT / "tvmfuse").rglob("*.py"))
    imported = {name for tree in trees for node in ast.walk(tree) for name in top_names(node)}
    # protobuf, whose package is "google", belongs to onnx.
    third_party = imported - set(sys.stdlib_module_names) - {"tvmfuse", "google"}
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    declared = {Requirement(line).name for group in groups for line in group}
    distributions = packages_distributions()
    undeclared = {
        name for name in third_party if not declared & {name, *distributions.get(name, ())}
    }
    assert third_party >= {"tvm", "numpy"}
    assert undeclared == set()


def top_names(node: ast.AST) -> list[str]:
    """Return the top-level packages that one statement imports."""
    match node:
        case ast.Import(names=names):
            return [alias.name.partition(".")[0] for alias in names]
        case ast.ImportFrom(module=str(module)):
            return [module.partition(".")[0]]
        case _:
            return []


def test_the_command_is_there() -> None:
    module, function = PROJECT["scripts"]["tvmfuse"].split(":")
    assert run_python(f"import {module}; print(callable({module}.{function}))") == "True\n"


def test_every_folder_of_code_is_a_package() -> None:
    # setuptools leaves a folder without __init__.py out of the wheel, in silence.
    folders = {path.parent for path in (ROOT / "tvmfuse").rglob("*.py")}
    assert folders
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_types_and_licence_are_shipped() -> None:
    assert (ROOT / "tvmfuse/py.typed").exists()
    assert "py.typed" in PYPROJECT["tool"]["setuptools"]["package-data"]["tvmfuse"]
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in licence
    assert "END OF TERMS AND CONDITIONS" in licence


def test_the_packs_are_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not by building: that asks for the setuptools of pyproject.toml in an environment of its own.
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **options: given.update(options))
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    about = {"packages": ["tvmfuse"], "script_name": "setup.py"}
    build = given["cmdclass"]["build_py"](setuptools.Distribution(about))
    build.finalize_options()
    build.build_lib = str(tmp_path)
    build.run()
    built = {path.name: path.read_bytes() for path in (tmp_path / "tvmfuse/packs").iterdir()}
    packs = (ROOT / "tuning_logs/packs").glob("*.jsonl")
    assert built == {path.name: path.read_bytes() for path in packs}
    assert "x86-64-v3.jsonl" in built


def test_changelog_has_a_place_for_the_next_release() -> None:
    assert "\n## [Unreleased]\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_pre_commit_runs_the_pinned_ruff() -> None:
    pinned = requirement("ruff", PROJECT["optional-dependencies"]["dev"])
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r'"(ruff==[\d.]+)"', text)) == {str(pinned)}


def test_make_help_explains_every_target() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (targets,) = re.findall(r"^\.PHONY: (.*)$", text, re.M)
    shown = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    names = [target for target in targets.split() if "$" not in target]  # not folders
    assert re.findall(r"^  make ([a-z-]+)  ", shown, re.M) == names


def test_readme_names_everything_that_ci_runs() -> None:
    commands = [
        line for line in (ROOT / ".ci/run").read_text().splitlines() if line.startswith("make ")
    ]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert commands
    assert [command for command in commands if command not in readme] == []
