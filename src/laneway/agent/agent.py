"""AsyncAgent: a model, its tools and its settings; its sessions are the conversations with it."""

from __future__ import annotations

import asyncio
import difflib
import importlib.util
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from laneway.agent.session import AsyncSession
from laneway.agent.settings import settled
from laneway.agent.subagents import is_child_id
from laneway.agent.tool_sources import ToolSources, check_servers
from laneway.dialogue import ToolContext, ToolOutput, ToolSpec
from laneway.errors import ClosedError, ConfigError, UsageError
from laneway.kernel.permissions import check_policy
from laneway.options import PermissionPolicy, SessionOptions, SessionQueueConfig, merge
from laneway.records import check_whole
from laneway.runtime.envelope import check_key
from laneway.system import HostEnv

if TYPE_CHECKING:
    from laneway.agent.host import Host
    from laneway.dialogue import Intent
    from laneway.ports import Model, Store, Tool
    from laneway.tools import Toolbox
    from laneway.tools.mcp_tools import McpStatus

__all__ = ("AsyncAgent",)

_log = logging.getLogger("laneway")


class AsyncAgent:
    """An agent: what answers, what it may do, and how. Sessions of it are made with `session`.

    `model` is a `Model`, or a name such as `scripted` or `openai/gpt-5`. `tools` are functions with `@tool` (or plain
    ones) that it has beside the built-in ones; `builtin_tools=False` leaves those out. Every field of `SessionOptions`
    may be given: it holds for the sessions that say nothing else.
    """

    def __init__(
        self,
        model: Model | str | None = None,
        *,
        tools: Iterable[Any] = (),
        system: str = "",
        queue_config: SessionQueueConfig | None = None,
        permission_policy: PermissionPolicy | None = None,
        session_store: Any = None,
        host: HostEnv | None = None,
        builtin_tools: bool | Iterable[str] = True,
        providers: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if host is not None and not isinstance(host, HostEnv):
            raise ConfigError(f"host must be a HostEnv, not {host!r}", setting="host", value=host)
        if isinstance(tools, str) or not isinstance(tools, Iterable):
            raise ConfigError(f"tools must be a list of tools, not {tools!r}", setting="tools", value=tools)
        self._env = host or HostEnv()
        self._tools = tuple(tools.values() if isinstance(tools, Mapping) else tools)
        self._builtin = builtin_tools if isinstance(builtin_tools, bool) else tuple(builtin_tools)
        self._providers = dict(providers or {})
        self.options = SessionOptions(
            model=model,
            system=system or None,
            queue_config=queue_config,
            permission_policy=permission_policy,
            session_store=session_store,
            **options,
        )
        self.home: Host | None = None  # where its sessions live, when a gateway has made that
        self.sources = ToolSources()
        self._sessions: list[AsyncSession] = []
        self._models: dict[str, Model] = {}  # by their names
        self._given: Toolbox | None = None
        self._built: list[Tool] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._scratch = ""
        self._closed = False

    @classmethod
    def create(cls, source: str | os.PathLike[str], **overrides: Any) -> Self:
        """An agent from a file (HCL, YAML or TOML), or from the text of one."""
        from laneway.agent.files import arguments_of
        from laneway.config import load_agent  # files are read by those who have one

        return cls(**{**arguments_of(load_agent(source, environ=os.environ), os.environ), **overrides})

    # ---- sessions ----

    def session(
        self,
        workspace: str | os.PathLike[str] = ".",
        options: SessionOptions | None = None,
        *,
        start: bool = True,
        **overrides: Any,
    ) -> AsyncSession:
        """A conversation whose tools work in that folder. Options may be given one by one, or as `SessionOptions`.

        On a running loop a session with a `session_id` goes on by itself with what an earlier process has left. With
        `start=False` it rests until a method has something to do there: to read its past and to replay it is not that.
        """
        if self._closed:
            raise ClosedError(opened=True, what="agent")
        if options is not None and not isinstance(options, SessionOptions):
            raise ConfigError(f"options must be SessionOptions, not {options!r}", setting="options", value=options)
        over = merge(options or SessionOptions(), SessionOptions(**overrides))
        found, settings = settled(self.options, over)
        if settings.permission_policy is not None:
            check_policy(settings.permission_policy)
        check_servers(settings.mcp_servers)
        if not isinstance(workspace, str | os.PathLike):
            raise ConfigError(f"workspace must be a path, not {workspace!r}", setting="workspace", value=workspace)
        if found.session_id is not None:
            check_key(found.session_id, "session id")
            if is_child_id(found.session_id):
                raise ConfigError(
                    f"{found.session_id!r} is the session of a sub-agent, which only its parent opens",
                    setting="session_id",
                    value=found.session_id,
                    hint=f"open {found.session_id.rpartition('~')[0]!r}: its sub-agents go on with it",
                )
        folder = os.fspath(workspace)
        place = os.path.expanduser(folder)
        if not os.path.exists(place):  # an agent without file tools needs none, and a tool may make it
            _log.warning("the workspace %s does not exist: tools that work there will say so", folder)
        elif not os.path.isdir(place):
            raise ConfigError(f"the workspace {folder!r} is not a folder", setting="workspace", value=folder)
        session = AsyncSession(
            self,
            folder,
            found,
            settings,
            model=self._model(found.model),
            toolbox=self._toolbox(found, settings.tool_effects),
            store=_store_of(found.session_store),
            env=found.host or self._env,
        )
        self._sessions.append(session)
        if start and _has_loop():
            session.start()
        return session

    def resume_session(
        self,
        session_id: str,
        options: SessionOptions | None = None,
        *,
        workspace: str = ".",
        start: bool = True,
        **overrides: Any,
    ) -> AsyncSession:
        """A session that the store knows, with its conversation.

        Raises `UsageError` without a `session_store`. Of a session that the store does not know, whatever is done with
        it first raises `UnknownSessionError`, and nothing is begun there.
        """
        over = merge(options or SessionOptions(), SessionOptions(**{**overrides, "session_id": session_id}))
        if over.session_store is None and self.options.session_store is None:
            raise UsageError(
                f"resume_session({session_id!r}) requires a session_store",
                hint="give the agent one: session_store=FileSessionStore('sessions'); agent.session() begins a new one",
            )
        session = self.session(workspace, over, start=False)
        session.is_resumed = True
        if start and _has_loop():
            session.start()
        return session

    async def stored_sessions(self, *, tenant: str = "default", after: str = "", limit: int = 200) -> list[str]:
        """The ids of the sessions in the `session_store` of this agent, in alphabetical order after `after`.

        Runs that a dead process has left go on when their session is made: make one for each of these. Sub-agents are
        not among them: the session that they work for goes on with them.
        """
        store = _store_of(self.options.session_store)
        if store is None:
            raise UsageError("this agent has no session_store", hint="session_store=FileSessionStore('sessions')")
        await store.open()
        try:
            found: list[str] = []
            while page := await store.history.sessions(tenant, "default", after=after, limit=limit):
                found += [name for name in page if not is_child_id(name)]
                after = page[-1]
                if len(found) >= limit or len(page) < limit:
                    break
            return found[:limit]
        finally:
            await store.close()

    def sessions(self) -> list[AsyncSession]:
        """The open sessions of this agent."""
        return list(self._sessions)

    def _model(self, model: Any) -> Model:
        from laneway.models import model_from

        if model is None:
            raise ConfigError(
                "no model is set", setting="model", hint='model="scripted" needs none; or "openai/…", "anthropic/…" …'
            )
        if not isinstance(model, str):
            tokens = getattr(model, "context_tokens", None)
            if tokens is not None:
                check_whole(tokens, setting="context_tokens of the model", least=1, most=1 << 40)
            return model_from(model, self._providers)
        if model not in self._models:  # made here, once, and let go of here
            self._models[model] = model_from(model, self._providers)
        return self._models[model]

    def _toolbox(self, options: SessionOptions, effects: Mapping[str, Any]) -> Mapping[str, Tool]:
        from laneway.tools import Toolbox

        if importlib.util.find_spec("pydantic") is None:
            hint = "install laneway with the extra `agent`"
            raise ConfigError("an agent needs the extra `agent`: pydantic is not installed", setting="tools", hint=hint)
        if options.tools is not None:
            given = Toolbox(tuple(options.tools))
        elif self._given is None:  # made once: to read the parameters of a function takes a while
            given = self._given = Toolbox(self._tools)
        else:
            given = self._given
        if self._built is None:
            self._built = self._builtin_tools()
        builtin = [tool for tool in self._built if tool.spec.name not in given]
        box = Toolbox([*builtin, *given.values()])
        return {name: _changed(tool, effects.get(name)) for name, tool in box.items()}

    def _builtin_tools(self) -> list[Tool]:
        wanted = self._builtin
        if not wanted:
            return []
        from laneway.tools import builtin_tools

        everything = {tool.spec.name: tool for tool in builtin_tools()}
        if isinstance(wanted, bool):
            return list(everything.values())
        for name in wanted:
            if name not in everything:
                close = difflib.get_close_matches(str(name), everything, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(everything)}"
                raise ConfigError(f"there is no built-in tool {name!r}", setting="tools", value=name, hint=hint)
        return [everything[name] for name in dict.fromkeys(wanted)]

    # ---- MCP servers ----

    def mcp_status(self) -> dict[str, McpStatus]:
        """How each MCP server is that a session has wanted: whether it runs, its tools, and why it does not run."""
        return self.sources.status()

    async def refresh_mcp_tools(self) -> dict[str, McpStatus]:
        """Ask every MCP server again for its tools, and start those that do not run. Runs that begin now have them."""
        return await self.sources.refresh()

    # ---- closing ----

    def scratch(self) -> str:
        """A folder that lives as long as the agent, made by whoever first puts something there."""
        if not self._scratch:
            self._scratch = os.path.join(tempfile.gettempdir(), f"laneway-{secrets.token_hex(8)}")
        return self._scratch

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Own a task until it has ended."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def forget(self, session: AsyncSession) -> None:
        """A session is closed."""
        if session in self._sessions:
            self._sessions.remove(session)

    async def close(self) -> None:
        """Close every session, and end the MCP servers."""
        self._closed = True
        self.sources.give_up()
        problems: list[Exception] = []
        for session in list(self._sessions):
            try:
                await session.shut()
            except Exception as error:  # noqa: BLE001 - the others are closed all the same
                problems.append(error)
        for task in list(self._tasks):
            task.cancel()
        await self.sources.close()
        for model in self._models.values():
            await close_model(model)
        self._models.clear()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
        if problems:
            raise problems[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def close_model(model: Model) -> None:
    """Let go of the connections of a model, if it has any."""
    close = getattr(model, "aclose", None)
    if close is not None:
        await close()


class _Changed:
    """A tool of which the configuration says something else than the tool itself."""

    def __init__(self, tool: Tool, spec: ToolSpec) -> None:
        self._tool = tool
        self.spec = spec
        self.check = tool.check

    @property
    def can_reconcile(self) -> bool:
        return self._tool.can_reconcile

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        return await self._tool.run(arguments, context)

    async def reconcile(self, intent: Intent, context: ToolContext) -> ToolOutput | None:
        return await self._tool.reconcile(intent, context)


def _changed(tool: Tool, effect: Any) -> Tool:
    return tool if effect is None else _Changed(tool, replace(tool.spec, effect=effect))


def _store_of(value: Any) -> Store | None:
    if value is None:
        return None
    if isinstance(value, os.PathLike) or (isinstance(value, str) and value.strip() and ":" not in value):
        from laneway.stores.sessions import FileSessionStore

        return FileSessionStore(value)
    from laneway.stores import open_store

    return open_store(value)


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
