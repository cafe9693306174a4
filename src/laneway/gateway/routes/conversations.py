"""A conversation as somebody reads it: what was said, the runs over it, and what became of every message."""

from __future__ import annotations

import json
from typing import Annotated, Final

from fastapi import Query
from pydantic import Field

from laneway.gateway.deps import CallerOf, WorkspaceOf
from laneway.gateway.lookup import current_turn, find_session
from laneway.gateway.views import (
    HistoryView,
    MessageView,
    Page,
    RunView,
    SettingView,
    View,
    router_of,
    run_facts,
    seq_of,
    settings_view,
)
from laneway.gateway.workspaces import Workspace
from laneway.kernel.messages import decode_entry_row
from laneway.mail import FINAL_MESSAGE_STATES, MessageState
from laneway.rows import EntryRow, MessageRow, Owner, StateRow
from laneway.runtime.arrivals import final_from
from laneway.runtime.envelope import check_key

__all__ = ("router",)

router = router_of("sessions")

END: Final = 1 << 62
RUNS_MAX: Final = 200
IDS_MAX: Final = 100
MESSAGES_MAX: Final = 50
"""Of the messages of one run so many are told; a run that was made of more says which they are."""
SLICE: Final = 200
LINES_MAX: Final = 5_000
STRAYS_MAX: Final = 1_000
"""Messages between two runs that got none: where thousands were dropped, the first of them tell it."""
WITHOUT_RUN: Final = FINAL_MESSAGE_STATES - {MessageState.RAN, MessageState.MERGED, MessageState.STEERED}


class SpokenRun(RunView):
    """A run with its place in the conversation."""

    seq: int = Field(description="Its place among the events.")


class SentMessage(MessageView):
    """A message with its place in the conversation."""

    seq: int = Field(description="Its place among the events.")


class Conversation(View):
    """A part of the conversation of a session: some of its runs with all that belongs to them."""

    session_key: str
    conversation: int = Field(description="The number of the current one; `/new` begins another.")
    settings: dict[str, SettingView] = Field(description="Those of its queue, in force for the next message.")
    waiting: int = Field(description="How many messages wait.")
    seq: int = Field(description="All that was told up to this event is in it; what came later may be.")
    runs: list[SpokenRun] = Field(description="Oldest first.")
    lines: list[HistoryView] = Field(description="What was said in these runs, in order.")
    messages: list[SentMessage] = Field(description="Messages of these runs, and those that came meanwhile.")
    before: str | None = Field(None, description="Where what is older ends: ask again with it; null at the beginning.")


@router.get("/sessions/{key}/conversation", summary="What was said in a session, and what became of it")
async def conversation(
    key: str,
    caller: CallerOf,
    workspace: WorkspaceOf,
    before: Annotated[str, Query(max_length=20, description="Where the page before this one said so.")] = "",
    limit: Annotated[int, Query(ge=1, le=RUNS_MAX, description="At most so many runs.")] = 30,
) -> Conversation:
    """The newest runs of a session with their messages and lines; messages that wait are not among them.

    One that nobody has sent anything yet has an empty conversation: it begins with its first message.
    """
    owner = workspace.owner(caller.tenant, check_key(key, "session key"))
    told = workspace.hub.told_seq  # read first: what happens while the rest is read is told again, not left out
    until = seq_of(before)
    history = workspace.inbox.engine.store.history
    found = await history.states_newest(owner, "turn", before_seq=until, limit=limit + 1)
    is_whole, turns = len(found) <= limit, found[:limit][::-1]
    until = until or END
    since = 0 if is_whole else turns[0].seq
    wanted = list(dict.fromkeys(each for turn in turns for each in _messages_of(turn)))
    rows = [row for row in await history.messages_by_id(wanted) if row is not None]
    rows += await _strays(workspace, owner, since, until, known={*wanted})
    entries = await _entries(workspace, owner, since, until)
    box = workspace.inbox.engine.kernel.boxes.get(owner)
    return Conversation(
        session_key=owner.session,
        conversation=workspace.inbox.engine.conversation(owner),
        settings=settings_view(workspace.inbox.settings_of(owner)),
        waiting=0 if box is None else box.waiting,
        seq=told,
        runs=[SpokenRun(**run_facts(turn, _state_now(workspace, owner, turn)), seq=turn.seq) for turn in turns],
        lines=[line for each in entries if (line := _line(each)) is not None],
        messages=[await _message(workspace, row) for row in rows],
        before=None if is_whole else str(since),
    )


@router.get("/sessions/{key}/messages", summary="Some messages of a session")
async def some_messages(
    key: str,
    caller: CallerOf,
    workspace: WorkspaceOf,
    ids: Annotated[list[str], Query(alias="id", min_length=1, max_length=IDS_MAX, description="Which; up to 100.")],
) -> Page[SentMessage]:
    """These messages, as far as they are of this session, and what has become of each so far."""
    owner = await find_session(workspace, caller, key)
    rows = await workspace.inbox.engine.store.history.messages_by_id(list(dict.fromkeys(ids)))
    mine = [row for row in rows if row is not None and Owner(row.tenant, row.workspace, row.session) == owner]
    return Page(items=[await _message(workspace, row) for row in mine], next=None)


def _messages_of(turn: StateRow) -> list[str]:
    """What a run began over, and what came into it."""
    body = json.loads(turn.body)
    return [*body.get("messages", ())[:MESSAGES_MAX], *body.get("injected", ())[:MESSAGES_MAX]]


async def _strays(workspace: Workspace, owner: Owner, since: int, until: int, *, known: set[str]) -> list[MessageRow]:
    """Messages that came in this part of the conversation and have ended without a run."""
    found: list[MessageRow] = []
    after = max(0, since - 1)
    for _ in range(0, STRAYS_MAX, SLICE):
        rows = await workspace.inbox.engine.store.history.messages(owner, after_seq=after, limit=SLICE)
        found += (row for row in rows if row.seq < until)
        if len(rows) < SLICE or rows[-1].seq >= until:
            break
        after = rows[-1].seq
    return [row for row in found if row.id not in known and MessageState(row.state) in WITHOUT_RUN]


async def _entries(workspace: Workspace, owner: Owner, since: int, until: int) -> list[EntryRow]:
    """The lines of this part of the transcript: not more of it is read than that."""
    found: list[EntryRow] = []
    after = max(0, since - 1)
    for _ in range(0, LINES_MAX, SLICE):
        rows = await workspace.inbox.engine.store.history.entries(owner, after_seq=after, limit=SLICE)
        found += (row for row in rows if row.seq < until)
        if len(rows) < SLICE or rows[-1].seq >= until:
            break
        after = rows[-1].seq
    return found


async def _message(workspace: Workspace, row: MessageRow) -> SentMessage:
    """A message with its state at this moment: of one that is alive the store may be behind."""
    is_alive = row.id in workspace.inbox.engine.kernel.items
    view = MessageView.of(row, await workspace.inbox.status(row.id) if is_alive else final_from(row))
    return SentMessage(**view.model_dump(), seq=row.seq)


def _line(row: EntryRow) -> HistoryView | None:
    """A line of the transcript, unless its run was taken back."""
    entry = decode_entry_row(row)
    return None if entry is None else HistoryView.of(entry)


def _state_now(workspace: Workspace, owner: Owner, row: StateRow) -> str:
    turn = current_turn(workspace, owner)
    return turn.state.value if turn is not None and turn.id == row.id else ""
