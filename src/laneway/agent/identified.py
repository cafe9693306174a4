"""The labels of a session: read by whoever asks, stored with it, and restored when it is opened again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from laneway.identity import IDENTITY, IDENTITY_LABELS, Identity
from laneway.kernel.checkpoints import to_json
from laneway.kernel.mailbox import session_id
from laneway.rows import StateRow

if TYPE_CHECKING:
    from collections.abc import Hashable

    from laneway.agent.session import AsyncSession
    from laneway.agent.settings import SessionSettings
    from laneway.rows import Owner

__all__ = ("Identified", "identity_of", "restore")


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


class _Stored:
    """The labels of a session with their row."""

    def __init__(self, owner: Owner, identity: Identity, seq: int) -> None:
        self._owner = owner
        self._identity = identity
        self._seq = seq

    @property
    def row_key(self) -> Hashable:
        """What its row is known by."""
        return (IDENTITY, session_id(self._owner))

    def to_row(self) -> StateRow:
        """The labels as they are."""
        body = to_json(self._identity.labels)
        return StateRow(IDENTITY, session_id(self._owner), *self._owner, self._seq, 0, "", body)


def identity_of(settings: SessionSettings) -> Identity:
    """The labels that the options of a session name."""
    return Identity(**{name: getattr(settings, name) for name in IDENTITY_LABELS})


async def restore(session: AsyncSession) -> None:
    """Give a session the labels it had, where its caller says nothing; what is new is stored."""
    engine = session.host.inbox.engine
    row = await engine.store.history.state(IDENTITY, session_id(session.owner))
    stored: dict[str, Any] = {} if row is None else json.loads(row.body)
    session.identity = session.identity.over(stored)
    session.hooks.labels.update(session.identity.labels)
    if session.identity.labels != stored and session.parent is None:
        engine.journal.touch(session.owner, _Stored(session.owner, session.identity, engine.store.next_seq()))
        await engine.journal.committed(session.owner)
