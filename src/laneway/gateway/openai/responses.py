"""`/v1/responses`: a response is a message and what became of it, so it can be asked for as long as the store keeps it.

Each round of a run in which the agent says something is an item of the output: the last one is the answer, those before
it are what the agent said between its calls of tools.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response

from laneway.agent.results import RunResult
from laneway.agent_events import TextDeltaEvent
from laneway.errors import ConflictError, InvalidMessageError, LanewayError, MessageStateError, NotFoundError
from laneway.gateway.access import Caller
from laneway.gateway.deps import CallerOf, GatewayOf
from laneway.gateway.lookup import current_turn
from laneway.gateway.openai.asking import Asked, ask, retries_of
from laneway.gateway.openai.completions import GONE, SESSION_HEADER, STREAM
from laneway.gateway.openai.errors import ERRORS, OpenAIRoute, json_bytes
from laneway.gateway.openai.models import model_of, named
from laneway.gateway.openai.requests import ResponseRequest, check_response, ignored
from laneway.gateway.openai.response_events import ResponseEvents
from laneway.gateway.openai.response_objects import ResponseObject, Status, message_item, response_object, status_of
from laneway.gateway.openai.streaming import PieceResponse
from laneway.gateway.openai.translation import compose, said_in_input
from laneway.gateway.problems import place_of
from laneway.gateway.service import Gateway
from laneway.gateway.workspaces import Workspace
from laneway.mail import WAITING_STATES, MessageState, Receipt
from laneway.mail import Final as End
from laneway.rows import MessageRow

__all__ = ("router",)

router = APIRouter(tags=["openai"], route_class=OpenAIRoute, responses=ERRORS)

PREFIX: Final = "resp_"
CANCEL_WAIT_S: Final = 5
"""How long a cancelled run may take to end before the caller is answered that it still does."""


@router.post(
    "/responses",
    summary="Ask an agent, in the shape of a response",
    response_model=ResponseObject,
    responses=STREAM,
    operation_id="openai_response",
)
async def create(
    body: ResponseRequest,
    request: Request,
    gateway: GatewayOf,
    caller: CallerOf,
    session: Annotated[str | None, SESSION_HEADER] = None,
) -> Response:
    """`previous_response_id` and `conversation` name a session, as `Laneway-Session` and `user` do."""
    check_response(body)
    workspace, key = await _place(body, session, gateway, caller)
    said = said_in_input(body.input, body.instructions)
    message = compose(said, in_session=key is not None, param="input")
    asked = await ask(request, gateway, workspace, caller, key=key, said=message)
    unused = ignored(body)
    if body.instructions and key is not None:
        unused = sorted({*unused, "instructions"})  # a session has those of its agent
    headers = asked.headers(unused)
    reply = _Reply(asked, gateway, body)
    if body.stream:
        return PieceResponse(reply.events(), headers)
    if body.background:
        with asked.retries.serving(asked.print, asked.key, asked.message_id) as delivery:
            begun = await reply.now()
            if not await request.is_disconnected():
                delivery.done()
        return _json(begun, headers)
    if await asked.answered(request) is None:
        return Response(status_code=GONE)
    return _json(await reply.now(), headers)


async def _place(
    body: ResponseRequest, session: str | None, gateway: Gateway, caller: Caller
) -> tuple[Workspace, str | None]:
    """The workspace, and the key of the session if one is named."""
    workspace = named(gateway, body.model) if body.model is not None else gateway.default
    if body.previous_response_id:
        place, row = await _found(gateway, caller, body.previous_response_id, "previous_response_id")
        if body.model not in (None, "laneway") and place is not workspace:
            raise InvalidMessageError(
                f"response {body.previous_response_id[:200]!r} is one of model {model_of(gateway, place)!r}",
                hint="go on with that model, or begin anew",
                param="model",
            )
        return place, row.session
    conversation = body.conversation
    if isinstance(conversation, dict):
        given = conversation.get("id")
        if not isinstance(given, str) or not given:
            raise InvalidMessageError("a conversation has an `id`, which is text", param="conversation.id")
        conversation = given
    return workspace, session or conversation or body.user or None


async def _found(
    gateway: Gateway, caller: Caller, response_id: str, param: str = "response_id"
) -> tuple[Workspace, MessageRow]:
    """The message that a response is about."""
    error = NotFoundError(what="response", name=response_id[:200], hint="ids are those that responses carry")
    error.__dict__["param"] = param
    if not response_id.startswith(PREFIX):
        raise error
    try:
        return await gateway.find_message(caller, response_id.removeprefix(PREFIX))
    except NotFoundError:
        raise
    except LanewayError as unknown:
        if unknown.code == "unknown_message":
            raise error from None
        raise


@router.get(
    "/responses/{response_id}",
    summary="Look at a response",
    response_model=ResponseObject,
    responses=STREAM,
    operation_id="openai_response_retrieve",
)
async def retrieve(
    response_id: str,
    request: Request,
    gateway: GatewayOf,
    caller: CallerOf,
    stream: Annotated[bool, Query(description="Listen to it from its beginning.")] = False,  # noqa: FBT002 - a query
    starting_after: Annotated[int | None, Query(description="Not possible here.")] = None,
) -> Response:
    """What became of it so far; after a restart too."""
    if starting_after is not None:
        raise InvalidMessageError(
            "a stream of a response begins at its beginning",
            hint="leave out starting_after; /v1/sessions/{key}/events can be resumed",
            param="starting_after",
        )
    reply = await _reply(request, gateway, caller, response_id)
    if stream:
        return PieceResponse(reply.events(), reply.asked.headers([]))
    return _json(await reply.now())


@router.post(
    "/responses/{response_id}/cancel",
    summary="Cancel a response",
    response_model=ResponseObject,
    operation_id="openai_response_cancel",
)
async def cancel(response_id: str, request: Request, gateway: GatewayOf, caller: CallerOf) -> Response:
    """Take the message back while it waits, or end its run; one that has ended stays as it is."""
    reply = await _reply(request, gateway, caller, response_id)
    await _cancel(reply.asked, caller)
    return _json(await reply.now())


async def _cancel(asked: Asked, caller: Caller) -> None:
    inbox = asked.workspace.inbox
    end = await inbox.status(asked.message_id)
    if end.disposition in WAITING_STATES:
        try:
            return await inbox.withdraw(asked.message_id, "cancelled by the caller", actor=caller.name)
        except MessageStateError:  # its turn has come meanwhile
            end = await inbox.status(asked.message_id)
    if end.disposition.is_final:
        return None
    turn = current_turn(asked.workspace, asked.workspace.owner(asked.tenant, asked.key))
    if turn is not None and turn.id == end.turn_id:  # else it has ended meanwhile
        if {item.id for item in (*turn.items, *turn.summarized, *turn.injected)} != {asked.message_id}:
            raise ConflictError(
                "this run answers other messages too",
                hint=f"POST /v1/runs/{end.turn_id}/cancel ends it for all of them",
                run_id=turn.id,
            )
        await inbox.cancel(asked.key, "cancelled by the caller", tenant=asked.tenant)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CANCEL_WAIT_S):
            await inbox.wait(asked.message_id)
    return None


async def _reply(request: Request, gateway: Gateway, caller: Caller, response_id: str) -> _Reply:
    workspace, row = await _found(gateway, caller, response_id)
    receipt = Receipt(message_id=row.id, disposition=MessageState(row.state))
    asked = Asked(gateway, workspace, caller, key=row.session, receipt=receipt, retries=retries_of(request))
    return _Reply(asked, gateway, None, created_ms=row.arrived_ms)


def _json(value: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(json_bytes(value), headers=headers, media_type="application/json")


class _Reply:
    """A response that is made of a message."""

    def __init__(self, asked: Asked, gateway: Gateway, body: ResponseRequest | None, *, created_ms: int = 0) -> None:
        self.asked = asked
        item = asked.workspace.inbox.engine.kernel.items.get(asked.message_id)
        # The time of its message, as whoever asks for it later is told: this moment may be another second.
        created = created_ms or (gateway.env.clock.wall_ms() if item is None else item.message.arrived_ms)
        self._facts: dict[str, Any] = {
            "response_id": PREFIX + asked.message_id,
            "created_at": created // 1000,
            "model": model_of(gateway, asked.workspace),
            "session": asked.key,
            "background": bool(body is not None and body.background),
            "previous": body.previous_response_id if body is not None else None,
        }

    def _object(self, status: Status, **more: Any) -> dict[str, Any]:
        return response_object(status=status, **self._facts, **more)

    async def now(self) -> dict[str, Any]:
        """The response as it is at this moment."""
        end = await self.asked.workspace.inbox.status(self.asked.message_id)
        if end.disposition.is_final and end.answer is None and end.turn_id:
            end = await self.asked.workspace.inbox.wait(end.message_id)  # its answer is with its turn
        status = status_of(end)
        if status == "completed":
            result = await self.asked.result_of(end)
            texts = await self._texts(end, result)
            items = [message_item(self.asked.message_id, i, text, len(texts)) for i, text in enumerate(texts)]
            return self._object(status, output=items, result=result)
        return self._object(status, error=_reason(end) if status == "failed" else "")

    async def _texts(self, end: End, result: RunResult) -> list[str]:
        """What the agent has said since it got the message, round by round; the last is the answer."""
        texts: list[str] = []
        with contextlib.suppress(LanewayError):  # the session cannot be opened now: the answer is known all the same
            async with self.asked.workspace.using(self.asked.tenant, self.asked.key) as session:
                events = await session.run_events(end.turn_id) if end.turn_id else []
            told = next((i for i, each in enumerate(events) if end.message_id in (each.messages or ())), 0)
            texts = [each.text for each in events[told:] if isinstance(each, TextDeltaEvent)]
        if result.text and (not texts or texts[-1].strip() != result.text.strip()):
            texts.append(result.text)
        return texts

    async def events(self) -> AsyncGenerator[bytes]:
        """The response as it is made."""
        asked = self.asked
        writer = ResponseEvents(asked.message_id, self._object, hide=place_of(asked.gateway.store))
        with asked.retries.serving(asked.print, asked.key, asked.message_id) as delivery:
            async with contextlib.aclosing(writer.write(asked.told())) as written:
                async for each in written:
                    yield each
            delivery.done()


def _reason(end: End) -> str:
    return end.reason or str(end.disposition)
