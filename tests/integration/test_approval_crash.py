"""A real process that is killed while it waits for an approval: the next one takes the answer, by the old id."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIFE = Path(__file__).with_name("approval_life.py")
pytestmark = pytest.mark.slow


@contextmanager
def life(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A process; whatever happens it does not stay behind."""
    child = subprocess.Popen(
        [sys.executable, str(LIFE), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


def asked_by(child: subprocess.Popen[str]) -> tuple[str, str]:
    """The id of its request, and what it is about."""
    assert child.stdout is not None
    approval_id, _, args = child.stdout.readline().strip().partition(" ")
    return approval_id, args


@pytest.mark.parametrize("say", ["approve", "deny"])
def test_a_request_is_answered_by_its_old_id_after_two_kills(say: str, tmp_path: Path) -> None:
    with life(str(tmp_path)) as first:
        asked = asked_by(first)
        assert asked[1] == "{'to': 'ada', 'cents': 700}"
        first.send_signal(signal.SIGKILL)
        assert first.wait(60) == -signal.SIGKILL
    with life(str(tmp_path), "wait", "for-a-kill") as second:
        assert asked_by(second) == asked
        second.send_signal(signal.SIGKILL)
        assert second.wait(60) == -signal.SIGKILL
    assert not (tmp_path / "payments").exists()
    done = subprocess.run(
        [sys.executable, str(LIFE), str(tmp_path), say, asked[0]],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (0, "")
    state = {"approve": "approved", "deny": "denied"}[say]
    told = {"approve": "paid 700 to ada", "deny": "[Denied: host did not approve it]"}[say]
    assert done.stdout.splitlines() == [
        f"{asked[0]} {asked[1]}",
        f"Request {asked[0]} is {state}.",
        "the end",
        f"{[told]} []",
    ]
    paid = (tmp_path / "payments").read_text(encoding="utf-8") if say == "approve" else ""
    assert paid == ("ada 700\n" if say == "approve" else "")
