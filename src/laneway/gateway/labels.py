"""The labels of a session, whether it is in memory or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from laneway.agent.identified import Kept, read_labels, relabel, store_labels
from laneway.agent.subagents import root_of
from laneway.identity import IDENTITY
from laneway.kernel.mailbox import session_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from laneway.gateway.workspaces import Workspace
    from laneway.rows import Owner

__all__ = ("SCAN", "SCANNED_MAX", "Labelled", "has_labels", "labels_of", "labels_of_all", "set_labels")

SCAN: Final = 500
SCANNED_MAX: Final = 20_000
"""So many sessions are looked through for one question; the next one goes on from there."""


async def has_labels(workspace: Workspace, owner: Owner) -> bool:
    """Whether anything was ever said of a session, also before its first message."""
    return await workspace.inbox.engine.store.history.state(IDENTITY, session_id(owner)) is not None


async def labels_of(workspace: Workspace, owner: Owner) -> dict[str, str]:
    """Those that are set; a sub-agent has those of the session that it works for."""
    root = owner._replace(session=root_of(owner.session))
    session = workspace.live_session(root.tenant, root.session)
    if session is not None:
        return session.identity.labels
    return dict((await read_labels(workspace.inbox.engine, root)).labels)


async def labels_of_all(workspace: Workspace, tenant: str, keys: Sequence[str]) -> list[dict[str, str]]:
    """Those of several sessions, in their order; the store is asked for them together."""
    roots = [workspace.owner(tenant, root_of(key)) for key in keys]
    live = [workspace.live_session(tenant, root.session) for root in roots]
    wanted = list(dict.fromkeys(session_id(root) for root, here in zip(roots, live, strict=True) if here is None))
    history = workspace.inbox.engine.store.history
    rows = await history.states_by_id(IDENTITY, wanted) if wanted else []
    stored = {name: dict(Kept.of(row).labels) for name, row in zip(wanted, rows, strict=True)}
    pairs = zip(roots, live, strict=True)
    return [stored[session_id(root)] if here is None else here.identity.labels for root, here in pairs]


class Labelled:
    """Looks through sessions for those with certain labels.

    There is no index of labels, because every session would pay for one. The labels of a session are found by its key,
    many of them at once, so a search costs as much as there are sessions before its end; `SCANNED_MAX` bounds it.
    """

    def __init__(self, workspace: Workspace, tenant: str, wanted: Mapping[str, str]) -> None:
        self._workspace = workspace
        self._tenant = tenant
        self._wanted = wanted.items()
        self._left = SCANNED_MAX

    @property
    def is_spent(self) -> bool:
        """Whether it has looked at as many as one question may cost."""
        return self._left <= 0

    async def among(self, keys: Sequence[str]) -> list[str]:
        """Those of some sessions that have the labels."""
        self._left -= len(keys)
        found = await labels_of_all(self._workspace, self._tenant, keys)
        return [key for key, labels in zip(keys, found, strict=True) if self._wanted <= labels.items()]


async def set_labels(workspace: Workspace, owner: Owner, labels: Mapping[str, str | None]) -> dict[str, str]:
    """Change the labels of a session, on disk and then in memory; None clears one. What they are then.

    What waits for a budget looks again: another one may count what it spends.
    """
    engine, name = workspace.inbox.engine, (owner.tenant, owner.session)
    async with workspace.labelling:
        engine.check_doomed(owner)
        await workspace.opened(name)  # it may write what it is called
        engine.begin_anew(owner)
        kept = (await read_labels(engine, owner)).changed(labels)
        await store_labels(engine, owner, kept)
        await workspace.opened(name)  # it may have read what it was called before
        session = workspace.live_session(*name)
        if session is not None:
            await relabel(session, kept)
    workspace.host.budgets.look_again()
    return await labels_of(workspace, owner)
