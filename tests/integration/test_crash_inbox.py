"""An inbox in real processes that are killed, stopped and left behind: what was accepted is there, once, in order."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from laneway.errors import StoreInUseError
from laneway.inbox import Inbox
from laneway.mail import MessageState, Outcome
from laneway.runtime.turns import Turn

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # many processes, and a machine that may be busy

OPENING = """
    import asyncio, os, signal, sys
    from laneway.inbox import Inbox

    async def answer(turn):
        print("begin", turn.prompt, flush=True)
        await asyncio.sleep(3600)

    async def read_line():
        return (await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)).strip()
"""


class Child:
    """A process that runs a script and says what it does, line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._in: IO[str] = process.stdin
        self._out: IO[str] = process.stdout
        self._heard: list[str] = []

    def hear(self, expected: str) -> None:
        """Wait until it has said that; turns begin and answers come in any order."""
        while expected not in self._heard:
            self._heard.append(self._next_line())

    def hear_ids(self, count: int) -> list[str]:
        """Wait until it has named that many messages."""
        while len(ids := [line for line in self._heard if line.startswith("msg-")]) < count:
            self._heard.append(self._next_line())
        return ids

    def _next_line(self) -> str:
        line = self._out.readline()
        assert line, f"it ended after it had said {self._heard}"
        return line.strip()

    def say(self, line: str) -> None:
        """A line for its standard input."""
        self._in.write(f"{line}\n")
        self._in.flush()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit code; negative: the signal that ended it."""
        return self._process.wait(60)


@contextmanager
def running(script: str, store: Path) -> Iterator[Child]:
    code = textwrap.dedent(OPENING) + textwrap.dedent(script)
    command = [sys.executable, "-c", code, f"sqlite:///{store}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    with process:
        try:
            yield Child(process)
        finally:
            process.kill()


async def drain(store: Path, ids: list[str], **options: object) -> list[tuple[str, MessageState, Outcome | None]]:
    """What runs when the inbox is opened again, and how each of these messages ended."""
    ran: list[str] = []

    async def note(turn: Turn) -> None:
        ran.append(turn.prompt)

    async with Inbox(note, store=f"sqlite:///{store}", mode="followup", **options) as inbox:  # type: ignore[arg-type]
        finals = [await inbox.wait(message_id) for message_id in ids]
    texts = [*ran, *[""] * (len(finals) - len(ran))]
    return [(text, final.disposition, final.outcome) for text, final in zip(texts, finals, strict=True)]


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.chaos", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=400)


# ---- killed at random ----


def test_thirty_kills_lose_nothing_run_nothing_twice_and_keep_the_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = chaos("--kills", "30", "--worlds", "2", "--seed", "42", "--folder", str(tmp_path / "chaos"))
    tally = done.stdout.strip().splitlines()[-1]
    with capsys.disabled():
        sys.stdout.write(f"\n{tally}\n")
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) kills .* ([\d,]+) messages accepted .*: (.*), interrupted \(reported\)", tally)
    assert found is not None
    assert int(found[1]) >= 30
    assert int(found[2].replace(",", "")) >= 50  # some thousands on a quiet machine
    assert found[3] == "lost 0, run twice 0, out of order 0"


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("hasty-store", "lost"),  # it says that rows are on disk before they are
        ("forget-ids", "run twice"),  # what is sent again is taken again
        ("rerun-all", "run twice"),  # turns run again that should be reported
        ("reorder", "out of order"),  # messages of a session overtake each other on their way in
    ],
)
def test_a_planted_fault_is_found(fault: str, found: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "chaos")
    world = ["--worlds", "1", "--on-crash", "report", "--no-jobs"]
    done = chaos("--kills", "12", "--seed", "7", "--sabotage", fault, "--folder", folder, *world)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(rf"{found} [1-9]", done.stdout.splitlines()[-1])


# ---- killed at a certain moment ----

TEN_WAITING = """
    async def main():
        async with Inbox(answer, store=sys.argv[1], mode="followup") as inbox:
            first = await inbox.submit("chat", "busy", message_id="p")
            print(first.message_id, flush=True)
            await inbox.command("chat", "/queue debounce:7s cap:33")
            for number in range(10):
                receipt = await inbox.submit("chat", f"text {number}", message_id=f"p{number}")
                print(receipt.message_id, flush=True)
            await read_line()

    asyncio.run(main())
"""


@pytest.mark.parametrize(("on_crash", "again"), [("report", []), ("rerun", ["busy"])])
async def test_after_a_kill_all_ten_that_waited_run_once_in_order_with_the_settings_kept(
    on_crash: str, again: list[str], tmp_path: Path
) -> None:
    store = tmp_path / "inbox.db"
    with running(TEN_WAITING, store) as child:
        ids = child.hear_ids(11)
        child.hear("begin busy")
        child.signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    ran: list[str] = []

    async def note(turn: Turn) -> None:
        ran.append(turn.prompt)

    address = f"sqlite:///{store}"
    async with Inbox(note, store=address, mode="followup", on_crash=on_crash) as inbox:  # type: ignore[arg-type]
        finals = [await inbox.wait(message_id) for message_id in ids]
        seen = await inbox.submit("chat", "text 3", message_id="p3")
        settings = await inbox.command("chat", "/queue")
    assert ran == [*again, *[f"text {number}" for number in range(10)]]
    assert finals[0].outcome is (Outcome.SUCCEEDED if again else Outcome.INTERRUPTED)
    assert finals[0].reason
    assert {final.outcome for final in finals[1:]} == {Outcome.SUCCEEDED}
    assert (seen.message_id, seen.duplicate) == (ids[4], True)
    assert settings is not None
    assert "7000" in settings.replace(",", "")
    assert "33" in settings


# ---- one owner ----

HOLD = """
    async def main():
        async with Inbox(answer, store=sys.argv[1]) as inbox:
            print("open", flush=True)
            while text := await read_line():
                receipt = await inbox.submit("chat", text)
                print(receipt.disposition, flush=True)
        print("closed", flush=True)

    asyncio.run(main())
"""


async def nothing(_turn: Turn) -> None:
    return None


async def open_and_close(store: Path) -> None:
    async with Inbox(nothing, store=f"sqlite:///{store}"):
        pass


async def test_a_second_process_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    store = tmp_path / "inbox.db"
    with running(HOLD, store) as child:
        child.hear("open")
        with pytest.raises(StoreInUseError):
            await open_and_close(store)
        child.say("hello")
        child.hear("queued")
        child.hear("begin hello")


async def test_a_process_that_is_stopped_keeps_its_store_and_goes_on_when_it_may(tmp_path: Path) -> None:
    store = tmp_path / "inbox.db"
    with running(HOLD, store) as child:
        child.hear("open")
        child.signal(signal.SIGSTOP)
        child.say("hello")
        with pytest.raises(StoreInUseError):
            await open_and_close(store)
        child.signal(signal.SIGCONT)
        child.hear("queued")
        child.hear("begin hello")


async def test_the_store_is_free_as_soon_as_its_owner_is_dead(tmp_path: Path) -> None:
    store = tmp_path / "inbox.db"
    with running(HOLD, store) as child:
        child.hear("open")
        child.signal(signal.SIGSTOP)
        child.signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        await open_and_close(store)
    assert store.exists()


# ---- ends without a kill ----


async def test_a_process_that_is_interrupted_at_the_keyboard_closes_and_keeps_what_waits(tmp_path: Path) -> None:
    script = """
        async def main():
            async with Inbox(answer, store=sys.argv[1], mode="followup", close_timeout_ms=100) as inbox:
                ids = [(await inbox.submit("chat", text)).message_id for text in ("one", "two")]
                print(*ids, sep="\\n", flush=True)
                await asyncio.sleep(3600)

        asyncio.run(main())
    """
    store = tmp_path / "inbox.db"
    with running(script, store) as child:
        ids = child.hear_ids(2)
        child.hear("begin one")
        child.signal(signal.SIGINT)
        assert child.wait() in (1, 130, -signal.SIGINT)
    ended = await drain(store, ids)
    assert ended == [("two", MessageState.RAN, Outcome.INTERRUPTED), ("", MessageState.RAN, Outcome.SUCCEEDED)]


LEFT_OPEN = """
    async def main():
        inbox = await Inbox(answer, store=sys.argv[1], mode="followup").__aenter__()
        ids = [(await inbox.submit("chat", text)).message_id for text in ("one", "two")]
        print(*ids, sep="\\n", flush=True)
        {leave}

    asyncio.run(main())
"""


@pytest.mark.parametrize("leave", ["return", "sys.exit(0)", "os._exit(0)", "raise SystemError"])
async def test_a_program_that_forgets_to_close_ends_all_the_same_and_loses_nothing(leave: str, tmp_path: Path) -> None:
    store = tmp_path / "inbox.db"
    with running(LEFT_OPEN.format(leave=leave), store) as child:
        ids = child.hear_ids(2)
        code = child.wait()
    assert code == (1 if "raise" in leave else 0)
    first, second = await drain(store, ids, on_crash="rerun")
    # A loop that ends cancels its tasks: the turn may have been ended properly, or is run again.
    assert first[2] in (Outcome.INTERRUPTED, Outcome.SUCCEEDED)
    assert second[1:] == (MessageState.RAN, Outcome.SUCCEEDED)
    assert "two" in (first[0], second[0])


async def test_a_lock_file_left_by_a_dead_process_stops_nobody(tmp_path: Path) -> None:
    store = tmp_path / "inbox.db"
    lock = tmp_path / "inbox.db.lock"
    lock.write_text(f"{os.getpid()}\n", encoding="utf-8")
    await open_and_close(store)
    assert json.loads(lock.read_text(encoding="utf-8") or "0") >= 0
