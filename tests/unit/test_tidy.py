"""The rules of the house that no linter knows: sizes, names, docstrings, no sleeping, no test without a claim."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
MODULE_LINES_MAX: Final = 800
FUNCTION_LINES_MAX: Final = 70
BANNED_WORDS: Final = frozenset({"manager", "utils", "common", "base", "helper", "data"})
CLAIMS: Final = ("assert", "check_", "expect", "raises")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One parsed file and its path below the project."""

    path: Path
    source: str
    tree: ast.Module

    def at(self, node: ast.AST) -> str:
        return f"{self.path.as_posix()}:{getattr(node, 'lineno', 1)}"


FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
Rule = Callable[[Module], Iterator[str]]


def parse(source: str, path: str) -> Module:
    return Module(path=Path(path), source=source, tree=ast.parse(source, path))


@cache
def modules_below(folder: str) -> tuple[Module, ...]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    return tuple(parse(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()) for path in paths)


def called_name(call: ast.Call) -> str:
    """The last part of what is called: `raises` for `pytest.raises(...)`."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def long_modules(module: Module) -> Iterator[str]:
    count = len(module.source.splitlines())
    if count > MODULE_LINES_MAX:
        yield f"{module.path.as_posix()}: {count} lines, at most {MODULE_LINES_MAX}"


def long_functions(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, FUNCTIONS):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count > FUNCTION_LINES_MAX:
                yield f"{module.at(node)}: {node.name} has {count} lines, at most {FUNCTION_LINES_MAX}"


def modules_without_docstring(module: Module) -> Iterator[str]:
    if not ast.get_docstring(module.tree):
        yield f"{module.path.as_posix()}: no docstring says what this module is for"


def banned_module_names(module: Module) -> Iterator[str]:
    for part in module.path.with_suffix("").parts:
        words = {word for piece in part.lower().split("_") for word in (piece, f"{piece}s", piece.removesuffix("s"))}
        for word in sorted(words & BANNED_WORDS):
            yield f"{module.path.as_posix()}: {part!r} says nothing ({word}); name it by the noun it defines"


def sleeps(module: Module) -> Iterator[str]:
    """Every sleep but `asyncio.sleep(0)`, which only lets others run; an imported bare `sleep` counts."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and called_name(node) == "sleep" and ast.unparse(node) != "asyncio.sleep(0)":
            yield f"{module.at(node)}: {ast.unparse(node)}; wait for an event or step a FakeClock"


def idle_tests(module: Module) -> Iterator[str]:
    for test in ast.walk(module.tree):
        if not isinstance(test, FUNCTIONS) or not test.name.startswith("test"):
            continue
        if not any(
            isinstance(node, ast.Assert) or (isinstance(node, ast.Call) and called_name(node).startswith(CLAIMS))
            for node in ast.walk(test)
        ):
            yield f"{module.at(test)}: {test.name} asserts nothing"


RULES: Final[dict[Rule, tuple[str, ...]]] = {
    long_modules: ("src", "tests"),
    long_functions: ("src", "tests"),
    modules_without_docstring: ("src",),
    banned_module_names: ("src",),
    sleeps: ("tests/unit",),
    idle_tests: ("tests",),
}

BAD: Final[list[tuple[Rule, str, str]]] = [
    (long_modules, "src/laneway/big.py", "x = 1\n" * (MODULE_LINES_MAX + 1)),
    (long_functions, "src/laneway/big.py", "async def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX),
    (modules_without_docstring, "src/laneway/mute.py", "x = 1\n"),
    (banned_module_names, "src/laneway/lane_utils.py", ""),
    (banned_module_names, "src/laneway/helpers/text.py", ""),
    (sleeps, "tests/unit/test_x.py", "asyncio.sleep(0.1)"),
    (sleeps, "tests/unit/test_x.py", "time.sleep(0)"),
    (sleeps, "tests/unit/test_x.py", "sleep(1)"),
    (idle_tests, "tests/unit/test_x.py", "async def test_x():\n    await run()"),
]

GOOD: Final[list[tuple[Rule, str, str]]] = [
    (long_modules, "src/laneway/big.py", "x = 1\n" * MODULE_LINES_MAX),
    (long_functions, "src/laneway/big.py", "def f():\n" + "    x = 1\n" * (FUNCTION_LINES_MAX - 1)),
    (modules_without_docstring, "src/laneway/mute.py", '"""Says it."""'),
    (banned_module_names, "src/laneway/database.py", ""),
    (sleeps, "tests/unit/test_x.py", "asyncio.sleep(0)"),
    (idle_tests, "tests/unit/test_x.py", "def test_x():\n    with pytest.raises(E): run()"),
    (idle_tests, "tests/unit/test_x.py", "async def test_x():\n    await check_store(open_store)"),
]


@pytest.mark.parametrize("rule", RULES)
def test_the_project_keeps_the_rule(rule: Rule) -> None:
    """The message lists every offending place."""
    modules = [module for folder in RULES[rule] for module in modules_below(folder)]
    offences = [offence for module in modules for offence in rule(module)]
    assert modules
    assert not offences, "\n" + "\n".join(offences)


@pytest.mark.parametrize(("rule", "path", "source"), BAD)
def test_the_rule_catches_an_offence(rule: Rule, path: str, source: str) -> None:
    assert len(list(rule(parse(source, path)))) == 1


@pytest.mark.parametrize(("rule", "path", "source"), GOOD)
def test_the_rule_lets_good_code_pass(rule: Rule, path: str, source: str) -> None:
    assert list(rule(parse(source, path))) == []
