"""The two commands of the README on a fresh clone with an empty home."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server_process import ServerProcess, environment, until

ROOT = Path(__file__).resolve().parents[2]
SETUP_S = 500

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What is committed, and nothing else. It is removed afterwards: with its packages it is large."""
    folder = tmp_path_factory.mktemp("clone") / "laneway"
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True, timeout=120, capture_output=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def fresh(tmp_path: Path) -> dict[str, str]:
    """An empty home; what was downloaded before may be used again, and the index of this machine, too."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_") or "proxy" in name.lower()}
    cache = Path(os.environ.get("PIP_CACHE_DIR", Path.home() / ".cache" / "pip"))
    if (Path.home() / ".config" / "pip" / "pip.conf").exists():
        kept.setdefault("PIP_CONFIG_FILE", str(Path.home() / ".config" / "pip" / "pip.conf"))
    return {**environment(home), **kept, "PIP_CACHE_DIR": str(cache)}


def test_make_run_starts_a_server_that_answers_and_ends_on_a_signal(clone: Path, tmp_path: Path) -> None:
    server = ServerProcess(["make", "run", "ARGS=--port 0"], clone, fresh(tmp_path), patience_s=SETUP_S)
    try:
        assert server.call("GET", "/readyz")[0] == 200
        sent = server.send("hello", "hello")
        path = f"/v1/messages/{sent['message_id']}"
        until(lambda: server.call("GET", path)[1]["outcome"] == "succeeded", "the answer")
        assert server.call("GET", path)[1]["answer"] == "You said: hello"
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() in (0, -signal.SIGTERM, 2)
    finally:
        server.kill()
    assert server.lines[:1] == [f"Laneway is listening on {server.url}"]
    assert "Traceback" not in "\n".join(server.errors)
    status = subprocess.run(["git", "status", "--short"], cwd=clone, capture_output=True, text=True, check=True)
    assert status.stdout == ""  # what it writes is ignored


def test_make_test_sets_up_what_it_needs_and_runs(clone: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        ["make", "test", "ARGS=-n 0 tests/unit/test_records.py tests/unit/gateway/test_launch.py -m 'not slow'"],
        cwd=clone,
        env=fresh(tmp_path),
        capture_output=True,
        text=True,
        timeout=SETUP_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout
