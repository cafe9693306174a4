"""The settings of a worker: what each may be, and what is said when it is something else."""

from __future__ import annotations

import difflib
import inspect
import logging
import os
import platform
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from laneway.checked import listed, one_of
from laneway.errors import ConfigError
from laneway.external import ExternalTask
from laneway.kernel.permissions import check_policy
from laneway.options import SESSION_LANES
from laneway.policies import PermissionPolicy
from laneway.ports import Tool, Transport
from laneway.records import check_whole
from laneway.runtime.task_hall import NAME_MAX, NAMES_MAX
from laneway.tools.registry import Toolbox
from laneway.tools.sandbox import Sandbox

__all__ = (
    "Handler",
    "WorkerLimits",
    "built_in_tools",
    "check_transport",
    "checked_commands",
    "checked_environment",
    "checked_handlers",
    "checked_hidden",
    "checked_lanes",
    "checked_mapping",
    "checked_name",
    "checked_names",
    "checked_policy",
    "checked_sandbox",
    "checked_toolbox",
    "checked_widths",
    "checked_workspace",
)

_log = logging.getLogger("laneway")

Handler = Callable[[ExternalTask], Any]
"""Does a task, sync or async; returns text, a dict with `output`, any JSON, or an `ExternalTaskResult`."""

CONCURRENCY_MAX = 10_000
MB = 1024 * 1024
LIMIT_MAX = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """What each process of a command may use, and how many characters of its output are kept; None: as tools have it.

    A command that meets one of them fails, and its last line says which. `memory_mb` is address space, of which some
    runtimes reserve far more than they use. Handlers and tools that run in the worker itself are not limited.
    """

    memory_mb: int | None = None
    cpu_s: int | None = None
    open_files: int | None = None
    file_mb: int | None = None
    output_max: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None:
                check_whole(value, setting=f"limits.{each.name}", least=1, most=LIMIT_MAX)

    def of_processes(self) -> dict[str, int]:
        """As `ShellLimits` has them."""
        found = {
            "memory_bytes": None if self.memory_mb is None else self.memory_mb * MB,
            "cpu_s": self.cpu_s,
            "open_files": self.open_files,
            "file_bytes": None if self.file_mb is None else self.file_mb * MB,
        }
        return {name: value for name, value in found.items() if value is not None}


def checked_name(name: str | None) -> str:
    """The name of a worker; one that says where it runs if none is given."""
    if name is None:
        return f"{platform.node() or 'worker'}-{os.getpid()}"[:NAME_MAX]
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX:
        raise ConfigError(f"a worker has a name of 1 to {NAME_MAX} characters, not {name!r:.80}", setting="name")
    return name


def check_transport(transport: Transport) -> None:
    """Refuse what no host can be reached by; else the log would say so again and again."""
    missing = [
        name
        for name in ("claim", "start", "heartbeat", "complete", "release")
        if not callable(getattr(transport, name, None))
    ]
    if missing:
        found = f"{transport!r:.80}"
        if inspect.iscoroutine(transport):
            transport.close()  # it is told here, and not again by Python
            found = "a coroutine that nobody has awaited"
        raise ConfigError(
            f"a worker needs a transport, not {found}: it has no {', '.join(missing)}",
            setting="transport",
            value=transport,
            hint="HttpTransport(url, token=…) to a gateway, LocalTransport(await session.desk()) in one process",
        )


def checked_handlers(handlers: Mapping[str, Handler] | None) -> dict[str, Handler]:
    """Functions by the names of tools."""
    hint = 'handlers={"bash": run}: the name of a tool, and what does its tasks'
    if handlers is not None and not isinstance(handlers, Mapping):
        said = f"handlers are functions by the name of a tool, not {handlers!r:.80}"
        raise ConfigError(said, setting="handlers", value=handlers, hint=hint)
    for name, handler in (handlers or {}).items():
        if not isinstance(name, str) or not name or not callable(handler):
            said = f"handlers are functions by the name of a tool, not {name!r}: {handler!r:.80}"
            raise ConfigError(said, setting="handlers", value=handlers, hint=hint)
    return dict(handlers or {})


def checked_toolbox(
    tools: Iterable[Tool | Callable[..., Any]] | None, handlers: object, sandbox: Sandbox | None
) -> Toolbox:
    """The tools that are given; the built-in ones if nothing is."""
    if tools is None and handlers is None:
        return Toolbox(built_in_tools(sandbox))
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable | None):
        hint = "handlers={…}" if isinstance(tools, Mapping) else "Worker(transport, [my_tool])"
        raise ConfigError(f"tools must be a list of tools, not {tools!r:.80}", setting="tools", value=tools, hint=hint)
    return Toolbox(tools or ())


def built_in_tools(sandbox: Sandbox | None) -> list[Tool]:
    """The built-in tools. `web_fetch` runs in the worker itself, so there is none with a sandbox without a network."""
    from laneway.tools import builtin_tools

    is_cut_off = sandbox is not None and not sandbox.network
    return [tool for tool in builtin_tools() if not (is_cut_off and tool.spec.name == "web_fetch")]


def checked_lanes(lanes: Sequence[str]) -> tuple[str, ...]:
    """Lanes of sessions."""
    if isinstance(lanes, str):
        said = f"lanes must be a list, not {lanes!r:.80}"
        raise ConfigError(said, setting="lanes", value=lanes, hint=f"lanes=[{lanes!r:.80}]")
    return tuple(one_of("lanes", lane, SESSION_LANES) for lane in listed("lanes", lanes))


def checked_widths(
    concurrency: int | Mapping[str, int], lanes: tuple[str, ...]
) -> tuple[tuple[tuple[str, ...], int], ...]:
    """How many tasks of which lanes are done at once: one width for all of them, or one for each."""
    if not isinstance(concurrency, Mapping):
        check_whole(concurrency, setting="concurrency", least=1, most=CONCURRENCY_MAX)
        return ((lanes, concurrency),)
    widths: dict[str, int] = {}
    for lane, width in concurrency.items():
        name = one_of("concurrency", lane, SESSION_LANES)
        widths[name] = check_whole(width, setting=f"concurrency.{name}", least=1, most=CONCURRENCY_MAX)
    odd = sorted(set(widths) ^ set(lanes)) if lanes or not widths else []
    if odd or not widths:
        said = f"lanes and concurrency do not name the same lanes: {', '.join(odd) or 'there is none'}"
        hint = "concurrency={'execute': 2, 'query': 8} needs no lanes"
        raise ConfigError(said, setting="concurrency", value=concurrency, hint=hint)
    return tuple(((lane,), width) for lane, width in widths.items())


def checked_names(setting: str, names: Sequence[str]) -> tuple[str, ...]:
    """A list of names, each once."""
    found = () if isinstance(names, str) else tuple(dict.fromkeys(listed(setting, names)))
    if isinstance(names, str) or not all(isinstance(each, str) and 0 < len(each) <= NAME_MAX for each in found):
        said = f"{setting} must be a list of names, not {names!r:.80}"
        raise ConfigError(said, setting=setting, value=names, hint=f"{setting}=['…']")
    if len(found) > NAMES_MAX:
        raise ConfigError(f"{setting} has {len(found):,} names, and there may be {NAMES_MAX:,}", setting=setting)
    return found


def checked_commands(commands: Sequence[str], able: Sequence[str]) -> tuple[str, ...]:
    """What it asks for. Without a name the host would give it everything, so there has to be one."""
    can = tuple(dict.fromkeys(able))
    if not can:
        hint = "give it handlers={…} or tools; without either it has the built-in tools"
        raise ConfigError("a worker without handlers and tools can do nothing", setting="handlers", hint=hint)
    if isinstance(commands, str):
        said = f"commands must be a list, not {commands!r:.80}"
        raise ConfigError(said, setting="commands", value=commands, hint=f"commands=[{commands!r:.80}]")
    wanted = listed("commands", commands)
    for name in wanted:
        if name not in can:
            close = difflib.get_close_matches(str(name), can, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it can do: {', '.join(can[:50])}"
            said = f"commands has {name!r:.80}, which this worker cannot do"
            raise ConfigError(said, setting="commands", value=name, hint=hint)
    if len(wanted or can) > NAMES_MAX:
        said = f"a worker can ask for {NAMES_MAX:,} commands, not {len(wanted or can):,}"
        raise ConfigError(
            said, setting="commands", hint="name some of them in commands=[…], and others in another worker"
        )
    return tuple(dict.fromkeys(wanted)) or can


def checked_workspace(workspace: str | os.PathLike[str], setting: str = "workspace") -> str:
    """A folder, as it really is called."""
    if not isinstance(workspace, str | os.PathLike):
        raise ConfigError(f"{setting} must be a path, not {workspace!r:.80}", setting=setting, value=workspace)
    place = os.path.expanduser(os.fspath(workspace))
    if not os.path.exists(place):  # a worker with handlers alone needs none
        _log.warning("the %s %s of a worker does not exist: tools that work there will say so", setting, workspace)
    elif not os.path.isdir(place):
        raise ConfigError(f"the {setting} {os.fspath(workspace)!r} is not a folder", setting=setting, value=workspace)
    return os.path.realpath(place)


def checked_mapping(
    mapping: Mapping[str, str | os.PathLike[str]] | None,
) -> tuple[dict[str, str], dict[str, str]]:
    """Folders here, by the names of workspaces and by folders of the host."""
    hint = 'mapping={"/srv/app": "/home/ci/app"}, or {"app": "/home/ci/app"} by the name of the workspace'
    if not isinstance(mapping, Mapping | None):
        said = f"mapping has folders here by folders of the host, not {mapping!r:.80}"
        raise ConfigError(said, setting="mapping", value=mapping, hint=hint)
    named: dict[str, str] = {}
    folders: dict[str, str] = {}
    for there, place in (mapping or {}).items():
        if not isinstance(there, str) or not there.strip():
            raise ConfigError(f"mapping has {there!r:.80}, which is no folder", setting="mapping", hint=hint)
        if there.startswith("/"):
            folders[posixpath.normpath(there)] = checked_workspace(place, "mapping")
        else:
            named[there] = checked_workspace(place, "mapping")
    return named, folders


def checked_policy(policy: PermissionPolicy | None) -> PermissionPolicy | None:
    """What the worker itself denies."""
    if policy is not None and not isinstance(policy, PermissionPolicy):
        said = f"permission_policy must be a PermissionPolicy, not {policy!r:.80}"
        raise ConfigError(said, setting="permission_policy", value=policy, hint="PermissionPolicy(deny=[…])")
    if policy is not None:
        check_policy(policy)
    return policy


def checked_environment(environment: Mapping[str, str] | None) -> dict[str, str]:
    """Variables of the processes of tools."""
    given = {} if environment is None else environment
    if not isinstance(given, Mapping) or not all(isinstance(each, str) for pair in given.items() for each in pair):
        said = "environment has text by the names of variables"
        raise ConfigError(said, setting="environment", hint='environment={"LANG": "C.UTF-8"}')
    return dict(given)


def checked_hidden(hidden: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Files that tools must not touch, as they really are called."""
    if isinstance(hidden, str | os.PathLike) or not all(isinstance(each, str | os.PathLike) for each in hidden):
        raise ConfigError(f"hidden must be a list of paths, not {hidden!r:.80}", setting="hidden", hint="hidden=['…']")
    return tuple(os.path.realpath(os.path.expanduser(os.fspath(each))) for each in hidden)


def checked_sandbox(
    sandbox: bool | Sandbox,  # noqa: FBT001 - yes, no, or how
    folders: Sequence[str],
    hidden: Sequence[str],
) -> Sandbox | None:
    """The sandbox, if there is to be one; refuses a machine that can make none."""
    if not isinstance(sandbox, bool | Sandbox):
        raise ConfigError(f"sandbox is True, False or a Sandbox, not {sandbox!r:.80}", setting="sandbox", value=sandbox)
    if sandbox is False:
        return None
    found = Sandbox() if sandbox is True else sandbox
    found = replace(found, hidden=tuple(dict.fromkeys((*found.hidden, *hidden))))
    for folder in folders:
        found.check(folder)
    return found
