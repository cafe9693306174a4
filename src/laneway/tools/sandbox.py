"""A sandbox for the processes of tools, made by bubblewrap (`bwrap`) from what the kernel offers to any user.

What a command sees in it: the machine's files, read-only; its workspace, which it may write; a `/tmp`, `/run` and
`/dev` of its own; no other processes; no network, unless that is wanted. It has no capabilities, and everything that it
started ends with it, a server that detached itself, too. Settings of the kernel in `/proc` it can only read: they
belong to root, and a worker of root has no other user to be in its sandbox.

What it does not confine: tools that run in the process of the worker itself. Those that work on files (`read`, `write`,
`edit` …) stay in the workspace by the rules of `laneway.tools.paths`; handlers and tools of one's own may do what
they like. And what the user may read who runs the worker, a command may read: `hidden` names files that it may not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from laneway.errors import ConfigError, text_of

__all__ = ("PRIVATE", "Sandbox")

PROGRAM: Final = "bwrap"
TRIAL_S: Final = 20.0
PRIVATE: Final = {"TMPDIR": "/tmp", "TMP": "/tmp", "TEMP": "/tmp"}  # noqa: S108 - the sandbox has one of its own
"""Variables that would name folders which a sandbox does not have."""
NAMES: Final = "/run/systemd/resolve"  # where /etc/resolv.conf often points to; without it there are no names
KERNEL: Final = tuple(f"/proc/{name}" for name in ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "mtrr"))
"""What root may write in `/proc` without any capability. Bubblewrap covers only a part of it."""
WITHOUT: Final = "or leave the sandbox out and run the worker in a container or as a user of its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """How commands are confined. `hidden` are files and folders that they must not read, such as that of a token."""

    network: bool = False
    hidden: tuple[str, ...] = ()
    program: str = PROGRAM

    def command(self, command: Sequence[str], *, workspace: str, folder: str) -> list[str]:
        """A command in the sandbox, begun in `folder`, which is in the workspace."""
        words = [shutil.which(self.program) or self.program, "--die-with-parent", "--cap-drop", "ALL"]
        words += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        if not self.network:
            words.append("--unshare-net")
        # Later mounts lie above earlier ones. Sockets below /run, of a container daemon say, need no right to write.
        words += ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/run"]  # noqa: S108
        for path in KERNEL:
            words += ["--ro-bind-try", path, path]
        if self.network:
            words += ["--ro-bind-try", NAMES, NAMES]
        root = os.path.realpath(workspace)
        words += ["--bind", root, root]
        for path in self.hidden:
            real = os.path.realpath(path)
            if os.path.isdir(real):
                words += ["--tmpfs", real]
            elif os.path.exists(real):
                words += ["--ro-bind", "/dev/null", real]
        return [*words, "--chdir", folder, "--", *command]

    def check(self, workspace: str) -> None:
        """Refuse to go on where there can be no sandbox: nothing is ever run without it instead."""
        if shutil.which(self.program) is None:
            raise ConfigError(
                f"the sandbox needs bubblewrap, and there is no {self.program} here",
                setting="sandbox",
                hint=f"install the package bubblewrap, {WITHOUT}",
            )
        if not os.path.isdir(workspace):
            raise ConfigError(
                f"a sandbox needs its workspace, and there is no folder {workspace}",
                setting="workspace",
                value=workspace,
                hint="make it",
            )
        if os.path.realpath(workspace) == "/":
            raise ConfigError(
                "a sandbox whose workspace is / would confine nothing",
                setting="workspace",
                value=workspace,
                hint="name the folder that commands may write",
            )
        for path in self.hidden:
            place = os.path.realpath(path)
            if os.path.dirname(place).startswith(os.path.join(os.path.realpath(workspace), "")):
                raise ConfigError(
                    f"{path} is to be hidden in a folder of the workspace, which commands could move away",
                    setting="workspace",
                    value=workspace,
                    hint="keep what is secret outside of the workspace",
                )
        trial = self.command(["/bin/sh", "-c", "exit 0"], workspace=workspace, folder=workspace)
        try:
            ended = subprocess.run(  # noqa: S603 - our own words
                trial, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _refused(text_of(error)) from error
        if ended.returncode:
            said = ended.stderr.decode(errors="replace").strip().splitlines()
            raise _refused(said[-1][:300] if said else f"it ended with {ended.returncode}")


def _refused(said: str) -> ConfigError:
    return ConfigError(
        f"bubblewrap can make no sandbox here: {said}",
        setting="sandbox",
        hint="let it make user namespaces (sysctl kernel.unprivileged_userns_clone=1 or "
        f"kernel.apparmor_restrict_unprivileged_userns=0; a container has to allow them, too), {WITHOUT}",
    )
