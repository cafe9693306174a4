"""MCP with real servers: programs over their input and output, and addresses on this machine; the bad ones, too."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from laneway import Agent, AsyncAgent
from laneway.dialogue import ToolContext, ToolOutput
from laneway.errors import RunCancelledError, TransportUnavailableError
from laneway.models import ScriptedModel, call, say
from laneway.options import PermissionPolicy, RetryPolicyConfig, SessionQueueConfig
from laneway.policies import McpServerConfig
from laneway.records import Effect
from laneway.tools import mcp_stdio
from laneway.tools.mcp import McpSource
from laneway.tools.mcp_stdio import LINE_MAX
from tests.agent_stage import results
from tests.chaos.gateway_world import free_port
from tests.integration.processes import eventually, is_running

HERE = Path(__file__).parent
PROGRAM = str(HERE / "mcp_server.py")
SECRET = "sk-very-secret"
ALLOW = PermissionPolicy(allow=("*",))


def config_of(*how: str, **more: Any) -> McpServerConfig:
    return McpServerConfig(command=sys.executable, args=[PROGRAM, *how], **more)


@contextlib.asynccontextmanager
async def started(*how: str, **more: Any) -> AsyncIterator[McpSource]:
    """A program that runs; nothing of it is left afterwards."""
    source = McpSource("t", config_of(*how, **more))
    try:
        await source.start()
        yield source
    finally:
        await source.close()


async def use(source: McpSource, name: str, context: ToolContext | None = None, **arguments: Any) -> ToolOutput:
    tool = next(tool for tool in source.tools() if tool.server_name == name)
    return await tool.run(tool.check(json.dumps(arguments)), context or ToolContext(workspace="."))


def pids_of(log: Path) -> list[int]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [int(line.split()[1]) for line in lines if line.startswith("started")]


# ---- a program that is well ----


async def test_a_program_offers_its_tools_makes_calls_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_stdio, "GRACE_S", 60.0)  # it ends by itself, however slowly
    log = tmp_path / "log"
    async with started(env={"SERVER_LOG": str(log)}) as source:
        assert (await use(source, "echo", text="grüß dich")).text == "grüß dich"
        assert source.status.state == "running"
    assert log.read_text().splitlines()[-1] == "ended"
    assert len(pids_of(log)) == 1
    assert await eventually(lambda: not any(is_running(pid) for pid in pids_of(log)))


@pytest.mark.slow
async def test_many_calls_are_under_way_at_once() -> None:
    async with started() as source:
        met = await asyncio.gather(*(use(source, "meet") for _ in range(20)))
        assert [each.text for each in met] == ["all are here"] * 20


async def test_a_program_sees_a_scrubbed_environment_and_its_own_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("LANEWAY_STORE", SECRET)
    monkeypatch.setenv("SOMETHING", SECRET)
    async with started(env={"TOKEN": "mine"}, cwd=str(tmp_path)) as source:
        seen = json.loads((await use(source, "environment", ToolContext(workspace=".", key="lw-7"))).text)
    assert SECRET not in json.dumps(seen)
    assert seen["environ"]["TOKEN"] == "mine"
    assert "PATH" in seen["environ"]
    assert seen["cwd"] == str(tmp_path)
    assert seen["meta"]["laneway/key"] == "lw-7"


async def test_a_program_whose_tools_change_is_asked_again() -> None:
    async with started() as source:
        before = len(source.tools())
        await use(source, "grow")
        assert await eventually(lambda: len(source.tools()) == before + 1)


# ---- programs that do not start ----


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (McpServerConfig(command="no-such-program-here"), "'no-such-program-here' cannot be used: No such file"),
        (McpServerConfig(command="/etc/passwd"), "cannot be used: Permission denied"),
        (config_of(cwd="/no/such/folder"), "its folder cannot be used: No such file"),
        (config_of(env={"A\0": "b"}), "its arguments or its environment cannot be given to a program"),
        (config_of("exit", env={"TOKEN": SECRET}), r"\(exit code 1: there is no token: \*\*\*\)"),
        (McpServerConfig(command="true"), r"exit code 0"),
        (McpServerConfig(command="cat", start_timeout_ms=200), "it was not ready within 200 ms|MCP server t"),
        (config_of("mute", start_timeout_ms=200), "it was not ready within 200 ms"),
        (config_of("shouting", start_timeout_ms=500), "it was not ready within 500 ms"),
    ],
)
@pytest.mark.slow
async def test_a_program_that_does_not_start_is_told_and_gone(config: McpServerConfig, reason: str) -> None:
    source = McpSource("t", config)
    with pytest.raises(TransportUnavailableError, match=reason) as caught:
        await source.start()
    assert source.status.state == "failed"
    assert SECRET not in f"{caught.value}{source.status}"
    await source.close()


# ---- programs that die ----


async def test_a_program_that_dies_in_a_call_is_started_again_by_the_next(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with started(env={"SERVER_LOG": str(log)}) as source:
        with pytest.raises(TransportUnavailableError, match=r"exit code 3: my last words.* It may have had its effect"):
            await use(source, "die")
        assert source.status.state == "failed"
        assert (await use(source, "echo", text="again")).text == "again"
        assert source.status.starts == 2
    assert log.read_text().count("call die") == 1


async def test_a_program_that_is_killed_between_calls_is_started_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with started(env={"SERVER_LOG": str(log)}) as source:
        os.kill(pids_of(log)[0], signal.SIGKILL)
        assert await eventually(lambda: source.status.state == "failed")
        assert (await use(source, "echo", text="again")).text == "again"


async def test_a_program_that_dies_again_and_again_is_given_time() -> None:
    async with started() as source:
        for _ in range(2):
            with pytest.raises(TransportUnavailableError, match="exit code 3"):
                await use(source, "die")
        with pytest.raises(TransportUnavailableError, match="2 times in a row"):
            await use(source, "echo", text="again")
        await source.refresh()
        assert (await use(source, "echo", text="again")).text == "again"


# ---- programs that are silent, or never quiet ----


async def test_a_call_that_is_never_answered_is_cancelled_at_the_program(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with started(env={"SERVER_LOG": str(log)}, timeout_ms=50) as source:
        with pytest.raises(TimeoutError, match="did not answer within 50 ms"):
            await use(source, "silent")
        assert await eventually(lambda: "cancelled" in log.read_text())
        assert source.status.state == "running"


async def test_a_call_that_is_cancelled_is_cancelled_at_the_program(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with started(env={"SERVER_LOG": str(log)}) as source:
        waiting = asyncio.ensure_future(use(source, "silent"))
        assert await eventually(lambda: "call silent" in log.read_text())
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await eventually(lambda: "cancelled" in log.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["garbage", "storm", "noisy", "ask"])
async def test_a_flood_is_read_past(name: str, caplog: pytest.LogCaptureFixture) -> None:
    async with started() as source:
        answer = await use(source, name)
        assert answer.text in ("done", "asked")
        assert (await use(source, "echo", text="still here")).text == "still here"
        assert source.status.starts == 1
    assert len(caplog.records) <= 4


@pytest.mark.slow
async def test_an_answer_without_end_costs_little_memory_and_one_call() -> None:
    async with started(effect="read") as source:
        tracemalloc.start()
        try:
            output = await use(source, "endless")
            assert f"more than {LINE_MAX:,} bytes" in output.text
            assert await eventually(lambda: source.status.state == "failed")  # it goes on and on
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 4 * LINE_MAX
        assert (await use(source, "echo", text="again")).text == "again"


@pytest.mark.slow
async def test_a_long_answer_is_capped_and_kept_and_a_longer_one_is_refused(tmp_path: Path) -> None:
    context = ToolContext(workspace=".", output_max=1_000, artifacts=str(tmp_path))
    async with started() as source:
        output = await use(source, "big", context)
        assert len(output.text) <= 1_000
        assert output.artifact is not None
        assert (tmp_path / output.artifact).stat().st_size == 1_000_000
        with pytest.raises(TransportUnavailableError, match="It may have had its effect"):
            await use(source, "huge", context)
        assert (await use(source, "echo", context, text="still here")).text == "still here"


@pytest.mark.parametrize("kind", ["shape", "result", "list"])
async def test_nonsense_fails_the_call_and_nothing_else(kind: str) -> None:
    async with started(timeout_ms=60_000) as source:
        with pytest.raises(TransportUnavailableError, match="It may have had its effect"):
            await use(source, "nonsense", kind=kind)
        assert (await use(source, "echo", text="still here")).text == "still here"


async def test_an_error_that_holds_a_secret_is_told_without_it() -> None:
    async with started(env={"TOKEN": SECRET}) as source:
        assert (await use(source, "error")).text == "MCP server t says: no such luck, ***"


async def test_tools_without_end_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    async with started("many") as source:
        assert len(source.tools()) == 500
    assert "the first 500 are used" in caplog.text


async def test_odd_tools_are_made_fit_or_left_out() -> None:
    async with started("odd") as source:
        assert [tool.server_name for tool in source.tools()] == ["fine", "text", "wrong", "none"]
        assert {tool.spec.parameters["type"] for tool in source.tools()} == {"object"}


# ---- nothing is left ----


@pytest.mark.slow
async def test_a_program_that_does_not_want_to_end_is_ended_with_its_children(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with started("stubborn", env={"SERVER_LOG": str(log)}) as source:
        child = int((await use(source, "child")).text)
        assert is_running(child)
    assert await eventually(lambda: not any(is_running(pid) for pid in (child, *pids_of(log))))


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending", ["asyncio.run(main())", "loop = asyncio.new_event_loop(); loop.run_until_complete(main())"]
)
def test_nothing_is_left_when_nobody_closes_anything(tmp_path: Path, ending: str) -> None:
    """The loop ends with the server still there; in the second case it is not even told."""
    log = tmp_path / "log"
    script = f"""
import asyncio, sys
from laneway.policies import McpServerConfig
from laneway.tools.mcp import McpSource
kept = []
async def main():
    config = McpServerConfig(command=sys.executable, args=[{PROGRAM!r}, "stubborn"], env={{"SERVER_LOG": {str(log)!r}}})
    kept.append(McpSource("t", config))
    await kept[0].start()
{ending}
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, capture_output=True)
    pids = pids_of(log)
    assert len(pids) == 1
    assert asyncio.run(eventually(lambda: not is_running(pids[0])))


# ---- addresses ----


@contextlib.contextmanager
def serving(how: str = "stream", *, port: int = 0) -> Iterator[str]:
    """A server of the SDK at an address."""
    command = [sys.executable, str(HERE / "mcp_http_server.py"), str(port), how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/mcp?key=k-1234"
    finally:
        process.kill()
        process.communicate()


async def until(source: McpSource, seen: str) -> None:
    """Wait until the server says this of its calls."""
    for _ in range(3_000):
        if (await use(source, "look")).text == seen:
            return
        await asyncio.sleep(0.02)
    assert (await use(source, "look")).text == seen


def address_of(url: str, **more: Any) -> McpServerConfig:
    return McpServerConfig(url=url, headers={"Authorization": "Bearer open-sesame"}, **more)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stream", "json"])
async def test_a_server_at_an_address_is_used_alike(how: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(how) as url:
        source = McpSource("web", address_of(url, timeout_ms=60_000))
        await source.start()
        assert {tool.server_name for tool in source.tools()} == {"add", "hang", "look", "big"}
        assert (await use(source, "add", a=2, b=3)).text == "5"
        waiting = asyncio.ensure_future(use(source, "hang"))
        await until(source, "['hang'] []")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until(source, "['hang'] ['hang']")
        assert len((await use(source, "big", size=100_000)).text) <= 30_000
        await source.close()
    assert "open-sesame" not in caplog.text
    assert "k-1234" not in caplog.text


@pytest.mark.slow
async def test_an_address_without_the_right_header_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with serving() as url:
        source = McpSource("web", McpServerConfig(url=url, headers={"Authorization": f"Bearer {SECRET}"}))
        with pytest.raises(TransportUnavailableError, match="MCP server web: ") as caught:
            await source.start()
        assert SECRET not in f"{caught.value}{caplog.text}"
        await source.close()


@pytest.mark.slow
async def test_a_server_that_goes_away_and_comes_back_is_found_again() -> None:
    with serving(port=free_port()) as url:
        source = McpSource("web", address_of(url, timeout_ms=60_000))
        await source.start()
    with pytest.raises(TransportUnavailableError, match="It may have had its effect"):
        await use(source, "add", a=1, b=1)
    with serving(port=httpx2.URL(url).port or 0):
        assert (await use(source, "add", a=1, b=1)).text == "2"
    await source.close()


@pytest.mark.slow
async def test_a_server_that_was_started_anew_meanwhile_is_met_again_without_a_word() -> None:
    with serving(port=free_port()) as url:
        source = McpSource("web", address_of(url, timeout_ms=60_000))
        await source.start()
    with serving(port=httpx2.URL(url).port or 0):
        assert (await use(source, "add", a=1, b=1)).text == "2"
        assert source.status.starts == 2
    await source.close()


class Bad(http.server.BaseHTTPRequestHandler):
    """A server that answers the handshake and then does as the name of the tool says."""

    how = ""

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, call_id = message["method"], message.get("id")
        if method == "initialize":
            info = {"name": "bad", "version": "1"}
            self._say(call_id, {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": info})
        elif method == "tools/list":
            names = ("huge", "flood", "packed", "html", "error", "redirect", "cut", "fine")
            self._say(call_id, {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]})
        elif method == "tools/call":
            getattr(self, message["params"]["name"])(call_id)
        else:
            self._head(202, "text/plain", 0)

    def do_GET(self) -> None:
        self._head(405, "text/plain", 0)

    def _head(self, status: int, kind: str, size: int | None, **more: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        if size is not None:
            self.send_header("content-length", str(size))
        for name, value in more.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def _say(self, call_id: Any, result: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": call_id, "result": result}).encode()
        self._head(200, "application/json", len(body))
        self.wfile.write(body)

    def fine(self, call_id: Any) -> None:
        self._say(call_id, {"content": [{"type": "text", "text": "fine"}]})

    def huge(self, call_id: Any) -> None:
        self._head(200, "application/json", None, connection="close")
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"[" * 1_000_000)

    def flood(self, call_id: Any) -> None:
        self._head(200, "text/event-stream", None, connection="close")
        event = b'event: message\ndata: {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}\n\n'
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(event * 100)

    def packed(self, call_id: Any) -> None:
        self._head(200, "application/json", 10, content_encoding="gzip")
        self.wfile.write(b"0123456789")

    def html(self, call_id: Any) -> None:
        self._head(200, "text/html", 4)
        self.wfile.write(b"<p/>")

    def error(self, call_id: Any) -> None:
        self._head(500, "text/plain", 2)
        self.wfile.write(b"no")

    def redirect(self, call_id: Any) -> None:
        self._head(307, "text/plain", 0, location="http://evil.example/steal")

    def cut(self, call_id: Any) -> None:
        self._head(200, "application/json", 1_000)
        self.wfile.write(b'{"jsonrpc"')
        self.close_connection = True

    def log_message(self, *args: Any) -> None:
        """Nothing is said."""


@pytest.fixture
def bad_url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bad)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["huge", "flood", "packed", "html", "error", "redirect", "cut"])
async def test_an_address_that_answers_badly_fails_the_call_and_is_used_again(bad_url: str, name: str) -> None:
    source = McpSource("web", McpServerConfig(url=bad_url, timeout_ms=8_000))
    await source.start()
    try:
        output = await use(source, name)
        assert output.is_error
    except (TransportUnavailableError, TimeoutError) as error:  # either is right: the call has an end
        assert "MCP server web" in str(error)  # noqa: PT017
    assert (await use(source, "fine")).text == "fine"
    await source.close()


# ---- with an agent ----


def agent_of(model: ScriptedModel, **more: Any) -> AsyncAgent:
    return AsyncAgent(model, builtin_tools=False, **{"permission_policy": ALLOW, **more})


async def test_an_agent_calls_the_tools_of_its_servers_and_ends_them(tmp_path: Path) -> None:
    log = tmp_path / "log"
    model = ScriptedModel([[call("mcp__t__echo", text="hello")], [say("done")]])
    async with agent_of(model, mcp_servers={"t": config_of(env={"SERVER_LOG": str(log)})}) as agent:
        assert (await agent.session(tmp_path).send("go")).text == "done"
        assert results(model.requests[1])[0].output == "hello"
        assert "mcp__t__echo" in [spec.name for spec in model.requests[0].tools]
        assert agent.mcp_status()["t"].state == "running"
    assert agent.mcp_status()["t"].state == "closed"
    assert len(pids_of(log)) == 1
    assert await eventually(lambda: not any(is_running(pid) for pid in pids_of(log)))


async def test_sessions_of_an_agent_share_a_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with agent_of(ScriptedModel(), mcp_servers={"t": config_of(env={"SERVER_LOG": str(log)})}) as agent:
        sessions = await asyncio.gather(*(agent.session(tmp_path).ready() for _ in range(5)))
        assert {len(session.toolbox) for session in sessions} == {len(sessions[0].toolbox)}
        assert "mcp__t__echo" in sessions[0].toolbox
        assert len(pids_of(log)) == 1


async def test_a_server_that_does_not_start_fails_no_session(tmp_path: Path) -> None:
    servers = {"bad": McpServerConfig(command="no-such-program"), "t": config_of(), "off": config_of(enabled=False)}
    async with agent_of(ScriptedModel([[say("fine")]]), mcp_servers=servers) as agent:
        session = agent.session(tmp_path)
        assert (await session.send("go")).text == "fine"
        status = agent.mcp_status()
        assert {name: each.state for name, each in status.items()} == {"bad": "failed", "t": "running"}
        assert "no-such-program" in status["bad"].error
        assert {name.split("__")[1] for name in session.toolbox if name.startswith("mcp__")} == {"t"}


async def test_a_session_may_have_other_servers_or_none(tmp_path: Path) -> None:
    async with agent_of(ScriptedModel(), mcp_servers={"t": config_of()}) as agent:
        bare = await agent.session(tmp_path, mcp_servers={}).ready()
        other = await agent.session(tmp_path, mcp_servers={"u": config_of(tools=["echo"])}).ready()
        assert [name for name in bare.toolbox if name.startswith("mcp__")] == []
        assert [name for name in other.toolbox if name.startswith("mcp__")] == ["mcp__u__echo"]


async def test_the_configuration_of_a_session_changes_lane_and_effect(tmp_path: Path) -> None:
    more = {"tool_effects": {"mcp__t__echo": "read"}, "tool_lanes": {"mcp__t__echo": "query"}}
    async with agent_of(ScriptedModel(), mcp_servers={"t": config_of()}, **more) as agent:
        session = await agent.session(tmp_path).ready()
        spec = session.toolbox["mcp__t__echo"].spec
        assert (spec.effect, session.lane_of(spec)) == (Effect.READ, "query")
        assert session.toolbox["mcp__t__die"].spec.effect is Effect.WRITE


async def test_tools_that_are_new_are_there_in_the_next_run(tmp_path: Path) -> None:
    model = ScriptedModel([[call("mcp__t__grow")], [say("grown")], [say("second")], [say("third")]])
    async with agent_of(model, mcp_servers={"t": config_of()}) as agent:
        session = agent.session(tmp_path)
        await session.send("one")
        before = agent.mcp_status()["t"].tools
        await agent.refresh_mcp_tools()
        assert agent.mcp_status()["t"].tools >= before
        await session.send("two")
        names = [{spec.name for spec in request.tools} for request in model.requests]
        assert names[1] == names[0]
        assert len(names[2] - names[0]) == 1


async def test_a_call_whose_server_dies_is_an_error_that_the_model_hears(tmp_path: Path) -> None:
    calls = [call("mcp__t__die"), call("mcp__t__echo", text="again")]
    model = ScriptedModel([calls, [say("done")]])
    async with agent_of(model, mcp_servers={"t": config_of()}) as agent:
        session = agent.session(tmp_path)
        assert (await session.send("go")).text == "done"
        first, second = results(model.requests[1])
        assert first.status == "unknown"
        assert [entry.state for entry in await session.ledger()] == ["unknown", "done"]
        assert "It may have had its effect: look before you do it again" in first.output
        assert second.output == "again"


async def test_the_permissions_hold_for_the_tools_of_a_server(tmp_path: Path) -> None:
    model = ScriptedModel([[call("mcp__t__echo", text="a"), call("mcp__t__die")], [say("done")]])
    policy = PermissionPolicy(allow=("mcp__t__*",), deny=("mcp__t__die",))
    async with agent_of(model, mcp_servers={"t": config_of()}, permission_policy=policy) as agent:
        await agent.session(tmp_path).send("go")
        assert [each.status for each in results(model.requests[1])] == ["ok", "denied"]


@pytest.mark.slow
def test_the_synchronous_agent_has_them_too(tmp_path: Path) -> None:
    model = ScriptedModel([[call("mcp__t__echo", text="hello")], [say("done")]])
    with Agent(model, permission_policy=ALLOW, mcp_servers={"t": config_of()}) as agent:
        assert agent.session(str(tmp_path)).send("go").text == "done"
        assert agent.refresh_mcp_tools()["t"].state == agent.mcp_status()["t"].state == "running"
    assert results(model.requests[1])[0].output == "hello"


async def test_a_run_that_is_cancelled_cancels_its_call_at_the_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    model = ScriptedModel([[call("mcp__t__silent")], [say("done")]])
    async with agent_of(model, mcp_servers={"t": config_of(env={"SERVER_LOG": str(log)})}) as agent:
        session = agent.session(tmp_path)
        sending = asyncio.ensure_future(session.send("go"))
        assert await eventually(lambda: log.exists() and "call silent" in log.read_text())
        assert await session.cancel()
        with pytest.raises(RunCancelledError):
            await sending
        assert await eventually(lambda: "cancelled" in log.read_text())
        assert agent.mcp_status()["t"].state == "running"


async def test_a_call_that_takes_too_long_has_timed_out_for_the_model(tmp_path: Path) -> None:
    model = ScriptedModel([[call("mcp__t__silent")], [say("done")]])
    async with agent_of(model, mcp_servers={"t": config_of(timeout_ms=50)}) as agent:
        session = agent.session(tmp_path)
        await session.send("go")
        (result,) = results(model.requests[1])
        assert result.status == "timed_out"
        assert "did not answer within 50 ms" in result.output
        assert [entry.state for entry in await session.ledger()] == ["unknown"]


async def test_a_read_whose_server_dies_is_tried_again_by_the_retry_policy(tmp_path: Path) -> None:
    queue = SessionQueueConfig(retry_policy=RetryPolicyConfig("fixed", 1, fixed_delay_ms=1))
    log = tmp_path / "log"
    model = ScriptedModel([[call("mcp__t__die")], [say("done")]])
    config = config_of(effect="read", env={"SERVER_LOG": str(log)})
    async with agent_of(model, mcp_servers={"t": config}, queue_config=queue) as agent:
        await agent.session(tmp_path).send("go")
        assert results(model.requests[1])[0].is_error
    assert log.read_text().count("call die") == 2


async def test_a_sub_agent_has_the_tools_of_its_parent(tmp_path: Path) -> None:
    model = ScriptedModel(
        [[call("task", prompt="ask the server")], [call("mcp__t__echo", text="hello")], [say("below")], [say("above")]]
    )
    async with agent_of(model, mcp_servers={"t": config_of(tools=["echo"])}, subagents=True) as agent:
        assert (await agent.session(tmp_path).send("go")).text == "above"
    assert results(model.requests[2])[0].output == "hello"


@pytest.mark.slow
def test_a_fork_leaves_the_servers_of_its_parent_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f"""
import asyncio, os, sys
from laneway.policies import McpServerConfig
from laneway.tools.mcp import McpSource
from laneway.dialogue import ToolContext
async def main():
    config = McpServerConfig(command=sys.executable, args=[{PROGRAM!r}], env={{"SERVER_LOG": {str(log)!r}}})
    source = McpSource("t", config)
    await source.start()
    child = os.fork()
    if child == 0:
        import atexit
        atexit._run_exitfuncs()
        os._exit(0)
    os.waitpid(child, 0)
    output = await source.tools()[0].run({{"text": "still here"}}, ToolContext(workspace="."))
    print(output.text, source.status.starts)
    await source.close()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, timeout=120, capture_output=True, text=True)
    assert done.stdout == "still here 1\n"


async def test_an_agent_that_is_closed_does_not_wait_for_a_server_that_does_not_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = config_of("mute", env={"SERVER_LOG": str(log)}, start_timeout_ms=60_000)
    async with asyncio.timeout(60):
        async with agent_of(ScriptedModel(), mcp_servers={"t": config}) as agent:
            agent.session(tmp_path)
            assert await eventually(lambda: bool(pids_of(log)))
    assert len(pids_of(log)) == 1
    assert await eventually(lambda: not any(is_running(pid) for pid in pids_of(log)))
