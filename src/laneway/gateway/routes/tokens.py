"""Tokens: made, listed, revoked. An administrator of one tenant has to do with that tenant's tokens only."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field, StrictInt

from laneway.errors import NotFoundError, PermissionDeniedError
from laneway.gateway.access import Caller, Scope
from laneway.gateway.deps import AdminOf, GatewayOf
from laneway.gateway.tokens import NAME_MAX, Token
from laneway.gateway.views import router_of

__all__ = ("router",)

router = router_of("tokens")

SPAN_MAX_MS = 315_360_000_000


class TokenView(BaseModel):
    """What is known of a token; its secret is known to whoever got it."""

    id: str
    name: str
    scopes: list[Scope]
    tenant: str = Field(description="Whose things it sees; `*`: those of all.")
    state: str = Field(description="`valid`, `expired` or `revoked`.")
    created_ms: int
    expires_ms: int | None = None
    revoked_ms: int | None = None
    kept: bool = Field(description="False: it ends with this server.")


class NewToken(BaseModel):
    """A token to be made."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"name": "phone", "scopes": ["chat"], "expires_in_ms": 2_592_000_000}]},
    )

    name: str = Field(min_length=1, max_length=NAME_MAX, description="Who will use it.")
    scopes: list[Scope] = Field(min_length=1, max_length=len(Scope))
    tenant: str | None = Field(
        None, max_length=512, description="Whose things it sees; `*`: those of all. Else that of the caller."
    )
    expires_in_ms: StrictInt | None = Field(None, ge=1, le=SPAN_MAX_MS, description="Else it does not expire.")
    reason: str = Field("", max_length=2_000)


class MadeToken(TokenView):
    """A new token, with its secret: it is shown this once."""

    secret: str


class TokenList(BaseModel):
    """The tokens, oldest first."""

    items: list[TokenView]
    next: str | None = None


@router.get("/tokens", summary="List tokens")
async def listed(gateway: GatewayOf, caller: AdminOf) -> TokenList:
    """All tokens, revoked and expired ones too; never their secrets."""
    now = gateway.env.clock.wall_ms()
    found = [token for token in gateway.tokens.tokens() if _is_seen(caller, token)]
    return TokenList(items=[TokenView(**_fields(token, now)) for token in found])


@router.post("/tokens", status_code=201, summary="Make a token")
async def made(body: NewToken, gateway: GatewayOf, caller: AdminOf, response: Response) -> MadeToken:
    """Make a token. The secret is in the answer, and nowhere else."""
    tenant = body.tenant or caller.tenant
    if tenant != caller.tenant and not caller.sees_all:
        raise PermissionDeniedError(
            f"{caller.name} makes tokens for tenant {caller.tenant!r} only", hint="leave the tenant out", right="tenant"
        )
    now = gateway.env.clock.wall_ms()
    expires_ms = None if body.expires_in_ms is None else now + body.expires_in_ms
    facts = {"scopes": [str(each) for each in body.scopes], "for_tenant": tenant, "expires_ms": expires_ms}
    await gateway.audit.record(caller, "token.create", body.name, reason=body.reason, **facts)
    token, secret = await gateway.tokens.create(body.name, body.scopes, tenant=tenant, expires_ms=expires_ms)
    response.headers["Location"] = f"/v1/tokens/{token.id}"
    return MadeToken(**_fields(token, now), secret=secret)


@router.delete("/tokens/{token_id}", summary="Revoke a token")
async def revoked(
    token_id: str,
    gateway: GatewayOf,
    caller: AdminOf,
    reason: Annotated[str, Query(max_length=2_000, description="For the audit log.")] = "",
) -> TokenView:
    """Revoke a token: it opens nothing any more, and the streams that it has open end now."""
    token = gateway.tokens.token(token_id)
    if not _is_seen(caller, token):
        raise NotFoundError(what="token", name=token_id, hint="laneway token ls")
    if token.revoked_ms is None:
        await gateway.audit.record(caller, "token.revoke", token_id, reason=reason, name=token.name)
        token = await gateway.tokens.revoke(token_id)
    return TokenView(**_fields(token, gateway.env.clock.wall_ms()))


def _is_seen(caller: Caller, token: Token) -> bool:
    return caller.sees_all or token.tenant == caller.tenant


def _fields(token: Token, now_ms: int) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "scopes": list(token.scopes),
        "tenant": token.tenant,
        "state": token.state(now_ms),
        "created_ms": token.created_ms,
        "expires_ms": token.expires_ms,
        "revoked_ms": token.revoked_ms,
        "kept": token.seq > 0,
    }
