"""The SQL of the SQLite store, read from the files beside it: named statements, and migrations in their order."""

from __future__ import annotations

import re
import sqlite3
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

__all__ = ("Migration", "migrations", "schema_version", "statement", "statements")

_FOLDER: Final = "sql"
_NAME: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_MIGRATION: Final = re.compile(r"^(\d{4})_(\w+)\.sql$")


class Migration(NamedTuple):
    """One step of the schema: its number, its name, and what it does, statement by statement."""

    version: int
    name: str
    statements: tuple[str, ...]


@cache
def statements() -> dict[str, str]:
    """Every statement by its name."""
    text = (files(__package__) / _FOLDER / "statements.sql").read_text(encoding="utf-8")
    parts = _NAME.split(text)
    names, bodies = parts[1::2], parts[2::2]
    assert len(set(names)) == len(names), "two statements have one name"
    return {name: body.strip().removesuffix(";") for name, body in zip(names, bodies, strict=True)}


def statement(name: str) -> str:
    """One statement."""
    return statements()[name]


@cache
def migrations() -> tuple[Migration, ...]:
    """Every step of the schema, oldest first; their numbers count from 1 without a gap."""
    found: list[Migration] = []
    for file in (files(__package__) / _FOLDER).iterdir():
        match = _MIGRATION.match(file.name)
        if match is not None:
            text = file.read_text(encoding="utf-8")
            found.append(Migration(int(match[1]), match[2], split_script(text)))
    found.sort()
    assert [step.version for step in found] == list(range(1, len(found) + 1)), "migrations have a gap"
    return tuple(found)


def schema_version() -> int:
    """The version this Laneway writes."""
    return len(migrations())


def split_script(text: str) -> tuple[str, ...]:
    """The statements of a script: `executescript` would end the transaction they belong to."""
    parts: list[str] = []
    pending = ""
    for line in text.splitlines():
        if not pending and (not line.strip() or line.lstrip().startswith("--")):
            continue
        pending += line + "\n"
        if sqlite3.complete_statement(pending):
            parts.append(pending.strip())
            pending = ""
    assert not pending.strip(), f"a statement does not end: {pending!r}"
    return tuple(parts)
