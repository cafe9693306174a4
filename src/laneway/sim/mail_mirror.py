"""Memory equals what a restart would load: a second mailroom is made of the live rows and compared, field by field.

What a restart cannot know and need not know is left out: times on the monotonic clock, whether somebody was told that
a message waits, whether it came to an idle session.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from laneway.kernel.mailbox import Mailbox
from laneway.kernel.mailroom import Mailroom, Rules
from laneway.kernel.messages import Item, TurnEntry
from laneway.mail import WAITING_STATES, MessageState
from laneway.rows import Loaded, Owner
from laneway.stores.memory import MemoryDisk

__all__ = ("differences", "live_rows")

ITEM_FIELDS = (
    *("id", "owner", "seq", "place", "state", "live", "outcome", "turn_id", "reason", "lane", "expires_ms"),
    *(
        "debounce_ms",
        "max_wait_ms",
        "seen_by",
        "attempts",
        "depth",
        "more",
        "message",
        "merge_key",
        "route_key",
        "body",
    ),
)
TURN_FIELDS = ("id", "owner", "seq", "began_ms", "live", "mode", "kind", "depth", "merge_key", "route", "cancelled")
BOX_FIELDS = ("owner", "waiting", "waiting_users")


def live_rows(disk: MemoryDisk, workspace: str = "default") -> Loaded:
    """What a restart would load."""
    drawers = [disk.drawers[owner] for owner in disk.owners_of(workspace)]
    messages = [row for drawer in drawers for row in drawer.live_messages.values()]
    states = [row for drawer in drawers for row in drawer.live_states.values()]
    return Loaded(sorted(messages, key=lambda row: (row.place, row.id)), sorted(states, key=lambda row: row.seq))


def differences(kernel: Mailroom, rows: Loaded, *, now: int) -> Iterator[str]:
    """How a kernel differs from what its rows say."""
    rules = Rules(grace_ms=kernel.grace_ms, debounce_idle=kernel.debounce_idle, on_crash=kernel.on_crash)
    twin = Mailroom(rules, next_seq=iter(range(1 << 60, 1 << 61)).__next__)
    twin.closing = True  # it shall ask for nothing
    # At the beginning of time nothing has expired: what a wall clock that was stepped would end is not compared.
    twin.load(rows, running=dict(kernel.turns), now=now, wall=0)
    yield from _sets("boxes", set(_owners(kernel)), set(_owners(twin)))
    yield from _sets("messages", set(kernel.items), set(twin.items))
    yield from _sets("turns", set(kernel.turns), set(twin.turns))
    yield from _sets("sessions", set(kernel.sessions), set(twin.sessions))
    for owner, session in kernel.sessions.items():
        other = twin.sessions.get(owner)
        if other is not None:
            yield from _fields(f"session {owner.session}", session, other, ("options", "conversation"))
    for message_id, item in kernel.items.items():
        if message_id in twin.items:
            yield from _item(item, twin.items[message_id])
    for turn_id, turn in kernel.turns.items():
        if turn_id in twin.turns:
            yield from _turn(turn, twin.turns[turn_id])
    for owner, box in kernel.boxes.items():
        if owner in twin.boxes:
            yield from _box(box, twin.boxes[owner])


def _owners(kernel: Mailroom) -> Iterator[Owner]:
    """Sessions with something in them (a slot that was asked for is not in the store)."""
    for owner, box in kernel.boxes.items():
        if box.items or box.overflow or box.turn is not None or box.children or box.approvals:
            yield owner


def _sets(name: str, memory: set[Any], store: set[Any]) -> Iterator[str]:
    if memory != store:
        only_memory, only_store = sorted(memory - store), sorted(store - memory)
        yield f"{name}: only in memory {only_memory}, only in the store {only_store}"


def _fields(name: str, memory: object, store: object, fields: tuple[str, ...]) -> Iterator[str]:
    for field in fields:
        mine, theirs = getattr(memory, field), getattr(store, field)
        if mine != theirs:
            yield f"{name}.{field}: {mine!r} in memory, {theirs!r} in the store"


def _item(memory: Item, store: Item) -> Iterator[str]:
    yield from _fields(memory.id, memory, store, ITEM_FIELDS)
    if memory.state is MessageState.PARKED:
        yield from _fields(memory.id, memory, store, ("aim",))


def _turn(memory: TurnEntry, store: TurnEntry) -> Iterator[str]:
    yield from _fields(memory.id, memory, store, TURN_FIELDS)
    for name in ("items", "injected"):
        mine = [item.id for item in getattr(memory, name)]
        theirs = [item.id for item in getattr(store, name)]
        if sorted(mine) != sorted(theirs):
            yield f"{memory.id}.{name}: {mine} in memory, {theirs} in the store"


def _box(memory: Mailbox, store: Mailbox) -> Iterator[str]:
    name = f"box {memory.owner.session}"
    yield from _fields(name, memory, store, BOX_FIELDS)
    for part in ("items", "children", "approvals", "answers"):
        mine, theirs = list(getattr(memory, part)), list(getattr(store, part))
        if mine != theirs:
            yield f"{name}.{part}: {mine} in memory, {theirs} in the store"
    mine, theirs = [item.id for item in memory.overflow], [item.id for item in store.overflow]
    if mine != theirs:
        yield f"{name}.overflow: {mine} in memory, {theirs} in the store"
    mortal, same = _mortal(memory), _mortal(store)
    if mortal != same:
        yield f"{name}: {mortal} expire in memory, {same} in the store"
    first, second = memory.next_item(), store.next_item()
    if (first and first.id) != (second and second.id):
        yield f"{name}: {first and first.id} is next in memory, {second and second.id} in the store"
    for child_id, child in memory.children.items():
        if child_id in store.children:
            other = store.children[child_id]
            yield from _fields(f"child {child_id}", child, other, ("label", "turn_id", "state", "live"))
            if (child.awaited or child.silenced) != (other.awaited or other.silenced):
                yield f"child {child_id}: awaited {child.awaited} in memory, {other.awaited} in the store"
    for approval_id, approval in memory.approvals.items():
        if approval_id in store.approvals:
            yield from _fields(f"approval {approval_id}", approval, store.approvals[approval_id], ("approval", "live"))


def _mortal(box: Mailbox) -> list[str]:
    """The waiting messages that will expire by themselves."""
    return sorted({item.id for _, _, item in box.expiries if item.state in WAITING_STATES})
