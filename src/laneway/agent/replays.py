"""Histories of runs out of a store: of a run that was recorded, its record; of any other, what its checkpoints tell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from laneway.agent.book import Book
from laneway.dialogue import ToolCall, Utterance
from laneway.errors import StoreCorruptError, UnknownRunError
from laneway.kernel.checkpoints import BLOB, COMPACTION, ROUND, blobs_of, decode, decode_compaction, round_id
from laneway.kernel.fork_calls import Known
from laneway.kernel.histories import LoggedMachine, Op, RunHistory, Said, from_utterance
from laneway.kernel.mailbox import session_id
from laneway.kernel.record_pages import RECORD, unpacked
from laneway.kernel.rounds import Round, RoundState
from laneway.kernel.run_words import tell_run
from laneway.kernel.turn_machine import Limits
from laneway.mail import TurnState
from laneway.rows import Owner, StateRow

if TYPE_CHECKING:
    from laneway.agent.session import AsyncSession
    from laneway.dialogue import ToolSpec
    from laneway.ports import History

__all__ = ("FORK", "SessionCode", "fork_of", "history_of", "how_ended", "known_of", "reading_book", "tell_stored")

FORK: Final = "fork"
"""The kind of the row that says where a session comes from."""

PAGES = 50
PAGE = 1_000
MOST = 1_000_000
"""Of limits that nobody has written down."""


class SessionCode:
    """The program of today: what a session would tell its model, and how it would make calls."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    def system(self) -> str:
        """The system prompt."""
        return self._session.system_text()

    def tools(self) -> Sequence[ToolSpec]:
        """The tools."""
        return self._session.tool_specs

    def may_run_beside(self, call: ToolCall) -> bool:
        """Whether a call may run beside its neighbours."""
        return self._session.may_run_beside(call)

    def limits(self) -> Limits:
        """When a run ends by itself."""
        settings = self._session.settings
        return Limits(max_tool_rounds=settings.max_tool_rounds, max_calls_per_answer=settings.max_calls_per_answer)

    def options(self) -> Sequence[Any]:
        """The settings that a model is asked with."""
        settings = self._session.settings
        return settings.max_output_tokens, settings.temperature, settings.thinking_budget

    def plan_steps(self) -> int:
        """The most steps of a plan that is asked for first; 0: there is to be none."""
        settings = self._session.settings
        return settings.max_plan_steps if settings.planning else 0


async def history_of(history: History, owner: Owner, run_id: str) -> RunHistory:
    """The history of one run of a session, from what a store keeps."""
    row = await history.state("turn", run_id)
    if row is None or (row.tenant, row.workspace, row.session) != owner:
        raise UnknownRunError(f"there is no run {run_id!r} in session {owner.session!r}", hint="runs() lists them")
    reader = _Reader(history, owner)
    steps = await reader.recorded(run_id)
    body = json.loads(row.body)
    about: Op = {
        "run_id": run_id,
        "session_id": owner.session,
        "tenant": owner.tenant,
        "workspace": owner.workspace,
        "state": row.state,
        "reason": body.get("reason") or "",
        "recorded": bool(steps),
    }
    if (fork := await fork_of(history, owner, body.get("messages") or ())) is not None:
        about["fork"] = fork
    if not steps:
        steps = await reader.from_checkpoints(row)
    return RunHistory(about=about, steps=tuple(steps))


async def fork_of(history: History, owner: Owner, messages: Sequence[str]) -> Op | None:
    """From where the run over these messages goes on, if it is the first of a fork."""
    row = await history.state(FORK, session_id(owner))
    facts = {} if row is None else json.loads(row.body)
    is_first = facts.get("message_id", "") in messages
    return {"run_id": facts["run_id"], "step": facts["step"]} if is_first else None


def how_ended(row: StateRow) -> tuple[str, str]:
    """Why a run is where a store says it is, and its answer."""
    body = json.loads(row.body)
    reason = body.get("reason") or ""
    if row.state == TurnState.SUCCEEDED:
        reason = "it answered"
    elif row.state == TurnState.INTERRUPTED:
        reason = reason.removesuffix("; it runs again")  # another run goes on, or reports
    return reason, body.get("answer") or ""


async def tell_stored(history: History, row: StateRow) -> str:
    """What a run did, waited for and cost, and how it ended, in words, from what a store keeps."""
    rounds = await reading_book(history, Owner(row.tenant, row.workspace, row.session)).read_run(row.id)
    return tell_run(row.id, row.state, *how_ended(row), rounds)


async def known_of(history: History, owner: Owner, run_id: str) -> Known:
    """What a store knows by now of the calls of a run, for those who go on from a step of it."""
    book = reading_book(history, owner)
    rounds = await book.read_run(run_id)
    origin, before = run_id, rounds
    while before and before[0].resumed_from:
        origin = before[0].resumed_from
        before = await book.read_run(origin)
    entries = {entry.key: entry for entry in await book.all_entries()}
    return Known(rounds={one.number: one for one in rounds}, entries=entries, origin=origin)


def reading_book(history: History, owner: Owner) -> Book:
    """The book of a session that is not in memory: it can be read, and nothing else."""
    engine = SimpleNamespace(store=SimpleNamespace(history=history))
    return Book(cast("Any", engine), owner, is_read_only=True)


class _Reader:
    """Reads the runs of one session."""

    def __init__(self, history: History, owner: Owner) -> None:
        self._history = history
        self._owner = owner
        self._book = reading_book(history, owner)

    # ---- runs that were recorded ----

    async def recorded(self, run_id: str) -> list[Op]:
        """What a recorder has written; empty if there was none."""
        steps: list[Op] = []
        page = 0
        while True:
            names = [f"{run_id}/{number:06d}" for number in range(page + 1, page + PAGES + 1)]
            found = [row for row in await self._history.states_by_id(RECORD, names) if row is not None]
            for row in found:
                if (row.tenant, row.workspace, row.session) == self._owner:
                    steps += unpacked(row, await self._texts(row))
            page += PAGES
            if len(found) < PAGES:
                break
        return [await self._based(step) if step["op"] == "base" else step for step in steps]

    async def _texts(self, row: StateRow) -> dict[str, str]:
        names = blobs_of(row)
        stored = await self._history.states_by_id(BLOB, names) if names else []
        texts: dict[str, str] = {}
        for name, blob in zip(names, stored, strict=True):
            if blob is None:
                raise StoreCorruptError(
                    f"a page of the record of run {row.id.rpartition('/')[0]!r} lacks the text {name!r}",
                    hint="put a backup of the store in its place; other runs are not concerned",
                    kind=RECORD,
                    row_id=row.id,
                )
            texts[name.partition(":")[2]] = json.loads(blob.body)
        return texts

    async def _based(self, step: Op) -> Op:
        """What was said before the run, in full; `changed` if the store tells it otherwise by now."""
        said: list[Utterance] = []
        if step["summary"] and (summary := await self._summary(step["summary"])) is not None:
            said.append(summary)
        left_out = set(step["not"])
        for one in await self._rounds(step["c"], step["after"], step["upto"]):
            if one.run_id != step["without"] and round_id(one) not in left_out:
                said += one.utterances()
        now = Said().all_of(said)
        told = {"op": "base", "said": [from_utterance(each) for each in said], "digest": now}
        return told if now == step["digest"] else {**told, "digest": step["digest"], "changed": True}

    async def _summary(self, seq: int) -> Utterance | None:
        rows = await self._history.states(self._owner, COMPACTION, after_seq=seq - 1, limit=1)
        if not rows or rows[0].seq != seq:
            return None  # it was pruned
        blobs = await self._book._load_blobs(self._history, rows)  # noqa: SLF001 - it is ours, and only reads
        return decode_compaction(rows[0], blobs.get).summary

    async def _rounds(self, conversation: int, after: int, upto: int) -> list[Round]:
        rows: list[StateRow] = []
        while after < upto:
            page = await self._history.states(self._owner, ROUND, after_seq=after, limit=PAGE)
            rows += [row for row in page if row.seq <= upto]
            if len(page) < PAGE:
                break
            after = page[-1].seq
        return [one for one in await self._decoded(rows) if one.conversation == conversation]

    async def _decoded(self, rows: list[StateRow]) -> list[Round]:
        book = self._book
        blobs = await book._load_blobs(self._history, rows)  # noqa: SLF001
        if rows and not book.texts:
            await book._load_texts(self._history, rows, book.texts)  # noqa: SLF001
        for row in rows:  # an answer that could not be stored, and was told so
            book.texts.setdefault(row.id.rpartition("/")[0], "")
        return [decode(row, blobs.get, book.texts) for row in rows]

    # ---- all others ----

    async def from_checkpoints(self, row: StateRow) -> list[Op]:
        """The rounds of a run, each of them one step."""
        run_id = row.id
        rounds = await self._book.read_run(run_id)
        if not rounds:
            is_over = TurnState(row.state).is_final
            hint = "it never came to its first one: there is nothing to tell"
            raise UnknownRunError(
                f"run {run_id!r} is {row.state} and has no checkpoint",
                hint=hint if is_over else "it has not come to its first one yet: ask again later",
            )
        steps: list[Op] = []
        first = rounds[0]
        before = await self._rounds(first.conversation, 0, first.seq - 1)
        said = [each for one in before if one.state is not RoundState.FORGOTTEN for each in one.utterances()]
        facts = {"said": [from_utterance(each) for each in said], "digest": Said().all_of(said)}
        machine = LoggedMachine(
            run_id,
            log=steps.append,
            limits=Limits(max_tool_rounds=MOST, max_calls_per_answer=MOST),
            may_run_beside=lambda call: False,
            conversation=first.conversation,
            resumed_from=first.resumed_from,
            first=first.number,
        )
        steps.append({"op": "base", **facts, "changed": True})  # nobody knows which summary there was
        for one in rounds:
            machine.put(one)
        return steps
