"""How the public surface is typed: checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, assert_type

from laneway import (
    AbortSignal,
    Approval,
    ApprovalState,
    Child,
    DeadLetter,
    DrainReport,
    Drop,
    Explanation,
    Final,
    HistoryEntry,
    Inbox,
    Job,
    JobId,
    JobInfo,
    JobState,
    LaneConfig,
    LaneMetrics,
    Lanes,
    LaneScope,
    Message,
    MessageKind,
    MessageState,
    Mode,
    OnCrash,
    Outcome,
    PendingMessage,
    Priority,
    QueueOptions,
    Receipt,
    RetryPolicy,
    Route,
    Schedule,
    Sender,
    SessionView,
    Slot,
    Snapshot,
    Stats,
    Stopped,
    Store,
    Story,
    StoryStep,
    Subscription,
    Turn,
    TurnState,
)
from laneway.config import inbox_options, lanes_options, load
from laneway.events import Event
from laneway.stores import MemoryStore, open_store
from laneway.stores.sqlite import SqliteStore


async def fetch(url: str, retries: int) -> bytes:
    return url.encode() * retries


def count(text: str) -> int:
    return len(text)


def later(text: str) -> Awaitable[int]:
    raise NotImplementedError(text)


async def jobs(lanes: Lanes) -> None:
    assert_type(lanes.submit("query", fetch, "url", 3), Job[bytes])
    assert_type(await lanes.submit("query", fetch, "url", 3), bytes)
    assert_type(lanes.submit("query", count, "text"), Job[int])
    assert_type(lanes.submit("query", later, "text"), Job[int])
    assert_type(lanes.submit(["session:a", "query"], partial(fetch, "url"), 3), Job[bytes])
    assert_type(await lanes.run("query", fetch, "url", 3), bytes)
    assert_type(await lanes.run("query", count, "text", timeout_ms=5), int)
    job = lanes.submit(
        "query",
        fetch,
        "url",
        3,
        priority=Priority.BACKGROUND,
        timeout_ms=1,
        wait_timeout_ms=1,
        deadline_ms=1,
        delay_ms=0,
        retry=RetryPolicy.exponential(3),
        effect="read",
        tenant="ada",
        weight=0.5,
        key="k",
        label="mine",
        signal=AbortSignal(),
    )
    assert_type(job.id, JobId)
    assert_type(job.state, JobState)
    assert_type(job.attempt, int)
    assert_type(job.done(), bool)
    assert_type(job.cancel("reason"), bool)
    assert_type(job.explain(), Explanation)


async def wrong_arguments(lanes: Lanes) -> None:
    lanes.submit("query", fetch, 5, 3)  # type: ignore[arg-type, call-arg]
    lanes.submit("query", fetch, "url")  # type: ignore[arg-type]
    lanes.submit("query", fetch, "url", 3, nonsense=1)  # type: ignore[call-overload]


async def slots(lanes: Lanes) -> None:
    assert_type(lanes.slot("query"), Slot)
    async with lanes.slot("query", label="deploy", wait_timeout_ms=5) as slot:
        assert_type(slot, Slot)
        assert_type(slot.id, JobId | None)
        slot.release()


async def questions(lanes: Lanes) -> None:
    assert_type(lanes.stats(), Stats)
    assert_type(lanes.jobs("query", JobState.RUNNING), list[JobInfo])
    assert_type(lanes.metrics(), dict[str, LaneMetrics])
    assert_type(lanes.status_line(), str)
    assert_type(lanes.explain("job-1"), Explanation)
    assert_type(lanes.cancel("job-1"), bool)
    assert_type(lanes.cancel_waiting(), int)
    assert_type(lanes.dead_letters.list(), list[DeadLetter])
    assert_type(await lanes.drain(5, purpose="restart"), DrainReport)
    assert_type(lanes.scope("s1"), LaneScope)
    subscription = lanes.subscribe("query")
    assert_type(subscription, Subscription)
    async for event in subscription:
        assert_type(event, Event)

    def told(snapshot: Snapshot) -> None:
        assert_type(snapshot.running, int)

    assert_type(lanes.on_change(told), Callable[[], None])


async def opening() -> None:
    async with Lanes({"query": LaneConfig(concurrency=4), "execute": 2}, max_concurrent=8) as lanes:
        assert_type(lanes, Lanes)
    async with Lanes.for_tools() as tools:
        assert_type(tools, Lanes)
    assert_type(Lanes.limiter(3), Lanes)


async def durable_jobs(lanes: Lanes) -> None:
    @lanes.handler("fetch")
    async def fetch_page(payload: dict[str, str]) -> bytes:
        return payload["url"].encode()

    assert_type(await fetch_page({"url": "x"}), bytes)
    lanes.handler("count", count)
    assert_type(await lanes.enqueue("query", "fetch", {"url": "x"}, key="k", delay_ms=5), Job[Any])
    await lanes.enqueue("query", "fetch", signal=AbortSignal())  # type: ignore[call-arg]


async def answer(turn: Turn) -> str:
    assert_type(turn.prompt, str)
    assert_type(turn.messages, tuple[Message, ...])
    assert_type(turn.mode, Mode)
    assert_type(turn.kind, MessageKind)
    assert_type(turn.route, Route)
    assert_type(turn.state, TurnState)
    assert_type(turn.cancelled, bool)
    assert_type(turn.conversation, int)
    for message in await turn.boundary():
        assert_type(message, Message)
        assert_type(message.sender, Sender | None)
    assert_type(turn.peek_pending(), list[Message])
    assert_type(await turn.consume_pending(), list[Message])
    assert_type(turn.skipped([1, 2]), list[tuple[int, str]])
    assert_type(await turn.request_followup("go on"), str)
    assert_type(turn.spawn(fetch, "url", 3, label="mine", timeout_ms=5), Child)
    assert_type(await turn.ask("which?", timeout_ms=5), Message | None)
    approval = await turn.ask_approval("deploy", {"to": "here"}, timeout_ms=5)
    assert_type(approval, Approval)
    assert_type(approval.state, ApprovalState)
    assert_type(approval.arguments, Mapping[str, Any])
    async with turn.phase("acting"):
        await turn.reply("soon")
    return turn.id


async def silent(turn: Turn) -> None:
    turn.add_usage(1)


class Agent:
    """A handler may be an object."""

    async def __call__(self, turn: Turn) -> str | None:
        return turn.prompt or None


def choose(view: SessionView) -> Mode | str:
    assert_type(view.turn_state, TurnState | None)
    return Mode.STEER if view.busy else "collect"


async def inboxes(store: Store) -> None:
    async with Inbox(answer, store="sqlite:///inbox.db", mode="steer", drop="old", on_crash="rerun") as inbox:
        assert_type(inbox, Inbox)
        assert_type(inbox.lanes, Lanes)
    Inbox(silent, store=store, mode=Mode.COLLECT, drop=Drop.NEW, on_crash=OnCrash.REPORT)
    Inbox(Agent(), store=MemoryStore(), mode=choose, by_channel={"a": "steer", "b": QueueOptions(cap=3)})
    Inbox(answer, store=SqliteStore("inbox.db"), lanes=Lanes.for_gateway(), expires_ms=5, max_wait_ms=5)
    Inbox(count)  # type: ignore[arg-type]
    Inbox(answer, cap="many")  # type: ignore[arg-type]


async def messages(inbox: Inbox) -> None:
    receipt = await inbox.submit(
        "chat",
        "hello",
        channel="slack",
        thread=5,
        sender={"id": "ada", "rights": ["queue"]},
        message_id=77,
        mode="interrupt",
        kind="user",
        priority=Priority.BACKGROUND,
        tenant="acme",
        attachments=[{"name": "photo"}],
        expires_ms=5,
    )
    assert_type(receipt, Receipt)
    assert_type(receipt.disposition, MessageState)
    assert_type(receipt.position, int | None)
    final = await inbox.wait(receipt.message_id)
    assert_type(final, Final)
    assert_type(final.outcome, Outcome | None)
    assert_type(final.answer, str | None)
    assert_type(await inbox.status("m"), Final)
    assert_type(await inbox.retry("m"), Receipt)
    story = await inbox.explain("m")
    assert_type(story, Story)
    assert_type(story.steps, tuple[StoryStep, ...])
    assert_type(await inbox.history("chat", limit=5), list[HistoryEntry])
    assert_type(await inbox.transcript("chat"), str)
    assert_type(await inbox.messages("chat", state="ran"), list[Final])
    assert_type(await inbox.sessions(tenant="acme"), list[str])
    assert_type(await inbox.command("chat", "/queue", sender="ada"), str | None)
    await inbox.submit("chat", "hello", kind="nonsense")  # type: ignore[arg-type]


async def queues(inbox: Inbox) -> None:
    assert_type(inbox.pending("chat"), list[PendingMessage])
    assert_type(inbox.peek_pending("chat"), list[Message])
    assert_type(await inbox.consume_pending("chat"), list[Message])
    assert_type(await inbox.move("m", 1, actor="ada"), int)
    assert_type(await inbox.steer_now("m"), bool)
    assert_type(await inbox.stop("chat"), Stopped)
    assert_type((await inbox.stop("chat")).children, int)
    assert_type(inbox.approvals(), list[Approval])
    assert_type(await inbox.approve("a", by="olga"), bool)
    assert_type(await inbox.deny("a", "no"), bool)
    assert_type(await inbox.schedule("chat", "report", cron="@daily"), Schedule)
    assert_type(inbox.schedules("chat"), list[Schedule])
    assert_type(await inbox.unschedule("s"), bool)
    assert_type(inbox.subscribe("chat"), Subscription)


async def stores_and_files() -> None:
    assert_type(open_store("sqlite:///inbox.db"), Store)
    settings = load("laneway.yaml", environ={}).settings
    Inbox(answer, **inbox_options(settings))
    Lanes(**lanes_options(settings))
