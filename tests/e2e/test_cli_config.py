"""`laneway config` as a user runs it: in a process of its own, with real files and a real environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

LANEWAY = Path(sys.executable).with_name("laneway")
MAIN = """\
{
  // the file of another gateway
  messages: { queue: { mode: "collect", debounceMs: 1000, byChannel: { discord: "steer" } } },
}
"""
WITHOUT_YAML = """
import sys
sys.modules["yaml"] = None
sys.argv = ["laneway", "config", "check", *{files!r}]
import laneway.cli
laneway.cli.main()
"""

pytestmark = pytest.mark.slow


def run(folder: Path, *command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("LANEWAY_")}
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
        env={**env, "NO_COLOR": "1", "COLUMNS": "100", **environ},
    )


def test_four_layers_are_explained(tmp_path: Path) -> None:
    (tmp_path / "gateway.json5").write_text(MAIN, encoding="utf-8")
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "agent.yaml").write_text("queue:\n  mode: interrupt\n  cap: 5\n", encoding="utf-8")
    done = run(
        tmp_path,
        *(LANEWAY, "config", "explain", "--config", "gateway.json5", "--workspace", "room"),
        *("--set", "lanes.main=2", "--json"),
        LANEWAY_QUEUE_CAP="7",
    )
    assert (done.returncode, done.stderr) == (0, "")
    facts = {each["setting"]: each for each in json.loads(done.stdout)["settings"]}
    found = {name: (facts[name]["value"], facts[name]["origin"]["layer"]) for name in facts}
    assert found["queue.debounce_ms"] == (1000, "file")
    assert found["queue.mode"] == ("interrupt", "workspace")
    assert found["queue.cap"] == (7, "environment")
    assert found["lanes.main.concurrency"] == (2, "command line")
    assert found["queue.by_channel.discord.mode"] == ("steer", "file")
    assert found["queue.drop"] == ("summarize", "default")


def test_a_bad_file_ends_with_the_code_for_usage_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[queue]\ndebouceMs = 1\n", encoding="utf-8")
    done = run(tmp_path, LANEWAY, "config", "check", "bad.toml")
    line = "bad.toml:2:1: there is no setting queue.debouceMs (did you mean debounceMs?)\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, line, "")
    done = run(tmp_path, LANEWAY, "config", "explain", "--config", "bad.toml")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"laneway: {line}")


def test_the_schema_that_is_printed_validates_files(tmp_path: Path) -> None:
    done = run(tmp_path, LANEWAY, "config", "schema")
    validator = Draft202012Validator(json.loads(done.stdout))
    assert validator.is_valid({"queue": {"mode": "steer", "debounceMs": 5}})
    assert not validator.is_valid({"queue": {"debouceMs": 5}})


def test_without_the_library_yaml_says_what_to_install_and_the_rest_works(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("queue: {}\n", encoding="utf-8")
    (tmp_path / "b.json").write_text("{}", encoding="utf-8")
    done = run(tmp_path, sys.executable, "-c", WITHOUT_YAML.format(files=["b.json", "a.yaml"]))
    assert done.returncode == 2
    assert done.stdout.splitlines()[0] == "b.json: good"
    assert "install laneway with the extra `config`" in done.stdout.splitlines()[1]


def test_the_commands_are_listed(tmp_path: Path) -> None:
    done = run(tmp_path, LANEWAY, "config", "--help")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("check", "explain", "schema"))
