"""The fleet of `examples/ci_fleet`: a server, three workers, a real test suite; each of them is a real process."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server_process import environment

ROOT = Path(__file__).resolve().parents[2]
FLEET = ROOT / "examples" / "ci_fleet"
PROJECT = FLEET / "project"
SUITES = sorted(path.stem for path in (PROJECT / "tests").glob("test_*.py"))
LINE = re.compile(r"^  (?P<workers>\w+(?: then \w+)*) +(?P<status>\w+) +python -m unittest tests\.(?P<suite>\w+)$")

pytestmark = pytest.mark.slow


def run_fleet(home: Path, *arguments: str) -> tuple[int, dict[str, tuple[list[str], str]], str]:
    """Run the example: its exit code, who ran each suite and what came of it, and all that it said."""
    command = [sys.executable, "-W", "error", str(FLEET / "fleet.py"), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=home, env=environment(home)
    )
    assert done.stderr == ""
    found = [match for line in done.stdout.splitlines() if (match := LINE.match(line))]
    return (
        done.returncode,
        {match["suite"]: (match["workers"].split(" then "), match["status"]) for match in found},
        done.stdout,
    )


def everybody(ran: dict[str, tuple[list[str], str]]) -> set[str]:
    return {name for workers, _ in ran.values() for name in workers}


def test_three_workers_run_the_suite_of_a_project_between_them(tmp_path: Path) -> None:
    code, ran, said = run_fleet(tmp_path)
    assert code == 0, said
    assert sorted(ran) == SUITES
    assert {status for _, status in ran.values()} == {"ok"}
    assert everybody(ran) == {"one", "two", "three"}
    assert "2 of 2 steps done" in said
    assert said.splitlines()[-1] == f"{len(SUITES) + 1} of {len(SUITES) + 1} commands passed, run by one, two, three"


def test_a_worker_that_is_killed_in_the_middle_of_a_test_is_replaced(tmp_path: Path) -> None:
    code, ran, said = run_fleet(tmp_path, "--kill")
    assert code == 0, said
    assert sorted(ran) == SUITES
    assert {status for _, status in ran.values()} == {"ok"}
    assert everybody(ran) == {"one", "two", "three"}
    [killed] = re.findall(r"killing (\w+), which runs", said)
    first, second = ran[SUITES[0]][0]
    assert first == killed
    assert second != killed
    assert [workers for suite, (workers, _) in ran.items() if killed in workers and suite != SUITES[0]] == []


def test_a_suite_that_fails_fails_on_the_fleet_and_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(PROJECT, broken)
    prices = broken / "shop" / "prices.py"
    right = prices.read_text(encoding="utf-8")
    prices.write_text(right.replace("percent + 50) // 100", "percent) // 100"), encoding="utf-8")
    assert prices.read_text(encoding="utf-8") != right
    code, ran, said = run_fleet(tmp_path, "--project", str(broken))
    assert code == 1, said
    assert [suite for suite, (_, status) in ran.items() if status != "ok"] == ["test_prices"]
    assert "test_tax_is_rounded_to_the_nearest_cent" in said
    assert everybody(ran) == {"one", "two", "three"}
