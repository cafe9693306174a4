"""Messages that are sent by the clock: schedules, their rows and their one timer.

A firing and the next due time are written in one batch, so a firing is sent exactly once. The wall clock may jump:
with schedules waiting, it is looked at again at least once a minute.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from laneway.errors import ConfigError, ConflictError, InvalidMessageError, NotFoundError
from laneway.events import ScheduleFired, ScheduleMissed
from laneway.kernel import texts
from laneway.kernel.messages import Item, encode
from laneway.mail import Message, MessageKind, Mode, Schedule
from laneway.records import DURATION_MAX_MS, check_whole
from laneway.rows import Owner, StateKey, StateRow
from laneway.runtime import schedules
from laneway.runtime.envelope import storable
from laneway.runtime.errands import SYSTEM_SETTINGS
from laneway.runtime.mail_engine import MailEngine

__all__ = ("PREVIEW_MAX", "Clockwork", "ScheduleChange", "changed", "preview")

LOOK_MS = 60_000
EVERY_MIN_MS = 1_000
PREVIEW_MAX = 20
KEPT = (
    *("text", "cron", "at_ms", "every_ms", "missed", "next_ms", "timezone", "kind"),
    *("paused", "last_ms", "last_id", "last_note"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleChange:
    """What is to be different about a schedule; None where it stays as it is. At most one of the three times is set."""

    text: str | None = None
    cron: str | None = None
    at_ms: int | None = None
    every_ms: int | None = None
    missed: str | None = None
    kind: MessageKind | None = None
    timezone: str | None = None
    paused: bool | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What it changes."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}

    def over(self, schedule: Schedule) -> Schedule:
        """The schedule as it is to be; another time takes the place of the one it had."""
        given = self.given
        if given.keys() & {"cron", "at_ms", "every_ms"}:
            given = {"cron": None, "at_ms": None, "every_ms": None} | given
        return replace(schedule, **given)


class _Entry:
    """A schedule with its row."""

    __slots__ = ("owner", "schedule", "seq")

    def __init__(self, owner: Owner, schedule: Schedule, seq: int) -> None:
        self.owner = owner
        self.schedule = schedule
        self.seq = seq

    @property
    def row_key(self) -> Hashable:
        """What its row is known by."""
        return ("schedule", self.schedule.id)

    def to_row(self) -> StateRow:
        """Everything about it at this moment."""
        schedule = self.schedule
        body = encode({name: getattr(schedule, name) for name in KEPT})
        return StateRow("schedule", schedule.id, *self.owner, self.seq, 1, "waiting", body)


class Clockwork:
    """All schedules of one inbox."""

    def __init__(self, engine: MailEngine) -> None:
        self._engine = engine
        self._entries: dict[str, _Entry] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        engine.on_reloaded = self._reload
        engine.on_doomed = self._drop

    def load(self, rows: Iterable[StateRow]) -> None:
        """Take over what the store has; what was missed meanwhile is dealt with at once."""
        self._take_over(rows)
        self._tick()

    def _reload(self, owner: Owner, rows: Iterable[StateRow]) -> None:
        """The store has failed for a session: what it has is what counts."""
        if self._closed:
            return
        self._drop(owner)
        self._take_over(row for row in rows if row.kind == "schedule")
        self._arm()

    def _drop(self, owner: Owner) -> None:
        """Send nothing more to a session; what is stored of its schedules is somebody else's to take away."""
        for schedule_id in [name for name, entry in self._entries.items() if entry.owner == owner]:
            del self._entries[schedule_id]
        self._arm()

    def _take_over(self, rows: Iterable[StateRow]) -> None:
        for row in rows:
            body: dict[str, Any] = json.loads(row.body)
            body["kind"] = MessageKind(body["kind"])
            schedule = Schedule(id=row.id, session_key=row.session, tenant=row.tenant, **body)
            owner = Owner(row.tenant, row.workspace, row.session)
            self._entries[row.id] = _Entry(owner, schedule, row.seq)

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._entries.clear()

    # ---- what people do ----

    async def add(
        self,
        owner: Owner,
        text: str,
        *,
        cron: str | None,
        at_ms: int | None,
        every_ms: int | None,
        missed: str,
        kind: MessageKind,
        timezone: str,
    ) -> Schedule:
        """A new schedule; returns when it is on disk."""
        self._engine.check_session(owner)
        self._engine.check_doomed(owner)
        self._engine.journal.erased.pop(owner, None)  # one that was deleted begins anew
        draft = Schedule(
            id=self._engine.ids.new_id("schedule"),
            session_key=owner.session,
            tenant=owner.tenant,
            text=text,
            cron=cron,
            at_ms=at_ms,
            every_ms=every_ms,
            missed=missed,
            next_ms=0,
            kind=kind,
            timezone=timezone,
        )
        schedule = _timed(draft, self._engine.wall())
        entry = _Entry(owner, schedule, self._engine.store.next_seq())
        self._entries[schedule.id] = entry
        self._engine.journal.touch(owner, entry)
        await self._engine.journal.committed(owner)
        self._arm()
        return schedule

    async def change(self, schedule_id: str, change: ScheduleChange) -> Schedule:
        """Change a schedule. One with another time, or that goes on after a pause, is due at its next time from now."""
        entry = self._entry(schedule_id)
        self._engine.check_session(entry.owner)
        entry.schedule = new = changed(entry.schedule, change, self._engine.wall())
        self._engine.journal.touch(entry.owner, entry)
        await self._engine.journal.committed(entry.owner)
        self._arm()
        return new

    async def send_now(self, schedule_id: str, reason: str) -> str:
        """Send the message of a schedule beside its times; the id of the message, which is on disk then."""
        entry, engine = self._entry(schedule_id), self._engine
        engine.check_session(entry.owner)
        self.check_sendable(entry.schedule)
        schedule, wall = entry.schedule, engine.wall()
        message_id = self._send(entry, 0, wall)
        facts = {"schedule_id": schedule.id, "next_ms": schedule.next_ms}
        engine.kernel.note(ScheduleFired, entry.owner, wall, message_id=message_id, reason=reason, **facts)
        entry.schedule = replace(schedule, last_ms=wall, last_id=message_id, last_note="")
        engine.journal.touch(entry.owner, entry)
        engine.carry_out()
        await engine.journal.committed(entry.owner)
        return message_id

    def check_sendable(self, schedule: Schedule) -> None:
        """Refuse to send a schedule's message while the one it has sent before has not ended: they would pile up."""
        if schedule.last_id in self._engine.kernel.items:
            raise ConflictError(
                "the message that it has sent before has not ended yet",
                hint="wait for it, or withdraw it",
                message_id=schedule.last_id,
            )

    def _entry(self, schedule_id: str) -> _Entry:
        entry = self._entries.get(schedule_id)
        if entry is None:
            raise NotFoundError(what="schedule", name=schedule_id)
        return entry

    async def remove(self, schedule_id: str) -> bool:
        """Forget a schedule; False if there is none of that id."""
        entry = self._entries.get(schedule_id)
        if entry is None:
            return False
        self._engine.check_session(entry.owner)
        del self._entries[schedule_id]
        self._engine.journal.forget(entry.owner, StateKey("schedule", schedule_id))
        await self._engine.journal.committed(entry.owner)
        return True

    def list(self, tenant: str, session: str | None) -> list[Schedule]:
        """The schedules of a tenant, or of one of its sessions, by their next time."""
        found = [
            entry.schedule
            for entry in self._entries.values()
            if entry.owner.tenant == tenant and session in (None, entry.owner.session)
        ]
        return sorted(found, key=lambda schedule: (schedule.next_ms, schedule.id))

    # ---- time ----

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = min((each.schedule.next_ms for each in self._entries.values() if not each.schedule.paused), default=None)
        if due is not None and self._engine.is_at_work and not self._closed:
            delay = min(max(0, due - self._engine.wall()), LOOK_MS)
            self._timer = self._engine.loop.call_later(delay / 1000, self._tick)

    def _tick(self) -> None:
        wall = self._engine.wall()
        if self._engine.is_at_work:
            for entry in list(self._entries.values()):
                if entry.schedule.paused:
                    continue
                every = entry.schedule.every_ms
                if every is not None and entry.schedule.next_ms > wall + every:
                    # The wall clock was set back: an interval is a length of time, not a time of day.
                    entry.schedule = replace(entry.schedule, next_ms=wall + every)
                    if not self._engine.is_reloading(entry.owner):
                        self._engine.journal.touch(entry.owner, entry)
                if entry.schedule.next_ms <= wall:
                    self._fire(entry, wall)
        self._arm()

    def _fire(self, entry: _Entry, wall: int) -> None:
        """Send what is due, once, and write the next time with it."""
        engine, schedule = self._engine, entry.schedule
        if engine.is_reloading(entry.owner):
            entry.schedule = replace(schedule, next_ms=max(schedule.next_ms, wall + EVERY_MIN_MS))
            return
        owed = schedules.missed(schedule, wall)
        late = wall - schedule.next_ms > LOOK_MS or owed.firings > 1
        waiting = engine.kernel.items.get(schedule.last_id)
        message_id = why = ""
        facts = {"schedule_id": schedule.id, "next_ms": owed.next_ms or 0}
        if (late and schedule.missed == "skip") or waiting is not None:
            why = "the one before it still waits" if waiting is not None else "nobody was there to send it"
            engine.kernel.note(ScheduleMissed, entry.owner, wall, count=owed.firings, reason=why, **facts)
        else:
            message_id = self._send(entry, owed.firings - 1, wall)
            engine.kernel.note(ScheduleFired, entry.owner, wall, message_id=message_id, reason="it was due", **facts)
        if owed.next_ms is None:
            del self._entries[schedule.id]
            engine.journal.forget(entry.owner, StateKey("schedule", schedule.id))
        else:
            last_id = message_id or schedule.last_id
            entry.schedule = replace(schedule, next_ms=owed.next_ms, last_ms=wall, last_id=last_id, last_note=why)
            engine.journal.touch(entry.owner, entry)
        engine.carry_out()

    def _send(self, entry: _Entry, missed: int, wall: int) -> str:
        schedule, engine = entry.schedule, self._engine
        heartbeat = schedule.kind is MessageKind.HEARTBEAT
        message = Message(
            id=engine.ids.new_id("msg"),
            session_key=schedule.session_key,
            tenant=schedule.tenant,
            text=schedule.text if heartbeat else texts.schedule_note(schedule.id, schedule.text, missed),
            kind=schedule.kind,
            mode=Mode.FOLLOWUP,
            arrived_ms=wall,
        )
        item = Item(entry.owner, message, seq=engine.store.next_seq(), lane="cron")
        engine.kernel.accept(item, SYSTEM_SETTINGS, now=engine.now(), wall=wall)
        return message.id


def preview(schedule: Schedule, wall: int, count: int) -> list[int]:
    """When a schedule that nobody keeps would fire, from now on; what makes no sense is a `ConfigError`."""
    timed = _timed(schedule, wall)
    found: list[int] = [timed.next_ms]
    while len(found) < min(count, PREVIEW_MAX):
        following = schedules.next_firing(timed, found[-1])
        if following is None:
            break
        found.append(following)
    return found


def changed(old: Schedule, change: ScheduleChange, wall: int) -> Schedule:
    """A schedule after a change. With another time, or after a pause, it is due at its next time from now on."""
    if change.text is not None and not storable(change.text, "a message").strip():
        raise InvalidMessageError("a message must not be empty", hint="send some text")
    new = change.over(old)
    is_moved = any(getattr(new, name) != getattr(old, name) for name in ("cron", "at_ms", "every_ms", "timezone"))
    if not is_moved and (new.paused or not old.paused):
        return _check(new, wall)
    if new.at_ms is not None and new.at_ms <= wall:
        raise ConfigError("this moment has passed", setting="at_ms", value=new.at_ms, hint="give it another one")
    return _timed(new, wall)


def _check(schedule: Schedule, wall: int) -> Schedule:
    """The same with its cron expression as it is kept; refuses what makes no sense."""
    cron, at_ms, every_ms = schedule.cron, schedule.at_ms, schedule.every_ms
    if sum(value is not None for value in (cron, at_ms, every_ms)) != 1:
        raise ConfigError("a schedule has exactly one of cron, at_ms and every_ms", setting="schedule")
    if schedule.missed not in ("skip", "run"):
        raise ConfigError(
            f"missed is 'skip' or 'run', not {schedule.missed!r}", setting="missed", value=schedule.missed
        )
    if schedule.kind is MessageKind.USER:
        raise InvalidMessageError("a schedule speaks as 'system' or 'heartbeat', not as a user")
    if cron is not None:
        schedule = replace(schedule, cron=schedules.check_cron(cron))
    if every_ms is not None:
        check_whole(every_ms, setting="every_ms", least=EVERY_MIN_MS, most=DURATION_MAX_MS)
    if at_ms is not None:
        check_whole(at_ms, setting="at_ms", least=0, most=1 << 53)
        if 0 < at_ms * 100 < wall:
            hint = "it is in milliseconds since 1970; was it meant in seconds?"
            raise ConfigError(f"at_ms {at_ms} is decades ago", setting="at_ms", value=at_ms, hint=hint)
    return replace(schedule, timezone=schedules.check_timezone(schedule.timezone))


def _timed(draft: Schedule, wall: int) -> Schedule:
    """A schedule with its first time from now on."""
    schedule = _check(draft, wall)
    if schedule.at_ms is not None:
        first: int | None = schedule.at_ms
    elif schedule.every_ms is not None:
        first = wall + schedule.every_ms
    else:
        first = schedules.next_firing(schedule, wall)
    if first is None:
        raise ConfigError(f"the schedule {schedule.cron!r} never fires", setting="cron", value=schedule.cron)
    return replace(schedule, next_ms=first)
