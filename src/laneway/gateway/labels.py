"""The labels of a session, whether it is in memory or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.agent.identified import read_labels, relabel, store_labels
from laneway.agent.subagents import root_of
from laneway.identity import IDENTITY
from laneway.kernel.mailbox import session_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from laneway.gateway.workspaces import Workspace
    from laneway.rows import Owner

__all__ = ("has_labels", "labels_of", "set_labels")


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
