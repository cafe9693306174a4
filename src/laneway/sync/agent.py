"""Agent: a model, its tools and its settings, for code without an event loop."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from laneway.agent import AsyncAgent, AsyncSession
from laneway.sync.background import Portal
from laneway.sync.session import Session
from laneway.sync.twins import Twin

if TYPE_CHECKING:
    from laneway.options import PermissionPolicy, SessionOptions, SessionQueueConfig
    from laneway.ports import Model
    from laneway.system import HostEnv
    from laneway.tools.mcp_tools import McpStatus

__all__ = ("Agent",)


class Agent(Twin[AsyncAgent]):
    """An agent: what answers, what it may do, and how. Sessions of it are made with `session`.

    `model` is a `Model`, or a name such as `scripted` or `openai/gpt-5`. `tools` are functions with `@tool` (or plain
    ones) that it has beside the built-in ones; `builtin_tools=False` leaves those out. Every field of `SessionOptions`
    may be given: it holds for the sessions that say nothing else.

    All agents of a process share one event loop on a thread of its own, which runs from the first session to the last
    `close`. An agent that nobody closes lives until the interpreter exits. Sync tools run on threads and may use
    sessions; async tools run on that loop and may not, for it would wait for itself.
    """

    def __init__(  # noqa: PLR0913 - the surface is a contract: keyword options, as its asynchronous twin has them
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
        twin = AsyncAgent(
            model,
            tools=tools,
            system=system,
            queue_config=queue_config,
            permission_policy=permission_policy,
            session_store=session_store,
            host=host,
            builtin_tools=builtin_tools,
            providers=providers,
            **options,
        )
        super().__init__(Portal(twin.close), twin)

    @classmethod
    def create(cls, source: str | os.PathLike[str], **overrides: Any) -> Self:
        """An agent from a file (HCL, YAML or TOML), or from the text of one."""
        twin = AsyncAgent.create(source, **overrides)
        agent = cls.__new__(cls)
        Twin.__init__(agent, Portal(twin.close), twin)
        return agent

    @property
    def options(self) -> SessionOptions:
        """What holds for the sessions that say nothing else."""
        return self._twin.options

    # ---- sessions ----

    def session(
        self,
        workspace: str | os.PathLike[str] = ".",
        options: SessionOptions | None = None,
        *,
        start: bool = True,
        **overrides: Any,
    ) -> Session:
        """A conversation whose tools work in that folder. Options may be given one by one, or as `SessionOptions`.

        It is open when this returns. With a `session_id` it goes on by itself with what an earlier process has left.
        With `start=False` it rests until a method has something to do there: to read its past and to replay it is not
        that.
        """
        make = functools.partial(self._twin.session, workspace, options, start=start, **overrides)
        return Session(self._portal, self._portal.wait("Agent.session()", _opened if start else _made, make))

    def resume_session(
        self,
        session_id: str,
        options: SessionOptions | None = None,
        *,
        workspace: str = ".",
        start: bool = True,
        **overrides: Any,
    ) -> Session:
        """A session that the store knows, with its conversation.

        Raises `UsageError` without a `session_store`, and `UnknownSessionError` for one that the store does not know.
        """
        more = {"workspace": workspace, "start": start, **overrides}
        make = functools.partial(self._twin.resume_session, session_id, options, **more)
        return Session(self._portal, self._portal.wait("Agent.resume_session()", _opened if start else _made, make))

    def stored_sessions(self, *, tenant: str = "default", after: str = "", limit: int = 200) -> list[str]:
        """The ids of the sessions in the `session_store` of this agent, in alphabetical order after `after`.

        Runs that a dead process has left go on when their session is made: make one for each of these.
        """
        call = functools.partial(self._twin.stored_sessions, tenant=tenant, after=after, limit=limit)
        return self._portal.wait("Agent.stored_sessions()", call)

    def sessions(self) -> list[Session]:
        """The open sessions of this agent."""
        return [Session(self._portal, twin) for twin in self._portal.call("Agent.sessions()", self._twin.sessions)]

    # ---- MCP servers ----

    def mcp_status(self) -> dict[str, McpStatus]:
        """How each MCP server is that a session has wanted: whether it runs, its tools, and why it does not run."""
        return self._portal.call("Agent.mcp_status()", self._twin.mcp_status)

    def refresh_mcp_tools(self) -> dict[str, McpStatus]:
        """Ask every MCP server again for its tools, and start those that do not run. Runs that begin now have them."""
        return self._portal.wait("Agent.refresh_mcp_tools()", self._twin.refresh_mcp_tools)

    # ---- closing ----

    def close(self) -> None:
        """Close every session. Nothing is left when it returns: no task, and no thread after the last agent."""
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _made(make: Callable[[], AsyncSession]) -> AsyncSession:
    """A session that nobody opens before it has something to do."""
    return make()


async def _opened(make: Callable[[], AsyncSession]) -> AsyncSession:
    """A session that is open, or nothing."""
    session = make()
    try:
        return await session.ready()
    except BaseException:
        await session.close()
        raise
