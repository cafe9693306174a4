"""The public surface: what `import laneway` gives, that it is described, and that the import stays light."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import laneway
from laneway import errors, events

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
HEAVY = ("sqlite3", "typer", "rich", "unittest", "http", "xml", "multiprocessing", "laneway.sim", "laneway.testing")


def documented(thing: Any) -> bool:
    """Whether a name has a docstring of its own; a NewType has none and says what it is by its name."""
    return bool(inspect.getdoc(thing)) if inspect.isclass(thing) or inspect.isfunction(thing) else True


def test_all_is_a_sorted_tuple() -> None:
    assert isinstance(laneway.__all__, tuple)
    assert list(laneway.__all__) == sorted(set(laneway.__all__))


def test_all_is_what_can_be_imported() -> None:
    assert [name for name in laneway.__all__ if getattr(laneway, name, None) is None] == []
    assert set(laneway.__all__) <= set(dir(laneway))


def test_type_checkers_are_told_where_each_name_is_loaded_from() -> None:
    tree = ast.parse(Path(str(inspect.getfile(laneway))).read_text(encoding="utf-8"))
    told = {
        alias.name: str(node.module).removeprefix("laneway.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == laneway._HOMES  # noqa: SLF001 - the table is what this is about
    assert set(told) == set(laneway.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'laneway' has no attribute 'Lane'"):
        _ = laneway.Lane  # type: ignore[attr-defined]


def test_modules_that_people_look_into_are_there_without_being_imported() -> None:
    code = (
        "import laneway; print(laneway.errors.REACTIONS and laneway.events.EVENT_TYPES and laneway.stores.open_store)"
    )
    assert "open_store" in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout


def test_every_error_is_exported() -> None:
    tree = {name for name in errors.__all__ if inspect.isclass(getattr(errors, name)) and name != "Reaction"}
    assert tree <= set(laneway.__all__)


@pytest.mark.parametrize("name", laneway.__all__)
def test_every_public_name_has_a_docstring(name: str) -> None:
    assert documented(getattr(laneway, name))


@pytest.mark.parametrize("name", laneway.__all__)
def test_every_public_method_has_a_docstring(name: str) -> None:
    thing = getattr(laneway, name)
    members = inspect.getmembers(thing, lambda one: inspect.isfunction(one) or isinstance(one, property))
    silent = [
        member
        for member, function in members
        if not member.startswith("_")
        and getattr(function, "__module__", "laneway").startswith("laneway")
        and not inspect.getdoc(function)
    ]
    assert silent == []


def test_every_event_has_a_docstring() -> None:
    assert all(documented(getattr(events, name)) for name in events.__all__)


def test_every_public_name_is_in_the_reference() -> None:
    pages = sorted(REFERENCE.glob("**/*.md"))
    assert pages, f"there are no pages in {REFERENCE}"
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert [name for name in laneway.__all__ if name not in text] == []
    assert [name for name in events.EVENT_TYPES if name not in text] == []


def loaded_by(statement: str) -> list[str]:
    """The modules that are there after a statement and were not before."""
    code = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_importing_laneway_loads_nothing_else() -> None:
    assert loaded_by("import laneway") == ["laneway"]


def test_importing_the_lanes_is_light() -> None:
    loaded = loaded_by("from laneway import Inbox, Lanes")
    assert [name for name in HEAVY if name in loaded] == []


def test_the_package_says_that_it_is_typed() -> None:
    root = Path(str(inspect.getfile(laneway))).parent
    assert (root / "py.typed").exists()
