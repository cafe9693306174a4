"""Commands that a worker runs, with real processes: limits that hold and say so, and a sandbox that is one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import ConfigError
from laneway.external import ExternalTaskResult
from laneway.tools.sandbox import Sandbox
from laneway.worker import Worker, WorkerLimits
from tests.worker_stage import outcomes, real_bench

pytestmark = pytest.mark.slow


async def run(workspace: Path, *commands: str, **options: Any) -> list[ExternalTaskResult]:
    """What becomes of some commands."""
    async with real_bench() as on:
        worker = Worker(on.line, workspace=workspace, **options)
        return await outcomes(on, worker, [("bash", {"command": command}) for command in commands])


@pytest.mark.parametrize(
    ("limits", "command", "said"),
    [
        (WorkerLimits(cpu_s=1), "while :; do :; done", "it used more than 1 s of processor time"),
        (
            WorkerLimits(memory_mb=200),
            "python3 -c 'bytearray(10**9)'",
            "a process may have 209,715,200 bytes of memory",
        ),
        (WorkerLimits(file_mb=1), "head -c 5000000 /dev/zero > big", "a file may have 1,048,576 bytes"),
        (
            WorkerLimits(open_files=32),
            "python3 -c 'x = [open(\"/dev/null\") for _ in range(100)]'",
            "a process may have 32 files open",
        ),
    ],
    ids=["cpu", "memory", "file", "open files"],
)
async def test_a_command_that_goes_over_a_limit_fails_and_says_so(
    tmp_path: Path, limits: WorkerLimits, command: str, said: str
) -> None:
    over, fine = await run(tmp_path, command, "echo fine", limits=limits)
    assert not over.success
    assert over.error == f"[over the limit: {said}]"
    assert over.result["exit_code"] > 0
    assert over.to_output().is_error
    assert fine.result == {"output": "fine\n", "exit_code": 0}, "only what went over it fails"


async def test_a_command_that_fails_by_itself_is_not_blamed_on_a_limit(tmp_path: Path) -> None:
    [failed] = await run(tmp_path, "echo no >&2; exit 3", limits=WorkerLimits(memory_mb=500, cpu_s=5))
    assert (failed.success, failed.result["exit_code"]) == (True, 3)
    assert "over the limit" not in failed.result["output"]


async def test_output_is_kept_up_to_its_limit(tmp_path: Path) -> None:
    [long] = await run(tmp_path, "seq 100000", limits=WorkerLimits(output_max=500))
    assert len(long.result["output"]) < 800


async def test_a_token_of_the_worker_is_not_in_the_environment_of_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANEWAY_TOKEN", "lw_secret")
    monkeypatch.setenv("SOME_API_KEY", "secret too")
    [found] = await run(tmp_path, "env")
    assert "secret" not in found.result["output"]
    assert "PATH=" in found.result["output"]


def is_possible(workspace: Path) -> bool:
    """Whether this machine can make sandboxes; where it cannot, a worker must refuse to run without one."""
    try:
        Sandbox().check(str(workspace))
    except ConfigError:
        with pytest.raises(ConfigError, match="bubblewrap"):
            Worker(workspace=workspace, sandbox=True)
        return False
    return True


async def test_a_command_in_the_sandbox_can_change_its_workspace_and_nothing_else(tmp_path: Path) -> None:
    workspace, outside = tmp_path / "ws", tmp_path / "outside"
    workspace.mkdir()
    outside.mkdir()
    if not is_possible(workspace):
        return
    inside, out, tmp, seen = await run(
        workspace,
        "echo hello > a.txt && mkdir sub && cat a.txt",
        f"echo no > {outside}/a.txt || echo no > /etc/laneway-test || echo no > $HOME/laneway-test",
        "echo mine > /tmp/laneway-test && cat /tmp/laneway-test && echo $TMPDIR",
        "ls /tmp; ls -A /run",
        sandbox=True,
    )
    assert (inside.result["output"], (workspace / "a.txt").read_text()) == ("hello\n", "hello\n")
    assert out.result["exit_code"] != 0
    assert list(outside.iterdir()) == []
    assert not os.access("/etc/laneway-test", os.F_OK)
    assert tmp.result["output"] == "mine\n/tmp\n"
    assert not os.access("/tmp/laneway-test", os.F_OK)  # noqa: S108 - the point
    assert "laneway-test" not in seen.result["output"], "every command has a /tmp of its own"


async def test_a_command_in_the_sandbox_sees_no_network_no_processes_and_nothing_hidden(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("lw_secret")
    if not is_possible(tmp_path):
        return
    networks, processes, hidden, limited = await run(
        tmp_path,
        "tail -n +3 /proc/net/dev | cut -d: -f1",
        "ls /proc | grep -c '^[0-9]'",
        f"cat {secret}; echo end",
        "ulimit -n",
        sandbox=Sandbox(hidden=(str(secret),)),
        limits=WorkerLimits(open_files=50),
    )
    assert networks.result["output"].split() == ["lo"]
    assert int(processes.result["output"]) < 10
    assert "secret" not in hidden.result["output"]
    assert limited.result["output"] == "50\n", "limits hold in the sandbox, too"


async def test_a_command_in_the_sandbox_can_set_nothing_in_the_kernel(tmp_path: Path) -> None:
    if not is_possible(tmp_path):
        return
    search = "find /proc -path '/proc/[0-9]*' -prune -o -path /proc/pressure -prune -o -type f -writable -print"
    [found, said] = await run(tmp_path, f"{search} 2> /dev/null; true", "cat /proc/sys/kernel/ostype", sandbox=True)
    assert found.result["output"] == "", "who runs as root is root in the sandbox, too"
    assert said.result["output"] == "Linux\n"


async def test_a_hidden_file_of_the_workspace_cannot_be_moved_to_where_it_is_not_hidden(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("lw_secret")
    if not is_possible(tmp_path):
        return
    found = await run(
        tmp_path,
        "mv token other; ln token third; rm -f token; ls; cat other third",
        "cat token other third",
        sandbox=True,
        hidden=[secret],
    )
    assert "secret" not in str(found)
    assert secret.read_text() == "lw_secret"


async def test_the_network_can_be_let_into_the_sandbox(tmp_path: Path) -> None:
    if not is_possible(tmp_path):
        return
    [found] = await run(tmp_path, "readlink /proc/self/ns/net", sandbox=Sandbox(network=True))
    [cut] = await run(tmp_path, "readlink /proc/self/ns/net", sandbox=True)
    ours = os.readlink("/proc/self/ns/net")
    assert found.result["output"].strip() == ours
    assert cut.result["output"].strip() != ours


async def test_what_a_command_leaves_behind_in_the_sandbox_ends_with_it(tmp_path: Path) -> None:
    if not is_possible(tmp_path):
        return
    [left, after] = await run(
        tmp_path,
        "setsid sh -c 'sleep 1.5; echo late > late.txt' > /dev/null 2>&1 & echo begun",
        "sleep 2; ls",
        sandbox=True,
    )
    assert "begun" in left.result["output"]
    assert "late.txt" not in after.result["output"]


async def test_tools_for_files_stay_in_the_workspace_by_their_own_rules(tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (tmp_path / "secret").write_text("no")
    (workspace / "link").symlink_to(tmp_path / "secret")
    if not is_possible(workspace):
        return
    async with real_bench() as on:
        worker = Worker(on.line, workspace=workspace, sandbox=True)
        done = await outcomes(
            on,
            worker,
            [("read", {"path": "../secret"}), ("read", {"path": "link"}), ("write", {"path": "a", "content": ""})],
        )
    assert ["outside of the workspace" in (each.error or "") for each in done] == [True, True, False]
