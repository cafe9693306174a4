"""The command line as a user runs it: in a process of its own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

LANEWAY = Path(sys.executable).with_name("laneway")
WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
import laneway.cli
print("imported")
sys.argv = ["laneway", "tour"]
laneway.cli.main()
"""

pytestmark = pytest.mark.slow


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env)


def run_on_terminal(*command: str | Path) -> tuple[int, str]:
    """Run it on a terminal of 80 x 24; everything that it wrote there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**env, "TERM": "xterm-256color"}
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(ours, 65_536):
            shown += piece
    os.close(ours)
    return process.wait(timeout=60), shown.decode()


def test_version() -> None:
    done = run(LANEWAY, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("laneway 0.")


def test_as_a_module() -> None:
    done = run(sys.executable, "-m", "laneway", "--version")
    assert done.returncode == 0
    assert done.stdout == run(LANEWAY, "--version").stdout


def test_help_names_the_commands() -> None:
    done = run(LANEWAY, "--help")
    assert done.returncode == 0
    assert "tour" in done.stdout
    assert "sim" in done.stdout


@pytest.mark.parametrize("arguments", [["fly"], ["tour", "--loud"], ["--loud"]])
def test_what_it_does_not_know_is_a_usage_error(arguments: list[str]) -> None:
    done = run(LANEWAY, *arguments)
    assert done.returncode == 2
    assert arguments[-1] in done.stderr
    assert "Traceback" not in done.stderr


def test_the_tour_of_the_lanes_ends_by_itself_with_the_proof() -> None:
    done = run(LANEWAY, "tour", "lanes", "--fast")
    assert (done.returncode, done.stderr) == (0, "")
    assert "1/7 Lanes, widths, priorities" in done.stdout
    assert "7/7 Drain" in done.stdout
    assert "✓ Nothing lost: " in done.stdout.splitlines()[-1]


def test_the_tour_of_the_lanes_as_json() -> None:
    done = run(LANEWAY, "tour", "lanes", "--fast", "--json")
    assert done.returncode == 0
    summary = json.loads(done.stdout)
    assert summary["proof"]["holds"] is True
    assert summary["proof"]["submitted"] == sum(lane["stats"]["submitted"] for lane in summary["lanes"].values())
    assert len(summary["findings"]) == 7


def test_the_tour_of_the_lanes_draws_on_a_terminal_and_leaves_it_as_it_was() -> None:
    code, shown = run_on_terminal(LANEWAY, "tour", "lanes", "--fast")
    assert code == 0
    assert "\x1b[?1049h" in shown  # the alternate screen, and back
    assert shown.rindex("\x1b[?1049l") > shown.rindex("\x1b[?1049h")
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")  # the cursor
    assert "all lanes together: " in shown
    assert "Nothing lost" in shown[shown.rindex("\x1b[?1049l") :]


def test_interrupting_the_tour_of_the_lanes_is_quiet() -> None:
    process = subprocess.Popen(
        [LANEWAY, "tour", "lanes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    while "submitted" not in process.stdout.readline():
        assert process.poll() is None
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")


@pytest.mark.parametrize("names", [("typer",), ("rich",), ("rich", "typer")])
def test_without_the_extra_it_says_what_to_install(names: tuple[str, ...]) -> None:
    done = run(sys.executable, "-c", WITHOUT.format(names=names))
    assert (done.returncode, done.stdout) == (2, "imported\n")
    assert done.stderr.count("\n") == 1
    assert "install laneway with the extra `cli`" in done.stderr
    assert all(name in done.stderr for name in names)


def test_sim_with_a_seed() -> None:
    done = run(LANEWAY, "sim", "--seed", "1")
    assert done.returncode == 0, done.stderr
