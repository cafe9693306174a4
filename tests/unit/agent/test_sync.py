"""The synchronous `Agent` and `Session`: whatever thread calls, whatever interrupts, whoever closes."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from laneway.agent import AsyncAgent, AsyncSession
from laneway.agent_events import EndEvent, ErrorEvent
from laneway.errors import (
    ClosedError,
    ConfigError,
    LanewayError,
    ModelError,
    RunCancelledError,
    UnknownRunError,
    UsageError,
)
from laneway.models.scripted import Entry, ScriptedModel, call, fail, say
from laneway.options import PermissionPolicy, SessionOptions, SessionQueueConfig
from laneway.sync import Agent, Session, background, handover
from laneway.tools import tool

PATIENCE_S = 55.0  # of a wait that only a bug makes long
ANYTHING = PermissionPolicy(default_decision="allow")


class Gate:
    """A place where a model or a tool on the loop stops until a test lets it go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    async def pass_through(self) -> None:
        self.reached.set()
        await asyncio.to_thread(self.opened.wait, PATIENCE_S)

    def wait_until_reached(self) -> None:
        assert self.reached.wait(PATIENCE_S)


@tool(lane="query", effect="read")
def thread_name() -> str:
    """Say which thread runs this."""
    return threading.current_thread().name


def new_agent(*script: Entry, tools: tuple[Any, ...] = (thread_name,), **options: Any) -> Agent:
    options.setdefault("permission_policy", ANYTHING)
    options.setdefault("builtin_tools", False)
    return Agent(ScriptedModel(script), tools=tools, **options)


def interrupt_main() -> None:
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt may come just before a wait begins: it is noticed at the next look up."""
    monkeypatch.setattr(handover, "LOOK_UP_S", 0.01)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert background.running() is None
    left = [thread for thread in threading.enumerate() if thread not in before and thread.name != "pytest_timeout"]
    for thread in left:
        thread.join(PATIENCE_S)  # of a sync tool that was cut off: nobody waits for it, but it ends
    assert not any(thread.is_alive() for thread in left)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path)


# ---- messages ----


def test_send_gives_the_answer_and_what_it_took(folder: str) -> None:
    with new_agent([call("thread_name"), call("thread_name")], [say("both done")]) as agent:
        result = agent.session(folder).send("go")
    assert result.text == str(result) == "both done"
    assert (result.tool_calls_count, result.rounds) == (2, 2)
    assert result.total_tokens == result.prompt_tokens + result.completion_tokens > 0


def test_run_is_the_same_as_send(folder: str) -> None:
    with new_agent([say("a")], [say("b")]) as agent:
        session = agent.session(folder)
        assert [session.send("1").text, session.run("2").text] == ["a", "b"]


def test_a_conversation_goes_on_from_send_to_send_and_its_history_is_plain_values(folder: str) -> None:
    with new_agent([say("hello")], [say("again")]) as agent:
        session = agent.session(folder)
        session.send("one")
        session.send("two")
        said = [str(each) for each in session.history()]
        assert said == ["user: one", "assistant: hello", "user: two", "assistant: again"]
        assert [run.answer for run in session.runs()] == ["hello", "again"]


def test_many_threads_send_to_one_session_and_the_history_stays_whole(folder: str, pool: ThreadPoolExecutor) -> None:
    with Agent("scripted", builtin_tools=False) as agent:
        session = agent.session(folder)
        texts = [f"text {number}" for number in range(20)]
        answers = list(pool.map(lambda text: session.send(text).text, texts))
        assert answers == [f"You said: {text}" for text in texts]
        said = [str(each) for each in session.history()]
    asked = [line.removeprefix("user: ") for line in said[::2]]
    assert sorted(asked) == sorted(texts)
    assert said[1::2] == [f"assistant: You said: {text}" for text in asked]


def test_sessions_on_many_threads_do_not_disturb_each_other(folder: str, pool: ThreadPoolExecutor) -> None:
    with Agent("scripted", builtin_tools=False) as agent:

        def talk(number: int) -> list[str]:
            with agent.session(folder) as session:
                return [session.send(f"{number}.{turn}").text for turn in range(3)]

        talks = list(pool.map(talk, range(16)))
        assert agent.sessions() == []
    assert talks == [[f"You said: {number}.{turn}" for turn in range(3)] for number in range(16)]


def test_the_error_of_a_run_arrives_as_it_was_raised(folder: str) -> None:
    error = ModelError("no such model", model="scripted")
    with new_agent([fail(error)], [say("better")]) as agent:
        session = agent.session(folder)
        with pytest.raises(ModelError) as caught:
            session.send("go")
        assert caught.value is error
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert names[0] == "test_the_error_of_a_run_arrives_as_it_was_raised"
        assert session.send("again").text == "better"


def test_a_wrong_call_is_told_at_once(folder: str) -> None:
    with new_agent() as agent:
        session = agent.session(folder)
        with pytest.raises(TypeError):
            session.send("go", nonsense=1)  # type: ignore[call-arg]
        with pytest.raises(UnknownRunError):
            session.run_snapshot("nonsense")


def test_steering_from_another_thread_reaches_the_run(folder: str, pool: ThreadPoolExecutor) -> None:
    gate = Gate()
    model = ScriptedModel([[gate.pass_through, call("thread_name")], [say("as you wish")]])
    with Agent(model, tools=[thread_name], builtin_tools=False) as agent:
        session = agent.session(folder)
        answer = pool.submit(session.send, "go")
        gate.wait_until_reached()
        receipt = session.steer("the other way")
        gate.opened.set()
        assert answer.result(PATIENCE_S).text == "as you wish"
        assert session.wait(receipt.message_id).text == "as you wish"
    assert "the other way" in str(model.requests[-1])


def test_an_interrupt_ends_the_run_and_takes_its_place(folder: str, pool: ThreadPoolExecutor) -> None:
    gate = Gate()
    with new_agent([gate.pass_through, say("late")], [say("instead")]) as agent:
        session = agent.session(folder)
        first = pool.submit(session.send, "go")
        gate.wait_until_reached()
        receipt = session.interrupt("no, this")
        assert session.wait(receipt.message_id).text == "instead"
        gate.opened.set()
        with pytest.raises(RunCancelledError):
            first.result(PATIENCE_S)


def test_cancel_from_another_thread_ends_the_wait_of_send(folder: str, pool: ThreadPoolExecutor) -> None:
    gate = Gate()
    with new_agent([gate.pass_through, say("late")], [say("next")]) as agent:
        session = agent.session(folder)
        first = pool.submit(session.send, "go")
        gate.wait_until_reached()
        run = session.current_run()
        assert run is not None
        assert session.cancel_run(run.run_id, "enough")
        with pytest.raises(RunCancelledError, match="enough"):
            first.result(PATIENCE_S)
        gate.opened.set()
        assert not session.cancel()
        assert session.send("go on").text == "next"


def test_pause_holds_the_next_step_and_resume_lets_it_go(folder: str, pool: ThreadPoolExecutor) -> None:
    with new_agent([say("hello")]) as agent:
        session = agent.session(folder, queue_config=SessionQueueConfig())
        events = session.subscribe()
        session.pause()
        answer = pool.submit(session.send, "go")
        assert next(events).event_type == "start"
        assert session.is_paused
        assert not answer.done()
        session.resume()
        assert answer.result(PATIENCE_S).text == "hello"
        assert not session.is_paused


# ---- streams ----


def test_a_stream_tells_the_run_from_start_to_end(folder: str) -> None:
    with new_agent([call("thread_name")], [say("done")]) as agent:
        session = agent.session(folder, queue_config=SessionQueueConfig())
        stream = session.stream("go")
        assert stream.message_id
        kinds = [event.event_type for event in stream]
        assert (kinds[0], kinds[-1]) == ("start", "end")
        assert kinds.count("tool_end") == 1
        assert stream.run_id == session.runs()[0].run_id
        assert stream.result().text == "done"


def test_the_result_of_a_stream_comes_without_reading_it(folder: str) -> None:
    with new_agent([say("done" * 5000)]) as agent:
        stream = agent.session(folder).stream("go")
        result = stream.result()
        assert "".join(event.text for event in stream if event.event_type == "text_delta") == result.text


def test_a_message_of_a_stream_that_nobody_reads_is_sent(folder: str) -> None:
    with new_agent([say("heard")]) as agent:
        session = agent.session(folder)
        message_id = session.stream("go").message_id
        assert session.wait(message_id).text == "heard"


def test_breaking_out_of_a_stream_leaves_the_run_going(folder: str) -> None:
    gate = Gate()
    with new_agent([gate.pass_through, say("all the same")]) as agent:
        session = agent.session(folder)
        for event in session.stream("go"):
            assert event.event_type == "start"
            break
        gate.opened.set()
        session.wait_idle()
        assert str(session.history()[-1]) == "assistant: all the same"


def test_a_stream_of_a_run_that_fails_ends_with_error_and_its_result_raises(folder: str) -> None:
    error = ModelError("no such model", model="scripted")
    with new_agent([fail(error)]) as agent:
        stream = agent.session(folder).stream("go")
        last = list(stream)[-1]
        assert isinstance(last, ErrorEvent)
        assert last.error_kind == "model"
        with pytest.raises(ModelError) as caught:
            stream.result()
        assert caught.value is error


async def test_a_stream_is_read_with_async_for_on_another_loop_that_goes_on_meanwhile(folder: str) -> None:
    gate = Gate()
    agent = new_agent([gate.pass_through, say("hello")])
    stream = agent.session(folder).stream("go")
    assert (await anext(stream)).event_type == "start"
    turn = asyncio.ensure_future(_rest(stream))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not turn.done()
    gate.opened.set()
    assert isinstance((await turn)[-1], EndEvent)
    agent.close()


async def _rest(stream: Any) -> list[Any]:
    return [event async for event in stream]


def test_subscribe_sees_every_run_until_the_session_is_closed(folder: str) -> None:
    with new_agent([say("a")], [say("b")]) as agent:
        session = agent.session(folder)
        events = session.subscribe()
        session.send("1")
        session.send("2")
        session.close()
        assert [event.text for event in events if event.event_type == "end"] == ["a", "b"]


# ---- interrupts ----


def test_an_interrupt_by_the_keyboard_leaves_the_run_going_and_the_session_usable(folder: str) -> None:
    gate = Gate()

    async def interrupting() -> None:
        interrupt_main()
        await gate.pass_through()

    with new_agent([interrupting, say("went on")], [say("next")]) as agent:
        session = agent.session(folder)
        with pytest.raises(KeyboardInterrupt):
            session.send("go")
        assert session.current_run() is not None
        gate.opened.set()
        session.wait_idle()
        assert str(session.history()[-1]) == "assistant: went on"
        assert session.send("and now").text == "next"


def test_an_interrupt_by_the_keyboard_in_a_stream_loses_no_event(folder: str) -> None:
    gate = Gate()
    waiting = threading.Event()

    async def interrupting() -> None:
        await asyncio.to_thread(waiting.wait, PATIENCE_S)
        interrupt_main()
        await gate.pass_through()

    with new_agent([interrupting, say("went on")]) as agent:
        stream = agent.session(folder).stream("go")
        kinds = [next(stream).event_type, next(stream).event_type]

        def read_on() -> None:
            waiting.set()
            next(stream)

        with pytest.raises(KeyboardInterrupt):
            read_on()
        gate.opened.set()
        kinds += [event.event_type for event in stream]
    assert kinds == ["start", "turn_start", "text_delta", "turn_end", "end"]


# ---- tools that use sessions ----


def test_sync_tools_run_on_threads_of_their_own(folder: str) -> None:
    with new_agent([call("thread_name")]) as agent:
        session = agent.session(folder)
        assert session.tool("thread_name").text not in ("laneway-sync", threading.current_thread().name)


@pytest.mark.parametrize("queue", [None, SessionQueueConfig()])
@pytest.mark.parametrize("same_agent", [True, False])
def test_a_sync_tool_may_use_another_session(folder: str, queue: SessionQueueConfig | None, same_agent: bool) -> None:
    @tool(lane="query", effect="read")
    def ask(text: str) -> str:
        """Ask somebody else."""
        return other.send(text).text

    with new_agent([call("ask", text="a"), call("ask", text="b")], [say("done")], tools=(ask,)) as agent:
        second = agent if same_agent else Agent("scripted", builtin_tools=False)
        other = second.session(folder, model="scripted", queue_config=queue)
        session = agent.session(folder, queue_config=queue)
        assert session.send("go").text == "done"
        assert sorted(str(each) for each in other.history()[1::2]) == [
            "assistant: You said: a",
            "assistant: You said: b",
        ]
        second.close()


def test_an_async_tool_that_calls_a_sync_session_is_refused_and_the_run_goes_on(folder: str) -> None:
    @tool(lane="query", effect="read")
    async def ask() -> str:
        """Ask somebody else."""
        return other.send("hello").text

    model = ScriptedModel([[call("ask")], [say("I see")]])
    with Agent(model, tools=[ask], builtin_tools=False) as agent:
        other = agent.session(folder)
        session = agent.session(folder)
        assert session.send("go").text == "I see"
        assert "Session.send() was called on the event loop" in str(model.requests[-1])
        with pytest.raises(UsageError, match="would wait for itself"):
            session.tool("ask")


@pytest.mark.parametrize("queue", [None, SessionQueueConfig()])
def test_a_sync_tool_that_waits_for_its_own_session_is_refused_and_does_not_hang(
    folder: str, queue: SessionQueueConfig | None
) -> None:
    @tool(lane="query", effect="read")
    def ask() -> str:
        """Ask myself."""
        return session.send("hello").text

    model = ScriptedModel([[call("ask")], [say("I see")], [say("later")]])
    with Agent(model, tools=[ask], builtin_tools=False) as agent:
        session = agent.session(folder, queue_config=queue)
        assert session.send("go").text == "I see"
        assert "waits for that session, which waits for it" in str(session.history())


def test_what_a_caller_has_in_its_context_is_there_in_its_tools(folder: str) -> None:
    trace: ContextVar[str] = ContextVar("trace", default="")

    @tool(lane="query", effect="read")
    def read_trace() -> str:
        """Say it."""
        return trace.get()

    with new_agent(tools=(read_trace,)) as agent:
        session = agent.session(folder, queue_config=SessionQueueConfig())
        trace.set("abc")
        assert session.tool("read_trace").text == "abc"


def test_many_runs_whose_tools_start_runs_do_not_starve_each_other(folder: str, pool: ThreadPoolExecutor) -> None:
    @tool(lane="query", effect="read")
    def ask(text: str) -> str:
        """Ask a session that is made for it."""
        with agent.session(folder, model="scripted") as other:
            return other.send(text).text

    agent = new_agent(tools=(ask,))

    def talk(number: int) -> str:
        model = ScriptedModel([[call("ask", text=str(number))], lambda request: [say(str(request)[-1])]])
        with agent.session(folder, model=model, queue_config=SessionQueueConfig()) as session:
            return session.send("go").text

    assert list(pool.map(talk, range(8))) == [str(number) for number in range(8)]
    agent.close()


# ---- opening and closing ----


def test_a_session_is_open_when_it_is_returned(folder: str) -> None:
    with new_agent() as agent:
        session = agent.session(folder, queue_config=SessionQueueConfig())
        assert session.has_queue()
        assert set(session.queue_stats()["lanes"]) == {"control", "query", "execute", "generate"}


def test_what_keeps_a_session_from_opening_is_raised_where_it_is_made(folder: str) -> None:
    with new_agent([say("fine")]) as agent:
        with pytest.raises(ConfigError, match="is not a folder"):
            agent.session(__file__)
        with pytest.raises(ConfigError, match="did you mean"):
            agent.session(folder, sesion_id="s1")
        first = agent.session(folder, session_id="s1")
        with pytest.raises(ConfigError, match="is open already"):
            agent.session(folder, session_id="s1")
        assert agent.sessions() == [first]
        assert first.send("go").text == "fine"


def test_wrong_settings_of_an_agent_are_raised_without_starting_anything() -> None:
    with pytest.raises(ConfigError):
        Agent("scripted", max_tool_round=3)
    assert background.running() is None


def test_an_agent_that_was_never_used_closes_without_a_thread() -> None:
    with new_agent() as agent:
        assert agent.options.tools is None
        assert background.running() is None
    with pytest.raises(ClosedError):
        agent.session()


def test_after_close_every_call_says_so_and_closing_again_is_fine(folder: str) -> None:
    agent = new_agent([say("a")])
    session = agent.session(folder, session_id="s1")
    stream = session.stream("go")
    agent.close()
    agent.close()
    session.close()
    for late in (lambda: session.send("x"), session.queue_stats, session.subscribe, agent.sessions, stream.result):
        with pytest.raises(ClosedError, match="closed"):
            late()
    assert (session.session_id, session.workspace) == ("s1", str(Path(folder).resolve()))
    assert "'s1'" in repr(session)


def test_a_closed_session_refuses_and_its_agent_goes_on(folder: str) -> None:
    with new_agent([say("a")], [say("b")]) as agent:
        with agent.session(folder) as session:
            assert session.send("go").text == "a"
        session.close()
        with pytest.raises(ClosedError, match="session"):
            session.send("again")
        assert agent.session(folder).send("go").text == "b"


def test_closing_while_another_thread_waits_ends_its_wait_with_an_error(folder: str, pool: ThreadPoolExecutor) -> None:
    reached = threading.Event()

    async def hold() -> None:
        reached.set()
        await asyncio.Event().wait()

    agent = new_agent([hold])
    session = agent.session(folder)
    events = session.subscribe()
    running = pool.submit(session.send, "go")
    assert reached.wait(PATIENCE_S)
    stream = session.stream("next")
    queued, idle = pool.submit(session.wait, stream.message_id), pool.submit(session.wait_idle)
    agent.close()
    with pytest.raises(RunCancelledError, match="closed"):
        running.result(PATIENCE_S)
    with pytest.raises(LanewayError):
        queued.result(PATIENCE_S)
    idle.exception(PATIENCE_S)  # that it ends is enough
    assert [event.event_type for event in stream] == ["message_queued", "error"]
    assert list(events)[-1].event_type == "error"


@pytest.mark.parametrize("queue", [None, SessionQueueConfig()])
def test_closing_an_agent_does_not_wait_for_a_sync_tool_that_waits_for_the_loop(
    folder: str, queue: SessionQueueConfig | None, pool: ThreadPoolExecutor
) -> None:
    """Else the loop would wait for the tool's thread, and that thread for the loop."""
    reached = threading.Event()
    errors: list[BaseException] = []

    async def hold() -> None:
        reached.set()
        await asyncio.Event().wait()

    @tool(lane="query", effect="read")
    def ask() -> str:
        """Ask somebody who never answers."""
        try:
            return other.send("hello").text
        except BaseException as error:
            errors.append(error)
            raise

    second = new_agent([hold])
    other = second.session(folder)
    agent = new_agent([call("ask")], tools=(ask,))
    answer = pool.submit(agent.session(folder, queue_config=queue).send, "go")
    assert reached.wait(PATIENCE_S)
    agent.close()
    with pytest.raises((RunCancelledError, ClosedError)):
        answer.result(PATIENCE_S)
    assert other.current_run() is not None
    assert not errors
    second.close()


@pytest.mark.parametrize("what", ["session", "agent"])
@pytest.mark.parametrize("queue", [None, SessionQueueConfig()])
def test_a_sync_tool_that_closes_what_it_runs_in_does_not_hang(
    folder: str, queue: SessionQueueConfig | None, what: str
) -> None:
    @tool(lane="query", effect="read")
    def close() -> str:
        """Close everything."""
        (session if what == "session" else agent).close()
        return "closed"

    with new_agent([call("close")], [say("I see")], tools=(close,)) as agent:
        session = agent.session(folder, queue_config=queue)
        outcome = ""
        try:
            outcome = session.send("go").text
        except LanewayError as error:
            outcome = error.code
    assert outcome in ("I see", "run_cancelled", "closed")


def test_agents_share_one_thread_and_the_last_close_ends_it(folder: str) -> None:
    with new_agent() as first, new_agent() as second:
        first.session(folder)
        thread = background.running()
        second.session(folder)
        assert background.running() is thread
        first.close()
        assert background.running() is thread


def test_a_session_goes_on_where_the_store_left_it(folder: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'sessions.db'}"
    with new_agent([say("first")], session_store=store) as agent:
        agent.session(folder, session_id="s1").send("one")
    options = SessionOptions(session_id="ignored")
    with new_agent([say("second")], session_store=store) as agent:
        session = agent.resume_session("s1", options, workspace=folder)
        assert session.send("two").text == "second"
        assert str(session.history()[0]) == "user: one"


# ---- the surface ----

INTERNAL = {
    *("ready", "start", "unpaused", "run_turn", "begin_run", "follow", "settled", "emit_event", "lane_of", "spec_of"),
    *("may_run_beside", "submit_model", "resume_wanted", "compact_wanted", "shut", "live_run", "relay", "keep_task"),
    *(
        "submit_compaction",
        "is_family",
        "opened",
        "waiting_line",
        "watch",
        "worker_began",
        "said_wanted",
        "tell_of_peers",
        "arriving",
        "hurry",
        "is_fork",
        "cut_short",
        "system_text",
    ),
}
"""What the parts of an asynchronous session say to each other."""


def _public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}


def test_every_method_of_the_asynchronous_session_has_a_twin() -> None:
    assert _public(Session) == _public(AsyncSession) - INTERNAL


@pytest.mark.parametrize("name", sorted(_public(Session)))
def test_a_method_of_the_session_takes_what_its_twin_takes(name: str) -> None:
    mine, twin = getattr(Session, name), getattr(AsyncSession, name)
    assert not inspect.iscoroutinefunction(mine)
    assert mine.__doc__
    if name != "run":  # written out here, and passed on there
        assert _parameters(mine) == _parameters(twin)


@pytest.mark.parametrize(
    "name", ["__init__", "create", "session", "resume_session", "sessions", "stored_sessions", "close"]
)
def test_a_method_of_the_agent_takes_what_its_twin_takes(name: str) -> None:
    assert _parameters(getattr(Agent, name)) == _parameters(getattr(AsyncAgent, name))


def _parameters(method: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    return [(each.name, each.kind, each.default) for each in inspect.signature(method).parameters.values()]


def test_the_direct_tools_work_in_the_folder_of_the_session(tmp_path: Path) -> None:
    with Agent("scripted", permission_policy=ANYTHING) as agent:
        session = agent.session(tmp_path, queue_config=SessionQueueConfig())
        session.write_file("a.txt", "one\n")
        session.edit_file("a.txt", "one", "two")
        assert (tmp_path / "a.txt").read_text() == "two\n"
        assert "two" in session.read_file("a.txt")
        assert "a.txt" in session.ls()
        assert "a.txt" in session.glob("*.txt")
        assert "a.txt" in session.grep("two")
        assert "hello" in session.bash("echo hello")
        assert session.submit("query", {"path": "a.txt"}) == session.read_file("a.txt")
        assert session.submit_batch("query", [threading.get_ident, lambda: 2])[1] == 2
