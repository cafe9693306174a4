"""The kernel of the inbox against a naive model: the same calls put every message into the same place at the same time.

The model is one list and a few flags, written from the documented behaviour. It keeps no timers, no counters and no
rows; after every step the kernel must agree with it about every message, the order of the queue, whether a slot is
asked for, and (after a restart from the rows) about all of it again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from laneway.errors import MailboxFullError
from laneway.kernel.mailbox import Add, Forget, RequestTurn, Touch, WithdrawRequest
from laneway.kernel.mailroom import Mailroom, Rules
from laneway.kernel.messages import Item, TurnEntry
from laneway.mail import (
    Drop,
    Message,
    MessageKind,
    Mode,
    OnCrash,
    QueueSettings,
    Route,
    Sender,
    TurnState,
)
from laneway.rows import Batch, Owner
from laneway.sim.mail_mirror import differences, live_rows
from laneway.stores.memory import MemoryDisk
from tests.property.worlds import effort

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # a failing example takes minutes to shrink

OWNER = Owner("default", "default", "s")
WALL = 1_700_000_000_000
GRACE = 40
RETRY_MS = (500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000)
KEYS = {
    "bob": (Route(), Sender(id="bob")),
    "bea": (Route(), Sender(id="bea", rights=("queue",))),
    "thread": (Route(thread="7"), Sender(id="bob")),
}
GATHERING = (Mode.COLLECT, Mode.STEER_BACKLOG)
CUTTING = (Mode.INTERRUPT, Mode.ROLLBACK)
WAITING = ("queued", "parked", "held")


# ---- the model ------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Letter:
    """A message as a reader of the documentation sees it."""

    id: str
    mode: Mode
    key: str  # route and rights; "" for a message of the system
    at: int
    settings: QueueSettings
    state: str = "queued"
    outcome: str = ""
    eager: bool = False
    deaths: int = 0
    expires: int = 0

    @property
    def gathers(self) -> bool:
        """Whether it waits for a quiet moment and shares its turn."""
        return self.mode in GATHERING and bool(self.key)


@dataclass(eq=False)
class Run:
    """A turn."""

    letters: list[Letter]
    told: list[Letter]  # summarized ones it tells of
    key: str
    phase: str = "thinking"
    taken: list[Letter] = field(default_factory=list)
    cancelled: bool = False
    stopped: bool = False
    fence: int = 0


class Model:
    """One session."""

    def __init__(self, *, debounce_idle: bool, rerun: bool) -> None:
        self.debounce_idle = debounce_idle
        self.rerun = rerun
        self.now = 0
        self.letters: dict[str, Letter] = {}
        self.queue: list[Letter] = []  # waiting and taken ones, in their places
        self.overflow: list[Letter] = []
        self.run: Run | None = None
        self.cut: Letter | None = None
        self.last_at = 0
        self.not_before = 0
        self.failures = 0

    # ---- what is there ----

    def waiting(self) -> list[Letter]:
        """What waits, in order."""
        return [letter for letter in self.queue if letter.state in WAITING]

    def head(self) -> Letter | None:
        """What the next turn begins with."""
        if self.cut is not None and self.cut.state == "queued":
            return self.cut
        return next((letter for letter in self.queue if letter.state in ("queued", "parked")), None)

    def ready_at(self) -> int | None:
        """When the next turn may begin; None while one runs or nothing waits for one."""
        if self.run is not None:
            return None
        head = self.head()
        if head is None:
            return self.not_before if self.overflow else None
        if head.eager or not head.gathers:
            return self.not_before
        quiet = min(self.last_at + head.settings.debounce_ms, head.at + head.settings.max_wait_ms)
        return max(quiet, self.not_before)

    def batch(self, head: Letter) -> list[Letter]:
        """Who shares a turn with the head: neighbours that gather, of the same route and rights; not the held ones."""
        if not head.gathers:
            return [head]
        open_ones = [letter for letter in self.queue if letter.state in ("queued", "parked")]
        batch = []
        for letter in open_ones[open_ones.index(head) :]:
            if not letter.gathers or letter.key != head.key:
                break
            batch.append(letter)
        return batch

    # ---- what happens ----

    def accept(self, letter: Letter) -> bool:
        """Take a message; False when it is refused because too many wait."""
        idle = self.run is None and not self.queue and not self.overflow
        if letter.mode is Mode.REJECT and letter.key and not idle:
            letter.state = "rejected"
            self.letters[letter.id] = letter
            return True
        if letter.key and not idle and not self._make_room(letter):
            return False
        self.letters[letter.id] = letter
        letter.eager = idle and not self.debounce_idle
        if letter.mode in GATHERING:
            self.last_at = self.now
        self.queue.append(letter)
        if not letter.key:
            return True
        if letter.mode in CUTTING:
            if self.cut is not None and self.cut.state in WAITING:
                self._finish(self.cut, "superseded")
            self.cut = letter
            self.cancel()
        elif letter.mode in (Mode.STEER, Mode.STEER_BACKLOG) and self.may_steer(letter):
            letter.state = "parked"
        return True

    def _make_room(self, letter: Letter) -> bool:
        spared = self.cut if letter.mode in CUTTING and self.cut is not None and self.cut.state in WAITING else None
        users = [each for each in self.waiting() if each.key and each is not spared]
        excess = len(users) - letter.settings.cap + 1
        if excess <= 0:
            return True
        if letter.settings.drop is Drop.NEW:
            return False
        self._drop(users[:excess], letter.settings)
        return True

    def _drop(self, victims: list[Letter], settings: QueueSettings) -> None:
        for victim in victims:
            self._finish(victim, "dropped" if settings.drop is Drop.OLD else "summarized")
            if settings.drop is Drop.SUMMARIZE and self._lines(victim) < settings.cap:
                self.overflow.append(victim)

    def _lines(self, victim: Letter) -> int:
        return sum(each.key == victim.key for each in self.overflow)

    def _finish(self, letter: Letter, state: str, outcome: str = "") -> None:
        letter.state, letter.outcome = state, outcome
        self.queue.remove(letter)
        if self.cut is letter:
            self.cut = None

    def may_steer(self, letter: Letter) -> bool:
        """Whether a message may go into the running turn."""
        run = self.run
        return (
            run is not None
            and not run.cancelled
            and run.phase in ("thinking", "acting", "compacting")
            and run.key == letter.key
        )

    def cancel(self) -> None:
        """Ask the turn to end."""
        if self.run is not None and not self.run.cancelled and self.run.phase != "delivering":
            self.run.cancelled = True
            self.run.fence = self.now + GRACE

    def begin(self) -> tuple[list[str], list[str]]:
        """A slot is there: the messages of the turn, and the summarized ones it tells of."""
        head = self.head()
        if self.overflow and (head is None or head is not self.cut):
            first = self.overflow[0]
            told = [letter for letter in self.overflow if letter.key == first.key]
            self.overflow = [letter for letter in self.overflow if letter.key != first.key]
            self.run = Run([], told, first.key)
            return [], [letter.id for letter in told]
        assert head is not None
        batch = self.batch(head)
        for letter in batch:
            self._finish(letter, "running")
        self.run = Run(batch, [], head.key or "system")
        self.failures = 0
        return [letter.id for letter in batch], []

    def boundary(self, *, everything: bool) -> list[str]:
        """What goes into the turn."""
        run = self.run
        assert run is not None
        if run.phase == "compacting":
            return []
        taken = [
            letter
            for letter in self.queue
            if letter.state == "parked" or (everything and letter.state == "queued" and letter.key == run.key)
        ]
        for letter in taken:
            letter.state = "injected"
        run.taken += taken
        return [letter.id for letter in taken]

    def end(self, state: str) -> None:
        """The turn has ended."""
        run = self.run
        assert run is not None
        self.run = None
        outcome = {"succeeded": "succeeded", "failed": "failed"}.get(state, "interrupted")
        for letter in run.letters:
            letter.state, letter.outcome = ("merged" if len(run.letters) > 1 else "ran"), outcome
        self._release(run, outcome)

    def _release(self, run: Run, outcome: str) -> None:
        for letter in run.taken:
            if outcome == "succeeded" and letter.mode is not Mode.STEER_BACKLOG:
                self._finish(letter, "steered", outcome)
            elif run.stopped:
                self._finish(letter, "withdrawn")
            else:
                letter.state = "queued"
        for letter in self.queue:
            if letter.state == "parked":
                letter.state = "queued"

    def pass_time(self, now: int) -> None:
        """What is due: a grace that is over, messages that waited longer than they are worth."""
        self.now = now
        if self.run is not None and self.run.cancelled and self.run.fence <= now:
            self.end("fenced")
        for letter in self.waiting():
            if letter.expires and letter.expires <= now:
                self._finish(letter, "expired")

    def clear(self) -> None:
        """Take back what waits."""
        for letter in self.waiting():
            self._finish(letter, "withdrawn")
        self.overflow.clear()

    def stop(self) -> None:
        """End everything."""
        self.clear()
        if self.run is not None:
            self.run.stopped = True
            self.cancel()

    def setup_failed(self) -> None:
        """The next turn could not be begun."""
        if self.failures < len(RETRY_MS):
            self.not_before = self.now + RETRY_MS[self.failures]
            self.failures += 1
            return
        self.failures = self.not_before = 0
        head = self.head()
        if head is not None:
            self._finish(head, "dead_lettered")

    def restart(self) -> None:
        """The process dies, and another one goes on."""
        run, self.run = self.run, None
        self.not_before = self.failures = 0
        self.cut = next((each for each in reversed(self.waiting()) if each.mode in CUTTING and each.key), None)
        for letter in self.queue:
            letter.eager = False
        if run is None:
            self._release(Run([], [], ""), "interrupted")
            self._after_start()
            return
        for letter in run.letters:
            letter.deaths += 1
        again = self.rerun and not run.cancelled and all(letter.deaths < 5 for letter in run.letters)
        self.overflow = [*run.told, *self.overflow]
        for letter in run.letters:
            letter.eager = False
            if again:
                letter.state = "queued"
                if letter.mode in CUTTING and letter.key and self.cut is None:
                    self.cut = letter
            else:
                letter.state, letter.outcome = ("merged" if len(run.letters) > 1 else "ran"), "interrupted"
        if again:
            self.queue += run.letters
        self._release(run, "interrupted")
        self._after_start()

    def _after_start(self) -> None:
        self.last_at = max((letter.at for letter in self.waiting() if letter.mode in GATHERING), default=0)


# ---- the machine ----------------------------------------------------------------------------------------------


class MailroomMachine(RuleBasedStateMachine):
    """One session in the kernel and in the model."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.numbers = 0
        self.disk = MemoryDisk()
        self.places: dict[str, int] = {}
        self.requested = 0
        self.turn: TurnEntry | None = None

    @initialize(debounce_idle=st.booleans(), rerun=st.booleans())
    def begin(self, debounce_idle: bool, rerun: bool) -> None:
        self.mail_rules = Rules(GRACE, debounce_idle, OnCrash.RERUN if rerun else OnCrash.REPORT)
        self.kernel = Mailroom(self.mail_rules, next_seq=self.disk.next_seq)
        self.model = Model(debounce_idle=debounce_idle, rerun=rerun)

    # ---- doing the same twice ----

    def do(self, call: Callable[..., Any], *args: Any, **facts: Any) -> Any:
        """Call the kernel; what it says is written."""
        try:
            return call(*args, now=self.now, wall=WALL + self.now, **facts)
        finally:
            self.write()

    def write(self) -> None:
        """Write what the kernel says, and count the slots it asks for."""
        things: dict[Any, Any] = {}
        rows: list[Any] = []
        forgotten: list[Any] = []
        for effect in self.kernel.take():
            if isinstance(effect, Touch):
                things[effect.thing.row_key] = effect.thing
            elif isinstance(effect, Add):
                rows.append(effect.row)
            elif isinstance(effect, Forget):
                forgotten.append(effect.key)
            elif isinstance(effect, RequestTurn):
                self.requested += 1
            elif isinstance(effect, WithdrawRequest):
                self.requested -= 1
        rows = [*(thing.to_row() for thing in things.values()), *rows]
        self.disk.write(Batch(OWNER, 0, tuple(rows), tuple(forgotten)))

    def one_waiting(self, number: int) -> Letter:
        waiting = self.model.waiting()
        return waiting[number % len(waiting)]

    def something_waits(self) -> bool:
        return bool(self.model.waiting())

    def something_runs(self) -> bool:
        return self.model.run is not None

    # ---- rules ----

    @rule(
        mode=st.sampled_from(Mode),
        key=st.sampled_from(sorted(KEYS)),
        debounce=st.sampled_from((0, 10, 50)),
        cap=st.sampled_from((1, 2, 3, 20)),
        drop=st.sampled_from(Drop),
        lasts=st.sampled_from((0, 0, 0, 30)),
    )
    def send(self, mode: Mode, key: str, debounce: int, cap: int, drop: Drop, lasts: int) -> None:
        settings = QueueSettings(mode=mode, debounce_ms=debounce, max_wait_ms=debounce * 3, cap=cap, drop=drop)
        route, sender = KEYS[key]
        self.arrive(settings, key, MessageKind.USER, route, sender, lasts)

    @rule()
    def send_as_system(self) -> None:
        settings = QueueSettings(mode=Mode.FOLLOWUP)
        self.arrive(settings, "", MessageKind.SYSTEM, Route(), None, 0)

    def arrive(
        self, settings: QueueSettings, key: str, kind: MessageKind, route: Route, sender: Sender | None, lasts: int
    ) -> None:
        self.numbers += 1
        wall = WALL + self.now
        message = Message(
            id=f"m{self.numbers}",
            session_key="s",
            text=f"m{self.numbers}",
            mode=settings.mode,
            kind=kind,
            route=route,
            sender=sender,
            arrived_ms=wall,
        )
        item = Item(OWNER, message, seq=self.disk.next_seq(), expires_ms=wall + lasts if lasts else 0)
        self.places[message.id] = item.seq
        letter = Letter(message.id, settings.mode, key, self.now, settings, expires=self.now + lasts if lasts else 0)
        try:
            self.do(self.kernel.accept, item, settings)
            taken = True
        except MailboxFullError:
            taken = False
        assert taken == self.model.accept(letter)

    @precondition(lambda self: self.requested > 0)
    @rule(fails=st.sampled_from((False, False, False, True)))
    def slot(self, fails: bool) -> None:
        self.requested -= 1
        if fails:
            self.do(self.kernel.setup_failed, OWNER, "no slot")
            if self.model.waiting() or self.model.overflow or self.model.run is not None:
                self.model.setup_failed()
            return
        self.numbers += 1
        turn = self.do(self.kernel.begin, OWNER, f"turn-{self.numbers}")
        ready = self.model.ready_at()
        if turn is None:
            assert ready is None or ready > self.now
            return
        assert ready is not None
        assert ready <= self.now
        messages, told = self.model.begin()
        assert [item.id for item in turn.items] == messages
        assert [item.id for item in turn.summarized] == told
        self.kernel.started(turn)
        self.turn = turn

    @precondition(something_runs)
    @rule(everything=st.booleans())
    def boundary(self, everything: bool) -> None:
        assert self.turn is not None
        items = self.do(self.kernel.boundary, self.turn, everything=everything)
        assert [item.id for item in items] == self.model.boundary(everything=everything)
        self.turn.delivered.update(item.id for item in items)

    @precondition(something_runs)
    @rule(phase=st.sampled_from(("thinking", "acting", "compacting", "waiting", "delivering")))
    def phase(self, phase: str) -> None:
        assert self.turn is not None
        assert self.model.run is not None
        self.kernel.set_phase(self.turn, TurnState(phase))
        self.model.run.phase = phase

    @precondition(something_runs)
    @rule(state=st.sampled_from(("succeeded", "succeeded", "failed")))
    def end(self, state: str) -> None:
        assert self.turn is not None
        assert self.model.run is not None
        if self.model.run.cancelled:
            state = "cancelled"
        self.do(self.kernel.end, self.turn, TurnState(state), reason="" if state == "succeeded" else "it ended so")
        self.model.end(state)

    @rule(ms=st.sampled_from((1, 5, 10, 25, 50, 150, 10_000)))
    def wait(self, ms: int) -> None:
        until = self.now + ms
        while (due := self.kernel.next_due()) is not None and due <= until:
            self.now = max(self.now, due)
            self.do(self.kernel.tick)
            self.model.pass_time(self.now)
            self.compare()
        self.now = until
        self.model.pass_time(until)

    @precondition(something_waits)
    @rule(number=st.integers(0, 9))
    def hold(self, number: int) -> None:
        letter = self.one_waiting(number)
        self.do(self.kernel.hold, letter.id, actor="test")
        letter.state = "held"

    @precondition(lambda self: any(letter.state == "held" for letter in self.model.queue))
    @rule()
    def release(self) -> None:
        letter = next(letter for letter in self.model.queue if letter.state == "held")
        self.do(self.kernel.release, letter.id, actor="test")
        letter.state = "queued"

    @precondition(something_waits)
    @rule(number=st.integers(0, 9))
    def withdraw(self, number: int) -> None:
        letter = self.one_waiting(number)
        self.do(self.kernel.withdraw, letter.id, "not needed", actor="test")
        self.model._finish(letter, "withdrawn")  # noqa: SLF001 - the model belongs to this test

    @precondition(lambda self: self.something_waits() and not any(x.state == "injected" for x in self.model.queue))
    @rule(number=st.integers(0, 9), position=st.integers(1, 5))
    def move(self, number: int, position: int) -> None:
        letter = self.one_waiting(number)
        self.do(self.kernel.move, letter.id, position, actor="test")
        self.model.queue.remove(letter)
        self.model.queue.insert(position - 1, letter)

    @precondition(something_waits)
    @rule(number=st.integers(0, 9))
    def steer_now(self, number: int) -> None:
        letter = self.one_waiting(number)
        if not letter.key:
            return
        why_not = self.do(self.kernel.steer_now, letter.id, actor="test")
        if letter.state == "parked":
            assert not why_not
        elif self.model.may_steer(letter):
            assert not why_not
            letter.state, letter.mode = "parked", Mode.STEER
            if self.model.cut is letter:
                self.model.cut = None
        else:
            assert why_not

    @rule(everything=st.booleans())
    def clear_or_stop(self, everything: bool) -> None:
        if everything:
            self.do(self.kernel.stop, OWNER, "stopped", actor="test")
            self.model.stop()
        else:
            self.do(self.kernel.clear, OWNER, "cleared", actor="test")
            self.model.clear()

    @rule(cap=st.integers(1, 3), drop=st.sampled_from(Drop))
    def bound(self, cap: int, drop: Drop) -> None:
        settings = QueueSettings(cap=cap, drop=drop)
        self.do(self.kernel.apply_cap, OWNER, settings)
        if drop is not Drop.NEW:
            users = [letter for letter in self.model.waiting() if letter.key]
            self.model._drop(users[: max(0, len(users) - cap)], settings)  # noqa: SLF001 - as above

    @rule()
    def restart(self) -> None:
        self.kernel = Mailroom(self.mail_rules, next_seq=self.disk.next_seq)
        self.turn = None
        self.requested = 0
        order = {row.id: row.place for row in live_rows(self.disk).messages}
        self.do(self.kernel.load, live_rows(self.disk), running={})
        self.model.restart()
        self.model.queue.sort(key=lambda letter: order[letter.id])

    # ---- what has to agree ----

    def forget(self) -> None:
        """An idle session is forgotten, its failures with it."""
        model = self.model
        if not model.queue and not model.overflow and model.run is None and not self.requested:
            model.not_before = model.failures = model.last_at = 0

    @invariant()
    def compare(self) -> None:
        """Every message, the order, the slot, and what a restart would load."""
        if not hasattr(self, "kernel"):
            return
        model, kernel = self.model, self.kernel
        self.forget()
        rows = {message_id: self.disk.messages[message_id] for message_id in model.letters}
        found = {message_id: (row.state, row.outcome) for message_id, row in rows.items()}
        assert found == {letter.id: (letter.state, letter.outcome) for letter in model.letters.values()}
        box = kernel.boxes.get(OWNER)
        queue = [item.id for item in box.items.values()] if box is not None else []
        assert queue == [letter.id for letter in model.queue]
        assert [item.id for item in box.overflow] == [letter.id for letter in model.overflow] if box else True
        assert (box is not None and box.turn is not None) == (model.run is not None)
        if box is not None and box.turn is not None and model.run is not None:
            assert bool(box.turn.cancelled) == model.run.cancelled
        ready = model.ready_at()
        if ready is not None and ready <= self.now:
            assert self.requested == 1, "something is ready, and no slot is asked for"
        assert self.requested in (0, 1)
        assert list(differences(kernel, live_rows(self.disk), now=self.now)) == []
        if not model.queue and not model.overflow and model.run is None and not self.requested:
            assert not kernel.boxes, "an idle session leaves nothing"
            assert kernel.next_due() is None

    def teardown(self) -> None:
        """Whatever has happened, everything can come to its end."""
        if not hasattr(self, "kernel"):
            return
        note(f"{len(self.model.letters)} messages at {self.now} ms")
        for letter in self.model.waiting():
            if letter.state == "held":
                self.do(self.kernel.release, letter.id, actor="test")
        for _ in range(1_000):
            if not self.kernel.boxes:
                break
            box = self.kernel.boxes[OWNER]
            if box.turn is not None:
                self.do(self.kernel.end, box.turn, TurnState.SUCCEEDED)
            elif box.requested is not None:
                self.numbers += 1
                turn = self.do(self.kernel.begin, OWNER, f"turn-{self.numbers}")
                if turn is not None:
                    self.kernel.started(turn)
            else:
                due = self.kernel.next_due()
                assert due is not None, "nothing runs, nothing is due, and something waits"
                self.now = max(self.now, due)
                self.do(self.kernel.tick)
        assert not self.kernel.boxes
        assert all(not row.live for row in self.disk.messages.values())


TestMailroomAgreesWithModel = MailroomMachine.TestCase
TestMailroomAgreesWithModel.settings = effort(400, steps=50)
