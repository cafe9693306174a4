"""Recording runs: what a run is told and decides, kept in the store beside its rounds.

The pages of a record are written with the rounds that they are about, in the same commit, so recording costs no commit
of its own, and a record never says less than the checkpoint beside it. A long text is a blob, which rounds share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from laneway.agent_events import AgentEvent
from laneway.dialogue import Answer, CallChunk, Chunk, ModelRequest, ReasoningChunk, TextChunk, ToolCall, ToolResult
from laneway.errors import describe, text_of
from laneway.kernel.checkpoints import BLOB, round_id
from laneway.kernel.histories import LoggedMachine, Op, Said, from_round
from laneway.kernel.record_pages import RECORD, packed
from laneway.kernel.replaying import asked, code_step
from laneway.kernel.rounds import Round
from laneway.kernel.turn_machine import AskModel, TurnMachine
from laneway.rows import Row, StateRow

if TYPE_CHECKING:
    from laneway.agent.loop import Run
    from laneway.dialogue import Utterance
    from laneway.runtime.journal import Journal

__all__ = ("Recording", "plain")

DEEP_MAX: Final = 64
NUMBER_MAX: Final = 10**300
LEFT_OUT: Final = frozenset({"tool_output", "duration_ms", "remaining_ms"})
"""Of events: what is in a result already, and what no clock but the machine's own can say."""


class Recording:
    """Writes one run down, if its session wants that."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._book = run.book
        self.is_on = run.session.settings.record
        self._ops: list[Op] = []
        self._page = 1
        self._waiting: _Page | None = None
        self._said = Said()
        self._code: Op = {}
        self._chunks: list[list[Any]] = []
        self._is_over = False
        if self.is_on:
            run.book.recordings[run.id] = self

    def machine(self, run_id: str, **options: Any) -> TurnMachine:
        """The machine of the run."""
        if not self.is_on:
            return TurnMachine(run_id, **options)
        return LoggedMachine(run_id, log=self._log, **options)

    def _log(self, op: Op) -> None:
        self._ops.append(op)

    @property
    def _machine(self) -> LoggedMachine:
        machine = self._run.machine
        assert isinstance(machine, LoggedMachine)
        return machine

    # ---- what is told ----

    def based(self, base: Sequence[Utterance], without: str) -> None:
        """What was said before the run: which rounds that is."""
        if not self.is_on:
            return
        book, conversation = self._book, self._run.turn.conversation
        summary = book.compaction if book.compaction and book.compaction.conversation == conversation else None
        after = 0 if summary is None else summary.upto_seq
        known = [one for one in book.rounds if one.conversation == conversation and one.seq > after]
        known = [one for one in known if one.run_id != without]
        told = {round_id(one) for one in book.told(conversation, without)}
        self._log(
            {
                "op": "base",
                "c": conversation,
                "summary": 0 if summary is None else summary.seq,
                "after": after,
                "upto": max((one.seq for one in known), default=0),
                "without": without,
                "not": [name for name in map(round_id, known) if name not in told],
                "digest": self._said.all_of(base),
            }
        )

    def goes_on_for(self, line: Iterable[Round]) -> None:
        """The rounds of the runs before, which a plan is read from."""
        if self.is_on:
            self._log({"op": "line", "rounds": [from_round(one) for one in line]})

    async def ask(self, request: ModelRequest) -> Answer:
        """Ask the model, and write down what it is sent and how it answers."""
        budgeting = self._run.budgeting
        if not self.is_on:
            return await budgeting.ask(request)
        self._ask(request)
        try:
            answer = await budgeting.ask(request)
        except BaseException as error:
            self._log({"op": "failed", "error": describe(error), "t": self._run.wall()})
            raise
        self._log({"op": "chunks", "pieces": self._chunks, "t": self._run.wall()})
        return answer

    def _ask(self, request: ModelRequest) -> None:
        code = code_step(request.system, request.tools)
        if code != self._code:
            self._code = code
            self._log(code)
        self._chunks = []
        decided = self._machine.next()
        number = decided.number if isinstance(decided, AskModel) and request.purpose != "summary" else 0
        more = (request.output_max, request.temperature, request.thinking_budget)
        step = asked(self._machine, self._said, number=number, purpose=request.purpose, more=more, code=code)
        self._log({**step, "t": self._run.wall()})

    def heard(self, chunk: Chunk) -> None:
        """A piece of an answer: how long it is; what it says is in the answer."""
        if not self.is_on:
            return
        if isinstance(chunk, TextChunk):
            self._chunks.append(["text", len(chunk.text)])
        elif isinstance(chunk, ReasoningChunk):
            self._chunks.append(["reasoning", len(chunk.text)])
        elif isinstance(chunk, CallChunk):
            self._chunks.append(["call", len(chunk.arguments), chunk.call_id, chunk.name])

    def amended(self, number: int, result: ToolResult) -> None:
        """A call in the background has its real end."""
        self._machine.amended(number, result)

    def told(self, event: AgentEvent) -> None:
        """Whoever watches was told something."""
        if self.is_on and not event.ephemeral and not self._is_over:
            data = {text_of(name): plain(value) for name, value in event.data.items() if name not in LEFT_OUT}
            self._log({"op": "event", "type": event.event_type, "data": data, "t": self._run.wall()})

    # ---- what is decided ----

    def acts(self, calls: Iterable[ToolCall]) -> None:
        """These calls are made together."""
        if self.is_on:
            self._machine.acts(calls)

    def ends(self, one: Round) -> None:
        """The run has its answer."""
        if self.is_on:
            self._machine.ends(one)
            self._is_over = True

    def fails(self, reason: str) -> None:
        """A limit ends the run."""
        if self.is_on:
            self._machine.fails(reason)

    def leave(self) -> None:
        """The run is over."""
        self._is_over = True
        if self._book.recordings.get(self._run.id) is self:
            del self._book.recordings[self._run.id]

    # ---- writing ----

    def keep(self, journal: Journal) -> None:
        """Write what there is with the next commit."""
        if self._waiting is None or self._waiting.is_gone:
            self._waiting = page = _Page(self)
            journal.touch(self._book.owner, page)
            journal.after(self._book.owner, page.landed)

    def flush(self) -> None:
        """The run ends before its time: what was logged since its last checkpoint is written with its end."""
        if self._ops and self.is_on:
            self.keep(self._run.turn._engine.journal)  # noqa: SLF001 - the turn's own engine

    def take(self) -> tuple[int, list[Op]]:
        """What is to be written now, and on which page."""
        ops, self._ops = self._ops, []
        page, self._page = self._page, self._page + 1
        return page, ops

    def put_back(self, page: int, ops: list[Op]) -> None:
        """It was not written: the same page has to be written again, with what has come since."""
        self._ops = ops + self._ops
        self._page = page

    def rows(self, page: int, ops: list[Op]) -> list[StateRow]:
        """The rows of one page: the page, and the blobs it names."""
        owner = self._book.owner
        seq = self._book.next_seq()
        body, texts = packed(ops)
        name = f"{self._run.id}/{page:06d}"
        row = StateRow(RECORD, name, *owner, seq, 0, "", body)
        blobs = (StateRow(BLOB, f"{owner.tenant}:{key}", owner.tenant, "", "", seq, 0, "", text) for key, text in texts)
        return [row, *blobs]


class _Page:
    """A page on its way to the store."""

    __slots__ = ("_ops", "_page", "_recording", "is_gone", "row_key")

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._ops: list[Op] = []
        self._page = 0
        self.is_gone = False
        self.row_key = (RECORD, id(self))

    def to_rows(self) -> list[Row]:
        self.is_gone = True
        self._page, self._ops = self._recording.take()
        return list(self._recording.rows(self._page, self._ops))

    def landed(self, error: Exception | None) -> None:
        self.is_gone = True
        if error is not None and self._page:
            self._recording.put_back(self._page, self._ops)


def plain(value: Any, deep: int = DEEP_MAX) -> Any:
    """A copy of what watchers are told that any file can keep: what is no JSON becomes text, and never an error."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if abs(value) < NUMBER_MAX else text_of(value)  # which no number that is none is
    if isinstance(value, Mapping) and deep:
        return {text_of(name): plain(each, deep - 1) for name, each in value.items()}
    if isinstance(value, list | tuple) and deep:
        return [plain(each, deep - 1) for each in value]
    if isinstance(value, set | frozenset):  # in an order that is the same in every process
        return sorted(map(text_of, value))
    return text_of(value)
