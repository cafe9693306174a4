"""Secrets of the server: out of its environment, out of sight of other processes, never given to tools."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from laneway.gateway.secrets import SECRETS, is_hidden, take_secrets
from laneway.tools.shell import ShellSettings, tool_environment

SECRET = "lw_0123456789ab_" + "x" * 43


def run(code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A Python process of its own."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[3] / "src"), **environ}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False, env=env
    )


def test_what_is_for_the_server_alone_is_taken_out_of_its_environment() -> None:
    environ = {"LANEWAY_TOKEN": SECRET, "LANEWAY_URL": "http://x", "HOME": "/"}
    assert take_secrets(environ) == {"LANEWAY_TOKEN": SECRET}
    assert environ == {"LANEWAY_URL": "http://x", "HOME": "/"}
    assert take_secrets(environ) == {}


@pytest.mark.slow
def test_a_secret_is_wiped_where_the_system_shows_the_environment() -> None:
    done = run(
        """
        import os
        from laneway.gateway.secrets import take_secrets
        assert b"lw_0123456789ab" in open("/proc/self/environ", "rb").read()
        print(take_secrets()["LANEWAY_TOKEN"], "LANEWAY_TOKEN" in os.environ)
        print(b"lw_0123456789ab" in open("/proc/self/environ", "rb").read())
        """,
        LANEWAY_TOKEN=SECRET,
    )
    assert done.stdout.split() == [SECRET, "False", "False"], done.stderr


@pytest.mark.slow
def test_a_hidden_process_is_closed_to_others_of_its_user_and_what_it_starts_is_not() -> None:
    done = run(
        """
        import os, subprocess, sys
        from laneway.gateway.secrets import hide_process, is_hidden
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)  # root may look anywhere
        def peek():
            return subprocess.run(["cat", f"/proc/{os.getpid()}/environ"], capture_output=True).returncode == 0
        print(hide_process(), is_hidden(), peek())
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdin.write(b"x")
        child.stdin.flush()
        child.stdout.read(1)  # it runs: a tool is found by a mark in its environment
        open(f"/proc/{child.pid}/environ", "rb").read()
        child.communicate()
        print(len(os.listdir("/proc/self/fd")) > 2)
        """,
    )
    assert done.stdout.split() == ["True", "True", "False", "True"], done.stderr


def test_this_process_is_not_hidden() -> None:
    assert not is_hidden()


@pytest.mark.parametrize("name", [*SECRETS, "LANEWAY_STORE", "laneway_token", "Laneway_X", "LANEWAY_"])
def test_nothing_of_laneway_gets_into_the_environment_of_a_tool(name: str) -> None:
    source = {name: SECRET, "PATH": "/bin"}
    wide = ShellSettings(allow=(name, "LANEWAY_*", "*"), environment={name: SECRET})
    assert tool_environment(ShellSettings(), source) == {"PATH": "/bin"}
    assert tool_environment(wide, source, session={name: SECRET}) == {"PATH": "/bin"}
