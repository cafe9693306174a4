"""`bash`: a command in the workspace. `wait`: nothing, for a while.

A command is not confined to the workspace: it may do what the user may do who runs Laneway. What it gets is its own
session without a terminal or input, an environment without secrets, limits on its resources, a time limit, and an end:
when the call ends in whatever way, what the command left running is ended with it. The one exception: a process that
detached itself (`setsid`) and lets go of the output stays when the command ends well, so that a server can be started.

A command that fails or takes too long is an answer, which says what was seen so far; so is one that went over a limit.

A host can narrow the limits of every call (`extra["limits"]`), and confine it (`extra["sandbox"]`).
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, BinaryIO, Final

from laneway.dialogue import ToolContext, ToolOutput
from laneway.records import Effect
from laneway.tools.outputs import ARTIFACT_MAX, Capped, Spool, ToolRefusedError, clean, in_thread
from laneway.tools.paths import answering_errors, locate, open_folder, shown
from laneway.tools.processes import Processes, start
from laneway.tools.registry import FunctionTool, tool
from laneway.tools.sandbox import PRIVATE, Sandbox

if TYPE_CHECKING:
    from laneway.ports import Tool

__all__ = ("OVER", "ShellLimits", "ShellSettings", "bash_tool", "shell_tools", "tool_environment", "wait")

ENVIRONMENT: Final = (
    "COLORTERM", "HOME", "LANG", "LANGUAGE", "LC_*", "LOGNAME", "PATH", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE",
    "TEMP", "TERM", "TMP", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV",
)  # fmt: skip
"""What a command sees of the environment. No proxies: their addresses often carry a password."""

_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE|PRIVATE|DSN", re.IGNORECASE)
READ_SIZE: Final = 65_536
FLUSH_SIZE: Final = 1_048_576
COMMAND_MAX: Final = 100_000  # the kernel takes 131,072 bytes in one argument
NOTES_MAX: Final = 200
DRAIN_S: Final = 0.5
STEP_S: Final = 0.01
WAIT_MAX_S: Final = 3600.0
CPU_MORE_S: Final = 5  # from the signal that says which limit it was to the one that only ends
TAIL: Final = 4_000
OVER: Final = "[over the limit: "
"""How the last line of a command's output begins that was ended by a limit, or failed at one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellLimits:
    """What one process of a command may use; None is no limit. A user's processes count all of them together.

    There is no limit of memory by default: it would count address space, of which some runtimes reserve far more than
    they ever use.
    """

    cpu_s: int | None = 3600
    memory_bytes: int | None = None
    file_bytes: int | None = 4 * 1024**3
    processes: int | None = 4096
    open_files: int | None = None

    def narrowed(self, given: Mapping[str, int]) -> ShellLimits:
        """These, and where others are given by the names of fields, the lower ones."""
        found = {name: (value, getattr(self, name)) for name, value in given.items()}
        return replace(
            self, **{name: value if own is None else min(value, own) for name, (value, own) in found.items()}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellSettings:
    """How commands are run.

    `allow` names further variables of the environment: exact names, or patterns such as `NPM_*`. A pattern never lets
    through what looks like a secret; an exact name does, because somebody wrote it down. `LANEWAY_…` is never let
    through. `environment` is set on top.
    """

    timeout_ms: int = 120_000
    timeout_max_ms: int = 3_600_000
    grace_ms: int = 2_000
    artifact_max: int = ARTIFACT_MAX
    limits: ShellLimits = field(default_factory=ShellLimits)
    allow: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    program: str = ""  # the shell; by default bash, where there is one, else sh


def tool_environment(
    settings: ShellSettings, source: Mapping[str, str] | None = None, *, session: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The environment of a command: what is harmless and what was allowed, never what Laneway itself was given.

    On top of it comes what the settings say, and on top of that what the session says.
    """
    source = os.environ if source is None else source
    kept = {name: value for name, value in source.items() if _is_allowed(name, settings.allow)}
    said = {**settings.environment, **(session or {})}
    kept.update({name: value for name, value in said.items() if not _is_own(name)})
    return kept


def _is_own(name: str) -> bool:
    return name.upper().startswith("LANEWAY_")


def _is_allowed(name: str, allow: tuple[str, ...]) -> bool:
    if _is_own(name):
        return False
    if name in allow:
        return True
    return not _SECRET.search(name) and any(fnmatchcase(name, pattern) for pattern in (*ENVIRONMENT, *allow))


def _command(command: str, settings: ShellSettings) -> list[str]:
    """The shell with the command; a first one sets the limits and becomes it, so no code of ours runs after a fork."""
    shell = settings.program or shutil.which("bash") or "/bin/sh"
    limits = settings.limits
    values = {
        "c": 0,  # no dumps of memory
        "St": limits.cpu_s,
        "Ht": None if limits.cpu_s is None else limits.cpu_s + CPU_MORE_S,
        "v": None if limits.memory_bytes is None else max(limits.memory_bytes // 1024, 1),
        "f": None if limits.file_bytes is None else max(limits.file_bytes // 1024, 1),
        "u": limits.processes,
        "n": limits.open_files,
    }
    # A limit that is lower already cannot be raised, which is just as well.
    setting = "".join(f"ulimit -{flag} {value} 2>/dev/null; " for flag, value in values.items() if value is not None)
    return [shell, "-c", f'{setting}exec "$0" -c "$1"', shell, command]


def bash_tool(settings: ShellSettings | None = None) -> FunctionTool[..., object]:
    """The tool `bash` with these settings."""
    used = settings or ShellSettings()

    async def bash(
        context: ToolContext, command: str, timeout_ms: int | None = None, working_dir: str = "."
    ) -> ToolOutput:
        """Run a shell command in the workspace and answer with its output and exit code.

        What it leaves running in the background ends with it. Its input is closed.

        Args:
            command: The command, as in a shell.
            timeout_ms: How long it may take, in milliseconds.
            working_dir: The folder to run it in, from the workspace on.
        """
        _check(command, timeout_ms, used)
        room = max(context.output_max - NOTES_MAX, 1)
        spool = Spool(replace(context, output_max=room), artifact_max=used.artifact_max)
        try:
            limits = used.limits.narrowed(context.extra.get("limits") or {})
            call = _Call(replace(used, limits=limits), spool, timeout_ms or used.timeout_ms)
            return await _run(context, command, working_dir, call)
        finally:
            spool.discard()  # nothing to discard when it went well

    return FunctionTool(bash, effect=Effect.WRITE)


def _check(command: str, timeout_ms: int | None, settings: ShellSettings) -> None:
    if not command.strip():
        raise ToolRefusedError("the command is empty")
    if "\x00" in command:
        raise ToolRefusedError("a command cannot contain a NUL character")
    try:
        size = len(command.encode())
    except UnicodeEncodeError:
        raise ToolRefusedError("the command is not valid Unicode: a surrogate stands alone") from None
    if size > COMMAND_MAX:
        raise ToolRefusedError(
            f"the command has {size} bytes, at most {COMMAND_MAX} are possible; write it to a file and run that"
        )
    if timeout_ms is not None and not 0 < timeout_ms <= settings.timeout_max_ms:
        raise ToolRefusedError(f"timeout_ms is {timeout_ms}; it must be from 1 to {settings.timeout_max_ms}")


@dataclass(frozen=True, slots=True)
class _Call:
    """One call: what it is run with, and where its output goes."""

    settings: ShellSettings
    spool: Spool
    timeout_ms: int


async def _run(context: ToolContext, command: str, working_dir: str, call: _Call) -> ToolOutput:
    environment = tool_environment(call.settings, session=context.extra.get("environment"))
    folder = _folder(context, working_dir)
    words = _command(command, call.settings)
    sandbox: Sandbox | None = context.extra.get("sandbox")
    if sandbox is not None:
        words = sandbox.command(words, workspace=context.workspace, folder=folder)
        environment |= PRIVATE
    processes, output = _start(words, folder, environment)
    reading = asyncio.get_running_loop().create_task(_read(context, output, call.spool), name="tool-output")
    is_late = is_left = True
    try:
        is_late = await _wait(processes, reading, call.timeout_ms)
        is_left = is_late or not reading.done() or processes.has_others()
    finally:
        try:
            if is_left:
                await processes.end(grace_s=call.settings.grace_ms / 1000)
                await asyncio.wait([reading], timeout=DRAIN_S)
        finally:
            reading.cancel()  # somebody who escaped still holds the output; or we are being cancelled
    if reading.done() and not reading.cancelled():
        reading.result()
    capped = await in_thread(context, call.spool.finish)
    notes: list[str] = []
    if is_late:
        notes.append(f"[it ran longer than {call.timeout_ms} ms and was ended]")
    elif is_left:
        notes.append("[what it left running in the background was ended with it; `setsid` detaches a server]")
    if not is_late and (over := _over(processes.exit_code, capped.text[-TAIL:], call.settings.limits)):
        notes.append(f"{OVER}{over}]")
    return _answer(capped, None if is_late else processes.exit_code, notes)


def _folder(context: ToolContext, path: str) -> str:
    if not os.path.isdir(context.workspace):
        raise ToolRefusedError(f"the workspace {shown(context.workspace)} is not there")
    place = locate(context.workspace, path)
    with answering_errors(shown(path)), open_folder(place):
        return place.path


def _start(command: list[str], folder: str, environment: Mapping[str, str]) -> tuple[Processes, BinaryIO]:
    readable, writable = os.pipe()
    output = os.fdopen(readable, "rb", 0)
    try:
        with answering_errors("the shell"):
            return start(command, folder=folder, environment=environment, output=writable), output
    except ValueError as error:  # a name with an equals sign, a NUL: the command itself was checked before
        output.close()
        raise ToolRefusedError(f"the environment of the command cannot be made: {error}") from None
    except BaseException:
        output.close()
        raise
    finally:
        os.close(writable)


async def _wait(processes: Processes, reading: asyncio.Task[None], timeout_ms: int) -> bool:
    """Until the command has ended and its output is read; returns whether it took too long."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await processes.wait()
    except TimeoutError:
        return True
    # What it left in the background may hold the output for ever; it gets a moment to say its last words, and then one
    # to be gone: a process lets go of its output a little before it ends.
    await asyncio.wait([reading], timeout=DRAIN_S)
    for _ in range(int(DRAIN_S / STEP_S)):
        if not reading.done() or not processes.has_others():
            break
        await asyncio.sleep(STEP_S)
    return False


async def _read(context: ToolContext, output: BinaryIO, spool: Spool) -> None:
    """Read to the end; the command waits while the disk does."""
    reader = asyncio.StreamReader(limit=READ_SIZE)
    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), output)
    except BaseException:
        output.close()
        raise
    try:
        room = context.output_max
        while piece := await reader.read(READ_SIZE):
            text = spool.add(piece)
            if room > 0 and text:
                context.report(clean(text[:room]))
                room -= len(text)
                if room <= 0:
                    context.report("\n[… more output is not shown while it runs …]\n")
            if spool.is_long and spool.pending_size >= FLUSH_SIZE:
                await in_thread(context, spool.flush)
    finally:
        transport.close()


_MEMORY: Final = re.compile(r"MemoryError|cannot allocate|std::bad_alloc|out of memory|memory exhausted", re.IGNORECASE)
_FILES: Final = re.compile(r"too many open files|EMFILE", re.IGNORECASE)
_SIZE: Final = re.compile(r"file too large|file size limit exceeded", re.IGNORECASE)


def _over(code: int | None, tail: str, limits: ShellLimits) -> str:
    """Which limit a command that failed has met, as far as its end and its last words tell; empty: none.

    The kernel ends a process that used its time or wrote too much. One that gets no memory or no file is told so, and
    says it in its own words.
    """
    if not code:
        return ""
    if limits.cpu_s is not None and code == 128 + signal.SIGXCPU:
        return f"it used more than {limits.cpu_s} s of processor time"
    is_big = code == 128 + signal.SIGXFSZ or _SIZE.search(tail)
    if limits.file_bytes is not None and is_big:
        return f"a file may have {limits.file_bytes:,} bytes"
    if limits.memory_bytes is not None and _MEMORY.search(tail):
        return f"a process may have {limits.memory_bytes:,} bytes of memory"
    if limits.open_files is not None and _FILES.search(tail):
        return f"a process may have {limits.open_files} files open"
    return ""


def _answer(capped: Capped, code: int | None, notes: list[str]) -> ToolOutput:
    if code:
        notes = [f"[exit code {code}]", *notes]
    text = capped.text
    end = "\n" if text and not text.endswith("\n") and notes else ""
    return ToolOutput(text=text + end + "\n".join(notes), is_error=code != 0, exit_code=code, artifact=capped.artifact)


@tool(lane="query", effect=Effect.READ)
async def wait(seconds: float) -> str:
    """Wait, and do nothing else.

    Args:
        seconds: How long.
    """
    if not 0 <= seconds <= WAIT_MAX_S:
        raise ToolRefusedError(f"seconds is {seconds:g}; it must be from 0 to {WAIT_MAX_S:g}")
    await asyncio.sleep(seconds)
    return f"waited {seconds:g} s"


def shell_tools(settings: ShellSettings | None = None) -> list[Tool]:
    """Both of them."""
    return [bash_tool(settings), wait]
