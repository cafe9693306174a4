"""The routes of channels: where partners post to, and how the channels are."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Request

from laneway.gateway.channels.running import running
from laneway.gateway.channels.signing import ID, SIGNATURE, TIMESTAMP, verify
from laneway.gateway.channels.webhook import WebhookChannel, WebhookMessage
from laneway.gateway.deps import CallerOf, GatewayOf
from laneway.gateway.views import Page, Taken, View, router_of

__all__ = ("router",)

router = router_of("channels")


class ChannelView(View):
    """A channel of this server."""

    name: str
    kind: str
    problem: str


@router.get("/channels", summary="The channels of this server")
async def ls(gateway: GatewayOf, caller: CallerOf) -> Page[ChannelView]:
    """Every channel, and why it does not work, if it does not."""
    caller.check_shared()
    return Page(
        items=[ChannelView(name=each.name, kind=each.kind, problem=each.problem) for each in running(gateway).values()]
    )


@router.post(
    "/channels/{name}/webhook",
    status_code=202,
    summary="A message from another system",
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": WebhookMessage.model_json_schema()}},
        }
    },
)
async def post(  # noqa: PLR0913 - the headers of a signature are parameters, so that they are in the OpenAPI
    name: str,
    request: Request,
    gateway: GatewayOf,
    webhook_id: Annotated[str, Header(description="The same id again changes nothing.")] = "",
    webhook_timestamp: Annotated[str, Header(description="Seconds since 1970.")] = "",
    webhook_signature: Annotated[str, Header(description="`v1,` and HMAC-SHA256 of id.timestamp.body.")] = "",
) -> Taken:
    """Take a signed message. The signature is what lets a partner in; a token is not needed and does not help."""
    headers = {ID: webhook_id, TIMESTAMP: webhook_timestamp, SIGNATURE: webhook_signature}
    body = await request.body()
    channel = running(gateway).get(name)
    if isinstance(channel, WebhookChannel):
        return Taken.of(await channel.take(headers, body))
    verify((), headers, body, at_ms=0, tolerance_ms=0)  # answered like a wrong signature, in the same time
    raise AssertionError("without keys nothing is right")
