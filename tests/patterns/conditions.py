"""Every condition in the code of a pattern, and that code with one of them waived.

A condition is an operand of what a pattern tests before it yields or refuses a match,
found in the syntax tree of each function that ``find`` or ``check`` calls. Waiving it
is running the function as though it always held.
"""

from __future__ import annotations

import ast
import copy
import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from tvmfuse.patterns.base import Generator, Pattern

# What tells operators and graphs apart is tested with them.
_LANGUAGE = ("base", "dataflow", "operators", "trace")

# Bounds of the work, not of the meaning.
_BUDGET = "_MAX_"

# Of every match, ``collect`` looks at the first two again, and has tests of its own; what was
# seen already is only not looked at twice.
_CENTRAL = frozenset({"groupable", "block_of", "seen"})

_LEAKS = frozenset(
    {"escaping", "users", "outputs", "is_convex", "private_source", "_sole_user", "_is_private"}
)


@dataclass(frozen=True)
class Condition:
    """One condition of a function.

    Parameters
    ----------
    function : function
        Where it stands.
    text : str
        What must hold.
    waived_code : code
        The function without it.
    """

    function: FunctionType
    text: str
    waived_code: CodeType

    @property
    def name(self) -> str:
        module = self.function.__module__.rpartition(".")[2]
        return f"{module}.{self.function.__qualname__}: {self.text}"

    @property
    def is_about_leaks(self) -> bool:
        """Whether ``collect`` would refuse, too, what only this one refuses."""
        return bool(_names(ast.parse(self.text)) & _LEAKS)

    @contextmanager
    def waived(self) -> Iterator[None]:
        before = self.function.__code__
        self.function.__code__ = self.waived_code
        try:
            yield
        finally:
            self.function.__code__ = before


def functions(pattern: Generator) -> tuple[FunctionType, ...]:
    """Return all that decides what ``pattern`` matches."""
    kind = type(pattern)
    waiting: list[Any] = [kind.check if isinstance(pattern, Pattern) else kind.find]
    found: dict[FunctionType, None] = {}
    while waiting:
        item = waiting.pop()
        if inspect.isclass(item):
            members = (getattr(member, "__func__", member) for member in vars(item).values())
            waiting += [m for m in members if inspect.isfunction(m) and _is_written(m)]
        elif item not in found and _is_written(item):
            found[item] = None
            values = vars(sys.modules[item.__module__])
            called = (values.get(name) for name in sorted(_names_of_code(item.__code__)))
            waiting += [c for c in called if inspect.isfunction(c) or inspect.isclass(c)]
    return tuple(found)


def conditions(function: FunctionType) -> Iterator[Condition]:
    """Yield the conditions of a function in the order in which they stand."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(tree, ast.FunctionDef)
    tree.decorator_list.clear()
    for number, (node, held) in enumerate(_tests(tree)):
        waived = copy.deepcopy(tree)
        at, _ = list(_tests(waived))[number]
        _Replace(at, ast.Constant(held)).visit(waived)
        text = ast.unparse(node) if held else f"not ({ast.unparse(node)})"
        yield Condition(function, text, _compiled(waived, function))


def _is_written(function: Any) -> bool:
    """Whether a function is written in a module of patterns, not made by a decorator."""
    package, _, module = function.__module__.rpartition(".")
    is_ours = package == "tvmfuse.patterns" and module not in _LANGUAGE
    return is_ours and function.__code__.co_filename == sys.modules[function.__module__].__file__


def _tests(tree: ast.FunctionDef) -> Iterator[tuple[ast.expr, bool]]:
    """Yield each condition with the truth value at which it refuses nothing."""
    for node in ast.walk(tree):
        for test, held in _whole_tests(node, tree):
            for part, value in _parts(test, held):
                if _is_condition(part):
                    yield part, value


def _whole_tests(node: ast.AST, tree: ast.FunctionDef) -> Iterator[tuple[ast.expr, bool]]:
    is_predicate = tree.returns is not None and ast.unparse(tree.returns) == "bool"
    match node:
        case ast.If():
            yield node.test, not _refuses(node.body[-1])
        case ast.IfExp():
            yield node.test, True
        case ast.comprehension():
            yield from ((test, True) for test in node.ifs)
        case ast.Return(value=ast.expr() as value) if is_predicate:
            yield value, True
        case ast.Assign(value=value) | ast.Return(value=ast.expr() as value):
            if _is_boolean(value):
                yield value, True


def _parts(test: ast.expr, held: bool) -> Iterator[tuple[ast.expr, bool]]:  # noqa: FBT001
    """Yield what must hold together so that ``test`` is ``held``."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand, not held)
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) == held:
        for value in test.values:
            yield from _parts(value, held)
    elif _calls(test, "bool"):
        yield from _parts(test.args[0], held)  # type: ignore[attr-defined]
    elif _calls(test, "all" if held else "any") and isinstance(
        test.args[0],  # type: ignore[attr-defined]
        ast.GeneratorExp,
    ):
        yield from _parts(test.args[0].elt, held)  # type: ignore[attr-defined]
    else:
        yield test, held


def _is_condition(node: ast.expr) -> bool:
    """Whether a test says something of a graph.

    A name stands for conditions that are waived where they are written; what tells None
    and integers from the rest is there for the types.
    """
    if isinstance(node, ast.Name | ast.Constant):
        return False
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot):
        return False
    names = _names(node)
    is_extent = _calls(node, "isinstance") and "int" in names
    return not (is_extent or names & _CENTRAL or any(n.startswith(_BUDGET) for n in names))


def _refuses(statement: ast.stmt) -> bool:
    """Whether a branch that ends so gives up a match."""
    if isinstance(statement, ast.Continue | ast.Raise | ast.Break):
        return True
    if not isinstance(statement, ast.Return):
        return False
    value = statement.value
    if isinstance(value, ast.Constant):
        return value.value is None or value.value is False or bool(value.value)
    is_empty = isinstance(value, ast.Tuple | ast.List) and not value.elts
    return value is None or is_empty or isinstance(value, ast.JoinedStr)


def _is_boolean(node: ast.expr) -> bool:
    is_not = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    is_call = any(_calls(node, name) for name in ("all", "any", "bool", "isinstance"))
    is_both = isinstance(node, ast.BoolOp) and any(_is_boolean(v) for v in node.values)
    return is_not or is_call or is_both or isinstance(node, ast.Compare)


def _calls(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == name


def _names(node: ast.AST) -> set[str]:
    parts = list(ast.walk(node))
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    return names | {part.attr for part in parts if isinstance(part, ast.Attribute)}


def _names_of_code(code: CodeType) -> set[str]:
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*(_names_of_code(part) for part in inner))


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.expr, new: ast.expr) -> None:
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self._new if node is self._old else super().visit(node)


def _compiled(tree: ast.FunctionDef, function: FunctionType) -> CodeType:
    head = ast.parse("from __future__ import annotations").body
    module = ast.fix_missing_locations(ast.Module([*head, tree], []))
    code = compile(module, function.__code__.co_filename, "exec")
    return next(part for part in code.co_consts if isinstance(part, CodeType))
