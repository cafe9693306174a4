"""The parts of the kernel, one by one, against the simplest thing that could be right."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.errors import ConfigError, UnknownLaneError
from laneway.kernel.histograms import Histogram
from laneway.kernel.jobs import Entry, backoff_ms
from laneway.kernel.lanes import Lane, TokenBucket
from laneway.kernel.protocol import JobSpec
from laneway.kernel.queues import Fair, Fifo, Shares, Waiting
from laneway.kernel.registry import NAME_MAX, Registry, check_name
from laneway.kernel.timers import Alarm, Timers
from laneway.records import Boost, JobId, LaneConfig, Priority, RateLimit, RetryPolicy
from tests.property.worlds import effort

DURATIONS = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 10_000_000)), min_size=1, max_size=200)
LANE = Lane("a", LaneConfig(), order=(0, "a"), configured=True, now=0)


def entry_at(place: int, *, spec: JobSpec | None = None, now: int = 0, prefix: str = "j") -> Entry:
    entry = Entry()
    entry.admit(JobId(f"{prefix}{place}"), (LANE,), spec or JobSpec(), place, now)
    return entry


# ---- histograms ---------------------------------------------------------------------------------------------


def filled(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(values=DURATIONS, percent=st.integers(1, 100))
def test_a_percentile_is_at_most_a_thirty_second_too_large(values: list[int], percent: int) -> None:
    exact = sorted(values)[-(-len(values) * percent // 100) - 1]
    assert exact <= filled(values).percentile(percent) <= exact + exact // 32


@given(values=DURATIONS)
def test_counts_sums_and_extremes_of_a_histogram_are_exact(values: list[int]) -> None:
    stats = filled(values).stats()
    assert (stats.count, stats.sum_ms, stats.max_ms) == (len(values), sum(values), max(values))
    assert stats.p50_ms <= stats.p90_ms <= stats.p95_ms <= stats.p99_ms <= stats.max_ms


@given(one=DURATIONS, other=DURATIONS)
def test_merged_histograms_equal_one_that_saw_everything(one: list[int], other: list[int]) -> None:
    merged = filled(one)
    merged.merge(filled(other))
    assert merged.stats() == filled(one + other).stats()


def test_an_empty_histogram_has_zeros() -> None:
    assert Histogram().percentile(99) == 0
    merged = filled([7])
    merged.merge(Histogram())
    assert merged.stats() == filled([7]).stats()


# ---- back-off -----------------------------------------------------------------------------------------------


@given(
    initial=st.integers(0, 10_000),
    factor=st.floats(1, 1000),
    most=st.integers(0, 100_000),
    jitter=st.floats(0, 1),
    retry=st.integers(1, 1_000_000),
    draw=st.floats(0, 1),
)
def test_backoff_stays_within_its_bounds(
    initial: int, factor: float, most: int, jitter: float, retry: int, draw: float
) -> None:
    policy = RetryPolicy.exponential(1, initial, factor=factor, max_delay_ms=most, jitter=jitter)
    delay = backoff_ms(policy, retry=retry, jitter=draw)
    whole = backoff_ms(policy, retry=retry, jitter=0.0)
    assert int(whole * (1 - jitter)) - 1 <= delay
    assert 0 <= delay <= whole <= most
    assert whole >= min(initial, most)
    assert whole <= backoff_ms(policy, retry=retry + 1, jitter=0.0)


@given(delay=st.integers(0, 100_000), retry=st.integers(1, 100))
def test_a_fixed_delay_is_the_same_each_time(delay: int, retry: int) -> None:
    assert backoff_ms(RetryPolicy.fixed(3, delay), retry=retry, jitter=0.7) == delay


def test_exponential_delays_are_100_200_400_and_so_on() -> None:
    policy = RetryPolicy.exponential(9)
    assert [backoff_ms(policy, retry=n, jitter=0.5) for n in (1, 2, 3, 9, 10)] == [100, 200, 400, 25_600, 30_000]


# ---- rate limits --------------------------------------------------------------------------------------------


@given(
    count=st.integers(1, 50),
    window=st.integers(1, 100_000),
    steps=st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 4)), max_size=40),
)
def test_a_bucket_equals_exact_fractions(count: int, window: int, steps: list[tuple[int, int]]) -> None:
    bucket = TokenBucket(RateLimit(count=count, window_ms=window), 1000)
    tokens, now = Fraction(count), 1000
    for pause, wanted in steps:
        now += pause
        tokens = min(Fraction(count), tokens + Fraction(pause * count, window))
        for _ in range(wanted):
            missing = max(Fraction(0), 1 - tokens) * window / count
            assert bucket.wait_ms(now) == -(-missing.numerator // missing.denominator)
            if tokens >= 1:
                bucket.take(now)
                tokens -= 1
        assert bucket.is_full(now) == (tokens == count)


# ---- timers -------------------------------------------------------------------------------------------------


@given(
    dues=st.lists(st.tuples(st.integers(0, 100), st.sampled_from(list(Alarm)), st.booleans()), max_size=60),
    now=st.integers(0, 100),
)
def test_timers_give_what_is_due_in_order_and_never_what_is_stale(
    dues: list[tuple[int, Alarm, bool]], now: int
) -> None:
    timers = Timers()
    expected = []
    owners = []
    for number, (due, alarm, is_stale) in enumerate(dues):
        owner = entry_at(number)
        timers.set(due, alarm, owner)
        owners.append((owner, is_stale))
        if not is_stale:
            expected.append((due, number, alarm, owner))
    for owner, is_stale in owners:
        owner.phase += is_stale
    assert timers.next_due() == min((due for due, *_ in expected), default=None)
    for _, _, _, owner in expected:
        assert timers.due_of(owner) is not None
    found = []
    while (one := timers.pop_due(now)) is not None:
        found.append(one)
    assert found == [(alarm, owner) for due, _, alarm, owner in sorted(expected, key=lambda e: e[:2]) if due <= now]


def test_stale_timers_do_not_pile_up() -> None:
    timers = Timers()
    owner = entry_at(1)
    for due in range(5000):
        owner.phase += 1
        timers.set(due, Alarm.WAIT, owner)
    assert len(timers.heap) <= 1025
    assert timers.next_due() == 4999


# ---- lines --------------------------------------------------------------------------------------------------


@given(places=st.lists(st.integers(0, 1000), unique=True, max_size=50), source=st.data())
def test_a_fifo_is_a_list_sorted_by_place(places: list[int], source: st.DataObject) -> None:
    fifo = Fifo()
    inside: list[Entry] = []
    for place in places:
        entry = entry_at(place)
        fifo.push(entry)
        inside.append(entry)
        while inside and source.draw(st.integers(0, 2)) == 0:
            gone = source.draw(st.sampled_from(inside))
            gone.spot = None
            inside.remove(gone)
            if source.draw(st.booleans()):
                fifo.compact()
        assert fifo.head() is min(inside, key=lambda e: e.place, default=None)
    drained = []
    while (head := fifo.head()) is not None:
        head.spot = None
        drained.append(head)
    assert drained == sorted(inside, key=lambda e: e.place)


TENANTS = st.sampled_from(["x", "y", "z"])
WEIGHTS = {"x": 1.0, "y": 2.0, "z": 0.5}


class FairModel:
    """Fair share with exact fractions: the least virtual time first, then the place."""

    def __init__(self) -> None:
        self.times: dict[str, Fraction] = {}
        self.now = Fraction(0)
        self.waiting: list[Entry] = []

    def join(self, entry: Entry) -> None:
        who = entry.spec.tenant
        if all(other.spec.tenant != who for other in self.waiting):
            self.times[who] = max(self.times.get(who, Fraction(0)), self.now)
        self.waiting.append(entry)

    def head(self) -> Entry | None:
        return min(self.waiting, key=lambda e: (self.times[e.spec.tenant], e.place), default=None)

    def start(self, entry: Entry) -> None:
        who = entry.spec.tenant
        self.waiting.remove(entry)
        self.now = max(self.now, self.times[who])
        self.times[who] += 1 / Fraction(WEIGHTS[who])


@given(commands=st.lists(st.one_of(TENANTS, st.sampled_from(["start", "start", "leave", "compact"])), max_size=80))
def test_fair_share_equals_virtual_time_in_fractions(commands: list[str]) -> None:
    shares = Shares()
    fair = Fair(shares, "tenant")
    model = FairModel()
    for number, command in enumerate(commands):
        head = model.head()
        if command == "compact":
            fair.compact()
        elif command in WEIGHTS:
            entry = entry_at(number, spec=JobSpec(tenant=command, weight=WEIGHTS[command]))
            shares.join(command, WEIGHTS[command])
            fair.push(entry)
            model.join(entry)
        elif head is not None:
            gone = head if command == "start" else model.waiting[-1]
            gone.spot = None
            if command == "start":
                shares.charge(gone.spec.tenant)
                model.start(gone)
            else:
                model.waiting.remove(gone)
            shares.leave(gone.spec.tenant)
        assert fair.head() is model.head()


def test_those_who_waited_share_by_weight() -> None:
    shares = Shares()
    fair = Fair(shares, "tenant")
    for number in range(300):
        who = "xyz"[number % 3]
        shares.join(who, WEIGHTS[who])
        fair.push(entry_at(number, spec=JobSpec(tenant=who)))
    served = dict.fromkeys("xyz", 0)
    for _ in range(140):
        head = fair.head()
        assert head is not None
        head.spot = None
        served[head.spec.tenant] += 1
        shares.charge(head.spec.tenant)
        shares.leave(head.spec.tenant)
    assert served == {"x": 40, "y": 80, "z": 20}


def test_a_start_costs_the_same_however_many_were_before_it() -> None:
    asked = 0

    class Counted(Shares):
        def time_of(self, who: str) -> float:
            nonlocal asked
            asked += 1
            return super().time_of(who)

    shares = Counted()
    fair = Fair(shares, "tenant")
    for number in range(1_000):  # each starts before the next one comes, as in a lane that has room
        who = "xy"[number % 2]
        shares.join(who, 1.0)
        fair.push(entry_at(number, spec=JobSpec(tenant=who)))
        head = fair.head()
        assert head is not None
        head.spot = None
        shares.charge(who)
        shares.leave(who)
    assert asked <= 5_000


# ---- everything that waits in a lane --------------------------------------------------------------------------

SPECS = st.builds(
    JobSpec,
    priority=st.sampled_from(list(Priority)),
    deadline_ms=st.one_of(st.none(), st.integers(1, 100)),
    tenant=TENANTS,
)


def level_of(entry: Entry, now: int, ageing: int | None, boost: Boost | None) -> tuple[int, int]:
    level = int(entry.spec.priority)
    aged = 0 if ageing is None else min(2 - level, (now - entry.queued_at) // ageing)
    deadline = entry.spec.deadline_ms
    if boost is None or (deadline is None and boost.deadline_ms is None):
        return level + aged, aged
    whole = deadline if deadline is not None else boost.deadline_ms or 0
    passed = now - entry.submitted_at
    steps = [s.levels for s in boost.steps if passed >= whole - whole * s.remaining_percent // 100]
    return level + aged + max(steps, default=0), aged


def expected_head(
    waiting: list[Entry], now: int, level: Callable[[Entry], tuple[int, int]], *, native_turn: bool
) -> Entry | None:
    if not waiting:
        return None
    top = max(level(entry)[0] for entry in waiting)
    able = [entry for entry in waiting if level(entry)[0] == top]
    wanted = [entry for entry in able if entry.wanted]
    native = [entry for entry in able if level(entry)[1] == 0]
    if not wanted and top == Priority.USER and native_turn and native:
        able = native
    return min(wanted or able, key=lambda entry: entry.place)


@effort(150)
@given(
    ageing=st.sampled_from([None, 10, 30]),
    boost=st.sampled_from([None, Boost.standard(), Boost.aggressive(40)]),
    source=st.data(),
)
def test_a_lanes_order_is_level_then_wanted_then_place(
    ageing: int | None, boost: Boost | None, source: st.DataObject
) -> None:
    queue = Waiting(ageing_ms=ageing, boost=boost, fair_by=None)
    waiting: list[Entry] = []
    now, native_turn = 0, False
    for number in range(source.draw(st.integers(1, 30))):
        now += source.draw(st.sampled_from([0, 0, 1, 10, 35]))
        action = source.draw(st.sampled_from(["push", "push", "start", "leave", "want"]))
        if action == "push":
            entry = entry_at(number, spec=source.draw(SPECS), now=now)
            queue.push(entry, now)
            waiting.append(entry)
        elif waiting and action == "want":
            entry = source.draw(st.sampled_from(waiting))
            entry.wanted = 1 - entry.wanted
            queue.prefer(entry)
        elif waiting:
            head = queue.head(now)
            assert head is not None
            gone = head if action == "start" else source.draw(st.sampled_from(waiting))
            level, aged = level_of(gone, now, ageing, boost)
            if action == "start" and level == Priority.USER:
                native_turn = aged > 0
            queue.remove(gone, started=action == "start")
            waiting.remove(gone)

        def level_now(entry: Entry, at: int = now) -> tuple[int, int]:
            return level_of(entry, at, ageing, boost)

        assert queue.head(now) is expected_head(waiting, now, level_now, native_turn=native_turn)
        assert queue.count == len(waiting)
        assert queue.oldest_at() == min((entry.queued_at for entry in waiting), default=None)


def test_a_job_that_was_wanted_for_a_while_is_listed_once() -> None:
    queue = Waiting(ageing_ms=None, boost=None, fair_by=None)
    entries = [entry_at(place, spec=JobSpec(priority=Priority.BACKGROUND)) for place in (1, 2)]
    for entry in entries:
        queue.push(entry, 0)
    for wanted in (1, 0):
        entries[1].wanted = wanted
        queue.prefer(entries[1])
    assert list(queue) == entries


# ---- names ----------------------------------------------------------------------------------------------------


def registry_of(*names: str, creates_unknown: bool = False) -> Registry:
    lanes = {name: LaneConfig() for name in names}
    return Registry(lanes, groups={}, max_concurrent=None, threads_max=4, creates_unknown=creates_unknown)


@given(name=st.text(max_size=20))
def test_a_name_is_either_refused_or_makes_a_lane_that_is_forgotten_again(name: str) -> None:
    registry = registry_of("a", creates_unknown=True)
    good = bool(name) and name.isprintable() and name == name.strip() and all(name.split("/"))
    if not good:
        with pytest.raises(ConfigError):
            check_name(name)
        with pytest.raises(ConfigError):
            registry.find(name, 0)
        return
    check_name(name)
    lane = registry.find(name, 0)
    assert registry.find(name, 0) is lane
    registry.retire_if_idle(lane, 0)
    assert list(registry.lanes) == ["a"]


@given(
    key=st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=10),
    scope=st.sampled_from(["", "s1/", "s1/s2/"]),
)
def test_session_lanes_appear_by_themselves_everywhere_and_are_exclusive(key: str, scope: str) -> None:
    registry = registry_of("a")
    lane = registry.find(f"{scope}session:{key}", 0)
    assert (lane.cap, lane.config.exclusive) == (1, True)
    registry.retire_if_idle(lane, 0)
    assert list(registry.lanes) == ["a"]
    assert list(registry.retired) == [("*/" if scope else "") + "session:*"]


def test_unknown_names_are_refused_with_a_suggestion() -> None:
    registry = registry_of("execute", "query")
    with pytest.raises(UnknownLaneError, match="did you mean 'execute'"):
        registry.find("exceute", 0)
    with pytest.raises(ConfigError, match="session key"):
        registry.find("session:", 0)
    with pytest.raises(ConfigError):
        registry.find("x" * (NAME_MAX + 1), 0)
    assert registry.find("s1/execute", 0).config == registry.configs["execute"]
    assert list(registry.lanes) == ["execute", "query", "s1/execute"]
