"""What Laneway needs of the outside, as Protocols. Adapters implement them; the core never names an adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from laneway.rows import Batch, BatchResult, EntryRow, EventRow, Loaded, Lookup, MessageRow, Owner, StateRow

__all__ = ("Clock", "History", "Ids", "Random", "Store")


class Clock(Protocol):
    """Two clocks: one for stamps, one for durations."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; may jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment; never runs backwards."""


class Ids(Protocol):
    """Where new ids come from."""

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

    async def state(self, kind: str, row_id: str) -> StateRow | None:
        """One state row."""

    async def states(self, owner: Owner, kind: str, *, after_seq: int = 0, limit: int = 200) -> list[StateRow]:
        """State rows of a session (of all sessions of the workspace if it is empty), oldest first."""

    async def events(
        self, owner: Owner, *, message_id: str = "", turn_id: str = "", after_seq: int = 0, limit: int = 1000
    ) -> list[EventRow]:
        """Events of a session, or of one message or turn of it, oldest first."""

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

    async def close(self) -> None:
        """Let go of it. The last user to close really closes it."""
