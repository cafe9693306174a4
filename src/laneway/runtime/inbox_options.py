"""How settings reach an inbox: from whoever made it, from a channel, from a message; and what a callable mode sees."""

from __future__ import annotations

from laneway.kernel import directives
from laneway.kernel.mailbox import Mailbox
from laneway.mail import Drop, Message, Mode, QueueOptions, QueueSettings, SessionView
from laneway.rows import Owner

__all__ = ("channel_options", "global_options", "options_of", "view_of")


def global_options(mode: Mode | str | None, debounce_ms: int, cap: int, drop: Drop | str) -> QueueOptions:
    """What an inbox was told about all of its sessions; what is as usual is not said."""
    given = QueueOptions(
        mode=None if mode is None else Mode.parse(mode), debounce_ms=debounce_ms, cap=cap, drop=Drop.parse(drop)
    )
    standard = QueueSettings()
    changed = {
        name: value
        for name in ("mode", "debounce_ms", "cap", "drop")
        if (value := getattr(given, name)) is not None and value != getattr(standard, name)
    }
    return QueueOptions(**changed)


def channel_options(value: object) -> QueueOptions:
    """What an inbox was told about one channel."""
    if isinstance(value, QueueOptions):
        return value
    return QueueOptions(mode=Mode.parse(value))


def options_of(directive: directives.Inline | directives.SendAs) -> QueueOptions:
    """What a message says about itself."""
    return QueueOptions(mode=directive.mode) if isinstance(directive, directives.SendAs) else directive.options


def view_of(owner: Owner, box: Mailbox | None, message: Message, now: int) -> SessionView:
    """A session as a callable mode gets to see it."""
    turn = box.turn if box is not None else None
    return SessionView(
        session_key=owner.session,
        tenant=owner.tenant,
        busy=box is not None and not box.is_idle,
        turn_state=turn.state if turn is not None else None,
        turn_mode=turn.mode if turn is not None else None,
        running_ms=max(0, now - turn.began_at) if turn is not None else 0,
        waiting=box.waiting if box is not None else 0,
        message=message,
    )
