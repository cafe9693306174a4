"""Sessions for good: deleted without a trace, exported as one file, imported from one."""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import Query, Request
from pydantic import Field
from starlette.responses import StreamingResponse

from laneway.agent.subagents import is_child_id, root_of
from laneway.errors import InvalidMessageError, LanewayError, describe
from laneway.gateway.deps import CallerOf, GatewayOf, OperatorOf, WorkspaceOf
from laneway.gateway.labels import has_labels
from laneway.gateway.lookup import find_session
from laneway.gateway.views import REASON_MAX, View, router_of
from laneway.runtime.archive import check_archive, check_exportable, export_session, lines_of
from laneway.runtime.envelope import check_key

__all__ = ("router",)

_log = logging.getLogger("laneway.gateway")

router = router_of("sessions")

MEDIA = "application/vnd.laneway.session+jsonl"
SPOOL_MAX = 1_000_000
FILE: dict[str, Any] = {MEDIA: {"schema": {"type": "string", "format": "binary"}}}


class Deleted(View):
    """What was erased."""

    session_key: str
    rows: int = Field(description="How many rows of the store there were, those of sub-agents included.")


class Imported(View):
    """What was imported."""

    session_key: str
    workspace: str
    rows: int
    exported_ms: int = Field(description="When the file was written.")


class FileResponse(StreamingResponse):
    """A session as a file."""

    media_type = MEDIA


@router.delete("/sessions/{key}", summary="Erase everything about a session")
async def delete(
    key: str,
    gateway: GatewayOf,
    caller: OperatorOf,
    workspace: WorkspaceOf,
    reason: Annotated[str, Query(max_length=REASON_MAX)] = "",
) -> Deleted:
    """End what runs there, then erase it: messages, runs, events, texts, labels, the sessions of its sub-agents.

    It cannot be undone. The audit log keeps who did it.
    """
    _refuse_child(key)
    owner = workspace.owner(caller.tenant, check_key(key, "session key"))
    engine = workspace.inbox.engine
    is_broken = owner in engine.doomed or owner in engine.kernel.unreadable
    if not is_broken and not await has_labels(workspace, owner):  # it may have labels and nothing else
        await find_session(workspace, caller, key)
    await gateway.audit.record(caller, "session.delete", key, reason=reason, workspace=workspace.name)
    rows = await workspace.delete(caller.tenant, key, actor=caller.name)
    return Deleted(session_key=key, rows=rows)


@router.get(
    "/sessions/{key}/export",
    summary="A session as one file",
    response_class=FileResponse,
    responses={200: {"description": "Lines of JSON, with a checksum at the end.", "content": FILE}},
)
async def export(key: str, gateway: GatewayOf, caller: CallerOf, workspace: WorkspaceOf) -> StreamingResponse:
    """Everything about a session in which nothing runs. A file without its last line is not whole."""
    _refuse_child(key)
    owner = await find_session(workspace, caller, key)
    await check_exportable(gateway.store, owner)

    async def lines() -> AsyncIterator[bytes]:
        try:
            async with aclosing(export_session(gateway.store, owner, at_ms=gateway.env.clock.wall_ms())) as found:
                async for line in found:
                    yield line
        except LanewayError as error:  # the answer has begun: that its last line is missing says that it is not whole
            _log.warning("the export of session %r is not whole: %s", key, describe(error))

    return FileResponse(lines())


@router.post(
    "/sessions/import",
    summary="A session from a file",
    openapi_extra={"requestBody": {"required": True, "content": FILE}},
)
async def import_(
    request: Request,
    gateway: GatewayOf,
    caller: OperatorOf,
    workspace: WorkspaceOf,
    key: Annotated[str, Query(max_length=400, description="Under this key; else the one it had.")] = "",
) -> Imported:
    """Take in a session that another server, or this one, has exported: whole, or not at all."""
    with tempfile.SpooledTemporaryFile(SPOOL_MAX) as file:
        async for chunk in request.stream():
            file.write(chunk)
        file.seek(0)
        head = check_archive(lines_of(file))
        session_key = check_key(key or head.session, "session key")
        _refuse_child(session_key)
        note = functools.partial(gateway.audit.record, caller, target=session_key, workspace=workspace.name)
        await note("session.import_begin")  # what is not on disk is not done; how it ends is a line of its own
        file.seek(0)
        owner = workspace.owner(caller.tenant, session_key)
        try:
            await workspace.take_in(owner, lines_of(file))
        except LanewayError as error:
            await note("session.import_refused", error=describe(error))
            raise
        await note("session.import", rows=head.rows)
    return Imported(session_key=session_key, workspace=workspace.name, rows=head.rows, exported_ms=head.at_ms)


def _refuse_child(key: str) -> None:
    if is_child_id(key):
        raise InvalidMessageError(
            f"session {key!r} belongs to a sub-agent and goes with its parent", hint=f"name {root_of(key)!r}"
        )
