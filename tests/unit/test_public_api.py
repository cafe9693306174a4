"""The public surface: what `import laneway` gives, that it is described, and that the import stays light."""

from __future__ import annotations

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
    own = {name for name, thing in vars(laneway).items() if not name.startswith("_") and not inspect.ismodule(thing)}
    assert own == set(laneway.__all__)


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


def test_importing_laneway_is_light() -> None:
    code = "import sys, laneway; print(*sorted(sys.modules), sep='\\n')"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    found = [name for name in HEAVY if name in loaded]
    assert found == []


def test_the_package_says_that_it_is_typed() -> None:
    root = Path(str(inspect.getfile(laneway))).parent
    assert (root / "py.typed").exists()
