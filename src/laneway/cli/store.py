"""`laneway store`: look after a store. `backup` and `check` only read it, so its owner may go on working meanwhile."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from laneway.errors import UnknownStoreError, UsageError

if TYPE_CHECKING:  # stores take their time to load; a list of commands need not wait for them
    from laneway.runtime.retention import HistoryLimits
    from laneway.stores.sqlite_file import StoreCheck

__all__ = ("store_app",)

STORE = "sqlite:///laneway.db"

store_app = typer.Typer(
    name="store", help="Look after a store: copy it, check it, prune it.", no_args_is_help=True, add_completion=False
)

StoreOption = Annotated[
    str, typer.Option("--store", envvar="LANEWAY_STORE", help="Which store: sqlite:///file.db", show_default=True)
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@store_app.command("backup")
def backup(
    target: Annotated[Path, typer.Argument(help="Where the copy goes.", dir_okay=False)],
    store: StoreOption = STORE,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file that is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Copy a store as it is at one moment, while it is in use."""
    from laneway.stores.sqlite import BUSY_MS
    from laneway.stores.sqlite_file import backup_file

    path = _path_of(store)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=as_json or not sys.stderr.isatty()) as bar:
        task = bar.add_task(f"Copying {path}", total=None)
        size = backup_file(
            path,
            str(target),
            busy_ms=BUSY_MS,
            overwrite=overwrite,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    if as_json:
        print(json.dumps({"path": path, "target": str(target.absolute()), "size_bytes": size}))
    else:
        print(f"{path} was copied to {target} ({_bytes(size)})")


@store_app.command("check")
def check(store: StoreOption = STORE, as_json: JsonOption = False) -> None:
    """Read a whole store and say how it is: its size, its rows, and whether every page is sound."""
    from laneway.stores.sqlite import BUSY_MS
    from laneway.stores.sqlite_file import check_file, corrupt

    path = _path_of(store)
    quiet = as_json or not sys.stderr.isatty()
    with nullcontext() if quiet else Console(stderr=True).status(f"Reading {path}"):
        report = check_file(path, busy_ms=BUSY_MS)
    if as_json:
        print(json.dumps({**asdict(report), "sound": report.is_sound}))
    else:
        _show(report)
    if not report.is_sound:
        raise corrupt(path, f"{len(report.problems)} problems, the first: {report.problems[0]}")


@store_app.command("prune")
def prune(
    store: StoreOption = STORE,
    max_age: Annotated[str, typer.Option("--max-age", help="What is older goes: 90d, 12h.", metavar="TIME")] = "",
    max_runs: Annotated[
        int | None, typer.Option("--max-runs", min=1, help="So many runs stay in each session.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go; the store may be in use meanwhile.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Take old history away, in all workspaces; nobody else may have the store open.

    What waits, runs, is unknown, dead or still heard by a model stays, whatever its age; and all of the last day.
    """
    from laneway.cli.times import duration_ms
    from laneway.runtime.retention import SPARED_MS, HistoryLimits

    limits = HistoryLimits(max_age_ms=duration_ms(max_age) if max_age else None, max_runs=max_runs)
    if limits.is_empty:
        raise UsageError("this would take nothing away", hint="say --max-age 90d, or --max-runs 1000")
    path = _path_of(store)
    rows, sessions = _foresee(path, limits) if dry_run else asyncio.run(_prune(path, limits))
    if as_json:
        print(json.dumps({"path": path, "sessions": sessions, "rows": rows, "dry_run": dry_run}))
    else:
        young = (
            "" if rows else f"; what is younger than {SPARED_MS // 3_600_000} hours stays, and so does what is needed"
        )
        went = "would be taken away" if dry_run else "were taken away"
        print(f"{rows:,} rows of {sessions:,} sessions {went}{young}")


async def _prune(path: str, limits: HistoryLimits) -> tuple[int, int]:
    from laneway.cli.session_keeping import owned
    from laneway.runtime.artifacts import sweep_all
    from laneway.runtime.retention import prune_workspace
    from laneway.stores.sqlite_file import check_exists
    from laneway.system import SystemClock

    check_exists(path)
    rows = sessions = 0
    async with owned(path) as store:
        for workspace in await store.history.workspaces():
            found = await prune_workspace(store, workspace, limits, now_ms=SystemClock().wall_ms())
            rows, sessions = rows + found.rows, sessions + found.sessions
        await sweep_all(store)
    return rows, sessions


def _foresee(path: str, limits: HistoryLimits) -> tuple[int, int]:
    """What pruning would take away, of the store as it is at one moment."""
    from laneway.runtime.retention import foresee_workspace
    from laneway.stores.sqlite import SqliteLooking
    from laneway.system import SystemClock

    store = SqliteLooking(path)

    async def work() -> tuple[int, int]:
        rows = sessions = 0
        for workspace in await store.history.workspaces():
            found = await foresee_workspace(store, workspace, limits, now_ms=SystemClock().wall_ms())
            rows, sessions = rows + found.rows, sessions + found.sessions
        return rows, sessions

    try:
        return asyncio.run(work())
    finally:
        store.close()


def _show(report: StoreCheck) -> None:
    console = Console(soft_wrap=True, highlight=False)
    state = "sound" if report.is_sound else "DAMAGED"
    in_use = f"in use by process {report.in_use_by}" if report.in_use_by else "not in use"
    log = f" and {_bytes(report.log_bytes)} of log" if report.log_bytes else ""
    console.print(f"{report.path}: {state}, {in_use}", markup=False)
    console.print(
        f"schema {report.schema}, opened {report.epoch} times, {_bytes(report.size_bytes)}{log}", markup=False
    )
    table = Table("table", box=None, pad_edge=False)
    table.add_column("rows", justify="right")
    table.add_column("live", justify="right")
    for name, total in report.rows.items():
        table.add_row(name, f"{total:,}", f"{report.live[name]:,}" if name in report.live else "")
    console.print(table)
    for problem in report.problems:
        console.print(f"  {problem}", markup=False)


def _path_of(address: str) -> str:
    from laneway.stores import open_store
    from laneway.stores.sqlite import SqliteStore

    store = open_store(address)
    if isinstance(store, SqliteStore):
        return store.path
    raise UnknownStoreError(
        f"{address} keeps nothing when its process ends", hint=f"name a file: {STORE}", address=address
    )


def _bytes(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
