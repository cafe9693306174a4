"""What a worker does with a task: handlers, tools in its own workspace, and settings that make no sense."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from laneway import PermissionPolicy, ToolContext, tool
from laneway.errors import ConfigError, LeaseLostError, UsageError
from laneway.external import ExternalTask, ExternalTaskResult
from laneway.testing import fake_host
from laneway.tools import builtin_tools
from laneway.transports import FrameTransport, LocalTransport
from laneway.worker import Worker
from tests.inbox_stage import staged
from tests.stage import passing
from tests.worker_stage import Shaky, bench, outcomes, real_bench

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
        wanted = {"commands": asked, "lanes": tuple(map(str.lower, options.get("lanes", ())))}
        assert on.line.wanted == [wanted, wanted], "it asks whether somebody is there, and then it waits"


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
        (KeyboardInterrupt(), ExternalTaskResult(success=False, error="KeyboardInterrupt: ")),
        (GeneratorExit(), ExternalTaskResult(success=False, error="GeneratorExit: ")),
        (asyncio.CancelledError(), "the handler was cancelled, and not by its worker"),
        (StopIteration(), "raised StopIteration"),
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
        await on.put("t", lease_ms=30_000)
        assert "at most 10,000,000 bytes" in ((await on.did()).error or "")


async def test_an_error_that_is_too_long_is_cut_and_told() -> None:
    def fail(task: ExternalTask) -> str:
        raise RuntimeError("x" * 10_000_001)

    async with real_bench() as on, on.worker(handlers={"bash": fail}):
        await on.put("t", lease_ms=30_000)
        error = (await on.did()).error or ""
    assert error.startswith("RuntimeError: xxx")
    assert error.endswith("characters more]")
    assert len(error) < 101_000


@staged
async def test_a_failure_that_is_refused_is_told_as_a_short_one() -> None:
    class Narrow(Shaky):
        async def complete(self, task_id: str, token: str, result: ExternalTaskResult) -> bool:
            if len(result.error or "") > 1_000:
                raise UsageError("too large for the proxy")
            return await super().complete(task_id, token, result)

    failure = ExternalTaskResult(success=False, error="x" * 2_000)
    async with bench() as on:
        on.line = Narrow(on.line)
        async with on.worker(handlers={"bash": lambda task: failure}) as worker:
            await on.put("t", effect="write")
            said = "its result was refused: too large for the proxy"
            assert await on.did() == ExternalTaskResult(success=False, error=said)
            await passing(1)
            assert worker.stats.failed == 1


@pytest.mark.parametrize("waits", [True, False])
def test_a_handler_that_cancels_itself_has_failed(waits: bool) -> None:
    async def cancel(task: ExternalTask) -> str:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        if waits:
            await asyncio.sleep(0)
        return "?"

    @staged
    async def run() -> None:
        async with bench() as on, on.worker(handlers={"bash": cancel}):
            await on.put("t", effect="write")
            said = "the handler was cancelled, and not by its worker"
            assert await on.did() == ExternalTaskResult(success=False, error=said)

    run()
    assert waits in (True, False)


@staged
async def test_a_handler_may_write_into_its_task_and_its_result_is_told_all_the_same() -> None:
    def scribble(task: ExternalTask) -> object:
        task["task_id"] = "other"
        del task["command_type"]
        return object()

    told: list[tuple[str, str | None]] = []
    async with bench() as on:
        worker = on.worker(handlers={"bash": scribble})
        worker.watch(lambda news: told.append((news.kind, news.task.task_id if news.task else None)))
        async with worker:
            await on.put("t", effect="write")
            assert "what the handler of bash gave back cannot be sent" in ((await on.did()).error or "")
    assert told == [("ready", None), ("began", "t"), ("ended", "t")]


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


@pytest.mark.parametrize("given", ["x", 0, object()])
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


# ---- tools, in real time ----


@tool(effect="read")
def shout(text: str, context: ToolContext) -> str:
    """Say it louder."""
    return f"{text.upper()} {context.key} {context.attempt} {threading.current_thread().name[:14]}"


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
        end.wait(60)
        return "late"

    async with real_bench() as on:
        worker = Worker(on.line, handlers={"bash": block}, concurrency=1)
        async with worker:
            await on.put("t", lease_ms=30)
            await asyncio.to_thread(begun.wait, 60)
            on.desk.withdraw("t", "stop")
            await on.line.beaten.wait()
            await asyncio.sleep(0)
            assert worker.stats.running == 1
            end.set()
            await on.put("u", lease_ms=30_000)
            assert (await on.did("u")).result == "late"
        with pytest.raises(LeaseLostError):
            await on.desk.complete("t", "x", ExternalTaskResult())


async def test_a_policy_of_the_worker_holds_for_handlers_too(tmp_path: Path) -> None:
    policy = PermissionPolicy(deny=["bash(rm *)"], default_decision="allow")
    async with real_bench() as on:
        worker = Worker(on.line, handlers={"bash": lambda task: "done"}, workspace=tmp_path, permission_policy=policy)
        done = await outcomes(on, worker, [("bash", {"command": "rm -rf x"}), ("bash", {"command": "ls"})])
    assert [(each.error or "").startswith("[Denied by the worker") for each in done] == [True, False]


async def test_handlers_find_their_folder_although_the_worker_that_runs_is_a_copy(tmp_path: Path) -> None:
    made = Worker(workspace="/")

    @made.handler("bash")
    def where(task: ExternalTask) -> str:
        return made.folder_of(task)

    async with real_bench() as on:
        worker = made.copy(workspace=tmp_path)
        worker.connect(on.line)
        done = await outcomes(on, worker, [("bash", {"command": "pwd"})])
    assert done[0].to_output().text.endswith(tmp_path.name)


async def test_tools_for_files_do_not_see_what_is_hidden(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "w.token").write_text("lw_secret")
    (tmp_path / "link").symlink_to(keys / "w.token")
    (tmp_path / "a.txt").write_text("lw_none")
    async with real_bench() as on:
        worker = Worker(on.line, workspace=tmp_path, hidden=[keys / "w.token"])
        done = await outcomes(
            on,
            worker,
            [
                ("read", {"path": "keys/w.token"}),
                ("read", {"path": "link"}),
                ("read", {"path": "w.token", "working_dir": "keys"}),
                ("write", {"path": "keys/w.token", "content": "mine"}),
                ("edit", {"path": "keys/w.token", "old": "lw_secret", "new": "mine"}),
                ("grep", {"pattern": "lw_"}),
            ],
        )
    assert [each.success for each in done] == [False] * 5 + [True]
    assert "secret" not in str(done)
    assert "a.txt" in done[5].to_output().text
    assert (keys / "w.token").read_text() == "lw_secret"
    assert f"its commands can read {keys / 'w.token'} in its workspace" in caplog.text


@pytest.mark.parametrize(
    "options",
    [{"commands": ["read"]}, {"handlers": {"bash": print}}, {"workspace": "/usr"}],
    ids=["tools", "own", "far"],
)
async def test_nobody_is_warned_of_commands_that_cannot_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    async with real_bench() as on:
        worker = Worker(on.line, **{"workspace": tmp_path, "hidden": [tmp_path / "w.token"], **options})
        running = asyncio.ensure_future(worker.run())
        await asyncio.sleep(0)
        await worker.stop()
        await running
    assert worker.stats.claimed == 0
    assert "can read" not in caplog.text


@pytest.mark.parametrize("hidden", ["keys", [7]])
def test_what_is_hidden_is_a_list_of_paths(hidden: Any) -> None:
    with pytest.raises(ConfigError, match="hidden must be a list of paths"):
        Worker(hidden=hidden)


async def test_whoever_writes_a_handler_finds_in_the_log_where_it_failed(caplog: pytest.LogCaptureFixture) -> None:
    def burn(task: ExternalTask) -> str:
        raise RuntimeError(task.payload["command"])

    caplog.set_level("INFO", "laneway")
    async with real_bench() as on:
        worker = Worker(on.line, handlers={"bash": burn})
        await outcomes(on, worker, [("bash", {"command": "the GPU is on fire\nand more"})])
    assert "task t0 failed: its handler raised RuntimeError: the GPU is on fire\n" in caplog.text
    assert "in burn" in caplog.text, "the traceback"
    assert "task t0 is failed: RuntimeError: the GPU is on fire\n" in caplog.text
    assert "begins: bash for session" in caplog.text
