"""Group commit: what has changed since the last commit goes to the store together, and only then is it visible.

Whoever decides something touches the things that changed and says what is to happen `after` they are on disk. One
commit is on its way at a time; what changes meanwhile is the next group. A thing is turned into a row when its group
leaves, so ten changes of one message in one group are one row.

When the batch of an owner fails, everything that was decided for this owner since then fails with it: those decisions
stood on a state that the store does not have. The owner is told once, and reloads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Protocol

from laneway.errors import LanewayError, StoreUnavailableError, UnstorableError, describe
from laneway.ports import Store
from laneway.rows import Batch, BatchResult, Owner, Row, StateKey

__all__ = ("Journal", "Several", "Storable")

_log = logging.getLogger("laneway")

After = Callable[[Exception | None], None]


class Storable(Protocol):
    """Something that has a row."""

    @property
    def row_key(self) -> Hashable:
        """What its row is known by in its table."""

    def to_row(self) -> Row:
        """Everything about it at this moment."""


class Several(Protocol):
    """Something that has several rows, which are written together."""

    @property
    def row_key(self) -> Hashable:
        """What the first of them is known by in its table."""

    def to_rows(self) -> list[Row]:
        """Everything about it at this moment."""


class _Group:
    """What has changed for one owner since its last commit."""

    __slots__ = ("added", "after", "forgotten", "things")

    def __init__(self) -> None:
        self.things: dict[Hashable, Storable | Several] = {}
        self.added: list[Row] = []
        self.forgotten: dict[StateKey, None] = {}
        self.after: list[After | asyncio.Future[None]] = []

    def to_batch(self, owner: Owner, epoch: int) -> Batch:
        rows: list[Row] = []
        for thing in self.things.values():
            if hasattr(thing, "to_row"):
                rows.append(thing.to_row())
            else:
                rows += thing.to_rows()
        return Batch(owner, epoch, (*rows, *self.added), tuple(self.forgotten))


class Journal:
    """The way of one engine to its store."""

    def __init__(self, store: Store, *, on_failure: Callable[[Owner, Exception], None]) -> None:
        self.store = store
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._groups: dict[Owner, _Group] = {}
        self._flying: asyncio.Task[None] | None = None
        self._sent: dict[Owner, _Group] = {}  # what is on its way
        self._scheduled = False
        self._idle: list[asyncio.Future[None]] = []
        self.erased: dict[Owner, None] = {}
        """Sessions that were deleted: what somebody still wants to write to them is let go."""

    # ---- what has changed ----

    def touch(self, owner: Owner, thing: Storable | Several) -> None:
        """A thing has changed: its row is to be written."""
        group = self._group(owner)
        group.things[thing.row_key] = thing
        if group.forgotten:
            kind, row_id = thing.row_key if isinstance(thing.row_key, tuple) else ("", "")
            group.forgotten.pop(StateKey(kind, row_id), None)

    def add(self, owner: Owner, row: Row) -> None:
        """Something is to be written that will never change."""
        self._group(owner).added.append(row)

    def forget(self, owner: Owner, key: StateKey) -> None:
        """A state row is no longer needed."""
        group = self._group(owner)
        group.things.pop(tuple(key), None)
        group.forgotten[key] = None

    def after(self, owner: Owner, callback: After) -> None:
        """Call back when everything touched so far is on disk (with None), or when it failed (with the error)."""
        self._group(owner).after.append(callback)

    def committed(self, owner: Owner) -> asyncio.Future[None]:
        """A future for the same moment."""
        future: asyncio.Future[None] = self._loop.create_future()
        future.add_done_callback(_look_at)
        self._group(owner).after.append(future)
        return future

    def has(self, owner: Owner) -> bool:
        """Whether something of this owner is not on disk yet."""
        return owner in self._groups or owner in self._sent

    @property
    def is_idle(self) -> bool:
        """Whether everything is on disk."""
        return self._flying is None and not self._groups

    async def settled(self) -> None:
        """Wait until everything is on disk (or has failed)."""
        while not self.is_idle:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(waiter)
            await waiter

    # ---- committing ----

    def _group(self, owner: Owner) -> _Group:
        group = self._groups.get(owner)
        if group is None:
            self._groups[owner] = group = _Group()
            if self._flying is None and not self._scheduled:
                # One round of the loop later: what starts because of this change may belong to the same commit.
                self._scheduled = True
                self._loop.call_soon(self._loop.call_soon, self._flush)
        return group

    def _flush(self) -> None:
        self._scheduled = False
        if self._flying is not None or not self._groups:
            return
        groups, self._groups = self._groups, {}
        batches: list[Batch] = []
        failed: list[tuple[Owner, _Group, Exception]] = []
        epoch = self.store.epoch
        for owner, group in groups.items():
            if owner in self.erased:
                _tell(group, None)
                continue
            try:
                batches.append(group.to_batch(owner, epoch))
                self._sent[owner] = group
            except Exception as error:  # noqa: BLE001 - one row that cannot be written fails only its owner
                _log.exception("a row of %s could not be encoded", owner)
                reason = UnstorableError(f"a row cannot be written: {describe(error)}")
                failed.append((owner, group, reason))
        self._flying = self._loop.create_task(self._commit(batches), name="laneway-commit")
        for owner, group, refusal in failed:
            self._fail(owner, group, refusal)

    async def _commit(self, batches: list[Batch]) -> None:
        work = [batch for batch in batches if batch.rows or batch.forget]
        errors: dict[Owner, Exception | None]
        try:
            errors = await self._write(work)
        except asyncio.CancelledError:  # somebody cancels everything: whether it is on disk, nobody knows
            lost = StoreUnavailableError("the commit was cancelled", hint="the store is asked again")
            self._land({batch.owner: lost for batch in work})
            raise
        self._land(errors)

    async def _write(self, work: list[Batch]) -> dict[Owner, Exception | None]:
        results: list[BatchResult]
        try:
            results = await self.store.commit(work) if work else []
        except LanewayError as error:
            results = [BatchResult(error)] * len(work)
        except Exception as error:  # noqa: BLE001 - a store that raises has not stored, as far as anybody knows
            _log.exception("the store failed in a way of its own")
            wrapped = StoreUnavailableError(f"the store failed: {describe(error)}")
            results = [BatchResult(wrapped)] * len(work)
        return {batch.owner: result.error for batch, result in zip(work, results, strict=True)}

    def _land(self, errors: dict[Owner, Exception | None]) -> None:
        """A commit is over: tell everybody, and send what has come together meanwhile."""
        self._flying = None
        sent, self._sent = self._sent, {}
        for owner, group in sent.items():
            failure = errors.get(owner)
            if failure is None:
                _tell(group, None)
            else:
                self._fail(owner, group, failure)
        if self._groups and not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._loop.call_soon, self._flush)
        if self.is_idle:
            idle, self._idle = self._idle, []
            for waiter in idle:
                if not waiter.done():
                    waiter.set_result(None)

    def _fail(self, owner: Owner, group: _Group, error: Exception) -> None:
        later = self._groups.pop(owner, None)
        self._on_failure(owner, error)
        _tell(group, error)
        if later is not None:
            _tell(later, error)


def _tell(group: _Group, error: Exception | None) -> None:
    for callback in group.after:
        if isinstance(callback, asyncio.Future):
            if not callback.done():
                if error is None:
                    callback.set_result(None)
                else:
                    callback.set_exception(error)
            continue
        try:
            callback(error)
        except Exception:  # noqa: BLE001 - what one caller brought along must not cost others their answer
            _log.exception("a callback after a commit raised")


def _look_at(future: asyncio.Future[None]) -> None:
    """Whoever asked may have gone away; an error that nobody collects is not worth a line in the log."""
    if not future.cancelled():
        future.exception()
