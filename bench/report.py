"""What people read: the table (ratios first), `latest.json`, `latest.png`."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.rounds import Outcome, Result
from bench.workloads import Numbers

OTHERS = ("floor", "semaphore", "a3s", "raw", "huey", "dbos", "taskiq", "saq")
"""Cases that are not Laneway, by how their names begin."""
VERDICTS = {True: Text("PASS", "bold green"), False: Text("FAIL", "bold red"), None: Text("")}


def ratios_table(results: Sequence[Result]) -> Table:
    """Every ratio with its gate and verdict; fits 80 columns."""
    table = _table("Ratios: of the best samples, and what single rounds said")
    table.add_column("", no_wrap=True)
    table.add_column("value", justify="right", style="bold", no_wrap=True)
    table.add_column("ratio", no_wrap=True)
    table.add_column("gate", justify="right", no_wrap=True)
    table.add_column("rounds", justify="right", style="dim", no_wrap=True)
    table.add_column("workload", style="dim", no_wrap=True)
    for result in results:
        for outcome in result.outcomes:
            spread = "" if result.rounds == 1 else f"{number(outcome.lowest)}–{number(outcome.highest)}"
            value = number(outcome.value) + outcome.unit
            table.add_row(VERDICTS[outcome.passed], value, outcome.name, _gate(outcome), spread, result.workload)
    return table


def numbers_table(results: Sequence[Result]) -> Table:
    """The absolute numbers behind the ratios: of this machine, at this moment."""
    table = _table("Numbers of this machine, the best of the rounds")
    table.add_column("workload", style="dim", no_wrap=True)
    table.add_column("case", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("")  # some cases have many numbers
    for result in results:
        for case, best in result.best.items():
            table.add_row(result.workload, case, f"{result.sizes[case]:,}", _describe(best))
    return table


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=0)


def _gate(outcome: Outcome) -> str:
    if outcome.gate is None or outcome.limit is None:
        return ""
    sign = {">=": "≥", "<=": "≤"}[outcome.gate]
    return f"{sign} {outcome.limit:,g}{outcome.unit}"


def number(value: float) -> str:
    """Three digits that matter."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def _describe(best: Numbers) -> str:
    parts = []
    for metric, value in best.items():
        match metric:
            case "seconds_per_job":
                parts.append(f"{1 / value:,.0f} jobs/s ({value * 1e6:,.2f} µs each)")
            case "seconds_per_message":
                parts.append(f"{1 / value:,.0f} messages/s ({value * 1e6:,.2f} µs each)")
            case "wall_per_job" | "wall_per_message":
                pass
            case "seconds_per_cancel":
                parts.append(f"{value * 1e6:,.2f} µs per cancel")
            case _:
                parts.append(f"{metric.replace('_', ' ')} {number(value)}")
    return ", ".join(parts)


def busy_note(results: Sequence[Result]) -> str:
    """Says so when the machine did other things: the time that others had the cores is taken off, not its effects."""
    waits = [
        best["wall_per_job"] / best["seconds_per_job"]
        for result in results
        for best in result.best.values()
        if best.get("wall_per_job")
    ]
    worst = max(waits, default=1.0)
    if worst < 1.1:
        return ""
    return (
        f"This machine was busy: samples stood in line for a core, for up to {worst - 1:.0%} of their own time. "
        "That is taken off, its effect on the caches is not: trust ratios only."
    )


def show(console: Console, results: Sequence[Result]) -> None:
    """Print it all, ratios first."""
    console.print(ratios_table(results))
    console.print(numbers_table(results))
    if note := busy_note(results):
        console.print(Text(note, "yellow"))
    gates = [outcome for result in results for outcome in result.outcomes if outcome.passed is not None]
    failed = [outcome for outcome in gates if not outcome.passed]
    if failed:
        names = ", ".join(f"{outcome.workload} ({outcome.name})" for outcome in failed)
        console.print(Text(f"{len(failed)} of {len(gates)} gates FAIL: {names}", "bold red"))
    elif gates:
        console.print(Text(f"All {len(gates)} gates PASS", "bold green"))


def machine() -> dict[str, Any]:
    """Where the numbers come from."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else [],
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_json(path: Path, results: Sequence[Result], *, quick: bool) -> None:
    """Everything that was measured, every sample included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine(), "quick": quick, "results": [result.as_json() for result in results]}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def write_plot(path: Path, results: Sequence[Result]) -> None:
    """Left: jobs per second of every case. Right: how each gate stands, 1 being its limit."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.fonttype"] = "none"  # text as text: a tenth of the size
    from matplotlib import pyplot

    rates = [
        (f"{result.workload}: {case}", 1 / best[metric])
        for result in results
        for case, best in result.best.items()
        for metric in ("seconds_per_job", "seconds_per_message")
        if metric in best
    ]
    gates = [outcome for result in results for outcome in result.outcomes if outcome.passed is not None]
    rows = max(len(rates), len(gates), 3)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 1.4 + 0.32 * rows), layout="constrained")
    _plot_rates(left, rates)
    _plot_gates(right, gates)
    facts = machine()
    figure.suptitle(f"Laneway, {facts['implementation']} {facts['python']}, {facts['cores']} cores, {facts['at'][:10]}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    figure.savefig(path.with_suffix(".svg"))
    pyplot.close(figure)


def _plot_rates(axes: Any, rates: Sequence[tuple[str, float]]) -> None:
    axes.set_title("jobs per second (log scale)", loc="left")
    axes.set_xscale("log")
    names = [name for name, _ in rates]
    values = [rate for _, rate in rates]
    ours = ["#9aa5b1" if name.partition(": ")[2].startswith(OTHERS) else "#2f6f9f" for name in names]
    bars = axes.barh(range(len(names)), values, color=ours, height=0.65)
    axes.bar_label(bars, [f"{value:,.0f}" for value in values], padding=4, fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.spines[["top", "right"]].set_visible(False)


def _plot_gates(axes: Any, gates: Sequence[Outcome]) -> None:
    axes.set_title("gates: right of the line is kept (log scale)", loc="left")
    for row, outcome in enumerate(gates):
        limit = outcome.limit or 0.0
        # Above 1 is always good: turn "at most" around. A limit of zero is kept or broken.
        if limit == 0:
            share = 10.0 if outcome.value <= 0 else 0.1
        else:
            share = outcome.value / limit if outcome.gate == ">=" else limit / max(outcome.value, 1e-9)
        axes.barh(row, share, color="#3d8b5f" if outcome.passed else "#b5443c", height=0.65)
        axes.text(
            max(share, 1.0) * 1.06,
            row,
            f"{number(outcome.value)}{outcome.unit} ({_gate(outcome)})",
            va="center",
            fontsize=8,
        )
    axes.axvline(1, color="#333333", linewidth=1)
    axes.set_xscale("log")
    axes.margins(x=0.35)
    axes.set_yticks(range(len(gates)), [outcome.name for outcome in gates], fontsize=8)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
