"""Chat over a WebSocket."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, FastAPI, Query, WebSocket
from fastapi.exceptions import WebSocketRequestValidationError
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from laneway.errors import InvalidMessageError, LanewayError
from laneway.gateway.access import Caller, Scope
from laneway.gateway.deps import caller_of, gateway_of
from laneway.gateway.feeds import Pace, Place, SessionFeed, watch
from laneway.gateway.problems import Problem, place_of, problem, problem_of
from laneway.gateway.rates import address_of
from laneway.gateway.routes import messages
from laneway.gateway.service import Gateway
from laneway.gateway.sockets import POLICY_VIOLATED, Reply, Socket
from laneway.gateway.workspaces import Workspace
from laneway.runtime.envelope import check_key

__all__ = ("install", "router")

router = APIRouter(tags=["events"])

PROTOCOL: Final = "laneway"
"""What a browser asks for beside its token, since a server has to choose one: the secret is never said back."""


class Message(messages.NewMessage):
    """A message; with an `id`, the same one again changes nothing."""

    type: Literal["message"]
    id: Annotated[str, Field(min_length=1, max_length=512)] | None = None


class Order(BaseModel):
    """`stop` ends everything in the session, `cancel` only the running turn."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["stop", "cancel"]
    id: str | int | None = None


SAID: Final[TypeAdapter[Message | Order]] = TypeAdapter(Annotated[Message | Order, Field(discriminator="type")])


@router.websocket("/sessions/{key}/socket")
async def chat(
    websocket: WebSocket,
    key: str,
    workspace: str = "",
    last_event_id: Annotated[str, Query(max_length=100)] = "",
    replay: Annotated[str, Query(max_length=10)] = "",
) -> None:
    """Send messages to a session and watch it, on one connection."""
    try:
        gateway = gateway_of(websocket)
        caller = caller_of(websocket)
        caller.check(Scope.CHAT)
        place = Place.of(last_event_id, replay)
        home = gateway.workspace(workspace or websocket.headers.get("laneway-workspace", ""))
        watcher = watch(gateway.settings, caller, home, check_key(key, "session key"))
    except LanewayError as error:
        await _refuse(websocket, problem_of(error), error.code)
        return
    try:
        protocols = websocket.scope.get("subprotocols", ())
        await websocket.accept(subprotocol=PROTOCOL if PROTOCOL in protocols else None)
        feed = SessionFeed(home, watcher, Pace(heartbeat_ms=gateway.settings.heartbeat_ms), place)
        address = caller.token_id or address_of(websocket.scope.get("client"))

        async def act(said: dict[str, Any]) -> Reply:
            gateway.rates.check(address)
            gateway.tokens.check(caller)
            return await _act(gateway, caller, home, key, _checked(said))

        hide = place_of(gateway.store)
        await Socket(websocket, feed, act, size_max=gateway.settings.body_max, hide=hide).serve()
    finally:
        watcher.close()


def install(app: FastAPI) -> None:
    """Refuse WebSockets that are asked for in a wrong way, or where there are none, as requests are refused."""
    elsewhere = app.router.default

    async def nowhere(scope: Connection, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await _refuse(WebSocket(scope, receive, send), problem(404, "not_found", "Not Found"), "not_found")
        else:
            await elsewhere(scope, receive, send)

    async def wrong(websocket: WebSocket, error: Exception) -> None:
        assert isinstance(error, WebSocketRequestValidationError)
        first = error.errors()[0]
        detail = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        await _refuse(websocket, problem(422, "invalid_request", detail), "invalid_request")

    app.router.default = nowhere
    app.add_exception_handler(WebSocketRequestValidationError, wrong)


async def _refuse(websocket: WebSocket, answer: Problem, code: str) -> None:
    """Problem details instead of a WebSocket, where the server can say them."""
    if "websocket.http.response" in websocket.scope.get("extensions", {}):
        await websocket.send_denial_response(answer)
    else:
        await websocket.close(POLICY_VIOLATED, code)


def _checked(said: dict[str, Any]) -> Message | Order:
    try:
        return SAID.validate_python(said)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidMessageError(
            f"{where}: {first['msg']}" if where else first["msg"], hint='"type" is message, stop or cancel'
        ) from None


async def _act(gateway: Gateway, caller: Caller, workspace: Workspace, key: str, said: Message | Order) -> Reply:
    if said.type == "message":
        fields = said.model_dump(exclude={"type", "id"})
        body = messages.NewMessage(**fields)
        taken = await messages.take(gateway, caller, workspace, key, body, idempotency_key=said.id)
        return Reply(event="accepted", facts=taken.model_dump(mode="json"))
    if said.type == "stop":
        stopped = await workspace.inbox.stop(key, tenant=caller.tenant, actor=caller.name)
        return Reply(event="stopped", facts=stopped._asdict())
    is_cancelled = await workspace.inbox.cancel(key, f"cancelled by {caller.name}", tenant=caller.tenant)
    return Reply(event="cancelled", facts={"cancelled": is_cancelled})
