"""How a session is deleted: all of it, for good, even if the process dies in between.

First a mark goes to disk: this session is to be erased. From then on no message is taken for it. What runs is ended,
memory forgets it, its rows go slice by slice, what is live first, then its artifacts. The mark goes last; whoever
opens the workspace and finds one goes on with it before anything is loaded. A late writer (a result that comes, a
retry, a thread that would not end) finds the journal closed for the session until a new message begins it anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from laneway.errors import ConflictError, InvalidMessageError, LanewayError
from laneway.rows import Batch, Loaded, Owner, StateKey, StateRow
from laneway.runtime.artifacts import HOLDS, holder_of, sweep

if TYPE_CHECKING:
    from laneway.ports import History, Store
    from laneway.runtime.mail_engine import MailEngine

__all__ = (
    "CHILD_KEY",
    "CHILD_PREFIX",
    "ERASING",
    "Readable",
    "check_owner",
    "check_unmarked",
    "check_workspace",
    "clear_mark",
    "delete_session",
    "dooming",
    "erase",
    "erase_all",
    "family_of",
    "finish",
    "finish_in",
    "is_below",
    "load",
    "mark",
    "unmarking",
)

ERASING: Final = "erasing"
INTERNAL: Final = "laneway."
"""How the workspaces begin in which Laneway keeps what is its own: tokens, the audit log."""
SLICE: Final = 500
PAGE: Final = 1_000
CHILD_MARK: Final = "~"
_CHILD: Final = re.compile(r"(~[0-9a-f]{12})+")
CHILD_KEY: Final = re.compile(r".~[0-9a-f]{12}\Z", re.DOTALL)
"""What the key of a sub-agent's session looks like."""
CHILD_PREFIX: Final = "sub-"
"""What comes before the key of its session in the id of a sub-agent."""
LATE_MAX: Final = 10_000
"""How many sessions that were deleted are remembered, so that late writers find nothing."""

PATIENCE_S: Final = 60


# ---- in a store ----


class Readable(Protocol):
    """A store as far as it is looked at."""

    @property
    def history(self) -> History:
        """The read side."""

    async def load_session(self, owner: Owner) -> Loaded:
        """All live rows of one session."""


async def family_of(store: Readable, owner: Owner) -> list[Owner]:
    """A session and those of its sub-agents, as far as the store has messages of them."""
    found = [owner]
    after = below = f"{owner.session}{CHILD_MARK}"
    while keys := await store.history.sessions(owner.tenant, owner.workspace, after=after, limit=PAGE):
        mine = [key for key in keys if key.startswith(below)]
        found += [owner._replace(session=key) for key in mine if is_below(key, owner.session)]
        if len(mine) < len(keys) or len(keys) < PAGE:
            break
        after = keys[-1]
    return found


def is_below(key: str, root: str) -> bool:
    """Whether a session is that of a sub-agent of another one, at any depth."""
    return key.startswith(root) and _CHILD.fullmatch(key, len(root)) is not None


async def mark(store: Store, owner: Owner, why: str, *, family: Iterable[Owner] = ()) -> None:
    """Say on disk that all rows of a session are to go, should this process not come to it.

    `family` are the sessions of its sub-agents: a start finds them by their messages, which may be gone by then.
    """
    keys = [each.session for each in family if each != owner]
    body = json.dumps({"session": owner.session, "why": why, "family": keys})
    row = StateRow(*_mark_of(owner), *owner._replace(session=""), store.next_seq(), 1, "marked", body)
    await _commit(store, Batch(owner._replace(session=""), store.epoch, (row,)))


def _mark_of(owner: Owner) -> StateKey:
    return StateKey(ERASING, json.dumps(list(owner)))


async def check_unmarked(store: Readable, owner: Owner) -> None:
    """Refuse a session that is half deleted or half imported: what is left of it is going to be erased."""
    row = await store.history.state(*_mark_of(owner))
    if row is not None:
        raise ConflictError(
            f"session {owner.session!r} is not whole: it was being {json.loads(row.body)['why']}",
            hint="if nobody is at it any more, delete it, or start the server, which erases what is left of it",
        )


async def clear_mark(store: Store, owner: Owner) -> None:
    """They are gone, or are to stay."""
    await _commit(store, unmarking(store, owner))


def unmarking(store: Store, owner: Owner) -> Batch:
    """What takes the mark away."""
    return Batch(owner._replace(session=""), store.epoch, (), (_mark_of(owner),))


def check_workspace(workspace: str) -> str:
    """A workspace in which people have sessions: what Laneway keeps for itself has none that could be taken away."""
    if workspace.startswith(INTERNAL):
        raise InvalidMessageError(
            f"workspace {workspace!r} is Laneway's own: there are no sessions in it", hint="name another workspace"
        )
    return workspace


def check_owner(owner: Owner) -> None:
    """Refuse what is no session: rows without one are those of a whole workspace, its tokens and counts among them."""
    check_workspace(owner.workspace)
    if not owner.session:
        raise InvalidMessageError(
            f"no session of workspace {owner.workspace!r} is named: what has none belongs to all", hint="name one"
        )


async def erase(store: Store, owner: Owner) -> int:
    """Take away all rows of one session; how many there were."""
    check_owner(owner)
    gone = 0
    while slice_ := await store.erase(owner, limit=SLICE):
        gone += slice_
    return gone


async def erase_all(store: Store, owner: Owner) -> int:
    """Delete a session that nobody uses, with those of its sub-agents; how many rows there were."""
    check_owner(owner)
    family = await family_of(store, owner)
    await mark(store, owner, "deleted", family=family)
    gone = 0
    for each in family[::-1]:
        gone += await erase(store, each)
    await sweep(store, owner.tenant)
    await clear_mark(store, owner)
    return gone


async def finish(store: Store, rows: Iterable[StateRow]) -> int:
    """Go on with what an earlier process has marked; how many sessions there were."""
    marked = [row for row in rows if row.kind == ERASING]
    for row in marked:
        facts = json.loads(row.body)
        owner = Owner(row.tenant, row.workspace, facts["session"])
        known = [owner._replace(session=key) for key in facts.get("family", ())]
        for each in [*dict.fromkeys([*await family_of(store, owner), *known])][::-1]:
            await erase(store, each)
        await sweep(store, owner.tenant)
        await clear_mark(store, owner)
    return len(marked)


async def finish_in(store: Store, tenant: str, workspace: str) -> int:
    """Go on with what an earlier process has marked, in a store that nobody else uses; how many sessions there were."""
    return await finish(store, await store.history.states(Owner(tenant, workspace, ""), ERASING, limit=PAGE))


async def load(store: Store, workspace: str) -> Loaded:
    """All live rows of a workspace, without those of sessions that were being deleted."""
    loaded = await store.load_workspace(workspace)
    return await store.load_workspace(workspace) if await finish(store, loaded.states) else loaded


async def _commit(store: Store, batch: Batch) -> None:
    (result,) = await store.commit([batch])
    if result.error is not None:
        raise result.error


# ---- in an inbox ----


async def delete_session(
    engine: MailEngine, owner: Owner, *, actor: str, let_go: Callable[[], Awaitable[None]] | None = None
) -> int:
    """Delete a session of an open inbox: end what runs, then erase it; how many rows there were.

    `let_go` is called when what runs has been told to end: whoever holds the session gives it up then.
    """
    store = engine.store
    async with dooming(engine, owner):
        why = f"deleted by {actor}"
        await mark(store, owner, why)
        engine.on_doomed(owner)  # its schedules go with it, and not before that is certain
        for each in _in_memory(engine, owner):
            await engine.change(each, engine.kernel.stop, each, "the session is deleted", actor=actor)
        if let_go is not None:
            await let_go()
        family = dict.fromkeys([*_in_memory(engine, owner), *await family_of(store, owner)])
        for each in family:
            await _quiet(engine, each)
        if len(family) > 1:
            await mark(store, owner, why, family=family)
        gone = 0
        for each in [*family][::-1]:
            gone += await erase(store, each)
            HOLDS.release(holder_of(store, each))
        await sweep(store, owner.tenant)
        await clear_mark(store, owner)
        return gone


@contextlib.asynccontextmanager
async def dooming(engine: MailEngine, owner: Owner) -> AsyncIterator[None]:
    """A session takes no messages meanwhile; nor afterwards, if a mark is left by which the next start erases it."""
    check_owner(owner)
    engine.check_loaded(owner)  # one that cannot be read can be deleted
    if engine.doomed.get(owner):
        engine.check_doomed(owner)
    engine.doomed[owner] = True
    try:
        yield
    except BaseException:
        engine.doomed[owner] = False
        if not await _is_marked(engine.store, owner) and not engine.doomed[owner]:
            del engine.doomed[owner]
        raise
    del engine.doomed[owner]


async def _is_marked(store: Store, owner: Owner) -> bool:
    """Whether a start would erase a session; yes, if the store does not say."""
    try:
        return await store.history.state(*_mark_of(owner)) is not None
    except Exception:  # noqa: BLE001 - a store may raise anything; the reason is told already
        return True


def _in_memory(engine: MailEngine, owner: Owner) -> list[Owner]:
    """The session and its sub-agents' that have a box; the session itself first."""
    boxes = [each for each in engine.kernel.boxes if each.tenant == owner.tenant]
    below = [each for each in boxes if is_below(each.session, owner.session)]
    return [owner, *below] if owner in engine.kernel.boxes else below


async def _quiet(engine: MailEngine, owner: Owner) -> None:
    """Wait for the end of what runs, then forget it, and let nobody write to it."""
    turn = engine.running_turn(owner)
    job = turn._job if turn is not None else None  # noqa: SLF001 - the engine and its turns are one
    if job is not None and not job.done():
        ended = asyncio.Event()
        job.add_done_callback(lambda _: ended.set())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await ended.wait()
    with contextlib.suppress(LanewayError):
        if engine.journal.has(owner):
            await engine.journal.committed(owner)
    engine.journal.erased[owner] = None
    while len(engine.journal.erased) > LATE_MAX:
        del engine.journal.erased[next(iter(engine.journal.erased))]
    engine.forget(owner)
    engine.on_erased(owner)
