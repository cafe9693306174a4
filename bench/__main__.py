"""`python -m bench [--quick] [--only NAME ...]`: measure, print, write bench/results/, say PASS or FAIL.

A whole run writes `latest.json` and its pictures, a quick one or one with `--only` writes `partial.json`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench import report
from bench.catalogue import WORKLOADS
from bench.rounds import ROOT, Result, SampleError, run


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Laneway, also against others.")
    parser.add_argument("--quick", action="store_true", help="small sizes and at most two rounds: a minute in all")
    parser.add_argument(
        "--only",
        action="append",
        choices=sorted(WORKLOADS),
        metavar="NAME",
        help="one workload (may be repeated): " + ", ".join(WORKLOADS),
    )
    parser.add_argument("--rounds", type=int, help="how many samples of each case (each workload has its own number)")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "bench" / "results", help="where the results are written"
    )
    parser.add_argument("--no-plot", action="store_true", help="write no picture")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 when every gate holds, 1 when one does not, 2 when a sample failed."""
    options = parse(arguments)
    console = Console()
    progress = Console(stderr=True)
    results: list[Result] = []
    broken = False
    for workload in [WORKLOADS[name] for name in options.only or WORKLOADS]:
        with progress.status(workload.title) as status:
            try:
                results.append(run(workload, quick=options.quick, rounds=options.rounds, on_sample=status.update))
            except SampleError as error:
                broken = True
                progress.print(f"{workload.name}: {error}", style="red", markup=False)
    if results:
        report.show(console, results)
        name = "latest" if len(results) == len(WORKLOADS) and not options.quick else "partial"
        report.write_json(options.results / f"{name}.json", results, quick=options.quick)
        if not options.no_plot:
            report.write_plot(options.results / f"{name}.png", results)
        console.print(f"Written to {options.results}", style="dim")
    failed = any(outcome.passed is False for result in results for outcome in result.outcomes)
    return 2 if broken else int(failed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
