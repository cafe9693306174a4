"""Where rows are kept: in memory, or in an SQLite file. `open_store` turns an address into a store.

Addresses are `memory:`, `sqlite:///relative.db` and `sqlite:////absolute/path.db`. What an address needs is imported
when it is used: `import laneway.stores` does not load `sqlite3`.
"""

from __future__ import annotations

import os
from typing import Final, cast

from laneway.errors import UnknownStoreError
from laneway.ports import Store
from laneway.stores.memory import MemoryDisk, MemoryStore

__all__ = ("MemoryDisk", "MemoryStore", "open_store", "sqlite_path")

SCHEMES: Final = ("memory", "sqlite")
METHODS: Final = ("commit", "epoch", "find", "history", "load_session", "load_workspace", "next_seq", "open", "close")
WAYS: Final = "memory:, sqlite:///relative.db or sqlite:////absolute/path.db"


def open_store(value: str | Store | None) -> Store:
    """The store behind an address; a store as it is; a new memory store for None. It still has to be opened."""
    if value is None:
        return MemoryStore()
    if not isinstance(value, str):
        return _store_as_it_is(value)
    scheme, separator, rest = value.partition(":")
    scheme = scheme.strip().casefold()
    if scheme == "memory" and separator and not rest.strip("/"):
        return MemoryStore()
    if scheme == "sqlite" and separator:
        path = sqlite_path(value)
        from laneway.stores.sqlite import SqliteStore  # sqlite3 is loaded when somebody uses it

        return SqliteStore(path)
    raise UnknownStoreError(f"there is no store {value!r}", hint=_hint(value, scheme), address=value)


def sqlite_path(address: str) -> str:
    """The path in an SQLite address."""
    _, _, rest = address.partition(":")
    path = rest[3:] if rest.startswith("///") else ""
    if "?" in path:
        raise UnknownStoreError(
            f"the store address {address!r} has options, and there are none",
            hint="leave out everything from the ? on, or use SqliteStore(path, ...)",
            address=address,
        )
    if not path or path.startswith(":memory"):
        wanted = rest.lstrip("/")
        way = f"did you mean 'sqlite:///{wanted}'?" if wanted and not path else f"use {WAYS}"
        raise UnknownStoreError(f"the store address {address!r} names no file", hint=way, address=address)
    return os.path.expanduser(path)


def _store_as_it_is(value: object) -> Store:
    if all(hasattr(type(value), name) for name in METHODS):
        return cast(Store, value)
    way = f"did you mean 'sqlite:///{os.fspath(value)!s}'?" if isinstance(value, os.PathLike) else f"use {WAYS}"
    raise UnknownStoreError(f"a store is an address or a Store, not {value!r}", hint=way, address=value)


def _hint(value: str, scheme: str) -> str:
    if not value.strip():
        return f"use {WAYS}"
    if ":" not in value and ("/" in value or "." in value):
        return f"did you mean 'sqlite:///{value}'?"
    from difflib import get_close_matches  # only for people who have mistyped something

    near = get_close_matches(scheme, SCHEMES, n=1)
    if not near:
        return f"use {WAYS}"
    return f"did you mean {'memory:' if near[0] == 'memory' else 'sqlite:///' + value.partition(':')[2].lstrip('/')!r}?"
