"""What every transport has to do, as checks that anybody can run.

A transport is finished when `check_transport` passes. Give it both ends of your wire: an async context manager that
listens for a desk and yields a function that connects a worker.

```python
@asynccontextmanager
async def wire(desk):
    async with await listen(desk, address):
        yield lambda: connect(address)

await check_transport(desk_stage(wire, lease_ms=300))
```

`desk_stage` makes a new desk for each check. `TRANSPORT_CHECKS` are the single checks; each hangs up what it connects.
Whoever has a host of another kind writes a `TransportStage`.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeVar

from laneway.errors import ConflictError, LanewayError, LeaseLostError, TransportUnavailableError, UsageError
from laneway.external import RESULT_MAX, ExternalTaskResult, Lease, Progress
from laneway.ports import Transport
from laneway.records import Effect
from laneway.testing.transport_stage import LONG_MS, DeskStage, OpenStage, TransportStage, Wire, desk_stage

__all__ = ("TRANSPORT_CHECKS", "DeskStage", "OpenStage", "TransportStage", "Wire", "check_transport", "desk_stage")

T = TypeVar("T")

PATIENCE_S: Final = 20  # what a check may take beside the leases whose ends it waits for
DONE: Final = ExternalTaskResult(result={"output": "done"})
PAYLOADS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"command": "ls -la", "timeout_ms": 5, "deep": [[], {}, None, True, 1.5, -(10**15)]},
    {"text": 'quotes " \\ \n \x00 \u2028 \U0001f469 e\u0301 \u05e9', "": ""},
    {"long": "ä" * 100_000},
)
RESULTS: Final[tuple[Any, ...]] = (
    None,
    "",
    "text\n\x00\U0001f469",
    0,
    1.5,
    True,
    [1, [None]],
    {"output": "x", "n": {}},
)


# ---- small steps ----


class _Noted:
    """The stage of one check. It notes who connects: all of them hang up when the check is over."""

    def __init__(self, stage: TransportStage, opened: AsyncExitStack) -> None:
        self.lease_ms = stage.lease_ms
        self.put, self.withdraw = stage.put, stage.withdraw
        self.state, self.result = stage.state, stage.result
        self.passing, self.raw, self.progress = stage.passing, stage.raw, stage.progress
        self._connect = stage.connect
        self._opened = opened

    def connect(self) -> Transport:
        """A new connection."""
        transport = self._connect()
        self._opened.push_async_callback(transport.close)
        return transport


Check = Callable[[TransportStage], Coroutine[Any, Any, None]]


def _tidy(check: Check) -> Check:
    """A check that hangs up what it connects, and fails where a transport never answers."""

    @functools.wraps(check)
    async def run(stage: TransportStage) -> None:
        limit_s = PATIENCE_S + 10 * stage.lease_ms / 1000
        try:
            async with asyncio.timeout(limit_s) as limit, AsyncExitStack() as opened:
                await check(_Noted(stage, opened))
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise AssertionError(f"nobody answered within {limit_s:g} s") from error

    return run


async def _soon(stage: TransportStage, call: Awaitable[T], otherwise: str) -> T:
    """An answer that must not take as long as a lease."""
    try:
        async with asyncio.timeout(stage.lease_ms / 1000) as limit:
            return await call
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise AssertionError(otherwise) from error


@asynccontextmanager
async def _asking(call: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """A question that waits meanwhile."""
    task = asyncio.get_running_loop().create_task(call)
    try:
        yield task
    finally:
        await _give_up(task)


async def _give_up(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # whoever looked at it has seen it


async def _take(transport: Transport, worker: str = "w", **wanted: Any) -> Lease:
    leases = await transport.claim(worker, **wanted)
    assert len(leases) == 1, f"one task was expected, not {[lease.task.task_id for lease in leases]}"
    return leases[0]


async def _begin(stage: TransportStage, task_id: str, effect: str = "read", **facts: Any) -> tuple[Transport, Lease]:
    await stage.put(task_id, effect, **facts)
    transport = stage.connect()
    lease = await _take(transport)
    await transport.start(task_id, lease.token)
    return transport, lease


async def _refuses(kind: type[LanewayError], call: Awaitable[object]) -> None:
    try:
        answer = await call
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected, and the answer was {answer!r}")


def _ids(leases: Sequence[Lease]) -> list[str]:
    return [lease.task.task_id for lease in leases]


# ---- the checks ----


@_tidy
async def check_a_task_goes_its_way(stage: TransportStage) -> None:
    """Claimed, started, completed: and the host sees each step."""
    await stage.put("t", "write")
    worker = stage.connect()
    lease = await _take(worker, "the worker")
    assert await stage.state("t") == "leased"
    await worker.start("t", lease.token)
    assert await stage.state("t") == "started"
    assert await worker.complete("t", lease.token, DONE) is True
    assert await stage.state("t") == "completed"
    assert await stage.result("t") == DONE
    assert await worker.claim("the worker") == []


@_tidy
async def check_a_task_arrives_whole(stage: TransportStage) -> None:
    """Every field of a task is what it was, whatever is in it."""
    worker = stage.connect()
    for number, payload in enumerate(PAYLOADS):
        name = f"t{number}"
        await stage.put(name, "idempotent", payload=payload, correlation_id="c" if number else None, workspace="/wörk")
        lease = await _take(worker)
        task = lease.task
        assert task.payload == payload
        assert (task.task_id, task.lane, task.command_type, task.attempt) == (name, "execute", "bash", 1)
        assert (task.idempotency_key, task.workspace) == (f"key-{name}", "/wörk")
        assert task.correlation_id == ("c" if number else None)
        assert lease.effect is Effect.IDEMPOTENT
        assert lease.lease_ms == stage.lease_ms
        assert 0 < task.remaining_ms() <= task["remaining_ms"] <= task.timeout_ms == LONG_MS
        assert not task.is_timed_out()


@_tidy
async def check_a_result_arrives_whole(stage: TransportStage) -> None:
    """Any JSON is a result, and a failure keeps what it says."""
    worker = stage.connect()
    said = [ExternalTaskResult(result=value) for value in RESULTS]
    said += [ExternalTaskResult(success=False, result=value, error="no\n\U0001f469") for value in RESULTS]
    for number, result in enumerate(said):
        name = f"t{number}"
        await stage.put(name)
        lease = await _take(worker)
        await worker.start(name, lease.token)
        assert await worker.complete(name, lease.token, result) is True
        assert await stage.result(name) == result
        assert await stage.state(name) == ("completed" if result.success else "failed")


@_tidy
async def check_long_texts_arrive_whole(stage: TransportStage) -> None:
    """Nearly as long as a result may be, there and back: what a line, a buffer or a proxy often has no room for."""
    long = "x" * (RESULT_MAX - 100)
    worker = stage.connect()
    await stage.put("t", "write", payload={"content": long}, lease_ms=LONG_MS)
    lease = await _take(worker)
    assert lease.task.payload == {"content": long}
    await worker.start("t", lease.token)
    assert await worker.complete("t", lease.token, ExternalTaskResult(result=long)) is True
    result = await stage.result("t")
    assert result is not None
    assert result.result == long


@_tidy
async def check_a_start_after_the_end_of_the_lease_is_refused(stage: TransportStage) -> None:
    """Whoever was silent for too long must not begin, whatever the effect."""
    for effect in Effect:
        await stage.put(effect.value, effect.value)
        late, other = stage.connect(), stage.connect()
        lease = await _take(late, "late")
        await stage.passing(stage.lease_ms + 1)
        assert await stage.state(effect.value) == "pending"
        await _refuses(LeaseLostError, late.start(effect.value, lease.token))
        second = await _take(other, "other")
        assert second.task.task_id == effect.value
        assert second.token != lease.token
        await _refuses(LeaseLostError, late.start(effect.value, lease.token))
        await _refuses(LeaseLostError, late.heartbeat(effect.value, lease.token))
        await _refuses(LeaseLostError, late.complete(effect.value, lease.token, DONE))
        await other.start(effect.value, second.token)
        assert await other.complete(effect.value, second.token, DONE) is True


@_tidy
async def check_a_lost_worker_is_replaced_if_the_effect_allows(stage: TransportStage) -> None:
    """After the start another worker gets a read or an idempotent task, with the same key; nobody gets a write."""
    for effect in (Effect.READ, Effect.IDEMPOTENT):
        await _begin(stage, effect.value, effect.value)
        await stage.passing(stage.lease_ms + 1)
        other = stage.connect()
        lease = await _take(other, "other")
        assert (lease.task.task_id, lease.task.attempt) == (effect.value, 2)
        assert lease.task.idempotency_key == f"key-{effect.value}"
        await other.start(effect.value, lease.token)
        assert await other.complete(effect.value, lease.token, DONE) is True
    await _begin(stage, "write", "write")
    await stage.passing(stage.lease_ms + 1)
    assert await stage.state("write") == "unknown"
    assert await stage.connect().claim("other", limit=10) == []


@_tidy
async def check_signs_of_life_keep_a_lease(stage: TransportStage) -> None:
    """A worker that shows signs of life keeps its task as long as it likes."""
    worker, lease = await _begin(stage, "t")
    for _ in range(4):
        await stage.passing(stage.lease_ms * 2 // 3)
        assert await worker.heartbeat("t", lease.token) is True
    assert await stage.state("t") == "started"
    assert await worker.complete("t", lease.token, DONE) is True


@_tidy
async def check_a_withdrawn_task_is_told_by_the_next_sign_of_life(stage: TransportStage) -> None:
    """Who works on it hears that nobody wants it; its result is refused."""
    worker, lease = await _begin(stage, "t")
    stage.withdraw("t")
    assert await worker.heartbeat("t", lease.token) is False
    await _refuses(LeaseLostError, worker.complete("t", lease.token, DONE))
    assert await stage.state("t") == "withdrawn"


@_tidy
async def check_a_withdrawn_task_cannot_be_started(stage: TransportStage) -> None:
    """Between the claim and the start nothing is lost by giving up."""
    await stage.put("t", "write")
    worker = stage.connect()
    lease = await _take(worker)
    stage.withdraw("t")
    await _refuses(LeaseLostError, worker.start("t", lease.token))
    assert await stage.state("t") == "withdrawn"


@_tidy
async def check_saying_it_twice_is_saying_it_once(stage: TransportStage) -> None:
    """A worker that did not hear the answer asks again, and gets the same one."""
    for effect in Effect:
        worker, lease = await _begin(stage, effect.value, effect.value)
        await worker.start(effect.value, lease.token)
        assert await worker.complete(effect.value, lease.token, DONE) is True
        other = ExternalTaskResult(success=False, error="the second time")
        assert await worker.complete(effect.value, lease.token, other) is True
        assert await stage.result(effect.value) == DONE


@_tidy
async def check_a_late_result_counts_only_for_a_write_that_nobody_else_got(stage: TransportStage) -> None:
    """It settles an unknown write; any other late result is refused."""
    worker, lease = await _begin(stage, "write", "write")
    await stage.passing(stage.lease_ms + 1)
    assert await stage.state("write") == "unknown"
    assert await worker.complete("write", lease.token, DONE) is True
    assert await stage.state("write") == "completed"
    late, old = await _begin(stage, "read", "read")
    await stage.passing(stage.lease_ms + 1)
    await _refuses(LeaseLostError, late.complete("read", old.token, DONE))
    assert await stage.state("read") == "pending"


@_tidy
async def check_a_task_that_timed_out_is_over(stage: TransportStage) -> None:
    """Its worker is told to stop."""
    worker, lease = await _begin(stage, "t", timeout_ms=stage.lease_ms // 2)
    await stage.passing(stage.lease_ms // 2 + 1)
    assert await stage.state("t") == "timed_out"
    assert await worker.heartbeat("t", lease.token) is False
    await _refuses(LeaseLostError, worker.complete("t", lease.token, DONE))


@_tidy
async def check_a_foreign_token_changes_nothing(stage: TransportStage) -> None:
    """Nobody but the holder of the lease may say anything about a task."""
    worker, lease = await _begin(stage, "mine", "write")
    await stage.put("other")
    stranger = stage.connect()
    other = await _take(stranger, "stranger")
    for token in ("", "nonsense", other.token, f"{lease.token} "):
        await _refuses(LeaseLostError, stranger.start("mine", token))
        await _refuses(LeaseLostError, stranger.heartbeat("mine", token))
        await _refuses(LeaseLostError, stranger.complete("mine", token, DONE))
        await stranger.release("mine", token)
    await _refuses(LeaseLostError, stranger.start("nobody", lease.token))
    await _refuses(LeaseLostError, stranger.complete("nobody", lease.token, DONE))
    assert await stage.state("mine") == "started"
    assert await worker.complete("mine", lease.token, DONE) is True


@_tidy
async def check_a_task_has_one_lease_at_a_time(stage: TransportStage) -> None:
    """However many ask at once, each task goes to one of them."""
    names = [f"t{number}" for number in range(20)]
    for name in names:
        await stage.put(name)
    workers = [stage.connect() for _ in range(8)]
    asked = [worker.claim(f"w{at}", limit=4) for at, worker in enumerate(workers)]
    taken = [name for leases in await asyncio.gather(*asked) for name in _ids(leases)]
    assert sorted(taken) == sorted(names), taken


@_tidy
async def check_tasks_of_a_lane_are_claimed_in_order(stage: TransportStage) -> None:
    """First in, first out; what goes back keeps its place."""
    for number in range(5):
        await stage.put(f"t{number}")
    worker = stage.connect()
    first = await _take(worker)
    assert _ids(await worker.claim("w", limit=2)) == ["t1", "t2"]
    await worker.release("t0", first.token, "on second thought")
    assert _ids(await worker.claim("w", limit=10)) == ["t0", "t3", "t4"]


@_tidy
async def check_claims_are_for_lanes_and_commands(stage: TransportStage) -> None:
    """A worker gets only what it has asked for."""
    await stage.put("a", lane="query", command_type="read")
    await stage.put("b", lane="execute", command_type="bash")
    await stage.put("c", lane="execute", command_type="write")
    worker = stage.connect()
    assert _ids(await worker.claim("w", lanes=["generate"], limit=9)) == []
    assert _ids(await worker.claim("w", lanes=["query"], commands=["bash"], limit=9)) == []
    assert _ids(await worker.claim("w", lanes=["execute"], commands=["write", "edit"], limit=9)) == ["c"]
    assert _ids(await worker.claim("w", lanes=["execute", "query"], limit=9)) == ["a", "b"]


@_tidy
async def check_a_claim_that_waits_is_woken_at_once(stage: TransportStage) -> None:
    """A new task does not wait for anybody's next look."""
    everything = stage.connect().claim("w", wait_ms=LONG_MS)
    picky = stage.connect().claim("picky", wait_ms=LONG_MS, lanes=["query"])
    async with _asking(everything) as waiting, _asking(picky) as waiting_too:
        await stage.passing(20)
        assert not waiting.done(), "a claim has to wait for a task, as long as it says"
        await stage.put("t")
        assert _ids(await _soon(stage, waiting, "a claim that waits has to be woken by a new task")) == ["t"]
        assert not waiting_too.done()
        await stage.put("u", lane="query")
        assert _ids(await _soon(stage, waiting_too, "a claim that waits has to be woken by a new task")) == ["u"]


@_tidy
async def check_a_claim_that_waits_holds_up_nothing_else(stage: TransportStage) -> None:
    """On one connection, too, frames are answered side by side: else a worker that asks for more looks dead."""
    worker, lease = await _begin(stage, "t")
    said = "nothing may wait for a claim on the same transport: answer frames side by side"
    async with (
        _asking(worker.claim("w", wait_ms=LONG_MS)) as waiting,
        _asking(worker.claim("w", wait_ms=LONG_MS, lanes=["query"])) as waiting_too,
    ):
        await stage.passing(20)
        assert await _soon(stage, worker.heartbeat("t", lease.token), said) is True
        assert await _soon(stage, worker.claim("w"), said) == []
        assert await _soon(stage, worker.complete("t", lease.token, DONE), said) is True
        assert not waiting.done()
        assert not waiting_too.done()


@_tidy
async def check_answers_reach_whoever_asked(stage: TransportStage) -> None:
    """Many questions at once on one connection, with different answers."""
    names = [f"t{number}" for number in range(20)]
    for name in names:
        await stage.put(name)
    worker = stage.connect()
    tokens = {lease.task.task_id: lease.token for lease in await worker.claim("w", limit=len(names))}
    assert list(tokens) == names
    await asyncio.gather(*(worker.start(name, tokens[name]) for name in names))
    for name in names[::3]:
        stage.withdraw(name)
    wanted = await asyncio.gather(*(worker.heartbeat(name, tokens[name]) for name in names))
    assert wanted == [number % 3 != 0 for number in range(len(names))], wanted
    done = {name: ExternalTaskResult(result=f"by {name}") for name in names if name not in names[::3]}
    assert all(await asyncio.gather(*(worker.complete(name, tokens[name], result) for name, result in done.items())))
    assert {name: await stage.result(name) for name in done} == done


@_tidy
async def check_a_claim_that_waits_is_woken_by_what_goes_back(stage: TransportStage) -> None:
    """So a lost worker costs its lease, and nothing more."""
    await _begin(stage, "t")
    async with asyncio.timeout(stage.lease_ms * 3 / 1000):
        assert _ids(await stage.connect().claim("w", wait_ms=LONG_MS)) == ["t"]


@_tidy
async def check_a_claim_that_waits_in_vain_gets_nothing(stage: TransportStage) -> None:
    """An empty answer is no error, and comes when the wait is over."""
    worker = stage.connect()
    for wait_ms in (0, 30):
        said = f"a claim with wait_ms={wait_ms} has to be answered by then"
        assert await _soon(stage, worker.claim("w", wait_ms=wait_ms), said) == []


@_tidy
async def check_tasks_are_spread_over_those_who_wait(stage: TransportStage) -> None:
    """Whoever has waited longest gets the next one."""
    async with AsyncExitStack() as asked:
        waiting: list[asyncio.Task[list[Lease]]] = []
        for number in range(4):
            claim = stage.connect().claim(f"w{number}", limit=10, wait_ms=LONG_MS)
            waiting.append(await asked.enter_async_context(_asking(claim)))
            await stage.passing(20)
        for number in range(4):
            await stage.put(f"t{number}")
        got = [_ids(await _soon(stage, each, "a claim that waits has to be woken by a new task")) for each in waiting]
    assert got == [["t0"], ["t1"], ["t2"], ["t3"]], got


@_tidy
async def check_a_claim_that_is_given_up_costs_no_task(stage: TransportStage) -> None:
    """What it was given at the last moment goes back, at the latest with its lease."""
    async with _asking(stage.connect().claim("gone", wait_ms=LONG_MS)) as giving_up:
        await stage.passing(20)
        await stage.put("t", "write")
        giving_up.cancel()
        await asyncio.wait([giving_up])
        if not giving_up.cancelled():  # it had its answer before it was cancelled
            assert _ids(giving_up.result()) == ["t"]
        async with asyncio.timeout(stage.lease_ms * 3 / 1000):
            assert _ids(await stage.connect().claim("w", wait_ms=LONG_MS)) == ["t"]


@_tidy
async def check_a_claim_that_was_given_up_takes_nothing(stage: TransportStage) -> None:
    """Who gave up is not waited for: the next task is there for others, and the connection is as good as before."""
    worker = stage.connect()
    async with _asking(worker.claim("gone", wait_ms=LONG_MS)) as giving_up:
        await stage.passing(20)
        giving_up.cancel()
        await asyncio.wait([giving_up])
    await stage.passing(stage.lease_ms // 2)  # until the host has heard of it
    await stage.put("t", "write")
    await stage.passing(20)
    state = await stage.state("t")
    assert state == "pending", f"the task is {state}: a claim that was given up has to be given up on the host, too"
    lease = await _take(worker)
    await worker.start("t", lease.token)
    assert await worker.complete("t", lease.token, DONE) is True


@_tidy
async def check_labels_decide_who_gets_a_task(stage: TransportStage) -> None:
    """A task goes to a worker that has every label it needs; what else a worker has does not matter."""
    await stage.put("plain")
    await stage.put("picky", labels=("gpu", "os=linux"))
    worker = stage.connect()
    assert _ids(await worker.claim("w", labels=["gpu"], limit=9)) == ["plain"]
    assert _ids(await worker.claim("w", labels=["os=linux", "os=mac"], limit=9)) == []
    async with _asking(stage.connect().claim("able", labels=["gpu", "big", "os=linux"], wait_ms=LONG_MS)) as able:
        [lease] = await _soon(stage, able, "a worker that has all labels has to get the task")
        assert lease.task.task_id == "picky"
        assert sorted(lease.task.labels) == ["gpu", "os=linux"]
    async with _asking(worker.claim("poor", wait_ms=LONG_MS)) as poor:
        await stage.passing(20)
        async with _asking(stage.connect().claim("rich", labels=["tpu"], wait_ms=LONG_MS)) as rich:
            await stage.passing(20)
            await stage.put("next", labels=("tpu",))
            assert _ids(await _soon(stage, rich, "a claim that waits has to be woken by a task it can do")) == ["next"]
        assert not poor.done()


@_tidy
async def check_a_worker_may_name_its_workspaces(stage: TransportStage) -> None:
    """By the name that a task says."""
    await stage.put("t")
    worker = stage.connect()
    first = await _take(worker)
    await worker.release("t", first.token)
    second = await _take(worker, workspaces=[first.task.workspace_name])
    assert second.task.workspace_name == first.task.workspace_name


@_tidy
async def check_a_worker_may_wish_for_a_lease(stage: TransportStage) -> None:
    """A shorter one, or a longer one once it has begun: who takes a task and does nothing keeps it no longer."""
    worker = stage.connect()
    for name, wish_ms in (("short", stage.lease_ms // 2), ("long", stage.lease_ms * 5)):
        await stage.put(name)
        lease = await _take(worker, lease_ms=wish_ms)
        assert lease.lease_ms == wish_ms
        await worker.start(name, lease.token)
    await stage.put("idle")
    idle = await _take(worker, lease_ms=stage.lease_ms * 5)
    await stage.passing(stage.lease_ms * 3 // 4)
    assert await stage.state("short") == "pending"
    assert await stage.state("idle") == "leased"
    await stage.passing(stage.lease_ms // 2)
    assert await stage.state("idle") == "pending", "before the start no lease is longer than that of the task"
    await _refuses(LeaseLostError, worker.start("idle", idle.token))
    assert await stage.state("long") == "started"
    assert await worker.complete("long", lease.token, DONE) is True


@_tidy
async def check_progress_arrives(stage: TransportStage) -> None:
    """How far a task is goes with a sign of life; one that says nothing of it changes nothing."""
    worker, lease = await _begin(stage, "t")
    assert await stage.progress("t") is None
    for said in (Progress("12 of 40\n\U0001f469", 30), Progress(percent=99.5), Progress("nearly")):
        assert await worker.heartbeat("t", lease.token, said) is True
        assert await stage.progress("t") == said
        assert await worker.heartbeat("t", lease.token) is True
        assert await stage.progress("t") == said
    await _refuses(LeaseLostError, worker.heartbeat("t", "nonsense", Progress("forged")))
    assert await stage.progress("t") == Progress("nearly")


@_tidy
async def check_what_has_begun_can_be_given_back(stage: TransportStage) -> None:
    """By a worker that stops: anything but a write goes to another one at once, and nobody knows of a write."""
    for effect, state in (("read", "pending"), ("idempotent", "pending"), ("write", "unknown")):
        worker, lease = await _begin(stage, effect, effect)
        await worker.release(effect, lease.token, "it stops", begun=True)
        assert await stage.state(effect) == state
        await worker.release(effect, lease.token, "it stops", begun=True)  # saying it twice is saying it once
        if state == "pending":
            await _refuses(LeaseLostError, worker.heartbeat(effect, lease.token))
            again = await _take(stage.connect(), "another")
            assert (again.task.task_id, again.task.attempt) == (effect, 2)
    assert await stage.connect().claim("another", limit=9) == []


@_tidy
async def check_a_worker_may_say_what_it_is(stage: TransportStage) -> None:
    """For the list of workers; it changes nothing."""
    await stage.put("t")
    about = {"instance": "i-1", "concurrency": 4, "version": "1.2", "host": "höst", "pid": 77}
    assert (await _take(stage.connect(), about=about)).task.task_id == "t"


@_tidy
async def check_what_makes_no_sense_is_refused(stage: TransportStage) -> None:
    """The error is the caller's, and nothing has changed."""
    await stage.put("t")
    worker = stage.connect()
    nonsense: Any
    for nonsense in (
        {"limit": 0},
        {"limit": "2"},
        {"wait_ms": -1},
        {"lanes": "execute"},
        {"commands": [7]},
        {"labels": "gpu"},
        {"labels": [7]},
        {"workspaces": "default"},
        {"lease_ms": 0},
        {"lease_ms": "1"},
        {"about": "me"},
    ):
        await _refuses(UsageError, worker.claim("w", **nonsense))
    await _refuses(UsageError, worker.claim(""))
    lease = await _take(worker)
    await worker.start("t", lease.token)
    for nonsense in ({"result": {1, 2}}, {"success": 1}, {"success": True, "more": 1}):
        await _refuses(UsageError, worker.complete("t", lease.token, nonsense))
    await _refuses(ConflictError, worker.release("t", lease.token))
    assert await stage.state("t") == "started"
    assert await worker.complete("t", lease.token, DONE) is True


GARBAGE: Final[tuple[tuple[Any, str], ...]] = (
    ("", "JSON"),
    ("<html>", "JSON"),
    ("[" * 100_000, "JSON"),
    ("NaN", "JSON"),
    ([], "the frame"),
    ({}, "v should"),
    ({"v": 2}, "v is 2"),
    ({"v": True}, "v should"),
    ({"v": 1}, "id"),
    ({"v": 1, "id": "7"}, "id"),
    ({"v": 1, "id": 7}, "op"),
    ({"v": 1, "id": 7, "op": "drop"}, "op"),
    ({"v": 1, "id": 7, "op": "claim"}, "worker"),
    ({"v": 1, "id": 7, "op": "claim", "worker": "w", "lanes": "x"}, "lanes"),
    ({"v": 1, "id": 7, "op": "claim", "worker": "w", "lanes": [1]}, "lanes[0]"),
    ({"v": 1, "id": 7, "op": "claim", "worker": "w", "limit": 1.5}, "limit"),
    ({"v": 1, "id": 7, "op": "start", "task_id": "t"}, "token"),
    ({"v": 1, "id": 7, "op": "start", "task_id": None, "token": ""}, "task_id"),
    ({"v": 1, "id": 7, "op": "complete", "task_id": "t", "token": ""}, "result"),
    ({"v": 1, "id": 7, "op": "complete", "task_id": "t", "token": "", "result": {"success": 1}}, "result.success"),
    (
        {"v": 1, "id": 7, "op": "complete", "task_id": "t", "token": "", "result": {"success": False, "error": 1}},
        "error",
    ),
)


@_tidy
async def check_garbage_is_answered_with_an_error_that_names_the_field(stage: TransportStage) -> None:
    """A host survives whatever is sent to it."""
    await stage.put("t")
    for said, field in GARBAGE:
        answer = json.loads(await stage.raw(said if isinstance(said, str) else json.dumps(said)))
        assert answer["ok"] is False, said
        assert field in answer["error"]["message"], (said, answer)
    assert await stage.state("t") == "pending"
    lease = await _take(stage.connect())
    assert lease.task.task_id == "t"


@_tidy
async def check_closing_one_connection_leaves_the_others(stage: TransportStage) -> None:
    """A closed transport says so; what its worker held goes back with its lease."""
    await stage.put("t")
    leaving, staying = stage.connect(), stage.connect()
    lease = await _take(leaving)
    await leaving.close()
    await leaving.close()
    await _refuses(TransportUnavailableError, leaving.claim("w"))
    await _refuses(TransportUnavailableError, leaving.start("t", lease.token))
    await _refuses(TransportUnavailableError, leaving.heartbeat("t", lease.token))
    await _refuses(TransportUnavailableError, leaving.complete("t", lease.token, DONE))
    await _refuses(TransportUnavailableError, leaving.release("t", lease.token))
    async with asyncio.timeout(stage.lease_ms * 3 / 1000):
        assert _ids(await staying.claim("w", wait_ms=LONG_MS)) == ["t"]


@_tidy
async def check_closing_ends_a_claim_that_waits(stage: TransportStage) -> None:
    """Nobody waits for an answer that cannot come, and nobody is given a task that cannot arrive."""
    leaving = stage.connect()
    async with _asking(leaving.claim("gone", wait_ms=LONG_MS)) as waiting:
        await stage.passing(20)
        await leaving.close()
        said = "a claim has to end when its transport is closed"
        await _refuses(TransportUnavailableError, _soon(stage, waiting, said))
    await stage.passing(stage.lease_ms // 2)  # until the host has heard of it
    await stage.put("t", "write")
    await stage.passing(20)
    state = await stage.state("t")
    assert state == "pending", f"the task is {state}: a claim of somebody who has hung up has to be given up"


TRANSPORT_CHECKS: Final[tuple[Check, ...]] = (
    check_a_task_goes_its_way,
    check_a_task_arrives_whole,
    check_a_result_arrives_whole,
    check_long_texts_arrive_whole,
    check_a_start_after_the_end_of_the_lease_is_refused,
    check_a_lost_worker_is_replaced_if_the_effect_allows,
    check_signs_of_life_keep_a_lease,
    check_a_withdrawn_task_is_told_by_the_next_sign_of_life,
    check_a_withdrawn_task_cannot_be_started,
    check_saying_it_twice_is_saying_it_once,
    check_a_late_result_counts_only_for_a_write_that_nobody_else_got,
    check_a_task_that_timed_out_is_over,
    check_a_foreign_token_changes_nothing,
    check_a_task_has_one_lease_at_a_time,
    check_tasks_of_a_lane_are_claimed_in_order,
    check_claims_are_for_lanes_and_commands,
    check_a_claim_that_waits_is_woken_at_once,
    check_a_claim_that_waits_holds_up_nothing_else,
    check_answers_reach_whoever_asked,
    check_a_claim_that_waits_is_woken_by_what_goes_back,
    check_a_claim_that_waits_in_vain_gets_nothing,
    check_tasks_are_spread_over_those_who_wait,
    check_a_claim_that_is_given_up_costs_no_task,
    check_a_claim_that_was_given_up_takes_nothing,
    check_labels_decide_who_gets_a_task,
    check_a_worker_may_name_its_workspaces,
    check_a_worker_may_wish_for_a_lease,
    check_progress_arrives,
    check_what_has_begun_can_be_given_back,
    check_a_worker_may_say_what_it_is,
    check_what_makes_no_sense_is_refused,
    check_garbage_is_answered_with_an_error_that_names_the_field,
    check_closing_one_connection_leaves_the_others,
    check_closing_ends_a_claim_that_waits,
)
"""Every check, each for a new stage."""


async def check_transport(open_stage: OpenStage) -> None:
    """Fail unless a transport does everything that a transport has to do."""
    for check in TRANSPORT_CHECKS:
        async with open_stage() as stage:
            try:
                await check(stage)
            except Exception as error:
                error.add_note(f"while the transport had to pass {check.__name__}")
                raise
