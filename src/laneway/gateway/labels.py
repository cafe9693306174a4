"""The labels of a session, whether it is in memory or not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from laneway.agent.subagents import root_of
from laneway.identity import IDENTITY, Identity
from laneway.kernel.mailbox import session_id

if TYPE_CHECKING:
    from laneway.gateway.workspaces import Workspace
    from laneway.rows import Owner

__all__ = ("labels_of",)


async def labels_of(workspace: Workspace, owner: Owner) -> dict[str, str]:
    """Those that are set; a sub-agent has those of the session that it works for."""
    root = owner._replace(session=root_of(owner.session))
    session = workspace.live_session(root.tenant, root.session)
    if session is not None:
        return session.identity.labels
    row = await workspace.inbox.engine.store.history.state(IDENTITY, session_id(root))
    return {} if row is None else Identity().over(json.loads(row.body)).labels
