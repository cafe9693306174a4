"""What there is to say of a dead letter, as plain JSON values, and which letters are asked for."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from laneway.gateway.dead_mail import DeadCall, DeadJob, DeadMessage, Letter
from laneway.gateway.lookup import in_family

__all__ = ("LetterQuery", "kind_of", "letter_facts")


class LetterQuery(NamedTuple):
    """Which letters are asked for; what is empty is not asked for. Texts are looked for in any case, and anywhere."""

    status: str = "open"  # `any`: whatever became of them
    kind: str = ""
    session: str = ""
    lane: str = ""
    tool: str = ""
    text: str = ""
    error: str = ""
    since_ms: int = 0
    until_ms: int = 0

    @property
    def wants_memory(self) -> bool:
        """Whether letters that are in memory can be among them: those are open, and none of them is a message."""
        return self.status in ("open", "any") and self.kind != "message"

    @property
    def wants_messages(self) -> bool:
        """Whether messages can be among them: those have no lane and no tool."""
        return self.kind in ("", "message") and not self.lane and self.tool in ("", "message")

    def fits(self, letter: Letter) -> bool:
        """Whether a letter is one of them."""
        facts = letter_facts(letter)
        died = facts["died_ms"]
        return (
            self.status in ("any", facts["status"])
            and self.kind in ("", facts["kind"])
            and (not self.session or in_family(facts.get("session_key") or "", self.session))
            and (not self.lane or _has(facts.get("lane"), self.lane))
            and self.tool in ("", facts["what"])
            and (not self.error or _has(facts["error"], self.error))
            and (not self.since_ms or died >= self.since_ms)
            and (not self.until_ms or died < self.until_ms)
            and (not self.text or _has(_content(facts), self.text))
        )


def _has(value: str | None, part: str) -> bool:
    return part.casefold() in (value or "").casefold()


def _content(facts: dict[str, Any]) -> str:
    if facts["kind"] == "message":
        return str(facts["text"])
    return f"{facts['what']} {json.dumps(facts['arguments'], ensure_ascii=False)}"


def kind_of(letter: Letter) -> str:
    """What a letter is."""
    match letter:
        case DeadMessage():
            return "message"
        case DeadCall():
            return "call"
        case DeadJob():
            return "job"


def letter_facts(letter: Letter) -> dict[str, Any]:
    """A letter."""
    facts: dict[str, Any] = {"kind": kind_of(letter), "letter_id": letter.id, "status": "open", "lane": None}
    match letter:
        case DeadMessage(row=row):
            facts |= {"session_key": row.session, "workspace": row.workspace, "what": "message", "text": letter.text}
            facts |= {"error": row.reason, "died_ms": row.ended_ms, "status": letter.status}
            facts |= {"edited": letter.is_edited, "message_id": letter.became}
        case DeadCall(letter=call):
            facts |= {"session_key": letter.session.session_id, "workspace": letter.workspace.name}
            facts |= {"lane": call["lane"], "what": call["command_type"], "arguments": _plain(call["payload"])}
            facts |= {"error": call["error"], "died_ms": call["failed_at"], "attempts": call["attempts"]}
        case DeadJob(letter=job):
            facts |= {"lane": job.lane, "what": job.handler, "arguments": _plain(list(job.args))}
            facts |= {"error": job.error, "died_ms": job.died_ms, "attempts": job.attempts}
    return facts


def _plain(value: Any) -> Any:
    """As JSON: what a job is called with may be anything."""
    return json.loads(json.dumps(value, default=repr))
