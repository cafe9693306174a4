"""A store read without its server: the same paths and the same shapes as the API, as far as the disk knows them.

What only a process knows (why something waits, the settings that configuration gives a session, lanes) is left out or
empty. Nothing is changed, and nobody is held up.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import unquote

from laneway.errors import (
    NotFoundError,
    UnknownMessageError,
    UnknownRunError,
    UnknownStoreError,
    UnknownTaskError,
    UsageError,
)
from laneway.identity import IDENTITY, Identity, wanted_labels
from laneway.kernel import stories
from laneway.kernel.mailbox import decode_approval, session_id
from laneway.kernel.messages import decode_message
from laneway.kernel.run_words import state_words
from laneway.kernel.task_entries import TASK, decode_task
from laneway.mail import WAITING_STATES, ApprovalState, MessageState, Outcome, TurnState
from laneway.mail import Final as Ended
from laneway.rows import EntryRow, EventRow, MessageRow, Owner, StateRow
from laneway.stores import open_store
from laneway.stores.sqlite import BUSY_MS, SqliteStore
from laneway.stores.sqlite_reading import SqliteReading
from laneway.system import SystemClock

if TYPE_CHECKING:
    from laneway.kernel.budgets import Count
    from laneway.spending import Budget

__all__ = ("StoreReader",)

OURS: Final = "laneway."  # workspaces of the gateway itself: tokens, what operators did
PAGE: Final = 1_000
FORK: Final = "fork"  # the kind of the row that says where a session comes from
TASKS_MAX: Final = 20_000  # of a session, for those of one run
SUBAGENT: Final = "~"
SESSIONS_MAX: Final = 100_000  # that are looked through for those with a label


class StoreReader:
    """Answers what a server would, from its store. Open it with `with`."""

    def __init__(self, address: str, *, workspace: str = "", tenant: str = "") -> None:
        store = open_store(address)
        if not isinstance(store, SqliteStore):
            raise UnknownStoreError(
                f"{address} keeps nothing when its process ends", hint="name a file: sqlite:///laneway.db"
            )
        self.path = store.path
        self._rows = SqliteReading(store.path, busy_ms=BUSY_MS)
        self.tenant = self._tenant = tenant or "default"
        self._clock = SystemClock()
        try:
            self.workspace = self._choose(workspace)
        except BaseException:
            self._rows.__exit__()
            raise

    def _choose(self, wanted: str) -> str:
        found = [name for name in self._rows.workspaces(self._tenant) if not name.startswith(OURS)]
        if wanted or not found:
            return wanted or "default"
        if len(found) > 1:
            raise UsageError(
                f"this store has {len(found)} workspaces", hint=f"name one with --workspace: {', '.join(found[:20])}"
            )
        return found[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.__exit__()

    # ---- as a server is asked ----

    def get(self, path: str, **params: Any) -> Any:
        """What is at a path, as a server would answer."""
        parts = [unquote(part) for part in path.strip("/").split("/")]
        wanted = {name: value for name, value in params.items() if value is not None}
        for pattern, answer in ANSWERS.items():
            names = pattern.split("/")
            if len(names) == len(parts) and all(name in ("*", part) for name, part in zip(names, parts, strict=True)):
                given = [part for name, part in zip(names, parts, strict=True) if name == "*"]
                return answer(self, *given, **wanted)
        raise UsageError(f"only a running server knows /{'/'.join(parts)}", hint="leave --store out")

    def page(self, path: str, *, limit: int, **params: Any) -> dict[str, Any]:
        """The first `limit` things of a list."""
        found: dict[str, Any] = self.get(path, limit=limit, **params)
        return found

    def lines(self, path: str) -> Iterator[str]:
        """The transcript of a session, or the history of a run, line by line."""
        if path.strip("/").startswith("runs/"):
            from laneway.cli.stored_runs import stored_history  # only who wants one needs it

            turn = self._turn(unquote(path.strip("/").split("/")[1]))
            yield from (
                stored_history(self._rows, turn).removesuffix("\n").split("\n")
            )  # in a text there are other line ends
            return
        owner = self._owner(unquote(path.strip("/").split("/")[1]))
        after = 0
        while rows := self._rows.entries(owner, after_seq=after, limit=PAGE):
            after = rows[-1].seq
            for row in rows:
                facts = {name: getattr(row, name) for name in row._fields if name not in ("body", "workspace")}
                yield json.dumps({**facts, **json.loads(row.body)}, ensure_ascii=False)

    # ---- sessions ----

    def _owner(self, key: str) -> Owner:
        """Whose rows those of a session are; refuses one that there is not."""
        owner = Owner(self._tenant, self.workspace, key)
        if not self._rows.messages(owner, limit=1) and not any(
            row.session == key for row in self._rows.states(owner, "schedule", limit=1)
        ):
            raise NotFoundError(what="session", name=key, hint="a session begins with its first message")
        return owner

    def _live(self, kind: str, session: str | None = None) -> list[StateRow]:
        rows = self._rows.live(self.workspace).states
        return [row for row in rows if row.kind == kind and self._is_ours(row, session)]

    def _waiting(self, session: str | None = None) -> list[MessageRow]:
        rows = self._rows.live(self.workspace).messages
        return [row for row in rows if row.state in WAITING_STATES and self._is_ours(row, session)]

    def _is_ours(self, row: StateRow | MessageRow, session: str | None) -> bool:
        return row.tenant == self._tenant and (session is None or row.session == session)

    def sessions(
        self, *, limit: int = 200, after: str = "", active: bool = False, label: Sequence[str] = ()
    ) -> dict[str, Any]:
        """The sessions that have messages, perhaps only those with some labels."""
        wanted = wanted_labels(label).items()
        turns = {row.session: row for row in self._live("turn")}
        waiting: dict[str, int] = {}
        for row in self._waiting():
            waiting[row.session] = waiting.get(row.session, 0) + 1
        most = SESSIONS_MAX if wanted else limit
        keys = self._rows.sessions(self._tenant, self.workspace, after=after, limit=most)
        if active:
            keys = sorted({*turns, *waiting})[:most]
        if wanted:
            keys = list(islice((key for key in keys if wanted <= self._labels(key).items()), limit))
        shown = [key for key in keys if SUBAGENT not in key]
        items = [self._summary(key, turns.get(key), waiting.get(key, 0)) for key in shown]
        return _page(items, keys[-1] if len(keys) >= limit else None)

    def _summary(self, key: str, turn: StateRow | None, waiting: int) -> dict[str, Any]:
        return {
            "session_key": key,
            "workspace": self.workspace,
            "state": turn.state if turn is not None else "waiting" if waiting else "idle",
            "run_id": None if turn is None else turn.id,
            "waiting": waiting,
            "identity": self._labels(key),
            "resting": False,
            "resting_reason": "",
            "waits_for": "",
        }

    def _labels(self, key: str) -> dict[str, str]:
        row = self._rows.state(IDENTITY, session_id(Owner(self._tenant, self.workspace, key)))
        return {} if row is None else Identity().over(json.loads(row.body)).labels

    def session(self, key: str) -> dict[str, Any]:
        """One session; of its settings those that it has of its own."""
        owner = self._owner(key)
        turns = self._live("turn", key)
        row = self._rows.state("session", session_id(owner))
        own = json.loads(row.body) if row is not None else {}
        settings = {name: {"value": value, "origin": "session"} for name, value in (own.get("queue") or {}).items()}
        fork = self._fork(key)
        return {
            **self._summary(key, turns[-1] if turns else None, len(self._waiting(key))),
            "conversation": own.get("conversation", 0),
            "settings": settings,
            "in_memory": False,
            "lanes": [],
            "forked_from": {name: fork[name] for name in ("run_id", "step")} if fork else None,
        }

    def pending(self, key: str) -> dict[str, Any]:
        """What waits in a session."""
        self._owner(key)
        now_ms = self._clock.wall_ms()
        items = [
            {
                **_said(row),
                "disposition": row.state,
                "position": place,
                "reason": row.reason,
                "waited_ms": max(0, now_ms - row.arrived_ms),
                "seen_by": row.turn_id or None,
            }
            for place, row in enumerate(self._waiting(key), 1)
        ]
        return {**_page(items), "total": len(items)}

    def history(self, key: str, *, limit: int = 200, conversation: int | None = None) -> dict[str, Any]:
        """What was said in a session."""
        owner = self._owner(key)
        if conversation is None:
            row = self._rows.state("session", session_id(owner))
            conversation = json.loads(row.body)["conversation"] if row is not None else 0
        rows = self._rows.entries(owner, limit=limit, newest=True, conversation=conversation)
        return _page([found for row in rows if (found := _entry(row)) is not None])

    # ---- messages and runs ----

    def _message(self, message_id: str) -> MessageRow:
        row = self._rows.message(message_id)
        if row is None or row.tenant != self._tenant or row.workspace.startswith(OURS):
            raise UnknownMessageError(message_id=message_id)
        return row

    def message(self, message_id: str) -> dict[str, Any]:
        """One message and what became of it."""
        return self._message_view(self._message(message_id))

    def _message_view(self, row: MessageRow) -> dict[str, Any]:
        waits = [each.id for each in self._waiting(row.session)]
        is_told = row.turn_id and row.state != MessageState.SUMMARIZED
        turn = self._rows.state("turn", row.turn_id) if is_told and row.outcome else None
        return {
            **_said(row),
            "workspace": row.workspace,
            "disposition": row.state,
            "outcome": row.outcome or None,
            "run_id": row.turn_id if is_told else None,
            "reason": row.reason,
            "answer": None if turn is None else json.loads(turn.body).get("answer"),
            "position": waits.index(row.id) + 1 if row.id in waits else None,
        }

    def message_story(self, message_id: str) -> dict[str, Any]:
        """The whole life of a message."""
        row = self._message(message_id)
        owner = Owner(row.tenant, row.workspace, row.session)
        events = self._rows.events(owner, message_id=message_id)
        for turn_id in dict.fromkeys(event.turn_id for event in list(events) if event.turn_id):
            events += self._rows.events(owner, turn_id=turn_id)
        unique = {
            event.seq: event
            for event in events
            if event.message_id in ("", message_id) or event.type.startswith("turn.")
        }
        rows = [unique[seq] for seq in sorted(unique)]
        view = self._message_view(row)
        final = Ended(
            message_id=row.id,
            disposition=MessageState(row.state),
            outcome=Outcome(row.outcome) if row.outcome else None,
            reason=row.reason,
        )
        message, _ = decode_message(row)
        text = stories.tell(message, final, [stories.step_of(each) for each in rows])
        return {"message": view, "steps": [_step(each) for each in rows], "text": text}

    def runs(self, key: str, *, limit: int = 200, after: str = "") -> dict[str, Any]:
        """The runs of a session, oldest first."""
        rows = self._rows.states(self._owner(key), "turn", after_seq=int(after or 0), limit=limit)
        return _page([_run(row) for row in rows], str(rows[-1].seq) if len(rows) >= limit else None)

    def _turn(self, run_id: str) -> StateRow:
        row = self._rows.state("turn", run_id)
        if row is None or row.tenant != self._tenant or row.workspace.startswith(OURS):
            raise UnknownRunError(f"there is no run {run_id!r}", hint="`laneway run ls SESSION` lists them")
        return row

    def run(self, run_id: str) -> dict[str, Any]:
        """One run, as far as the store knows it."""
        more = {
            "prompt": "",
            "rounds": 0,
            "prompt_tokens": 0,
            "completion_tokens": 0,
            "cost": None,
            "resumed_from": None,
            "forked_from": self._forked_from(self._turn(run_id)),
            "tools": [],
            "waits_for": "",
        }
        return {**_run(self._turn(run_id)), **more}

    def _forked_from(self, row: StateRow) -> dict[str, Any] | None:
        facts = self._fork(row.session)
        is_first = facts.get("message_id", "") in json.loads(row.body)["messages"]
        return {"run_id": facts["run_id"], "step": facts["step"]} if is_first else None

    def _fork(self, key: str) -> dict[str, Any]:
        """Where a session comes from; empty: it began by itself."""
        row = self._rows.state(FORK, session_id(Owner(self._tenant, self.workspace, key)))
        return {} if row is None else dict(json.loads(row.body))

    def run_forks(self, run_id: str) -> dict[str, Any]:
        """The sessions that go on from a run."""
        self._turn(run_id)
        keys = self._rows.sessions(self._tenant, self.workspace, limit=SESSIONS_MAX)
        forks = [
            (key, fork) for key in keys if SUBAGENT not in key and (fork := self._fork(key)).get("run_id") == run_id
        ]
        return _page(
            [
                {"session_key": key, "from_run": run_id, "step": fork["step"], "message_id": fork.get("message_id")}
                for key, fork in forks
            ]
        )

    def run_story(self, run_id: str) -> dict[str, Any]:
        """Everything that has happened to a run."""
        from laneway.cli.stored_runs import stored_story
        from laneway.gateway.task_facts import task_lines

        row = self._turn(run_id)
        events = self._rows.events(Owner(row.tenant, row.workspace, row.session), turn_id=run_id)
        run = _run(row)
        reason = f": {run['reason']}" if run["reason"] else ""
        text = f"Run {run_id} {state_words(run['state'])}{reason}."
        rows = self._rows.states(Owner(row.tenant, row.workspace, row.session), TASK, limit=TASKS_MAX)
        elsewhere = task_lines([entry for entry in map(decode_task, rows) if entry.run_id == run_id])
        text = f"{text}\n{elsewhere}" if elsewhere else text
        told = [_step(each) for each in events]
        return {"run": run, "steps": told, "text": text, "story": stored_story(self._rows, row)}

    # ---- what else there is ----

    def approvals(self, *, session: str | None = None, **_: Any) -> dict[str, Any]:
        """What waits for somebody's answer."""
        rows = [row for row in self._live("approval", session) if row.state == ApprovalState.PENDING]
        return _page([_approval(row) for row in rows])  # one that is answered lives on until its run has heard it

    def schedules(self, *, session: str | None = None, **_: Any) -> dict[str, Any]:
        """The messages that are sent by the clock."""
        items = []
        for row in self._live("schedule", session):
            facts = {"schedule_id": row.id, "session_key": row.session, "workspace": row.workspace}
            body = json.loads(row.body)
            last_id, last_ms = body.pop("last_id", ""), body.pop("last_ms", 0)
            last = self._rows.message(last_id) if last_id else None
            done = {
                "paused": body.pop("paused", False),
                "last_ms": last_ms or None,
                "last_note": body.pop("last_note", ""),
                "last_message_id": last_id or None,
                "last_disposition": None if last is None else last.state,
                "last_outcome": None if last is None else last.outcome or None,
                "last_run_id": None if last is None else last.turn_id or None,
            }
            items.append({**facts, **body, **done})
        return _page(sorted(items, key=lambda each: (each["next_ms"], each["schedule_id"])))

    def budgets(self) -> dict[str, Any]:
        """The budgets that something was counted for; what was set aside for calls counts as spent."""
        from laneway.gateway.budget_facts import budget_facts
        from laneway.runtime.budget_rows import COUNT, RULE, read_count, read_rule

        rules: dict[str, Budget] = {}
        counts: dict[str, list[Count]] = {}
        for row in self._live(COUNT):
            count = read_count(row)
            if count.period.until_ms is None or count.period.until_ms > self._clock.wall_ms():
                counts.setdefault(count.key.budget, []).append(count)
                rules.setdefault(count.key.budget, count.budget)
        said = [read_rule(row) for row in self._rows.live(self.workspace).states if row.kind == RULE]
        for key, rule in said:
            if rule is None:
                rules.pop(key, None)
            elif rule.concerns(self._tenant):
                rules[key] = rule
        known = {key for key, _ in said}
        return _page(
            budget_facts(
                rule, counts.get(key, ()), workspace=self.workspace, origin="set" if key in known else "config"
            )
            for key, rule in rules.items()
        )

    def tasks(self, *, limit: int = 200, after: str = "", workspace: str = "", **asked: str) -> dict[str, Any]:
        """External tasks: those that have not ended, or those of one state. A store is read for one `workspace`."""
        assert workspace in ("", "*"), workspace
        from laneway.gateway.task_facts import TaskQuery, task_facts

        query = TaskQuery(**asked)
        items: list[dict[str, Any]] = []
        for row in self._task_rows(int(after or 0), live=not query.is_of_ended):
            entry = decode_task(row)
            if query.fits(entry):
                items.append(task_facts(entry, 0))
                if len(items) == limit:
                    return _page(items, str(row.seq))
        return _page(items)

    def _task_rows(self, seq: int, *, live: bool) -> Iterator[StateRow]:
        if live:
            yield from (row for row in sorted(self._live(TASK), key=lambda row: row.seq) if row.seq > seq)
            return
        while True:
            rows = self._rows.states(Owner(self._tenant, self.workspace), TASK, after_seq=seq, limit=PAGE)
            yield from (row for row in rows if not row.live)
            if len(rows) < PAGE:
                return
            seq = rows[-1].seq

    def task(self, task_id: str) -> dict[str, Any]:
        """One external task."""
        from laneway.gateway.task_facts import result_facts, task_facts

        row = self._rows.state(TASK, task_id)
        if row is None or row.tenant != self._tenant:
            raise UnknownTaskError(f"there is no task {task_id!r}", hint="`laneway task ls` lists them")
        entry = decode_task(row)
        return {**task_facts(entry, 0), **result_facts(entry)}

    def dead_letters(self, *, limit: int = 200, after: str = "") -> dict[str, Any]:
        """The messages whose run could not be begun."""
        owner = Owner(self._tenant, self.workspace)
        state = MessageState.DEAD_LETTERED.value
        rows = self._rows.messages(owner, state=state, after_seq=int(after or 0), limit=limit)
        found = [letter for row in rows if (letter := self._letter(row))["status"] == "open"]
        return _page(found, str(rows[-1].seq) if len(rows) >= limit else None)

    def dead_letter(self, message_id: str) -> dict[str, Any]:
        """One of them."""
        row = self._rows.message(message_id)
        is_dead = row is not None and row.tenant == self._tenant and row.state == MessageState.DEAD_LETTERED
        if row is None or not is_dead:
            raise NotFoundError(what="dead letter", name=message_id, hint="laneway dlq ls")
        return self._letter(row)

    def _letter(self, row: MessageRow) -> dict[str, Any]:
        """A message that could not be done, with what somebody has made of it."""
        mark = self._rows.state("dead_letter", row.id)
        said = {} if mark is None else json.loads(mark.body)
        return {
            "letter_id": row.id,
            "kind": "message",
            "workspace": row.workspace,
            "session_key": row.session,
            "lane": None,
            "what": "message",
            "text": said.get("text", decode_message(row)[0].text),
            "edited": "text" in said,
            "arguments": None,
            "error": row.reason,
            "attempts": None,
            "died_ms": row.ended_ms,
            "status": mark.state if mark is not None and mark.state in ("retried", "purged") else "open",
            "message_id": said.get("message_id"),
        }


ANSWERS: Final[dict[str, Callable[..., Any]]] = {
    "sessions": StoreReader.sessions,
    "sessions/*": StoreReader.session,
    "sessions/*/pending": StoreReader.pending,
    "sessions/*/history": StoreReader.history,
    "sessions/*/runs": StoreReader.runs,
    "messages/*": StoreReader.message,
    "messages/*/explain": StoreReader.message_story,
    "runs/*": StoreReader.run,
    "runs/*/explain": StoreReader.run_story,
    "runs/*/forks": StoreReader.run_forks,
    "approvals": StoreReader.approvals,
    "schedules": StoreReader.schedules,
    "budgets": StoreReader.budgets,
    "tasks": StoreReader.tasks,
    "tasks/*": StoreReader.task,
    "dead-letters": StoreReader.dead_letters,
    "dead-letters/*": StoreReader.dead_letter,
}


def _page(items: Iterable[dict[str, Any]], following: str | None = None) -> dict[str, Any]:
    return {"items": list(items), "next": following}


def _said(row: MessageRow) -> dict[str, Any]:
    message, _ = decode_message(row)
    sender = message.sender
    return {
        "message_id": message.id,
        "session_key": message.session_key,
        "text": message.text,
        "mode": message.mode.value,
        "kind": message.kind.value,
        "sender": None if sender is None else {"id": sender.id, "name": sender.name},
        "channel": message.channel,
        "thread": message.thread,
        "attachments": list(message.attachments),
        "idempotency_key": message.message_id,
        "arrived_ms": message.arrived_ms,
        "retry_of": message.retry_of,
    }


def _entry(row: EntryRow) -> dict[str, Any] | None:
    body = json.loads(row.body)
    if body.get("forgotten"):
        return None
    return {
        "seq": row.seq,
        "at_ms": row.at_ms,
        "role": row.role,
        "text": row.text,
        "conversation": row.conversation,
        "message_id": row.message_id,
        "run_id": row.turn_id,
        "sender": body.get("sender", ""),
    }


def _step(row: EventRow) -> dict[str, Any]:
    step = stories.step_of(row)
    return {
        "at_ms": step.at_ms,
        "type": step.type,
        "reason": step.reason,
        "actor": step.actor,
        "run_id": step.turn_id,
        "facts": dict(step.facts),
    }


def _run(row: StateRow) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(row.body)
    return {
        "run_id": row.id,
        "session_key": row.session,
        "workspace": row.workspace,
        "state": row.state,
        "reason": "it answered" if row.state == TurnState.SUCCEEDED else body.get("reason") or "",
        "messages": body.get("messages", []),
        "steered": body.get("injected", []),
        "answer": body.get("answer"),
        "mode": body.get("mode", ""),
        "conversation": body.get("conversation", 0),
        "began_ms": body.get("began_ms", 0),
        "ended_ms": body.get("ended_ms") or None,
        "tokens": body.get("tokens", 0),
    }


def _approval(row: StateRow) -> dict[str, Any]:
    approval = decode_approval(row, json.loads(row.body))
    return {
        "approval_id": approval.id,
        "session_key": approval.session_key,
        "workspace": row.workspace,
        "run_id": approval.turn_id,
        "action": approval.action,
        "arguments": dict(approval.arguments),
        "arguments_text": approval.text,
        "digest": approval.digest,
        "state": approval.state.value,
        "why": approval.why,
        "call_id": approval.call_id,
        "lane": approval.lane,
        "asked_ms": approval.asked_ms,
        "expires_ms": approval.expires_ms,
        "approvers": list(approval.approvers),
        "escalated": approval.escalated,
        "reason": approval.reason,
        "answered_by": approval.answered_by,
    }
