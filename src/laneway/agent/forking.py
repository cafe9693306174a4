"""What a session can do with its past: write a run down as one file, make it again, go on from a step of it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from laneway.agent.replays import SessionCode, history_of
from laneway.dialogue import Answer, Results
from laneway.errors import UnknownRunError, UsageError
from laneway.kernel.checkpoints import to_json
from laneway.kernel.histories import RunHistory
from laneway.kernel.replaying import Replay, play
from laneway.kernel.rounds import Round, RoundState
from laneway.rows import StateRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laneway.agent.agent import AsyncAgent
    from laneway.agent.book import Book
    from laneway.agent.host import Host
    from laneway.agent.session import AsyncSession
    from laneway.agent.settings import SessionSettings
    from laneway.agent.skills import Skills
    from laneway.agent.subagents import Delegates
    from laneway.dialogue import Prompt, Utterance
    from laneway.mail import Receipt
    from laneway.options import SessionOptions
    from laneway.ports import Store
    from laneway.rows import Owner

__all__ = ("FORK", "SAID", "Fork", "Forking", "check_step", "fork_into", "forked_from", "past_of")

FORK: Final = "fork"
"""The kind of the row that says where a session comes from."""

SAID: Final = "laneway.said"
"""What a run that is forked was told and has not answered yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """A session that goes on from a step of a run: where it comes from, and the message by which it goes on."""

    session_id: str
    from_run: str
    step: int
    message_id: str = ""


class Forking(ABC):
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

    @abstractmethod
    async def ready(self) -> Any:
        """Open what is needed."""

    def system_text(self) -> str:
        """The system prompt, with what skills and sub-agents add to it."""
        parts = (self.settings.system, self.skills.system_text(), self.delegates.system_text())
        return "\n\n".join(part for part in parts if part)

    async def run_history(self, run_id: str) -> RunHistory:
        """Everything that went into a run of this session; `laneway.replay.save` makes a file of it."""
        await self.ready()
        await self.book.committed()
        return await history_of(self.host.inbox.engine.store.history, self.owner, run_id)

    async def replay(self, run: str | RunHistory) -> Replay:
        """Make a run again with the system prompt and the tools of this session; no model and no tool is called.

        `run` is a run of this session, or a history from elsewhere. Raises `ReplayDivergedError` with the first step
        that would not happen in the same way today.
        """
        await self.ready()
        history = run if isinstance(run, RunHistory) else await self.run_history(run)
        return play(history, SessionCode(self))  # type: ignore[arg-type]  # it is a session

    async def fork(
        self,
        run: str | RunHistory,
        step: int | None = None,
        *,
        prompt: str = "",
        session_id: str | None = None,
        **overrides: Any,
    ) -> AsyncSession:
        """A new session that goes on live from a step of a run: what came before is as it was, and is not done again.

        Without `step` it goes on after the last one, which needs a `prompt`. With a `prompt` it is told that. The run
        stays as it is. Wait for the end with `wait_idle`.
        """
        await self.ready()
        history = run if isinstance(run, RunHistory) else await self.run_history(run)
        check_step(history, step)
        past_of(history, step, prompt)
        name = session_id or self.host.env.ids.new_id("session")
        options = replace_options(self.options, overrides)
        session = self._agent.session(self._workspace, options, session_id=name)
        await fork_into(session, history, step, prompt)
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
    said = [each for each in past.pending if each.role == "user"]
    if not said and not prompt and (not past.rounds or past.rounds[-1].state is RoundState.FINAL):
        raise UsageError(
            f"at step {at} of run {history.run_id} there is nothing to go on with",
            hint="give a prompt, or a step before the answer",
        )
    return past


async def fork_into(session: AsyncSession, history: RunHistory, step: int | None, prompt: str = "") -> Receipt:
    """Write the past of a fork into a new session, in one commit, and have it go on; the message by which it does."""
    past = past_of(history, step, prompt)
    await session.ready()
    book, engine = session.book, session.host.inbox.engine
    await book.load()
    if book.rounds:
        raise UsageError(f"session {session.session_id!r} has a past already", hint="fork into a new session")
    ids = session.host.env.ids
    base_id, run_id = ids.new_id("run"), ids.new_id("run")
    conversation = engine.conversation(session.owner)
    for one in [*_rounds_of(past.base, base_id), *_renamed(past.rounds, run_id)]:
        book.keep(replace(one, conversation=conversation, seq=0))
    facts = {
        "v": 1,
        "run_id": history.run_id,
        "session_id": history.about.get("session_id", ""),
        "step": check_step(history, step),
    }
    row = StateRow(FORK, _name_of(session), *session.owner, book.next_seq(), 0, "", "")
    engine.journal.add(session.owner, row._replace(body=to_json(facts)))
    await book.committed()
    return await _go_on(session, past, run_id, prompt)


def _renamed(rounds: Sequence[Round], run_id: str) -> list[Round]:
    """The rounds of the run under a name of their own; the last may be open."""
    return [
        replace(one, run_id=run_id, messages=(), resumed_from="", results=dict(one.results), times={}, waits=())
        for one in rounds
    ]


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


def _name_of(session: AsyncSession) -> str:
    return f"{session.owner.tenant}/{session.owner.workspace}/{session.session_id}"


async def _go_on(session: AsyncSession, past: Replay, run_id: str, prompt: str) -> Receipt:
    """The first message of the fork."""
    said = [*(each.text for each in past.pending if each.role == "user"), *([prompt] if prompt else [])]
    inbox, tenant = session.host.inbox, session.owner.tenant
    if not past.rounds or past.rounds[-1].state is RoundState.FINAL:
        return await inbox.submit(session.session_id, "\n".join(said), tenant=tenant, mode=session.settings.mode)
    errand = {"laneway.resume_run": run_id, SAID: said}
    return await inbox.submit(
        session.session_id, f"Go on from {past.history.run_id}", kind="system", tenant=tenant, attachments=[errand]
    )


async def forked_from(session: AsyncSession) -> Fork:
    """Where a session comes from."""
    history = session.host.inbox.engine.store.history
    row = await history.state(FORK, _name_of(session))
    if row is None:
        raise UnknownRunError(f"session {session.session_id!r} is no fork", hint="it began by itself")
    facts = json.loads(row.body)
    return Fork(session_id=session.session_id, from_run=facts["run_id"], step=facts["step"])
