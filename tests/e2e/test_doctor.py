"""`laneway doctor` as a process: what it prints, its exit code, and a server that answers."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.server_process import LANEWAY, environment, server_process

pytestmark = pytest.mark.slow

NOBODY = "http://127.0.0.1:9"  # nobody is there: whoever asks it gets nothing


def doctor(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    given = {"LANEWAY_GATEWAY_PORT": "0", **variables}
    return subprocess.run(
        [LANEWAY, "doctor", *arguments],
        cwd=folder,
        env=environment(folder, **given),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_fresh_folder_is_good(tmp_path: Path) -> None:
    done = doctor(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "✓ python" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Good")
    assert list(tmp_path.iterdir()) == []


def test_something_to_fix_is_exit_code_1_and_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text("quue: {}\n")
    done = doctor(tmp_path)
    assert done.returncode == 1
    assert "✗ configuration" in done.stdout
    assert "did you mean queue?" in done.stdout
    assert "Traceback" not in done.stderr


def test_as_json(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--json")
    found = json.loads(done.stdout)
    assert found["good"] is True
    assert {"python", "extras", "configuration", "sqlite", "store"} <= {each["check"] for each in found["checks"]}
    assert all(set(each) == {"check", "state", "says", "hint"} for each in found["checks"])


def test_a_server_that_runs_is_found_ready_and_its_store_in_use(tmp_path: Path) -> None:
    with server_process(tmp_path) as server:
        port = server.url.rpartition(":")[2]
        done = doctor(tmp_path, "--url", server.url, LANEWAY_GATEWAY_PORT=port, HTTP_PROXY=NOBODY)
        assert done.returncode == 0, done.stdout
        assert f"the server at {server.url} is ready" in done.stdout
        assert f"in use by process {server.process.pid}" in done.stdout
        assert "is taken by a server that answers" in done.stdout


def test_a_server_that_does_not_answer_is_to_be_fixed_if_it_was_named(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--url", "http://127.0.0.1:1")
    assert done.returncode == 1
    assert "no server answers at http://127.0.0.1:1" in done.stdout


def test_a_model_that_may_not_be_asked_is_told_and_the_key_is_not(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--online", LANEWAY_DEFAULT_MODEL="openai/gpt-5", OPENAI_API_KEY="sk-secret-of-mine")
    assert done.returncode == 1
    assert "openai/gpt-5 does not answer" in done.stdout
    assert "sk-secret-of-mine" not in done.stdout + done.stderr
