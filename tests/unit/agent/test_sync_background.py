"""The machinery below the synchronous agents: the thread, calls through a portal, values that come back."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import signal
import threading
import traceback
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from laneway.errors import ClosedError, UsageError
from laneway.sync import background, handover
from laneway.sync.background import LoopThread, Portal
from laneway.sync.handover import Ended, Handover
from laneway.sync.streams import Stream
from laneway.sync.twins import Twin, awaited, on_loop

PATIENCE_S = 55.0  # of a wait that only a bug makes long
STUBBORN_S = 0.01


class Source(AsyncIterator[int]):
    """Counts, and knows whether it was left."""

    def __init__(self, count: int, error: Exception | None = None, *, hold: bool = False) -> None:
        self.given = 0
        self.left = threading.Event()
        self._count = count
        self._error = error
        self._hold = hold

    async def __anext__(self) -> int:
        if self.given < self._count:
            self.given += 1
            return self.given
        if self._error is not None:
            raise self._error
        if self._hold:
            await asyncio.Event().wait()
        raise StopAsyncIteration


class Owner:
    """Something asynchronous with a close."""

    def __init__(self) -> None:
        self.closed = 0
        self.gate = asyncio.Event()
        self.entered = threading.Event()
        self.portal = Portal(self.close)

    async def close(self) -> None:
        self.closed += 1

    async def hold(self) -> str:
        self.entered.set()
        await self.gate.wait()
        return "let go"

    def stream(self, source: Source) -> Stream[int]:
        handover = self.portal.call("stream()", lambda: self.portal.follow(source, source.left.set))
        return Stream(self.portal, handover)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt may come just before a wait begins: it is noticed at the next look up."""
    monkeypatch.setattr(handover, "LOOK_UP_S", 0.01)


@pytest.fixture
def owner() -> Iterator[Owner]:
    one = Owner()
    yield one
    one.portal.close()
    assert background.running() is None
    assert not [thread for thread in threading.enumerate() if isinstance(thread, LoopThread)]


async def thread_of() -> threading.Thread:
    return threading.current_thread()


async def fail(error: BaseException) -> None:
    raise error


def interrupt_main() -> None:
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)


def in_thread(pool: ThreadPoolExecutor, owner: Owner) -> Future[str]:
    """Another thread waits for `hold`."""
    future = pool.submit(owner.portal.wait, "hold()", owner.hold)
    assert owner.entered.wait(PATIENCE_S)
    return future


# ---- the thread ----


def test_a_portal_that_was_never_used_starts_no_thread_and_closes_without_one() -> None:
    owner = Owner()
    owner.portal.close()
    assert background.running() is None
    assert owner.closed == 0
    with pytest.raises(ClosedError, match="this agent is closed"):
        owner.portal.wait("hold()", owner.hold)


def test_every_portal_shares_one_thread_and_the_last_close_ends_it() -> None:
    first, second = Owner(), Owner()
    thread = first.portal.wait("thread()", thread_of)
    assert second.portal.wait("thread()", thread_of) is thread
    first.portal.close()
    assert second.portal.wait("thread()", thread_of) is thread
    second.portal.close()
    assert not thread.is_alive()
    assert (first.closed, second.closed) == (1, 1)


def test_a_use_after_the_last_close_starts_another_thread(owner: Owner) -> None:
    before = Owner()
    ended = before.portal.wait("thread()", thread_of)
    before.portal.close()
    assert owner.portal.wait("thread()", thread_of) is not ended


def test_the_thread_is_a_daemon(owner: Owner) -> None:
    assert owner.portal.wait("thread()", thread_of).daemon


def test_no_thread_to_be_had_is_told_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(self: LoopThread) -> None:
        raise RuntimeError("can't start new thread")

    owner = Owner()
    with monkeypatch.context() as patch:
        patch.setattr(LoopThread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start"):
            owner.portal.wait("thread()", thread_of)
    assert background.running() is None
    gc.collect()  # an open loop would warn here
    assert owner.portal.wait("thread()", thread_of).is_alive()
    owner.portal.close()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_would_end_a_loop_reaches_its_caller_and_the_loop_lives_on(
    owner: Owner, kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    thread = owner.portal.wait("thread()", thread_of)
    with caplog.at_level(logging.WARNING, "laneway"), pytest.raises(kind):
        owner.portal.wait("fail()", fail, kind())
    assert owner.portal.wait("thread()", thread_of) is thread
    assert f"{kind.__name__} reached the event loop" in caplog.text


# ---- calls ----


def test_an_async_function_runs_on_the_loop_and_its_value_comes_back(owner: Owner) -> None:
    async def twice(value: int, *, plus: int) -> int:
        await asyncio.sleep(0)
        return 2 * value + plus

    assert owner.portal.wait("twice()", twice, 20, plus=2) == 42


def test_a_plain_function_runs_on_the_loop_too(owner: Owner) -> None:
    assert isinstance(owner.portal.call("thread()", threading.current_thread), LoopThread)


@pytest.mark.parametrize("error", [ValueError("mine"), StopIteration("mine"), StopAsyncIteration("mine")])
def test_an_error_of_a_plain_function_arrives_as_it_is(owner: Owner, error: Exception) -> None:
    def wrong() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        owner.portal.call("wrong()", wrong)
    assert caught.value is error


def test_an_error_arrives_unchanged_and_its_trace_shows_both_threads(owner: Owner) -> None:
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as caught:
        owner.portal.wait("fail()", fail, error)
    assert caught.value is error
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert names[0] == "test_an_error_arrives_unchanged_and_its_trace_shows_both_threads"
    assert names[-1] == "fail"
    assert error.__context__ is None


def test_an_error_is_freed_without_the_collector(owner: Owner) -> None:
    freed = threading.Event()

    class MineError(Exception):
        def __del__(self) -> None:
            freed.set()

    async def fail_here() -> None:
        raise MineError

    gc.disable()
    try:
        with contextlib.suppress(MineError):
            owner.portal.wait("fail_here()", fail_here)
        owner.portal.call("barrier()", lambda: None)
        assert freed.wait(PATIENCE_S)
    finally:
        gc.enable()


def test_wrong_arguments_are_an_error_of_the_call(owner: Owner) -> None:
    with pytest.raises(TypeError, match="unexpected keyword"):
        owner.portal.wait("thread()", thread_of, nonsense=1)  # type: ignore[call-arg]


def test_a_call_carries_the_context_of_its_caller(owner: Owner) -> None:
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace")

    async def read() -> str:
        return trace.get()

    trace.set("abc")
    assert owner.portal.wait("read()", read) == "abc"


def test_many_threads_call_at_once(owner: Owner) -> None:
    async def give(value: int) -> int:
        await asyncio.sleep(0)
        return value

    with ThreadPoolExecutor(16) as pool:
        values = list(pool.map(lambda value: owner.portal.wait("give()", give, value), range(500)))
    assert values == list(range(500))


def test_a_call_from_another_running_loop_works(owner: Owner) -> None:
    async def elsewhere() -> threading.Thread:
        return owner.portal.wait("thread()", thread_of)

    assert isinstance(asyncio.run(elsewhere()), LoopThread)


@pytest.mark.parametrize("way", ["wait", "call", "close", "next"])
def test_a_call_on_the_loop_itself_is_refused_and_does_not_hang(owner: Owner, way: str) -> None:
    stream = owner.stream(Source(1))

    async def tool() -> None:
        match way:
            case "wait":
                owner.portal.wait("Session.send()", thread_of)
            case "call":
                owner.portal.call("Session.pause()", threading.current_thread)
            case "close":
                owner.portal.close()
            case _:
                next(stream)

    with pytest.raises(UsageError, match="which would wait for itself") as caught:
        owner.portal.wait("tool()", tool)
    assert "plain def" in caught.value.hint
    assert list(stream) == [1]


def test_a_call_on_the_loop_through_an_unused_portal_is_refused_as_well(owner: Owner) -> None:
    other = Owner()

    async def tool() -> None:
        other.portal.wait("Session.send()", thread_of)

    with pytest.raises(UsageError, match=r"Session.send\(\) was called on the event loop"):
        owner.portal.wait("tool()", tool)


def test_a_thread_of_the_loop_may_call_while_somebody_waits_for_it(owner: Owner) -> None:
    async def tool() -> threading.Thread:
        return await asyncio.to_thread(owner.portal.wait, "thread()", thread_of)

    assert isinstance(owner.portal.wait("tool()", tool), LoopThread)


# ---- interrupts ----


def test_an_interrupted_wait_leaves_what_it_waited_for_going(owner: Owner) -> None:
    done = threading.Event()

    async def work() -> None:
        interrupt_main()
        await owner.gate.wait()
        done.set()

    with pytest.raises(KeyboardInterrupt):
        owner.portal.wait("work()", work)
    assert not done.is_set()
    owner.portal.call("set()", owner.gate.set)
    assert done.wait(PATIENCE_S)
    assert isinstance(owner.portal.wait("thread()", thread_of), LoopThread)


def test_what_an_interrupted_wait_has_left_ends_with_the_portal() -> None:
    owner = Owner()
    ended = threading.Event()

    async def work() -> None:
        interrupt_main()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        owner.portal.wait("work()", work)
    owner.portal.close()
    assert ended.is_set()


def test_the_error_of_something_nobody_waits_for_any_more_is_silent(
    owner: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        interrupt_main()
        await owner.gate.wait()
        raise ValueError("nobody hears this")

    with pytest.raises(KeyboardInterrupt):
        owner.portal.wait("work()", work)
    owner.portal.call("set()", owner.gate.set)
    for _ in range(3):
        owner.portal.wait("step()", asyncio.sleep, 0)
    gc.collect()
    assert not caplog.records


def test_an_interrupted_iteration_has_lost_nothing(owner: Owner) -> None:
    taken = threading.Event()

    class Interrupting(Source):
        async def __anext__(self) -> int:
            if self.given == 1:
                await asyncio.to_thread(taken.wait, PATIENCE_S)
                interrupt_main()
                await owner.gate.wait()
            return await super().__anext__()

    stream = owner.stream(Interrupting(3))

    def read_on() -> int:
        taken.set()
        return next(stream)

    assert next(stream) == 1
    with pytest.raises(KeyboardInterrupt):
        read_on()
    owner.portal.call("set()", owner.gate.set)
    assert list(stream) == [2, 3]


def test_an_interrupted_close_goes_on_and_a_second_close_waits_for_it() -> None:
    owner = Owner()
    gate = threading.Event()

    async def close() -> None:
        interrupt_main()
        await asyncio.to_thread(gate.wait, PATIENCE_S)
        owner.closed += 1

    owner.portal = Portal(close)
    thread = owner.portal.wait("thread()", thread_of)
    with pytest.raises(KeyboardInterrupt):
        owner.portal.close()
    with pytest.raises(ClosedError):
        owner.portal.wait("thread()", thread_of)
    gate.set()
    owner.portal.close()
    assert owner.closed == 1
    assert not thread.is_alive()


# ---- closing ----


def test_closing_twice_closes_once(owner: Owner) -> None:
    owner.portal.wait("thread()", thread_of)
    owner.portal.close()
    owner.portal.close()
    assert owner.closed == 1


def test_a_thread_that_waits_while_another_closes_is_told_that_it_is_closed(owner: Owner) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = in_thread(pool, owner)
        owner.portal.close()
        with pytest.raises(ClosedError):
            waiting.result(PATIENCE_S)


def test_what_the_owner_says_while_it_closes_reaches_those_who_wait() -> None:
    owner = Owner()

    async def close() -> None:
        owner.gate.set()

    owner.portal = Portal(close)
    with ThreadPoolExecutor(1) as pool:
        waiting = in_thread(pool, owner)
        owner.portal.close()
        assert waiting.result(PATIENCE_S) == "let go"


def test_an_error_of_the_owners_close_arrives_and_the_thread_ends_all_the_same() -> None:
    portal = Portal(lambda: fail(OSError("disk")))
    thread = portal.wait("thread()", thread_of)
    with pytest.raises(OSError, match="disk"):
        portal.close()
    assert not thread.is_alive()


def test_threads_that_close_together_all_wait_for_the_end(owner: Owner) -> None:
    owner.portal.wait("thread()", thread_of)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: owner.portal.close(), range(8))) == [None] * 8
    assert owner.closed == 1


def test_a_task_that_does_not_end_does_not_hold_up_the_close(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "LEFTOVERS_S", STUBBORN_S)
    owner = Owner()
    release = asyncio.Event()

    async def stubborn() -> None:
        owner.entered.set()
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()

    with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.ERROR, "laneway"):
        waiting = pool.submit(owner.portal.wait, "stubborn()", stubborn)
        assert owner.entered.wait(PATIENCE_S)
        other = Owner()
        other.portal.wait("thread()", thread_of)  # keeps the thread
        owner.portal.close()
        assert "did not end within" in caplog.text
        other.portal.call("set()", release.set)
        assert waiting.result(PATIENCE_S) is None
        other.portal.close()


def test_portals_that_open_and_close_on_many_threads_leave_nothing() -> None:
    def life(_: int) -> bool:
        owner = Owner()
        alive = owner.portal.wait("thread()", thread_of).is_alive()
        owner.portal.close()
        return alive

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(life, range(100)))
    assert background.running() is None
    assert not [thread for thread in threading.enumerate() if isinstance(thread, LoopThread)]


# ---- streams ----


def test_a_stream_gives_everything_in_order_and_ends(owner: Owner) -> None:
    source = Source(5000)
    stream = owner.stream(source)
    assert list(stream) == list(range(1, 5001))
    assert list(stream) == []
    assert source.left.wait(PATIENCE_S)


def test_a_slow_reader_stops_the_pump_and_reading_on_starts_it_again(owner: Owner) -> None:
    held_max = 8
    source = Source(100)
    handover: Handover[int] = owner.portal.call(
        "follow()", lambda: owner.portal.follow(source, source.left.set, held_max=held_max)
    )
    owner.portal.wait("step()", asyncio.sleep, 0)
    owner.portal.wait("step()", asyncio.sleep, 0)
    assert source.given == held_max + 1
    assert list(Stream(owner.portal, handover)) == list(range(1, 101))


def test_breaking_out_frees_the_stream_and_leaves_the_source(owner: Owner) -> None:
    source = Source(3, hold=True)
    for value in owner.stream(source):
        assert value == 1
        break
    assert source.left.wait(PATIENCE_S)


def test_a_stream_that_is_forgotten_before_its_first_step_leaves_the_source_too(owner: Owner) -> None:
    source = Source(0, hold=True)

    def make() -> None:
        owner.portal.follow(source, source.left.set).leave()

    owner.portal.call("make()", make)
    assert source.left.wait(PATIENCE_S)


def test_a_stream_that_was_left_is_at_its_end(owner: Owner) -> None:
    source = Source(3, hold=True)
    with owner.stream(source) as stream:
        assert next(stream) == 1
    assert list(stream) == []
    assert source.left.wait(PATIENCE_S)


def test_leaving_a_stream_wakes_a_thread_that_waits_for_it(owner: Owner) -> None:
    stream = owner.stream(Source(1, hold=True))
    assert next(stream) == 1
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, stream)
        stream.close()
        assert rest.result(PATIENCE_S) == []


def test_an_error_of_the_source_comes_after_what_was_given_before(owner: Owner) -> None:
    error = ValueError("cut")
    stream = owner.stream(Source(2, error))
    assert [next(stream), next(stream)] == [1, 2]
    with pytest.raises(ValueError, match="cut") as caught:
        next(stream)
    assert caught.value is error


def test_threads_that_share_a_stream_get_each_value_once_and_all_see_its_end(owner: Owner) -> None:
    stream = owner.stream(Source(2000))
    with ThreadPoolExecutor(4) as pool:
        parts = [future.result(PATIENCE_S) for future in [pool.submit(list, stream) for _ in range(4)]]
    assert sorted(value for part in parts for value in part) == list(range(1, 2001))


async def test_async_for_on_another_loop_does_not_block_it(owner: Owner) -> None:
    class Slow(Source):
        async def __anext__(self) -> int:
            if self.given == 1:
                await owner.gate.wait()
            return await super().__anext__()

    stream = owner.stream(Slow(3))
    assert await anext(stream) == 1
    waiting = asyncio.ensure_future(anext(stream))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    owner.portal.call("set()", owner.gate.set)
    assert await waiting == 2
    assert [value async for value in stream] == [3]


async def test_a_cancelled_async_taker_has_taken_nothing(owner: Owner) -> None:
    handover: Handover[int] = Handover(asyncio.get_running_loop())
    stream = Stream(owner.portal, handover)
    taker = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    handover.offer(1)  # it is woken ...
    taker.cancel()  # ... and cancelled before it could take
    with pytest.raises(asyncio.CancelledError):
        await taker
    assert await anext(stream) == 1


async def test_an_async_taker_that_was_cancelled_early_is_no_burden(owner: Owner) -> None:
    handover: Handover[int] = Handover(asyncio.get_running_loop())
    stream = Stream(owner.portal, handover)
    taker = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    taker.cancel()
    await asyncio.sleep(0)
    assert handover.offer(1)
    handover.end()
    assert [value async for value in stream] == [1]


def test_a_stream_may_be_read_on_the_background_loop_with_async_for(owner: Owner) -> None:
    stream = owner.stream(Source(3))

    async def tool() -> list[int]:
        return [value async for value in stream]

    assert owner.portal.wait("tool()", tool) == [1, 2, 3]


def test_closing_the_portal_ends_a_stream_that_goes_on_with_an_error_after_what_is_there() -> None:
    owner = Owner()
    stream = owner.stream(Source(3, hold=True))
    assert next(stream) == 1
    owner.portal.close()
    assert [next(stream), next(stream)] == [2, 3]
    with pytest.raises(ClosedError):
        next(stream)


def test_what_the_source_has_left_to_say_arrives_although_the_portal_closes_and_nobody_reads() -> None:
    owner = Owner()
    source = Source(5000)

    async def close() -> None:
        await asyncio.to_thread(source.left.wait, PATIENCE_S)

    owner.portal = Portal(close)
    stream = owner.stream(source)
    owner.portal.close()
    assert len(list(stream)) == 5000


def test_a_value_that_comes_after_the_reader_left_is_dropped(owner: Owner) -> None:
    async def play() -> bool:
        handover: Handover[int] = Handover(asyncio.get_running_loop(), held_max=1)
        handover.leave()
        offered = handover.offer(1) and handover.offer(2)
        with pytest.raises(Ended):
            handover.take()
        return offered

    assert owner.portal.wait("play()", play)


# ---- twins ----


class AsyncCounter:
    """What a twin is made of."""

    def __init__(self) -> None:
        self.total = 0

    async def add(self, number: int, *, times: int = 1) -> int:
        """Count on."""
        await asyncio.sleep(0)
        self.total += number * times
        return self.total

    def peek(self) -> tuple[int, bool]:
        """The total, and whether this is the loop's thread."""
        return self.total, isinstance(threading.current_thread(), LoopThread)


class Counter(Twin[AsyncCounter]):
    """The synchronous one."""

    add = awaited(AsyncCounter.add)
    peek = on_loop(AsyncCounter.peek)


def test_a_twin_has_the_same_methods_with_plain_results_and_the_same_words(owner: Owner) -> None:
    counter = Counter(owner.portal, AsyncCounter())
    assert counter.add(2, times=3) == 6
    assert counter.peek() == (6, True)
    assert (Counter.add.__name__, Counter.add.__doc__) == ("add", "Count on.")


def test_two_twins_of_one_thing_are_equal(owner: Owner) -> None:
    thing = AsyncCounter()
    one, same, other = (Counter(owner.portal, each) for each in (thing, thing, AsyncCounter()))
    assert {one, same} == {one}
    assert one != other
    assert one != thing


def test_a_refusal_names_the_method_of_the_twin(owner: Owner) -> None:
    counter = Counter(owner.portal, AsyncCounter())

    async def tool() -> None:
        counter.add(1)

    with pytest.raises(UsageError, match=r"^Counter\.add\(\) was called on the event loop"):
        owner.portal.wait("tool()", tool)
