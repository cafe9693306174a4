"""The rows of a file of a session: how they stand there, and whether each of them can be read where it is imported.

A file comes from anywhere, and its checksum says only that it is whole. So every row goes through the reader that would
read it later, before the first one is written: what the reader would refuse, the file is refused for, by its line.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from hashlib import sha256
from types import UnionType
from typing import Any, Final, get_args, get_type_hints

from laneway.errors import ArchiveError, LanewayError, describe
from laneway.events import EVENT_TYPES, SessionEvent
from laneway.identity import IDENTITY, IDENTITY_LABELS, identity_label
from laneway.kernel.checkpoints import COMPACTION, ROUND, blobs_of, check_shape, digest_of, named_in, noted_in, to_json
from laneway.kernel.ledger import decode_entry
from laneway.kernel.mailbox import session_id
from laneway.kernel.messages import Item, decode_entry_row
from laneway.kernel.record_pages import unpacked
from laneway.kernel.stored_mail import UNREADABLE, entry_of
from laneway.kernel.task_entries import decode_task
from laneway.mail import WAITING_STATES, MessageState, TurnState
from laneway.rows import HISTORY_KINDS, NAMING_KINDS, EntryRow, EventRow, MessageRow, Owner, Row, StateRow
from laneway.runtime.erasing import CHILD_PREFIX, is_below

__all__ = ("KINDS", "RUNNING", "RowCheck", "damaged", "row_of", "to_list")

RUNNING: Final = frozenset({"turn", "child", "task"})
"""Kinds of rows that are live while something runs."""
FORK: Final = "fork"
KINDS: Final = (*HISTORY_KINDS, "session", IDENTITY, FORK)
"""Kinds of state rows that belong to a session and go with it; schedules and budgets are those of a place."""
WHOLE_MAX: Final = 1 << 53  # what JSON carries everywhere
DEFAULT_TENANT: Final = "default"
GIVEN: Final = "given"  # in labels: which of them an operator has said

_TABLES: Final[dict[str, type[Row]]] = {"m": MessageRow, "s": StateRow, "e": EventRow, "t": EntryRow, "b": StateRow}
_LETTERS: Final[dict[type[Row], str]] = {MessageRow: "m", StateRow: "s", EventRow: "e", EntryRow: "t"}
_OWNER: Final = ("tenant", "workspace", "session")
_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    **{letter: tuple(name for name in row._fields if name not in _OWNER) for letter, row in _TABLES.items()},
    "b": ("seq", "body"),
    "a": ("seq", "body"),
}
_WHOLE: Final = frozenset({"seq", "place", "live", "arrived_ms", "ended_ms", "at_ms", "conversation"})
_MESSAGE_STATES: Final = frozenset(each.value for each in MessageState)
_TURN_STATES: Final = frozenset(each.value for each in TurnState)
_SOMEBODY: Final = Owner("x", "x", "x")
_MARK: Final[dict[str, type]] = {"text": str, "message_id": str, "by": str}


def to_list(row: Row, owner: Owner) -> list[Any]:
    """A row as it stands in a file: its table, what follows the key of the session, its fields."""
    facts = [value for name, value in row._asdict().items() if name not in _OWNER]
    return [_LETTERS[type(row)], row.session[len(owner.session) :], *facts]


def row_of(value: list[Any], owner: Owner, *, was: str) -> Row:
    """The row that a line, which was checked, is for a session; whose the session is, its new owner says.

    `was` is the key that it had: sub-agents are named by it, and go by the new one.
    """
    letter, place, *facts_of = value
    if letter == "b":
        seq, body = facts_of
        return StateRow("blob", f"{owner.tenant}:{place}", owner.tenant, "", "", seq, 0, "", body)
    kind = _TABLES[letter]
    mine = owner._replace(session=owner.session + place)
    names = [name for name in kind._fields if name not in _OWNER]
    facts = {**dict(zip(names, facts_of, strict=True)), **mine._asdict()}
    if kind is StateRow and facts["kind"] in {"session", IDENTITY, FORK}:
        facts["id"] = session_id(mine)
    elif kind is StateRow and facts["kind"] == COMPACTION:
        facts["id"] = f"{mine.tenant}/{mine.workspace}/{mine.session}/{facts['seq']}"
    if kind is StateRow and facts["kind"] == IDENTITY:
        facts["body"] = _labels_for(facts["body"], owner.tenant)
    elif kind is StateRow and facts["kind"] == "child":
        facts["id"] = _child_under(facts["id"], was, owner.session)
    elif kind is EventRow and facts["type"].startswith("child."):
        body = json.loads(facts["body"])
        name = _child_under(body.get("child_id", ""), was, owner.session)
        facts["body"] = facts["body"] if name == body.get("child_id") else to_json({**body, "child_id": name})
    row: Row = kind(**facts)
    return row


def _child_under(child_id: str, was: str, key: str) -> str:
    """The id of a sub-agent whose session goes by another key now; those of calls in the background stay."""
    session = child_id.removeprefix(CHILD_PREFIX)
    is_renamed = was != key and session != child_id and is_below(session, was)
    return f"{CHILD_PREFIX}{key}{session[len(was) :]}" if is_renamed else child_id


def _labels_for(body: str, tenant: str) -> str:
    """The labels of a session that is a tenant's now, whatever it was called where it comes from."""
    labels = json.loads(body)
    wanted = None if tenant == DEFAULT_TENANT else tenant
    if labels.get("tenant_id") == wanted:
        return body
    labels = {name: value for name, value in labels.items() if name != "tenant_id"}
    if GIVEN in labels:
        labels[GIVEN] = [name for name in labels[GIVEN] if name != "tenant_id"]
    return to_json(labels if wanted is None else {"tenant_id": wanted, **labels})


def damaged(why: str, number: int) -> ArchiveError:
    """A file that is none, and the line that says so."""
    return ArchiveError(
        f"the file is damaged: line {number}: {why}", hint="nothing was imported; export the session again", line=number
    )


class RowCheck:
    """Reads the rows of one file, and knows at its end whether they belong together."""

    def __init__(self) -> None:
        self._seen: set[tuple[object, ...]] = set()
        self._blobs: dict[str, type] = {}
        self._needs: dict[tuple[str, type], int] = {}  # blobs that rows need, and the first line that does
        self._texts: set[tuple[str, str]] = set()  # texts of the inbox, by session and id
        self._wanted: dict[tuple[str, str], int] = {}
        self._notes: set[str] = set()  # artifacts that blobs stand for
        self._pieces = _Pieces()

    def add(self, value: Any, number: int) -> None:
        """One more line. Whatever passes can be stored, loaded and shown."""
        facts = _facts_of(value, number)
        letter, place = value[0], value[1]
        self._refuse_again(letter, place, facts, number)
        if letter == "a":
            self._pieces.add(place, facts["seq"], facts["body"], number)
            return
        self._pieces.end(number)
        if letter == "b":
            body = facts["body"]
            if digest_of(body) != place:
                raise damaged("a text is not the one that its hash names", number)
            self._blobs[place] = type(json.loads(body))
            if (artifact := noted_in(body)) is not None:
                self._notes.add(artifact)
            return
        _check_place(letter, place, facts, number)
        try:
            self._read(row_of(value, _SOMEBODY, was=""), place, number)
        except UNREADABLE as error:
            why = error.message if isinstance(error, LanewayError) else describe(error)
            raise damaged(f"a row cannot be read: {why:.200}", number) from error

    def finish(self, number: int) -> None:
        """There are no more: everything that rows name is there, and is what they take it for."""
        self._pieces.end(number)
        for artifact, first in self._pieces.names.items():
            if artifact not in self._notes:
                raise damaged(f"no text stands for the artifact {artifact}", first)
        for (digest, kind), number in self._needs.items():
            found = self._blobs.get(digest)
            if found is None:
                raise damaged(f"a row names a text that is not there: {digest:.80}", number)
            if kind is not object and found is not kind:
                raise damaged(f"a row names a {kind.__name__}, and {digest:.80} is a {found.__name__}", number)
        spare = self._blobs.keys() - {digest for digest, _ in self._needs}
        if spare:  # nothing would ever take it away again
            raise ArchiveError(
                f"the file is damaged: no row names the text {min(spare):.80}",
                hint="nothing was imported; export the session again",
            )
        for name, number in self._wanted.items():
            if name not in self._texts:
                raise damaged(f"a row names a text that is not there: {name[1]!r:.80}", number)

    def _refuse_again(self, letter: str, place: str, facts: Mapping[str, Any], number: int) -> None:
        """Of two rows with one key only the second would be kept."""
        key: tuple[object, ...] = (letter, place, facts["seq"])
        if letter == "m":
            key = (letter, facts["id"])
        elif letter == "b":
            key = (letter, place)
        elif letter == "s" and facts["kind"] in {"session", IDENTITY, FORK}:
            key = (letter, facts["kind"], place)
        elif letter == "s" and facts["kind"] != COMPACTION:
            key = (letter, facts["kind"], facts["id"])
        if key in self._seen:
            raise damaged(f"a row is there twice: {'/'.join(map(str, key)):.80}", number)
        self._seen.add(key)

    def _read(self, row: Row, place: str, number: int) -> None:
        match row:
            case MessageRow():
                _check_message(row)
            case EventRow():
                _check_event(row)
            case EntryRow():
                _check_entry(row)
                self._texts.add((place, row.turn_id if row.role == "assistant" else row.message_id))
            case StateRow():
                if row.kind in NAMING_KINDS:
                    for name in blobs_of(row):
                        self._need(name.rpartition(":")[2], object, number)
                self._read_state(row, place, number)

    def _read_state(self, row: StateRow, place: str, number: int) -> None:
        match row.kind:
            case "round" | "compaction":
                named = named_in(row)
                for digest, kind in named.blobs.items():
                    self._need(digest, kind, number)
                for name in named.texts:
                    self._wanted.setdefault((place, name), number)
                if row.kind == ROUND:  # an answer that could not be stored has no line
                    self._texts.add((place, row.id.rpartition("/")[0]))
            case "record":
                unpacked(row, _Noted(self, number))
            case "intent":
                decode_entry(row)
            case "task":
                decode_task(row)
            case "identity":
                _check_labels(_body_of(row))
            case "fork":
                check_shape(row, _body_of(row), {"run_id": str, "step": int}, {"message_id": str})
            case "dead_letter":
                check_shape(row, _body_of(row), {}, _MARK)
            case _:
                entry_of(row)

    def _need(self, digest: str, kind: type, number: int) -> None:
        self._needs.setdefault((digest, kind), number)


class _Pieces:
    """Whether the pieces of artifacts are all there, each behind the one before it, and are what their hashes name."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}  # and the line where each begins
        self._name: str | None = None
        self._next = 0
        self._digest = sha256()

    def add(self, name: str, place: int, body: str, number: int) -> None:
        """One more piece."""
        if name != self._name:
            self.end(number)
            self.names[name] = number
            self._name, self._next, self._digest = name, 0, sha256()
        if place != self._next:
            raise damaged("an artifact is not the one that its hash names: a piece is missing", number)
        try:
            self._digest.update(base64.b64decode(json.loads(body), validate=True))
        except (TypeError, ValueError):
            raise damaged("a piece of an artifact is none", number) from None
        self._next += 1

    def end(self, number: int) -> None:
        """Another line comes: what was before it is whole."""
        if self._name is not None and self._digest.hexdigest() != self._name:
            raise damaged("an artifact is not the one that its hash names", number)
        self._name = None


class _Noted(Mapping[str, str]):
    """Stands for texts that are further on in the file: each one that is asked for has to be there."""

    def __init__(self, check: RowCheck, number: int) -> None:
        self._check = check
        self._number = number

    def __getitem__(self, digest: str) -> str:
        self._check._need(digest, str, self._number)  # noqa: SLF001 - it is its own
        return ""

    def __iter__(self) -> Iterator[str]:
        return iter(())  # nobody knows them before they come

    def __len__(self) -> int:
        return 0


def _facts_of(value: Any, number: int) -> dict[str, Any]:
    """The fields of a line, each of which a store can keep."""
    letter = value[0] if isinstance(value, list) and value and isinstance(value[0], str) else ""
    if letter not in _FIELDS:
        raise damaged("a line is no row", number)
    names = _FIELDS[letter]
    if len(value) != len(names) + 2 or not isinstance(value[1], str):
        raise damaged("a row has other fields", number)
    for name, each in zip(names, value[2:], strict=True):
        if not _fits(name, each):
            raise damaged(f"{name} of a row is {each!r:.80}", number)
    return dict(zip(names, value[2:], strict=True))


def _fits(name: str, value: object) -> bool:
    if name == "platform_id" and value is None:
        return True
    if name == "live":
        return type(value) is int and value in (0, 1)
    if name in _WHOLE:
        return type(value) is int and 0 <= value <= WHOLE_MAX
    if not isinstance(value, str) or not _is_storable(value):
        return False
    return name != "body" or _is_json(value)


def _is_storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair
        return False
    return True


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _check_place(letter: str, place: str, facts: Mapping[str, Any], number: int) -> None:
    if place and not is_below(f"x{place}", "x"):
        raise damaged(f"a row belongs to another session: {place!r:.80}", number)
    if letter == "s" and facts["kind"] not in KINDS:
        raise damaged(f"a session has no rows of kind {facts['kind']!r:.80}", number)
    if letter == "m" and facts["state"] not in _MESSAGE_STATES:
        raise damaged(f"a message is in state {facts['state']!r:.80}", number)
    if letter in "mset" and not isinstance(json.loads(facts["body"]), dict):
        raise damaged(f"the body of a row is {facts['body']!r:.80}", number)
    if letter == "s" and facts["live"] and facts["kind"] in RUNNING:
        raise damaged(f"it has a {facts['kind']} that runs, and nothing runs in what is exported", number)
    if letter == "s" and facts["kind"] == "turn" and facts["state"] not in _TURN_STATES:
        raise damaged(f"a run is in state {facts['state']!r:.80}", number)


def _body_of(row: StateRow) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(row.body)  # that it is a mapping was looked at
    return body


def _check_message(row: MessageRow) -> None:
    item = Item.from_row(row)
    waits = item.state in WAITING_STATES
    told = item.state is MessageState.SUMMARIZED  # its line may still have to be told to the agent
    if bool(row.live) is not waits and not told:
        raise ValueError(f"a message is {row.state} and {'live' if row.live else 'not live'}")


def _check_entry(row: EntryRow) -> None:
    decode_entry_row(row)


def _check_labels(body: Mapping[str, Any]) -> None:
    for name in IDENTITY_LABELS:
        if name in body:
            identity_label(name, body[name])
    given = body.get(GIVEN, [])
    if type(given) is not list or not all(name in IDENTITY_LABELS for name in given):
        raise ValueError(f"{GIVEN} should be names of labels")


# ---- events ----

_COLUMNS: Final = frozenset({*EventRow._fields, "session_key"})


def _kinds_in(hint: Any) -> tuple[type, ...] | None:
    """What a field of an event may be in JSON; None: anything."""
    parts = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    found: set[type] = set()
    for part in parts:
        if part in (str, int, bool, type(None)):
            found.add(part)
        elif isinstance(part, type) and issubclass(part, Enum) and issubclass(part, str):
            found.add(str)
        else:
            return None
    return tuple(found)


def _shape_of(kind: type[SessionEvent]) -> dict[str, tuple[tuple[type, ...] | None, bool]]:
    """The fields of an event that its body has: what each may be, and whether it has to be there."""
    hints = get_type_hints(kind)
    return {
        each.name: (_kinds_in(hints[each.name]), each.default is MISSING and each.default_factory is MISSING)
        for each in fields(kind)
        if each.name not in _COLUMNS
    }


_EVENTS: Final = {name: _shape_of(kind) for name, kind in EVENT_TYPES.items() if issubclass(kind, SessionEvent)}


def _check_event(row: EventRow) -> None:
    body = json.loads(row.body)
    for name, (kinds, is_needed) in _EVENTS.get(row.type, {}).items():
        if name not in body:
            if is_needed:
                raise ValueError(f"event {row.type} has no {name}")
        elif kinds is not None and type(body[name]) not in kinds:
            raise ValueError(f"{name} of event {row.type} is {body[name]!r:.80}")
