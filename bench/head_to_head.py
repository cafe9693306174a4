"""`python -m bench.head_to_head [--only NAME ...]`: what was measured of a3s-code, and the same of Laneway.

Each row does its thing for real, in a process of its own, and the page is written from what was seen. The figures of
the peer were measured once and stand here; it is not run again. The exit code is 1 when a row misses its target, and 2
when a row could not be run; then no page is written.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.report import machine
from bench.rounds import ROOT, SampleError

PAGE: Final = ROOT / "docs" / "compare.md"
CHECK_SECONDS_MAX: Final = 180
COMMAND: Final = "python -m bench.head_to_head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the comparison. `check` names a function of `bench.head_checks`."""

    check: str
    what: str
    peer: str
    target: str
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a check has seen of Laneway."""

    said: str
    good: bool


ROWS: Final = (
    Row(
        check="queue_present",
        what="The queue is there after an ordinary call",
        peer="never: no queue, no error, tools run without it",
        target="always, or an exception",
        how="A session is made with `queue_config=`, with `SessionOptions`, from a file with a `queue` block, and"
        " inside asyncio; each is asked `has_queue()`. A session without one is told to send a lane to workers.",
    ),
    Row(
        check="slow_reads",
        what="4 reads of 100 ms in one answer",
        peer="428–447 ms",
        target="≤ 115 ms",
        how="A model asks for four calls of a read tool that waits 100 ms. The whole turn, best of three.",
    ),
    Row(
        check="quick_reads",
        what="20 trivial reads in one answer",
        peer="223–225 ms",
        target="≤ 10 ms",
        how="The same with twenty calls that return at once. The whole turn, best of twenty.",
    ),
    Row(
        check="external_rate",
        what="External tasks a second, one session",
        peer="87–90",
        target="≥ 2,000",
        how="Turns of 64 read calls in an external lane that is 16 wide; each task is completed at once, by code that"
        " asks for what is pending at every event, and by 16 workers that claim, start and complete through the local"
        " transport. Whole turns, memory store, best of three. Time in which other processes had the cores is taken"
        " off, and that rate is held against the promise; on a machine with nothing else to do both are the same.",
    ),
    Row(
        check="in_flight",
        what="External tasks in flight, one session",
        peer="1, whatever the lane allows",
        target="as many as the lane is wide",
        how="Three times as many commands as the lane is wide, in one answer, in an external lane with"
        " `ordered=False`; what is pending while nobody answers is counted.",
    ),
    Row(
        check="worker_says_no",
        what="A worker says no",
        peer="offered 4 times, then the command runs on the coordinator",
        target="never runs",
        how="A command that appends a line to a file goes to a worker that answers `success: false`; another time"
        " nobody answers for the 0.2 s that the task has. The lines are counted a second later.",
    ),
    Row(
        check="timeout",
        what="A 1 s command with a timeout of 0.3 s",
        peer="runs 5 times",
        target="runs once",
        how="`with_lane_features()`, a timeout of 300 ms, and a command that appends a line and sleeps. The lines are"
        " counted two seconds after the turn.",
    ),
    Row(
        check="cancel",
        what="Cancel with a task pending",
        peer="6.7 s, then the command runs",
        target="< 50 ms, never runs",
        how="From `cancel()` until the run has ended and nothing is pending, five times; then the file to which the"
        " command would append is looked at for longer than the task had time.",
    ),
    Row(
        check="kill",
        what="`kill -9` with a task pending, then a restart",
        peer="the task is lost",
        target="it is still there, its result counts once",
        how="A process with an SQLite store says the id of its pending task and is killed. Another one opens the"
        " session, finds the task under the same id, completes it twice, and the run goes on to its end.",
    ),
    Row(
        check="low_lane",
        what="A low lane while a high lane is busy",
        peer="free slots, and not started in 8 s",
        target="a bounded wait",
        how="`query` has hundreds of jobs waiting; twenty jobs go to `execute` one after another. Then the same where"
        " both lanes share one cap that the high one fills, and the low one is due after 500 ms (`ageing_ms`).",
    ),
    Row(
        check="idle_cpu",
        what="CPU after 200 sessions were closed",
        peer="about 6 % of a core, for good",
        target="0",
        how="200 sessions with a queue answer once and are closed. The CPU time of the process over three seconds.",
    ),
    Row(
        check="config_block",
        what="The documented `queue` block in a file",
        peer="the process dies (SIGSEGV)",
        target="honoured",
        how="The block with every setting, in `agent.hcl`; a session of that agent is asked for each of them, and"
        " answers a message.",
    ),
)


def look(row: Row) -> Found:
    """Run one check in a process of its own."""
    command = [sys.executable, "-m", "bench.head_checks", row.check]
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            command, cwd=ROOT, capture_output=True, text=True, timeout=CHECK_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise SampleError(f"{row.check} did not end within {CHECK_SECONDS_MAX} s") from None
    if done.returncode:
        raise SampleError(f"{row.check} failed:\n{done.stderr.strip()}")
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Found(**seen)


# ---- what people read ----


INTRO: Final = """\
# Compared with a3s-code

<!-- Written by `{command}`: change bench/head_to_head.py, not this page. -->

Users of a3s-code find the names of its lane queue in Laneway, and the things below done otherwise. What is said of \
a3s-code was measured once: the native wheels 2.0.0, 2.6.0, 3.0.0 and 3.1.0 (for the low lane a3s-lane 0.4.0), CPython \
3.11.7, 2 cores, a scripted model on the same machine. It is not run again, for its wheel is none of our dependencies. \
Its queue exists only in sessions that are made inside one of its own callbacks: the figures about the queue come from \
such sessions. Later versions were not measured; their release notes say that some of this has changed.

| what | a3s-code 2.0–3.1 | Laneway | we promise |
|---|---|---|---|
"""
REST: Final = """
Laneway on {implementation} {python}, {cores} cores, {at:.10}. Times and rates belong to the machine; what runs, and \
how often, does not.

## Repeat it

```console
$ python3 -m venv .venv && .venv/bin/pip install -e ".[all]"
$ .venv/bin/{command} --page ../compare.md
```

It takes a minute, writes that page (without `--page` this one, with the numbers of your machine), and ends with exit \
code 1 if a row misses what we promise. `--only kill` runs one row and writes nothing.

## How each row is measured

"""


def page_of(found: Sequence[tuple[Row, Found]]) -> str:
    """The page, as Markdown."""
    table = [
        f"| {row.what} | {row.peer} | {'' if seen.good else '**MISSED**: '}{seen.said} | {row.target} |\n"
        for row, seen in found
    ]
    how = [f"- **{row.what}** (`{row.check}`). {row.how}\n" for row, _ in found]
    return "".join([INTRO.format(command=COMMAND), *table, REST.format(command=COMMAND, **machine()), *how])


def show(console: Console, found: Sequence[tuple[Row, Found]]) -> None:
    """The same for a terminal."""
    table = Table(title=f"a3s-code 2.0–3.1 and Laneway, CPython {platform.python_version()}", box=SIMPLE_HEAD)
    for name in ("", "what", "a3s-code", "Laneway", "we promise"):
        table.add_column(name)
    for row, seen in found:
        verdict = "[bold green]PASS[/]" if seen.good else "[bold red]FAIL[/]"
        table.add_row(verdict, row.what, row.peer, seen.said, row.target)
    console.print(table)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Compare Laneway with what was measured of a3s-code.")
    names = [row.check for row in ROWS]
    parser.add_argument(
        "--only", action="append", choices=names, metavar="NAME", help="one row (may be repeated): " + ", ".join(names)
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page is written")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None, *, take: Callable[[Row], Found] = look) -> int:
    """Run; 0 when every row keeps its promise, 1 when one does not, 2 when one could not be run."""
    options = parse(arguments)
    console, progress = Console(), Console(stderr=True)
    found: list[tuple[Row, Found]] = []
    broken = False
    for row in [row for row in ROWS if not options.only or row.check in options.only]:
        with progress.status(row.what):
            try:
                found.append((row, take(row)))
            except SampleError as error:
                broken = True
                progress.print(str(error), style="red", markup=False)
    show(console, found)
    if broken:
        return 2
    if not options.only:
        options.page.write_text(page_of(found), encoding="utf-8")
        console.print(f"Written to {options.page}", style="dim")
    return int(not all(seen.good for _, seen in found))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
