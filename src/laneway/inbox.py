"""Inbox: any async function becomes an agent with a durable queue for each session.

```python
async with Inbox(answer, store="sqlite:///inbox.db") as inbox:
    receipt = await inbox.submit("telegram:123456", "hello", sender="ada")
    final = await inbox.wait(receipt.message_id)
```
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self

from laneway.errors import (
    ClosedError,
    ConfigError,
    InvalidMessageError,
    LanewayError,
    MessageStateError,
    UnknownMessageError,
    UsageError,
)
from laneway.kernel import directives, stories
from laneway.kernel.mailroom import Mailroom, Rules
from laneway.kernel.messages import Item, decode_entry_row, decode_message
from laneway.kernel.settings import merge, resolve
from laneway.lanes import GATEWAY_LANES, Lanes, LaneScope
from laneway.mail import (
    Approval,
    ApprovalState,
    Drop,
    Final,
    HistoryEntry,
    Message,
    MessageKind,
    MessageState,
    Mode,
    OnCrash,
    PendingMessage,
    QueueOptions,
    QueueSettings,
    Receipt,
    Route,
    Schedule,
    Sender,
    SessionView,
    Stopped,
    Story,
    trace_of,
)
from laneway.ports import Store
from laneway.records import DURATION_MAX_MS, LaneConfig, Priority, check_concurrency, check_whole
from laneway.rows import Owner
from laneway.runtime.arrivals import Beside, final_from
from laneway.runtime.clockwork import Clockwork
from laneway.runtime.commands import Commands
from laneway.runtime.envelope import (
    attachments_of,
    check_key,
    check_settings,
    field_of,
    kind_of,
    on_crash_of,
    sender_of,
    storable,
    words_of,
)
from laneway.runtime.erasing import CHILD_KEY, delete_session
from laneway.runtime.errands import WAIT_LANE
from laneway.runtime.inbox_options import channel_options, global_options, options_of, view_of
from laneway.runtime.mail_engine import Handler, MailEngine
from laneway.runtime.subscriptions import Subscription
from laneway.stores import open_store
from laneway.system import HostEnv

__all__ = ("Inbox",)

DAY_MS = 86_400_000
WAITERS_WIDTH = 1_000_000  # waiting for an approval costs no slot of anybody

_NO_OPTIONS = QueueOptions()
_NO_ROUTE = Route()

ModeChoice = Mode | str | Callable[[SessionView], Mode | str]


class Inbox:
    """Puts an agent behind a durable queue for each session, with modes for what arrives while it is busy.

    `handler` is an async function that takes a `Turn` and returns its answer (text, or None for none). Open it with
    `async with`. Leaving gives running turns `close_timeout_ms`; what has not begun stays in the store.
    """

    has_agents: bool = False
    """Whether sub-agents have sessions of their own here."""

    def __init__(
        self,
        handler: Handler,
        *,
        store: str | Store | None = None,
        mode: ModeChoice = "collect",
        debounce_ms: int = 1000,
        max_wait_ms: int | None = None,
        debounce_idle: bool = False,
        cap: int = 20,
        drop: Drop | str = "summarize",
        interrupt_grace_ms: int = 15_000,
        dedupe_ms: int = DAY_MS,
        expires_ms: int | None = None,
        on_crash: OnCrash | Literal["report", "rerun", "resume"] = "report",
        commands: bool = False,
        by_channel: Mapping[str, QueueOptions | Mode | str] | None = None,
        concurrency: int = 4,
        lanes: Lanes | None = None,
        workspace: str = "default",
        workspace_options: QueueOptions | None = None,
        text_max: int = 1_000_000,
        host: HostEnv | None = None,
        close_timeout_ms: int = 10_000,
    ) -> None:
        check_settings(
            handler,
            durations={
                "interrupt_grace_ms": interrupt_grace_ms,
                "dedupe_ms": dedupe_ms,
                "close_timeout_ms": close_timeout_ms,
                "expires_ms": 1 if expires_ms is None else expires_ms,
                "max_wait_ms": 0 if max_wait_ms is None else max_wait_ms,
            },
            flags={"commands": commands, "debounce_idle": debounce_idle},
            kinds={
                "lanes": (lanes, Lanes),
                "by_channel": (by_channel, Mapping),
                "workspace_options": (workspace_options, QueueOptions),
            },
        )
        self._choose = mode if callable(mode) else None
        self._global = global_options(None if callable(mode) else mode, debounce_ms, cap, drop)
        self._workspace_options = workspace_options or QueueOptions()
        self._by_channel = {channel: channel_options(value) for channel, value in (by_channel or {}).items()}
        self._max_wait_ms = max_wait_ms
        self._expires_ms = expires_ms
        self._dedupe_ms = dedupe_ms
        self._parses_commands = commands
        self._text_max = check_whole(text_max, setting="text_max", least=1, most=100_000_000)
        self._close_timeout_ms = close_timeout_ms
        self._settings: dict[tuple[Any, ...], QueueSettings] = {}
        host = host or HostEnv()
        self._owns_lanes = lanes is None
        self._concurrency = check_concurrency(concurrency)
        self._lanes: Lanes = lanes or Lanes(_own_lanes(concurrency), host=host, unknown="create")
        rows = open_store(store)
        rules = Rules(grace_ms=interrupt_grace_ms, debounce_idle=debounce_idle, on_crash=on_crash_of(on_crash, handler))
        self._engine = MailEngine(
            Mailroom(rules, next_seq=rows.next_seq),
            store=rows,
            clock=host.clock,
            ids=host.ids,
            workspace=check_key(workspace, "workspace"),
            lanes=self._lanes,
            handler=handler,
        )
        self._commanding: dict[Any, asyncio.Future[Receipt]] = {}  # commands that are being carried out
        self._commands = Commands(self._engine, self.settings_of)
        self._clockwork = Clockwork(self._engine)

    # ---- opening and closing ----

    _entered = False

    async def __aenter__(self) -> Self:
        if self._engine.is_shut:
            raise ClosedError(opened=True, what="inbox")
        if self._entered:
            raise UsageError("this inbox is open already", hint="open it once, and pass it around")
        self._entered = True
        if self._owns_lanes:
            await self._lanes.__aenter__()
        else:
            self._use_given_lanes()
        try:
            schedules = await self._engine.open()
        except BaseException:
            self._entered = False
            if self._owns_lanes:
                await self._lanes.close()
            raise
        self._clockwork.load(schedules)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give running turns their time, then end them; what has not begun stays in the store."""
        if self._engine.is_open:
            self._engine.check_close()
        self._clockwork.close()
        try:
            await self._engine.close(self._close_timeout_ms)
        finally:
            if self._owns_lanes:
                await self._lanes.close()

    def _use_given_lanes(self) -> None:
        try:
            self._lanes.engine.check_caller("Inbox")  # lanes that nobody has opened would start nothing, ever
            self._engine.lanes = self._lanes_of_workspace()
        except BaseException:
            self._entered = False
            raise

    def _lanes_of_workspace(self) -> LaneScope:
        """The lanes somebody gave us, or this workspace's own among them; what they lack is made."""
        scope = self._lanes
        registry = self._lanes.engine.kernel.registry
        for name, config in _own_lanes(self._concurrency).items():
            if name not in registry.configs:
                registry.configure(name, config, now=self._engine.now())
        return scope if self._engine.workspace == "default" else scope.scope(self._engine.workspace)

    @property
    def engine(self) -> MailEngine:
        """The engine below: for the façades that are built on an inbox, not part of the public surface."""
        return self._engine

    @property
    def lanes(self) -> Lanes:
        """The lanes its turns run in: `main`, `subagent`, `cron`."""
        return self._lanes

    # ---- messages ----

    async def submit(
        self,
        session_key: str,
        text: str,
        *,
        channel: str = "",
        account: str = "",
        thread: str | int = "",
        chat_type: str = "",
        sender: Sender | str | Mapping[str, Any] | None = None,
        message_id: str | int | None = None,
        mode: Mode | str | None = None,
        kind: MessageKind | Literal["user", "system", "heartbeat"] = "user",
        priority: Priority = Priority.USER,
        tenant: str = "default",
        attachments: Iterable[Any] = (),
        expires_ms: int | None = None,
        trace: str = "",
        beside: Beside | None = None,
        check: Callable[[], None] | None = None,
    ) -> Receipt:
        """Take a message. Returns when it is durable; the receipt says where it is and why it waits, if it does.

        `message_id` is the platform's id: the same one on the same route again is answered with the first receipt.
        `trace` is the W3C `traceparent` of what the message is part of. `beside` makes a row of the receipt that is
        stored in the same commit; a message with one is no command, whatever it says. `check` is called at the moment
        the message is taken: what it raises refuses the message.
        """
        self._engine.check_open()
        if expires_ms is not None:
            check_whole(expires_ms, setting="expires_ms", least=1, most=DURATION_MAX_MS)
        wall = self._engine.wall()
        kind = kind_of(kind)
        route = _route_of(channel, account, thread, chat_type)
        if not isinstance(priority, Priority):
            raise InvalidMessageError(f"priority must be a Priority, not {priority!r}")
        if trace and not trace_of(trace):
            raise InvalidMessageError(f"trace is a W3C traceparent, not {trace!r:.100}")
        more = attachments_of(attachments)
        message = Message(
            id=self._engine.ids.new_id("msg"),
            session_key=self._check_session_key(session_key),
            text=self._text(text, has_more=bool(more)),
            sender=sender_of(sender),
            route=route,
            message_id=None if message_id is None else field_of(message_id, "message_id", empty=False),
            kind=kind,
            priority=priority,
            tenant=check_key(tenant, "tenant"),
            attachments=more,
            arrived_ms=wall,
            mode=self._global.mode or Mode.COLLECT,  # most often what `_resolve` finds, too
            trace=trace_of(trace) if trace else "",
        )
        inline = QueueOptions(mode=Mode.parse(mode)) if mode is not None else _NO_OPTIONS
        if self._parses_commands and kind is MessageKind.USER and beside is None:
            directive = directives.parse(message.text)
            if isinstance(directive, directives.Inline | directives.SendAs) and not self._commands.denial(
                directive, message.sender
            ):
                inline = merge(inline, options_of(directive))
                message = replace(message, text=directive.text)
            elif directive is not None:
                return await self._command(message, directive, expires_ms)
        return await self._take(message, inline, expires_ms, beside, check)

    async def _take(
        self,
        message: Message,
        inline: QueueOptions,
        expires_ms: int | None,
        beside: Beside | None = None,
        check: Callable[[], None] | None = None,
    ) -> Receipt:
        lasts = expires_ms if expires_ms is not None else self._expires_ms
        arrival = self._engine.arrival(
            message,
            lambda taken: self._resolve(taken, inline),
            lane="cron" if message.kind is MessageKind.HEARTBEAT else "main",
            expires_ms=message.arrived_ms + lasts if lasts is not None else 0,
            dedupe_ms=self._dedupe_ms,
        )
        return await self._engine.accept(arrival._replace(beside=beside, check=check))

    def _text(self, text: object, *, has_more: bool) -> str:
        if not isinstance(text, str):
            hint = "decode it first" if isinstance(text, bytes | bytearray) else ""
            raise InvalidMessageError(f"a message is text, not {type(text).__name__}", hint=hint)
        if not text.strip() and not has_more:
            raise InvalidMessageError("a message must not be empty", hint="send some text, or an attachment")
        if len(text) > self._text_max:
            raise InvalidMessageError(
                f"a message of {len(text):,} characters is too long", hint=f"at most {self._text_max:,} (text_max)"
            )
        return storable(text, "a message")

    def _resolve(self, message: Message, inline: QueueOptions) -> tuple[Message, QueueSettings]:
        """The settings in force for a message at this moment."""
        owner = self._engine.owner_of(message)
        if message.kind is not MessageKind.USER:
            return replace(message, mode=Mode.FOLLOWUP), self._level_settings(owner, "", QueueOptions())
        settings = self._level_settings(owner, message.channel, inline)
        if self._choose is not None and settings.origins["mode"] == "default":
            settings = self._level_settings(owner, message.channel, inline, self._ask_mode(owner, message))
        return (message if message.mode is settings.mode else replace(message, mode=settings.mode)), settings

    def _ask_mode(self, owner: Owner, message: Message) -> Mode:
        box = self._engine.kernel.boxes.get(owner)
        assert self._choose is not None
        try:
            chosen = self._choose(view_of(owner, box, message, self._engine.now()))
        except Exception as error:
            raise InvalidMessageError(
                f"the mode could not be chosen: {type(error).__name__}: {error}",
                hint="the function given as mode raised",
            ) from error
        if inspect.isawaitable(chosen):
            if inspect.iscoroutine(chosen):
                chosen.close()
            raise ConfigError("the function given as mode must not be async", setting="mode")
        return Mode.parse(chosen)

    def _level_settings(
        self, owner: Owner, channel: str, inline: QueueOptions, chosen: Mode | None = None
    ) -> QueueSettings:
        session = self._engine.kernel.sessions.get(owner)
        own = session.options if session is not None else None
        key = (channel if channel in self._by_channel else "", own, inline, chosen)
        settings = self._settings.get(key)
        if settings is None:
            levels = [
                ("inline", inline),
                ("session", own or QueueOptions()),
                ("channel", self._by_channel.get(channel, QueueOptions())),
                ("workspace", self._workspace_options),
                ("global", self._global if chosen is None else replace(self._global, mode=chosen)),
            ]
            settings = resolve(levels, max_wait_ms=self._max_wait_ms)
            if len(self._settings) > 1000:
                self._settings.clear()
            self._settings[key] = settings
        return settings

    def settings_of(self, owner: Owner) -> QueueSettings:
        """What holds for a session of this inbox, and which level each value came from; for façades, like `engine`."""
        return self._level_settings(owner, "", QueueOptions())

    # ---- commands ----

    async def command(
        self,
        session_key: str,
        text: str,
        *,
        sender: Sender | str | Mapping[str, Any] | None = None,
        tenant: str = "default",
    ) -> str | None:
        """Carry out a command (`/queue`, `/stop`, `/status` …) and return its reply; None if the text is none.

        Without a sender the host itself speaks, and may do all.
        """
        self._engine.check_open()
        owner = self._owner(session_key, tenant)
        directive = directives.parse(self._text(text, has_more=False))
        if directive is None:
            return None
        who = sender_of(sender)
        denied = self._commands.denial(directive, who)
        if denied is not None:
            return denied
        if isinstance(directive, directives.Inline | directives.SendAs):
            receipt = await self._take(self._plain(owner, directive.text, who), options_of(directive), None)
            return f"Message {receipt.message_id} is {receipt.disposition}."
        await self._engine.in_order()
        reply = await self._commands.run(owner, directive, who)
        if isinstance(directive, directives.New) and directive.text:
            await self._take(self._plain(owner, directive.text, who), QueueOptions(), None)
        return reply

    def _plain(self, owner: Owner, text: str, sender: Sender | None) -> Message:
        return Message(
            id=self._engine.ids.new_id("msg"),
            session_key=owner.session,
            tenant=owner.tenant,
            text=text,
            sender=sender,
            arrived_ms=self._engine.wall(),
        )

    async def _command(self, message: Message, directive: directives.Directive, expires_ms: int | None) -> Receipt:
        """A message that is a command: carried out at once, kept as `command`, never queued."""
        owner = self._engine.owner_of(message)
        key = (owner, message.route, message.message_id)
        if message.message_id is not None and key in self._commanding:
            return replace(await asyncio.shield(self._commanding[key]), duplicate=True)
        self._commanding[key] = done = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda future: future.cancelled() or future.exception())
        try:
            receipt = await self._carry_out_command(message, directive, expires_ms)
            done.set_result(receipt)
            return receipt
        except BaseException as error:
            done.set_exception(error if isinstance(error, LanewayError) else ClosedError(opened=True, what="inbox"))
            raise
        finally:
            if self._commanding.get(key) is done:
                del self._commanding[key]

    async def _carry_out_command(
        self, message: Message, directive: directives.Directive, expires_ms: int | None
    ) -> Receipt:
        await self._engine.in_order()
        seen = await self._engine.seen(message, self._dedupe_ms)
        if seen is not None:
            return seen
        owner = self._engine.owner_of(message)
        reply = await self._commands.run(owner, directive, message.sender)
        item = Item(owner, message, seq=self._engine.store.next_seq())
        await self._engine.record_command(item, reply)
        sent = None
        if isinstance(directive, directives.New) and directive.text:
            following = replace(message, id=self._engine.ids.new_id("msg"), text=directive.text, message_id=None)
            sent = (await self._take(following, QueueOptions(), expires_ms)).message_id
        done = MessageState.COMMAND
        return Receipt(message_id=message.id, disposition=done, reason="a command", reply=reply, sent=sent)

    # ---- the queue as an object ----

    def pending(
        self, session_key: str, *, tenant: str = "default", after: int = 0, limit: int | None = None
    ) -> list[PendingMessage]:
        """What waits in a session, in order, each with its place and why it waits; at most `limit` behind a place."""
        self._engine.check_open()
        owner = self._owner(session_key, tenant)
        return self._engine.kernel.pending(owner, now=self._engine.now(), after=after, limit=limit)

    def peek_pending(self, session_key: str, *, tenant: str = "default") -> list[Message]:
        """The messages that wait in a session, without taking them."""
        self._engine.check_open()
        return self._engine.peek_pending(self._owner(session_key, tenant))

    async def consume_pending(self, session_key: str, *, tenant: str = "default") -> list[Message]:
        """Take every waiting message that may go into the running turn; for middleware that has no `Turn` at hand."""
        turn = self._engine.running_turn(self._owner(session_key, tenant))
        return await turn.consume_pending() if turn is not None else []

    async def edit(self, message_id: str, text: str, *, actor: str = "host") -> None:
        """Change the text of a waiting message."""
        item = self._engine.kernel.items.get(message_id)
        text = self._text(text, has_more=item is not None and bool(item.message.attachments))
        await self._change(message_id, self._engine.kernel.edit, text, actor=actor)

    async def move(self, message_id: str, position: int, *, actor: str = "host") -> int:
        """Give a waiting message another place (from 1); says which it got."""
        check_whole(position, setting="position", least=1, most=1_000_000_000)
        place: int = await self._change(message_id, self._engine.kernel.move, position, actor=actor)
        return place

    async def hold(self, message_id: str, *, actor: str = "host") -> None:
        """Set a waiting message aside; others pass it."""
        await self._change(message_id, self._engine.kernel.hold, actor=actor)

    async def release(self, message_id: str, *, actor: str = "host") -> None:
        """Let a held message wait in its place again."""
        await self._change(message_id, self._engine.kernel.release, actor=actor)

    async def send_as(self, message_id: str, mode: Mode | str, *, actor: str = "host") -> None:
        """Let a waiting message do what another mode does, as if it came with it now."""
        wanted = Mode.parse(mode)
        item = self._engine.kernel.items.get(message_id)
        settings = self.settings_of(item.owner) if item is not None else QueueSettings()
        await self._change(message_id, self._engine.kernel.send_as, wanted, settings, actor=actor)

    async def withdraw(self, message_id: str, reason: str = "withdrawn", *, actor: str = "host") -> None:
        """Take a waiting message back."""
        await self._change(message_id, self._engine.kernel.withdraw, words_of(reason, "reason"), actor=actor)

    async def steer_now(self, message_id: str, *, actor: str = "host") -> bool:
        """Aim a waiting message at the running turn. False: it may not go in, and keeps its place."""
        why_not: str = await self._change(message_id, self._engine.kernel.steer_now, actor=actor)
        return not why_not

    async def _change(self, message_id: str, call: Callable[..., Any], *args: Any, actor: str) -> Any:
        self._engine.check_open()
        item = self._engine.kernel.items.get(message_id)
        if item is None:
            ended = await self._engine.final_of(message_id)
            hint = "it has ended; retry() sends it again" if ended.disposition.is_final else "try again in a moment"
            name = call.__name__
            raise MessageStateError(message_id=message_id, state=ended.disposition, call=name, hint=hint)
        return await self._engine.change(item.owner, call, message_id, *args, actor=words_of(actor, "actor"))

    # ---- what became of it ----

    async def status(self, message_id: str) -> Final:
        """Where a message is, or what became of it."""
        self._engine.check_open()
        item = self._engine.kernel.items.get(message_id)
        if item is None:
            return await self._engine.final_of(message_id)
        box = self._engine.kernel.boxes[item.owner]
        kernel = self._engine.kernel
        waiting = kernel.position(box, item)
        return Final(
            message_id=item.id,
            disposition=item.state,
            outcome=item.outcome,
            turn_id=(item.turn_id or None) if item.state is not MessageState.SUMMARIZED else None,
            reason=kernel.why(box, item, self._engine.now()) if waiting is not None else item.reason,
            session_key=item.owner.session,
            position=waiting,
        )

    async def wait(self, message_id: str) -> Final:
        """Wait until a message is final: its disposition, its outcome, and the answer of its turn."""
        return await self._engine.wait(message_id)

    async def retry(
        self, message_id: str, *, text: str | None = None, key: str | None = None, beside: Beside | None = None
    ) -> Receipt:
        """Run a message again that did not succeed: a new message with the same content, at the end of its queue.

        `text` is what it says instead. The same `key` again is answered with the first receipt. `beside` makes a row
        of the receipt that is stored in the same commit.
        """
        self._engine.check_open()
        item = self._engine.kernel.items.get(message_id)
        if item is not None and not item.state.is_final:
            hint = "it has not ended yet"
            raise MessageStateError(message_id=message_id, state=item.state, call="retry", hint=hint)
        row = await self._engine.store.history.message(message_id)
        if row is None or row.workspace != self._engine.workspace:
            raise UnknownMessageError(message_id=message_id)
        if row.outcome == "succeeded" or row.state == MessageState.COMMAND:
            raise MessageStateError(message_id=message_id, state=row.state, call="retry", hint="it succeeded")
        message, _ = decode_message(row)
        again = replace(
            message, id=self._engine.ids.new_id("msg"), message_id=key, arrived_ms=self._engine.wall(), retry_of=row.id
        )
        if text is not None:
            again = replace(again, text=self._text(text, has_more=bool(again.attachments)))
        return await self._take(again, QueueOptions(mode=again.mode), None, beside)

    async def history(
        self, session_key: str, *, tenant: str = "default", limit: int = 200, conversation: int | None = None
    ) -> list[HistoryEntry]:
        """The newest lines of a session's transcript, in order, each text once.

        `conversation` None means the current one; `/new` begins another.
        """
        self._engine.check_open()
        check_whole(limit, setting="limit", least=1, most=1_000_000)
        owner = self._owner(session_key, tenant)
        wanted = self._engine.conversation(owner) if conversation is None else conversation
        rows = await self._engine.store.history.entries(owner, limit=limit, newest=True, conversation=wanted)
        return [entry for row in rows if (entry := decode_entry_row(row)) is not None]

    async def transcript(self, session_key: str, *, tenant: str = "default") -> str:
        """The whole transcript of a session as JSON lines, all conversations included."""
        self._engine.check_open()
        owner = self._owner(session_key, tenant)
        lines: list[str] = []
        after = 0
        while rows := await self._engine.store.history.entries(owner, after_seq=after, limit=1000):
            after = rows[-1].seq
            for row in rows:
                facts = {name: getattr(row, name) for name in row._fields if name not in ("body", "workspace")}
                lines.append(json.dumps({**facts, **json.loads(row.body)}, ensure_ascii=False))
        return "".join(f"{line}\n" for line in lines)

    async def explain(self, message_id: str) -> Story:
        """The whole life of a message, from its arrival to its end; `str()` of it is for people."""
        self._engine.check_open()
        final = await self.status(message_id)
        row = await self._engine.store.history.message(message_id)
        if row is None:
            raise UnknownMessageError(message_id=message_id)
        message, _ = decode_message(row)
        owner = Owner(row.tenant, row.workspace, row.session)
        events = await self._engine.store.history.events(owner, message_id=message_id)
        for turn_id in dict.fromkeys(event.turn_id for event in list(events) if event.turn_id):
            events += await self._engine.store.history.events(owner, turn_id=turn_id)
        unique = {
            event.seq: event
            for event in events
            if event.message_id in ("", message_id) or event.type.startswith("turn.")
        }
        steps = tuple(stories.step_of(unique[seq]) for seq in sorted(unique))
        return Story(message=message, final=final, steps=steps, text=stories.tell(message, final, steps))

    async def messages(
        self,
        session_key: str | None = None,
        *,
        state: MessageState | str | None = None,
        tenant: str = "default",
        limit: int = 200,
    ) -> list[Final]:
        """The stored messages of one session or of all, oldest first: `state="dead_lettered"` lists what needs care.

        Without their answers: `status` has those.
        """
        self._engine.check_open()
        check_whole(limit, setting="limit", least=1, most=1_000_000)
        if state is not None and state not in set(MessageState):
            raise UsageError(f"there is no state {state!r}", hint=", ".join(MessageState))
        owner = Owner(tenant, self._engine.workspace) if session_key is None else self._owner(session_key, tenant)
        rows = await self._engine.store.history.messages(owner, state=str(state or ""), limit=limit)
        return [final_from(row) for row in rows]

    # ---- sessions ----

    async def sessions(self, *, tenant: str = "default", after: str = "", limit: int = 200) -> list[str]:
        """Keys of the sessions that have messages, in alphabetical order after `after`."""
        self._engine.check_open()
        check_whole(limit, setting="limit", least=1, most=1_000_000)
        return await self._engine.store.history.sessions(tenant, self._engine.workspace, after=after, limit=limit)

    async def stop(self, session_key: str, *, tenant: str = "default", actor: str = "host") -> Stopped:
        """End everything in a session: what waits, the running turn, its sub-agents; says how many of each."""
        owner = self._owner(session_key, tenant)
        stopped: Stopped = await self._engine.change(
            owner, self._engine.kernel.stop, owner, "stopped", actor=words_of(actor, "actor")
        )
        return stopped

    async def delete(self, session_key: str, *, tenant: str = "default", actor: str = "host") -> int:
        """Erase everything about a session and its sub-agents', for good; what runs is ended first. How many rows."""
        owner = self._owner(session_key, tenant)
        return await delete_session(self._engine, owner, actor=words_of(actor, "actor"))

    async def cancel(self, session_key: str, reason: str = "cancelled", *, tenant: str = "default") -> bool:
        """End the running turn of a session; what waits there stays. False: none runs, or it is ending already."""
        owner = self._owner(session_key, tenant)
        self._engine.check_session(owner)
        box = self._engine.kernel.boxes.get(owner)
        if box is None:
            return False
        return bool(await self._engine.change(owner, self._engine.kernel.cancel, box, words_of(reason, "reason")))

    def approvals(self, session_key: str | None = None, *, tenant: str = "default") -> list[Approval]:
        """What waits for somebody's approval, in one session or in all."""
        self._engine.check_open()
        boxes = self._engine.kernel.boxes
        found = [box for one, box in boxes.items() if one.tenant == tenant and session_key in (None, one.session)]
        return [entry.approval for box in found for entry in box.approvals.values()]

    async def approve(self, approval_id: str, *, by: str = "host") -> bool:
        """Say yes to a request. False: it is not pending (any more)."""
        return await self._answer(approval_id, ApprovalState.APPROVED, "", by)

    async def deny(self, approval_id: str, reason: str = "", *, by: str = "host") -> bool:
        """Say no to a request. False: it is not pending (any more)."""
        return await self._answer(approval_id, ApprovalState.DENIED, reason, by)

    async def _answer(self, approval_id: str, state: ApprovalState, reason: str, by: str) -> bool:
        self._engine.check_open()
        kernel = self._engine.kernel
        facts = {"reason": words_of(reason, "reason"), "by": words_of(by, "by")}
        for owner, box in kernel.boxes.items():
            if approval_id in box.approvals:
                answer = kernel.answer_approval
                return await self._engine.change(owner, answer, owner, approval_id, state, **facts) is not None
        return False

    async def schedule(
        self,
        session_key: str,
        text: str,
        *,
        cron: str | None = None,
        at_ms: int | None = None,
        every_ms: int | None = None,
        missed: Literal["skip", "run"] = "skip",
        kind: MessageKind | Literal["system", "heartbeat"] = "system",
        timezone: str = "UTC",
        tenant: str = "default",
    ) -> Schedule:
        """Send a message by the clock: a cron expression, one moment (wall clock, ms), or every so many ms.

        Firings that nobody was there for are skipped, or (`missed="run"`) made up for by one.
        """
        self._engine.check_open()
        owner = self._owner(session_key, tenant)
        text = self._text(text, has_more=False)
        return await self._clockwork.add(
            owner,
            text,
            cron=cron,
            at_ms=at_ms,
            every_ms=every_ms,
            missed=missed,
            kind=kind_of(kind),
            timezone=timezone,
        )

    @property
    def dedupe_ms(self) -> int:
        """For how long it knows a platform's id again."""
        return self._dedupe_ms

    @property
    def clockwork(self) -> Clockwork:
        """Its schedules, for those who change one or send one now."""
        return self._clockwork

    async def unschedule(self, schedule_id: str) -> bool:
        """Forget a schedule. False: there is none of that id."""
        self._engine.check_open()
        return await self._clockwork.remove(schedule_id)

    def schedules(self, session_key: str | None = None, *, tenant: str = "default") -> list[Schedule]:
        """The schedules of one session or of all, by their next time."""
        self._engine.check_open()
        return self._clockwork.list(tenant, session_key)

    def subscribe(self, *keys: str, buffer_max: int = 10_000) -> Subscription:
        """A stream of events: those of the given sessions, message ids, turn ids or event types, or all of them."""
        check_whole(buffer_max, setting="buffer_max", least=1, most=10_000_000)
        if not all(isinstance(key, str) for key in keys):
            raise UsageError(f"subscribe takes session keys, ids and event types, not {keys!r}")
        return self._engine.subscribe(keys, buffer_max)

    def _check_session_key(self, session_key: object) -> str:
        """A key that a message may have: that of a sub-agent is its parent's, and goes with it."""
        key = check_key(session_key, "session key")
        if not self.has_agents and CHILD_KEY.search(key):
            raise InvalidMessageError(
                f"session key {key!r} is that of a sub-agent: it ends with '~' and twelve hex digits",
                hint="call it otherwise; such a session would be deleted with another",
            )
        return key

    def _owner(self, session_key: str, tenant: str) -> Owner:
        return Owner(check_key(tenant, "tenant"), self._engine.workspace, check_key(session_key, "session key"))


def _own_lanes(concurrency: int) -> dict[str, LaneConfig]:
    return {
        **GATEWAY_LANES,
        "main": LaneConfig(concurrency=concurrency),
        WAIT_LANE: LaneConfig(concurrency=WAITERS_WIDTH, priority=0),
    }


def _route_of(channel: str, account: str, thread: str | int, chat_type: str) -> Route:
    """Where a message comes from; most come from nowhere."""
    if (channel, account, thread, chat_type) == ("", "", "", ""):
        return _NO_ROUTE
    return Route(
        channel=field_of(channel, "channel"),
        account=field_of(account, "account"),
        thread=field_of(thread, "thread"),
        chat_type=field_of(chat_type, "chat_type"),
    )
