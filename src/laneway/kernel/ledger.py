"""The ledger: what calls with side effects were about to do, and what became of them.

The intent of a call whose effect is `write` or `idempotent` is on disk before the call starts, its outcome after it.
What has an intent and no outcome when a process comes back was cut off: `after_crash` says what is to be done about
every call of such a round. Nothing that may have changed the world is done twice, unless it is idempotent: then it is
done again with the same key.

`intended` and `unknown` entries are live: a restart loads them, the first to go on, the second because somebody may
still have to look at them. The arguments of a call that has ended are in its round, so its entry keeps their hash only.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from laneway.dialogue import ResultStatus, ToolCall, ToolSpec
from laneway.errors import ConflictError
from laneway.kernel.checkpoints import BLOB_MIN, check_shape, digest_of, read_body, refuse, to_json
from laneway.kernel.rounds import Round
from laneway.records import Effect
from laneway.rows import Owner, StateRow

__all__ = (
    "INTENT",
    "LEDGER_TRANSITIONS",
    "OUTCOMES",
    "Action",
    "Change",
    "LedgerEntry",
    "LedgerState",
    "Plan",
    "Step",
    "after_crash",
    "arguments_digest",
    "decode_entry",
    "key_of",
    "origin_of",
    "row_id_of",
)

INTENT: Final = "intent"
VERSION: Final = 1
KEY_CHARS: Final = 48
REASON_MAX: Final = 2000


class LedgerState(StrEnum):
    """What is known about a call with side effects."""

    INTENDED = "intended"  # it is about to start, or it runs
    DONE = "done"
    FAILED = "failed"  # it did not work, or was not started after all; `reason` says which
    UNKNOWN = "unknown"  # it had begun, and nobody knows how far it came
    SETTLED = "settled"  # somebody has looked, and has said what became of it


class Change(StrEnum):
    """What can happen to an entry."""

    REPEAT = "repeat"  # an idempotent call starts once more, with the same key
    SUCCEED = "succeed"
    FAIL = "fail"
    LOSE = "lose"
    SETTLE = "settle"


_S = LedgerState
_C = Change

LEDGER_TRANSITIONS: Final[dict[tuple[LedgerState, Change], LedgerState]] = {
    (_S.INTENDED, _C.REPEAT): _S.INTENDED,
    (_S.INTENDED, _C.SUCCEED): _S.DONE,
    (_S.INTENDED, _C.FAIL): _S.FAILED,
    (_S.INTENDED, _C.LOSE): _S.UNKNOWN,
    # An idempotent call that timed out may be made again; a tool may find out later what became of it.
    (_S.UNKNOWN, _C.REPEAT): _S.INTENDED,
    (_S.UNKNOWN, _C.SUCCEED): _S.DONE,
    (_S.UNKNOWN, _C.FAIL): _S.FAILED,
    (_S.UNKNOWN, _C.SETTLE): _S.SETTLED,
}
"""What is not listed is refused: an outcome never changes."""

OUTCOMES: Final = {
    ResultStatus.UNKNOWN: Change.LOSE,
    ResultStatus.TIMED_OUT: Change.LOSE,
    ResultStatus.CANCELLED: Change.FAIL,
    ResultStatus.DENIED: Change.FAIL,
    ResultStatus.ERROR: Change.FAIL,
    ResultStatus.SKIPPED: Change.FAIL,
}
"""What a result means for the entry of its call; every other one is a success."""

LIVE: Final = frozenset({LedgerState.INTENDED, LedgerState.UNKNOWN})


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One call with side effects. `arguments` is None when only their hash is kept: the round has them.

    `key` is that of the call's first attempt (`key_of`), `digest` is `arguments_digest(arguments)`.
    """

    owner: Owner
    run_id: str
    number: int  # of the round
    call_id: str
    tool: str
    effect: Effect
    key: str
    digest: str
    arguments: str | None = None
    state: LedgerState = LedgerState.INTENDED
    attempt: int = 1
    started_ms: int = 0
    ended_ms: int = 0
    reason: str = ""
    actor: str = ""  # who settled it
    happened: bool | None = None  # what whoever settled it has found out; None: that is not said
    seq: int = 0

    @property
    def id(self) -> str:
        """What people and its row know it by."""
        return row_id_of(self.run_id, self.number, self.call_id)

    def change(
        self, change: Change, *, now_ms: int, reason: str = "", actor: str = "", happened: bool | None = None
    ) -> LedgerEntry:
        """The entry after something has happened to it, by the table."""
        following = LEDGER_TRANSITIONS.get((self.state, change))
        if following is None or (change is Change.REPEAT and self.effect is Effect.WRITE):
            raise ConflictError(
                f"call {self.call_id!r} of run {self.run_id!r} ({self.tool}, {self.effect}) is {self.state}: "
                f"{change} is not possible",
                hint="look at it in the ledger first; an outcome never changes, and a write is never repeated",
                entry_id=self.id,
                state=self.state.value,
                change=change.value,
            )
        if change is Change.REPEAT:
            return replace(self, state=following, attempt=self.attempt + 1, started_ms=now_ms, ended_ms=0, reason="")
        facts: dict[str, Any] = {"reason": reason[:REASON_MAX], "actor": actor, "happened": happened}
        return replace(self, state=following, ended_ms=now_ms, **facts)

    @property
    def row_key(self) -> Hashable:
        """What its row is known by."""
        return (INTENT, self.id)

    def to_row(self) -> StateRow:
        """Everything about it at this moment."""
        body: dict[str, Any] = {
            "v": VERSION,
            "run": self.run_id,
            "round": self.number,
            "call": self.call_id,
            "tool": self.tool,
            "effect": self.effect.value,
            "key": self.key,
            "digest": self.digest,
            "attempt": self.attempt,
            "started_ms": self.started_ms,
        }
        live = self.state in LIVE
        if live and self.arguments is not None and len(self.arguments) <= BLOB_MIN:
            body["arguments"] = self.arguments
        for name in ("ended_ms", "reason", "actor"):
            value = getattr(self, name)
            if value:
                body[name] = value
        if self.happened is not None:
            body["happened"] = self.happened
        return StateRow(INTENT, self.id, *self.owner, self.seq, int(live), self.state.value, to_json(body))


def key_of(origin: str, number: int, call_id: str) -> str:
    """The key that a call has at every attempt. `origin` is the run whose model asked for it (`origin_of`).

    A run that goes on for another one keeps the number of the round it goes on with.
    """
    return f"lw-{digest_of(to_json([origin, number, call_id]))[:KEY_CHARS]}"


def origin_of(run_id: str, resumed_from: Mapping[str, str]) -> str:
    """The first run of a line of runs that go on for one another; `resumed_from` is run id → the run before it."""
    seen = {run_id}
    while (before := resumed_from.get(run_id, "")) and before not in seen:
        seen.add(before)
        run_id = before
    return run_id


def row_id_of(run_id: str, number: int, call_id: str) -> str:
    """What the entry of a call is known by. A provider may name its calls as it likes, so their ids are not in it."""
    return f"{run_id}/{number:06d}/{digest_of(to_json(call_id))[:16]}"


def arguments_digest(arguments: str) -> str:
    """The hash of arguments; long ones are a blob of this name in their tenant."""
    return digest_of(to_json(arguments))


# ---- reading ----

_STATES: Final = {state.value: state for state in LedgerState}
_EFFECTS: Final = {effect.value: effect for effect in Effect}
_SHAPE: Final[dict[str, type]] = {
    "run": str,
    "round": int,
    "call": str,
    "tool": str,
    "effect": str,
    "key": str,
    "digest": str,
    "attempt": int,
    "started_ms": int,
}
_MAYBE: Final[dict[str, type]] = {"arguments": str, "ended_ms": int, "reason": str, "actor": str, "happened": bool}


def decode_entry(row: StateRow) -> LedgerEntry:
    """The entry that a row was made of."""
    body = read_body(row, INTENT, VERSION)
    check_shape(row, body, _SHAPE, _MAYBE)
    state, effect = _STATES.get(row.state), _EFFECTS.get(body["effect"])
    if state is None:
        refuse(row, f"an entry cannot be {row.state!r}")
    if effect is None:
        refuse(row, f"there is no effect {body['effect']!r}")
    entry = LedgerEntry(
        owner=Owner(row.tenant, row.workspace, row.session),
        run_id=body["run"],
        number=body["round"],
        call_id=body["call"],
        tool=body["tool"],
        effect=effect,
        key=body["key"],
        digest=body["digest"],
        arguments=body.get("arguments"),
        state=state,
        attempt=body["attempt"],
        started_ms=body["started_ms"],
        ended_ms=body.get("ended_ms", 0),
        reason=body.get("reason", ""),
        actor=body.get("actor", ""),
        happened=body.get("happened"),
        seq=row.seq,
    )
    if entry.id != row.id:
        refuse(row, f"it holds the entry {entry.id!r}")
    if entry.arguments is not None and arguments_digest(entry.arguments) != entry.digest:
        refuse(row, "its arguments are not those that were intended")
    return entry


# ---- after a crash ----


class Action(StrEnum):
    """What is to be done about a call of a round that was cut off."""

    KEEP = "keep"  # it has its result
    RUN = "run"  # it never began: as if nothing had happened
    AGAIN = "again"  # a read: once more
    AGAIN_SAME_KEY = "again_same_key"  # idempotent: once more, with the key it had
    RECONCILE = "reconcile"  # it may have happened, and its tool can find out
    UNKNOWN = "unknown"  # it may have happened, and nobody can find out
    ATTACH = "attach"  # somebody else makes it: wait for what comes of that
    GONE = "gone"  # it never began, and its tool is no longer there


class Step(NamedTuple):
    """What is to be done about one call. `entry` is its newest one in the ledger, if there is any."""

    call: ToolCall
    action: Action
    key: str
    entry: LedgerEntry | None = None


Plan = tuple[Step, ...]
"""A step for every call of a round, in the order of the calls."""

_CARE: Final = (Effect.READ, Effect.IDEMPOTENT, Effect.WRITE)


def after_crash(  # noqa: PLR0913 - keyword-only: what is known about the calls
    round: Round,  # noqa: A002 - what it is
    entries: Iterable[LedgerEntry],
    specs: Mapping[str, ToolSpec],
    *,
    reconcilable: Collection[str] = (),
    out: Collection[str] = (),
    origin: str = "",
) -> Plan:
    """What is to be done about every call of a round that was cut off.

    `entries` are those of the round's run and of the runs it goes on for; others do no harm. `reconcilable` names the
    tools that can find out what became of a call, `out` the keys of calls that somebody else makes.
    """
    by_key: dict[str, list[LedgerEntry]] = {}
    for entry in sorted(entries, key=lambda each: each.seq):
        by_key.setdefault(entry.key, []).append(entry)
    steps: list[Step] = []
    for call in round.answer.calls:
        key = key_of(origin or round.run_id, round.number, call.id)
        known = by_key.get(key, [])
        if call.id in round.results:
            action = Action.KEEP
        elif key in out:
            action = Action.ATTACH
        else:
            action = _action(known, specs.get(call.name), can_reconcile=call.name in reconcilable)
        steps.append(Step(call, action, key, known[-1] if known else None))
    return tuple(steps)


def _action(entries: list[LedgerEntry], spec: ToolSpec | None, *, can_reconcile: bool) -> Action:
    if not entries:
        if spec is None:
            return Action.GONE
        # Reads leave no entry: whether it ran before is not known, and does not matter.
        return Action.AGAIN if spec.effect is Effect.READ else Action.RUN
    if spec is None:
        return Action.UNKNOWN
    # What a tool says of itself may have changed since: what it said then and what it says now both count.
    match max([spec.effect, *(entry.effect for entry in entries)], key=_CARE.index):
        case Effect.READ:
            return Action.AGAIN
        case Effect.IDEMPOTENT:
            return Action.AGAIN_SAME_KEY
        case Effect.WRITE:
            return Action.RECONCILE if can_reconcile else Action.UNKNOWN
