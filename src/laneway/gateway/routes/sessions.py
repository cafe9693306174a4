"""Sessions: what waits and runs in them, what was said, how their queue is set."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, Query, Response
from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from laneway.agent.forking import find_fork
from laneway.agent.subagents import is_child_id, root_of
from laneway.errors import InvalidMessageError
from laneway.gateway.deps import CallerOf, WorkspaceOf
from laneway.gateway.labels import SCAN, SCANNED_MAX, Labelled, labels_of, labels_of_all
from laneway.gateway.lookup import current_turn, find_session
from laneway.gateway.recency import Seen
from laneway.gateway.views import (
    LIMIT_MAX,
    ForkedFrom,
    HistoryView,
    Page,
    PendingView,
    Reason,
    SettingView,
    View,
    router_of,
    seq_of,
    settings_view,
)
from laneway.gateway.workspaces import Workspace
from laneway.identity import wanted_labels
from laneway.mail import CAP_MAX, Drop, Mode, QueueOptions
from laneway.records import DURATION_MAX_MS
from laneway.rows import Owner

__all__ = ("Limit", "router")

router = router_of("sessions")

PLACE_MAX: Final = 1_000_000_000
NO_LABELS: Final[list[str]] = []
PREVIEW_MAX: Final = 160

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="At most so many.")]


class SessionSummary(View):
    """A session in a list."""

    session_key: str
    workspace: str
    state: str = Field(description="`idle`, `waiting`, or the state of the run that goes on.")
    run_id: str | None = None
    waiting: int
    resting: bool = Field(
        default=False, description="It was passivated with work undone, which goes on when something comes."
    )
    resting_reason: str = Field("", description="While it rests: what it waits for, and what brings it back.")
    waits_for: str = Field("", description="Why the run that goes on there does nothing at the moment.")
    identity: dict[str, str] = Field(default_factory=dict, description="The labels that its host gave it.")


class RecentSession(SessionSummary):
    """A session in a list of the newest."""

    order: int = Field(description="Higher for those in which something happened later.")
    last_ms: int = Field(description="When something last happened there.")
    mode: str = Field(description="What a message does there while it is busy.")
    approvals: int = Field(description="How many requests wait for somebody's answer, those of sub-agents included.")
    reason: str = Field("", description="Why the next message waits, if one does.")
    preview: str = Field("", description="The beginning of what was said last.")
    preview_role: str = Field("", description="Who said it: `user`, `assistant`, `system`; `waiting`: it waits yet.")


class RecentPage(Page[RecentSession]):
    """Sessions, newest first, and how many there are of each kind."""

    newest: int = Field(description="Ask with `since` set to this for what has changed later.")
    total: int
    busy: int
    waiting: int
    needs: int


class ToolLane(View):
    """A lane for the tools of a session."""

    name: str
    mode: str = Field(description="Who makes its calls: `internal`, `external`, `hybrid`.")
    concurrency: int
    running: int
    waiting: int


class SessionDetails(SessionSummary):
    """A session, its settings in force and where each came from."""

    conversation: int
    settings: dict[str, SettingView]
    in_memory: bool
    lanes: list[ToolLane] = Field(default_factory=list, description="While it is in memory and has a queue.")
    forked_from: ForkedFrom | None = Field(default=None, description="It is a fork, and goes on from that run.")


class QueueChange(BaseModel):
    """Settings for the queue of one session; null gives one back to the next level."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"mode": "steer"}, {"cap": None}]})

    mode: Mode | None = None
    debounce_ms: StrictInt | None = Field(None, ge=0, le=DURATION_MAX_MS)
    cap: StrictInt | None = Field(None, ge=1, le=CAP_MAX)
    drop: Drop | None = None

    @model_validator(mode="after")
    def _says_something(self) -> QueueChange:
        if not self.model_fields_set:
            raise ValueError("nothing is to be changed")
        return self


class PendingPage(Page[PendingView]):
    """Messages that wait; the cursor is the place of the last one."""

    total: int = Field(description="How many wait in the session.")


class Cleared(View):
    """What was taken back."""

    withdrawn: int


class Halted(View):
    """What a stop has ended."""

    waiting: int
    debounced: int
    turns: int
    children: int
    calls: int = 0


class RecentQuery:
    """What is looked for among the newest sessions."""

    def __init__(
        self,
        q: Annotated[str, Query(max_length=400, description="A part of the key; only with `order=recent`.")] = "",
        state: Annotated[
            Literal["", "busy", "waiting", "needs"],
            Query(description="Where something runs, or waits, or needs an answer; only with `order=recent`."),
        ] = "",
        since: Annotated[
            str, Query(max_length=19, description="Only what changed after this `newest`; only with `order=recent`.")
        ] = "",
        label: Annotated[
            list[str],
            Query(max_length=4, description="Only those with this label, as `principal=user:42`; several: with all."),
        ] = NO_LABELS,
    ) -> None:
        self.labels = wanted_labels(label)
        self.words = q.casefold()
        self.state = state
        self.since = seq_of(since)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is looked for that only the newest have."""
        return not (self.words or self.state or self.since)


@router.get("/sessions", summary="The sessions that have messages")
async def ls(
    caller: CallerOf,
    workspace: WorkspaceOf,
    asked: Annotated[RecentQuery, Depends()],
    after: Annotated[str, Query(max_length=400)] = "",
    limit: Limit = 200,
    *,
    subagents: Annotated[bool, Query(description="Those of sub-agents, too; not with `order=recent`.")] = False,
    active: Annotated[bool, Query(description="Only those in which something runs or waits.")] = False,
    order: Annotated[Literal["key", "recent"], Query(description="By their keys, or the newest first.")] = "key",
) -> RecentPage | Page[SessionSummary]:
    """Sessions of the workspace: by their keys, or with `order=recent` those first in which something happened last.

    A page of a search by label may have less than `limit`, and a `next` all the same: there may be more behind it.
    """
    if order == "recent":
        return await _recent(workspace, caller.tenant, asked, after=after, limit=limit, active=active)
    if not asked.is_empty:
        raise InvalidMessageError("q, state and since are for the newest sessions", hint="add order=recent")
    if active:
        keys = _at_work(workspace, caller.tenant, after)
        if asked.labels:
            keys = await Labelled(workspace, caller.tenant, asked.labels).among(keys)
        keys, following = keys[:limit], keys[limit - 1] if len(keys) >= limit else None
    elif asked.labels:
        keys, following = await _labelled(workspace, caller.tenant, asked.labels, after=after, limit=limit)
    else:
        keys = await workspace.inbox.sessions(tenant=caller.tenant, after=after, limit=limit)
        following = keys[-1] if len(keys) >= limit else None
    shown = [key for key in keys if subagents or not is_child_id(key)]
    labels = await labels_of_all(workspace, caller.tenant, shown)
    items = [
        SessionSummary(**_summary(workspace, workspace.owner(caller.tenant, key)), identity=each)
        for key, each in zip(shown, labels, strict=True)
    ]
    return Page(items=items, next=following)


async def _labelled(
    workspace: Workspace, tenant: str, labels: Mapping[str, str], *, after: str, limit: int
) -> tuple[list[str], str | None]:
    """The keys of sessions with certain labels, and behind which key there may be more."""
    search = Labelled(workspace, tenant, labels)
    found: list[str] = []
    while True:
        keys = await workspace.inbox.sessions(tenant=tenant, after=after, limit=SCAN)
        found += await search.among([key for key in keys if not is_child_id(key)])
        if len(found) >= limit:
            return found[:limit], found[limit - 1]
        if len(keys) < SCAN:
            return found, None
        after = keys[-1]
        if search.is_spent:
            return found, after


async def _recent(
    workspace: Workspace, tenant: str, asked: RecentQuery, *, after: str, limit: int, active: bool
) -> RecentPage:
    """The newest sessions: what is shown of each is in memory, but for what was said last."""
    recency = workspace.recency
    await recency.load(tenant)
    groups = _groups(workspace, tenant)
    wanted: set[str] | None = None
    if asked.state:
        wanted = groups[asked.state]
    elif active:
        wanted = groups["busy"] | groups["waiting"]
    known = recency.newest_first(tenant, before=seq_of(after), since=asked.since, among=wanted)
    named = ((key, seen) for key, seen in known if not asked.words or asked.words in key.casefold())
    found = list(islice(named, SCANNED_MAX + 1 if asked.labels else limit))
    following = str(found[-1][1].order) if len(found) >= limit else None
    if asked.labels:
        found, following = await _labelled_of(Labelled(workspace, tenant, asked.labels), found, limit)
    newest, total = recency.newest(tenant), recency.count(tenant)
    said = await asyncio.gather(*(_said_last(workspace, workspace.owner(tenant, key)) for key, _ in found))
    labels = await labels_of_all(workspace, tenant, [key for key, _ in found])
    items = [
        _recent_view(workspace, tenant, *each, *last).model_copy(update={"identity": own})
        for each, last, own in zip(found, said, labels, strict=True)
    ]
    counts = {name: len(keys) for name, keys in groups.items()}
    return RecentPage(items=items, next=following, newest=newest, total=total, **counts)


async def _labelled_of(
    search: Labelled, known: Sequence[tuple[str, Seen]], limit: int
) -> tuple[list[tuple[str, Seen]], str | None]:
    """Those of some sessions that have the labels, and behind which there may be more."""
    found: list[tuple[str, Seen]] = []
    for at in range(0, len(known), SCAN):
        some = dict(known[at : at + SCAN])
        found += [(key, some[key]) for key in await search.among(list(some))]
        if len(found) >= limit:
            return found[:limit], str(found[limit - 1][1].order)
        if search.is_spent and at + SCAN < len(known):
            return found, str(known[at + SCAN - 1][1].order)
    return found, None


def _groups(workspace: Workspace, tenant: str) -> dict[str, set[str]]:
    """The sessions in which something runs, waits, or needs an answer; what a sub-agent asks, its session asks."""
    groups: dict[str, set[str]] = {"busy": set(), "waiting": set(), "needs": set()}
    for owner, box in workspace.inbox.engine.kernel.boxes.items():
        if owner.tenant != tenant:
            continue
        if box.approvals:
            groups["needs"].add(root_of(owner.session))
        if is_child_id(owner.session):
            continue
        if box.turn is not None:
            groups["busy"].add(owner.session)
        if box.waiting:
            groups["waiting"].add(owner.session)
    return groups


async def _said_last(workspace: Workspace, owner: Owner) -> tuple[str, str]:
    """Who said something last, and how it begins."""
    engine = workspace.inbox.engine
    conversation = engine.conversation(owner)
    lines = await engine.store.history.entries(owner, limit=1, newest=True, conversation=conversation)
    if lines:
        return lines[0].role, _beginning(lines[0].text)
    box = engine.kernel.boxes.get(owner)
    item = None if box is None else box.next_item()
    return ("", "") if item is None else ("waiting", _beginning(item.message.text))


def _beginning(text: str) -> str:
    words = " ".join(text[: PREVIEW_MAX * 2].split())
    return words if len(words) <= PREVIEW_MAX else f"{words[: PREVIEW_MAX - 1]}…"


def _recent_view(workspace: Workspace, tenant: str, key: str, seen: Seen, role: str, text: str) -> RecentSession:
    owner = workspace.owner(tenant, key)
    kernel = workspace.inbox.engine.kernel
    box = kernel.boxes.get(owner)
    item = None if box is None else box.next_item()
    return RecentSession(
        **_summary(workspace, owner),
        order=seen.order,
        last_ms=seen.at_ms,
        mode=workspace.inbox.settings_of(owner).mode.value,
        approvals=_asked(workspace, owner),
        reason="" if box is None or item is None else kernel.why(box, item, workspace.inbox.engine.now()),
        preview=text,
        preview_role=role,
    )


def _asked(workspace: Workspace, owner: Owner) -> int:
    """How many requests of a session and its sub-agents wait for an answer."""
    boxes = workspace.inbox.engine.kernel.boxes
    box = boxes.get(owner)
    own = 0 if box is None else len(box.approvals)
    if box is None or not box.children:
        return own
    below = f"{owner.session}~"
    return own + sum(
        len(each.approvals)
        for one, each in boxes.items()
        if each.approvals and one.tenant == owner.tenant and one.session.startswith(below)
    )


def _at_work(workspace: Workspace, tenant: str, after: str) -> list[str]:
    """The keys of sessions in which something runs or waits: all of that is in memory."""
    boxes = workspace.inbox.engine.kernel.boxes
    return sorted(
        owner.session
        for owner, box in boxes.items()
        if owner.tenant == tenant and owner.session > after and (not box.is_idle or box.waiting)
    )


@router.get("/sessions/{key}", summary="One session")
async def show(key: str, caller: CallerOf, workspace: WorkspaceOf) -> SessionDetails:
    """What goes on in a session, and which settings hold for its queue."""
    return await _details(workspace, await find_session(workspace, caller, key))


@router.patch("/sessions/{key}/settings", summary="Change the settings of a session's queue")
async def configure(key: str, body: QueueChange, caller: CallerOf, workspace: WorkspaceOf) -> SessionDetails:
    """Give a session settings of its own. What waits keeps the mode it came with; a smaller cap acts at once."""
    owner = await find_session(workspace, caller, key)
    engine = workspace.inbox.engine
    session = engine.kernel.sessions.get(owner)
    before = session.options if session is not None else QueueOptions()
    names = ("mode", "debounce_ms", "cap", "drop")
    given = {name: getattr(body if name in body.model_fields_set else before, name) for name in names}
    await engine.set_options(owner, QueueOptions(**given), caller.name, workspace.inbox.settings_of)
    return await _details(workspace, owner)


@router.get("/sessions/{key}/pending", summary="What waits in a session")
async def pending(
    key: str,
    caller: CallerOf,
    workspace: WorkspaceOf,
    after: Annotated[str, Query(max_length=19, description="A place: only those behind it.")] = "",
    limit: Annotated[int | None, Query(ge=1, le=LIMIT_MAX, description="At most so many; else all.")] = None,
) -> PendingPage:
    """The messages that wait, in order, each with its place and why it waits."""
    owner = await find_session(workspace, caller, key)
    place = min(seq_of(after), PLACE_MAX)
    waiting = workspace.inbox.pending(key, tenant=caller.tenant, after=place, limit=limit)
    box = workspace.inbox.engine.kernel.boxes.get(owner)
    total = 0 if box is None else box.waiting
    last = place + len(waiting)
    return PendingPage(
        items=[PendingView.of(each) for each in waiting],
        next=str(last) if waiting and last < total else None,
        total=total,
    )


@router.delete("/sessions/{key}/pending", summary="Take back everything that waits in a session")
async def clear(key: str, caller: CallerOf, workspace: WorkspaceOf) -> Cleared:
    """Take back what waits; it stays in the history, as withdrawn. What runs goes on."""
    owner = await find_session(workspace, caller, key)
    engine, why = workspace.inbox.engine, "the queue was cleared"
    return Cleared(withdrawn=await engine.change(owner, engine.kernel.clear, owner, why, actor=caller.name))


@router.get("/sessions/{key}/history", summary="What was said in a session")
async def history(
    key: str,
    caller: CallerOf,
    workspace: WorkspaceOf,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 200,
    conversation: Annotated[int | None, Query(ge=0, le=1 << 53, description="Else the current one.")] = None,
) -> Page[HistoryView]:
    """The newest lines of the transcript, oldest first, each text once."""
    await find_session(workspace, caller, key)
    found = await workspace.inbox.history(key, tenant=caller.tenant, limit=limit, conversation=conversation)
    return Page(items=[HistoryView.of(each) for each in found], next=None)


class LinesResponse(Response):
    """JSON lines."""

    media_type = "application/x-ndjson"


@router.get(
    "/sessions/{key}/transcript",
    summary="The whole transcript as JSON lines",
    response_class=LinesResponse,
    responses={200: {"description": "One line for each entry.", "content": {"application/x-ndjson": {}}}},
)
async def transcript(key: str, caller: CallerOf, workspace: WorkspaceOf) -> Response:
    """Every line of every conversation, one JSON object each, to be kept elsewhere."""
    await find_session(workspace, caller, key)
    return LinesResponse(await workspace.inbox.transcript(key, tenant=caller.tenant))


@router.post("/sessions/{key}/stop", summary="End everything in a session")
async def stop(key: str, caller: CallerOf, workspace: WorkspaceOf, body: Reason | None = None) -> Halted:
    """End what waits, the running turn and its sub-agents; says how many of each."""
    await find_session(workspace, caller, key)
    actor = f"{caller.name}: {body.reason}" if body is not None and body.reason else caller.name
    stopped = await workspace.inbox.stop(key, tenant=caller.tenant, actor=actor)
    return Halted(**stopped._asdict())


def _summary(workspace: Workspace, owner: Owner) -> dict[str, Any]:
    box = workspace.inbox.engine.kernel.boxes.get(owner)
    turn, name = current_turn(workspace, owner), (owner.tenant, root_of(owner.session))
    waiting = 0 if box is None else box.waiting
    session = workspace.host.sessions.get((owner.tenant, owner.session))
    idle: Literal["waiting", "idle"] = "waiting" if waiting else "idle"
    return {
        "session_key": owner.session,
        "workspace": owner.workspace,
        "state": idle if turn is None else turn.state.value,
        "run_id": None if turn is None else turn.id,
        "waiting": waiting,
        "resting": name in workspace.rest.resting,
        "resting_reason": workspace.rest.words(name),
        "waits_for": "" if session is None or turn is None else session.waits_for,
    }


async def _details(workspace: Workspace, owner: Owner) -> SessionDetails:
    session = workspace.host.sessions.get((owner.tenant, owner.session))  # those of sub-agents are there, too
    stats = {} if session is None else session.queue_stats().lanes
    fork = await find_fork(workspace.inbox.engine.store.history, owner)
    return SessionDetails(
        **_summary(workspace, owner),
        conversation=workspace.inbox.engine.conversation(owner),
        settings=settings_view(workspace.inbox.settings_of(owner)),
        in_memory=session is not None,
        identity=await labels_of(workspace, owner),
        forked_from=None if fork is None else ForkedFrom(run_id=fork.from_run, step=fork.step),
        lanes=[
            ToolLane(
                name=name,
                mode=each.handler_mode,
                concurrency=each.max_concurrency,
                running=each.active,
                waiting=each.pending,
            )
            for name, each in stats.items()
        ],
    )
