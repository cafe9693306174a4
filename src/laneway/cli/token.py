"""`laneway token`: make, list and revoke tokens, through a running server or on a store that nobody has open.

A secret is printed once, on standard output, when its token is made. It is nowhere else.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from laneway.cli.client import URL, Server, Target, path_of
from laneway.cli.credentials import prompt, token_of
from laneway.cli.reach import AuthorityOption, JsonOption
from laneway.cli.tables import ago, errors, print_json, print_rows, say, until
from laneway.cli.times import duration_ms
from laneway.errors import StoreInUseError, TransportUnavailableError, UnknownStoreError
from laneway.gateway.access import ALL_TENANTS, Caller, Scope
from laneway.system import SystemClock

if TYPE_CHECKING:
    from laneway.gateway.audit import Audit
    from laneway.gateway.tokens import Token, TokenBook

__all__ = ("token_app",)

T = TypeVar("T")

STORE: Final = "sqlite:///laneway.db"
FILE: Final = "sqlite:///"
COMMAND_LINE: Final = "command line"
PANEL: Final = "Server"
FIRST: Final = "This is the first token: from now on every request needs one, on this machine, too."
COLUMNS: Final = ("id", "*name", "scopes", "tenant", "state", "made", "expires")

token_app = typer.Typer(help="Tokens: who may talk to the server, operate it, work for it.", no_args_is_help=True)

UrlOption = Annotated[
    str, typer.Option("--url", envvar="LANEWAY_URL", help="The server.", rich_help_panel=PANEL, metavar="URL")
]
TokenOption = Annotated[
    str,
    typer.Option(
        "--token",
        envvar="LANEWAY_TOKEN",
        help="Who asks: a token with the scope admin. '-' asks for it, or reads a line of standard input.",
        rich_help_panel=PANEL,
        metavar="TOKEN",
        show_default=False,
    ),
]
TokenFileOption = Annotated[
    str,
    typer.Option(
        "--token-file",
        envvar="LANEWAY_TOKEN_FILE",
        help="A file with that token, which nobody else may read.",
        rich_help_panel=PANEL,
        metavar="FILE",
        show_default=False,
    ),
]
StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="LANEWAY_STORE",
        help="Use this store without a server; nobody else may have it open.",
        rich_help_panel=PANEL,
        metavar="sqlite:///FILE",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Which tokens are meant: those of a server, or of a store."""

    target: Target
    store: str
    is_store_named: bool

    def ask(self, server: Callable[[Server], T], store: Callable[[TokenBook, Audit], Awaitable[T]]) -> T:
        """Do it there: on the store that is named; else by the server; else, if none answers, on the store."""
        if not self.is_store_named:
            try:
                with Server(self.target, ask_token=prompt()) as each:
                    return server(each)
            except TransportUnavailableError as error:
                if not getattr(error, "is_refused", False) or self.target.token:
                    raise
                self._check_file(error)
        return asyncio.run(self._on_store(store))

    def _check_file(self, error: TransportUnavailableError) -> None:
        """Without a server, and without being told so, no new store is made."""
        path = Path(self.store.removeprefix(FILE))
        if not self.store.startswith(FILE) or not path.is_file():
            raise TransportUnavailableError(
                error.message, hint=f"start one with `laneway serve`, or name a store: --store {self.store}"
            ) from None
        if sys.stderr.isatty():
            say(
                f"No server answers at {self.target.url}: the tokens of {self.store} are meant.",
                style="dim",
                to=errors(),
            )

    async def _on_store(self, work: Callable[[TokenBook, Audit], Awaitable[T]]) -> T:
        from laneway.gateway.audit import Audit  # only what works without a server needs these
        from laneway.gateway.tokens import TokenBook
        from laneway.stores import open_store
        from laneway.stores.memory import MemoryStore

        store, clock = open_store(self.store), SystemClock()
        if isinstance(store, MemoryStore):
            raise UnknownStoreError(
                f"{self.store} keeps nothing when its process ends", hint=f"name a file: {STORE}", address=self.store
            )
        try:
            await store.open()
        except StoreInUseError as error:
            raise StoreInUseError(
                error.message, hint="its server makes and revokes tokens: give --url and --token of an administrator"
            ) from None
        try:
            book = TokenBook(store, clock)
            await book.load()
            return await work(book, Audit(store, clock))
        finally:
            await store.close()


def _where(ctx: typer.Context, target: Target, store: str, **tokens: str) -> Where:
    from laneway.cli.operating import refuse_in_tools  # it knows the tools of agents, which other commands need not

    refuse_in_tools()
    is_store_named = _is_named(ctx, "store") and bool(store)
    token = "" if is_store_named else token_of({name: (value, _is_named(ctx, name)) for name, value in tokens.items()})
    return Where(target=replace(target, token=token), store=store or STORE, is_store_named=is_store_named)


def _is_named(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@token_app.command("create")
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="Who will use it.")],
    scope: Annotated[
        list[Scope] | None, typer.Option("--scope", help="What it is for; may be given several times.", metavar="SCOPE")
    ] = None,
    tenant: Annotated[
        str, typer.Option("--tenant", help="Whose things it sees; '*' for all.", metavar="NAME", show_default=False)
    ] = "",
    expires: Annotated[
        str, typer.Option("--expires", help="When it ends: 30d, 12h.", metavar="DURATION", show_default=False)
    ] = "",
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit log.")] = "",
    url: UrlOption = URL,
    token: TokenOption = "",
    token_file: TokenFileOption = "",
    ca: AuthorityOption = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make a token and print its secret, this once. Scopes: chat (which is the default), operate, worker, admin."""
    scopes = scope or [Scope.CHAT]
    span_ms = duration_ms(expires) if expires else None

    def asked(server: Server) -> tuple[dict[str, Any], bool]:
        body = {"name": name, "scopes": scopes, "tenant": tenant or None, "expires_in_ms": span_ms, "reason": reason}
        made = server.post("/tokens", body)
        closing = [each for each in server.get("/tokens")["items"] if each["kept"] and each["scopes"] != [Scope.WORKER]]
        return made, len(closing) == 1 and scopes != [Scope.WORKER]

    async def kept(book: TokenBook, audit: Audit) -> tuple[dict[str, Any], bool]:
        was_open = book.is_empty
        expires_ms = None if span_ms is None else SystemClock().wall_ms() + span_ms
        whose = tenant or "default"
        facts = {"scopes": [str(each) for each in scopes], "for_tenant": whose, "expires_ms": expires_ms}
        await audit.record(_caller(whose), "token.create", name, reason=reason, **facts)
        made, secret = await book.create(name, scopes, tenant=whose, expires_ms=expires_ms)
        return {**_fields(made), "secret": secret}, was_open and not book.is_empty

    made, is_first = _where(ctx, Target(url=url, ca=ca), store, token=token, token_file=token_file).ask(asked, kept)
    if as_json:
        print_json(made)
        return
    ends = f", expires {until(made['expires_ms'], SystemClock().wall_ms())}" if made["expires_ms"] else ""
    note = f"Token {made['id']} ({', '.join(made['scopes'])}, tenant {made['tenant']}{ends}); it is not shown again:"
    if is_first:
        say(FIRST, style="yellow", to=errors())
    say(note, style="dim", to=errors())
    sys.stdout.write(f"{made['secret']}\n")


@token_app.command("ls")
def ls(
    ctx: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="Revoked and expired ones, too.")] = False,
    url: UrlOption = URL,
    token: TokenOption = "",
    token_file: TokenFileOption = "",
    ca: AuthorityOption = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """List tokens; never their secrets."""

    def asked(server: Server) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = server.get("/tokens")["items"]
        return found

    async def kept(book: TokenBook, _: Audit) -> list[dict[str, Any]]:
        return [_fields(each) for each in book.tokens()]

    items = _where(ctx, Target(url=url, ca=ca), store, token=token, token_file=token_file).ask(asked, kept)
    shown = [each for each in items if every or each["state"] == "valid"]
    if as_json:
        print_json({"items": shown, "next": None})
        return
    now_ms = SystemClock().wall_ms()
    rows = [
        (
            each["id"],
            each["name"],
            ", ".join(each["scopes"]),
            each["tenant"],
            each["state"],
            ago(each["created_ms"], now_ms),
            until(each["expires_ms"], now_ms) if each["expires_ms"] else "with the server" if not each["kept"] else "",
        )
        for each in shown
    ]
    print_rows(COLUMNS, rows, empty="There are no tokens.")


@token_app.command("revoke")
def revoke(
    ctx: typer.Context,
    token_id: Annotated[str, typer.Argument(help="Which one: its id.", metavar="ID")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit log.")] = "",
    url: UrlOption = URL,
    token: TokenOption = "",
    token_file: TokenFileOption = "",
    ca: AuthorityOption = "",
    store: StoreOption = "",
    as_json: JsonOption = False,
) -> None:
    """Revoke a token: it opens nothing any more, and what it has open ends."""

    def asked(server: Server) -> dict[str, Any]:
        gone: dict[str, Any] = server.delete(path_of("tokens", token_id), reason=reason or None)
        return gone

    async def kept(book: TokenBook, audit: Audit) -> dict[str, Any]:
        found = book.token(token_id)
        whose = "default" if found.tenant == ALL_TENANTS else found.tenant
        await audit.record(_caller(whose), "token.revoke", token_id, reason=reason, name=found.name)
        return _fields(await book.revoke(token_id))

    gone = _where(ctx, Target(url=url, ca=ca), store, token=token, token_file=token_file).ask(asked, kept)
    if as_json:
        print_json(gone)
    else:
        say(f"{gone['id']} ({gone['name']}) is revoked")


def _caller(tenant: str) -> Caller:
    """Whoever can open the store is its administrator."""
    whose = "default" if tenant == ALL_TENANTS else tenant
    return Caller(name=COMMAND_LINE, tenant=whose, scopes=frozenset({Scope.ADMIN}), sees_all=True)


def _fields(token: Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "scopes": [str(each) for each in token.scopes],
        "tenant": token.tenant,
        "state": token.state(SystemClock().wall_ms()),
        "created_ms": token.created_ms,
        "expires_ms": token.expires_ms,
        "revoked_ms": token.revoked_ms,
        "kept": True,
    }
