"""The chapters of the tour. Each runs real jobs; what it says at the end is read off the event stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from laneway.cli.tour_stage import Chapter, Stage
from laneway.errors import DrainingError
from laneway.records import JobState, Priority, RetryPolicy
from laneway.runtime.handles import Job

__all__ = ("CHAPTERS",)

USERS_MAX: Final = 14


def seconds(milliseconds: float) -> str:
    """A duration for a sentence."""
    return f"{milliseconds:.0f} ms" if milliseconds < 1_000 else f"{milliseconds / 1000:.1f} s"


def word(job: Job[Any]) -> str:
    """The state of a job for a sentence."""
    return job.state.replace("_", " ")


async def reads_overtake(stage: Stage) -> str:
    """Writes come first, reads a little later, and still the reads go first."""
    writes = [stage.submit("execute", f"w{number}", 1_200) for number in range(1, 6)]
    await stage.breathe(500)
    reads = [stage.submit("query", f"r{number}", 800) for number in range(1, 10)]
    stage.watch(writes[-1])
    await stage.settle(*writes, *reads)
    stage.watch(None)
    order = stage.ledger.order("r", "w")
    before = sum(1 for label in order[: order.index(writes_last(order))] if label.startswith("r"))
    reads_ms, writes_ms = stage.ledger.waited_ms("r"), stage.ledger.waited_ms("w")
    return (
        f"Reads waited {seconds(reads_ms)} on average, writes {seconds(writes_ms)}; "
        f"{before} of {len(reads)} reads started before the last write."
    )


def writes_last(order: Sequence[str]) -> str:
    """The write that started last."""
    return [label for label in order if label.startswith("w")][-1]


async def levels_and_ageing(stage: Stage) -> str:
    """People keep coming, and still the background job has its turn."""
    jobs = [stage.submit("desk", "u1", 600)]
    background = stage.submit("desk", "b1", 600, priority=Priority.BACKGROUND)
    jobs.append(background)
    jobs += [stage.submit("desk", f"s{number}", 600, priority=Priority.SCHEDULED) for number in (1, 2)]
    stage.watch(background)
    for number in range(2, USERS_MAX):
        jobs.append(stage.submit("desk", f"u{number}", 600))
        await stage.breathe(450)
        if background.state is not JobState.QUEUED:
            break
    await stage.settle(*jobs)
    stage.watch(None)
    start = stage.ledger.first_start("b1")
    assert start is not None
    order = stage.ledger.order("u", "s", "b")
    ahead = sum(1 for label in order[: order.index("b1")] if label.startswith("u"))
    return (
        f"b1 climbed two levels ({seconds(stage.ms(1_500))} each) and began after {seconds(start.wait_ms)}; "
        f"{ahead} user jobs went first, order: {' '.join(order[:8])} …"
    )


async def lending(stage: Stage) -> str:
    """A parent, its children and a grandchild in a lane of width one."""

    async def middle(label: str) -> str:
        await stage.work(label, 500)
        return await stage.submit("agent", "grandchild", 900)

    async def parent() -> None:
        await stage.work("parent", 700)
        children = [stage.submit("agent", f"child {number}", 900) for number in (1, 2)]
        children.append(stage.lanes.submit("agent", middle, "child 3", label="child 3"))
        for child in children:
            await child
        await stage.work("parent", 500)

    job = stage.lanes.submit("agent", parent, label="parent")
    stage.watch(job)
    await stage.settle(job)
    stage.watch(None)
    lent = stage.ledger.counts["queue.command.lent"]
    back = stage.ledger.counts["queue.command.took_back"]
    lane = stage.lanes.stats().lanes["agent"]
    return (
        f"Width {lane.max_concurrent}, {lane.completed} of {lane.submitted} jobs succeeded, no deadlock: "
        f"slots were lent {lent} times and taken back {back} times."
    )


async def closed_limit(stage: Stage) -> str:
    """The provider says 429; the lane stays closed until then, and after that keeps to its rate."""
    until = stage.clock.wall_ms() + stage.ms(3_000)
    stage.lanes.close_until("model", until, "the provider said 429")
    calls = [stage.submit("model", f"call {number}", 500) for number in range(1, 6)]
    stage.watch(calls[0])
    await stage.settle(calls[0])
    stage.watch(calls[-1])
    await stage.settle(*calls)
    stage.watch(None)
    first = stage.ledger.first_start("call 1")
    last = stage.ledger.first_start("call 5")
    assert first is not None
    assert last is not None
    return (
        f"call 1 started {first.at_ms - until} ms after the lane opened again; the rate of 3 starts in "
        f"{seconds(stage.ms(3_000))} let call 5 start {seconds(last.at_ms - first.at_ms)} later."
    )


async def retries_and_dead_letters(stage: Stage) -> str:
    """A flaky delivery comes back, a hopeless one becomes a dead letter, is mended and sent again."""
    tries = 0

    async def deliver(label: str, address: str) -> str:
        nonlocal tries
        await stage.work(label, 500)
        if address == "nowhere":
            raise ValueError("no such address: nowhere")
        tries += label == "flaky"
        if label == "flaky" and tries < 3:
            raise ConnectionError("line is busy")
        return address

    flaky = stage.lanes.submit(
        "post", deliver, "flaky", "harbour", label="flaky", retry=RetryPolicy.exponential(3, stage.ms(500))
    )
    hopeless = stage.lanes.submit(
        "post", deliver, "hopeless", "nowhere", label="hopeless", retry=RetryPolicy.fixed(1, stage.ms(500))
    )
    stage.watch(flaky)
    await stage.settle(hopeless)
    letter = stage.lanes.dead_letters.show(hopeless.id)
    stage.tell(f"dead letter {letter.label}: {letter.error} after {letter.attempts} attempts, args {letter.args}")
    await stage.breathe(900)
    mended = stage.lanes.dead_letters.edit(letter.id, args=("hopeless", "lighthouse"))
    stage.tell(f"edited: args {mended.args}; retrying")
    again = stage.lanes.dead_letters.retry(letter.id)
    await stage.settle(flaky, *again)
    stage.watch(None)
    return (
        f"flaky {flaky.state} on attempt {flaky.attempt}; hopeless ended {hopeless.state}, was edited, "
        f"and {again[0].state} as {again[0].id}; {len(stage.lanes.dead_letters)} dead letters are left."
    )


async def ends(stage: Stage) -> str:
    """Everything that can end a job from outside."""

    async def deaf(label: str) -> None:
        began = asyncio.get_running_loop().time()
        while not stage.curtain.is_set():
            gone = asyncio.get_running_loop().time() - began
            stage.progress[label] = min(0.95, gone / (stage.ms(4_000) / 1000))
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                continue  # what nobody should do

    long = stage.submit("tools", "long", 60_000)
    stubborn = stage.lanes.submit("tools", deaf, "deaf", label="deaf")
    late = stage.submit("tools", "late", 500, wait_timeout_ms=stage.ms(900))
    doomed = stage.submit("tools", "doomed", 500)
    slow = stage.submit("tools", "slow", 60_000, timeout_ms=stage.ms(1_200))
    stage.watch(late)
    await stage.breathe(500)
    doomed.cancel("not needed any more")
    await stage.settle(doomed, late)
    long.cancel("the user pressed stop")
    await stage.settle(long)
    stubborn.cancel("the user pressed stop")
    stage.watch(stubborn)
    await stage.settle(stubborn, slow)
    stage.watch(None)
    abandoned = stage.lanes.stats().abandoned
    return (
        f"Waiting: doomed {word(doomed)}, late {word(late)}. Running: long {word(long)}, slow {word(slow)}. "
        f"deaf did not listen: {abandoned} attempt abandoned, its slot is free."
    )


async def draining(stage: Stage) -> str:
    """No new work, what there is runs to its end."""
    jobs = [stage.submit("execute", f"last w{number}", 900) for number in range(1, 4)]
    jobs += [stage.submit("query", f"last r{number}", 700) for number in range(1, 6)]
    await stage.breathe(300)
    refused = ""
    async with asyncio.TaskGroup() as group:
        drain = group.create_task(stage.lanes.drain(), name="drain")
        await stage.breathe(500)
        try:
            stage.submit("query", "too late", 100)
        except DrainingError as error:
            refused = str(error)
            stage.tell(f"submit was refused: {error}")
        await stage.settle(*jobs)
    report = drain.result()
    assert refused
    return (
        f"A new job was refused (DrainingError); {len(jobs)} jobs ran to their end, {report.cancelled} had to be "
        f"cancelled, {report.still_running} still run."
    )


CHAPTERS: Final = (
    Chapter(
        title="Lanes, widths, priorities",
        text="Five writes (w) arrive, then nine reads (r). Each lane has its width, all share a cap of three, and "
        "query (P1) is served before execute (P2): reads overtake writes.",
        lanes=("query", "execute"),
        play=reads_overtake,
    ),
    Chapter(
        title="Levels and ageing",
        text="Inside a lane USER (u) goes before SCHEDULED (s) before BACKGROUND (b). Whoever waits long climbs a "
        "level at a time, so a stream of users starves nobody.",
        lanes=("desk",),
        play=levels_and_ageing,
    ),
    Chapter(
        title="A parent lends its slot",
        text="A parent waits for its children in a lane of width one. A semaphore would deadlock here; in Laneway the "
        "one who waits lends its slot and has it back before it goes on.",
        lanes=("agent",),
        play=lending,
    ),
    Chapter(
        title="A closed limit, and why a job waits",
        text="The model provider says 429, so its lane closes until a time. Ask any job why it does not run: "
        "explain answers in a sentence. After that the rate limit paces the rest.",
        lanes=("model",),
        play=closed_limit,
    ),
    Chapter(
        title="Retries and dead letters",
        text="A flaky delivery is retried with back-off. A hopeless one uses up its retries and becomes a dead "
        "letter: nothing vanishes. It is edited and sent again.",
        lanes=("post",),
        play=retries_and_dead_letters,
    ),
    Chapter(
        title="Cancel, timeouts, and a job that does not listen",
        text="Jobs can be cancelled waiting or running, and time out waiting or running. One ignores its cancel: "
        "after its grace it is abandoned and its slot is free.",
        lanes=("tools",),
        play=ends,
    ),
    Chapter(
        title="Drain",
        text="Before a restart the lanes drain: new work is refused with an error that says why, and what there is "
        "runs to its end.",
        lanes=("query", "execute"),
        play=draining,
    ),
)
