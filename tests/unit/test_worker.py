"""Workers: nothing begins before the host says so, nothing that was begun is forgotten, and a stop is a good one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from laneway import Inbox, PermissionPolicy, ToolContext, tool
from laneway.errors import ConfigError, LeaseLostError, TransportUnavailableError, UsageError
from laneway.external import ExternalTask, ExternalTaskResult, Lease
from laneway.kernel.task_board import TaskEnd
from laneway.ports import Transport
from laneway.runtime.task_desk import TaskDesk
from laneway.testing import fake_host
from laneway.testing.transports import DeskStage
from laneway.tools import builtin_tools
from laneway.transports import FrameTransport, LocalTransport
from laneway.worker import Worker
from tests.inbox_stage import Agent, new_inbox, staged
from tests.stage import now_ms, passing

LEASE = 900


class Shaky:
    """A transport that writes down what is said, and can be cut: before the host hears, or before the worker does."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.said: list[str] = []
        self.deaf: set[str] = set()  # the host does not hear these
        self.mute: set[str] = set()  # the worker does not hear the answers to these
        self.silent: list[str] = []  # nobody ever answers the next of these
        self.limits: list[int] = []
        self.wanted: list[dict[str, Any]] = []
        self.overrides: dict[str, Any] = {}  # what is asked for instead
        self.asked_at: list[int] = []
        self.beaten = asyncio.Event()

    async def _say(self, what: str, task_id: str, call: Any) -> Any:
        if what in self.silent:
            self.silent.remove(what)
            call.close()
            await asyncio.get_running_loop().create_future()
        if what in self.deaf:
            call.close()
            raise TransportUnavailableError("nobody answers")
        self.said.append(f"{what} {task_id}".strip())
        answer = await call
        if what in self.mute:
            raise TransportUnavailableError("the answer was lost")
        return answer

    async def claim(self, worker: str, *, limit: int = 1, **wanted: Any) -> list[Lease]:
        """Take tasks."""
        self.limits.append(limit)
        self.asked_at.append(now_ms())
        self.wanted.append({name: wanted[name] for name in ("commands", "lanes")})
        wanted |= self.overrides
        leases: list[Lease] = await self._say("claim", "", self._inner.claim(worker, limit=limit, **wanted))
        return leases

    async def start(self, task_id: str, token: str) -> None:
        """Begin."""
        await self._say("start", task_id, self._inner.start(task_id, token))

    async def heartbeat(self, task_id: str, token: str) -> bool:
        """A sign of life."""
        wanted: bool = await self._say("heartbeat", task_id, self._inner.heartbeat(task_id, token))
        self.beaten.set()
        return wanted

    async def complete(self, task_id: str, token: str, result: ExternalTaskResult) -> bool:
        """The end."""
        counts: bool = await self._say("complete", task_id, self._inner.complete(task_id, token, result))
        return counts

    async def release(self, task_id: str, token: str, reason: str = "") -> None:
        """Give back."""
        await self._say("release", task_id, self._inner.release(task_id, token, reason))

    async def close(self) -> None:
        """Nothing to close."""

    def times(self, what: str) -> int:
        """How often something was said."""
        return sum(each.split()[0] == what for each in self.said)


class Bench:
    """A desk and one worker of it."""

    def __init__(self, desk: TaskDesk) -> None:
        self.desk = desk
        self.stage = DeskStage(desk, lambda: LocalTransport(desk), lease_ms=LEASE)
        self.line = Shaky(LocalTransport(desk))
        self.began: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.gate = asyncio.Event()
        self.peak = 0

    async def hold(self, task: ExternalTask) -> str:
        """A handler that lasts until the gate opens."""
        self.began.append(task.task_id)
        self.peak = max(self.peak, len(self.began) - len(self.ended))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(task.task_id)
            raise
        finally:
            self.ended.append(task.task_id)
        return f"did {task.task_id}"

    def worker(self, **options: Any) -> Worker:
        """A worker with that handler."""
        options.setdefault("handlers", {"bash": self.hold})
        return Worker(self.line, name="w", host=fake_host(), **options)

    async def put(self, *ids: str, effect: str = "read", **facts: Any) -> None:
        """Tasks."""
        for task_id in ids:
            await self.stage.put(task_id, effect, **facts)

    async def end(self, task_id: str = "t") -> TaskEnd:
        """How a task has ended."""
        return await self.desk.outcome(task_id)

    async def did(self, task_id: str = "t") -> ExternalTaskResult:
        """What became of a task."""
        result = (await self.end(task_id)).result
        assert result is not None
        return result


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    async with new_inbox() as inbox:
        desk = TaskDesk(inbox.engine)
        yield Bench(desk)
        desk.close()


@asynccontextmanager
async def real_bench() -> AsyncIterator[Bench]:
    async with Inbox(Agent()) as inbox:
        desk = TaskDesk(inbox.engine)
        yield Bench(desk)
        desk.close()


# ---- the way of a task ----


@staged
async def test_a_worker_claims_starts_does_and_completes() -> None:
    async with bench() as on, on.worker() as worker:
        on.gate.set()
        await on.put("t", effect="write")
        assert await on.did() == ExternalTaskResult(result="did t")
        await passing(1)
        assert [each for each in on.line.said if each != "claim"] == ["start t", "complete t"]
        assert worker.stats[:3] == (0, 1, 1)


@staged
async def test_nothing_begins_before_the_start_is_answered() -> None:
    async with bench() as on, on.worker():
        on.line.deaf = {"start"}
        await on.put("t", effect="write")
        await passing(LEASE // 2)
        assert on.began == []
        on.line.deaf = set()
        on.gate.set()
        assert (await on.end()).state == "completed"
        assert on.began == ["t"]


@staged
async def test_a_start_whose_answer_was_lost_is_said_again_and_begins_once() -> None:
    async with bench() as on, on.worker():
        on.line.mute = {"start"}
        on.gate.set()
        await on.put("t", effect="write")
        await passing(20)
        on.line.mute = set()
        assert (await on.end()).state == "completed"
        assert on.began == ["t"]
        assert on.line.times("start") > 1


@staged
async def test_a_write_whose_start_came_too_late_is_told_to_be_unbegun() -> None:
    async with bench() as on, on.worker():
        on.line.mute = {"start"}
        await on.put("t", effect="write")
        await passing(10)
        on.line.deaf = {"start"}
        assert (await on.end()).state == "unknown", "the host heard that it begins, and nothing more"
        on.line.mute = on.line.deaf = set()
        await passing(10_000)
        assert on.began == []
        end = await on.end()
        assert (end.state, end.reason) == ("failed", "the worker could not reach its host in time, and did not begin")


@staged
async def test_a_task_that_is_somebody_elses_by_then_is_not_begun() -> None:
    async with bench() as on, on.worker(concurrency=1) as worker:
        on.line.deaf = {"start"}
        await on.put("t", effect="write")
        await passing(LEASE + 10)
        other = (await LocalTransport(on.desk).claim("other"))[0]
        await on.desk.start("t", other.token)
        on.line.deaf = set()
        await passing(500)
        assert on.began == []
        assert worker.stats.refused == 1
        assert await on.desk.complete("t", other.token, ExternalTaskResult(result="by the other"))


@staged
async def test_a_worker_does_as_many_at_once_as_it_may_and_asks_for_no_more() -> None:
    async with bench() as on, on.worker(concurrency=3) as worker:
        await on.put(*(f"t{number}" for number in range(7)))
        await passing(5)
        assert (on.began, worker.stats.running) == (["t0", "t1", "t2"], 3)
        on.gate.set()
        ends = [await on.end(f"t{number}") for number in range(7)]
        assert {end.state for end in ends} == {"completed"}
        assert on.peak == 3
        assert max(on.line.limits) == 3


@staged
async def test_signs_of_life_come_three_times_in_a_lease() -> None:
    async with bench() as on, on.worker():
        await on.put("t", effect="write")
        await passing(10 * LEASE + 50)
        assert 28 <= on.line.times("heartbeat") <= 30
        on.gate.set()
        assert (await on.end()).state == "completed"


@staged
async def test_an_idle_worker_asks_once_in_its_wait() -> None:
    async with bench() as on, on.worker(wait_ms=20_000):
        await passing(60_010)
        assert on.line.times("claim") <= 4


# ---- work that nobody wants any more ----


@staged
async def test_withdrawn_work_is_stopped_at_the_next_sign_of_life() -> None:
    async with bench() as on, on.worker() as worker:
        await on.put("t")
        await passing(5)
        on.desk.withdraw("t", "the run was ended")
        await passing(LEASE // 3 + 5)
        assert on.cancelled == ["t"]
        assert worker.stats[:1] == (0,)
        assert worker.stats.stopped == 1
        assert on.line.times("complete") == 0


@staged
async def test_work_whose_time_is_over_is_stopped() -> None:
    async with bench() as on, on.worker() as worker:
        await on.put("t", timeout_ms=100)
        assert (await on.end()).state == "timed_out"
        await passing(5)
        assert (on.cancelled, worker.stats.stopped) == (["t"], 1)


@staged
async def test_work_whose_lease_was_lost_is_stopped() -> None:
    async with bench() as on, on.worker(concurrency=1) as worker:
        await on.put("t")
        await passing(5)
        on.line.deaf = {"heartbeat"}
        await passing(LEASE)
        assert on.cancelled == []
        other = (await LocalTransport(on.desk).claim("other"))[0]
        assert other.task.attempt == 2
        on.line.deaf = set()
        await passing(LEASE // 2)
        assert (on.cancelled, worker.stats.stopped) == (["t"], 1)


# ---- a host that cannot be reached ----


@staged
async def test_a_result_waits_until_the_host_is_back() -> None:
    async with bench() as on, on.worker():
        await on.put("t", effect="write")
        await passing(5)
        on.line.deaf = {"heartbeat", "complete", "claim"}
        on.gate.set()
        assert (await on.end()).state == "unknown"
        on.line.deaf = set()
        await passing(6_000)
        assert (await on.end()).state == "completed", "a late result of a write settles it"
        assert on.began == ["t"]


@staged
async def test_a_result_whose_answer_was_lost_counts_once() -> None:
    async with bench() as on, on.worker() as worker:
        on.line.mute = {"complete"}
        on.gate.set()
        await on.put("t")
        await on.end()
        await passing(1_000)
        on.line.mute = set()
        await passing(6_000)
        assert worker.stats.completed == 1
        assert on.line.times("complete") > 1


@staged
async def test_a_worker_asks_again_with_growing_pauses() -> None:
    async with bench() as on:
        on.line.deaf = {"claim"}
        async with on.worker():
            await passing(60_000)
            times = on.line.asked_at
            pauses = [later - one for one, later in pairwise(times)]
            assert pauses[0] <= 110
            assert 2_500 <= max(pauses) <= 5_000
            assert 10 <= len(times) <= 40
            on.line.deaf = set()
            on.gate.set()
            await on.put("t")
            assert (await on.end()).state == "completed"


@pytest.mark.parametrize("what", ["claim", "start", "heartbeat", "complete"])
def test_a_host_that_never_answers_is_asked_again(what: str) -> None:
    @staged
    async def run() -> None:
        async with bench() as on:
            on.line.silent = [what]
            async with on.worker(wait_ms=1_000):
                await on.put("t", effect="write", lease_ms=300_000)
                await passing(200_000)
                on.gate.set()
                assert (await on.end()).state == "completed"
                await passing(70_000)
                assert on.line.times("complete") == 1
                assert on.line.silent == []

    run()
    assert what


class Nonsense(Shaky):
    """A transport that refuses for good, or breaks in ways of its own."""

    def __init__(self, error: Exception) -> None:
        super().__init__(FrameTransport(print))  # type: ignore[arg-type] # nobody gets that far
        self.error = error
        self.asked = 0

    async def claim(self, worker: str, **wanted: Any) -> list[Lease]:
        """No."""
        self.asked += 1
        raise self.error


@staged
async def test_what_the_host_refuses_for_good_ends_the_worker() -> None:
    line = Nonsense(UsageError("a worker has a name"))
    with pytest.raises(UsageError, match="a worker has a name"):
        await Worker(line, handlers={"bash": print}).run()
    assert line.asked == 1


@staged
async def test_an_error_of_the_transport_itself_is_survived() -> None:
    line = Nonsense(ZeroDivisionError("oops"))
    async with Worker(line, handlers={"bash": print}, host=fake_host()):
        await passing(2_000)
        assert line.asked > 3


# ---- what handlers do ----


@staged
async def test_a_worker_leaves_what_it_cannot_do_to_others() -> None:
    async with bench() as on:
        glob, ls = {"glob": lambda task: "by A"}, {"ls": lambda task: "by B"}
        async with on.worker(handlers=glob), Worker(LocalTransport(on.desk), handlers=ls, name="B", host=fake_host()):
            for number in range(4):
                await on.put(f"g{number}", command_type="glob")
                await on.put(f"l{number}", command_type="ls")
            assert [(await on.did(f"g{number}")).result for number in range(4)] == ["by A"] * 4
            assert [(await on.did(f"l{number}")).result for number in range(4)] == ["by B"] * 4


@staged
async def test_a_task_that_no_worker_can_do_waits_for_one_that_can() -> None:
    async with bench() as on, on.worker() as worker:
        await on.put("t", effect="write", command_type="deploy")
        await passing(30_000)
        assert (await on.stage.state("t"), worker.stats.claimed) == ("pending", 0)


@tool(effect="read")
def look(text: str) -> str:
    """Look."""
    return text


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"handlers": {"bash": print, "ls": print}}, ("bash", "ls")),
        ({"tools": [look]}, ("look",)),
        ({"tools": [look], "handlers": {"bash": print, "look": print}}, ("bash", "look")),
        ({"handlers": {"bash": print, "ls": print}, "commands": ["ls"]}, ("ls",)),
        ({}, tuple(each.spec.name for each in builtin_tools())),
        ({"commands": ["read", "grep"], "lanes": ["Query"]}, ("read", "grep")),
    ],
)
@staged
async def test_a_worker_asks_for_what_it_can_do_and_commands_narrow_it(
    options: dict[str, Any], asked: tuple[str, ...]
) -> None:
    async with bench() as on:
        async with Worker(on.line, name="w", host=fake_host(), **options):
            await passing(1)
        assert on.line.wanted == [{"commands": asked, "lanes": tuple(map(str.lower, options.get("lanes", ())))}]


@staged
async def test_what_a_worker_did_not_ask_for_and_cannot_do_is_a_failure() -> None:
    async with bench() as on:
        on.line.overrides = {"commands": ()}  # a host that gives anybody anything
        async with on.worker():
            await on.put("t", effect="write", command_type="deploy")
            assert await on.did() == ExternalTaskResult(success=False, error="this worker does not handle deploy")
            assert on.line.times("start") == 0


@staged
async def test_a_worker_that_asks_for_commands_leaves_the_others() -> None:
    handlers = {"bash": lambda task: "ok", "deploy": lambda task: "no"}
    async with bench() as on, on.worker(handlers=handlers, commands=["bash"], lanes=["execute"]):
        await on.put("other", command_type="deploy")
        await on.put("query", lane="query")
        await on.put("t")
        assert (await on.end()).state == "completed"
        assert [task.task_id for task in on.desk.tasks()] == ["other", "query"]


class Rude(BaseException):
    """What no handler should raise."""


@pytest.mark.parametrize(
    ("said", "result"),
    [
        ("text", ExternalTaskResult(result="text")),
        ({"output": "x", "exit_code": 3}, ExternalTaskResult(result={"output": "x", "exit_code": 3})),
        ({"success": False, "error": "no"}, ExternalTaskResult(success=False, error="no")),
        (ExternalTaskResult(success=False, error="no"), ExternalTaskResult(success=False, error="no")),
        (None, ExternalTaskResult()),
        (ValueError("bad"), ExternalTaskResult(success=False, error="ValueError: bad")),
        (TimeoutError("slow"), ExternalTaskResult(success=False, error="TimeoutError: slow")),
        (SystemExit(3), ExternalTaskResult(success=False, error="SystemExit: 3")),
        (Rude(), ExternalTaskResult(success=False, error="Rude: ")),
        (object, "cannot be sent"),
    ],
    ids=lambda value: str(value)[:20],
)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_whatever_a_handler_does_is_a_result(said: Any, result: Any, kind: str) -> None:
    def give(task: ExternalTask) -> Any:
        if isinstance(said, BaseException):
            raise said
        return said

    async def give_later(task: ExternalTask) -> Any:
        return give(task)

    @staged
    async def run() -> None:
        async with bench() as on, on.worker(handlers={"bash": give if kind == "sync" else give_later}) as worker:
            for name in ("t", "u"):
                await on.put(name)
                found = await on.did(name)
                if isinstance(result, str):
                    assert not found.success
                    assert result in (found.error or "")
                else:
                    assert found == result
            await passing(1)
            assert worker.stats.completed + worker.stats.failed == 2

    run()
    assert kind


async def test_a_result_that_is_too_long_is_a_failure_that_says_so() -> None:
    async with real_bench() as on, on.worker(handlers={"bash": lambda task: "x" * 10_000_001}):
        await on.put("t")
        assert "at most 10,000,000 bytes" in ((await on.did()).error or "")


@staged
async def test_a_handler_gets_the_task_as_it_was_asked_for() -> None:
    seen: list[ExternalTask] = []

    def note(task: ExternalTask) -> str:
        seen.append(task)
        return "ok"

    async with bench() as on, on.worker(handlers={"bash": note}):
        await on.put("t", payload={"command": "ls"}, run_id="r")
        await on.end()
        assert [(task.payload, task.run_id, task["lane"]) for task in seen] == [({"command": "ls"}, "r", "execute")]


async def nobody(frame: str) -> str:
    """A wire that leads nowhere."""
    raise OSError


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"wait_ms": 0}, "wait_ms"),
        ({"name": ""}, "a worker has a name of 1 to 200 characters"),
        ({"handlers": {"bash": "no"}}, "handlers are functions by the name of a tool"),
        ({"handlers": {7: print}}, "handlers are functions by the name of a tool"),
        ({"handlers": [print]}, r"handlers are functions by the name of a tool.*handlers=\{"),
        ({"handlers": {}}, "can do nothing .*built-in tools"),
        ({"tools": []}, "can do nothing"),
        ({"tools": look}, r"tools must be a list of tools, not <tool look> .*\[my_tool\]"),
        ({"tools": {"bash": print}}, "tools must be a list of tools.*handlers="),
        ({"lanes": ["exec"]}, "did you mean 'execute'"),
        ({"lanes": "execute"}, r"lanes must be a list.*lanes=\['execute'\]"),
        ({"commands": ["gerp"]}, "commands has 'gerp', which this worker cannot do .did you mean 'grep'"),
        ({"handlers": {"ls": print}, "commands": ["zzz"]}, "it can do: ls"),
        ({"commands": "bash"}, r"commands=\['bash'\]"),
        ({"commands": [["bash"]]}, "cannot do"),
        ({"handlers": {f"t{number}": print for number in range(1_001)}}, "1,000 commands, not 1,001"),
        ({"workspace": 7}, "workspace must be a path"),
        ({"workspace": __file__}, "is not a folder"),
        ({"permission_policy": {"deny": ["bash"]}}, "must be a PermissionPolicy"),
        ({"permission_policy": PermissionPolicy(deny=["bash(rm"])}, "its bracket is not closed"),
        ({"environment": ["A=1"]}, "environment"),
        ({"environment": {"A": 1}}, "environment"),
    ],
)
def test_a_worker_with_settings_that_make_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Worker(FrameTransport(nobody), **options)


@pytest.mark.parametrize("given", ["x", None, object()])
def test_a_worker_without_a_transport_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"a worker needs a transport, not .* claim, start.*LocalTransport\("):
        Worker(given)


def test_a_worker_whose_transport_nobody_has_awaited_is_told_so() -> None:
    connecting: Any = nobody("")
    with pytest.raises(ConfigError, match="nobody has awaited"):
        Worker(connecting)


def test_a_workspace_that_does_not_exist_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Worker(FrameTransport(nobody), workspace=tmp_path)
    assert caplog.records == []
    Worker(FrameTransport(nobody), workspace=tmp_path / "nothing")
    assert "nothing of a worker does not exist" in caplog.text


async def test_a_workspace_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    async with real_bench() as on:
        await outcomes(on, Worker(on.line, workspace="~/work"), [("write", {"path": "a", "content": "x"})])
    assert (tmp_path / "work" / "a").read_text() == "x"


# ---- stopping ----


@staged
async def test_a_worker_that_stops_finishes_what_runs_and_takes_nothing_more() -> None:
    async with bench() as on:
        worker = on.worker(concurrency=1)
        running = asyncio.get_running_loop().create_task(worker.run())
        await on.put("t", "next", effect="write")
        await passing(5)
        stopping = asyncio.get_running_loop().create_task(worker.stop())
        await passing(5)
        assert not stopping.done()
        on.gate.set()
        await stopping
        await running
        assert [(await on.stage.state(name)) for name in ("t", "next")] == ["completed", "pending"]
        await worker.stop()
        with pytest.raises(UsageError):
            await worker.run()


@staged
async def test_a_worker_that_stops_gives_back_what_it_has_not_begun() -> None:
    async with bench() as on:
        worker = on.worker()
        running = asyncio.get_running_loop().create_task(worker.run())
        on.line.deaf = {"start"}
        await on.put("t", effect="write")
        await passing(20)
        assert await on.stage.state("t") == "leased"
        await worker.stop()
        await running
        assert await on.stage.state("t") == "pending"
        assert on.began == []


@staged
async def test_a_worker_that_stops_says_that_a_write_was_not_begun_if_the_host_may_believe_so() -> None:
    async with bench() as on:
        worker = on.worker()
        running = asyncio.get_running_loop().create_task(worker.run())
        on.line.mute = {"start"}
        await on.put("t", effect="write")
        await on.put("r", effect="idempotent")
        await passing(20)
        await worker.stop()
        await running
        assert (await on.end()).state == "failed"
        assert await on.stage.state("r") == "started", "another worker gets it when the lease has ended"
        assert on.began == []


@staged
async def test_a_stop_that_takes_too_long_cuts_the_work_short() -> None:
    async with bench() as on:
        worker = on.worker()
        running = asyncio.get_running_loop().create_task(worker.run())
        await on.put("t", effect="write")
        await passing(5)
        await worker.stop(timeout_ms=100)
        await running
        assert on.cancelled == ["t"]
        assert (await on.end()).state == "unknown"


@staged
async def test_a_worker_that_is_cancelled_leaves_nothing_behind() -> None:
    async with bench() as on:
        worker = on.worker()
        running = asyncio.get_running_loop().create_task(worker.run())
        await on.put("t")
        await passing(5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (on.cancelled, worker.stats.running) == (["t"], 0)
        await on.put("u")
        await passing(LEASE + 10)
        assert sorted(task.state for task in on.desk.tasks()) == ["pending", "pending"]


@staged
async def test_a_worker_that_never_ran_stops_at_once() -> None:
    async with bench() as on:
        await on.worker().stop()
        async with on.worker():
            assert on.line.said == []
        assert on.line.said == []


# ---- tools, in real time ----


@tool(effect="read")
def shout(text: str, context: ToolContext) -> str:
    """Say it louder."""
    return f"{text.upper()} {context.key} {context.attempt} {threading.current_thread().name[:14]}"


async def outcomes(on: Bench, worker: Worker, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[ExternalTaskResult]:
    """What becomes of some calls, one after another."""
    found: list[ExternalTaskResult] = []
    async with worker:
        for number, (command, payload) in enumerate(calls):
            await on.put(f"t{number}", effect="write", command_type=command, payload=payload, lease_ms=30_000)
            found.append(await on.did(f"t{number}"))
    return found


async def test_a_worker_runs_tools_in_its_own_workspace(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    async with real_bench() as on:
        worker = Worker(on.line, workspace=tmp_path)
        done = await outcomes(
            on,
            worker,
            [
                ("write", {"path": "a.txt", "content": "hello"}),
                ("write", {"path": "b.txt", "content": "below", "working_dir": "sub"}),
                ("read", {"path": "b.txt", "working_dir": "sub"}),
                ("read", {"path": "a.txt", "working_dir": ".."}),
                ("read", {"path": "nothing.txt"}),
                ("read", {"paht": "a.txt"}),
            ],
        )
    assert [each.success for each in done] == [True, True, True, False, False, False]
    assert (tmp_path / "a.txt").read_text() == "hello"
    assert (tmp_path / "sub" / "b.txt").read_text() == "below"
    assert "below" in done[2].to_output().text
    assert "outside of the workspace" in (done[3].error or "")
    assert "does not exist" in (done[4].error or "")
    assert "Not run" in (done[5].error or "")


@pytest.mark.slow
async def test_a_worker_runs_commands_and_tells_their_exit_codes(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    async with real_bench() as on:
        worker = Worker(on.line, workspace=tmp_path, environment={"COLOUR": "red"})
        done = await outcomes(
            on,
            worker,
            [
                ("bash", {"command": "pwd; echo $COLOUR", "working_dir": "sub"}),
                ("bash", {"command": "echo no >&2; exit 3"}),
            ],
        )
    assert done[0].to_output().text == f"{tmp_path}/sub\nred\n"
    assert (done[1].to_output().exit_code, done[1].to_output().is_error) == (3, True)


async def test_a_worker_runs_tools_of_ones_own_with_the_key_of_the_call(tmp_path: Path) -> None:
    async with real_bench() as on:
        done = await outcomes(on, Worker(on.line, [shout], workspace=tmp_path), [("shout", {"text": "hey"})])
    assert done[0].to_output().text == "HEY key-t0 1 laneway-worker"


async def test_a_policy_of_the_worker_can_only_deny(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("SECRET=1")
    (tmp_path / "a.txt").write_text("SECRET=none")
    policy = PermissionPolicy(deny=["read(**/.env*)", "write"], default_decision="ask")
    async with real_bench() as on:
        worker = Worker(on.line, workspace=tmp_path, permission_policy=policy)
        done = await outcomes(
            on,
            worker,
            [
                ("read", {"path": ".env"}),
                ("write", {"path": "b.txt", "content": ""}),
                ("grep", {"pattern": "SECRET"}),
            ],
        )
    assert [(each.error or "").startswith("[Denied by the worker") for each in done] == [True, True, False]
    assert "a.txt" in done[2].to_output().text
    assert ".env" not in done[2].to_output().text


async def test_a_thread_that_cannot_be_stopped_keeps_its_slot_until_it_ends(tmp_path: Path) -> None:
    begun, end = threading.Event(), threading.Event()

    def block(task: ExternalTask) -> str:
        begun.set()
        end.wait(5)
        return "late"

    async with real_bench() as on:
        worker = Worker(on.line, handlers={"bash": block}, concurrency=1)
        async with worker:
            await on.put("t", lease_ms=30)
            await asyncio.to_thread(begun.wait, 5)
            on.desk.withdraw("t", "stop")
            await on.line.beaten.wait()
            await asyncio.sleep(0)
            assert worker.stats.running == 1
            end.set()
            await on.put("u")
            assert (await on.did("u")).result == "late"
        with pytest.raises(LeaseLostError):
            await on.desk.complete("t", "x", ExternalTaskResult())
