"""The labels of a session: read by whoever asks, stored with it, and restored when it is opened again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from laneway.identity import IDENTITY, IDENTITY_LABELS, Identity
from laneway.kernel.checkpoints import to_json
from laneway.kernel.mailbox import session_id
from laneway.rows import StateRow

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from laneway.agent.session import AsyncSession
    from laneway.agent.settings import SessionSettings
    from laneway.ports import History
    from laneway.rows import Owner
    from laneway.runtime.mail_engine import MailEngine

__all__ = (
    "Identified",
    "Kept",
    "identity_of",
    "inherit",
    "labels_in",
    "read_labels",
    "relabel",
    "restore",
    "store_labels",
)

GIVEN: Final = "given"
"""Where a row says which labels an operator has said."""


class Identified:
    """What a session says of whose it is."""

    identity: Identity

    def tenant_id(self) -> str | None:
        """The tenant that the host attributes it to."""
        return self.identity.tenant_id

    def principal(self) -> str | None:
        """The person or service on whose behalf it works."""
        return self.identity.principal

    def agent_template_id(self) -> str | None:
        """The template of the host that its agent was made from."""
        return self.identity.agent_template_id

    def correlation_id(self) -> str | None:
        """What it is part of, in the words of the host."""
        return self.identity.correlation_id


class Kept(NamedTuple):
    """The labels that are stored with a session. Those that are `given` were said by an operator, and count most."""

    labels: Mapping[str, str]
    given: frozenset[str] = frozenset()

    @classmethod
    def of(cls, row: StateRow | None) -> Kept:
        """What a row says."""
        body: dict[str, Any] = {} if row is None else json.loads(row.body)
        return cls(Identity().over(body).labels, frozenset(body.get(GIVEN, ())))

    def changed(self, labels: Mapping[str, str | None]) -> Kept:
        """The same after an operator has said some of them; None: it says nothing of that one any more."""
        kept = {name: value for name, value in self.labels.items() if name not in labels}
        said = {name: value for name, value in labels.items() if value is not None}
        return Kept(Identity(**kept, **said).labels, (self.given - set(labels)) | set(said))

    def under(self, said: Identity) -> Identity:
        """What a session is, whose caller says something of it."""
        return replace(said.over(self.labels), **{name: self.labels.get(name) for name in self.given})


class _Stored:
    """The labels of a session with their row."""

    def __init__(self, owner: Owner, kept: Kept, seq: int) -> None:
        self._owner = owner
        self._kept = kept
        self._seq = seq

    @property
    def row_key(self) -> Hashable:
        """What its row is known by."""
        return (IDENTITY, session_id(self._owner))

    def to_row(self) -> StateRow:
        """The labels as they are."""
        given = {GIVEN: sorted(self._kept.given)} if self._kept.given else {}
        body = to_json({**self._kept.labels, **given})
        return StateRow(IDENTITY, session_id(self._owner), *self._owner, self._seq, 0, "", body)


def identity_of(settings: SessionSettings) -> Identity:
    """The labels that the options of a session name."""
    return Identity(**{name: getattr(settings, name) for name in IDENTITY_LABELS})


async def restore(session: AsyncSession) -> None:
    """Give a session the labels it had, where its caller says nothing; what is new is stored."""
    engine = session.host.inbox.engine
    kept = await read_labels(engine, session.owner)
    _have(session, kept.under(session.identity))
    if session.identity.labels != kept.labels and session.parent is None:
        await store_labels(engine, session.owner, Kept(session.identity.labels, kept.given))


async def read_labels(engine: MailEngine, owner: Owner) -> Kept:
    """The labels that are stored with a session."""
    return await labels_in(engine.store.history, owner)


async def labels_in(history: History, owner: Owner) -> Kept:
    """The same, out of a store that somebody only reads."""
    return Kept.of(await history.state(IDENTITY, session_id(owner)))


async def store_labels(engine: MailEngine, owner: Owner, kept: Kept) -> None:
    """Store the labels of a session; returns when they are on disk."""
    engine.journal.touch(owner, _Stored(owner, kept, engine.store.next_seq()))
    await engine.journal.committed(owner)


def inherit(session: AsyncSession, own: Kept, source: Kept) -> None:
    """Label a new session as the one it comes from, where nobody says otherwise; it is stored with its next commit."""
    given = own.given | {name for name in source.given if name not in session.identity.labels}
    identity = session.identity.over(source.labels)
    if identity.labels != own.labels:
        engine = session.host.inbox.engine
        engine.journal.touch(
            session.owner, _Stored(session.owner, Kept(identity.labels, given), engine.store.next_seq())
        )
    _have(session, identity)


async def relabel(session: AsyncSession, kept: Kept) -> None:
    """Have an open session go by other labels from now on, with its sub-agents."""
    identity = kept.under(identity_of(session.settings))
    if identity.labels != kept.labels:
        await store_labels(session.host.inbox.engine, session.owner, Kept(identity.labels, kept.given))
    _have(session, identity)


def _have(session: AsyncSession, identity: Identity) -> None:
    session.identity = identity
    session.hooks.labels.clear()
    session.hooks.labels.update(identity.labels)
    for child in session.children():
        _have(child, identity)
