"""What a channel is, so that another one is one file.

A channel connects people who are elsewhere (a messenger, a system of somebody else) with sessions of one workspace. It
does two things, and both survive a crash at any moment:

**In.** It calls `taking.submit` with its `Place` (whose caller may talk, and nothing more), a session key of its own
(`place.key(...)`), a sender (`place.sender(...)`: what a person may do is in the configuration, never in what they
say), and the platform's id as `message_id`. `submit` returns when the message is on disk; only then the platform is
told that it has arrived. A platform that was not told sends it again, and the same id gets the first receipt: nothing
is lost and nothing runs twice. Commands (`/stop`, `/approve` …) are messages like all others.

**Out.** Everything that has to be said is a stored event of a session: an answer, the reply to a command, a notice, a
request for approval. An `Outbox` reads them and hands each to the channel as an `Outgoing`, in the order of each
session, at least once. How far it has come is a row for each session, written after each piece: only what was sent
right before a crash, and was not noted yet, is sent again, which is one piece for each session that was being told
something. What is not kept (somebody types, a message waits) a channel hears from the engine, and may miss.

A new channel is a class with the methods of `Channel` and `Speaker` and a line in `KINDS` of this package:

```python
class PagerChannel:
    kind = "pager"

    async def start(self, gateway):
        self._outbox = Outbox(gateway, self.place, self)
        await self._outbox.open()

    def pieces(self, said):
        return [said.text]

    async def send(self, said, piece, number):
        await page(said.session_key, piece)  # may raise RetryLater, GiveUp, ChannelRefusedError or anything else

    async def stop(self):
        await self._outbox.close()
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from laneway.gateway.access import Caller, Scope
from laneway.mail import Sender

if TYPE_CHECKING:
    from laneway.gateway.service import Gateway

__all__ = ("Channel", "ChannelRefusedError", "Outgoing", "Place", "Rights", "Saying", "Speaker")

SEPARATOR = ":"


class Saying(StrEnum):
    """What kind of thing is said."""

    REPLY = "reply"  # a turn said something
    COMMAND = "command"  # the answer to a command
    NOTICE = "notice"  # what became of a message, when that is not what was hoped
    FAILURE = "failure"  # a turn failed, and there is no answer
    APPROVAL = "approval"  # a turn asks for an approval


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One thing to be said. `id` is the same whenever it is said again; `seq` is the number of its event.

    `session_key` is that of the conversation with people, also when one of its sub-agents asks. `message_id` and
    `reply_to` are the message it is about: our id, and the platform's.
    """

    seq: int
    id: str
    kind: Saying
    event: str
    at_ms: int
    session_key: str
    text: str
    turn_id: str = ""
    message_id: str = ""
    reply_to: str = ""
    thread: str = ""
    part: int = 1
    approval_id: str = ""
    action: str = ""
    arguments: str = ""
    expires_ms: int = 0


class ChannelRefusedError(Exception):
    """The other side does not let us in, and will not next time either: the channel ends, and says why."""


class Channel(Protocol):
    """Something that people or systems talk through."""

    @property
    def name(self) -> str:
        """What it is called in the configuration; the channel of its messages."""

    @property
    def kind(self) -> str:
        """What it is: `webhook`, `telegram` …"""

    @property
    def problem(self) -> str:
        """Why it does not work now; empty when it does. Never with a secret in it."""

    async def start(self, gateway: Gateway) -> None:
        """Begin, and return at once: a platform that does not answer must not keep the server from starting."""

    async def stop(self) -> None:
        """End. What is not said by then is said after the next start."""


class Speaker(Protocol):
    """How a channel says something."""

    def pieces(self, said: Outgoing) -> Sequence[str]:
        """What it is sent as: always the same pieces for the same thing, none if it is not for this channel."""

    async def send(self, said: Outgoing, piece: str, number: int) -> None:
        """Send one piece (from 0). `RetryLater`: the platform says when; `GiveUp`: never; else it is tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """Who may do what, by the ids of the platform. Whoever is not named has the rights of everybody."""

    owners: frozenset[str] = frozenset()
    approvers: frozenset[str] = frozenset()
    everybody: tuple[str, ...] = ("queue", "stop")

    def of(self, user_id: str) -> tuple[str, ...]:
        """What somebody may do who is not an owner."""
        return (*self.everybody, "approve") if user_id in self.approvers else self.everybody


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the conversations of a channel are. An empty workspace is the default one."""

    name: str
    workspace: str = ""
    tenant: str = "default"
    rights: Rights = Rights()

    @property
    def caller(self) -> Caller:
        """Who submits its messages: somebody who may talk, and nothing more."""
        name = f"channel{SEPARATOR}{self.name}"
        return Caller(name=name, tenant=self.tenant, scopes=frozenset({Scope.CHAT}), vouches=True)

    @property
    def prefix(self) -> str:
        """What the keys of its sessions begin with, and those of no other channel."""
        return f"{self.name}{SEPARATOR}"

    def key(self, *parts: str | int) -> str:
        """The key of a session: `telegram:1234:5`."""
        return self.prefix + SEPARATOR.join(str(part) for part in parts)

    def sender(self, user_id: str, name: str | None = None) -> Sender:
        """Somebody who speaks through this channel. The channel is part of the id: elsewhere it may be another one."""
        rights = self.rights
        return Sender(
            id=self.prefix + user_id, name=name or None, owner=user_id in rights.owners, rights=rights.of(user_id)
        )

    def stranger(self, user_id: str, name: str | None = None) -> Sender:
        """Somebody of whom it is not known who it is: no list names them."""
        return Sender(id=self.prefix + user_id, name=name or None, rights=self.rights.everybody)
