"""`laneway session delete|export|import`: sessions for good, by a server or in a store that nobody uses."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from laneway.cli.client import path_of
from laneway.cli.completion import complete_session
from laneway.cli.reach import JsonOption, Owning, Reading, asking, named_store, operating, place_in, without_server
from laneway.cli.tables import line, print_json, say
from laneway.cli.target_files import target_file
from laneway.errors import ArchiveError, InvalidMessageError, TransportUnavailableError, UsageError
from laneway.system import SystemClock

if TYPE_CHECKING:
    from laneway.runtime.archive import ArchiveHead
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


@asynccontextmanager
async def _in_order(place: tuple[str, str, str]) -> AsyncIterator[SqliteStore]:
    """The same, and what a process that was killed has left half deleted or half imported is gone, as after a start."""
    from laneway.runtime.erasing import finish_in

    path, tenant, workspace = place
    async with owned(path) as store:
        await finish_in(store, tenant, workspace)
        yield store


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
        found = _delete_in(_place(store, ctx), _checked(session))
    else:
        with operating(ctx) as server:
            found = server.delete(path_of("sessions", session), reason=reason or None)
    if as_json:
        print_json(found)
    else:
        say(f"Session {line(session)} is gone: {found['rows']:,} rows were erased.")


def _checked(session: str) -> str:
    """A key that a session may have which is deleted, exported or imported; that of a sub-agent goes with its parent.

    A server looks at it, too. Here nobody does.
    """
    from laneway.agent.subagents import is_child_id, root_of
    from laneway.runtime.envelope import check_key

    check_key(session, "session key")
    if is_child_id(session):
        raise InvalidMessageError(
            f"session {session!r} belongs to a sub-agent and goes with its parent", hint=f"name {root_of(session)!r}"
        )
    return session


def _place(store: str, ctx: typer.Context) -> tuple[str, str, str]:
    """The file of a store, and a tenant and a workspace of it in which people have sessions."""
    from laneway.runtime.erasing import check_workspace

    path, tenant, workspace = place_in(store, ctx)
    return path, tenant, check_workspace(workspace)


def _delete_in(place: tuple[str, str, str], session: str) -> dict[str, Any]:
    from laneway.errors import NotFoundError
    from laneway.rows import Owner
    from laneway.runtime.erasing import erase_all

    _, tenant, workspace = place

    async def work() -> int:
        async with _in_order(place) as store:
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
    store = named_store(ctx)
    with target_file(target, overwrite=overwrite) as file:
        if store:
            _export_from(_place(store, ctx), _checked(session), file)
        else:
            _download(ctx, session, file)
        file.seek(0)
        rows = _check(file)
    if as_json:
        print_json({"session_key": session, "path": str(target.absolute()), "rows": rows})
    else:
        say(f"Session {line(session)} was written to {target}: {rows:,} rows")


def _download(ctx: typer.Context, session: str, file: IO[bytes]) -> None:
    try:
        with asking(ctx) as server:
            for chunk in server.chunks(path_of("sessions", session, "export")):
                file.write(chunk)
    except TransportUnavailableError as error:
        raise without_server(error) from error


def _check(file: IO[bytes]) -> int:
    """Only a file that could be imported is a file."""
    from laneway.runtime.archive import check_archive, lines_of

    return check_archive(lines_of(file)).rows


def _export_from(place: tuple[str, str, str], session: str, file: IO[bytes]) -> None:
    from laneway.rows import Owner
    from laneway.runtime.archive import export_session
    from laneway.stores.sqlite import SqliteLooking

    path, tenant, workspace = place
    store = SqliteLooking(path)

    async def work() -> None:
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
    if not source.is_file():  # a pipe would be waited for, and a device has no end
        raise ArchiveError(f"{source} is no file", hint="laneway session export writes one")
    store = named_store(ctx)
    with source.open("rb") as file:
        if store:
            session = _session_in(file, key)
            asyncio.run(_made(store))
            found = _import_into(_place(store, ctx), file, session)
        else:
            with operating(ctx) as server:
                found = server.upload("/sessions/import", file, key=key or None)
    if as_json:
        print_json(found)
    else:
        say(f"Session {line(found['session_key'])} is in workspace {found['workspace']}: {found['rows']:,} rows")


async def _made(address: str) -> None:
    """See that there is a store: a session may be the first thing in it."""
    from laneway.stores import open_store

    store = open_store(address)
    await store.open()
    await store.close()


def _session_in(file: IO[bytes], key: str) -> str:
    """Under which key the session of a file, which is whole, is imported."""
    from laneway.runtime.archive import check_archive, lines_of

    head = check_archive(lines_of(file))
    file.seek(0)
    return _checked(key or head.session)


def _import_into(place: tuple[str, str, str], file: IO[bytes], session: str) -> dict[str, Any]:
    from laneway.rows import Owner
    from laneway.runtime.archive import import_session, lines_of

    _, tenant, workspace = place

    async def work() -> ArchiveHead:
        async with _in_order(place) as store:
            return await import_session(store, lines_of(file), Owner(tenant, workspace, session))

    head = asyncio.run(work())
    return {"session_key": session, "workspace": workspace, "rows": head.rows, "exported_ms": head.at_ms}
