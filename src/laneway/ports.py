"""What Laneway needs of the outside, as Protocols. Adapters implement them; the core never names an adapter."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from laneway.dialogue import Chunk, Intent, ModelRequest, ToolContext, ToolOutput, ToolSpec
from laneway.external import ExternalTaskResult, Lease, Progress
from laneway.rows import (
    Batch,
    BatchResult,
    EntryRow,
    EventRow,
    LastEvent,
    Loaded,
    Lookup,
    MessageRow,
    Owner,
    StateRow,
    Troubles,
)

__all__ = ("Clock", "History", "Ids", "Model", "Random", "Store", "Tool", "Transport")


class Clock(Protocol):
    """Two clocks: one for stamps, one for durations."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; may jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment; never runs backwards."""


class Ids(Protocol):
    """Where new ids come from.

    Ids that are counted may have a method `for_opening(epoch)` beside this: it is called when a store was opened, with
    the `epoch` of that store, and gives the `Ids` that are used with it from then on.
    """

    def new_id(self, kind: str) -> str:
        """An id that was never given out before."""


class Random(Protocol):
    """Where random numbers come from; `random.Random` is one."""

    def random(self) -> float:
        """A number from 0 (included) to 1 (not included)."""


class History(Protocol):
    """The read side of a store: what was committed, for people and listings. It never holds up a write."""

    async def message(self, message_id: str) -> MessageRow | None:
        """One message, waiting or ended."""

    async def messages(
        self, owner: Owner, *, state: str = "", after_seq: int = 0, limit: int = 200
    ) -> list[MessageRow]:
        """Messages of a session (of all sessions of the workspace if it is empty), oldest first."""

    async def messages_newest(
        self, owner: Owner, *, state: str = "", before_seq: int = 0, limit: int = 200
    ) -> list[MessageRow]:
        """Messages as of `messages`, newest first; `before_seq` 0: from the last one."""

    async def messages_by_id(self, message_ids: Sequence[str]) -> list[MessageRow | None]:
        """One message for each id, in their order; None where there is none."""

    async def state(self, kind: str, row_id: str) -> StateRow | None:
        """One state row."""

    async def states_by_id(self, kind: str, row_ids: Sequence[str]) -> list[StateRow | None]:
        """One state row for each id, in their order; None where there is none."""

    async def states(self, owner: Owner, kind: str, *, after_seq: int = 0, limit: int = 200) -> list[StateRow]:
        """State rows of a session (of all sessions of the workspace if it is empty), oldest first."""

    async def states_newest(  # noqa: PLR0913 - keyword-only: which rows are wanted
        self,
        owner: Owner,
        kind: str,
        *,
        state: str = "",
        live: bool = False,
        before_seq: int = 0,
        limit: int = 200,
    ) -> list[StateRow]:
        """State rows as of `states`, newest first, of one state if it is given; `before_seq` 0: from the last one.

        `live` True: only what a restart would load, which is found at once, however long the history is.
        """

    async def events(
        self, owner: Owner, *, message_id: str = "", turn_id: str = "", after_seq: int = 0, limit: int = 1000
    ) -> list[EventRow]:
        """Events of a session, or of one message or turn of it, oldest first."""

    async def events_newest(self, owner: Owner, *, before_seq: int = 0, limit: int = 1000) -> list[EventRow]:
        """Events of a session, newest first; `before_seq` 0: from the last one."""

    async def events_between(
        self, tenant: str, workspace: str, *, after_seq: int, until_seq: int, limit: int = 1000
    ) -> list[EventRow]:
        """Events of all sessions with numbers above one and up to another, oldest first.

        It costs as much as there are sessions, and events between the two numbers.
        """

    async def last_events(self, tenant: str, workspace: str) -> list[LastEvent]:
        """The newest event of each session, the session that was quiet longest first.

        It costs as much as there are sessions, however many events they have.
        """

    async def entries(
        self,
        owner: Owner,
        *,
        after_seq: int = 0,
        limit: int = 200,
        newest: bool = False,
        conversation: int | None = None,
    ) -> list[EntryRow]:
        """The transcript of a session, or one conversation of it, oldest first; `newest`: the last `limit` lines."""

    async def sessions(self, tenant: str, workspace: str, *, after: str = "", limit: int = 200) -> list[str]:
        """Session keys that have messages, in alphabetical order after `after`."""

    async def tenants(self, workspace: str) -> list[str]:
        """Tenants that have messages in a workspace, in alphabetical order."""

    async def troubles(self, tenant: str, workspace: str, *, limit: int = 200) -> Troubles:
        """What needs somebody in a workspace, at most so much of each kind; it costs what there is of that."""


class Store(Protocol):
    """Keeps rows. One process owns it at a time; whoever opens it next has a higher `epoch`."""

    @property
    def epoch(self) -> int:
        """The fencing number of this owner."""

    @property
    def history(self) -> History:
        """The read side."""

    def next_seq(self) -> int:
        """A sequence number higher than every number in the store and every one given out before."""

    async def open(self) -> None:
        """Become the owner. May be called by several users of one store; each closes it once."""

    async def load_workspace(self, workspace: str) -> Loaded:
        """All live rows of a workspace."""

    async def load_session(self, owner: Owner) -> Loaded:
        """All live rows of one session."""

    async def find(self, lookups: Sequence[Lookup]) -> list[MessageRow | None]:
        """For each, the newest message that fits; sees every commit that was asked for before."""

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Make batches durable, in order; a result for each. One bad batch never fails another."""

    async def erase(self, owner: Owner, *, until_seq: int | None = None, limit: int = 1000) -> int:
        """Take away a bounded slice of the rows of a session, in the order of commits; how many went. 0: no more.

        Without `until_seq` everything goes, what is live first. With it only what is over, oldest first: ended messages
        (no dead letters that nobody has settled), events, lines, and states of `HISTORY_KINDS` up to that number. Blobs
        go with the last row that names them.
        """

    async def close(self) -> None:
        """Let go of it. The last user to close really closes it."""


class Model(Protocol):
    """Something that answers. What goes wrong is a `ModelUnavailableError` (try again) or a `ModelError` (do not)."""

    @property
    def name(self) -> str:
        """What it is called in the configuration: `scripted`, `openai/gpt-5` …"""

    @property
    def context_tokens(self) -> int | None:
        """How many tokens it can take in; None when nobody knows."""

    def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """One answer, in pieces; the last piece is the whole `Answer`."""


class Tool(Protocol):
    """Something an agent can do."""

    @property
    def spec(self) -> ToolSpec:
        """What it is."""

    def check(self, arguments: str) -> dict[str, Any]:
        """The arguments of a call, parsed and held against the schema; raises `ToolArgumentsError`."""

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Do it. An error that it raises is a failure, which may be tried again if the effect allows."""

    @property
    def can_reconcile(self) -> bool:
        """Whether it can find out afterwards what became of a call."""

    async def reconcile(self, intent: Intent, context: ToolContext) -> ToolOutput | None:
        """What became of a call that was cut off; None when it cannot be known."""


class Transport(Protocol):
    """How a worker gets external tasks and says what became of them: two-phase, so that nothing is done twice.

    A worker claims, says that it starts before it does anything, shows signs of life while it works, and completes.
    Every method may raise `TransportUnavailableError`; after one of those a worker may say the same thing again.
    A `Worker` leaves a keyword out when it has nothing to say with it.
    """

    async def claim(  # noqa: PLR0913 - one question; what nobody asks for is left out
        self,
        worker: str,
        *,
        lanes: Sequence[str] = (),
        limit: int = 1,
        wait_ms: int = 0,
        commands: Sequence[str] = (),
        labels: Sequence[str] = (),
        workspaces: Sequence[str] = (),
        lease_ms: int | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> list[Lease]:
        """Take up to `limit` tasks of some lanes (all if none is named) and tools; waits up to `wait_ms` for one.

        `labels` are what the worker has; `workspaces` those it serves (all if none is named); `lease_ms` how long it
        would like to be allowed to be silent; `about` are facts for the list of workers.
        """

    async def start(self, task_id: str, token: str) -> None:
        """Say that it begins: only then it may. Raises `LeaseLostError` when it must not. Saying it twice is once."""

    async def heartbeat(self, task_id: str, token: str, progress: Progress | None = None) -> bool:
        """Show a sign of life. False: nobody wants the task any more, stop; `LeaseLostError`: it is somebody else's."""

    async def complete(self, task_id: str, token: str, result: ExternalTaskResult) -> bool:
        """Say what became of it. True: it counts. A second time is answered the same. Raises `LeaseLostError`."""

    async def release(self, task_id: str, token: str, reason: str = "", *, begun: bool = False) -> None:
        """Give a task back that was not started.

        With `begun` also one that was: a `write` is unknown then, anything else goes to another worker.
        """

    async def close(self) -> None:
        """Let go of the connection."""
