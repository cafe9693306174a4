"""The book of workers: what is known of each, who is bounded, who is refused, and who is forgotten."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from laneway.errors import RateLimitedError, UsageError
from laneway.external import TaskState
from laneway.kernel.task_entries import TaskEntry, Wanted
from laneway.records import Effect
from laneway.rows import Owner
from laneway.runtime.worker_book import (
    ASKED_TEXT_MAX,
    FIRST_MAX,
    FORGET_MS,
    HOLD_MAX,
    NAMESAKES_MAX,
    QUIET_MS,
    REFUSE_AFTER,
    REFUSE_FIRST_MS,
    REFUSE_LAST_MS,
    WARY_AFTER,
    WORKERS_MAX,
    WorkerBook,
    WorkerRecord,
)


class Desk:
    """A book with a clock in hand, and tasks to hold."""

    def __init__(self) -> None:
        self.now = 1_000
        self.wall = 1_700_000_000_000
        self.book = WorkerBook(lambda: self.now, lambda: self.wall)

    def meet(self, name: str = "w", instance: str = "", **more: Any) -> WorkerRecord:
        about = {"instance": instance} if instance else {}
        return self.book.meet(name, about, **more)

    def give(self, record: WorkerRecord, task_id: str = "t") -> TaskEntry:
        entry = TaskEntry(
            owner=Owner("default", "default", "chat"),
            task_id=task_id,
            lane="execute",
            command_type="bash",
            payload="{}",
            timeout_ms=1_000,
            lease_ms=1_000,
            effect=Effect.READ,
            state=TaskState.LEASED,
            published=True,
            holder=record,
        )
        self.book.took(record, entry)
        return entry

    def strike(self, record: WorkerRecord, times: int = 1) -> None:
        for _ in range(times):
            self.now += 1  # what ends at one moment counts once
            self.book.lost(record, had_begun=False)


# ---- what is known ----


def test_a_worker_is_known_by_its_token_tenant_name_and_instance() -> None:
    on = Desk()
    one = on.meet("w", "i1", who="token")
    assert on.meet("w", "i1", who="token") is one
    others = [on.meet("w", "i2", who="token"), on.meet("w", "i1", who="other"), on.meet("w", "i1", tenant="acme")]
    assert len({id(each) for each in (one, *others)}) == len(on.book) == 4


def test_facts_are_kept_and_what_nobody_knows_is_passed_over() -> None:
    on = Desk()
    about = {"instance": "i", "concurrency": 4, "version": "1" * 900, "host": "box", "pid": 7, "mood": [1]}
    record = on.book.meet("w", about)
    assert (record.concurrency, record.version, record.host, record.pid) == (4, "1" * 200, "box", 7)


@pytest.mark.parametrize(
    "about",
    [
        {"concurrency": "many"},
        {"concurrency": True},
        {"pid": -1},
        {"pid": 10**30},
        {"host": 7},
        {"instance": ["i"]},
        ["instance"],
        "w",
    ],
)
def test_facts_that_make_no_sense_are_refused_and_change_nothing(about: Any) -> None:
    on = Desk()
    with pytest.raises(UsageError, match="about"):
        on.book.meet("w", about)
    assert len(on.book) == 0


def test_health_is_what_it_does_and_when_it_was_heard_of() -> None:
    on = Desk()
    record = on.meet()
    assert record.health(on.now) == "idle"
    record.waiting = 1
    assert record.health(on.now + 10 * QUIET_MS) == "waiting"
    record.waiting = 0
    entry = on.give(record)
    assert record.health(on.now + QUIET_MS) == "working"
    assert record.health(on.now + QUIET_MS + 1) == "quiet"
    entry.state = TaskState.COMPLETED
    assert record.health(on.now) == "idle"
    assert record.health(on.now + QUIET_MS + 1) == "quiet"


@pytest.mark.parametrize("how", ["ended", "given to another one", "its session is closed", "given back"])
def test_what_a_worker_has_no_more_is_not_counted(how: str) -> None:
    on = Desk()
    record = on.meet()
    entry = on.give(record)
    assert record.holds() == [entry]
    match how:
        case "ended":
            entry.state = TaskState.TIMED_OUT
        case "given to another one":
            entry.holder = on.meet("other", who="other")
        case "its session is closed":
            entry.published = False
        case _:
            entry.state = TaskState.PENDING
    assert record.holds() == []
    assert record.room == FIRST_MAX


def test_a_worker_that_was_heard_of_before_it_claims_is_the_one_that_claims() -> None:
    on = Desk()
    heard = on.meet("w")
    entry = on.give(heard)
    assert on.meet("w", "i1") is heard
    assert (heard.instance, heard.holds()) == ("i1", [entry])
    assert on.meet("w") is heard, "somebody of that name whose instance is not known is the one heard of last"
    assert [record.shares_name for record in on.book.records()] == [False]


# ---- two with one name ----


def test_two_at_work_with_one_name_share_it_and_that_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    on = Desk()
    one, two = on.meet("w", "i1"), None
    on.give(one)
    two = on.meet("w", "i2")
    two.waiting = 1
    on.meet("w", "i2")
    assert [record.shares_name for record in on.book.records()] == [True, True]
    assert caplog.messages == ["two workers are called 'w': 'i1' and 'i2'"]


def test_one_that_came_back_under_its_name_shares_it_with_nobody(caplog: pytest.LogCaptureFixture) -> None:
    on = Desk()
    on.meet("w", "before")  # it is gone, and has nothing
    on.give(on.meet("w", "after"))
    on.give(on.meet("w", "i1", who="another token"))
    assert not any(record.shares_name for record in on.book.records())
    assert caplog.messages == []


def test_of_one_name_only_so_many_are_kept_and_never_one_with_tasks_is_dropped() -> None:
    on = Desk()
    busy = on.meet("w", "busy")
    on.give(busy)
    for number in range(3 * NAMESAKES_MAX):
        on.now += 1
        on.meet("w", f"i{number}")
    assert len(on.book) == NAMESAKES_MAX
    assert on.meet("w", "busy") is busy
    kept = {record.instance for record in on.book.records()}
    assert f"i{3 * NAMESAKES_MAX - 1}" in kept
    assert "i0" not in kept


# ---- strikes ----


def test_after_some_leases_in_vain_a_worker_gets_one_task_at_a_time() -> None:
    on = Desk()
    record = on.meet()
    on.strike(record, WARY_AFTER - 1)
    assert record.room == FIRST_MAX
    on.strike(record)
    assert record.room == 1
    on.book.check(record)
    on.give(record)
    with pytest.raises(RateLimitedError, match="may not have more"):
        on.book.check(record)


@pytest.mark.parametrize("how", ["began", "completed", "failed"])
def test_whoever_begins_is_trusted_again(how: str) -> None:
    on = Desk()
    record = on.meet()
    on.strike(record, WARY_AFTER)
    if how == "began":
        on.book.began(record)
    else:
        on.book.ended(record, success=how == "completed")
    assert (record.in_vain, record.unstarted, record.room) == (0, WARY_AFTER, HOLD_MAX)


def test_a_lease_that_ended_after_a_start_is_no_strike() -> None:
    on = Desk()
    record = on.meet()
    for _ in range(20):
        on.book.lost(record, had_begun=True)
    assert (record.lost, record.unstarted, record.in_vain, record.room) == (20, 0, 0, FIRST_MAX)


def test_after_more_of_them_it_is_refused_longer_each_time_up_to_a_bound() -> None:
    on = Desk()
    record = on.meet()
    on.strike(record, REFUSE_AFTER - 1)
    on.book.check(record)
    waits = []
    for _ in range(12):
        on.strike(record)
        with pytest.raises(RateLimitedError, match="begun none of them") as refused:
            on.book.check(record)
        waits.append(refused.value.retry_after_ms)
        on.now += waits[-1]
        on.book.check(record)
    assert waits[:3] == [REFUSE_FIRST_MS, 2 * REFUSE_FIRST_MS, 4 * REFUSE_FIRST_MS]
    assert waits == sorted(waits)
    assert waits[-1] == REFUSE_LAST_MS


def test_an_answer_with_many_leases_that_was_lost_is_one_loss() -> None:
    on = Desk()
    record = on.meet()
    for _ in range(50):
        on.book.lost(record, had_begun=False)
    assert (record.unstarted, record.in_vain) == (50, 1)


def test_a_new_name_for_each_claim_does_not_help_whoever_never_begins() -> None:
    on = Desk()
    honest = on.meet("honest", who="fleet")
    on.book.began(honest)
    other = on.meet("other", who="another token")
    for number in range(REFUSE_AFTER):
        on.strike(on.meet(f"w{number}", who="fleet"))
    with pytest.raises(RateLimitedError, match="workers with your token have claimed 10 tasks in a row"):
        on.book.check(on.meet("brand new", who="fleet"))
    on.book.check(honest)
    on.book.check(other)
    assert (honest.room, other.room) == (HOLD_MAX, FIRST_MAX)


def test_workers_that_have_never_begun_hold_so_many_tasks_together() -> None:
    on = Desk()
    for number in range(HOLD_MAX):
        on.give(on.meet(f"w{number // FIRST_MAX}", who="fleet"), f"t{number}")
    fresh = on.meet("fresh", who="fleet")
    assert fresh.room == 0
    assert on.meet("fresh", who="another token").room == FIRST_MAX
    on.book.began(on.meet("w0", who="fleet"))  # what it has counts for itself now
    assert fresh.room == FIRST_MAX


def test_of_what_a_worker_asks_for_the_book_keeps_little() -> None:
    record = WorkerRecord(name="w")
    for number in range(40):
        record.asks(Wanted(frozenset({f"{number}-" + "x" * 190}), frozenset(f"{n:05d}" + "y" * 190 for n in range(20))))
    assert sum(len(each) for wanted in record.asked for each in (*wanted.lanes, *wanted.commands)) <= ASKED_TEXT_MAX
    record.asks(Wanted(frozenset(f"{n:05d}" + "y" * 190 for n in range(1_000)), labels=frozenset({"gpu"})))
    assert (record.lanes, record.labels) == ([], ["gpu"])


# ---- forgetting ----


def test_whoever_was_not_heard_of_for_long_is_forgotten_unless_it_has_or_waits_for_something() -> None:
    on = Desk()
    on.meet("gone")
    on.give(on.meet("busy"))
    on.meet("waiting").waiting = 1
    on.now += FORGET_MS
    assert [record.name for record in on.book.records()] == ["busy", "gone", "waiting"]
    on.now += 1
    assert [record.name for record in on.book.records()] == ["busy", "waiting"]
    on.meet("new")
    assert len(on.book) == 3


@pytest.mark.slow
def test_strangers_without_end_never_fill_the_book() -> None:
    on = Desk()
    busy = on.meet("busy")
    on.give(busy)
    for number in range(WORKERS_MAX + 2_000):
        on.meet(f"w{number}")
    assert len(on.book) <= WORKERS_MAX
    assert on.meet("busy") is busy
    assert on.meet("w5").first_seen_ms == on.wall


def test_a_worker_that_asks_for_each_lane_apart_is_listed_with_all_of_them() -> None:
    record = WorkerRecord(name="w")
    record.asks(Wanted(frozenset({"execute"}), frozenset({"bash"}), frozenset({"gpu"})))
    record.asks(Wanted(frozenset({"query"}), frozenset({"read"}), frozenset({"gpu"})))
    assert (record.lanes, record.commands, record.labels) == (["execute", "query"], ["bash", "read"], ["gpu"])
    record.asks(Wanted())
    assert (record.lanes, record.commands, record.labels) == ([], [], ["gpu"])


@pytest.mark.slow
def test_a_book_full_of_workers_that_wait_takes_no_more_and_is_not_read_again_for_each() -> None:
    on = Desk()
    for number in range(WORKERS_MAX):
        on.meet(f"w{number}").waiting = 1
    looked = Counter[str]()
    forget = on.book._forget  # noqa: SLF001 - how often it is done is what is bounded

    def counted() -> None:
        looked["times"] += 1
        forget()

    on.book._forget = counted  # type: ignore[method-assign] # noqa: SLF001 - the same
    for number in range(50):
        with pytest.raises(RateLimitedError, match="10,000 workers are known"):
            on.meet(f"more{number}")
    assert looked["times"] <= 1
    assert len(on.book) == WORKERS_MAX
    assert on.meet("w5").waiting == 1, "those who are known are served"
