"""The simulated loop: virtual time, repeatable schedules, and asyncio as it is documented under every one of them."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest

from laneway.sim.loop import SimDeadlockError, SimLoop, SimStalledError, SimUnhandledError, run_sim

SEEDS = range(200)
virtual_sleep = asyncio.sleep  # on the simulated loop this never waits: the rule against sleeping is about real time
Main = Callable[[], Coroutine[Any, Any, None]]


def sim_loop() -> SimLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    return loop


def check_every_seed(main: Main) -> None:
    """Run `main`, which asserts, under every seed and without a shuffle; a failure notes its seed."""
    for seed in SEEDS:
        run_sim(main(), seed=seed)
    run_sim(main(), seed=0, shuffle=False)


def trace(seed: int, *, shuffle: bool = True) -> list[str]:
    """What happens, in order, in a run that leans on everything that could differ from one process to the next."""
    lines: list[str] = []

    def note(what: str) -> None:
        lines.append(f"{asyncio.get_running_loop().time()!r} {what}")

    async def worker(name: str) -> None:
        for turn in range(3):
            note(f"{name} {turn}")
            await asyncio.sleep(0)
        await virtual_sleep(1)
        await asyncio.get_running_loop().run_in_executor(None, int, "1")
        note(f"{name} ends")

    async def victim(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            note(f"{name} cancelled")

    async def failing_group() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(victim(f"victim {number}"))
            await asyncio.sleep(0)
            raise ValueError

    async def main() -> None:
        loop = sim_loop()
        for number in range(10):
            loop.call_at(2.0, note, f"timer {number}")
        tasks = [loop.create_task(worker(f"worker {number}")) for number in range(5)]
        _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            note(f"pending {task.get_name()}")
        for each in asyncio.as_completed(tasks):
            await each
        await virtual_sleep(5)
        with pytest.raises(ExceptionGroup):
            await failing_group()
        note(f"steps {loop.steps}")

    run_sim(main(), seed=seed, shuffle=shuffle)
    return lines


def test_an_hour_passes_at_once() -> None:
    async def main() -> float:
        await virtual_sleep(3600)
        return asyncio.get_running_loop().time()

    assert run_sim(main(), seed=1) == 3600.0


def test_timers_fire_at_the_exact_number_they_were_set_to() -> None:
    async def main() -> list[float]:
        loop = sim_loop()
        fired: list[float] = []
        for when in (0.3, 0.1 + 0.2, 1e-12, 0.0, -1.0):
            loop.call_at(when, lambda: fired.append(loop.time()))
        await virtual_sleep(1)
        return fired

    assert run_sim(main(), seed=1) == [0.0, 0.0, 1e-12, 0.3, 0.1 + 0.2]


def test_cancelled_timers_do_not_move_time() -> None:
    async def main() -> float:
        loop = sim_loop()
        for timer in [loop.call_later(100 + number, print) for number in range(500)]:
            timer.cancel()
        await virtual_sleep(1)
        last = loop.call_later(50, print)
        loop.call_later(2, last.cancel)
        await virtual_sleep(3)
        return loop.time()

    assert run_sim(main(), seed=1) == 4.0


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_same_seed_repeats_the_trace(shuffle: bool) -> None:
    assert trace(7, shuffle=shuffle) == trace(7, shuffle=shuffle)


def test_another_seed_gives_another_trace() -> None:
    assert len({tuple(trace(seed)) for seed in range(10)}) == 10


@pytest.mark.slow
def test_the_trace_does_not_depend_on_the_process() -> None:
    """Neither hash seeds nor memory addresses may matter."""
    program = f"import runpy; print('\\n'.join(runpy.run_path({__file__!r})['trace'](7)))"
    settings = [{"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"}, {"PYTHONMALLOC": "malloc"}, {"PYTHONMALLOC": "debug"}]
    for setting in settings:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **setting}
        child = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
        assert child.stdout.splitlines() == trace(7)


def test_shuffling_changes_the_order_of_task_starts_and_simultaneous_timers() -> None:
    async def main() -> tuple[str, str]:
        started: list[str] = []
        fired: list[str] = []

        async def start(name: str) -> None:
            started.append(name)

        await asyncio.gather(*[start(name) for name in "abc"])
        for name in "abc":
            sim_loop().call_later(1, fired.append, name)
        await virtual_sleep(2)
        return "".join(started), "".join(fired)

    orders = [run_sim(main(), seed=seed) for seed in SEEDS]
    assert len({started for started, _ in orders}) == 6
    assert len({fired for _, fired in orders}) == 6
    assert run_sim(main(), seed=3, shuffle=False) == ("abc", "abc")


def test_plain_callbacks_and_the_callbacks_of_one_future_keep_their_order() -> None:
    async def main() -> None:
        loop = sim_loop()
        order: list[int] = []
        future = loop.create_future()
        for number in range(10):
            loop.call_soon(order.append, number)
            future.add_done_callback(lambda _, number=number: order.append(number + 100))  # type: ignore[misc]
        future.set_result(None)
        future.add_done_callback(lambda _: order.append(110))
        await virtual_sleep(1)
        assert [number for number in order if number < 100] == list(range(10))
        assert [number for number in order if number >= 100] == list(range(100, 111))

    check_every_seed(main)


def test_a_task_group_reports_the_error_of_an_awaited_child_once() -> None:
    async def main() -> None:
        async def fail() -> None:
            await virtual_sleep(1)
            raise ValueError("once")

        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.TaskGroup() as group:
                await group.create_task(fail())
        assert len(caught.value.exceptions) == 1

    check_every_seed(main)


async def task_group_waits_for_all_and_cancels_on_error() -> None:
    ended: list[str] = []

    async def child(name: str, *, fails: bool = False) -> None:
        try:
            await asyncio.sleep(0)
            if fails:
                raise ValueError(name)
            await virtual_sleep(1)
        finally:
            ended.append(name)

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(child(name))
    assert sorted(ended) == ["a", "b", "c"]

    async def group_with_a_failure() -> None:
        async with asyncio.TaskGroup() as group:
            for name in "def":
                group.create_task(child(name, fails=name == "e"))
            await virtual_sleep(10)

    with pytest.raises(ExceptionGroup) as caught:
        await group_with_a_failure()
    assert [str(error) for error in caught.value.exceptions] == ["e"]
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def timeout_cancels_only_what_is_late() -> None:
    async with asyncio.timeout(1):
        await virtual_sleep(0.5)
    start = sim_loop().time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await virtual_sleep(2)
    assert sim_loop().time() == start + 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1), asyncio.timeout(3):
            await virtual_sleep(5)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await virtual_sleep(1)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def event_wakes_every_waiter() -> None:
    event = asyncio.Event()
    waiters = [asyncio.create_task(event.wait()) for _ in range(5)]
    await asyncio.sleep(0)
    event.set()
    assert await asyncio.gather(*waiters) == [True] * 5


async def queue_passes_everything_once() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue(2)
    taken: list[int] = []

    async def produce(first: int) -> None:
        for number in range(first, first + 10):
            await queue.put(number)

    async def consume() -> None:
        while True:
            taken.append(await queue.get())
            try:
                await asyncio.sleep(0)
            finally:
                queue.task_done()

    consumers = [asyncio.create_task(consume()) for _ in range(3)]
    producers = [asyncio.create_task(produce(first)) for first in (0, 10, 20)]
    await asyncio.sleep(0)
    consumers.pop().cancel()
    await asyncio.gather(*producers)
    await queue.join()
    assert sorted(taken) == list(range(30))
    for consumer in consumers:
        consumer.cancel()


async def locks_and_semaphores_bound_the_holders() -> None:
    for guard, bound in ((asyncio.Lock(), 1), (asyncio.Semaphore(2), 2)):
        inside = 0

        async def hold(guard: asyncio.Lock | asyncio.Semaphore, bound: int) -> None:
            nonlocal inside
            async with guard:
                inside += 1
                assert inside <= bound
                try:
                    await asyncio.sleep(0)
                finally:
                    inside -= 1

        holders = [asyncio.create_task(hold(guard, bound)) for _ in range(8)]
        await asyncio.sleep(0)
        holders[3].cancel()
        results = await asyncio.gather(*holders, return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)


async def condition_hands_over() -> None:
    condition = asyncio.Condition()
    items: list[int] = []

    async def take() -> int:
        async with condition:
            await condition.wait_for(lambda: bool(items))
            return items.pop()

    takers = [asyncio.create_task(take()) for _ in range(4)]
    for number in range(4):
        async with condition:
            items.append(number)
            condition.notify()
    assert sorted(await asyncio.gather(*takers)) == [0, 1, 2, 3]


async def gather_keeps_the_order_of_its_arguments() -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return number * 2

    async def fail() -> int:
        await asyncio.sleep(0)
        raise ValueError("gathered")

    assert await asyncio.gather(*[double(number) for number in range(5)]) == [0, 2, 4, 6, 8]
    results = await asyncio.gather(double(1), fail(), return_exceptions=True)
    assert isinstance(results[1], ValueError)
    with pytest.raises(ValueError, match="gathered"):
        await asyncio.gather(double(1), fail())


async def shield_keeps_the_inner_task_running() -> None:
    async def inner() -> str:
        await virtual_sleep(1)
        return "kept"

    task = asyncio.create_task(inner())

    async def outer() -> str:
        return await asyncio.shield(task)

    waiting = asyncio.create_task(outer())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await task == "kept"


async def wait_tells_done_from_pending() -> None:
    tasks = [asyncio.create_task(virtual_sleep(number, number)) for number in (1, 2, 3)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert [task.result() for task in done] == [1]
    assert len(pending) == 2
    done, pending = await asyncio.wait(tasks, timeout=1.5)
    assert sorted(task.result() for task in done) == [1, 2]
    assert [await each for each in asyncio.as_completed(pending)] == [3]


async def wait_for_returns_or_times_out() -> None:
    assert await asyncio.wait_for(virtual_sleep(1, "in time"), 2) == "in time"
    forever = asyncio.create_task(asyncio.Event().wait())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(forever, 2)
    assert forever.cancelled()
    assert sim_loop().time() == 3.0


async def futures_carry_results_errors_and_cancellation() -> None:
    loop = sim_loop()
    result, error, cancelled = loop.create_future(), loop.create_future(), loop.create_future()
    loop.call_soon(result.set_result, 1)
    loop.call_later(1, error.set_exception, ValueError("carried"))
    loop.call_soon_threadsafe(cancelled.cancel)
    assert await result == 1
    with pytest.raises(ValueError, match="carried"):
        await error
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def a_cancelled_task_may_refuse() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "refused"
        return "woken"

    task = asyncio.create_task(stubborn())
    await virtual_sleep(1)
    task.cancel()
    assert await task == "refused"


@pytest.mark.parametrize(
    "main",
    [
        task_group_waits_for_all_and_cancels_on_error,
        timeout_cancels_only_what_is_late,
        event_wakes_every_waiter,
        queue_passes_everything_once,
        locks_and_semaphores_bound_the_holders,
        condition_hands_over,
        gather_keeps_the_order_of_its_arguments,
        shield_keeps_the_inner_task_running,
        wait_tells_done_from_pending,
        wait_for_returns_or_times_out,
        futures_carry_results_errors_and_cancellation,
        a_cancelled_task_may_refuse,
    ],
)
def test_asyncio_works_under_every_seed(main: Main) -> None:
    check_every_seed(main)


def test_a_timeout_and_a_cancellation_at_one_instant_can_both_win() -> None:
    async def main() -> str:
        async def job() -> None:
            async with asyncio.timeout(1):
                await asyncio.Event().wait()

        task = asyncio.create_task(job())
        sim_loop().call_later(1, task.cancel)
        try:
            await task
        except TimeoutError:
            return "timeout"
        except asyncio.CancelledError:
            return "cancelled"
        return "neither"

    assert {run_sim(main(), seed=seed) for seed in SEEDS} == {"timeout", "cancelled"}


@pytest.mark.parametrize("delay", [None, float("inf")])
def test_a_deadlock_names_the_tasks_and_where_they_wait(delay: float | None) -> None:
    async def wait_in_vain(event: asyncio.Event) -> None:
        async with asyncio.timeout(delay):
            await event.wait()

    async def main() -> None:
        event = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(wait_in_vain(event), name="hopeless")

    texts: set[str] = set()
    for _ in range(2):
        with pytest.raises(SimDeadlockError) as caught:
            run_sim(main(), seed=5)
        texts.add(str(caught.value))
    (told,) = texts  # the same seed, the same text
    assert "seed 5" in told
    assert "task main waits at" in told
    assert "wait_in_vain" in told.split("task hopeless waits at")[1]
    assert "Event.wait" in told.split("task hopeless waits at")[1]
    assert f"{__file__}:" in told


def test_a_livelock_stops_after_max_steps() -> None:
    async def answer(mine: asyncio.Event, yours: asyncio.Event) -> None:
        while await mine.wait():
            mine.clear()
            yours.set()

    async def main() -> None:
        ping, pong = asyncio.Event(), asyncio.Event()
        ping.set()
        await asyncio.gather(answer(ping, pong), answer(pong, ping))

    with pytest.raises(SimStalledError, match=r"seed 1, virtual time 0.0, step 1000\)\n  task main waits at"):
        run_sim(main(), seed=1, max_steps=1000)


def test_the_step_limit_is_exact() -> None:
    async def main() -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    loop = SimLoop(seed=1)
    loop.run_until_complete(main())
    needed = loop.steps
    loop.close()
    loop = SimLoop(seed=1, max_steps=needed)
    loop.run_until_complete(main())
    assert loop.steps == needed
    loop.close()


def test_an_executor_call_takes_at_most_five_virtual_milliseconds() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    def call(text: str) -> str:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        seen = variable.get()
        variable.set("changed")
        return f"{text} {seen}"

    async def main() -> float:
        variable.set("mine")
        loop = sim_loop()
        assert await loop.run_in_executor(object(), call, "saw") == "saw mine"
        assert await asyncio.to_thread(call, "saw") == "saw mine"
        assert variable.get() == "mine"
        with pytest.raises(ValueError, match="invalid literal"):
            await loop.run_in_executor(None, int, "x")
        return loop.time()

    times = {run_sim(main(), seed=seed) for seed in range(20)}
    assert all(0 < moment <= 0.015 for moment in times)
    assert len(times) == 20


def test_executor_calls_finish_in_seeded_order_and_not_after_a_cancellation() -> None:
    async def main() -> str:
        loop = sim_loop()
        done: list[str] = []
        calls = [loop.run_in_executor(None, done.append, name) for name in "abc"]
        unwanted = loop.run_in_executor(None, done.append, "unwanted")
        unwanted.cancel()
        await asyncio.gather(*calls)
        await virtual_sleep(1)
        return "".join(done)

    orders = {run_sim(main(), seed=seed) for seed in range(100)}
    assert orders == {"abc", "acb", "bac", "bca", "cab", "cba"}


def test_exceptions_in_callbacks_are_collected() -> None:
    told: list[str] = []

    async def main() -> None:
        loop = sim_loop()
        loop.call_soon(int, "x")
        loop.call_later(1, int, "y")
        await virtual_sleep(2)
        assert [type(each["exception"]) for each in loop.exceptions] == [ValueError, ValueError]
        loop.set_exception_handler(lambda _, context: told.append(context["message"]))
        loop.call_soon(int, "z")
        await virtual_sleep(1)
        assert len(loop.exceptions) == 3
        loop.exceptions.clear()

    run_sim(main(), seed=1)
    assert len(told) == 1


def test_what_nobody_handled_fails_the_run() -> None:
    async def fail() -> None:
        raise ValueError("lost")

    async def with_callback() -> None:
        sim_loop().call_soon(int, "x")
        await virtual_sleep(1)

    async def with_dropped_task() -> None:
        asyncio.create_task(fail())  # noqa: RUF006 - dropped on purpose
        await virtual_sleep(1)

    async def with_kept_task() -> asyncio.Task[None]:
        task = asyncio.create_task(fail())
        await virtual_sleep(1)
        return task

    async def with_stubborn_task() -> None:
        async def stubborn() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await fail()

        task = asyncio.create_task(stubborn())
        await virtual_sleep(1)
        assert not task.done()

    for main in (with_callback, with_dropped_task, with_kept_task, with_stubborn_task):
        with pytest.raises(SimUnhandledError, match="seed 9") as caught:
            run_sim(main(), seed=9)
        assert isinstance(caught.value.__cause__, ValueError)


def test_the_failure_of_main_notes_the_seed_and_what_else_went_wrong() -> None:
    async def main() -> None:
        sim_loop().call_soon(int, "x")
        await virtual_sleep(1)
        raise KeyError("main")

    with pytest.raises(KeyError, match="main") as caught:
        run_sim(main(), seed=9)
    (told,) = caught.value.__notes__
    assert "seed 9" in told
    assert "unhandled: Exception in callback" in told


def test_leftover_tasks_are_cancelled_and_run_to_their_end() -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await virtual_sleep(10)
            ended.append("background")

    async def main() -> str:
        task = asyncio.create_task(background())
        await virtual_sleep(1)
        return task.get_name()

    assert run_sim(main(), seed=1) == "task-2"
    assert ended == ["background"]


def test_a_leftover_task_that_ignores_its_cancellation_is_a_deadlock() -> None:
    async def ignore() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async def main() -> asyncio.Task[None]:
        task = asyncio.create_task(ignore(), name="deaf")
        await virtual_sleep(1)
        return task

    with pytest.raises(SimDeadlockError, match="task deaf waits at"):
        run_sim(main(), seed=1)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_the_run_and_still_cleans_up(interrupt: type[BaseException]) -> None:
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("background")

    async def main() -> None:
        task = asyncio.create_task(background())
        await virtual_sleep(1)
        assert not task.done()
        raise interrupt

    with pytest.raises(interrupt):
        run_sim(main(), seed=1)
    assert ended == ["background"]


def test_async_generators_are_closed_when_dropped_and_at_the_end() -> None:
    closed: list[str] = []
    kept: list[AsyncGenerator[int, None]] = []

    async def numbers(name: str) -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            closed.append(name)

    async def main() -> None:
        async for _ in numbers("dropped"):
            break
        await virtual_sleep(1)
        assert closed == ["dropped"]
        kept.append(numbers("kept"))
        assert await anext(kept[0]) == 1

    run_sim(main(), seed=1)
    assert closed == ["dropped", "kept"]


def test_garbage_is_collected_at_the_same_step_whatever_else_was_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def numbers(closed: list[int], cycle: list[Any]) -> AsyncGenerator[int, None]:
        try:
            yield len(cycle)
        finally:
            closed.append(sim_loop().steps)

    async def main(noise: int) -> list[int]:
        closed: list[int] = []
        cycle: list[Any] = []
        cycle.append(numbers(closed, cycle))
        await anext(cycle[0])
        del cycle
        for _ in range(150):
            await asyncio.sleep(0)
            assert len([[] for _ in range(noise)]) == noise
        return closed

    monkeypatch.setattr("laneway.sim.loop.GARBAGE_STEPS", 100)
    closed = run_sim(main(0), seed=1)
    assert len(closed) == 1
    assert run_sim(main(5000), seed=1) == closed


def test_tasks_take_names_contexts_factories_and_eager_starts() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")

    async def read() -> str:
        return variable.get()

    async def main() -> None:
        loop = sim_loop()
        context = contextvars.copy_context()
        context.run(variable.set, "given")
        task = loop.create_task(read(), name="reader", context=context)
        assert task.get_name() == "reader"
        assert await task == "given"
        if sys.version_info >= (3, 12):
            assert loop.create_task(read(), eager_start=True).done()
        made: list[asyncio.Task[Any]] = []

        def factory(loop: asyncio.AbstractEventLoop, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
            made.append(asyncio.Task(coro, loop=loop, **kwargs))
            return made[-1]

        loop.set_task_factory(factory)
        assert loop.get_task_factory() is factory
        task = asyncio.create_task(read(), name="made", context=context)
        assert made == [task]
        assert await task == "given"
        loop.set_task_factory(None)

    check_every_seed(main)


def test_stop_runs_what_is_ready_and_nothing_more() -> None:
    loop = SimLoop(seed=1)
    ran: list[str] = []

    def last() -> None:
        loop.stop()
        loop.call_soon(ran.append, "too late")

    loop.call_soon(last)
    loop.call_soon(ran.append, "ready")
    loop.run_forever()
    assert ran == ["ready"]
    loop.stop()
    loop.run_forever()
    assert ran == ["ready", "too late"]
    with pytest.raises(SimDeadlockError):
        loop.run_forever()
    assert not loop.is_running()
    loop.close()
    assert loop.is_closed()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon(print)
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_later(1, print)


def test_loops_do_not_nest_and_leave_the_process_as_it_was() -> None:
    async def main() -> None:
        inner = SimLoop(seed=1)
        for loop in (inner, sim_loop()):
            with pytest.raises(RuntimeError, match="while a loop is running"):
                loop.run_forever()
        with pytest.raises(RuntimeError, match="running"):
            sim_loop().close()
        inner.close()

    hooks = sys.get_asyncgen_hooks()
    run_sim(main(), seed=1)
    assert gc.isenabled()
    assert sys.get_asyncgen_hooks() == hooks
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_nothing_reaches_outside() -> None:
    async def main() -> None:
        with pytest.raises(NotImplementedError):
            await asyncio.open_connection("localhost", 1)
        with pytest.raises(NotImplementedError):
            await asyncio.create_subprocess_exec("true")

    assert run_sim(main(), seed=1) is None


if sys.version_info >= (3, 12):

    def test_the_runner_of_asyncio_accepts_the_loop() -> None:
        async def main() -> float:
            await virtual_sleep(60)
            return sim_loop().time()

        assert asyncio.run(main(), loop_factory=lambda: SimLoop(seed=1)) == 60.0
