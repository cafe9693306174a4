"""`laneway session delete|export|import`: sessions for good, by a server or in a store that nobody uses."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from laneway.cli.client import path_of
from laneway.cli.completion import complete_session
from laneway.cli.reach import JsonOption, Owning, Reading, asking, named_store, operating, place_in
from laneway.cli.tables import line, print_json, say
from laneway.errors import ConflictError, UsageError
from laneway.system import SystemClock

if TYPE_CHECKING:
    from laneway.stores.sqlite import SqliteStore

__all__ = ("add_to", "owned")

SessionArgument = Annotated[str, typer.Argument(help="The session.", autocompletion=complete_session)]


def add_to(app: typer.Typer) -> None:
    """Give the commands to those of sessions."""
    app.command("delete", cls=Owning)(delete)
    app.command("export", cls=Reading)(export)
    app.command("import", cls=Owning)(import_)


@asynccontextmanager
async def owned(path: str) -> AsyncIterator[SqliteStore]:
    """A store that is open here and nowhere else."""
    from laneway.stores.sqlite import SqliteStore

    store = SqliteStore(path)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def delete(
    ctx: typer.Context,
    session: SessionArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="Why; for the audit log.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Erase everything about a session, for good: what runs is ended first."""
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError(f"this would erase session {session!r}", hint="say --yes if that is meant")
        typer.confirm(f"Erase everything about {session}?", abort=True)
    store = named_store(ctx)
    if store:
        found = _delete_in(place_in(store, ctx), session)
    else:
        with operating(ctx) as server:
            found = server.delete(path_of("sessions", session), reason=reason or None)
    if as_json:
        print_json(found)
    else:
        say(f"Session {line(session)} is gone: {found['rows']:,} rows were erased.")


def _delete_in(place: tuple[str, str, str], session: str) -> dict[str, Any]:
    from laneway.errors import NotFoundError
    from laneway.rows import Owner
    from laneway.runtime.erasing import erase_all

    path, tenant, workspace = place

    async def work() -> int:
        async with owned(path) as store:
            gone = await erase_all(store, Owner(tenant, workspace, session))
            if not gone:
                raise NotFoundError(what="session", name=session, hint="a session begins with its first message")
            return gone

    return {"session_key": session, "rows": asyncio.run(work())}


def export(
    ctx: typer.Context,
    session: SessionArgument,
    target: Annotated[Path, typer.Argument(help="A new file.", dir_okay=False)],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file that is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a session in which nothing runs to one file, which `import` takes."""
    if target.exists() and not overwrite:
        raise ConflictError(f"{target} exists already", hint="choose another path, or say --overwrite")
    part = target.with_name(f"{target.name}.part")
    store = named_store(ctx)
    try:
        if store:
            _export_from(place_in(store, ctx), session, part)
        else:
            with asking(ctx) as server, part.open("wb") as file:
                for chunk in server.chunks(path_of("sessions", session, "export")):
                    file.write(chunk)
        rows = _check(part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    if as_json:
        print_json({"session_key": session, "path": str(target.absolute()), "rows": rows})
    else:
        say(f"Session {line(session)} was written to {target}: {rows:,} rows")


def _check(path: Path) -> int:
    """Only a file that could be imported is a file."""
    from laneway.runtime.archive import check_archive

    with path.open("rb") as file:
        return check_archive(file).rows


def _export_from(place: tuple[str, str, str], session: str, part: Path) -> None:
    from laneway.rows import Owner
    from laneway.runtime.archive import export_session
    from laneway.stores.sqlite import SqliteLooking

    path, tenant, workspace = place
    store = SqliteLooking(path)

    async def work() -> None:
        with part.open("wb") as file:
            async for each in export_session(store, Owner(tenant, workspace, session), at_ms=SystemClock().wall_ms()):
                file.write(each)

    try:
        asyncio.run(work())
    finally:
        store.close()


def import_(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(help="A file of `export`.", exists=True, dir_okay=False)],
    key: Annotated[str, typer.Option("--as", help="Under this key; else the one it had.", metavar="KEY")] = "",
    as_json: JsonOption = False,
) -> None:
    """Take in a session that was exported: whole, or not at all."""
    store = named_store(ctx)
    with source.open("rb") as file:
        if store:
            found = _import_into(place_in(store, ctx), file, key)
        else:
            with operating(ctx) as server:
                found = server.upload("/sessions/import", file, key=key or None)
    if as_json:
        print_json(found)
    else:
        say(f"Session {line(found['session_key'])} is in workspace {found['workspace']}: {found['rows']:,} rows")


def _import_into(place: tuple[str, str, str], file: Any, key: str) -> dict[str, Any]:
    from laneway.rows import Owner
    from laneway.runtime.archive import check_archive, import_session
    from laneway.runtime.envelope import check_key

    path, tenant, workspace = place
    head = check_archive(file)
    session = check_key(key or head.session, "session key")
    file.seek(0)

    async def work() -> None:
        async with owned(path) as store:
            await import_session(store, file, Owner(tenant, workspace, session))

    asyncio.run(work())
    return {"session_key": session, "workspace": workspace, "rows": head.rows, "exported_ms": head.at_ms}
