"""MCP servers as sources of tools, with a server that plays in this process: what it offers, and how it fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from laneway.agent.tool_sources import check_servers
from laneway.dialogue import ToolContext, ToolOutput
from laneway.errors import ClosedError, ConfigError, ToolArgumentsError, TransportUnavailableError
from laneway.policies import McpServerConfig
from laneway.ports import Tool
from laneway.records import Effect
from laneway.tools.mcp import McpSource
from laneway.tools.mcp_sieve import Sieve
from laneway.tools.mcp_tools import McpTool, Offered, names_of, object_schema, text_of_result, tools_of
from tests.leaps import leaping

SECRET = "sk-very-secret"
ECHO = {
    "name": "echo",
    "description": "Say it again.",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "annotations": {"readOnlyHint": True, "idempotentHint": True},
}
WIDE = {"name": "wide", "inputSchema": {"type": "object"}}
CONTEXT = ToolContext(workspace=".")
Message = dict[str, Any]


class Server:
    """A server in this process. `on_call` answers a call: a result, an error, or None for silence.

    `lives` counts its connections; `heard` is everything that it was told.
    """

    def __init__(self, on_call: Callable[[Message], Any] | None = None, *, failures: int = 0) -> None:
        self.tools: list[Any] = [ECHO, WIDE]
        self.on_call = on_call or (lambda params: text(str(params.get("arguments", {}).get("text", ""))))
        self.heard: list[Message] = []
        self.lives = 0
        self.failures = failures  # how many starts go wrong
        self.is_modern = False
        self.open_now = 0
        self.die: Callable[[str], None] = lambda reason: None
        self.say: Callable[[Message], None] = lambda message: None

    def connect(self, name: str, config: McpServerConfig, on_lost: Callable[[str], None]) -> Connection:
        return Connection(self, on_lost)

    def answer(self, message: Message) -> Message | None:
        method, params = message.get("method"), message.get("params") or {}
        if method == "initialize" and self.is_modern:
            return {"error": {"code": -32601, "message": "Method not found"}}
        if method == "initialize":
            info = {"name": "fake", "version": "1"}
            return {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}}
        if method == "server/discover":
            found = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "resultType": "complete"}
            return {"result": {**found, "ttlMs": 0, "cacheScope": "private"}}
        if method == "tools/list":
            more = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if self.is_modern else {}
            return {"result": {"tools": self.tools, **more}}
        if method == "tools/call":
            found = self.on_call(params)
            return found if found is None or "error" in found else {"result": found}
        return None

    def told(self, method: str) -> list[Message]:
        return [each.get("params") or {} for each in self.heard if each.get("method") == method]


class Connection:
    """One connection to it."""

    def __init__(self, server: Server, on_lost: Callable[[str], None]) -> None:
        self._server = server
        self._on_lost = on_lost

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        server = self._server
        server.lives += 1
        if server.lives <= server.failures:
            raise TransportUnavailableError(f"it does not start with {SECRET}")
        to_client, read = anyio.create_memory_object_stream[SessionMessage | Exception](1000)
        write, from_client = anyio.create_memory_object_stream[SessionMessage](1000)

        def say(message: Message) -> None:
            to_client.send_nowait(
                SessionMessage(jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **message}))
            )

        def die(reason: str) -> None:
            self._on_lost(reason)
            to_client.close()

        async def listen() -> None:
            async for each in from_client:
                message = each.message.model_dump(by_alias=True, exclude_unset=True)
                server.heard.append(message)
                found = server.answer(message)
                if found is not None:
                    say({"id": message["id"], **found})

        server.say, server.die = say, die
        server.open_now += 1
        task = asyncio.get_running_loop().create_task(listen())
        try:
            yield read, write
        finally:
            server.open_now -= 1
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for stream in (to_client, read, write, from_client):
                stream.close()

    async def ended(self) -> str:
        return "exit code 3"


def text(value: str, **more: Any) -> Message:
    """A result with this text."""
    return {"content": [{"type": "text", "text": value}], **more}


@contextlib.asynccontextmanager
async def source_of(server: Server, **config: Any) -> AsyncIterator[McpSource]:
    """A source that is connected to a server in this process."""
    config.setdefault("command", "fake")
    source = McpSource("git", McpServerConfig(**config), connect=server.connect)
    try:
        yield source
    finally:
        await source.close()
        assert server.open_now == 0


def tool_of(source: McpSource, name: str) -> McpTool:
    return next(tool for tool in source.tools() if tool.server_name == name)


async def call(source: McpSource, name: str = "wide", **arguments: Any) -> ToolOutput:
    return await tool_of(source, name).run(arguments, CONTEXT)


def offered(*names: str) -> list[Offered]:
    return [Offered(name, "", {"type": "object"}) for name in names]


async def never(tool: str, arguments: Mapping[str, Any], context: ToolContext, *, effect: Effect) -> ToolOutput:
    raise AssertionError(tool)


def specs(config: McpServerConfig, *names: str) -> dict[str, Any]:
    return {tool.server_name: tool.spec for tool in tools_of("s", config, offered(*names), never)}


# ---- names and schemas ----


def test_a_name_says_where_a_tool_comes_from_and_fits_every_provider() -> None:
    found = names_of("my server", ["read.file", "größe", "ok-1"])
    assert found == {
        "read.file": "mcp__my_server__read_file",
        "größe": "mcp__my_server__gr__e",
        "ok-1": "mcp__my_server__ok-1",
    }


def test_a_long_name_is_cut_and_marked() -> None:
    found = names_of("s", ["x" * 100 + "a", "x" * 100 + "b"])
    assert {len(name) for name in found.values()} == {64}
    assert len(set(found.values())) == 2


def test_names_that_fall_together_are_told_apart_in_any_order() -> None:
    found = names_of("s", ["a.b", "a_b", "a b"])
    assert found["a_b"] == "mcp__s__a_b"
    assert len(set(found.values())) == 3
    assert found == names_of("s", ["a b", "a_b", "a.b"])


@pytest.mark.parametrize(
    "given",
    [
        None,
        "text",
        [],
        {"type": "string"},
        {"type": ["string", "null"]},
        {"type": 5},
        {"properties": []},
        {"type": "object", "description": "x" * 200_000},
        {"type": "object", "default": {1, 2}},
    ],
)
def test_a_schema_that_is_no_schema_of_an_object_becomes_an_open_one(given: Any) -> None:
    assert object_schema(given) == {"type": "object", "properties": {}}


def test_a_schema_of_an_object_stays_what_it_is() -> None:
    given = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "$defs": {}}
    assert object_schema(given) == given
    assert object_schema({"type": ["object", "null"], "title": "x"})["type"] == "object"
    assert object_schema({"properties": {"a": {}}}) == {"type": "object", "properties": {"a": {}}}


def test_lane_and_effect_are_execute_and_write_unless_the_configuration_says_otherwise() -> None:
    spec = specs(McpServerConfig(command="x"), "t")["t"]
    assert (spec.lane, spec.effect, spec.parallel, spec.local) == ("execute", Effect.WRITE, False, False)
    config = McpServerConfig(
        command="x", lane="query", effect="read", lanes={"b": "execute"}, effects={"b": "idempotent"}, parallel=["a"]
    )
    found = specs(config, "a", "b")
    assert (found["a"].lane, found["a"].effect, found["a"].parallel) == ("query", Effect.READ, True)
    assert (found["b"].lane, found["b"].effect, found["b"].parallel) == ("execute", Effect.IDEMPOTENT, False)


def test_only_wanted_tools_are_taken_and_names_that_nobody_has_are_told(caplog: pytest.LogCaptureFixture) -> None:
    config = McpServerConfig(command="x", tools=["a", "aa"], lanes={"bb": "query"})
    assert list(specs(config, "a", "b")) == ["a"]
    assert "aa, bb" in caplog.text


def test_at_most_500_tools_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    assert len(specs(McpServerConfig(command="x"), *(f"t{number}" for number in range(2_000)))) == 500
    assert "offers 2000 tools" in caplog.text


def test_an_mcp_tool_is_a_tool() -> None:
    tool: Tool = tools_of("s", McpServerConfig(command="x"), offered("a"), never)[0]
    assert tool.can_reconcile is False


# ---- results ----


class Block:
    """A piece of content, as the SDK has it."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


def test_a_result_is_its_texts_and_what_else_there_is_in_words() -> None:
    blocks = [
        Block(type="text", text="one"),
        Block(type="image", mime_type="image/png", data="AAAA"),
        Block(type="resource_link", name="log", uri="file:///log"),
        Block(type="resource", resource=Block(uri="x:y", text="inside")),
        Block(type="resource", resource=Block(uri="x:z", blob="AA")),
        Block(type="video"),
    ]
    assert text_of_result(blocks, {"a": 1}).splitlines() == [
        "one",
        "[image, image/png, 3 bytes; it is not shown]",
        "[resource log: file:///log]",
        "inside",
        "[resource x:z: no text; it is not shown]",
        "[video that is not shown]",
    ]


def test_structured_content_is_shown_when_there_is_no_text() -> None:
    assert text_of_result([], {"a": 1}) == '{"a":1}'
    assert text_of_result([], None) == ""


# ---- a server that is well ----


async def test_a_source_offers_the_tools_of_its_server_and_makes_calls() -> None:
    server = Server()
    async with source_of(server) as source:
        assert source.status.state == "stopped"
        await source.start()
        assert (source.status.state, source.status.tools, source.status.starts) == ("running", 2, 1)
        echo = tool_of(source, "echo")
        assert echo.spec.name == "mcp__git__echo"
        assert echo.spec.description == "Say it again."
        assert echo.spec.parameters == ECHO["inputSchema"]
        assert await call(source, "echo", text="hello") == ToolOutput(text="hello")
    assert source.status.state == "closed"


async def test_what_a_server_says_about_itself_changes_no_effect() -> None:
    async with source_of(Server()) as source:
        await source.start()
        assert tool_of(source, "echo").spec.effect is Effect.WRITE


async def test_arguments_are_held_against_the_schema_before_the_call() -> None:
    server = Server()
    async with source_of(server) as source:
        await source.start()
        echo = tool_of(source, "echo")
        assert echo.check('{"text": "x"}') == {"text": "x"}
        with pytest.raises(ToolArgumentsError, match="'text' is missing"):
            echo.check("{}")
    assert server.told("tools/call") == []


async def test_what_cannot_be_used_of_a_schema_forbids_nothing() -> None:
    server = Server()
    bad = {"type": "object", "properties": {"n": {"type": "no such type"}}}
    server.tools = [
        {"name": "odd", "inputSchema": bad},
        {"name": "away", "inputSchema": {"$ref": "https://x.example/s"}},
    ]
    async with source_of(server) as source:
        await source.start()
        assert tool_of(source, "odd").check('{"n": 5}') == {"n": 5}
        assert tool_of(source, "away").check('{"n": 5}') == {"n": 5}


async def test_the_key_of_a_call_goes_with_it() -> None:
    server = Server()
    async with source_of(server) as source:
        await source.start()
        await tool_of(source, "wide").run({}, ToolContext(workspace=".", key="lw-1"))
    assert server.told("tools/call")[0]["_meta"]["laneway/key"] == "lw-1"


async def test_what_a_server_reports_is_shown_and_bounded() -> None:
    told: list[str] = []

    def on_call(params: Message) -> Message:
        for number in range(300):
            token = params["_meta"]["progressToken"]
            progress = {"progressToken": token, "progress": number, "message": "x" * 5_000}
            server.say({"method": "notifications/progress", "params": progress})
        return text("done")

    server = Server(on_call)
    async with source_of(server) as source:
        await source.start()
        output = await tool_of(source, "wide").run({}, ToolContext(workspace=".", report=told.append))
    assert output.text == "done"
    assert len(told) <= 200
    assert all(len(each) <= 1_001 for each in told)


async def test_a_long_result_is_capped_like_any_other() -> None:
    async with source_of(Server(lambda params: text("x" * 100_000))) as source:
        await source.start()
        output = await tool_of(source, "wide").run({}, ToolContext(workspace=".", output_max=1_000))
    assert len(output.text) <= 1_000
    assert "characters left out" in output.text


async def test_an_error_of_the_tool_is_an_answer() -> None:
    async with source_of(Server(lambda params: text("no such file", isError=True))) as source:
        await source.start()
        assert await call(source) == ToolOutput(text="no such file", is_error=True)


async def test_an_error_of_the_protocol_is_an_answer_and_the_server_stays() -> None:
    server = Server(lambda params: {"error": {"code": -32000, "message": "too many"}})
    async with source_of(server) as source:
        await source.start()
        assert await call(source) == ToolOutput(text="MCP server git says: too many", is_error=True)
        assert (source.status.state, server.lives) == ("running", 1)


async def test_a_server_that_knows_the_newest_protocol_only_is_understood() -> None:
    server = Server(lambda params: text("new", resultType="complete"))
    server.is_modern = True
    async with source_of(server) as source:
        await source.start()
        assert (await call(source)).text == "new"


async def test_all_who_want_a_server_at_once_share_one_start() -> None:
    server = Server()
    async with source_of(server) as source:
        await asyncio.gather(*(source.start() for _ in range(20)))
        await asyncio.gather(*(call(source, "echo", text=str(number)) for number in range(20)))
        assert server.lives == 1
    assert len(server.told("tools/call")) == 20


# ---- what gets through ----


def message(**fields: Any) -> Any:
    return jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **fields})


def test_only_notifications_that_somebody_reads_get_through() -> None:
    sieve = Sieve()
    methods = ("tools/list_changed", "progress", "cancelled", "message", "resources/updated", "no/such/thing")
    taken = [method for method in methods if sieve.takes(message(method=f"notifications/{method}"))]
    assert taken == ["tools/list_changed", "progress", "cancelled"]
    assert sieve.takes(message(id=1, result={}))


def test_a_server_may_ask_as_much_as_is_answered() -> None:
    sieve = Sieve()
    asked = [sieve.takes(message(id=number, method="ping")) for number in range(100)]
    assert asked == [True] * 32 + [False] * 68
    for number in range(40):
        sieve.told(message(id=number, result={}))
    assert sieve.takes(message(id=200, method="ping"))


async def test_whoever_writes_much_that_nobody_has_asked_for_waits() -> None:
    async def paces(sieve: Sieve, count: int) -> bool:
        """Whether so many messages go by without a wait."""
        work = asyncio.ensure_future(_pace(sieve, count))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        is_done = work.done()
        await work
        return is_done

    sieve = Sieve()
    assert await paces(sieve, 199)
    assert not await paces(sieve, 1)
    assert await paces(sieve, 199)
    sieve.told(message(method="notifications/initialized"))
    assert await paces(sieve, 199)


async def _pace(sieve: Sieve, count: int) -> None:
    for _ in range(count):
        await sieve.pace()


@pytest.mark.parametrize("name", [None, 5, "", "x" * 1_001, ["a"]])
def test_a_tool_without_a_name_that_can_be_used_is_left_out(name: Any) -> None:
    assert Offered.of(name, "", {}) is None


def test_what_a_server_says_of_a_tool_has_bounds() -> None:
    found = Offered.of("t", "x" * 1_000_000, {"type": "object", "description": "y" * 1_000_000})
    assert found is not None
    assert (len(found.description), found.schema) == (10_000, {"type": "object", "properties": {}})


# ---- tools that change ----


async def test_tools_that_change_are_taken_and_told() -> None:
    server, changes = Server(), asyncio.Event()
    source = McpSource("git", McpServerConfig(command="x"), connect=server.connect, on_change=changes.set)
    await source.start()
    changes.clear()
    server.tools = [ECHO, {"name": "new", "inputSchema": {"type": "object"}}]
    server.say({"method": "notifications/tools/list_changed"})
    await changes.wait()
    assert [tool.server_name for tool in source.tools()] == ["echo", "new"]
    await source.close()


async def test_a_storm_of_changes_costs_one_question() -> None:
    server = Server()
    async with source_of(server) as source:
        await source.start()
        for _ in range(500):
            server.say({"method": "notifications/tools/list_changed"})
        await call(source)
        await call(source)
        assert len(server.told("tools/list")) <= 2


async def test_a_refresh_asks_again_and_the_same_tools_are_no_change() -> None:
    server, changes = Server(), []
    source = McpSource("git", McpServerConfig(command="x"), connect=server.connect, on_change=lambda: changes.append(1))
    await source.start()
    first = tool_of(source, "echo")
    await source.refresh()
    assert (changes, tool_of(source, "echo")) == ([1], first)
    server.tools = []
    await source.refresh()
    assert (changes, source.tools()) == ([1, 1], [])
    await source.close()


async def test_one_bad_tool_does_not_take_the_others_with_it() -> None:
    server = Server()
    server.tools = [
        ECHO,
        {"name": 5},
        "nonsense",
        {"name": "bare"},
        {"name": "text", "inputSchema": {"type": "string"}},
    ]
    async with source_of(server) as source:
        await source.start()
        assert [tool.server_name for tool in source.tools()] == ["echo", "bare", "text"]


async def test_pages_without_end_are_not_read_to_the_end() -> None:
    server = Server()
    plain = server.answer

    def answer(message: Message) -> Message | None:
        found = plain(message)
        if message.get("method") == "tools/list" and found is not None:
            found["result"]["nextCursor"] = "more"
        return found

    server.answer = answer  # type: ignore[method-assign]  # a server that never comes to an end
    async with source_of(server) as source:
        await source.start()
        assert len(server.told("tools/list")) == 100
        assert len(source.tools()) == 2


# ---- a server that fails ----


async def test_a_server_that_cannot_be_started_is_told_without_its_secrets(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(failures=1)
    async with source_of(server, env={"TOKEN": SECRET}) as source:
        with pytest.raises(
            TransportUnavailableError, match=r"^MCP server git: it does not start with \*\*\*"
        ) as caught:
            await source.start()
        assert source.status.state == "failed"
        assert "it does not start" in source.status.error
        assert SECRET not in f"{caught.value} {source.status} {caplog.text} {source.config}"
        await source.start()
        assert source.status.state == "running"


async def test_after_two_failures_in_a_row_a_server_is_given_time() -> None:
    server = Server(failures=2)
    async with source_of(server) as source:
        for _ in range(2):
            with pytest.raises(TransportUnavailableError):
                await source.start()
        with pytest.raises(TransportUnavailableError, match="2 times in a row; it may be started again in 1 s"):
            await source.start()
        assert server.lives == 2
        await source.refresh()
        assert source.status.state == "running"


@pytest.mark.parametrize(("effect", "is_said"), [("write", True), ("idempotent", True), ("read", False)])
async def test_a_call_that_dies_with_its_server_says_whether_it_may_have_had_its_effect(
    effect: str, is_said: bool
) -> None:
    server = Server(lambda params: server.die("it has ended"))
    async with source_of(server, effect=effect) as source:
        await source.start()
        with pytest.raises(TransportUnavailableError) as caught:
            await call(source)
        assert str(caught.value).startswith("MCP server git: it has ended (exit code 3) while wide ran")
        assert ("It may have had its effect" in str(caught.value)) is is_said
        server.on_call = lambda params: text("back")
        assert (await call(source)).text == "back"
        assert source.status.starts == 2


async def test_a_server_that_dies_fails_every_call_that_waits_on_it() -> None:
    calls: list[Message] = []
    all_there = asyncio.Event()

    def on_call(params: Message) -> None:
        calls.append(params)
        if len(calls) == 5:
            all_there.set()

    server = Server(on_call)
    async with source_of(server) as source:
        await source.start()
        waiting = [asyncio.ensure_future(call(source)) for _ in range(5)]
        await all_there.wait()
        server.die("it has ended")
        ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(end) for end in ends} == {TransportUnavailableError}


@pytest.mark.parametrize("result", [{"content": 5}, {"content": [{"type": "text"}]}, {}])
async def test_nonsense_leaves_the_call_unknown_and_the_server_stays(result: Any) -> None:
    server = Server(lambda params: result)
    async with source_of(server) as source:
        await source.start()
        with pytest.raises(TransportUnavailableError, match=r"no result\. It may have had its effect") as error:
            await call(source)
        assert getattr(error.value, "may_have_run", False)
        assert (source.status.state, server.lives) == ("running", 1)


async def test_a_call_that_is_never_answered_ends_and_the_server_is_told() -> None:
    with leaping(asyncio.get_running_loop()) as leap:
        server = Server(lambda params: leap(60_000))
        async with source_of(server, timeout_ms=60_000) as source:
            await source.start()
            with pytest.raises(TimeoutError, match="MCP server git did not answer within 60000 ms"):
                await call(source)
            assert source.status.state == "running"
            await source.refresh()
    assert len(server.told("notifications/cancelled")) == 1


async def test_a_server_that_is_silent_again_and_again_is_started_anew() -> None:
    with leaping(asyncio.get_running_loop()) as leap:
        server = Server(lambda params: leap(60_000))
        async with source_of(server, timeout_ms=60_000) as source:
            await source.start()
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await call(source)
            server.on_call = lambda params: text("awake")
            assert (await call(source)).text == "awake"
            assert server.lives == 2


async def test_a_call_that_is_cancelled_is_cancelled_at_the_server() -> None:
    there = asyncio.Event()
    server = Server(lambda params: there.set())
    async with source_of(server) as source:
        await source.start()
        waiting = asyncio.ensure_future(call(source))
        await there.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await source.refresh()
        assert len(server.told("notifications/cancelled")) == 1
        assert source.status.state == "running"


async def test_a_server_that_never_says_hello_is_given_up() -> None:
    server = Server()
    server.answer = lambda message: None  # type: ignore[method-assign]  # it hears, and says nothing
    async with source_of(server, start_timeout_ms=5) as source:
        with pytest.raises(TransportUnavailableError, match="it was not ready within 5 ms"):
            await source.start()


async def test_a_server_that_has_forgotten_us_is_asked_once_more() -> None:
    server = Server()
    lives: list[int] = []

    def on_call(params: Message) -> Message:
        lives.append(server.lives)
        return text("found") if server.lives > 1 else {"error": {"code": -32600, "message": "Session terminated"}}

    server.on_call = on_call
    async with source_of(server) as source:
        await source.start()
        assert (await call(source)).text == "found"
    assert lives == [1, 2]


def test_servers_need_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    config = McpServerConfig(command="x")
    check_servers({"a": config})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_servers({"a": replace(config, enabled=False)})
    with pytest.raises(ConfigError, match="with the extra `mcp`"):
        check_servers({"a": config})


# ---- closing ----


async def test_a_closed_source_makes_no_calls_and_closes_twice() -> None:
    server = Server()
    async with source_of(server) as source:
        await source.start()
        await source.close()
        assert server.open_now == 0
        with pytest.raises(ClosedError, match="MCP server git"):
            await call(source)


async def test_closing_ends_calls_that_wait() -> None:
    there = asyncio.Event()
    server = Server(lambda params: there.set())
    async with source_of(server) as source:
        await source.start()
        waiting = asyncio.ensure_future(call(source))
        await there.wait()
        await source.close()
        with pytest.raises(TransportUnavailableError, match="it was closed"):
            await waiting


async def test_closing_while_it_starts_ends_the_start() -> None:
    server, asked = Server(), asyncio.Event()
    server.answer = lambda message: asked.set()  # type: ignore[method-assign]  # it hears, and says nothing
    async with source_of(server) as source:
        starting = asyncio.ensure_future(source.start())
        await asked.wait()
        await source.close()
        with pytest.raises(TransportUnavailableError):
            await starting


def test_a_source_that_was_left_with_its_loop_is_started_on_the_next() -> None:
    server = Server()
    source = McpSource("git", McpServerConfig(command="x"), connect=server.connect)

    async def use() -> str:
        await source.start()
        return (await call(source, "echo", text="hello")).text

    assert [asyncio.run(use()), asyncio.run(use())] == ["hello", "hello"]
    assert (server.lives, server.open_now) == (2, 0)


# ---- settings ----


@pytest.mark.parametrize(
    "config",
    [{}, {"command": "x", "url": "https://x"}, {"url": "ftp://x"}, {"url": "file:///etc/passwd"}, {"command": 5}],
)
def test_a_server_is_a_program_or_an_address(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        McpServerConfig(**config)


async def test_no_log_of_a_start_holds_a_header(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    url = f"http://user:{SECRET}@127.0.0.1:1/mcp?key={SECRET}"
    config = McpServerConfig(url=url, headers={"Authorization": f"Bearer {SECRET}"}, start_timeout_ms=2_000)
    source = McpSource("web", config)
    with pytest.raises(TransportUnavailableError, match="MCP server web") as caught:
        await source.start()
    await source.close()
    assert SECRET not in f"{caught.value} {caplog.text} {source.status} {config!r}"
