"""Patterns of others: registered, read from a file, or installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tvmfuse
from tvmfuse import testing
from tvmfuse._tvm import relax
from tvmfuse.errors import PatternError
from tvmfuse.passes.collect import collect
from tvmfuse.patterns import plugins, registry
from tvmfuse.patterns.base import Case, Operand, Pattern
from tvmfuse.patterns.softmax import Softmax

PATTERN = """
import numpy as np
import tvmfuse

@tvmfuse.register
class Bump(tvmfuse.Pattern):
    name = "bump"
    family = "elementwise"

    def graph(self, op, x):
        return op.exp(op.negative(op.multiply(x, x)))

    def reference(self, x):
        return np.exp(-x * x)
"""


class Bump(Pattern):
    name = "bump"
    family = "elementwise"

    def graph(self, op: Any, x: Any) -> Any:
        return op.exp(op.negative(op.multiply(x, x)))

    def reference(self, x: Any) -> Any:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = dict(plugins._registered)
    yield
    plugins._registered.clear()
    plugins._registered.update(before)


@pytest.fixture
def module() -> Any:
    mod, _ = testing.build(Case("", {"x": Operand((4, 4))}), Bump().graph, "float32")
    return mod


def names() -> list[str]:
    return [pattern.name for pattern in registry.default().patterns]


class TestRegister:
    def test_a_registered_pattern_comes_first(self, module: Any) -> None:
        tvmfuse.register(Bump())
        assert names()[0] == "bump"
        candidate, *_ = collect(module, registry.default()).candidates
        assert candidate.pattern == "bump"

    def test_it_decorates_a_class(self) -> None:
        assert tvmfuse.register(Bump) is Bump
        assert names()[0] == "bump"

    def test_registering_again_replaces(self) -> None:
        tvmfuse.register(Bump())
        second = tvmfuse.register(Bump())
        assert names().count("bump") == 1
        assert registry.default().patterns[0] is second

    def test_a_registry_made_before_is_frozen(self) -> None:
        earlier = registry.default()
        tvmfuse.register(Bump())
        assert "bump" not in earlier.names

    def test_unregister_forgets(self) -> None:
        tvmfuse.register(Bump())
        tvmfuse.unregister("bump")
        assert "bump" not in names()
        with pytest.raises(PatternError, match="no pattern 'bump' is registered"):
            tvmfuse.unregister("bump")

    def test_names_of_tvmfuse_are_refused(self) -> None:
        with pytest.raises(PatternError, match="'softmax' belongs to a pattern of tvmfuse"):
            tvmfuse.register(Softmax())

    @pytest.mark.parametrize("given", [3, "softmax", object(), dict])
    def test_what_is_no_pattern_is_refused(self, given: Any) -> None:
        with pytest.raises(PatternError, match=r"needs a tvmfuse\.Pattern"):
            tvmfuse.register(given)

    def test_a_pattern_without_a_family_is_refused(self) -> None:
        class Nameless(Bump):
            family = ""

        with pytest.raises(PatternError, match="family must be a text, but is ''"):
            tvmfuse.register(Nameless)

    def test_an_abstract_class_is_refused(self) -> None:
        class Half(Pattern):
            name = "half"
            family = "elementwise"

        with pytest.raises(PatternError, match="cannot be made"):
            tvmfuse.register(Half)

    def test_a_pattern_of_tvm_is_taken_as_it_is(self, module: Any) -> None:
        x = relax.dpl.wildcard()
        pattern = relax.dpl.is_op("relax.exp")(relax.dpl.is_op("relax.negative")(x))
        tvmfuse.register(relax.transform.FusionPattern("mine.exp", pattern))
        assert "mine.exp" in {c.pattern for c in collect(module, registry.default()).candidates}


class TestFile:
    def test_it_gives_what_it_registers_and_keeps_nothing(self, tmp_path: Path) -> None:
        path = tmp_path / "bump.py"
        path.write_text(PATTERN)
        (pattern,) = plugins.from_file(path)
        assert pattern.name == "bump"
        assert "bump" not in names()

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("import tvmfuse", "registers no pattern"),
            ("\n\nnonsense", "line 3: NameError: name 'nonsense' is not defined"),
            ("\ndef (", "line 2: SyntaxError"),
            ("raise SystemExit(3)", "line 1: SystemExit: 3"),
        ],
    )
    def test_a_file_that_gives_none_is_one_error(
        self, tmp_path: Path, text: str, expected: str
    ) -> None:
        path = tmp_path / "bad.py"
        path.write_text(text)
        with pytest.raises(PatternError, match=r"bad\.py") as caught:
            plugins.from_file(path)
        assert expected in str(caught.value)

    def test_a_missing_file_is_one_error(self, tmp_path: Path) -> None:
        with pytest.raises(PatternError, match="there is no such file"):
            plugins.from_file(tmp_path / "none.py")


class TestInstalled:
    @pytest.fixture
    def install(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        def install(name: str, code: str, entry: str) -> None:
            (tmp_path / f"{name}.py").write_text(code)
            info = tmp_path / f"{name}-1.2.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
            (info / "entry_points.txt").write_text(f"[tvmfuse.patterns]\n{name} = {entry}\n")

        monkeypatch.syspath_prepend(tmp_path)
        return install

    def test_an_entry_point_is_found(self, install: Any) -> None:
        install("bumps", PATTERN.replace("@tvmfuse.register", ""), "bumps:Bump")
        (plugin,) = plugins.added(taken=frozenset()).plugins
        assert (plugin.pattern.name, plugin.source) == ("bump", "bumps 1.2")
        assert names()[0] == "bump"

    @pytest.mark.parametrize(
        ("code", "entry", "reason"),
        [
            ("1 / 0", "broken:Bump", "ZeroDivisionError: division by zero"),
            ("", "empty:Bump", "AttributeError"),
            ("Bump = 3", "number:Bump", "PatternError"),
        ],
    )
    def test_one_that_fails_is_named_and_the_rest_is_used(
        self, install: Any, module: Any, code: str, entry: str, reason: str
    ) -> None:
        name = entry.partition(":")[0]
        install(name, code, entry)
        found = collect(module, registry.default())
        assert {c.pattern for c in found.candidates} == {"elementwise"}
        (rejection,) = found.rejections
        assert (rejection.pattern, rejection.bindings) == (name, ())
        assert reason in rejection.reason

    def test_one_with_a_name_of_ours_is_named(self, install: Any) -> None:
        code = PATTERN.replace("@tvmfuse.register", "").replace('"bump"', '"softmax"')
        install("rivals", code, "rivals:Bump")
        (failure,) = registry.default().failed
        assert "another pattern has the name 'softmax'" in failure.reason
