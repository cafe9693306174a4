"""The way of durable jobs to the store: group commit, and what could not be written is written again until it is.

Everything that changes while a commit is on its way is the next group. This is what the journal does for sessions; here
each job is its own owner and has one row, so that a group is a list of records, and a job costs a third. A record is
turned into a row when its group leaves.

After a failure one row at a time finds out whether the store is back; once one was written, all the others follow.
Whoever needs to know hears how its own write went: an attempt that may not start, a caller whose job was not taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from laneway.errors import ClosedError, FencedError, LanewayError, StoreUnavailableError
from laneway.ports import Store
from laneway.records import JobId
from laneway.rows import Batch, BatchResult, StateKey, StateRow
from laneway.runtime.claims import give_back
from laneway.runtime.job_rows import JobRecord

__all__ = ("JobWrites",)

_log = logging.getLogger("laneway")
OUTCOME_PATIENCE_MS = 10_000
AGAIN_FIRST_MS = 100
AGAIN_LAST_MS = 5_000

After = asyncio.Future[None] | Callable[[Exception | None], None]
Sent = tuple["JobRecord", list["After | None"]]
_new = tuple.__new__  # makes a NamedTuple at half the price; only where every job passes


class JobWrites:
    """Makes the rows of durable jobs be what their records say."""

    def __init__(
        self, store: Store, *, on_stored: Callable[[list[JobId]], None], on_fenced: Callable[[FencedError], None]
    ) -> None:
        self.store = store
        self.fenced: FencedError | None = None
        self.held: dict[JobId, None] = {}  # jobs that wait for their row to be stored: `on_stored` is for them
        self._on_stored = on_stored
        self._on_fenced = on_fenced
        self._loop = asyncio.get_running_loop()
        self._group: dict[JobRecord, None] = {}  # what goes with the next commit
        self._flying: asyncio.Task[None] | None = None
        self._scheduled = False
        self._idle: list[asyncio.Future[None]] = []
        self._closed = False
        self._unwritten: dict[JobId, JobRecord] = {}  # records whose last write failed
        self._rewritten: dict[JobId, JobRecord] = {}  # those of them that are on their way again
        self._recovering: dict[JobId, list[asyncio.Future[None]]] = {}  # attempts whose outcome is not written yet
        self._ready: list[JobId] = []  # jobs that were held, and whose rows are written
        self._again: asyncio.TimerHandle | None = None
        self._again_ms = AGAIN_FIRST_MS

    # ---- writing ----

    def write(self, record: JobRecord, then: After | None = None) -> None:
        """Write a record; `then` hears how that went."""
        if self._closed or self.fenced is not None:
            _tell(then, self.fenced or ClosedError(opened=True))
            return
        if record.doubt is not None:
            _tell(then, record.doubt)
            return
        told = record.told
        if told is None:
            if then is None and self._again is not None:
                self._unwritten[record.id] = record  # the store is down, and nobody waits to hear so once more
                return
            record.told = [then]
            self._group[record] = None
            if self._flying is None and not self._scheduled:
                # Two rounds of the loop later: what starts because of this change may belong to the same commit.
                self._scheduled = True
                self._loop.call_soon(self._loop.call_soon, self._flush)
        elif then is not None:
            told.append(then)

    def written(self, record: JobRecord) -> asyncio.Future[None]:
        """Write a record; the future says how that went."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self.write(record, waiter)
        return waiter

    async def write_outcome(self, record: JobRecord) -> None:
        """Write how an attempt ended. If the store is down, wait for it, but not for ever.

        An outcome that could not be written is told all the same: the row says `running`, which after a crash means
        that nobody knows. So is one whose task is cancelled meanwhile: the outcome is what it is.
        """
        try:
            await self.written(record)
        except asyncio.CancelledError:
            return
        except LanewayError:
            await self.recovered(record)

    async def recovered(self, record: JobRecord) -> None:
        """Wait until a record that could not be written is; not for ever, and not past the end of its task."""
        if record.id not in self._unwritten:
            return  # there is no store any more that it could be written to
        recovery = self._loop.create_future()
        self._recovering.setdefault(record.id, []).append(recovery)
        try:
            async with asyncio.timeout(OUTCOME_PATIENCE_MS / 1000):
                await recovery
        except asyncio.CancelledError:
            return
        except TimeoutError:
            _log.error("the end of durable job %s could not be stored within %s ms", record.id, OUTCOME_PATIENCE_MS)

    def drop(self, record: JobRecord) -> None:
        """A record is replaced by another one, whose write sees to its row."""
        record.gone = True
        self._unwritten.pop(record.id, None)
        self._rewritten.pop(record.id, None)

    # ---- committing ----

    def _flush(self) -> None:
        self._scheduled = False
        if self._flying is not None or not self._group:
            return
        records, self._group = self._group, {}
        epoch = self.store.epoch
        batches: list[Batch] = []
        sent: list[Sent] = []
        unfit: list[tuple[Sent, Exception]] = []
        for record in records:
            told, record.told = record.told, None
            assert told is not None
            try:
                batches.append(self._batch(record, epoch))
                sent.append((record, told))
            except Exception as error:  # noqa: BLE001 - one row that cannot be made fails only its job
                _log.exception("the row of durable job %s could not be made", record.id)
                unfit.append(((record, told), error))
        self._flying = self._loop.create_task(self._commit(batches, sent), name="laneway-commit")
        for (record, told), reason in unfit:
            self._answer(record, told, StoreUnavailableError(f"no row could be made: {reason}"))

    def _batch(self, record: JobRecord, epoch: int) -> Batch:
        rows: tuple[StateRow, ...] = () if record.gone else (record.to_row(),)
        forget: tuple[StateKey, ...] = (record.row_key,) if record.gone else ()
        if record.replaces is not None:
            self.drop(record.replaces)
            forget = (*forget, record.replaces.row_key)
        return _new(Batch, (record.owner, epoch, rows, forget))

    async def _commit(self, batches: list[Batch], sent: list[Sent]) -> None:
        failure: Exception | None = None
        cancelled: asyncio.CancelledError | None = None
        results: list[BatchResult] = []
        try:
            results = await self.store.commit(batches)
        except asyncio.CancelledError as error:  # by somebody who cancels all tasks; the loop may live on
            cancelled = error
            failure = StoreUnavailableError("a commit was cancelled, and nobody knows whether it was made")
        except LanewayError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - a store that raises has not stored, as far as anybody knows
            _log.exception("the store failed in a way of its own")
            failure = StoreUnavailableError(f"the store failed: {type(error).__name__}: {error}")
        finally:
            self._flying = None
        for index, (record, told) in enumerate(sent):
            refusal = failure or results[index].error
            if refusal is not None and record.told is not None:
                # What was decided since then stood on a state that the store does not have.
                told += record.told
                record.told = None
                del self._group[record]
            self._answer(record, told, refusal)
        if self._ready and not self._rewritten:  # together, so that they go on in their order
            ready, self._ready = self._ready, []
            self._on_stored(ready)
        if self._group and not self._scheduled:
            self._scheduled = True
            if cancelled is None:
                self._loop.call_soon(self._loop.call_soon, self._flush)
            else:  # the loop is being shut down, most likely; if it is not, there is time
                self._loop.call_later(AGAIN_FIRST_MS / 1000, self._flush)
        if self._flying is None and not self._group:
            idle, self._idle = self._idle, []
            for waiter in idle:
                if not waiter.done():
                    waiter.set_result(None)
        if cancelled is not None:
            raise cancelled

    def _answer(self, record: JobRecord, told: list[After | None], error: Exception | None) -> None:
        if error is None:
            record.replaces = None
            if self._unwritten or self._rewritten or self.held:
                self._note_written(record)
        elif not record.pending:  # else it is being found out whether there is a job at all
            self.note_unwritten(record, error)
        for then in told:
            _tell(then, error)

    def note_unwritten(self, record: JobRecord, error: Exception) -> None:
        """A record could not be written, or nobody knows: it is written again."""
        if isinstance(error, FencedError):
            self._fence(error)
        if self.fenced is not None:
            return
        self._rewritten.pop(record.id, None)
        self._unwritten.pop(record.id, None)
        self._unwritten[record.id] = record  # last: the next one to find out with is another one
        if self._again is None and not self._closed:
            _log.warning("the store failed, %s rows wait to be written: %s", len(self._unwritten), error)
            self._again = self._loop.call_later(self._again_ms / 1000, self._write_one_again)
            self._again_ms = min(2 * self._again_ms, AGAIN_LAST_MS)

    def _write_one_again(self) -> None:
        """Find out with one row whether the store is back."""
        self._again = None
        if self._unwritten:
            self.write(next(iter(self._unwritten.values())))

    def _note_written(self, record: JobRecord) -> None:
        """A row that could not be written is, or one that its job waits for."""
        self._rewritten.pop(record.id, None)
        was_unwritten = self._unwritten.pop(record.id, None) is not None
        for waiter in self._recovering.pop(record.id, ()):
            if not waiter.done():
                waiter.set_result(None)
        if record.id in self.held:
            del self.held[record.id]
            self._ready.append(record.id)
        if was_unwritten:  # the store is back
            self._again_ms = AGAIN_FIRST_MS
            self._stop_timer()
            self._write_all_again()

    def _write_all_again(self) -> None:
        others, self._unwritten = self._unwritten, {}
        self._rewritten.update(others)
        for record in others.values():
            self.write(record)

    def _fence(self, error: FencedError) -> None:
        """Somebody else owns the store now: nothing can be written to it any more."""
        if self.fenced is not None:
            return
        self.fenced = error
        self._stop_timer()
        for forgotten in (self._unwritten, self._rewritten, self.held):
            forgotten.clear()
        self._on_fenced(error)
        self._stop_recovering()

    def _stop_recovering(self) -> None:
        recovering, self._recovering = self._recovering, {}
        for waiter in (waiter for waiters in recovering.values() for waiter in waiters):
            if not waiter.done():
                waiter.set_result(None)

    def _stop_timer(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None

    # ---- ending ----

    async def settled(self) -> None:
        """Wait until everything is written, or has failed once more; nobody waits for a better store then."""
        self._stop_timer()
        self._write_all_again()
        while self._flying is not None or self._group:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(waiter)
            await waiter
        self._stop_recovering()

    def shut(self) -> None:
        """Take no more, and leave no timer and nobody waiting."""
        self._closed = True
        self._stop_timer()
        self._stop_recovering()

    async def close(self, workspace: str) -> None:
        """Write what is left, give back the claim to the workspace, and take no more."""
        await self.settled()
        if self.fenced is None:
            try:
                await give_back(self.store, "lanes", workspace)
            except Exception as error:  # noqa: BLE001 - whatever a store raises at its end, it is the end
                _log.warning("the claim to the durable jobs was not given back: %s", error)
        self.shut()
        if self._unwritten:
            _log.error("%s rows of durable jobs could not be written", len(self._unwritten))


def _tell(then: After | None, error: Exception | None) -> None:
    if isinstance(then, asyncio.Future):
        if then.done():
            return
        if error is None:
            then.set_result(None)
        else:
            then.set_exception(error)
    elif then is not None:
        try:
            then(error)
        except Exception:  # noqa: BLE001 - what one caller brought along must not cost others their answer
            _log.exception("a callback after a commit raised")
