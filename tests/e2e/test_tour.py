"""`laneway tour`: a real server is asked, killed and started again; what it shows is checked, and nothing stays."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.server_process import LANEWAY, environment

pytestmark = pytest.mark.slow

NOBODY = "http://127.0.0.1:9"  # a proxy that is not there: the tour asks its own server, and needs none


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    return subprocess.run(
        [LANEWAY, "tour", *arguments],
        cwd=folder,
        env=environment(folder, TMPDIR=str(temporary), HTTP_PROXY=NOBODY, LANEWAY_PORT="1", LANEWAY_MODEL="nonsense"),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_the_tour_shows_five_chapters_and_ends_with_the_proof(tmp_path: Path) -> None:
    done = run(tmp_path, "--fast")
    assert (done.returncode, done.stderr) == (0, "")
    for title in ("1/5 A server", "2/5 Collect", "3/5 Steer", "4/5 Interrupt", "5/5 A crash, and the recovery"):
        assert title in done.stdout
    assert "kill -9" in done.stdout
    assert "✓ Nothing lost: 10 messages accepted = 10 ended, 0 ended twice, over 1 crash" in done.stdout
    assert list((tmp_path / "tmp").iterdir()) == []


def test_the_tour_as_json(tmp_path: Path) -> None:
    done = run(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["findings"]) == 5
    assert found["proof"]["holds"] is True
    assert found["proof"]["steps"] == ["first", "second"]


def test_interrupting_the_tour_leaves_no_server_behind(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [LANEWAY, "tour"],
        cwd=tmp_path,
        env=environment(tmp_path, PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    pid = 0
    for line in process.stdout:
        if "(pid " in line:
            pid = int(line.partition("(pid ")[2].partition(")")[0])
            break
    assert pid
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    assert not Path(f"/proc/{pid}").exists()
