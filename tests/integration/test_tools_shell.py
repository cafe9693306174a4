"""`bash` with real processes: what they get, what becomes of their output, and that none is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from laneway.dialogue import ToolContext, ToolOutput
from laneway.ports import Tool
from laneway.records import Effect
from laneway.tools import shell
from laneway.tools.lanes import lane_of
from laneway.tools.shell import ShellLimits, ShellSettings, bash_tool, shell_tools, tool_environment, wait
from tests.integration.processes import eventually, is_running
from tests.leaps import leaping

QUICK = ShellSettings(grace_ms=200)


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    (tmp_path / "work").mkdir()
    return ToolContext(workspace=str(tmp_path / "work"), artifacts=str(tmp_path / "kept"), output_max=2000)


async def call(item: Tool, context: ToolContext, **arguments: Any) -> ToolOutput:
    return await item.run(item.check(json.dumps(arguments)), context)


async def sh(context: ToolContext, command: str, **arguments: Any) -> ToolOutput:
    return await call(bash_tool(QUICK), context, command=command, **arguments)


async def pids_in(path: Path, count: int) -> list[int]:
    """The ids that a command writes into a file, one on each line, once all of them are there."""

    def read() -> list[int]:
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    assert await eventually(lambda: len(read()) == count)
    return read()


# ---- answers ------------------------------------------------------------------------------------------------


async def test_a_command_answers_with_both_outputs_in_order_and_its_exit_code(context: ToolContext) -> None:
    output = await sh(context, "echo one; echo two >&2; echo three")
    assert output == ToolOutput(text="one\ntwo\nthree\n", exit_code=0)


async def test_a_command_that_fails_is_an_answer(context: ToolContext) -> None:
    assert await sh(context, "echo no; exit 3") == ToolOutput(text="no\n[exit code 3]", is_error=True, exit_code=3)
    assert (await sh(context, "kill -9 $$")).exit_code == 137
    missing = await sh(context, "no-such-command")
    assert (missing.exit_code, missing.is_error) == (127, True)


async def test_a_command_that_says_nothing_says_nothing(context: ToolContext) -> None:
    assert await sh(context, "true") == ToolOutput(text="", exit_code=0)


async def test_input_is_closed_and_there_is_no_terminal(context: ToolContext) -> None:
    assert (await sh(context, "cat; read x; echo $?; tty")).text == "1\nnot a tty\n[exit code 1]"


async def test_a_command_runs_in_the_workspace_or_a_folder_of_it(context: ToolContext) -> None:
    os.mkdir(os.path.join(context.workspace, "sub"))
    assert (await sh(context, "pwd")).text.strip() == os.path.realpath(context.workspace)  # noqa: ASYNC240
    assert (await sh(context, "pwd", working_dir="sub")).text.strip().endswith("/sub")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"command": ""}, "is empty"),
        ({"command": " \n"}, "is empty"),
        ({"command": "echo a\x00b"}, "NUL"),
        ({"command": "x" * 200_000}, "write it to a file"),
        ({"command": "true", "timeout_ms": 0}, "from 1 to"),
        ({"command": "true", "timeout_ms": 10**9}, "from 1 to"),
        ({"command": "true", "working_dir": ".."}, "outside of the workspace"),
        ({"command": "true", "working_dir": "/"}, "outside of the workspace"),
        ({"command": "true", "working_dir": "none"}, "does not exist"),
        ({"command": "true", "working_dir": "file"}, "not a folder"),
    ],
)
async def test_a_call_that_cannot_be_run_is_an_answer(
    arguments: dict[str, Any], says: str, context: ToolContext, tmp_path: Path
) -> None:
    (tmp_path / "work" / "file").write_text("")
    output = await call(bash_tool(QUICK), context, **arguments)
    assert output.is_error
    assert output.exit_code is None
    assert says in output.text


async def test_a_workspace_or_a_shell_that_is_not_there_is_an_answer(context: ToolContext, tmp_path: Path) -> None:
    nowhere = ToolContext(workspace=str(tmp_path / "none"))
    assert "is not there" in (await sh(nowhere, "true")).text
    output = await call(bash_tool(ShellSettings(program="/no/such/shell")), context, command="true")
    assert output == ToolOutput(text="the shell does not exist", is_error=True)


def test_a_command_writes_and_a_wait_reads() -> None:
    bash, waiting = shell_tools()
    assert (bash.spec.name, bash.spec.effect, lane_of(bash.spec)) == ("bash", Effect.WRITE, "execute")
    assert (waiting.spec.name, waiting.spec.effect, lane_of(waiting.spec)) == ("wait", Effect.READ, "query")
    assert list(bash.spec.parameters["properties"]) == ["command", "timeout_ms", "working_dir"]


async def test_waiting_waits_and_can_be_cancelled(context: ToolContext) -> None:
    assert (await call(wait, context, seconds=0.01)).text == "waited 0.01 s"
    assert "from 0 to" in (await call(wait, context, seconds=-1)).text
    assert "from 0 to" in (await call(wait, context, seconds=1e9)).text
    task = asyncio.ensure_future(call(wait, context, seconds=3600))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# ---- output -------------------------------------------------------------------------------------------------


async def test_output_is_shown_while_it_comes(context: ToolContext, tmp_path: Path) -> None:
    seen: list[str] = []
    listening = ToolContext(workspace=context.workspace, report=seen.append)
    os.mkfifo(tmp_path / "go")
    task = asyncio.ensure_future(sh(listening, f"echo first; cat {tmp_path}/go; echo second"))
    assert await eventually(lambda: "".join(seen) == "first\n")
    assert not task.done()
    await asyncio.to_thread((tmp_path / "go").write_text, "go\n")
    assert (await task).text == "first\ngo\nsecond\n" == "".join(seen)


@pytest.mark.slow
async def test_an_output_of_50_mb_is_never_held_in_memory(context: ToolContext) -> None:
    seen: list[str] = []
    listening = ToolContext(
        workspace=context.workspace, artifacts=context.artifacts, output_max=2000, report=seen.append
    )
    tracemalloc.start()
    output = await sh(listening, "head -c 50000000 /dev/zero | tr '\\0' x; echo end")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert output.exit_code == 0
    assert len(output.text) <= 2000
    assert output.text.endswith("x\nend\n") or output.text.endswith("end\n")
    assert output.artifact is not None
    assert os.path.getsize(os.path.join(context.artifacts, output.artifact)) == 50_000_004  # noqa: ASYNC240
    assert peak < 8_000_000
    assert len("".join(seen)) < 2100


async def test_an_output_without_end_is_kept_up_to_a_bound(context: ToolContext) -> None:
    bash = bash_tool(ShellSettings(artifact_max=100_000, grace_ms=200))
    output = await call(bash, context, command="yes | head -c 5000000", timeout_ms=60_000)
    assert output.artifact is not None
    assert os.path.getsize(os.path.join(context.artifacts, output.artifact)) == 100_000  # noqa: ASYNC240
    assert "only its first 100000 bytes were kept" in output.text


async def test_bytes_that_are_no_text_become_text(context: ToolContext) -> None:
    output = await sh(context, r"printf 'a\377\000b\303'; printf '\274c'")
    assert output.text == "a\ufffd\u2400b\u00fcc"


# ---- time ---------------------------------------------------------------------------------------------------


async def out_of_time(
    context: ToolContext, folder: Path, command: str, settings: ShellSettings = QUICK
) -> tuple[ToolOutput, int]:
    """What becomes of a command whose time is up once it has said its id where `{0}` is; and its id."""
    with leaping(asyncio.get_running_loop()) as leap:
        said = command.format(f"echo $$ > {folder}/pids")
        task = asyncio.ensure_future(call(bash_tool(settings), context, command=said, timeout_ms=60_000))
        (pid,) = await pids_in(folder / "pids", 1)
        leap(60_000)
        return await task, pid


@pytest.mark.slow
async def test_a_command_that_takes_too_long_is_ended_and_says_what_was_seen(
    context: ToolContext, tmp_path: Path
) -> None:
    output, pid = await out_of_time(context, tmp_path, "echo begun; {0}; sleep 1000")
    assert output.text == "begun\n[it ran longer than 60000 ms and was ended]"
    assert (output.is_error, output.exit_code) == (True, None)
    assert await eventually(lambda: not is_running(pid))


@pytest.mark.slow
async def test_a_command_that_ignores_being_asked_is_killed(context: ToolContext, tmp_path: Path) -> None:
    output, pid = await out_of_time(context, tmp_path, "trap '' TERM; {0}; while :; do sleep 0.05; done")
    assert "was ended" in output.text
    assert await eventually(lambda: not is_running(pid))


@pytest.mark.slow
async def test_a_command_may_clean_up_when_it_is_asked_to_end(context: ToolContext, tmp_path: Path) -> None:
    command = "trap 'echo cleaned; exit' TERM; sleep 1000 & {0}; wait"
    output, _ = await out_of_time(context, tmp_path, command, ShellSettings(grace_ms=60_000))
    assert output.text.startswith("cleaned\n")


# ---- nothing is left behind ---------------------------------------------------------------------------------

FAMILY = "sleep 1000 & echo $! >> {0}; (sleep 1000 & echo $! >> {0}; wait) & echo $$ >> {0}; wait"
DAEMON = "setsid sh -c 'echo $$ >> {0}; exec sleep 1000' >/dev/null 2>&1 & echo $$ >> {0}; wait"
STUBBORN = "trap '' TERM; (trap '' TERM; sleep 1000) & echo $! >> {0}; echo $$ >> {0}; while :; do sleep 1; done"


@pytest.mark.slow
@pytest.mark.parametrize(("command", "count"), [(FAMILY, 3), (DAEMON, 2), (STUBBORN, 2)])
async def test_cancelling_leaves_no_process_behind(
    command: str, count: int, context: ToolContext, tmp_path: Path
) -> None:
    task = asyncio.ensure_future(sh(context, command.format(tmp_path / "pids")))
    pids = await pids_in(tmp_path / "pids", count)
    assert all(is_running(pid) for pid in pids)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await eventually(lambda: not any(is_running(pid) for pid in pids))


@pytest.mark.slow
async def test_cancelling_twice_still_leaves_no_process_behind(context: ToolContext, tmp_path: Path) -> None:
    task = asyncio.ensure_future(sh(context, STUBBORN.format(tmp_path / "pids")))
    pids = await pids_in(tmp_path / "pids", 2)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await eventually(lambda: not any(is_running(pid) for pid in pids))


async def test_cancelling_a_thousandth_before_or_after_the_start_leaves_no_process_behind(
    context: ToolContext, tmp_path: Path
) -> None:
    mark = f"sleep {os.getpid()}.5"
    for turns in range(12):
        task = asyncio.ensure_future(sh(context, mark))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    listed = await asyncio.create_subprocess_exec("ps", "-eo", "args", stdout=asyncio.subprocess.PIPE)
    shown, _ = await listed.communicate()
    assert mark not in shown.decode()


@pytest.mark.slow
async def test_what_a_command_leaves_in_the_background_ends_with_it(context: ToolContext, tmp_path: Path) -> None:
    output = await sh(context, f"sleep 1000 & echo $! > {tmp_path}/pids; echo done")
    assert output.text.startswith("done\n[what it left running in the background was ended with it")
    assert output.exit_code == 0
    (pid,) = await pids_in(tmp_path / "pids", 1)
    assert await eventually(lambda: not is_running(pid))


@pytest.mark.slow
async def test_a_daemon_that_holds_the_output_does_not_hold_the_answer(context: ToolContext, tmp_path: Path) -> None:
    output = await sh(context, f"setsid sleep 1000 & echo $! > {tmp_path}/pids; echo done")
    assert output.text.startswith("done\n")
    (pid,) = await pids_in(tmp_path / "pids", 1)
    assert await eventually(lambda: not is_running(pid))


async def test_a_server_that_detached_itself_stays_when_its_command_ends_well(
    context: ToolContext, tmp_path: Path
) -> None:
    detached = f"setsid sh -c 'echo $$ > {tmp_path}/pids; exec sleep 1000' >/dev/null 2>&1 &"
    output = await sh(context, f"{detached} until test -s {tmp_path}/pids; do sleep 0.01; done; echo up")
    assert output == ToolOutput(text="up\n", exit_code=0)
    (pid,) = await pids_in(tmp_path / "pids", 1)
    assert is_running(pid)
    os.kill(pid, signal.SIGKILL)


async def test_the_last_words_of_the_background_are_heard(
    context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "DRAIN_S", 60.0)
    assert (await sh(context, "echo a > >(cat)")).text == "a\n"


async def test_no_descriptor_is_left_open(context: ToolContext) -> None:
    await sh(context, "true")
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    for _ in range(5):
        await sh(context, "echo x")
        await call(bash_tool(ShellSettings(program="/no/such/shell")), context, command="true")
    assert await eventually(lambda: sys.platform != "linux" or len(os.listdir("/proc/self/fd")) <= before)


# ---- environment and limits ---------------------------------------------------------------------------------

SOURCE = {
    "PATH": "/bin",
    "HOME": "/root",
    "LC_ALL": "C",
    "LANEWAY_TOKEN": "x",
    "LANEWAY_STORE": "x",
    "OPENAI_API_KEY": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "LC_PASSWORD": "x",
    "NPM_REGISTRY": "r",
    "NPM_TOKEN": "x",
    "GH_TOKEN": "g",
    "HTTPS_PROXY": "http://user:pw@proxy",
    "LD_PRELOAD": "x",
    "BASH_ENV": "x",
}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (ShellSettings(), {"PATH", "HOME", "LC_ALL"}),
        (ShellSettings(allow=("NPM_*", "LANEWAY_*")), {"PATH", "HOME", "LC_ALL", "NPM_REGISTRY"}),
        (ShellSettings(allow=("GH_TOKEN", "LANEWAY_TOKEN")), {"PATH", "HOME", "LC_ALL", "GH_TOKEN"}),
        (ShellSettings(environment={"CI": "1", "LANEWAY_X": "1"}), {"PATH", "HOME", "LC_ALL", "CI"}),
        (
            ShellSettings(allow=("*",)),
            {"PATH", "HOME", "LC_ALL", "NPM_REGISTRY", "HTTPS_PROXY", "LD_PRELOAD", "BASH_ENV"},
        ),
    ],
)
def test_a_command_sees_only_what_is_harmless_or_was_allowed(settings: ShellSettings, names: set[str]) -> None:
    assert set(tool_environment(settings, SOURCE)) == names


async def test_no_secret_of_this_process_reaches_a_command(
    context: ToolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANEWAY_TOKEN", "hidden-1")
    monkeypatch.setenv("OPENAI_API_KEY", "hidden-2")
    output = await sh(context, "env; cat /proc/$$/environ | tr '\\0' '\\n'")
    assert "PATH=" in output.text
    assert "hidden" not in output.text


async def test_what_the_session_sets_reaches_its_commands(context: ToolContext) -> None:
    bash = bash_tool(ShellSettings(environment={"COLOUR": "red", "SHAPE": "round"}))
    said = {"environment": {"COLOUR": "blue", "LANEWAY_TOKEN": "hidden"}}
    told = ToolContext(workspace=context.workspace, extra=said)
    output = await call(bash, told, command="echo $COLOUR $SHAPE $LANEWAY_TOKEN")
    assert output.text == "blue round\n"
    silent = ToolContext(workspace=context.workspace, extra={"environment": None})
    assert (await call(bash, silent, command="echo $COLOUR")).text == "red\n"


async def test_a_variable_that_cannot_be_one_is_an_answer(context: ToolContext) -> None:
    told = ToolContext(workspace=context.workspace, extra={"environment": {"A=B": "x"}})
    output = await call(bash_tool(), told, command="true")
    assert output.is_error
    assert "environment" in output.text
    assert output.exit_code is None


async def test_limits_hold_in_the_command(context: ToolContext) -> None:
    limits = ShellLimits(cpu_s=7, memory_bytes=2**31, file_bytes=2**20, processes=2000)
    bash = bash_tool(ShellSettings(limits=limits, grace_ms=200))
    output = await call(bash, context, command="ulimit -t; ulimit -v; ulimit -f; ulimit -c")
    assert output.text.split() == ["7", str(2**21), "1024", "0"]
    raised = await call(bash, context, command="ulimit -t 100000; ulimit -Ht")
    assert raised.text.splitlines()[-1].endswith(("12", "100000" if os.geteuid() == 0 else "12"))
    big = await call(bash, context, command="head -c 5000000 /dev/zero > big; ls -l big | awk '{print $5}'")
    assert "1048576" in big.text


@pytest.mark.slow
async def test_a_command_that_burns_time_is_ended_by_its_limit(context: ToolContext) -> None:
    bash = bash_tool(ShellSettings(limits=ShellLimits(cpu_s=1), grace_ms=200))
    output = await call(bash, context, command="while :; do :; done", timeout_ms=60_000)
    assert output.exit_code in (137, 152)
