"""What routes ask for: the gateway, who calls, and which workspace is meant."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import Depends, Header, Query, Request
from starlette.requests import HTTPConnection

from laneway.errors import InvalidMessageError, NotAuthenticatedError, PermissionDeniedError
from laneway.gateway.access import LOCAL, Caller, Scope
from laneway.gateway.guard import token_of
from laneway.gateway.service import Gateway
from laneway.gateway.workspaces import Workspace
from laneway.runtime.envelope import check_key

__all__ = (
    "WORKSPACE_PARAMETERS",
    "AdminOf",
    "CallerOf",
    "GatewayOf",
    "NamedWorkspaceOf",
    "OperatorOf",
    "WorkspaceOf",
    "WorkspacesOf",
    "asked_workspace",
    "caller_of",
    "checked_caller",
    "gateway_of",
    "needs",
)

ALL: Final = "*"
WHICH: Final = "Which workspace; else the default."
THE_SAME: Final = "The same, in the address."
WHICH_ONLY: Final = "Only this workspace; else all of them."
WHICH_OR_ALL: Final = "Which workspace; `*` for all of them; else the default."
WORKSPACE_PARAMETERS: Final = (
    {"name": "Laneway-Workspace", "in": "header", "schema": {"type": "string"}, "description": WHICH},
    {"name": "workspace", "in": "query", "schema": {"type": "string"}, "description": THE_SAME},
)
FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip")


def gateway_of(request: HTTPConnection) -> Gateway:
    """The gateway that serves this request."""
    gateway: Gateway = request.app.state.gateway
    gateway.check_open()
    return gateway


def caller_of(connection: HTTPConnection) -> Caller:
    """Who calls. Without tokens, whoever reaches a loopback address may talk; an operator always needs a token."""
    gateway = gateway_of(connection)
    token = token_of(gateway.tokens, connection.scope)
    tenant = connection.headers.get("laneway-tenant", "")
    if token is not None:
        caller = token.caller(check_key(tenant, "tenant") if tenant else "")
    elif gateway.tokens.is_empty and gateway.settings.is_loopback and not _is_forwarded(connection):
        caller = LOCAL
    else:
        raise NotAuthenticatedError(
            "this needs a token that counts",
            hint="send Authorization: Bearer <token>; laneway token create makes one",
        )
    if tenant and tenant != caller.tenant:
        raise PermissionDeniedError(
            f"{caller.name} may not choose a tenant", hint="leave Laneway-Tenant out", right="tenant"
        )
    return caller


def _is_forwarded(connection: HTTPConnection) -> bool:
    """Whether a proxy says that it asks for somebody else, who is not on this machine then."""
    return any(name in connection.headers for name in FORWARDED)


def needs(scope: Scope) -> Callable[[HTTPConnection], Awaitable[Caller]]:
    """The caller, refused unless it has a scope."""

    async def checked(request: HTTPConnection) -> Caller:  # a plain function would be called on a thread
        return checked_caller(request, scope)

    return checked


def checked_caller(connection: HTTPConnection, scope: Scope) -> Caller:
    """Who calls, refused without a scope."""
    caller = caller_of(connection)
    if caller is LOCAL and not caller.may(scope):
        made = f"laneway token create NAME --scope {scope.value} makes one"
        if "authorization" in connection.headers:
            raise NotAuthenticatedError(
                f"this token is not known here, or has ended; {made}", hint="take one that counts"
            )
        printed = "" if scope is Scope.WORKER else "a server that is started in a terminal prints one; else "
        raise NotAuthenticatedError(
            f"this needs a token with the scope {scope.value!r}, on this machine too",
            hint=f"{printed}{made}, on its store while no server has that open",
        )
    caller.check(scope)
    return caller


async def workspace_of(
    request: Request,
    named: Annotated[str, Header(alias="Laneway-Workspace", description=WHICH)] = "",
    workspace: Annotated[str, Query(description=THE_SAME)] = "",
) -> Workspace:
    """The workspace that is meant."""
    return _workspace(gateway_of(request), named, workspace)


async def named_workspace_of(
    request: Request,
    named: Annotated[str, Header(alias="Laneway-Workspace", description=WHICH_ONLY)] = "",
    workspace: Annotated[str, Query(description=THE_SAME)] = "",
) -> Workspace | None:
    """The one workspace that is meant; None: all of them."""
    return _workspace(gateway_of(request), named, workspace) if named or workspace else None


async def workspaces_of(
    request: Request,
    named: Annotated[str, Header(alias="Laneway-Workspace", description=WHICH_OR_ALL)] = "",
    workspace: Annotated[str, Query(description=THE_SAME)] = "",
) -> list[Workspace]:
    """The workspaces that are meant."""
    gateway = gateway_of(request)
    if (named or workspace) == ALL == (workspace or named):
        return list(gateway.workspaces.values())
    return [_workspace(gateway, named, workspace)]


def asked_workspace(request: Request) -> Workspace:
    """The same for a route that reads its parameters by itself; `WORKSPACE_PARAMETERS` describe them."""
    return _workspace(
        gateway_of(request), request.headers.get("laneway-workspace", ""), request.query_params.get("workspace", "")
    )


def _workspace(gateway: Gateway, named: str, workspace: str) -> Workspace:
    if named and workspace and named != workspace:
        raise InvalidMessageError(f"two workspaces are named: {named!r} and {workspace!r}", hint="name one")
    return gateway.workspace(named or workspace)


async def _gateway(request: HTTPConnection) -> Gateway:
    return gateway_of(request)


GatewayOf = Annotated[Gateway, Depends(_gateway)]
CallerOf = Annotated[Caller, Depends(needs(Scope.CHAT))]
OperatorOf = Annotated[Caller, Depends(needs(Scope.OPERATE))]
AdminOf = Annotated[Caller, Depends(needs(Scope.ADMIN))]
WorkspaceOf = Annotated[Workspace, Depends(workspace_of)]
NamedWorkspaceOf = Annotated[Workspace | None, Depends(named_workspace_of)]
WorkspacesOf = Annotated[list[Workspace], Depends(workspaces_of)]
