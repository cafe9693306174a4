"""The sandbox: what it lets a command see, and that there is no way around it where it cannot be made."""

from __future__ import annotations

import stat
from itertools import pairwise
from pathlib import Path

import pytest

from laneway.errors import ConfigError
from laneway.tools.sandbox import Sandbox
from laneway.tools.shell import ShellLimits
from laneway.worker import Worker, WorkerLimits


def words(sandbox: Sandbox, workspace: Path) -> list[str]:
    return sandbox.command(["sh", "-c", "true"], workspace=str(workspace), folder=str(workspace / "sub"))


def test_everything_is_read_only_but_the_workspace_and_what_is_private(tmp_path: Path) -> None:
    found = words(Sandbox(), tmp_path)
    assert found[0].endswith("bwrap")
    assert found[-4:] == ["--", "sh", "-c", "true"]
    mounts = [(one, two) for one, two in pairwise(found)]
    assert ("--ro-bind", "/") in mounts
    assert ("--tmpfs", "/tmp") in mounts  # noqa: S108 - the sandbox's own
    assert ("--tmpfs", "/run") in mounts
    assert found.count("--bind") == 1
    at = found.index("--bind")
    assert found[at + 1 : at + 3] == [str(tmp_path)] * 2
    assert at > found.index("--tmpfs"), "a workspace in /tmp lies above the private one"
    assert ("--chdir", str(tmp_path / "sub")) in mounts
    assert ("--cap-drop", "ALL") in mounts
    assert {"--die-with-parent", "--unshare-pid", "--unshare-ipc"} <= set(found)


@pytest.mark.parametrize(("network", "is_cut_off"), [(False, True), (True, False)])
def test_there_is_no_network_unless_it_is_wanted(tmp_path: Path, network: bool, is_cut_off: bool) -> None:
    assert ("--unshare-net" in words(Sandbox(network=network), tmp_path)) is is_cut_off


def test_hidden_files_are_empty_and_hidden_folders_too(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("lw_x")
    (tmp_path / "keys").mkdir()
    hidden = tuple(str(tmp_path / name) for name in ("token", "keys", "nothing"))
    found = words(Sandbox(hidden=hidden), tmp_path)
    assert found[found.index("/dev/null") + 1] == str(tmp_path / "token")
    assert str(tmp_path / "keys") in found
    assert str(tmp_path / "nothing") not in found


def fake(folder: Path, script: str) -> Sandbox:
    """A bwrap that does as it is told."""
    program = folder / "bwrap"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return Sandbox(program=str(program))


def test_a_machine_without_bubblewrap_is_refused_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"there is no /no/such/bwrap here \(install the package bubblewrap, or leave"
    ):
        Worker(workspace=tmp_path, sandbox=Sandbox(program="/no/such/bwrap"))


def test_a_machine_that_allows_no_namespaces_is_refused_with_what_it_said(tmp_path: Path) -> None:
    sandbox = fake(tmp_path, "echo 'bwrap: No permissions to create new namespace' >&2; exit 1")
    with pytest.raises(ConfigError, match=r"No permissions to create new namespace \(let it make user namespaces"):
        Worker(workspace=tmp_path, sandbox=sandbox)


def test_a_bubblewrap_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    sandbox = fake(tmp_path, "")
    Path(sandbox.program).write_bytes(b"\x7fELF nonsense")
    with pytest.raises(ConfigError, match="can make no sandbox here"):
        Worker(workspace=tmp_path, sandbox=sandbox)


def test_a_sandbox_has_a_workspace_that_is_there_and_is_not_everything(tmp_path: Path) -> None:
    sandbox = fake(tmp_path, "exit 0")
    with pytest.raises(ConfigError, match="there is no folder"):
        Worker(workspace=tmp_path / "nothing", sandbox=sandbox)
    with pytest.raises(ConfigError, match="would confine nothing"):
        Worker(workspace="/", sandbox=sandbox)


def test_every_folder_of_a_mapping_is_tried(tmp_path: Path) -> None:
    sandbox = fake(tmp_path, f'case "$*" in *{tmp_path}/b*) exit 3;; esac')
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert Worker(mapping={"/x": tmp_path / "a"}, sandbox=sandbox).commands
    with pytest.raises(ConfigError, match="it ended with 3"):
        Worker(mapping={"/x": tmp_path / "a", "/y": tmp_path / "b"}, sandbox=sandbox)


def test_what_fetches_pages_in_the_worker_itself_is_not_offered_without_a_network(tmp_path: Path) -> None:
    sandbox = fake(tmp_path, "exit 0")
    assert "web_fetch" not in Worker(workspace=tmp_path, sandbox=sandbox).commands
    wide = Sandbox(program=sandbox.program, network=True)
    assert "web_fetch" in Worker(workspace=tmp_path, sandbox=wide).commands


def test_what_commands_could_move_away_cannot_be_hidden(tmp_path: Path) -> None:
    program = fake(tmp_path, "exit 0").program
    secret = tmp_path / "ws" / "keys" / "token"
    secret.parent.mkdir(parents=True)
    secret.write_text("lw_x")
    with pytest.raises(ConfigError, match=r"keys/token is to be hidden in a folder of the workspace.*outside"):
        Worker(workspace=tmp_path / "ws", sandbox=Sandbox(program=program), hidden=[secret])
    assert Worker(workspace=secret.parent, sandbox=Sandbox(program=program), hidden=[secret]).commands
    (tmp_path / "other").mkdir()
    assert Worker(workspace=tmp_path / "other", sandbox=Sandbox(program=program), hidden=[secret]).commands


def test_what_is_set_in_the_kernel_can_only_be_read(tmp_path: Path) -> None:
    found = words(Sandbox(), tmp_path)
    for path in ("/proc/sys", "/proc/sysrq-trigger"):
        at = found.index(path)
        assert found[at - 1 : at + 2] == ["--ro-bind-try", path, path]
        assert at > found.index("--proc")


# ---- limits ----


def test_limits_of_a_worker_narrow_those_of_the_tools() -> None:
    given = WorkerLimits(memory_mb=1, cpu_s=10_000, open_files=7, file_mb=2).of_processes()
    assert given == {"memory_bytes": 1 << 20, "cpu_s": 10_000, "open_files": 7, "file_bytes": 2 << 20}
    found = ShellLimits(cpu_s=5).narrowed(given)
    assert found == ShellLimits(cpu_s=5, memory_bytes=1 << 20, file_bytes=2 << 20, open_files=7)
    assert ShellLimits().narrowed(WorkerLimits().of_processes()) == ShellLimits()


@pytest.mark.parametrize("name", ["memory_mb", "cpu_s", "open_files", "file_mb", "output_max"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "1", True])
def test_a_limit_is_a_whole_number_from_one_on(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"limits.{name}"):
        WorkerLimits(**{name: value})  # type: ignore[arg-type] # that is the point
