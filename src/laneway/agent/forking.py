"""What a session can do with its past: write a run down as one file, make it again, go on from a step of it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from laneway.agent.identified import Kept, inherit, labels_in, read_labels
from laneway.agent.looking import Looking, Past
from laneway.agent.replays import FORK, SessionCode, history_of, known_of
from laneway.dialogue import Answer, Prompt, Results
from laneway.errors import UnknownRunError, UsageError
from laneway.kernel.checkpoints import to_json
from laneway.kernel.fork_calls import Known, OpenCalls, kept_result
from laneway.kernel.histories import RunHistory, from_prompt, to_utterance
from laneway.kernel.mailbox import session_id
from laneway.kernel.replaying import Replay, play
from laneway.kernel.rounds import Round, RoundState
from laneway.rows import StateRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from laneway.agent.agent import AsyncAgent
    from laneway.agent.book import Book
    from laneway.agent.host import Host
    from laneway.agent.session import AsyncSession
    from laneway.agent.settings import SessionSettings
    from laneway.agent.skills import Skills
    from laneway.agent.subagents import Delegates
    from laneway.dialogue import Utterance
    from laneway.mail import Receipt
    from laneway.options import SessionOptions
    from laneway.ports import History, Store
    from laneway.records import Effect
    from laneway.rows import Owner, Row
    from laneway.runtime.arrivals import Beside

__all__ = (
    "FORK",
    "SAID",
    "Fork",
    "Forking",
    "Wish",
    "check_step",
    "find_fork",
    "fork_into",
    "forked_from",
    "forks_among",
    "past_of",
)

SAID: Final = "laneway.said"
"""What a run that is forked was told and has not answered yet."""

NO_LABELS: Final = Kept({})

SPEAKS: Final = frozenset({"say", "add", "go_on", "take_over"})
"""Steps after which a model has something to answer."""

TOLD_MAX: Final = 10_000
"""So much of a prompt stands in the conversation of a fork; its model is told all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A session that goes on from a step of a run: where it comes from, and the message by which it goes on.

    `key` and `digest` are those of the request that has asked for it, if it had a key.
    """

    session_id: str
    from_run: str
    step: int
    message_id: str = ""
    key: str = ""
    digest: str = ""


class Forking(Looking):
    """The side of a session that has to do with histories."""

    session_id: str
    owner: Owner
    host: Host
    book: Book
    settings: SessionSettings
    options: SessionOptions
    skills: Skills
    delegates: Delegates
    _agent: AsyncAgent
    _store: Store | None
    _workspace: str

    @cached_property
    def forking(self) -> asyncio.Lock:
        """Who gives it a past has this."""
        return asyncio.Lock()

    def system_text(self) -> str:
        """The system prompt, with what skills and sub-agents add to it."""
        parts = (self.settings.system, self.skills.system_text(), self.delegates.system_text())
        return "\n\n".join(part for part in parts if part)

    async def run_history(self, run_id: str) -> RunHistory:
        """Everything that went into a run of this session; `laneway.replay.save` makes a file of it."""
        async with self._past() as past:
            return await self._history_in(past, run_id)

    async def _history_in(self, past: Past, run: str | RunHistory) -> RunHistory:
        if isinstance(run, RunHistory):
            return run
        if past.is_live:
            await past.book.committed()
        return await history_of(past.history, self.owner, run)

    async def replay(self, run: str | RunHistory) -> Replay:
        """Make a run again with the system prompt and the tools of this session; no model and no tool is called.

        `run` is a run of this session, or a history from elsewhere. Raises `ReplayDivergedError` with the first step
        that would not happen in the same way today. A session that is not in memory is not opened for it.
        """
        async with self._past() as past:
            history = await self._history_in(past, run)
            if not past.is_live:  # the tools of its servers are part of what its model is told
                await self._agent.sources.equip(self)  # type: ignore[arg-type]  # it is a session
        return play(history, SessionCode(self))  # type: ignore[arg-type]

    async def fork(
        self,
        run: str | RunHistory,
        step: int | None = None,
        *,
        prompt: str = "",
        session_id: str | None = None,
        **overrides: Any,
    ) -> AsyncSession:
        """A new session that goes on live from a step of a run: what came before is as it was.

        Calls that had not begun at the step are made; a write that had is not, and keeps what it has come to, or is
        `unknown`. Without `step` it goes on after the last one, which needs a `prompt` if the run is over. With a
        `prompt` it is told that. The run stays as it is, and so does this session: if it is at rest, it stays there.
        Wait for the end with `wait_idle`.
        """
        async with self._past() as past:
            history = await self._history_in(past, run)
            check_step(history, step)
            past_of(history, step, prompt)
            known = await known_of(past.history, self.owner, history.run_id)
            wish = Wish(step=step, prompt=prompt, known=known, labels=await labels_in(past.history, self.owner))
            name = session_id or past.ids.new_id("session")
        options = replace_options(self.options, overrides)
        session = self._agent.session(self._workspace, options, session_id=name)
        try:
            async with session.forking:
                await fork_into(session, history, wish)
        except BaseException:
            await session.close()  # nobody else has it, and it may be asked for again
            raise
        return session


def replace_options(options: SessionOptions, overrides: dict[str, Any]) -> SessionOptions:
    """The options of a session, and what is said otherwise."""
    return type(options)(**{**options.to_mapping(), **overrides})


def check_step(history: RunHistory, step: int | None) -> int:
    """The number of a step that a history has; the one after the last for None."""
    last = len(history.steps) + 1
    if step is None:
        return last
    if type(step) is not int or not 1 <= step <= last:
        raise UsageError(
            f"run {history.run_id} has no step {step!r}", hint=f"its steps are 1 to {last - 1}; {last} is its end"
        )
    return step


def past_of(history: RunHistory, step: int | None, prompt: str) -> Replay:
    """A run up to a step, if it can go on from there."""
    at = check_step(history, step)
    past = play(history, upto=at)
    if all(each["op"] != "base" for each in history.steps[: at - 1]):  # what was said before is told a little later
        told = next((each for each in history.steps if each["op"] == "base"), None)
        past = replace(past, base=() if told is None else tuple(map(to_utterance, told["said"])))
    said = [each for each in past.pending if each.role == "user"]
    if not said and not prompt and _is_over(past):
        raise UsageError(f"at step {at} of run {history.run_id} there is nothing to go on with", hint=_way_out(history))
    return past


def _way_out(history: RunHistory) -> str:
    """From which steps a fork needs no prompt: from when its model has something to answer until it has answered."""
    numbered = list(enumerate(history.steps, 1))
    said = [number for number, step in numbered if step["op"] in SPEAKS]
    answered = [number for number, step in numbered if step["op"] == "answered"]
    if not said or not answered or answered[-1] <= said[0]:
        return "give a prompt"
    return f"give a prompt, or one of the steps {said[0] + 1} to {answered[-1]}, at which its model had not answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """From which step a fork goes on, what it is told, and what is known by now of its run: its calls, its labels.

    `key` and `digest` tell whether a request that comes again is the same one.
    """

    step: int | None
    prompt: str = ""
    known: Known | None = None
    labels: Kept = NO_LABELS
    key: str = ""
    digest: str = ""


async def fork_into(session: AsyncSession, history: RunHistory, wish: Wish) -> Receipt:
    """Write the past of a fork into a new session with the message by which it goes on: all in one commit, or nothing.

    Whoever calls this has `session.forking`, so that no two pasts get into one session.
    """
    at = check_step(history, wish.step)
    past = past_of(history, at, wish.prompt)
    await session.ready()
    book, engine = session.book, session.host.inbox.engine
    await book.load()
    await _check_new(session)
    own = await read_labels(engine, session.owner)
    ids = session.host.env.ids
    base_id, run_id = ids.new_id("run"), ids.new_id("run")
    mine = _renamed(_kept(past), run_id)
    _end_begun(mine, history, at, wish, {each.name: each.effect for each in session.tool_specs})
    rounds = [*_rounds_of(past.base, base_id), *mine]
    origin: dict[str, Any] = {
        "v": 1,
        "run_id": history.run_id,
        "session_id": history.about.get("session_id", ""),
        "step": at,
        **({"key": wish.key, "digest": wish.digest} if wish.key else {}),
    }

    def beside(receipt: Receipt) -> Row:
        conversation = engine.conversation(session.owner)
        for one in rounds:
            book.keep(replace(one, conversation=conversation, is_copy=True, seq=0))
        inherit(session, own, wish.labels)
        engine.journal.after(session.owner, lambda error: book.unload() if error is not None else None)
        facts = {**origin, "message_id": receipt.message_id}
        return StateRow(FORK, session_id(session.owner), *session.owner, book.next_seq(), 0, "", to_json(facts))

    onward = _Onward(run_id if mine else base_id, at, wish.prompt)
    return await _go_on(session, past, onward, beside)


async def _check_new(session: AsyncSession) -> None:
    """Refuse to give a past to a session in which anything was said or done; `_check_unused` says it once more."""
    history, owner = session.host.inbox.engine.store.history, session.owner
    if await history.messages(owner, limit=1) or await history.states(owner, "turn", limit=1):
        _refuse_used(session)


def _check_unused(session: AsyncSession) -> None:
    """The same of what has come meanwhile, in the moment in which the past is written."""
    box = session.host.inbox.engine.kernel.boxes.get(session.owner)
    if session.book.rounds or (box is not None and (box.items or box.turn is not None)):
        _refuse_used(session)


def _refuse_used(session: AsyncSession) -> NoReturn:
    raise UsageError(
        f"session {session.session_id!r} has a past already: messages or runs of its own",
        hint="fork into a new session",
    )


def _kept(past: Replay) -> list[Round]:
    """The rounds of the run that are part of the conversation: none, if it was rolled back."""
    return [one for one in past.rounds if one.state is not RoundState.FORGOTTEN]


def _is_over(past: Replay) -> bool:
    """Whether its model has been asked nothing that it has not answered."""
    rounds = _kept(past)
    return rounds[-1].state is RoundState.FINAL if rounds else not _goes_on(past)


def _goes_on(past: Replay) -> bool:
    """Whether a run without rounds of its own has to answer what another one had come to, for which it goes on."""
    takes_over = any(step["op"] == "go_on" for step in past.history.steps)
    return takes_over and bool(past.base) and isinstance(past.base[-1], Results)


def _renamed(rounds: Sequence[Round], run_id: str) -> list[Round]:
    """The rounds of the run under a name of their own; the last may be open."""
    return [
        replace(
            one, run_id=run_id, messages=(), resumed_from="", results=dict(one.results), times={}, waits=(), named=()
        )
        for one in rounds
    ]


def _end_begun(rounds: Sequence[Round], history: RunHistory, at: int, wish: Wish, today: Mapping[str, Effect]) -> None:
    """A write that had begun before the step is not made by the fork: it keeps what it has come to."""
    if not rounds or rounds[-1].state is not RoundState.ACTING:
        return
    for each in OpenCalls(history.steps).at(at):
        result = kept_result(each, wish.known, today.get(each.call.name))
        if result is not None:
            rounds[-1].results.setdefault(each.call.id, result)


def _rounds_of(base: Sequence[Utterance], run_id: str) -> list[Round]:
    """What was said before the run, as rounds of one run that is over."""
    rounds: list[Round] = []
    prompts: list[Prompt] = []
    for said in base:
        if isinstance(said, Results):
            rounds[-1].results.update({each.call_id: each for each in said.results})
        elif isinstance(said, Answer):
            rounds.append(
                Round(
                    run_id=run_id,
                    number=len(rounds) + 1,
                    prompts=tuple(prompts),
                    answer=said,
                    state=RoundState.DONE if said.calls else RoundState.FINAL,
                )
            )
            prompts = []
        else:
            prompts.append(said)
    if prompts:  # of a run that was ended before its model had answered
        rounds.append(Round(run_id=run_id, number=len(rounds) + 1, prompts=tuple(prompts), state=RoundState.CUT))
    return rounds


class _Onward(NamedTuple):
    """With which run of the past a fork goes on, from which step, and what it is told."""

    run_id: str
    step: int
    prompt: str

    def text_from(self, run_id: str) -> str:
        """What people read of it in the conversation; the model is told the prompt by `SAID`."""
        told = self.prompt if len(self.prompt) <= TOLD_MAX else f"{self.prompt[: TOLD_MAX - 1]}…"
        return f"Go on from {run_id} at step {self.step}{f': {told}' if told else ''}"


async def _go_on(session: AsyncSession, past: Replay, onward: _Onward, beside: Beside) -> Receipt:
    """The first message of the fork, with its past beside it."""
    new = [Prompt(text=onward.prompt)] if onward.prompt else []
    said = [*(each for each in past.pending if each.role == "user"), *new]
    inbox, check = session.host.inbox, partial(_check_unused, session)
    submit = partial(inbox.submit, session.session_id, tenant=session.owner.tenant, beside=beside, check=check)
    if _is_over(past):
        text = "\n".join(each.text for each in said)
        attachments = [one for each in said for one in each.attachments]
        return await submit(text, mode=session.settings.mode, attachments=attachments)
    errand = {"laneway.resume_run": onward.run_id, SAID: [from_prompt(each) for each in said]}
    return await submit(onward.text_from(past.history.run_id), kind="system", attachments=[errand])


async def forked_from(session: AsyncSession) -> Fork:
    """Where a session comes from."""
    found = await find_fork(session.host.inbox.engine.store.history, session.owner)
    if found is None:
        raise UnknownRunError(f"session {session.session_id!r} is no fork", hint="it began by itself")
    return found


async def find_fork(history: History, owner: Owner) -> Fork | None:
    """Where the session of an owner comes from; None: it began by itself."""
    row = await history.state(FORK, session_id(owner))
    return None if row is None else _fork_in(row)


async def forks_among(history: History, owners: Sequence[Owner]) -> list[Fork]:
    """Those of some sessions that are forks; the store is asked for them together."""
    rows = await history.states_by_id(FORK, [session_id(each) for each in owners]) if owners else []
    return [_fork_in(row) for row in rows if row is not None]


def _fork_in(row: StateRow) -> Fork:
    facts = json.loads(row.body)
    return Fork(
        session_id=row.session,
        from_run=facts["run_id"],
        step=facts["step"],
        message_id=facts.get("message_id", ""),
        key=facts.get("key", ""),
        digest=facts.get("digest", ""),
    )
