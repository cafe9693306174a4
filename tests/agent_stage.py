"""What tests of the agent loop share: answers and tools that wait for the test, and a check of conversations."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from laneway.agent import AsyncAgent
from laneway.agent.results import RunResult
from laneway.agent.session import AsyncSession
from laneway.agent_events import AgentEvent
from laneway.dialogue import Answer, ModelRequest, Prompt, Results, ToolResult
from laneway.mail import Final, Receipt
from laneway.models import call
from laneway.models.scripted import Call, Piece
from laneway.options import PermissionPolicy, SessionQueueConfig
from laneway.system import HostEnv
from laneway.testing import fake_host
from laneway.tools import FunctionTool
from tests.stage import passing

ALLOW = PermissionPolicy(allow=("*",))
_HOSTS: WeakKeyDictionary[asyncio.AbstractEventLoop, HostEnv] = WeakKeyDictionary()
QUEUES = (False, True)


# ---- answers that wait ----


class Held:
    """An entry of a script that waits for the test: `asked` tells that the model was asked, `let_go` lets it answer."""

    def __init__(self, *pieces: Piece) -> None:
        self._pieces = pieces
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()

    async def __call__(self, request: ModelRequest) -> Sequence[Piece]:
        """Wait, and give the pieces."""
        self.asked.set()
        await self.gate.wait()
        return self._pieces

    def let_go(self) -> None:
        """Let it answer."""
        self.gate.set()


def use(name: str, *keys: str) -> list[Piece]:
    """An answer that calls one tool once for each key."""
    return [call(name, key=key).with_id(key) for key in keys]


def one(name: str, key: str) -> Call:
    """One call, whose id is its key."""
    return call(name, key=key).with_id(key)


# ---- tools that wait ----


class Bench:
    """Tools that write down what they do. A call whose key is in `held` lasts until `let_go` says its name.

    `look` reads in `query`; `check` reads in `execute`; `act` writes; `put` is idempotent; `nail` writes and cannot be
    interrupted.
    """

    def __init__(self, *held: str) -> None:
        self.held = set(held)
        self.began: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.running: set[str] = set()
        self.peak = 0
        self._gates: dict[str, asyncio.Event] = {}
        self._begun: dict[str, asyncio.Event] = {}
        self.tools: list[FunctionTool[Any, Any]] = [
            self.tool("look", lane="query", effect="read"),
            self.tool("check", effect="read"),
            self.tool("act", effect="write"),
            self.tool("put", effect="idempotent"),
            self.tool("nail", effect="write", interruptible=False),
        ]

    def tool(self, name: str, **options: Any) -> FunctionTool[Any, Any]:
        """One more tool that does as it is told."""

        async def run(key: str) -> str:
            return await self._run(key)

        return FunctionTool(run, name=name, description=f"{name} something", **options)

    async def _run(self, key: str) -> str:
        self.began.append(key)
        self.running.add(key)
        self.peak = max(self.peak, len(self.running))
        self.begun(key).set()
        try:
            if key in self.held:
                await self.gate(key).wait()
            else:
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(key)
            raise
        finally:
            self.running.discard(key)
        self.ended.append(key)
        return f"result of {key}"

    def gate(self, key: str) -> asyncio.Event:
        """What a held call waits for."""
        return self._gates.setdefault(key, asyncio.Event())

    def begun(self, key: str) -> asyncio.Event:
        """Set as soon as a call with this key runs."""
        return self._begun.setdefault(key, asyncio.Event())

    def let_go(self, *keys: str) -> None:
        """Let held calls end: these, or all."""
        for key in keys or tuple(self.held):
            self.gate(key).set()
            self.held.discard(key)


# ---- sessions ----


@contextlib.asynccontextmanager
async def opened(
    model: Any, tools: Bench | Iterable[Any] = (), *, queue: bool | SessionQueueConfig = False, **options: Any
) -> AsyncIterator[AsyncSession]:
    """A session of an agent of its own, with a clock that is the loop's and ids that count."""
    async with agent_of(model, tools) as agent:
        yield session_of(agent, queue=queue, **options)


def agent_of(model: Any, tools: Bench | Iterable[Any] = (), **options: Any) -> AsyncAgent:
    """An agent that may do everything. Ids count on through all agents of one test: two lives of one store may meet."""
    found = tools.tools if isinstance(tools, Bench) else tools
    host = _HOSTS.setdefault(asyncio.get_running_loop(), fake_host())
    options.setdefault("permission_policy", ALLOW)
    options.setdefault("artifacts_dir", tempfile.gettempdir())
    return AsyncAgent(model=model, tools=found, builtin_tools=False, host=host, **options)


def session_of(agent: AsyncAgent, *, queue: bool | SessionQueueConfig = False, **options: Any) -> AsyncSession:
    """One more session of an agent."""
    if queue:
        options["queue_config"] = SessionQueueConfig() if queue is True else queue
    return agent.session(tempfile.gettempdir(), **options)


async def post(session: AsyncSession, text: str, mode: str = "followup", **more: Any) -> Receipt:
    """Put a message into the inbox of a session, with whatever an inbox takes."""
    await session.ready()
    return await session.host.inbox.submit(session.session_id, text, mode=mode, tenant=session.owner.tenant, **more)


async def final_of(session: AsyncSession, message: Receipt | str) -> Final:
    """How a message ended."""
    return await session.host.inbox.wait(message if isinstance(message, str) else message.message_id)


def sending(session: AsyncSession, text: str, **more: Any) -> asyncio.Task[RunResult]:
    """A `send` that the test waits for later, if at all."""
    task = asyncio.get_running_loop().create_task(session.send(text, **more), name=f"send {text}")
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


class Delivered:
    """What was said to the outside, in order."""

    def __init__(self, session: AsyncSession) -> None:
        self._stream = session.host.inbox.subscribe("turn.replied")

    async def texts(self) -> list[str]:
        """All of it so far."""
        await passing()
        self._stream.close()
        events: list[Any] = [event async for event in self._stream]
        return [event.text for event in events]


class Watch:
    """Reads a stream or a subscription in a task of its own, to its end."""

    def __init__(self, stream: AsyncIterator[AgentEvent]) -> None:
        self.events: list[AgentEvent] = []
        self._stream = stream
        self.task = asyncio.get_running_loop().create_task(self._read(), name="watch")
        self.task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    async def _read(self) -> None:
        async for event in self._stream:
            self.events.append(event)

    @property
    def types(self) -> list[str]:
        """The types of the events so far."""
        return [event.event_type for event in self.events]

    def of(self, *types: str) -> list[Any]:
        """The events of some types."""
        return [event for event in self.events if event.event_type in types]

    @property
    def text(self) -> str:
        """The text of the answer so far."""
        return "".join(event.text for event in self.of("text_delta"))


# ---- what the model is sent ----


def prompts(request: ModelRequest) -> list[str]:
    """What it was told by people."""
    return [said.text for said in request.conversation if isinstance(said, Prompt)]


def results(request: ModelRequest) -> list[ToolResult]:
    """Every result it was told, in order."""
    return [each for said in request.conversation if isinstance(said, Results) for each in said.results]


def statuses(request: ModelRequest) -> list[tuple[str, str]]:
    """The ids and the ends of all calls, in order."""
    return [(each.call_id, each.status.value) for each in results(request)]


def shape(request: ModelRequest) -> list[str]:
    """The conversation in short: `user: …`, `model: …`, `calls a b`, `results a=ok b=skipped`."""
    lines = []
    for said in request.conversation:
        if isinstance(said, Prompt):
            lines.append(f"{said.role}: {said.text}")
        elif isinstance(said, Results):
            lines.append("results " + " ".join(f"{each.call_id}={each.status}" for each in said.results))
        else:
            lines += [f"model: {said.text}"] if said.text else []
            lines += ["calls " + " ".join(each.id for each in said.calls)] if said.calls else []
    return lines


def check_conversation(request: ModelRequest) -> None:
    """Fail unless a provider would take it: every call has one result, in order, directly after its answer."""
    said = request.conversation
    picture = "\n".join(shape(request))
    assert said, "nothing is said"
    assert isinstance(said[0], Prompt), picture
    assert not isinstance(said[-1], Answer), picture
    for before, each in zip((None, *said), said, strict=False):
        if isinstance(each, Results):
            assert isinstance(before, Answer), picture
            assert [one.call_id for one in each.results] == [one.id for one in before.calls], picture
            assert [one.name for one in each.results] == [one.name for one in before.calls], picture
        else:
            assert not (isinstance(before, Answer) and before.calls), f"calls without results\n{picture}"
    for answer in (each for each in said if isinstance(each, Answer)):
        assert len({each.id for each in answer.calls}) == len(answer.calls), picture
        assert all(each.id for each in answer.calls), picture


class Asked(Protocol):
    """A model that keeps what it was sent."""

    requests: list[ModelRequest]


def check_model(model: Asked) -> None:
    """Fail unless every request it ever got is a good conversation."""
    for request in model.requests:
        check_conversation(request)


def check_events(events: Iterable[AgentEvent]) -> None:
    """Fail unless each call has one end, nothing ends before it starts, and the stream has one end, which is last."""
    told = list(events)
    ends = [event for event in told if event.event_type in ("end", "error")]
    assert len(ends) == 1, [event.event_type for event in told]
    assert told[-1] is ends[0], [event.event_type for event in told]
    per_run: dict[tuple[str, int, str], list[str]] = {}
    turn = 0
    for event in told:
        if event.event_type == "turn_start":
            turn = event.turn
        if event.event_type in ("tool_queued", "tool_start", "tool_end"):
            per_run.setdefault((event.run_id, turn, event.tool_id), []).append(event.event_type)
    for steps in per_run.values():
        assert steps.count("tool_end") == 1, per_run
        assert steps[-1] == "tool_end", per_run
        assert steps.count("tool_queued") <= 1, per_run
