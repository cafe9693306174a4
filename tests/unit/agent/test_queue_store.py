"""What of a session's lanes outlives the process: submitted payloads and dead letters, in a real file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from laneway import Lanes, StoreUnavailableError
from laneway.agent.queue_store import KIND, QueueStore, StoredCommand
from laneway.agent.session_lanes import INTERRUPTED, SessionLanes
from laneway.dialogue import ToolSpec
from laneway.errors import ClosedError, FencedError, InvalidJobError
from laneway.lanes import TOOL_LANES
from laneway.options import SessionQueueConfig
from laneway.records import Effect
from laneway.rows import Batch, BatchResult, Owner, StateRow
from laneway.stores import MemoryDisk, MemoryStore
from laneway.stores.sqlite import SqliteStore

SPECS = {"read": ToolSpec(name="read", effect=Effect.READ), "keyed": ToolSpec(name="keyed", effect=Effect.IDEMPOTENT)}
OWNER = Owner("default", "queue", "s1")


class Shop:
    """What a session lends its lanes: tools that do as they are told."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.broken = False
        self.idle = asyncio.Event()

    async def run(self, tool: str, arguments: Mapping[str, Any], *, attempt: int) -> str:
        await asyncio.sleep(0)
        if self.broken:
            raise OSError(f"{tool} is broken")
        self.done.append(f"{tool} {arguments.get('n', '')}".strip())
        self.idle.set()
        return f"{tool} done"

    def queue(self, lanes: Lanes, folder: Path, name: str = "s1", **settings: Any) -> SessionLanes:
        config = SessionQueueConfig(storage_path=folder / "queue", **{"enable_dlq": True, **settings})
        return SessionLanes(lanes, name, config, on_event=lambda _: None, run_payload=self.run, spec_of=SPECS.get)


async def rows_in(folder: Path) -> list[tuple[str, str]]:
    """The tools and states of what is stored of session s1."""
    store = QueueStore.at(str(folder / "queue"), "s1")
    found = [(command.tool, command.state) for command in await store.open()]
    await store.close()
    return found


async def waiting_in(queue: SessionLanes) -> None:
    """Let others run until something waits; a thread has to write it first."""
    for _ in range(1_000_000):
        if queue.stats().total_pending:
            return
        await asyncio.sleep(0)
    raise AssertionError("nothing was taken")


async def leave(folder: Path, tool: str, state: str, effect: Effect) -> None:
    """What a process that was killed has left behind."""
    store = QueueStore.at(str(folder / "queue"), "s1")
    await store.open()
    await store.write(store.new(lane="execute", tool=tool, payload={"n": 1}, effect=effect, state=state, attempts=1))
    await store.close()


async def test_a_payload_that_was_run_leaves_no_row(tmp_path: Path) -> None:
    shop = Shop()
    async with Lanes(TOOL_LANES) as lanes:
        queue = shop.queue(lanes, tmp_path)
        assert await queue.submit("execute", {"command": "ls"}) == "bash done"
        assert await queue.submit("query", {"path": "x"}) == "read done"
        await queue.close()
    assert await rows_in(tmp_path) == []


async def test_a_payload_that_waits_when_the_session_is_closed_runs_when_it_is_opened_again(tmp_path: Path) -> None:
    shop = Shop()
    async with Lanes(TOOL_LANES) as lanes:
        queue = shop.queue(lanes, tmp_path)
        queue.pause()
        await queue.open()
        caller = asyncio.get_running_loop().create_task(queue.submit("execute", {"tool": "bash", "n": 1}))
        await waiting_in(queue)
        await queue.close()
        await asyncio.wait([caller])
        assert caller.exception() is not None
        assert (shop.done, await rows_in(tmp_path)) == ([], [("bash", "queued")])
        again = shop.queue(lanes, tmp_path)
        await again.open()
        await again.open()
        await shop.idle.wait()
        await again.close()
    assert shop.done == ["bash 1"]
    assert await rows_in(tmp_path) == []


async def test_a_payload_whose_caller_gave_up_is_forgotten(tmp_path: Path) -> None:
    shop = Shop()
    async with Lanes(TOOL_LANES) as lanes:
        queue = shop.queue(lanes, tmp_path)
        queue.pause()
        caller = asyncio.get_running_loop().create_task(queue.submit("execute", {"tool": "bash"}))
        await waiting_in(queue)
        caller.cancel()
        await asyncio.wait([caller])
        await asyncio.sleep(0)
        await queue.close()
    assert await rows_in(tmp_path) == []


async def test_a_payload_that_is_being_taken_while_the_session_is_closed_is_not_kept(tmp_path: Path) -> None:
    shop = Shop()
    async with Lanes(TOOL_LANES) as lanes:
        queue = shop.queue(lanes, tmp_path)
        await queue.open()
        caller = asyncio.get_running_loop().create_task(queue.submit("execute", {"tool": "bash"}))
        await asyncio.sleep(0)
        await queue.close()
        with pytest.raises(ClosedError):
            await caller
    assert (shop.done, await rows_in(tmp_path)) == ([], [])


@pytest.mark.parametrize(
    ("effect", "state", "runs"),
    [
        (Effect.READ, "queued", True),
        (Effect.WRITE, "queued", True),
        (Effect.READ, "running", True),
        (Effect.IDEMPOTENT, "running", True),
        (Effect.WRITE, "running", False),
    ],
)
async def test_after_a_crash_everything_goes_on_but_a_write_that_had_begun(
    tmp_path: Path, effect: Effect, state: str, runs: bool
) -> None:
    shop = Shop()
    await leave(tmp_path, "tool", state, effect)
    async with Lanes(TOOL_LANES) as lanes:
        queue = shop.queue(lanes, tmp_path)
        await queue.open()
        if runs:
            await shop.idle.wait()
        letters = queue.dead_letters()
        await queue.close()
    assert shop.done == (["tool 1"] if runs else [])
    assert [letter.error for letter in letters] == ([] if runs else [INTERRUPTED])
    assert await rows_in(tmp_path) == ([] if runs else [("tool", "dead")])


async def test_a_dead_letter_outlives_the_session_and_can_be_sent_again(tmp_path: Path) -> None:
    shop = Shop()
    shop.broken = True
    async with Lanes(TOOL_LANES) as lanes:
        queue = shop.queue(lanes, tmp_path)
        with pytest.raises(OSError, match="bash is broken"):
            await queue.submit("execute", {"tool": "bash", "n": 7})
        called = queue.submit_tool(
            ToolSpec(name="deploy"), lambda _: shop.run("deploy", {}, attempt=1), lane="execute", payload={"n": 8}
        )
        with pytest.raises(OSError, match="deploy is broken"):
            await called
        await asyncio.sleep(0)
        before = queue.dead_letters()
        await queue.close()
        shop.broken = False
        again = shop.queue(lanes, tmp_path)
        await again.open()
        assert again.dead_letters() == before
        assert [letter.payload for letter in before] == [{"n": 7}, {"n": 8}]
        assert await again.retry_dead_letter(before[0].command_id) == "bash done"
        assert again.purge_dead_letters() == 1
        await again.close()
    assert shop.done == ["bash 7"]
    assert await rows_in(tmp_path) == []


async def test_without_dead_letters_nothing_of_a_failure_is_kept(tmp_path: Path) -> None:
    shop = Shop()
    shop.broken = True
    await leave(tmp_path, "tool", "running", Effect.WRITE)
    async with Lanes(TOOL_LANES) as lanes:
        queue = shop.queue(lanes, tmp_path, enable_dlq=False)
        with pytest.raises(OSError, match="bash is broken"):
            await queue.submit("execute", {"tool": "bash"})
        await asyncio.sleep(0)
        assert queue.dead_letters() == []
        await queue.close()
    assert await rows_in(tmp_path) == []


async def test_sessions_share_a_folder_and_not_their_rows(tmp_path: Path) -> None:
    shop = Shop()
    shop.broken = True
    async with Lanes(TOOL_LANES) as lanes:
        one, two = shop.queue(lanes, tmp_path), shop.queue(lanes, tmp_path, "s2")
        await one.submit_batch("execute", [{"tool": "a"}], return_errors=True)
        await two.submit_batch("execute", [{"tool": "b"}], return_errors=True)
        await asyncio.sleep(0)
        assert [letter.command_type for letter in one.dead_letters()] == ["a"]
        assert [letter.command_type for letter in two.dead_letters()] == ["b"]
        assert one.dead_letters()[0].command_id != two.dead_letters()[0].command_id
        await one.close()
        await two.close()
    assert await rows_in(tmp_path) == [("a", "dead")]


async def test_a_payload_that_is_no_json_is_refused_and_nothing_of_its_batch_runs(tmp_path: Path) -> None:
    shop = Shop()
    async with Lanes(TOOL_LANES) as lanes:
        queue = shop.queue(lanes, tmp_path)
        for bad in (object(), float("nan"), "\ud800"):
            with pytest.raises(InvalidJobError, match="not JSON"):
                await queue.submit_batch("execute", [{"tool": "bash"}, {"tool": "bash", "x": bad}])
        await queue.close()
    assert (shop.done, await rows_in(tmp_path)) == ([], [])


async def test_a_folder_that_cannot_be_made_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "queue").write_text("a file")
    async with Lanes(TOOL_LANES) as lanes:
        with pytest.raises(StoreUnavailableError, match="queue"):
            Shop().queue(lanes, tmp_path)
        assert set(lanes.stats().lanes) == set(TOOL_LANES)


async def test_a_store_that_cannot_be_opened_takes_nothing(tmp_path: Path) -> None:
    shop = Shop()
    (tmp_path / "queue").mkdir()
    (tmp_path / "queue" / "queue.db").write_bytes(b"this is no database" * 100)
    async with Lanes(TOOL_LANES) as lanes:
        queue = shop.queue(lanes, tmp_path)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                await queue.submit("execute", {"tool": "bash"})
        await queue.close()
        assert set(lanes.stats().lanes) == set(TOOL_LANES)
    assert shop.done == []


@pytest.mark.parametrize(
    "body",
    ["", "[]", "{}", '{"v":2}', '{"v":1,"lane":"nowhere"}', '{"v":1,"lane":"query","tool":"x"}'],
)
async def test_a_row_that_cannot_be_read_is_left_alone(
    tmp_path: Path, body: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "queue").mkdir()
    store = SqliteStore(tmp_path / "queue" / "queue.db")
    await store.open()
    row = StateRow(KIND, "odd", *OWNER, store.next_seq(), 1, "queued", body)
    assert (await store.commit([Batch(OWNER, store.epoch, (row,))]))[0].error is None
    async with Lanes(TOOL_LANES) as lanes:
        shop = Shop()
        queue = shop.queue(lanes, tmp_path)
        assert await queue.submit("execute", {"tool": "bash"}) == "bash done"
        await queue.close()
    assert await store.history.state(KIND, "odd") == row
    assert "row odd of the queue of s1 cannot be read" in caplog.text
    await store.close()


def test_a_row_says_everything_about_its_command() -> None:
    command = StoredCommand(
        id="c",
        seq=3,
        lane="query",
        tool="read",
        payload={"path": "ü"},
        effect=Effect.IDEMPOTENT,
        state="dead",
        attempts=4,
        error="OSError: x",
        failed_at=5,
        timeout_ms=6,
    )
    assert StoredCommand.from_row(command.to_row(OWNER)) == command


class Refusing(MemoryStore):
    """A store that says no."""

    error: Exception | None = None

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        if self.error is not None:
            return [BatchResult(self.error) for _ in batches]
        return await super().commit(batches)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (FencedError("somebody else owns it"), FencedError),
        (StoreUnavailableError("the disk is full"), StoreUnavailableError),
        (ValueError("odd"), StoreUnavailableError),
    ],
)
async def test_a_store_that_says_no_is_heard(error: Exception, raised: type[Exception]) -> None:
    store = Refusing(MemoryDisk())
    queue = QueueStore(store, "s1")
    assert await queue.open() == []
    command = queue.new(lane="query", tool="read", payload={}, effect=Effect.READ)
    await queue.write(command)
    store.error = error
    with pytest.raises(raised, match=str(error)):
        await queue.write(command)
    with pytest.raises(raised, match=str(error)):
        await queue.forget(command.id)
    await queue.write()
    await queue.forget()
    store.error = None
    await queue.forget(command.id)
    await queue.close()


def test_a_payload_that_is_too_large_is_refused() -> None:
    command = StoredCommand(id="c", seq=1, lane="query", tool="t", payload={"x": "ü" * 9_000_000}, effect=Effect.READ)
    with pytest.raises(InvalidJobError, match="at most 16,777,216 are kept"):
        command.to_row(OWNER)
