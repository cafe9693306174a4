"""What routes ask for: the gateway, who calls, and which workspace is meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Header, Query, Request
from starlette.requests import HTTPConnection

from laneway.errors import InvalidMessageError, NotAuthenticatedError
from laneway.gateway.access import LOCAL, Caller, Scope
from laneway.gateway.service import Gateway
from laneway.gateway.workspaces import Workspace
from laneway.runtime.envelope import check_key

__all__ = (
    "CallerOf",
    "GatewayOf",
    "WorkspaceOf",
    "caller_of",
    "gateway_of",
    "needs",
)


def gateway_of(request: HTTPConnection) -> Gateway:
    """The gateway that serves this request."""
    gateway: Gateway = request.app.state.gateway
    gateway.check_open()
    return gateway


def caller_of(connection: HTTPConnection) -> Caller:
    """Who calls. Without tokens, whoever reaches a loopback address may talk; an operator always needs a token."""
    gateway = gateway_of(connection)
    secret = _secret(connection)
    token = gateway.tokens.find(secret) if secret else None
    if token is not None:
        tenant = connection.headers.get("laneway-tenant", "")
        return token.caller(check_key(tenant, "tenant") if tenant else "")
    if gateway.tokens.is_empty and gateway.settings.is_loopback:
        return LOCAL
    raise NotAuthenticatedError(
        "this needs a token" if not secret else "this token does not count",
        hint="send Authorization: Bearer <token>; laneway token create makes one",
    )


def _secret(connection: HTTPConnection) -> str:
    kind, _, secret = connection.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def needs(scope: Scope) -> Callable[[HTTPConnection], Caller]:
    """The caller, refused unless it has a scope."""

    def checked(request: HTTPConnection) -> Caller:
        caller = caller_of(request)
        if caller is LOCAL and not caller.may(scope):
            raise NotAuthenticatedError(
                f"this needs a token with the scope {scope.value!r}, on this machine too",
                hint="the server printed an operator token when it started, or: laneway token create",
            )
        caller.check(scope)
        return caller

    return checked


def workspace_of(
    request: Request,
    named: Annotated[str, Header(alias="Laneway-Workspace", description="Which workspace; else the default.")] = "",
    workspace: Annotated[str, Query(description="The same, in the address.")] = "",
) -> Workspace:
    """The workspace that is meant."""
    if named and workspace and named != workspace:
        raise InvalidMessageError(f"two workspaces are named: {named!r} and {workspace!r}", hint="name one")
    return gateway_of(request).workspace(named or workspace)


GatewayOf = Annotated[Gateway, Depends(gateway_of)]
CallerOf = Annotated[Caller, Depends(needs(Scope.CHAT))]
OperatorOf = Annotated[Caller, Depends(needs(Scope.OPERATE))]
AdminOf = Annotated[Caller, Depends(needs(Scope.ADMIN))]
WorkspaceOf = Annotated[Workspace, Depends(workspace_of)]
