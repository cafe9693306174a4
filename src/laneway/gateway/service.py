"""Gateway: a store, its workspaces and its tokens, without the HTTP around them. Routes and channels call this."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self
from weakref import WeakValueDictionary

from laneway.agent.host import THREADS_MAX
from laneway.agent.subagents import is_child_id, root_of
from laneway.config import lanes_options
from laneway.errors import (
    ConfigError,
    InvalidMessageError,
    LanewayError,
    NotFoundError,
    UnavailableError,
    UnknownMessageError,
    UnknownRunError,
)
from laneway.gateway.access import Caller, Scope
from laneway.gateway.admission import Admission
from laneway.gateway.audit import Audit
from laneway.gateway.observed import Observer
from laneway.gateway.pruning import Pruning
from laneway.gateway.rates import Rates
from laneway.gateway.settings import GatewaySettings, WorkspaceSpec
from laneway.gateway.tokens import GATEWAY, TokenBook
from laneway.gateway.traffic import Traffic
from laneway.gateway.usage import UsageBooks
from laneway.gateway.workspaces import Workspace, fair
from laneway.gateway.writing import write_row
from laneway.kernel import directives
from laneway.lanes import TOOL_LANES, Lanes
from laneway.mail import Receipt
from laneway.ports import Store
from laneway.rows import MessageRow, StateRow
from laneway.runtime.task_hall import TaskHall
from laneway.stores import open_store
from laneway.system import HostEnv

__all__ = ("Gateway",)


class Gateway:
    """Everything behind the server. Open it with `async with`, on the loop that serves."""

    def __init__(
        self,
        settings: GatewaySettings,
        workspaces: Sequence[WorkspaceSpec],
        *,
        env: HostEnv | None = None,
        store: Store | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        if not workspaces:
            raise ConfigError("a gateway needs a workspace", setting="workspaces", hint="laneway serve --workspace DIR")
        for spec in workspaces:
            if spec.name == GATEWAY:
                raise ConfigError(f"no workspace may be called {GATEWAY!r}", setting="workspaces", value=spec.name)
        self.settings = settings
        self.env = env or HostEnv()
        self.store = store or open_store(settings.store)
        first = lanes_options(workspaces[0].agent.settings)
        lanes = {**TOOL_LANES, **fair(first["lanes"])}
        self.lanes = Lanes(
            lanes,
            max_concurrent=first["max_concurrent"],
            host=self.env,
            unknown="create",
            threads_max=THREADS_MAX,
            close_timeout_ms=settings.drain_ms,
        )
        self.hall = TaskHall(self.env.clock.monotonic_ms, self.env.clock.wall_ms)
        self.workspaces = {
            spec.name: Workspace(
                spec,
                store=self.store,
                lanes=self.lanes,
                hall=self.hall,
                env=self.env,
                sessions_max=settings.sessions_max,
                passivate_after_ms=settings.passivate_after_ms,
                close_timeout_ms=settings.drain_ms,
                environ=os.environ if environ is None else environ,
            )
            for spec in workspaces
        }
        self.default = self.workspaces[workspaces[0].name]
        self.tokens = TokenBook(self.store, self.env.clock)
        self.tokens.on_end.append(self._end_streams)
        for workspace in self.workspaces.values():
            workspace.hub.counts = self.tokens.counts
        self.rates = Rates(settings.requests_per_second, self.env.clock)
        self.audit = Audit(self.store, self.env.clock)
        self.usage = UsageBooks(self.store, self.env.clock)
        self.admission = Admission(self)
        self.letter_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Of the dead letters that somebody changes at this moment, and of the calls that somebody settles."""
        self.observer = Observer(self, os.environ if environ is None else environ)
        self.pruning = Pruning(self)
        self.traffic = Traffic(self)
        self.traffic.hub.counts = self.tokens.counts
        self._probe: asyncio.Task[str] | None = None
        self.is_open = False
        self.is_stopping = False

    # ---- opening and closing ----

    async def __aenter__(self) -> Self:
        opened: list[Any] = []
        self.observer.attach()
        await self.store.open()
        self.usage.past_seq = self.store.next_seq()
        try:
            await self.tokens.load()
            await self.lanes.__aenter__()
            opened.append(self.lanes)
            for workspace in self.workspaces.values():
                await workspace.open()
                opened.append(workspace)
        except BaseException:
            self.tokens.close()
            for each in reversed(opened):
                await each.close()
            await self.store.close()
            raise
        self.traffic.open()
        self.pruning.open()
        self.is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def begin_stop(self) -> None:
        """The process is asked to end: streams end now, with a word about it, so that the server can."""
        self.is_stopping = True
        self.hall.close()
        self.traffic.begin_stop()
        for workspace in self.workspaces.values():
            workspace.hub.close("stopping")

    def _end_streams(self, token_id: str, why: str) -> None:
        for workspace in self.workspaces.values():
            workspace.hub.close_token(token_id, why)
        self.traffic.hub.close_token(token_id, why)

    async def close(self) -> None:
        """Give running turns their time; what has not ended stays in the store and goes on with the next start."""
        if not self.is_open:
            return
        self.begin_stop()
        self.tokens.close()
        self.traffic.close()
        self.is_open = False
        if self._probe is not None:
            await asyncio.wait({self._probe})  # it has a deadline
        problems: list[Exception] = []
        parts: list[Any] = [self.pruning, *self.workspaces.values(), self.lanes, self.store, self.observer]
        for each in parts:
            try:
                await each.close()
            except Exception as error:  # noqa: BLE001 - the others are closed all the same
                problems.append(error)
        if problems:
            raise problems[0]

    def check_open(self) -> None:
        """Refuse callers before opening and after closing: another process, or the next one, may answer."""
        if not self.is_open:
            raise UnavailableError("the gateway is not open, or is being stopped", hint="try again in a moment")

    # ---- finding things ----

    def workspace(self, name: str = "") -> Workspace:
        """A workspace by its name; the default one without a name."""
        self.check_open()
        if not name:
            return self.default
        found = self.workspaces.get(name)
        if found is None:
            raise NotFoundError(what="workspace", name=name, hint=f"there are: {', '.join(self.workspaces)}")
        return found

    async def find_message(self, caller: Caller, message_id: str) -> tuple[Workspace, MessageRow]:
        """A message of the caller's tenant and the workspace it is in."""
        self.check_open()
        row = await self.store.history.message(message_id)
        if row is None or row.tenant != caller.tenant or row.workspace not in self.workspaces:
            raise UnknownMessageError(message_id=message_id)
        return self.workspaces[row.workspace], row

    async def find_run(self, caller: Caller, run_id: str) -> tuple[Workspace, StateRow]:
        """A run of the caller's tenant and the workspace it is in."""
        self.check_open()
        row = await self.store.history.state("turn", run_id)
        if row is None or row.tenant != caller.tenant or row.workspace not in self.workspaces:
            raise UnknownRunError(f"there is no run {run_id!r}", hint="`laneway run ls SESSION` lists them")
        return self.workspaces[row.workspace], row

    # ---- messages ----

    async def submit(
        self, workspace: Workspace, caller: Caller, key: str, text: str, *, sender: Any = None, **more: Any
    ) -> Receipt:
        """Take a message of a caller; `more` are arguments of `Inbox.submit`. Returns when it is on disk."""
        self.check_open()
        if is_child_id(key):
            raise InvalidMessageError(
                f"session {key!r} belongs to a sub-agent, which only its parent talks to",
                hint=f"send it to {root_of(key)!r}",
            )
        self.admission.check(text, more.get("kind", "user"))
        who = await self._speaker(caller, text, sender)
        take = functools.partial(workspace.inbox.submit, key, text, tenant=caller.tenant, sender=who, **more)
        return await self.observer.accept(take, workspace, key)

    async def _speaker(self, caller: Caller, text: str, sender: Any) -> Any:
        """Who a message is from. A request may name its approvers, so whoever answers one has to be who they say."""
        said = directives.parse(text)
        if caller.vouches or not isinstance(said, directives.Approve | directives.Deny):
            return caller.sender() if sender is None else sender
        caller.check(Scope.OPERATE)
        action = "approval.approve" if isinstance(said, directives.Approve) else "approval.deny"
        await self.audit.record(caller, action, said.approval_id, reason=getattr(said, "reason", ""))
        return caller.sender()

    async def check_store(self, patience_s: float) -> str:
        """Why nothing can be written now; empty when something can. Raises `TimeoutError` when the store hangs.

        Anybody may ask, at any rate: whoever asks while it is being found out gets the same answer.
        """
        if self._probe is None:
            probing = self._write_something(patience_s)
            self._probe = asyncio.get_running_loop().create_task(probing, name="laneway-probe-store")
            self._probe.add_done_callback(self._probed)
        return await asyncio.shield(self._probe)

    def _probed(self, probe: asyncio.Task[str]) -> None:
        self._probe = None
        if not probe.cancelled():
            probe.exception()  # whoever has asked may have gone

    async def _write_something(self, patience_s: float) -> str:
        """A store that is gone may still read."""
        at = self.env.clock.wall_ms()
        row = StateRow(
            "probe", "readiness", "default", GATEWAY, "", self.store.next_seq(), 0, "written", f'{{"at_ms": {at}}}'
        )
        try:
            async with asyncio.timeout(patience_s):
                await write_row(self.store, row, what="something")
        except LanewayError as error:
            return str(error)
        return ""
