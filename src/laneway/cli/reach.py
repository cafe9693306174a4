"""Which server or store a command asks: the options that every such command has, and what follows from them.

They are given to a command by its class (`cls=Asking` or `cls=Reading`), so that they stand behind the command, as
people write them, without being written out at each of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperCommand

from laneway.cli.client import URL, Server, Target
from laneway.cli.credentials import prompt, token_of
from laneway.cli.tables import errors, say
from laneway.errors import LanewayError, TransportUnavailableError

if TYPE_CHECKING:
    from laneway.cli.reading import StoreReader

    Source = Server | StoreReader

__all__ = (
    "Asking",
    "AuthorityOption",
    "JsonOption",
    "Owning",
    "Reading",
    "Source",
    "asking",
    "named_store",
    "operating",
    "place_in",
    "read",
    "target_of",
    "without_server",
)

META: Final = "laneway.reach"
TARGET: Final = "laneway.target"
STORE: Final = "sqlite:///laneway.db"
PANEL: Final = "Server"

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, as the server sends it.")]
AuthorityOption = Annotated[
    str,
    typer.Option(
        "--ca",
        envvar="LANEWAY_CA",
        help="The file of the authority that has signed the certificate of the server.",
        rich_help_panel=PANEL,
        metavar="FILE",
        show_default=False,
    ),
]
T = TypeVar("T")


def _server_options(
    url: Annotated[
        str, typer.Option("--url", envvar="LANEWAY_URL", help="The server.", rich_help_panel=PANEL, metavar="URL")
    ] = URL,
    token: Annotated[
        str,
        typer.Option(
            "--token",
            envvar="LANEWAY_TOKEN",
            help="Who asks. '-' asks for it, or reads a line of standard input; others can see what is written here.",
            rich_help_panel=PANEL,
            metavar="TOKEN",
            show_default=False,
        ),
    ] = "",
    token_file: Annotated[
        str,
        typer.Option(
            "--token-file",
            envvar="LANEWAY_TOKEN_FILE",
            help="A file with the token, which nobody else may read.",
            rich_help_panel=PANEL,
            metavar="FILE",
            show_default=False,
        ),
    ] = "",
    workspace: Annotated[
        str,
        typer.Option(
            "--workspace",
            envvar="LANEWAY_WORKSPACE_NAME",
            help="Which workspace, by its name; else the first one.",
            rich_help_panel=PANEL,
            metavar="NAME",
            show_default=False,
        ),
    ] = "",
    tenant: Annotated[
        str,
        typer.Option(
            "--tenant",
            envvar="LANEWAY_TENANT",
            help="Whose things, if the token is for all.",
            rich_help_panel=PANEL,
            metavar="NAME",
            show_default=False,
        ),
    ] = "",
    ca: AuthorityOption = "",
) -> None:
    """The options of commands that ask a server."""


def _store_option(
    store: Annotated[
        str,
        typer.Option(
            "--store",
            envvar="LANEWAY_STORE",
            help="Read this store instead, without a server; one that is in use, too.",
            rich_help_panel=PANEL,
            metavar="sqlite:///FILE",
            show_default=False,
        ),
    ] = "",
) -> None:
    """The option of commands that only read."""


def _own_store_option(
    store: Annotated[
        str,
        typer.Option(
            "--store",
            help="Change this store instead, without a server; nobody else may have it open.",
            rich_help_panel=PANEL,
            metavar="sqlite:///FILE",
            show_default=False,
        ),
    ] = "",
) -> None:
    """The option of commands that change what a store has."""


@cache
def _made(function: Any) -> tuple[Any, ...]:
    """The parameters of a function as those of a command; what is given is kept for `target_of`."""
    application = typer.Typer(add_completion=False)
    application.command()(function)
    found = tuple(typer.main.get_command(application).params)
    for each in found:
        each.expose_value = False
        each.callback = _keep
    return found


def _keep(ctx: Any, param: Any, value: Any) -> Any:
    source = ctx.get_parameter_source(param.name)
    ctx.meta.setdefault(META, {})[param.name] = (value, source is not None and source.name == "COMMANDLINE")
    return value


class Asking(TyperCommand):
    """A command that asks a server."""

    def __init__(self, name: str | None, *, params: list[Any] | None = None, **more: Any) -> None:
        super().__init__(name, params=[*(params or ()), *_made(_server_options)], **more)


class Reading(TyperCommand):
    """A command that only reads: from a server, or from a store without one."""

    def __init__(self, name: str | None, *, params: list[Any] | None = None, **more: Any) -> None:
        made = [*_made(_server_options), *_made(_store_option)]
        super().__init__(name, params=[*(params or ()), *made], **more)


class Owning(TyperCommand):
    """A command that changes something: by a server, or in a store that nobody uses."""

    def __init__(self, name: str | None, *, params: list[Any] | None = None, **more: Any) -> None:
        made = [*_made(_server_options), *_made(_own_store_option)]
        super().__init__(name, params=[*(params or ()), *made], **more)


def target_of(ctx: typer.Context) -> Target:
    """The server that a command is to ask. The first call may ask for a token."""
    given = ctx.meta.get(META, {})
    if TARGET not in ctx.meta:
        named = {name: given[name][0] for name in ("url", "workspace", "tenant", "ca") if name in given}
        ctx.meta[TARGET] = Target(token=token_of(given), **named)
    found: Target = ctx.meta[TARGET]
    return found


@contextmanager
def asking(ctx: typer.Context) -> Iterator[Server]:
    """The server that a command asks. If it wants a token and none was given, a person at a terminal is asked."""
    with Server(target_of(ctx), ask_token=prompt()) as server:
        yield server


@contextmanager
def operating(ctx: typer.Context) -> Iterator[Server]:
    """The same for what operators do; a tool of an agent is refused."""
    from laneway.cli.operating import refuse_in_tools  # it knows the tools of agents, which other commands need not

    refuse_in_tools()
    with asking(ctx) as server:
        yield server


def read(ctx: typer.Context, work: Callable[[Source], T]) -> T:
    """What a command reads: from the store that it names; else from the server; else, if nobody answers there, from
    the store that the environment names."""
    target = target_of(ctx)
    store, is_named = ctx.meta.get(META, {}).get("store", ("", False))
    if store and is_named:
        with _reader(store, target) as reader:
            return work(reader)
    try:
        with Server(target) as server:
            return work(server)
    except TransportUnavailableError as error:
        if not getattr(error, "is_refused", False):
            raise
        refused = error
    with _instead(refused, store, target) as reader:
        return work(reader)


def named_store(ctx: typer.Context) -> str:
    """The store that a command names instead of a server; empty if it names none."""
    store, is_named = ctx.meta.get(META, {}).get("store", ("", False))
    return str(store) if is_named else ""


def place_in(store: str, ctx: typer.Context) -> tuple[str, str, str]:
    """The file of a store, and which tenant and workspace of it a command means."""
    target = target_of(ctx)
    with _reader(store, target) as reader:
        return reader.path, reader.tenant, reader.workspace


def _reader(store: str, target: Target) -> StoreReader:
    from laneway.cli.reading import StoreReader  # it knows the kernel, which a command that asks a server need not

    return StoreReader(store, workspace=target.workspace, tenant=target.tenant)


def without_server(refused: TransportUnavailableError) -> TransportUnavailableError:
    """That no server answers, for a command that a store is enough for."""
    here = ", which is here" if Path(STORE.removeprefix("sqlite:///")).is_file() else ""
    hint = f"{refused.hint}, or read a store without one: --store {STORE}{here}"
    return TransportUnavailableError(refused.message, hint=hint)


def _instead(refused: TransportUnavailableError, store: str, target: Target) -> StoreReader:
    """The store that the environment names, because no server answers."""
    if not store:
        raise without_server(refused)
    try:
        reader = _reader(store, target)
    except LanewayError as error:
        raise TransportUnavailableError(
            f"{refused.message}, and the store that LANEWAY_STORE names cannot be read: {error.message}",
            hint=refused.hint,
        ) from error
    if sys.stderr.isatty():
        say(f"No server answers at {target.url}: this is what {store} says.", style="dim", to=errors())
    return reader
