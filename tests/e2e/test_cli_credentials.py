"""The token of an operator: given to a command without being shown to other processes of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from laneway.gateway.access import Scope
from laneway.models import call, say
from tests.cli_stage import cli_stage
from tests.routes_stage import LANED, post, until
from tests.terminal import ENTER, Terminal

pytestmark = pytest.mark.slow

SECRET = "lw_0123456789ab_" + "x" * 43
LINGER = """
import os, sys, laneway.cli.app
def linger(**_):
    print(os.environ["LANEWAY_TOKEN"], flush=True)
    sys.stdin.read()
laneway.cli.app.app = linger
from laneway.cli import main
main()
"""


async def test_who_approves_is_asked_for_the_token_and_it_is_not_shown(tmp_path: Path) -> None:
    script = [[call("write", path="a.txt", content="x")], [say("done")]]
    async with cli_stage(tmp_path, text=LANED, script=script) as cli:
        await post(cli.server, "s1", "write it")
        inbox = cli.server.gateway.default.inbox
        await until(inbox.approvals)
        approval = inbox.approvals()[0].id
        cli.environ["TOKEN"] = None
        async with Terminal(cli, "approve", approval) as screen:
            await screen.sees("Token: ")
            screen.type(cli.token + ENTER)
            await screen.sees(f"{approval} is approved")
            assert cli.token not in screen.shown
            assert await screen.ends() == 0


async def test_a_wrong_token_is_asked_for_once(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        cli.environ["TOKEN"] = None
        async with Terminal(cli, "token", "ls") as screen:
            await screen.sees("Token: ")
            screen.type(SECRET + ENTER)
            await screen.sees("--token - asks for a token")
            assert await screen.ends() == 5
            assert screen.shown.count("Token: ") == 1


async def test_a_dash_reads_the_token_from_standard_input_and_the_text_after_it(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        await cli.server.token(Scope.CHAT)  # so that a token is needed
        given = f"{cli.token}\nhello\n"
        refused = await cli.run("send", "s1", "hello", TOKEN=None)
        assert refused.exit_code == 5
        assert "--token - asks for a token" in refused.stderr
        sent = await cli.run("send", "s1", "-", "--wait", "--token", "-", given=given, TOKEN=None)
        assert sent.stdout == "You said: hello\n", sent.output


async def test_a_file_that_nobody_else_may_read_gives_the_token(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        admin = cli.server.operator(scopes=(Scope.ADMIN,))["Authorization"].removeprefix("Bearer ")
        file = tmp_path / "token"
        file.touch(0o600)
        file.write_text(f"{admin}\n")
        assert (await cli.run("token", "ls", TOKEN=None, TOKEN_FILE=str(file))).exit_code == 0
        assert (await cli.run("lane", "set", "main", "--concurrency", "3", "--token-file", str(file))).exit_code == 0
        file.chmod(0o640)
        refused = await cli.run("token", "ls", "--token-file", str(file), TOKEN=None)
        assert refused.exit_code == 2
        assert "others may read the token" in refused.stderr
        assert admin not in refused.output


@pytest.mark.parametrize("words", [("--token", SECRET), (f"--token={SECRET}",), ()])
def test_what_a_command_was_given_is_wiped_where_the_system_shows_it(words: tuple[str, ...]) -> None:
    environ = {**os.environ, "LANEWAY_TOKEN": SECRET}
    line = [sys.executable, "-c", LINGER, "status", *words, "--json"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{SECRET}\n"  # the command itself still has it
        shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        about = Path(f"/proc/{process.pid}/environ")
        if os.geteuid() == 0:
            assert SECRET.encode() not in about.read_bytes()
        else:
            assert not os.access(about, os.R_OK)
        process.communicate("")
    assert SECRET.encode() not in shown
    assert shown.endswith(b"--json\0")
