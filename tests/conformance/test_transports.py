"""Every transport passes one suite: the local one, one from another thread, and one that a user might bring."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laneway import Inbox
from laneway.errors import (
    ConfigError,
    InternalError,
    LaneFullError,
    LanewayError,
    LeaseLostError,
    StoreUnavailableError,
    TransportUnavailableError,
    UsageError,
)
from laneway.external import ExternalTaskResult, Lease, Progress
from laneway.ports import Transport
from laneway.runtime.task_desk import TaskDesk
from laneway.sim.loop import run_sim
from laneway.testing import fake_host
from laneway.testing.transports import TRANSPORT_CHECKS, DeskStage, TransportStage, check_transport, desk_stage
from laneway.transports import Desk, FrameTransport, LocalTransport, serve
from tests.inbox_stage import SEEDS, new_inbox
from tests.leaps import LEASE_MS, Leap, LeapingStage, hastened, leaping, passing

T = TypeVar("T")
Check = Callable[[TransportStage], Awaitable[None]]


async def handler(turn: object) -> str:
    """Nobody sends a message here."""
    return ""


@asynccontextmanager
async def local_stage() -> AsyncIterator[DeskStage]:
    """In virtual time."""
    async with new_inbox() as inbox:
        desk = TaskDesk(inbox.engine)
        yield DeskStage(desk, lambda: LocalTransport(desk))
        desk.close()


# ---- a transport that a user brings: lines over TCP ----


class LineTransport(FrameTransport):
    """A connection for each frame, a line there and a line back: as simple as it can be."""

    def __init__(self, port: int) -> None:
        super().__init__(self._carry)
        self._port = port

    async def _carry(self, frame: str) -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        try:
            writer.write(frame.encode() + b"\n")
            return (await reader.readuntil(b"\n")).decode()
        finally:
            writer.close()


def answering(desk: TaskDesk) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """The side of the host: a worker that goes away takes its question with it."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            frame = await reader.readuntil(b"\n")
            asked = asyncio.ensure_future(serve(desk, frame))
            gone = asyncio.ensure_future(reader.read(1))
            await asyncio.wait([asked, gone], return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if asked.done():
                writer.write(asked.result().encode() + b"\n")
                await writer.drain()
            else:
                asked.cancel()
                await asyncio.wait([asked])
        except (OSError, EOFError):
            pass
        finally:
            writer.close()

    return answer


@asynccontextmanager
async def tcp_stage() -> AsyncIterator[LeapingStage]:
    """Real sockets, so real time."""
    with leaping(asyncio.get_running_loop()) as leap:
        async with Inbox(handler) as inbox:
            desk = TaskDesk(inbox.engine)
            server = await asyncio.start_server(answering(desk), "127.0.0.1", 0, limit=1 << 24)
            port = server.sockets[0].getsockname()[1]
            try:
                yield LeapingStage(desk, lambda: LineTransport(port), leap=leap)
            finally:
                desk.close()
                server.close()
                await server.wait_closed()


# ---- the local one, from another thread ----


class FarStage:
    """A stage whose desk lives on the loop of another thread."""

    def __init__(self, inner: DeskStage, loop: asyncio.AbstractEventLoop, leap: Leap) -> None:
        self.lease_ms = inner.lease_ms
        self._inner = inner
        self._loop = loop
        self.leap = leap

    def connect(self) -> Transport:
        return LocalTransport(self._inner.desk)

    async def put(self, task_id: str, effect: str = "read", **facts: Any) -> None:
        await self._there(self._inner.put(task_id, effect, **facts))

    def withdraw(self, task_id: str) -> None:
        async def there() -> None:
            self._inner.withdraw(task_id)

        asyncio.run_coroutine_threadsafe(there(), self._loop).result(60)

    async def state(self, task_id: str) -> str:
        return await self._there(self._inner.state(task_id))

    async def result(self, task_id: str) -> ExternalTaskResult | None:
        return await self._there(self._inner.result(task_id))

    async def progress(self, task_id: str) -> Progress | None:
        return await self._there(self._inner.progress(task_id))

    async def passing(self, ms: int) -> None:
        await self._there(passing(self.leap, ms))

    async def raw(self, frame: str) -> str:
        return await self._there(self._inner.raw(frame))

    async def _there(self, call: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))


@asynccontextmanager
async def far_stage() -> AsyncIterator[FarStage]:
    """A host on a thread of its own, as `Agent` and `Session` have it."""
    ready: asyncio.Future[FarStage] = asyncio.get_running_loop().create_future()
    here = asyncio.get_running_loop()
    leave = asyncio.Event()

    async def host() -> None:
        loop = asyncio.get_running_loop()
        with leaping(loop) as leap:
            async with Inbox(handler) as inbox:
                desk = TaskDesk(inbox.engine)
                inner = DeskStage(desk, lambda: LocalTransport(desk), lease_ms=LEASE_MS)
                here.call_soon_threadsafe(ready.set_result, FarStage(inner, loop, leap))
                await leave.wait()
                desk.close()

    thread = threading.Thread(target=lambda: asyncio.run(host()))
    thread.start()
    stage = await ready
    try:
        yield stage
    finally:
        stage._loop.call_soon_threadsafe(leave.set)  # noqa: SLF001 - its own
        await asyncio.to_thread(thread.join)


# ---- the suite ----


def names(check: Check) -> str:
    return check.__name__.removeprefix("check_")


@pytest.mark.parametrize(
    "check",
    [pytest.param(check, marks=[pytest.mark.slow] if "long" in names(check) else []) for check in TRANSPORT_CHECKS],
    ids=names,
)
def test_the_local_transport_keeps_its_promises(check: Check) -> None:
    async def run() -> None:
        async with local_stage() as stage:
            await check(stage)

    run_sim(run(), seed=0, shuffle=False)
    for seed in SEEDS:
        run_sim(run(), seed=seed)
    assert check in TRANSPORT_CHECKS


@pytest.mark.slow
@pytest.mark.parametrize("check", TRANSPORT_CHECKS, ids=names)
async def test_a_transport_of_lines_over_tcp_keeps_its_promises(check: Check) -> None:
    async with tcp_stage() as stage, hastened(stage.leap, check):
        await check(stage)
    assert check in TRANSPORT_CHECKS


@pytest.mark.slow
@pytest.mark.parametrize("check", TRANSPORT_CHECKS, ids=names)
async def test_the_local_transport_works_from_another_thread(check: Check) -> None:
    async with far_stage() as stage, hastened(stage.leap, check):
        await check(stage)
    assert check in TRANSPORT_CHECKS


@pytest.mark.slow
def test_check_transport_runs_every_check() -> None:
    opened: list[DeskStage] = []

    @asynccontextmanager
    async def noting() -> AsyncIterator[DeskStage]:
        async with local_stage() as stage:
            opened.append(stage)
            yield stage

    run_sim(check_transport(noting), seed=0, shuffle=False)
    assert len(opened) == len(TRANSPORT_CHECKS)


def test_every_check_is_in_the_suite() -> None:
    from laneway.testing import transports

    defined = {name for name in vars(transports) if name.startswith("check_")} - {"check_transport"}
    assert {check.__name__ for check in TRANSPORT_CHECKS} == defined


# ---- transports that do it wrong are noticed ----


class Forgetful(LocalTransport):
    """Never tells the host that it begins."""

    async def start(self, task_id: str, token: str) -> None:
        """Nothing."""


class Deaf(LocalTransport):
    """Believes that every task is always wanted."""

    async def heartbeat(self, task_id: str, token: str, progress: Progress | None = None) -> bool:
        """Nothing."""
        return True


class Greedy(LocalTransport):
    """Takes tasks of every lane."""

    async def claim(self, worker: str, **wanted: Any) -> list[Lease]:
        """Anything."""
        return await super().claim(worker, **{**wanted, "lanes": ()})


class Impatient(LocalTransport):
    """Never waits."""

    async def claim(self, worker: str, **wanted: Any) -> list[Lease]:
        """At once."""
        return await super().claim(worker, **{**wanted, "wait_ms": 0})


class Patient(LocalTransport):
    """Always waits for a while."""

    async def claim(self, worker: str, **wanted: Any) -> list[Lease]:
        """Later."""
        return await super().claim(worker, **{**wanted, "wait_ms": max(20_000, wanted.get("wait_ms", 0))})


class Clinging(LocalTransport):
    """Is closed, but not for those who wait."""

    async def close(self) -> None:
        """Nobody is told."""
        self._closed = True


class Mixing(LocalTransport):
    """Two answers to the same kind of question get mixed up."""

    def __init__(self, desk: Any) -> None:
        super().__init__(desk)
        self._kept: list[asyncio.Future[bool]] = []

    async def heartbeat(self, task_id: str, token: str, progress: Progress | None = None) -> bool:
        """The answer to the question before, if that is on its way."""
        kept = self._kept.pop() if self._kept else None
        mine = asyncio.ensure_future(super().heartbeat(task_id, token))
        if kept is None:
            self._kept.append(mine)
            await asyncio.sleep(0)
        return await (kept or mine)


def over(exchange: Callable[[Desk, str], Awaitable[str]]) -> Callable[[Any], Transport]:
    """A transport whose wire is that."""
    return lambda desk: FrameTransport(lambda frame: exchange(desk, frame))


def serial(desk: Any) -> Transport:
    """One question at a time, the next when the last one is answered."""
    turn = asyncio.Lock()

    async def exchange(frame: str) -> str:
        async with turn:
            return await serve(desk, frame)

    return FrameTransport(exchange)


def without(*words: str) -> Callable[[Any], Transport]:
    """A transport that does not carry some words of a question."""

    async def exchange(desk: Desk, frame: str) -> str:
        return await serve(
            desk, json.dumps({name: said for name, said in json.loads(frame).items() if name not in words})
        )

    return over(exchange)


async def tenacious(desk: Desk, frame: str) -> str:
    """The host goes on with what was given up."""
    return await asyncio.shield(asyncio.ensure_future(serve(desk, frame)))


async def narrow(desk: Desk, frame: str) -> str:
    """Long questions are cut."""
    return await serve(desk, frame[:1_000_000])


async def tight(desk: Desk, frame: str) -> str:
    """Long answers are cut."""
    return (await serve(desk, frame))[:1_000_000]


async def unanswered() -> str:
    """An answer that never comes."""
    never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    return await never


async def silent(desk: Desk, frame: str) -> str:
    """Nobody ever answers."""
    return await unanswered()


def late(desk: Any) -> Transport:
    """The answer to a question that was given up is taken for the answer to the next one."""
    answers: asyncio.Queue[str] = asyncio.Queue()
    serving: set[asyncio.Task[None]] = set()

    async def answer(frame: str) -> None:
        body = json.loads(frame)
        if body["op"] == "claim":
            frame = json.dumps({**body, "wait_ms": min(body["wait_ms"], 50)})
        await answers.put(await serve(desk, frame))

    async def exchange(frame: str) -> str:
        task = asyncio.ensure_future(answer(frame))
        serving.add(task)
        return await answers.get()

    return FrameTransport(exchange)


WRONG: dict[str, tuple[Callable[[Any], Transport], str]] = {
    "forgetful": (Forgetful, "a_task_goes_its_way"),
    "deaf": (Deaf, "a_start_after_the_end_of_the_lease_is_refused"),
    "greedy": (Greedy, "claims_are_for_lanes_and_commands"),
    "impatient": (Impatient, "a_claim_that_waits_is_woken_at_once"),
    "patient": (Patient, "a_claim_that_waits_in_vain_gets_nothing"),
    "clinging": (Clinging, "closing_ends_a_claim_that_waits"),
    "mixing": (Mixing, "answers_reach_whoever_asked"),
    "serial": (serial, "a_claim_that_waits_holds_up_nothing_else"),
    "tenacious": (over(tenacious), "a_claim_that_was_given_up_takes_nothing"),
    "narrow": (over(narrow), "long_texts_arrive_whole"),
    "tight": (over(tight), "long_texts_arrive_whole"),
    "silent": (over(silent), "a_task_goes_its_way"),
    "late": (late, "a_claim_that_was_given_up_takes_nothing"),
    "without labels": (without("labels"), "labels_decide_who_gets_a_task"),
    "without a wish": (without("lease_ms"), "a_worker_may_wish_for_a_lease"),
    "without progress": (without("progress"), "progress_arrives"),
    "without begun": (without("begun"), "what_has_begun_can_be_given_back"),
}


def wired(connect: Callable[[Any], Transport]) -> Callable[[Desk], Any]:
    """Both ends of something that needs nobody to listen."""

    @asynccontextmanager
    async def wire(desk: Desk) -> AsyncIterator[Callable[[], Transport]]:
        yield lambda: connect(desk)

    return wire


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if "long" in WRONG[name][1] else []) for name in WRONG]
)
def test_a_transport_that_does_it_wrong_is_noticed_by_the_check_that_is_about_it(name: str) -> None:
    connect, about = WRONG[name]
    [check] = [each for each in TRANSPORT_CHECKS if names(each) == about]

    async def run() -> None:
        async with desk_stage(wired(connect), host=fake_host())() as stage:
            await check(stage)

    with pytest.raises((AssertionError, LanewayError)):
        run_sim(run(), seed=0, shuffle=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["forgetful", "serial", "tenacious"])
def test_check_transport_says_which_check_a_transport_did_not_pass(name: str) -> None:
    connect, about = WRONG[name]
    with pytest.raises((AssertionError, LanewayError)) as caught:
        run_sim(check_transport(desk_stage(wired(connect), host=fake_host())), seed=0, shuffle=False)
    assert caught.value.__notes__[0] == f"while the transport had to pass check_{about}"


def test_a_transport_that_never_answers_fails_and_does_not_hang() -> None:
    stage = desk_stage(wired(over(silent)), host=fake_host())
    with pytest.raises(AssertionError, match="nobody answered within 30 s"):
        run_sim(check_transport(stage), seed=0, shuffle=False)


class Counted:
    """How many connections are open, and what still waits for an answer."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0

    def connect(self, desk: Any) -> Transport:
        """A connection that has to be closed."""
        self.opened += 1
        return FrameTransport(lambda frame: serve(desk, frame), close=self.close)

    async def close(self) -> None:
        """One of them hangs up."""
        self.closed += 1


@pytest.mark.slow
def test_check_transport_closes_every_transport_that_it_has_connected() -> None:
    counted = Counted()
    run_sim(check_transport(desk_stage(wired(counted.connect), host=fake_host())), seed=0, shuffle=False)
    assert counted.opened > len(TRANSPORT_CHECKS)
    assert counted.closed == counted.opened


def test_transports_are_closed_when_a_check_fails_too() -> None:
    counted = Counted()

    def connect(desk: Any) -> Transport:
        transport = counted.connect(desk)
        transport.start = Forgetful(desk).start  # type: ignore[method-assign] # for this one, nothing begins
        return transport

    with pytest.raises(AssertionError, match="check_a_task_goes_its_way"):
        run_sim(check_transport(desk_stage(wired(connect), host=fake_host())), seed=0, shuffle=False)
    assert counted.opened == counted.closed == 1


async def test_a_stage_that_is_left_has_closed_its_desk_before_its_wire() -> None:
    told: list[str] = []

    @asynccontextmanager
    async def wire(desk: Desk) -> AsyncIterator[Callable[[], Transport]]:
        yield lambda: FrameTransport(lambda frame: serve(desk, frame))
        try:
            await desk.claim("w")
        except TransportUnavailableError as error:
            told.append(str(error))

    async with desk_stage(wire)() as stage:
        await stage.put("t")
        assert [lease.task.task_id for lease in await stage.connect().claim("w")] == ["t"]
    assert told == ["the host is closed (try again when it is back)"]


# ---- closing ----


async def test_closing_ends_what_waits_and_nobody_elses_wait() -> None:
    told: list[str] = []

    async def exchange(frame: str) -> str:
        try:
            return await unanswered()
        except asyncio.CancelledError:
            told.append("given up")
            raise

    def hang_up() -> None:
        told.append("hung up")

    transport = FrameTransport(exchange, close=hang_up)
    asking = asyncio.ensure_future(transport.claim("w"))
    given_up = asyncio.ensure_future(transport.claim("w"))
    await asyncio.sleep(0)
    given_up.cancel()
    await transport.close()
    await asyncio.wait([asking, given_up])
    assert given_up.cancelled()
    with pytest.raises(TransportUnavailableError, match="closed"):
        await asking
    await transport.close()
    assert told == ["given up", "given up", "hung up"]


@pytest.mark.parametrize("kind", ["by itself", "by another", "swallowed"])
async def test_a_task_whose_question_was_ended_by_closing_goes_on_as_if_never_cancelled(kind: str) -> None:
    async def exchange(frame: str) -> str:
        if kind == "by itself":
            await transport.close()
            raise OSError("hung up")
        asyncio.get_running_loop().call_soon(closing.set)
        try:
            return await unanswered()
        except asyncio.CancelledError:
            if kind == "swallowed":
                raise EOFError from None
            raise

    async def close() -> None:
        await closing.wait()
        await transport.close()

    closing = asyncio.Event()
    transport = FrameTransport(exchange)
    helping = asyncio.ensure_future(close())
    with pytest.raises(TransportUnavailableError):
        await transport.heartbeat("t", "x")
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    closing.set()
    await helping


# ---- mistakes are told at once ----


class Session:
    """Looks like a session: it has a desk, and is none."""

    async def desk(self) -> None:
        """Nothing."""


@pytest.mark.parametrize("what", ["await forgotten", "session", None, "x"])
def test_a_local_transport_without_a_desk_is_refused(what: Any) -> None:
    given: Any = Session().desk() if what == "await forgotten" else Session() if what == "session" else what
    with pytest.raises(ConfigError, match=r"LocalTransport needs a desk, not .*await session\.desk\(\)") as caught:
        LocalTransport(given)
    assert ("nobody has awaited" in str(caught.value)) is (what == "await forgotten")


async def test_a_host_whose_desk_is_none_is_told_and_not_its_workers() -> None:
    given: Any = Session()
    with pytest.raises(ConfigError, match="serve needs a desk"):
        await serve(given, json.dumps({"v": 1, "id": 1, "op": "claim", "worker": "w"}))
    assert json.loads(await serve(given, "<html>"))["ok"] is False


@pytest.mark.parametrize("options", [{"exchange": "http://host"}, {"exchange": print, "close": "x"}])
def test_a_wire_that_is_no_function_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        FrameTransport(**options)


async def test_an_exchange_that_is_not_async_is_told_so() -> None:
    exchange: Any = lambda frame: "{}"  # noqa: E731 - it is what somebody might write
    with pytest.raises(ConfigError, match="exchange has to be async"):
        await FrameTransport(exchange).claim("w")


# ---- frames ----


def answered(**facts: Any) -> FrameTransport:
    """A transport whose host always answers the same."""

    async def exchange(frame: str) -> str:
        return json.dumps({"v": 1, "id": json.loads(frame)["id"], **facts})

    return FrameTransport(exchange)


TASK = {
    "task_id": "t",
    "session_id": "s",
    "run_id": "r",
    "lane": "execute",
    "command_type": "bash",
    "payload": {},
    "timeout_ms": 1,
    "remaining_ms": 1,
    "attempt": 1,
    "created_at": 1,
    "workspace": "",
    "idempotency_key": "",
    "tenant_id": "",
    "effect": "read",
    "state": "leased",
}


def lease(**changes: Any) -> dict[str, Any]:
    task = {**TASK, **changes.pop("task", {})}
    return {"task": task, "token": "x", "lease_ms": 5, **changes}


@pytest.mark.parametrize(
    ("facts", "field"),
    [
        ({}, "ok"),
        ({"ok": True}, "leases"),
        ({"ok": True, "v": 3}, "v is 3"),
        ({"ok": True, "id": 99, "leases": []}, "frame 99"),
        ({"ok": True, "leases": {}}, "leases"),
        ({"ok": True, "leases": [None]}, r"leases\[0\]"),
        ({"ok": True, "leases": [lease(token=1)]}, r"leases\[0\]\.token"),
        ({"ok": True, "leases": [lease(lease_ms=0)]}, "lease_ms"),
        ({"ok": True, "leases": [lease(task={"effect": "maybe"})]}, "effect"),
        ({"ok": True, "leases": [lease(task={"payload": []})]}, "payload"),
        ({"ok": True, "leases": [lease(task={"correlation_id": 1})]}, "correlation_id"),
        ({"ok": True, "leases": [lease(), lease(task={"attempt": "1"})]}, r"leases\[1\]\.task\.attempt"),
        ({"ok": False}, "error"),
        ({"ok": False, "error": {"code": "usage"}}, "error.message"),
    ],
)
async def test_an_answer_that_makes_no_sense_is_as_good_as_none(facts: dict[str, Any], field: str) -> None:
    with pytest.raises(TransportUnavailableError, match=field):
        await answered(**facts).claim("w")


async def test_what_a_newer_host_says_beyond_that_is_passed_over() -> None:
    found = await answered(ok=True, leases=[lease(more=1, task={"more": [2]})], more={}).claim("w")
    assert [each.task.task_id for each in found] == ["t"]
    assert found[0].task.correlation_id is None


@pytest.mark.parametrize("error", [OSError("refused"), EOFError(), TimeoutError()])
async def test_a_broken_connection_is_a_transport_that_is_unavailable(error: Exception) -> None:
    async def exchange(frame: str) -> str:
        raise error

    with pytest.raises(TransportUnavailableError):
        await FrameTransport(exchange).heartbeat("t", "x")


class Refusing:
    """A desk that answers everything with one error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def claim(self, worker: str, **wanted: Any) -> list[Lease]:
        """No."""
        raise self.error

    async def start(self, task_id: str, token: str) -> None:
        """No."""
        raise self.error

    async def heartbeat(self, task_id: str, token: str, progress: Progress | None = None) -> bool:
        """No."""
        raise self.error

    async def complete(self, task_id: str, token: str, result: ExternalTaskResult) -> bool:
        """No."""
        raise self.error

    async def release(self, task_id: str, token: str, reason: str = "", *, begun: bool = False) -> None:
        """No."""
        raise self.error


def through(error: Exception) -> FrameTransport:
    return FrameTransport(lambda frame: serve(Refusing(error), frame))


@pytest.mark.parametrize(
    "error",
    [
        LeaseLostError("gone", hint="stop", task_id="t", state="unknown"),
        StoreUnavailableError("the disk is full"),
        TransportUnavailableError("closing"),
        LaneFullError(lane="query", queued_max=3, waiting=3),
        LanewayError("whatever"),
        UsageError("é\ud800 \U0001f469", hint="\x00"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_is_the_same_on_the_other_side(error: LanewayError) -> None:
    with pytest.raises(type(error)) as caught:
        await through(error).start("t", "x")
    assert type(caught.value) is type(error)
    assert caught.value.code == error.code
    assert str(caught.value) == str(error).encode("utf-8", "backslashreplace").decode()
    assert {k: v for k, v in vars(caught.value).items() if k not in ("message", "hint")} == {
        k: v for k, v in vars(error).items() if k not in ("message", "hint")
    }


async def test_a_host_that_fails_says_so_and_lives_on() -> None:
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        await through(ZeroDivisionError("oops")).heartbeat("t", "x")


async def test_an_error_that_nobody_knows_is_still_an_error() -> None:
    error = {"code": "of tomorrow", "message": "new", "hint": 7, "facts": {"state": "x", "__class__": "y", "code": 1}}
    with pytest.raises(LanewayError, match="new") as caught:
        await answered(ok=False, error=error).start("t", "x")
    assert vars(caught.value) == {"message": "new", "hint": "", "state": "x"}


async def test_what_cannot_be_sent_is_the_callers_fault() -> None:
    with pytest.raises(UsageError):
        await answered(ok=True).claim(object())  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        await answered(ok=True, accepted=True).complete("t", "x", ExternalTaskResult(result=float("nan")))


@pytest.mark.parametrize("frame", [b"\xff", b'{"v":1,"id":3}', "x" * 64_000_001, bytearray(b"{}"), 7])
async def test_frames_of_any_kind_are_answered(frame: Any) -> None:
    answer = json.loads(await serve(Refusing(ZeroDivisionError()), frame))
    assert answer["ok"] is False
    assert answer["error"]["code"] == "usage"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ("v", "id", "op", "worker", "lanes", "limit", "wait_ms", "commands", "task_id", "token", "result", "reason")
OPS = st.sampled_from(["claim", "start", "heartbeat", "complete", "release"])
FRAMES = st.fixed_dictionaries(
    {"v": st.just(1), "id": st.just(7), "op": OPS},
    optional={name: VALUES for name in FIELDS if name not in ("v", "id", "op")},
)


@pytest.mark.slow
@settings(max_examples=300)
@given(frame=st.text() | VALUES.map(json.dumps) | FRAMES.map(json.dumps))
def test_no_frame_brings_a_host_down(frame: str) -> None:
    answer = json.loads(asyncio.run(serve(Refusing(LeaseLostError("gone")), frame)))
    assert answer["ok"] is False
    assert answer["error"]["code"] in ("usage", "lease_lost")


async def test_a_desk_whose_loop_is_closed_is_unavailable() -> None:
    loop = asyncio.new_event_loop()
    loop.close()

    class Gone(Refusing):
        """Nobody runs its loop any more."""

        def __init__(self) -> None:
            super().__init__(ZeroDivisionError())
            self.loop = loop

    with pytest.raises(TransportUnavailableError):
        await LocalTransport(Gone()).claim("w")
