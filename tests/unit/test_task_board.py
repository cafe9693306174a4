"""The board of external tasks: leases, ends, timers and rows, in pure code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from laneway.errors import ConflictError, LeaseLostError, StoreCorruptError, StoreVersionError, UnstorableError
from laneway.external import ExternalTaskResult, TaskState
from laneway.kernel.task_board import ATTEMPTS_MAX, FINISHED_MAX, STALE_MAX, TASK_TRANSITIONS, TaskBoard
from laneway.kernel.task_entries import Taker, TaskEntry, TaskOrder, Wanted, decode_task
from laneway.records import Effect
from laneway.rows import Owner

OWNER = Owner("acme", "main", "chat")
WALL = 1_700_000_000_000
LEASE = 1_000
TIMEOUT = 60_000
DONE = ExternalTaskResult(result={"output": "ok"})
BROKEN = ExternalTaskResult(success=False, error="no such file")


def order(task_id: str = "t", effect: Effect | str = Effect.READ, **more: Any) -> TaskOrder:
    facts: dict[str, Any] = {
        "owner": OWNER,
        "lane": "execute",
        "command_type": "bash",
        "payload": {"command": "ls"},
        "timeout_ms": TIMEOUT,
        "lease_ms": LEASE,
        "key": f"key-{task_id}",
        **more,
    }
    return TaskOrder(task_id=task_id, effect=Effect(effect), **facts)


class Desk:
    """A board with a clock that the test sets, and tokens that count."""

    def __init__(self) -> None:
        self.board = TaskBoard()
        self.now = 0
        self.seq = 0
        self.tokens = 0

    def put(self, task_id: str = "t", effect: Effect | str = Effect.READ, **more: Any) -> TaskEntry:
        self.seq += 1
        entry = self.board.offer(order(task_id, effect, **more), seq=self.seq, wall=WALL + self.now)
        self.board.publish(task_id, now=self.now)
        return entry

    def token(self) -> str:
        self.tokens += 1
        return f"token-{self.tokens}"

    def claim(self, worker: str = "w", lanes: tuple[str, ...] = (), commands: tuple[str, ...] = ()) -> TaskEntry | None:
        wanted = Wanted(frozenset(lanes), frozenset(commands))
        return self.board.claim(wanted, Taker(worker), now=self.now, token=self.token)

    def start(self, entry: TaskEntry, token: str = "") -> str:
        held = token or entry.token
        self.board.start(entry, held, now=self.now)
        self.board.confirm(entry, held, now=self.now)
        return held

    def begun(self, task_id: str = "t", effect: Effect | str = Effect.READ, **more: Any) -> tuple[TaskEntry, str]:
        entry = self.put(task_id, effect, **more)
        assert self.claim() is entry
        return entry, self.start(entry)

    def passing(self, ms: int) -> list[str]:
        self.now += ms
        return [news.kind for news in self.board.tick(now=self.now, wall=WALL + self.now)]

    def complete(self, entry: TaskEntry, token: str, result: ExternalTaskResult = DONE) -> bool:
        return self.board.complete(entry, token, result, wall=WALL + self.now)


@pytest.fixture
def desk() -> Desk:
    return Desk()


# ---- the way of a task ----


def test_a_task_is_leased_then_started_then_completed(desk: Desk) -> None:
    entry = desk.put()
    states = [entry.state]
    assert desk.claim() is entry
    states.append(entry.state)
    token = desk.start(entry)
    states.append(entry.state)
    assert desk.complete(entry, token)
    assert [*states, entry.state] == ["pending", "leased", "started", "completed"]
    assert entry.end.result == DONE
    assert entry.end.had_started


def test_nobody_can_claim_a_task_before_it_is_published(desk: Desk) -> None:
    entry = desk.board.offer(order(), seq=1, wall=WALL)
    assert desk.claim() is None
    assert desk.board.next_due() is None
    assert entry.remaining_ms(10**9) == TIMEOUT
    assert desk.board.publish("t", now=5) is entry
    assert desk.board.publish("t", now=6) is None
    assert desk.claim() is entry


def test_a_task_has_one_lease_at_a_time(desk: Desk) -> None:
    entry = desk.put()
    assert desk.claim("a") is entry
    assert desk.claim("b") is None


def test_the_oldest_task_of_the_wanted_lanes_and_commands_goes_first(desk: Desk) -> None:
    desk.put("one", lane="query", command_type="read")
    desk.put("two", lane="execute", command_type="bash")
    desk.put("three", lane="execute", command_type="write")
    desk.put("four", lane="execute", command_type="bash")
    taken = [
        desk.claim(lanes=("execute",), commands=("bash",)),
        desk.claim(lanes=("execute",)),
        desk.claim(lanes=("generate",)),
        desk.claim(),
        desk.claim(),
        desk.claim(),
    ]
    assert [entry and entry.task_id for entry in taken] == ["two", "three", None, "one", "four", None]


def test_what_was_given_back_keeps_its_place(desk: Desk) -> None:
    first = desk.put("first")
    desk.put("second")
    assert desk.claim() is first
    assert desk.board.release(first, first.token, wall=WALL)
    assert desk.claim() is first


def test_a_start_that_was_not_confirmed_is_not_a_start(desk: Desk) -> None:
    entry = desk.put(effect="write")
    desk.claim()
    token = entry.token
    desk.board.start(entry, token, now=desk.now)
    assert desk.passing(LEASE) == ["requeued"]
    with pytest.raises(LeaseLostError):
        desk.board.confirm(entry, token, now=desk.now)
    assert entry.state is TaskState.PENDING
    assert entry.attempt == 1


def test_starting_twice_is_starting_once(desk: Desk) -> None:
    entry, token = desk.begun(effect="write")
    desk.board.start(entry, token, now=desk.now)
    assert not desk.board.confirm(entry, token, now=desk.now)
    assert entry.state is TaskState.STARTED


def test_confirming_what_is_only_leased_is_refused(desk: Desk) -> None:
    entry = desk.put()
    desk.claim()
    with pytest.raises(LeaseLostError):
        desk.board.confirm(entry, entry.token, now=desk.now)


# ---- leases that end ----


@pytest.mark.parametrize("effect", list(Effect))
def test_a_lease_that_ends_before_the_start_gives_the_task_back(desk: Desk, effect: Effect) -> None:
    entry = desk.put(effect=effect)
    desk.claim("first")
    old = entry.token
    assert desk.passing(LEASE - 1) == []
    assert desk.passing(1) == ["requeued"]
    with pytest.raises(LeaseLostError):
        desk.board.start(entry, old, now=desk.now)
    assert desk.claim("second") is entry
    assert (entry.attempt, entry.worker) == (1, "second")


@pytest.mark.parametrize("effect", [Effect.READ, Effect.IDEMPOTENT])
def test_after_the_start_another_worker_gets_what_may_be_done_again(desk: Desk, effect: Effect) -> None:
    entry, old = desk.begun(effect=effect)
    assert desk.passing(LEASE) == ["requeued"]
    assert (entry.state, entry.attempt, entry.key) == (TaskState.PENDING, 2, "key-t")
    with pytest.raises(LeaseLostError):
        desk.complete(entry, old)
    desk.claim("second")
    assert desk.complete(entry, desk.start(entry))


def test_after_the_start_a_write_is_unknown_and_nobody_gets_it(desk: Desk) -> None:
    entry, _ = desk.begun(effect="write")
    assert desk.passing(LEASE) == ["ended"]
    assert entry.state is TaskState.UNKNOWN
    assert desk.claim() is None
    assert "not heard of" in entry.end.reason


@pytest.mark.parametrize(("result", "state"), [(DONE, "completed"), (BROKEN, "failed")])
def test_a_late_result_settles_an_unknown_write_once(desk: Desk, result: ExternalTaskResult, state: str) -> None:
    entry, token = desk.begun(effect="write")
    desk.passing(LEASE)
    assert desk.board.heartbeat(entry, token, now=desk.now), "its result still counts"
    assert desk.complete(entry, token, result)
    assert entry.state == state
    assert not desk.complete(entry, token, DONE), "said again"
    assert entry.result == result


def test_a_foreign_result_settles_nothing(desk: Desk) -> None:
    entry, _ = desk.begun(effect="write")
    desk.passing(LEASE)
    for token in ("", "token-9"):
        with pytest.raises(LeaseLostError):
            desk.complete(entry, token)
    assert entry.state is TaskState.UNKNOWN


def test_a_task_that_loses_every_worker_fails_in_the_end(desk: Desk) -> None:
    entry = desk.put()
    kinds: list[str] = []
    for _ in range(ATTEMPTS_MAX):
        desk.claim()
        desk.start(entry)
        kinds += desk.passing(LEASE)
    assert kinds == ["requeued"] * (ATTEMPTS_MAX - 1) + ["ended"]
    assert entry.end.result == ExternalTaskResult(success=False, error=f"lost by {ATTEMPTS_MAX} workers")
    assert desk.board.complete_by_host(entry, DONE, wall=WALL) is False


def test_signs_of_life_keep_a_lease(desk: Desk) -> None:
    entry, token = desk.begun()
    for _ in range(5):
        assert desk.passing(LEASE - 1) == []
        assert desk.board.heartbeat(entry, token, now=desk.now)
    assert desk.board.next_due() == desk.now + LEASE
    assert desk.passing(LEASE) == ["requeued"]


def test_a_sign_of_life_of_somebody_else_changes_nothing(desk: Desk) -> None:
    entry, _ = desk.begun()
    due = desk.board.next_due()
    for token in ("", "token-9"):
        with pytest.raises(LeaseLostError):
            desk.board.heartbeat(entry, token, now=500)
    assert desk.board.next_due() == due


# ---- ends from this side ----


@pytest.mark.parametrize(
    ("effect", "phase", "state"),
    [
        ("write", "pending", "withdrawn"),
        ("write", "leased", "withdrawn"),
        ("write", "starting", "withdrawn"),
        ("write", "started", "unknown"),
        ("write", "shown", "unknown"),
        ("read", "shown", "withdrawn"),
        ("read", "started", "withdrawn"),
        ("idempotent", "started", "withdrawn"),
    ],
)
def test_withdrawing_ends_a_task_at_once(desk: Desk, effect: str, phase: str, state: str) -> None:
    entry = desk.put(effect=effect)
    if phase == "shown":
        desk.board.hand_out(entry)
    elif phase != "pending":
        desk.claim()
    if phase == "starting":
        desk.board.start(entry, entry.token, now=0)
    if phase == "started":
        desk.start(entry)
    token = entry.token
    assert desk.board.withdraw(entry, "the run was ended", wall=WALL)
    assert entry.state == state
    assert entry.end.had_started is (phase in ("started", "shown"))
    assert desk.board.next_due() is None
    assert not desk.board.withdraw(entry, "again", wall=WALL)
    assert desk.claim() is None
    if token:
        assert desk.board.heartbeat(entry, token, now=1) is False
        with pytest.raises(LeaseLostError):
            desk.board.start(entry, token, now=1)


def test_a_result_for_what_was_withdrawn_is_refused(desk: Desk) -> None:
    entry, token = desk.begun()
    desk.board.withdraw(entry, "stop", wall=WALL)
    with pytest.raises(LeaseLostError, match="withdrawn: stop"):
        desk.complete(entry, token)
    assert entry.result is None


def test_a_task_times_out_whoever_has_it(desk: Desk) -> None:
    entries = [desk.put("waiting"), desk.put("taken", effect="write", lease_ms=10**6)]
    assert desk.claim() is entries[0]
    assert desk.board.release(entries[0], entries[0].token, wall=WALL)
    held = desk.claim(), desk.claim()
    assert held == (entries[0], entries[1])
    desk.board.release(entries[0], entries[0].token, wall=WALL)
    desk.start(entries[1])
    assert desk.passing(TIMEOUT) == ["ended", "ended"]
    assert [entry.state for entry in entries] == ["timed_out", "timed_out"]
    assert [entry.end.had_started for entry in entries] == [False, True]
    assert desk.board.heartbeat(entries[1], entries[1].token, now=desk.now) is False


def test_a_late_result_of_a_write_that_timed_out_is_kept_and_its_end_stays(desk: Desk) -> None:
    entry, token = desk.begun(effect="write", lease_ms=10**6)
    desk.passing(TIMEOUT)
    assert desk.complete(entry, token)
    assert not desk.complete(entry, token, BROKEN)
    assert (entry.state, entry.result) == (TaskState.TIMED_OUT, DONE)


def test_a_late_result_of_a_read_that_timed_out_is_refused(desk: Desk) -> None:
    entry, token = desk.begun(lease_ms=10**6)
    desk.passing(TIMEOUT)
    with pytest.raises(LeaseLostError):
        desk.complete(entry, token)


def test_the_host_may_complete_what_nobody_has_taken(desk: Desk) -> None:
    entry = desk.put(effect="write")
    assert desk.board.complete_by_host(entry, DONE, wall=WALL) is True
    assert desk.board.complete_by_host(entry, BROKEN, wall=WALL) is None, "said before"
    assert (entry.state, entry.result, entry.worker) == (TaskState.COMPLETED, DONE, "host")
    assert desk.claim() is None


def test_the_host_takes_a_task_from_the_worker_that_has_it(desk: Desk) -> None:
    entry, token = desk.begun()
    assert desk.board.complete_by_host(entry, DONE, wall=WALL) is True
    with pytest.raises(LeaseLostError):
        desk.complete(entry, token)


def test_the_host_cannot_complete_what_has_ended(desk: Desk) -> None:
    done, token = desk.begun("done")
    desk.complete(done, token)
    late = desk.put("late")
    gone = desk.put("gone")
    desk.board.withdraw(gone, "stop", wall=WALL)
    desk.passing(TIMEOUT)
    answers = [desk.board.complete_by_host(entry, DONE, wall=WALL) for entry in (done, late, gone)]
    assert answers == [False, False, False]


def test_the_host_may_settle_what_is_unknown(desk: Desk) -> None:
    entry, _ = desk.begun(effect="write")
    desk.passing(LEASE)
    assert desk.board.complete_by_host(entry, BROKEN, wall=WALL) is True
    assert entry.state is TaskState.FAILED


def test_a_worker_may_complete_what_it_has_not_started(desk: Desk) -> None:
    entry = desk.put()
    desk.claim()
    assert desk.complete(entry, entry.token, BROKEN)
    assert entry.end.reason == "no such file"


def test_giving_back_what_has_started_is_refused(desk: Desk) -> None:
    entry, token = desk.begun()
    with pytest.raises(ConflictError, match="has started"):
        desk.board.release(entry, token, wall=WALL)
    assert not desk.board.release(entry, "token-9", wall=WALL)
    assert entry.state is TaskState.STARTED


# ---- the same id again ----


def test_an_offer_of_a_task_that_is_live_is_that_task(desk: Desk) -> None:
    entry = desk.put()
    assert desk.board.offer(order(payload={"command": "other"}), seq=9, wall=WALL) is entry
    assert entry.view(1).payload == {"command": "ls"}


def test_an_offer_of_a_read_that_has_ended_is_its_next_attempt(desk: Desk) -> None:
    desk.put()
    desk.passing(TIMEOUT)
    again = desk.put()
    assert (again.attempt, again.state) == (2, TaskState.PENDING)
    assert desk.board.get("t") is again


def test_a_write_that_had_begun_is_never_offered_again(desk: Desk) -> None:
    desk.begun(effect="write")
    desk.passing(LEASE)
    with pytest.raises(ConflictError, match="never made twice"):
        desk.board.offer(order(effect="write"), seq=9, wall=WALL)


def test_a_payload_that_is_no_json_is_refused_before_anything_changes(desk: Desk) -> None:
    with pytest.raises(UnstorableError):
        desk.board.offer(order(payload={"what": object()}), seq=1, wall=WALL)
    assert desk.board.get("t") is None


def test_nobody_can_change_a_payload_from_outside(desk: Desk) -> None:
    given = {"command": "ls"}
    entry = desk.put(payload=given)
    given["command"] = "rm"
    entry.view(1).payload["command"] = "rm"
    assert entry.view(1).payload == {"command": "ls"}


# ---- bounds ----


def test_what_the_host_completes_by_polling_leaves_nothing_behind(desk: Desk) -> None:
    for number in range(4 * STALE_MAX):
        entry = desk.put(f"t{number}")
        desk.board.complete_by_host(entry, DONE, wall=WALL)
    assert not desk.board._lines  # noqa: SLF001 - what must not grow
    assert len(desk.board._timers) <= STALE_MAX + 2  # noqa: SLF001 - the same
    assert not desk.board.by_owner


def test_a_bounded_number_of_ends_is_remembered(desk: Desk) -> None:
    for number in range(FINISHED_MAX + 5):
        entry = desk.put(f"t{number}")
        desk.board.withdraw(entry, "stop", wall=WALL)
    assert len(desk.board.finished) == FINISHED_MAX
    assert desk.board.get("t0") is None


def test_dropping_a_session_leaves_the_tasks_of_others(desk: Desk) -> None:
    desk.put("mine")
    other = desk.put("theirs", owner=Owner("acme", "main", "other"))
    assert [entry.task_id for entry in desk.board.drop(OWNER)] == ["mine"]
    assert desk.claim() is other
    assert desk.claim() is None
    assert desk.board.get("mine") is None


def test_what_the_table_does_not_list_is_refused(desk: Desk) -> None:
    entry, token = desk.begun()
    desk.complete(entry, token)
    for change in {change for _, change in TASK_TRANSITIONS}:
        with pytest.raises(ConflictError, match="not possible"):
            desk.board._change(entry, change)  # noqa: SLF001 - the one place that changes a state


# ---- rows ----


def same(one: TaskEntry, other: TaskEntry) -> bool:
    skipped = {"timeout_due", "lease_due", "lease_number", "published"}
    names = [name for name in TaskEntry.__slots__ if name not in skipped]
    return all(getattr(one, name) == getattr(other, name) for name in names)


def test_a_row_gives_back_the_task(desk: Desk) -> None:
    live, _ = desk.begun("live", "write", correlation_id="c-1", run_id="r", call_id="call-1", workspace="/w")
    done, token = desk.begun("done", "idempotent")
    desk.complete(done, token, ExternalTaskResult(success=False, result={"a": [1, None]}, error="é\ud800"))
    assert same(decode_task(live.to_row()), live)
    assert done.payload == "{}", "the payload of what has ended is not kept"
    assert same(decode_task(done.to_row()), done)
    assert (live.to_row().live, done.to_row().live) == (1, 0)


def test_a_lease_that_nobody_has_begun_under_is_not_stored(desk: Desk) -> None:
    entry = desk.put()
    desk.claim()
    row = entry.to_row()
    assert row.state == "pending"
    assert entry.token not in row.body


def test_a_restart_gives_a_started_task_its_lease_again(desk: Desk) -> None:
    entry, token = desk.begun(effect="write")
    desk.passing(LEASE - 1)
    later = Desk()
    later.now = 500
    again = decode_task(entry.to_row())
    later.board.load(again, now=500)
    assert later.passing(LEASE - 1) == []
    assert later.board.heartbeat(again, token, now=later.now)
    assert later.complete(again, token)


def test_after_a_restart_a_pending_task_can_be_claimed_when_somebody_still_wants_it(desk: Desk) -> None:
    entry = desk.put()
    later = Desk()
    later.board.load(decode_task(entry.to_row()), now=0)
    assert later.claim() is None
    later.board.publish(entry.task_id, now=0)
    found = later.claim()
    assert found is not None
    assert found.view(1).payload == {"command": "ls"}
    assert found.timeout_due == TIMEOUT


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lane": 1}, "lane should be str"),
        ({"timeout_ms": "60"}, "timeout_ms should be int"),
        ({"timeout_ms": 0}, "less than 1"),
        ({"attempt": True}, "attempt should be int"),
        ({"effect": "maybe"}, "no effect 'maybe'"),
        ({"payload": "[1]"}, "payload is no JSON object"),
        ({"payload": "{"}, "payload is no JSON object"),
        ({"payload": None}, "payload should be str"),
        ({"token": ""}, "nobody has its lease"),
        ({"result": [1, 2]}, "success, result and error"),
        ({"result": "x"}, "result should be list"),
    ],
)
def test_a_damaged_row_is_refused_and_named(desk: Desk, change: dict[str, Any], says: str) -> None:
    entry, _ = desk.begun(effect="write")
    row = entry.to_row()
    body = json.loads(row.body) | change
    with pytest.raises(StoreCorruptError, match=says):
        decode_task(row._replace(body=json.dumps(body)))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"state": "leased"}, "cannot be 'leased'"),
        ({"state": "completed", "live": 0}, "has no result"),
        ({"state": "completed"}, "completed and live"),
        ({"kind": "turn"}, "it is no task"),
        ({"body": "no"}, "no JSON"),
    ],
)
def test_a_row_that_contradicts_itself_is_refused(desk: Desk, fields: dict[str, Any], says: str) -> None:
    entry = desk.put()
    with pytest.raises(StoreCorruptError, match=says):
        decode_task(entry.to_row()._replace(**fields))


def test_a_row_of_a_newer_version_is_left_alone(desk: Desk) -> None:
    row = desk.put().to_row()
    with pytest.raises(StoreVersionError):
        decode_task(row._replace(body=row.body.replace('"v":1', '"v":2')))
