"""The book of a session: its rounds in memory and in the store, and what of them a model gets to hear.

Rounds and ledger entries go to the journal of the inbox, so that a checkpoint, the message it belongs to and the
answer are one commit. What a commit has refused is written again with the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from laneway.dialogue import ResultStatus, ToolResult, Utterance
from laneway.kernel.checkpoints import (
    BLOB,
    COMPACTION,
    ROUND,
    Compaction,
    blobs_of,
    decode,
    decode_compaction,
    digest_of,
    encode,
    encode_compaction,
    note_of,
    noted_in,
    round_id,
)
from laneway.kernel.ledger import (
    INTENT,
    LIVE,
    OUTCOMES,
    Change,
    LedgerEntry,
    LedgerState,
    decode_entry,
    key_of,
    origin_of,
)
from laneway.kernel.rounds import Round, RoundState, open_result, unstarted_result
from laneway.rows import Owner, Row, StateKey, StateRow
from laneway.runtime.artifacts import HOLDS, holder_of

if TYPE_CHECKING:
    from laneway.agent.recording import Recording
    from laneway.ports import History
    from laneway.runtime.mail_engine import MailEngine

__all__ = ("Book",)

PAGE = 5_000
UNHEARD = "it went on in the background, and its end was not heard of"
RUN_PAGE = 50


class Book:
    """What was said and done in one session."""

    def __init__(self, engine: MailEngine, owner: Owner, *, is_read_only: bool = False) -> None:
        self._engine = engine
        self._is_read_only = is_read_only  # its session is not in memory: what is open there is none of ours
        self.owner = owner
        self.rounds: list[Round] = []
        self._runs: dict[str, list[Round]] = {}
        self._run_of: dict[str, str] = {}  # the newest run over a message
        self.lineage: dict[str, str] = {}  # which run each run goes on for
        self._taken_over: dict[str, int] = {}  # from which round on another run tells the rounds of a run itself
        self.entries: dict[str, LedgerEntry] = {}  # the newest of each key
        self.compaction: Compaction | None = None
        self.is_loaded = False
        self.on_closed: Callable[[str], None] = lambda run_id: None  # nobody goes on with a run of an earlier process
        self._left: list[Round] = []  # open rounds of earlier processes
        self.texts: dict[str, str] = {}  # what the inbox keeps: messages by their ids, answers by their runs
        self.recordings: dict[str, Recording] = {}  # of the runs that go on, if they are recorded
        self._waiting: dict[tuple[str, str], _Waiting] = {}  # what is on its way to the store
        self._refused: dict[tuple[str, str], Round | LedgerEntry | Compaction] = {}  # what the store has not taken
        self._beside: dict[
            tuple[str, str], dict[str, StateRow]
        ] = {}  # blobs that a row names, and are not in its thing

    # ---- reading ----

    async def load(self) -> None:
        """Read what the store has, once. Rounds that were left open are closed when nobody goes on with them."""
        if self.is_loaded:
            self._close_left()
            return
        history = self._engine.store.history
        rows = await _all_states(history, self.owner, "round")
        compactions = await _all_states(history, self.owner, "compaction")
        blobs = await self._load_blobs(history, [*rows, *compactions[-1:]])
        await self._load_texts(history, rows, self.texts)
        rounds = [decode(row, blobs.get, self.texts) for row in rows]
        entries = [decode_entry(row) for row in await _all_states(history, self.owner, INTENT)]
        if compactions:
            self.compaction = decode_compaction(compactions[-1], blobs.get)
        if self.is_loaded:  # by somebody who asked at the same time
            return
        self.is_loaded = True
        for one in rounds:
            self._add(one)
        self.entries = {entry.key: entry for entry in entries}
        if self._is_read_only:
            return
        self._left = [one for one in self.rounds if one.state is RoundState.ACTING]
        self._close_left()
        for entry in entries:
            if entry.state is LedgerState.INTENDED and self.entries[entry.key] is entry:
                self._end_if_over(entry)

    async def find_entry(self, key: str) -> LedgerEntry | None:
        """The newest entry of a call in the store, for somebody who has no use for the rest."""
        rows = await _all_states(self._engine.store.history, self.owner, INTENT)
        found = [entry for entry in map(decode_entry, rows) if entry.key == key]
        return found[-1] if found else None

    async def all_entries(self) -> list[LedgerEntry]:
        """The newest entry of every call with side effects, those too that memory has forgotten."""
        rows = await _all_states(self._engine.store.history, self.owner, INTENT)
        return list({**{entry.key: entry for entry in map(decode_entry, rows)}, **self.entries}.values())

    async def read_run(self, run_id: str) -> list[Round]:
        """The rounds of one run, of one that memory has forgotten, too."""
        if run_id in self._runs:
            return self.run(run_id)
        history = self._engine.store.history
        rows: list[StateRow] = []
        while True:
            names = [f"{run_id}/{number:06d}" for number in range(len(rows) + 1, len(rows) + RUN_PAGE + 1)]
            found = [row for row in await history.states_by_id(ROUND, names) if row is not None]
            rows += [row for row in found if row[2:5] == self.owner]
            if len(found) < RUN_PAGE:
                break
        blobs = await self._load_blobs(history, rows)
        texts: dict[str, str] = {}
        await self._load_texts(history, rows, texts)
        return [decode(row, blobs.get, texts) for row in rows]

    def _close_left(self) -> None:
        for one in self._left:
            if one.state is RoundState.ACTING and not self.is_awaited(one.run_id):
                self.on_closed(one.run_id)
                self.close_old(one)
        self._left = [one for one in self._left if one.state is RoundState.ACTING]

    def is_awaited(self, run_id: str) -> bool:
        """Whether the message that a run began over still waits for its end: then somebody will go on with it."""
        items = self._engine.kernel.items
        if run_id not in self._runs:
            return False
        return any(name in items for name in (*self.heads(run_id), *self.run(run_id)[0].messages[:1]))

    def heads(self, run_id: str) -> tuple[str, ...]:
        """The message that a run, or the first of the runs it goes on for, began over."""
        return self.run(origin_of(run_id, self.lineage))[0].messages[:1]

    def _end_if_over(self, entry: LedgerEntry) -> None:
        """The outcome of a call was not written, although its round was: the round knows it."""
        origin = origin_of(entry.run_id, self.lineage)
        rounds = [
            one
            for one in self.rounds
            if one.number == entry.number
            and key_of(origin_of(one.run_id, self.lineage), one.number, entry.call_id) == entry.key
        ]
        if any(one.state is RoundState.ACTING for one in rounds):
            return  # somebody goes on with it
        results = [one.results[entry.call_id] for one in rounds if entry.call_id in one.results]
        if results and results[-1].status is ResultStatus.BACKGROUND:
            if not self._is_behind(entry.key):
                self.end_entry(entry, Change.LOSE, UNHEARD)
            return
        change = OUTCOMES.get(results[-1].status, Change.SUCCEED) if results else Change.LOSE
        self.end_entry(entry, change, f"found when the session was opened; run {origin}")

    def _is_behind(self, key: str) -> bool:
        """Whether a call is in the background: then its end is still to be told."""
        box = self._engine.kernel.boxes.get(self.owner)
        children = box.children.values() if box is not None else ()
        return any(child.live and child.detail.get("key") == key and child.is_call for child in children)

    def close_old(self, one: Round) -> None:
        """The open round of a run that nobody goes on with: calls that had begun are unknown, others never started."""
        origin = origin_of(one.run_id, self.lineage)
        for call in one.answer.calls:
            known = one.results.get(call.id)
            entry = self.entries.get(key_of(origin, one.number, call.id))
            if known is not None and known.status is ResultStatus.BACKGROUND:  # it goes on without its run
                if entry is not None and entry.state is LedgerState.INTENDED and not self._is_behind(entry.key):
                    self.end_entry(entry, Change.LOSE, UNHEARD)
                continue
            if entry is not None and entry.state is LedgerState.INTENDED:
                self.end_entry(entry, Change.LOSE, "the process ended while it ran")
            may_have_run = entry is not None and entry.state is not LedgerState.FAILED
            one.results.setdefault(call.id, open_result(call) if may_have_run else unstarted_result(call))
        one.state = RoundState.CUT
        self.keep(one)

    async def _load_texts(self, history: History, rows: Iterable[StateRow], texts: dict[str, str]) -> None:
        after = 0
        while page := await history.entries(self.owner, after_seq=after, limit=PAGE):
            for entry in page:
                if entry.role == "assistant":
                    texts[entry.turn_id] = entry.text  # what it said last
                else:
                    texts.setdefault(entry.message_id, entry.text)
            after = page[-1].seq
        for row in rows:  # an answer that could not be stored, and was told so
            texts.setdefault(row.id.rpartition("/")[0], "")

    async def _load_blobs(self, history: History, rows: Iterable[StateRow]) -> dict[str, str]:
        wanted = list(dict.fromkeys(name for row in rows for name in blobs_of(row)))
        stored = await history.states_by_id(BLOB, wanted) if wanted else []
        return {name: row.body for name, row in zip(wanted, stored, strict=True) if row is not None}

    def utterances(self, conversation: int, *, without: str = "") -> list[Utterance]:
        """What was said in a conversation: the summary of what was compacted, then every round since.

        `without` is a run whose rounds are told by somebody else.
        """
        said: list[Utterance] = []
        after = 0
        if self.compaction is not None and self.compaction.conversation == conversation:
            said.append(self.compaction.summary)
            after = self.compaction.upto_seq
        for one in self.told(conversation, without):
            if one.seq > after:
                said += one.utterances()
        return said

    def told(self, conversation: int, without: str = "") -> Iterator[Round]:
        """The rounds that are part of a conversation, those that a summary tells among them."""
        for one in self.rounds:
            if one.conversation != conversation or one.run_id == without:
                continue
            if one.state is not RoundState.FORGOTTEN and one.number < self._taken_over.get(one.run_id, one.number + 1):
                yield one

    def run(self, run_id: str) -> list[Round]:
        """The rounds of one run, in order."""
        return list(self._runs.get(run_id, ()))

    def newest(self, run_id: str) -> str:
        """The last of the runs that go on for one another."""
        heirs = {before: after for after, before in self.lineage.items()}
        while run_id in heirs:
            run_id = heirs[run_id]
        return run_id

    def _add(self, one: Round) -> None:
        self.rounds.append(one)
        self._runs.setdefault(one.run_id, []).append(one)
        for message in one.messages:
            self._run_of[message] = one.run_id
        if one.resumed_from:
            self.lineage[one.run_id] = one.resumed_from
            self._taken_over[one.resumed_from] = one.number

    # ---- forgetting ----

    def unload(self) -> None:
        """The store has refused what this session was to begin with: it is read again when somebody asks."""
        self.rounds, self._left = [], []
        for known in (self._runs, self._run_of, self.lineage, self._taken_over, self.entries, self.texts):
            known.clear()
        for unwritten in (self._waiting, self._refused, self._beside):
            unwritten.clear()
        self.compaction = None
        self.is_loaded = False

    def retain(self, most: int | None, busy: Collection[str]) -> None:
        """Forget the oldest runs in memory, until at most so many are left; the store keeps them.

        It ends at the first one that is needed: that is at work, that somebody goes on with, whose end is not on disk
        yet, that has a call of which nobody knows what became of it, or that the model still hears of.
        """
        if most is None or len(self._runs) <= most:
            return
        busy = {*busy, *(one.run_id for one in self._left), *(self.lineage.get(each, "") for each in busy)}
        heard = self._heard_from()
        gone: set[str] = set()
        for run_id, rounds in self._runs.items():
            if len(self._runs) - len(gone) <= most or run_id in busy or not self._is_over(rounds, *heard):
                break
            gone.add(run_id)
        if gone:
            self._drop(gone)

    def _heard_from(self) -> tuple[int, int]:
        """The conversation that goes on, and after which place of it the model hears everything."""
        conversation = self.rounds[-1].conversation if self.rounds else 0
        compaction = self.compaction
        is_its = compaction is not None and compaction.conversation == conversation
        return conversation, compaction.upto_seq if compaction is not None and is_its else 0

    def _is_over(self, rounds: list[Round], conversation: int, after: int) -> bool:
        """Whether nobody has a use for a run any more but whoever looks at the past."""
        for one in rounds:
            if one.conversation == conversation and one.seq > after:
                return False
            if one.state is RoundState.ACTING or (ROUND, round_id(one)) in {**self._waiting, **self._refused}:
                return False
            if any(result.status is ResultStatus.BACKGROUND for result in one.results.values()):
                return False
        return True

    def _drop(self, gone: set[str]) -> None:
        for run_id in gone:
            for one in self._runs.pop(run_id):
                for message in one.messages:
                    self.texts.pop(message, None)
                    if self._run_of.get(message) == run_id:
                        del self._run_of[message]
            self.texts.pop(run_id, None)
            self.lineage.pop(run_id, None)
            self._taken_over.pop(run_id, None)
        self.rounds = [one for one in self.rounds if one.run_id not in gone]
        known = self.entries.items()
        self.entries = {key: entry for key, entry in known if entry.run_id not in gone or entry.state in LIVE}

    def unfinished(self, messages: Iterable[str]) -> list[Round]:
        """The rounds of the newest run over these messages, if it has not come to its end.

        A message that was only steered into a run does not make anybody go on with it.
        """
        ids = set(messages)
        known = [run_id for message in ids if (run_id := self._run_of.get(message, ""))]
        begun = [run_id for run_id in known if ids & set(self.heads(run_id))]
        rounds = self.run(self.newest(begun[0])) if begun else []
        return [] if any(one.state is RoundState.FORGOTTEN for one in rounds) else rounds

    # ---- writing ----

    def keep(self, thing: Round | LedgerEntry | Compaction) -> None:
        """Write it down with the next commit, as it is then."""
        if isinstance(thing, Round):
            if not thing.seq:
                thing.seq = self._engine.store.next_seq()
                self._add(thing)
            if thing.run_id in self.recordings:
                self.recordings[thing.run_id].keep(self._engine.journal)
            key = ROUND, round_id(thing)
        elif isinstance(thing, LedgerEntry):
            self.entries[thing.key] = thing
            key = INTENT, thing.id
        else:
            if self.compaction is None or self.compaction.seq <= thing.seq:  # an old one may be written late
                self.compaction = thing
            key = COMPACTION, str(thing.seq)
        self._refused.pop(key, None)
        waiting = self._waiting.get(key)
        if waiting is not None and not waiting.is_gone:
            waiting.thing = thing
            return
        self._waiting[key] = waiting = _Waiting(self, key, thing)
        self._engine.journal.touch(self.owner, waiting)
        self._engine.journal.after(self.owner, waiting.landed)

    def rows_of(self, thing: Round | LedgerEntry | Compaction) -> tuple[StateRow, list[StateRow]]:
        """The row of a thing as it is now, and the blobs it names.

        They go with it each time, because nobody here can know that one is still there: a prune may take it away with
        the last row that named it. The store passes over those it has.
        """
        if isinstance(thing, LedgerEntry):
            return thing.to_row(), []
        if isinstance(thing, Round):
            row, blobs = encode(thing, self.owner, self.texts)
            beside = self._beside.get((ROUND, row.id))
            if beside:
                blobs = tuple({**beside, **{blob.id: blob for blob in blobs}}.values())
        else:
            row, blobs = encode_compaction(thing, self.owner)
        return row, list(blobs)

    def landed(self, waiting: _Waiting, error: Exception | None) -> None:
        """What waited is on disk, or was refused."""
        if self._waiting.get(waiting.row_key) is waiting:  # else it has changed since
            del self._waiting[waiting.row_key]
            if error is not None:
                self._refused[waiting.row_key] = waiting.thing
        thing = waiting.thing
        if isinstance(thing, Round) and waiting.blobs:
            thing.named = tuple(dict.fromkeys((*thing.named, *(name.rpartition(":")[2] for name in waiting.blobs))))
        if error is None:
            self._beside.pop(waiting.row_key, None)
            noted = [name for blob in waiting.blobs.values() if (name := noted_in(blob.body)) is not None]
            if noted:
                HOLDS.release(holder_of(self._engine.store, self.owner), noted)
        elif waiting.blobs:  # nobody knows whether they are there: they are named, and written, once more
            self._beside.setdefault(waiting.row_key, {}).update(waiting.blobs)

    def end_entry(self, entry: LedgerEntry, change: Change, reason: str = "") -> None:
        """Something has become of a call with side effects."""
        self.keep(entry.change(change, now_ms=self._engine.wall(), reason=reason))

    def drop_entry(self, entry: LedgerEntry) -> None:
        """A call was intended, and will be intended anew: nothing of it has begun."""
        key = INTENT, entry.id
        self.entries.pop(entry.key, None)
        self._waiting.pop(key, None)
        self._refused.pop(key, None)
        self._engine.journal.forget(self.owner, StateKey(*key))

    def amend(self, run_id: str, number: int, result: ToolResult) -> None:
        """A call in the background has ended, and no message tells that: its round says so from now on."""
        origin = origin_of(run_id, self.lineage)
        for one in self.rounds:
            known = one.results.get(result.call_id) if one.number == number else None
            if known is None or known.status is not ResultStatus.BACKGROUND:
                continue
            if origin_of(one.run_id, self.lineage) == origin:
                one.amend(result)
                if one.run_id in self.recordings:
                    self.recordings[one.run_id].amended(number, result)
                self.keep(one)

    def note_artifact(self, run_id: str, number: int, artifact: str) -> None:
        """A message tells of an artifact: until a round has that message, the round of its call names it."""
        note = note_of(artifact)
        digest, tenant = digest_of(note), self.owner.tenant
        for one in self.run(run_id):
            if one.number == number:
                blob = StateRow(BLOB, f"{tenant}:{digest}", tenant, "", "", one.seq, 0, "", note)
                self._beside.setdefault((ROUND, round_id(one)), {})[blob.id] = blob
                one.named = tuple(dict.fromkeys((*one.named, digest)))
                self.keep(one)

    def next_seq(self) -> int:
        """The next place in the store."""
        return self._engine.store.next_seq()

    def forget_line(self, origin: str) -> None:
        """A run was rolled back: it and those that it went on for are no part of the conversation any more."""
        for one in self.rounds:
            if one.state is not RoundState.FORGOTTEN and origin_of(one.run_id, self.lineage) == origin:
                one.state = RoundState.FORGOTTEN
                self.keep(one)

    def forget_run_over(self, message_id: str) -> None:
        """The newest run over a message was rolled back, with those that it went on for."""
        if (run_id := self._run_of.get(message_id, "")) in self._runs:
            self.forget_line(origin_of(run_id, self.lineage))

    def keep_unsaved(self) -> None:
        """Write again what the store has refused."""
        for thing in list(self._refused.values()):
            self.keep(thing)

    async def committed(self) -> None:
        """Wait until everything that was kept is on disk; raises what the store says."""
        if self._engine.journal.has(self.owner):
            await self._engine.journal.committed(self.owner)


class _Waiting:
    """Something on its way to the store: it becomes a row when its group leaves, however often it changes before."""

    __slots__ = ("_book", "blobs", "is_gone", "row_key", "thing")

    def __init__(self, book: Book, key: tuple[str, str], thing: Round | LedgerEntry | Compaction) -> None:
        self._book = book
        self.row_key = key
        self.thing = thing
        self.is_gone = False
        self.blobs: dict[str, StateRow] = {}

    def to_rows(self) -> list[Row]:
        self.is_gone = True
        row, blobs = self._book.rows_of(self.thing)
        self.blobs = {blob.id: blob for blob in blobs}
        return [row, *blobs]

    def landed(self, error: Exception | None) -> None:
        self._book.landed(self, error)


async def _all_states(history: History, owner: Owner, kind: str) -> list[StateRow]:
    rows: list[StateRow] = []
    while page := await history.states(owner, kind, after_seq=rows[-1].seq if rows else 0, limit=PAGE):
        rows += page
        if len(page) < PAGE:
            break
    return rows
