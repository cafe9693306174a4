"""What tests of the inbox share: an agent that does as it is told, inboxes in virtual time, stores that fail."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Self
from weakref import WeakKeyDictionary

from laneway import Final, Inbox, Message, MessageState, Sender, StoreUnavailableError, Turn, TurnState
from laneway.events import Event
from laneway.rows import Batch, BatchResult
from laneway.runtime.subscriptions import Subscription
from laneway.sim.loop import run_sim
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.system import HostEnv
from laneway.testing import LoopClock, fake_host
from tests.stage import passing

P = ParamSpec("P")
Play = Callable[[Turn], Awaitable[str | None]]

SEEDS = (1, 2)
S = "chat"  # the session of most tests
OWNER = Sender(id="olga", owner=True)
GUEST = Sender(id="gus")


def staged(main: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a coroutine: it runs in virtual time, without a shuffle and with two seeds."""

    @functools.wraps(main)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_sim(main(*args, **kwargs), seed=0, shuffle=False)
        for seed in SEEDS:
            run_sim(main(*args, **kwargs), seed=seed)

    return run


class Agent:
    """A handler that writes down its turns. A prompt that begins with `hold` lasts until `let_go` says its name.
    One that begins with `cling` does too, and ignores every cancellation meanwhile.

    `plays` are parts of its own for some prompts; every other prompt is answered with `re: <prompt>`.
    """

    def __init__(self, **plays: Play) -> None:
        self.plays = plays
        self.turns: list[Turn] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.began_at: list[int] = []
        self.running = 0
        self.peak = 0
        self._gates: dict[str, asyncio.Event] = {}

    @property
    def prompts(self) -> list[str]:
        """What its turns were about, in the order in which they began."""
        return [turn.prompt for turn in self.turns]

    async def __call__(self, turn: Turn) -> str | None:
        """One turn."""
        self.turns.append(turn)
        self.began_at.append(round(asyncio.get_running_loop().time() * 1000))
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            return await self._play(turn)
        except asyncio.CancelledError:
            self.cancelled.append(turn.prompt)
            raise
        finally:
            self.running -= 1
            self.ended.append(turn.prompt)

    async def _play(self, turn: Turn) -> str | None:
        play = self.plays.get(turn.prompt.split()[0]) if turn.prompt.split() else None
        if play is not None:
            return await play(turn)
        if turn.prompt.startswith("hold"):
            await self.gate(turn.prompt).wait()
        if turn.prompt.startswith("cling"):
            while not self.gate(turn.prompt).is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await self.gate(turn.prompt).wait()
        return f"re: {turn.prompt}"

    def gate(self, name: str) -> asyncio.Event:
        """What a turn that holds waits for."""
        return self._gates.setdefault(name, asyncio.Event())

    def let_go(self, *names: str) -> None:
        """Let turns that hold end: those with these prompts, or all that hold now."""
        for name in names or ("hold", *self._gates):
            self.gate(name).set()


_HOSTS: WeakKeyDictionary[asyncio.AbstractEventLoop, HostEnv] = WeakKeyDictionary()


def new_inbox(handler: Callable[[Turn], Awaitable[str | None]] | None = None, **options: Any) -> Inbox:
    """An inbox whose clock is the loop's and whose ids count from 1, on through all inboxes of one test."""
    if "host" not in options:
        with contextlib.suppress(RuntimeError):  # without a loop no two lives of one store can meet
            options["host"] = _HOSTS.setdefault(asyncio.get_running_loop(), fake_host())
    return Inbox(handler or Agent(), **options)


def stepping_inbox(handler: Callable[[Turn], Awaitable[str | None]], **options: Any) -> tuple[Inbox, LoopClock]:
    """An inbox and the clock whose wall time a test may step."""
    clock = LoopClock()
    return Inbox(handler, host=fake_host(clock=clock), **options), clock


class Log:
    """Everything that an inbox publishes from now on."""

    def __init__(self, inbox: Inbox, *keys: str) -> None:
        self._stream: Subscription = inbox.subscribe(*keys)
        self.events: list[Event] = []

    async def __aenter__(self) -> Self:
        self._task = asyncio.get_running_loop().create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        await self._task

    async def _read(self) -> None:
        async for event in self._stream:
            self.events.append(event)

    def of(self, *types: str) -> list[Any]:
        """The events of some types, in order."""
        return [event for event in self.events if event.type in types]

    def about(self, message_id: str) -> list[Any]:
        """The kept events of one message, in order."""
        return [event for event in self.events if getattr(event, "message_id", "") == message_id and _is_kept(event)]

    def answers(self) -> list[str]:
        """Everything that was said, in order."""
        return [event.text for event in self.of("turn.replied")]


def _is_kept(event: Event) -> bool:
    return event.type.startswith("message.") and bool(getattr(event, "seq", 0))


async def busy(inbox: Inbox, agent: Agent, text: str = "hold", **options: Any) -> str:
    """Send a message whose turn lasts, and wait until it runs; the answer is its id."""
    receipt = await inbox.submit(S, text, **options)
    await passing()
    assert any(prompt == text for prompt in agent.prompts), f"{text!r} does not run"
    return receipt.message_id


async def send(inbox: Inbox, *texts: str, session: str = S, **options: Any) -> list[str]:
    """Send messages one after another; the answer is their ids."""
    return [(await inbox.submit(session, text, **options)).message_id for text in texts]


async def finals(inbox: Inbox, ids: Iterable[str]) -> list[Final]:
    """Wait for the ends of some messages."""
    return [await inbox.wait(message_id) for message_id in ids]


async def dispositions(inbox: Inbox, ids: Iterable[str]) -> list[MessageState]:
    """How some messages ended."""
    return [final.disposition for final in await finals(inbox, ids)]


def waiting(inbox: Inbox, session: str = S) -> list[str]:
    """The texts that wait in a session, in order."""
    return [pending.text for pending in inbox.pending(session)]


def collected(*parts: tuple[str, str]) -> str:
    """The prompt of a batch: pairs of sender and text."""
    blocks = [
        f"\n\n---\nQueued #{number}{f' (from {sender})' if sender else ''}\n{text}"
        for number, (sender, text) in enumerate(parts, 1)
    ]
    return "[Queued messages while agent was busy]" + "".join(blocks)


def texts_of(messages: Sequence[Message]) -> list[str]:
    """Their texts."""
    return [message.text for message in messages]


class CutStore(MemoryStore):
    """A store on a disk that can be cut off, as by a kill, or refuse what it is told to refuse.

    After `kill` it answers nobody any more: the inbox on it does whatever it likes, and none of it is ever on disk.
    What that inbox had committed is found by another store on the same disk.
    """

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        super().__init__(disk or MemoryDisk())
        self.is_dead = False
        self.refuse: Callable[[Batch], bool] = lambda batch: False
        self.loses_answer = False  # what it refuses is on disk all the same
        self.delay_ms = 0
        self.refused: list[Batch] = []

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Make batches durable but for those that it refuses."""
        if self.delay_ms:
            await passing(self.delay_ms)
        if self.is_dead:
            await asyncio.get_running_loop().create_future()
        results: list[BatchResult] = []
        for batch in batches:
            if not self.refuse(batch):
                results += await super().commit([batch])
                continue
            self.refused.append(batch)
            if self.loses_answer:
                await super().commit([batch])
            results.append(BatchResult(StoreUnavailableError("the store is away")))
        return results


_GRAVES: list[tuple[object, Inbox]] = []  # what was killed must not be collected before its loop ends


def kill(inbox: Inbox, store: CutStore) -> MemoryDisk:
    """End a process, as far as its disk can tell; the disk is the answer."""
    loop = asyncio.get_running_loop()
    _GRAVES[:] = [(one, dead) for one, dead in _GRAVES if one is loop]
    _GRAVES.append((loop, inbox))
    store.is_dead = True
    engine = inbox._engine  # noqa: SLF001 - what is dead commits nothing and begins nothing
    engine.journal._flush = lambda: None  # type: ignore[method-assign]  # noqa: SLF001 - as above
    engine.kernel.closing = True
    inbox._clockwork.close()  # noqa: SLF001 - as above
    return store.disk


async def pause_in(turn: Turn, state: TurnState | str, gate: asyncio.Event) -> None:
    """Stay in a phase until the gate opens."""
    async with turn.phase(state):
        await gate.wait()
