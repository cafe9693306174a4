"""Skills: files with instructions for the agent, and the tools that it may use while it follows one.

The model is told what skills there are, and takes one up with the tool `Skill`, whose result is the instructions. From
then on until it takes up another one, ends it, or the run ends, calls of tools that the skill does not allow are
refused. Which skill a run follows is read from its rounds: the newest result of `Skill` that was ok. There is no state
beside them, so that a run that is resumed elsewhere is held to the same skill.

A skill only narrows. Its tools are rules as permissions have them, and permissions still decide about each call.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import WeakKeyDictionary, WeakSet

from laneway.dialogue import ResultStatus, ToolContext, ToolOutput, ToolSpec
from laneway.errors import ConfigError, UsageError
from laneway.kernel.ledger import origin_of
from laneway.kernel.permissions import Verdict, decide
from laneway.kernel.rounds import Round, RoundState
from laneway.kernel.texts import clip
from laneway.policies import PermissionPolicy
from laneway.tools.lanes import EXECUTE
from laneway.tools.markdown_files import FileProblem, FileRefusedError, Page, Shelf, read_folders
from laneway.tools.outputs import cap_output
from laneway.tools.registry import FunctionTool

if TYPE_CHECKING:
    from laneway.agent.gates import Asked
    from laneway.agent.hooks import Hooks
    from laneway.agent.loop import Run
    from laneway.agent.settings import SessionSettings
    from laneway.dialogue import Intent
    from laneway.kernel.turn_machine import TurnMachine
    from laneway.ports import Tool

__all__ = ("SKILL", "Narrows", "Skill", "SkillTool", "SkilledSession", "Skills", "listing")

SKILL: Final = "Skill"
"""The name of the tool."""
FILE: Final = "SKILL.md"
NONE: Final = "none"
"""What ends a skill; no skill can have this name."""
TEXT_MAX: Final = 20_000
SHOWN_MAX: Final = 300
ABOUT: Final = (
    "Skills are instructions for certain kinds of work. When one of them fits, take it up first: call the tool Skill"
    " with its name, and do as its result says. While you follow a skill that names its tools, others are refused;"
    " Skill with the name none ends it."
)
PINNED: Final = "Follow this skill in all that you do here.\n{text}"
ENDED: Final = "[Skill ended]"
HEAD: Final = re.compile(r"\[Skill: ([^\]\n]*)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """One skill. `allowed` are the rules of its tools: None allows all, an empty one none.

    A skill that is `hidden` (`disable-model-invocation`) is taken up by the host only, with `use_skill`.
    """

    name: str
    description: str = ""
    instructions: str = ""
    allowed: tuple[str, ...] | None = None
    path: str = ""
    hidden: bool = False

    @property
    def title(self) -> str:
        """What a refusal calls it."""
        return f"the skill {self.name!r}"

    @property
    def folder(self) -> str:
        """The folder with the files that it names; empty if it is a single file."""
        return self.path.removesuffix(f"/{FILE}") if self.path.endswith(f"/{FILE}") else ""

    @property
    def text(self) -> str:
        """What the model is told when it takes it up."""
        lines = [f"[Skill: {self.name}]"]
        if self.allowed is not None:
            lines.append(f"[Tools while you follow it: {', '.join(self.allowed) or 'none'}]")
        if self.folder:
            lines.append(f"[Files that it names are in {self.folder}]")
        return "\n".join([*lines, self.instructions])


class Narrows(Protocol):
    """Something that allows some calls only: a skill, or the definition of an agent."""

    @property
    def title(self) -> str:
        """What a refusal calls it."""

    @property
    def allowed(self) -> tuple[str, ...] | None:
        """The rules of what it allows; None allows all."""


class Skills:
    """The skills of one session, and what they refuse.

    `current_run` gives the run that goes on; without it nobody is told which skill was left for another one. A session
    that belongs to another one takes the `shelf` of that, so that its folders are not read again.
    """

    def __init__(
        self,
        settings: SessionSettings | None = None,
        *,
        hooks: Hooks | None = None,
        current_run: Callable[[], Run | None] = lambda: None,
        shelf: Shelf[Skill] | None = None,
    ) -> None:
        folders = settings.skill_dirs if settings is not None else ()
        self.shelf = _read(folders) if shelf is None else shelf
        self._is_on = bool(folders or self.shelf.entries)
        self._hooks = hooks
        self._current_run = current_run
        self._held: tuple[Narrows, ...] = ()  # by whoever this session works for
        self._pinned: Skill | None = None  # by the host
        self._text: str | None = None
        self._left: WeakSet[Run] = WeakSet()  # runs that have ended, and whose end was told
        # What the rounds before the newest one say, by machine: they change no more. A memory, not a state.
        self._seen: WeakKeyDictionary[TurnMachine, tuple[int, str]] = WeakKeyDictionary()

    # ---- what there is ----

    @property
    def problems(self) -> tuple[FileProblem, ...]:
        """The files that were left out, and why."""
        return self.shelf.problems

    @property
    def offered(self) -> tuple[Skill, ...]:
        """The skills that the model may take up."""
        return tuple(each for each in self.shelf.entries.values() if not each.hidden)

    def readable(self) -> list[str]:
        """The folders of the skills that the model may take up, or is held to: their files can be read."""
        own = (*self.offered, *((self._pinned,) if self._pinned is not None else ()))
        return [each.folder for each in own if each.folder and _is_inside(each.folder)]

    def get(self, name: str) -> Skill:
        """A skill by its name; raises `UsageError` if there is none."""
        found = self.shelf.entries.get(name)
        if found is None:
            raise UsageError(_unknown(name, self.shelf.entries))
        return found

    def with_tool(self, toolbox: Mapping[str, Tool]) -> Mapping[str, Tool]:
        """A toolbox with the tool `Skill` in it, if there is a skill that the model may take up."""
        if not self.offered:
            return toolbox
        if SKILL in toolbox:
            hint = "name your own otherwise, or leave skill_dirs out"
            raise ConfigError(f"there are two tools {SKILL!r}", setting="tools", value=SKILL, hint=hint)
        return {**toolbox, SKILL: SkillTool(self)}

    def system_text(self) -> str:
        """What the model is told about skills: their names, what they are for, and the one that the host has chosen."""
        if self._text is None:
            parts = []
            if self.offered:
                about = ((each.name, each.description) for each in self.offered)
                parts.append(f"{ABOUT}\n{listing(about, most=TEXT_MAX)}")
            if self._pinned is not None:
                parts.append(PINNED.format(text=self._pinned.text))
            self._text = "\n\n".join(parts)
        return self._text

    # ---- which one is followed ----

    def pin(self, skill: Skill | None) -> None:
        """Hold every run to a skill from now on; None: to none."""
        self._pinned = skill
        self._text = None

    def inherit(self, *narrows: Narrows | None) -> None:
        """Hold every call here to what another session follows, or to a definition. It cannot be left."""
        self._held += tuple(each for each in narrows if each is not None)

    def active(self, run: Run) -> Skill | None:
        """The skill that a run follows: the one that its model has taken up last, else the one of the host."""
        return self._chosen(run) or self._pinned

    def name_of(self, run: Run | None) -> str:
        """The name of the skill that a run follows; empty if it follows none."""
        skill = self.active(run) if run is not None else None
        return skill.name if skill is not None else ""

    def followed(self, run: Run | None) -> tuple[Narrows, ...]:
        """Everything that a call of a run is held to; what a sub-agent that it starts must `inherit`."""
        return self._followed(run)

    def _followed(self, run: Run | None, before: str = "") -> tuple[Narrows, ...]:
        if run is None:  # the host follows no skill
            return self._held
        return (*self._held, *(each for each in (self._pinned, self._chosen(run, before)) if each is not None))

    def _chosen(self, run: Run, before: str = "") -> Skill | None:
        """What the model has taken up, before a call of the newest round."""
        if not self._is_on:
            return None
        rounds = run.machine.rounds
        at, name = self._seen.get(run.machine) or (0, self._from_before(run))
        if at < len(rounds) - 1:
            for one in rounds[at:-1]:
                name = _named_in(one, name)
            self._seen[run.machine] = len(rounds) - 1, name
        if rounds:
            name = _named_in(rounds[-1], name, before)
        if not name:
            return None
        return self.shelf.entries.get(name) or _Gone(name=name, allowed=())

    def _from_before(self, run: Run) -> str:
        """What the runs have said that this one goes on for."""
        if run.origin == run.id:
            return ""
        own = run.machine.rounds
        name = ""
        for one in run.book.rounds:
            if one.run_id == run.id or one.state is RoundState.FORGOTTEN or (own and one.number >= own[0].number):
                continue
            if origin_of(one.run_id, run.book.lineage) == run.origin:
                name = _named_in(one, name)
        return name

    # ---- the gate ----

    def refusal(self, asked: Asked) -> str:
        """Why the skill that is being followed does not allow a call; empty if it does."""
        if not (self._is_on or self._held) or asked.name == SKILL:
            return ""
        if asked.run is not None and self._is_being_taken_up(asked.run, asked.call_id):
            return "a skill is being taken up; ask again when its instructions are there"
        for each in self._followed(asked.run, asked.call_id):
            reason = _refusal(each, asked)
            if reason:
                way = "" if each in self._held or each is self._pinned else f"; {SKILL} with the name {NONE} ends it"
                return f"{reason}{way}"
        return ""

    def _is_being_taken_up(self, run: Run, before: str) -> bool:
        """Whether a call before this one may still change the skill: never, unless the two run side by side."""
        one = run.machine.round
        for call in one.answer.calls if self._is_on and one is not None else ():
            if call.id == before:
                return False
            if call.name == SKILL and one is not None and call.id not in one.results:
                return True
        return False

    # ---- taking up and leaving ----

    async def take_up(self, name: str, context: ToolContext) -> ToolOutput:
        """The model wants to follow a skill, or none: what it is told."""
        wanted = None
        if name and name.casefold() != NONE:
            wanted = self.shelf.entries.get(name)
            if wanted is None or wanted.hidden:
                offered = {each.name: each for each in self.offered}
                return ToolOutput(text=f"[Not taken up: {_unknown(name, offered)}]", is_error=True)
        run = self._current_run()
        left = self._chosen(run, context.call_id) if run is not None and run.id == context.run_id else None
        if left is not None and left != wanted:
            await self._tell("skill_unload", left, context)
        if wanted is None:
            return ToolOutput(text=ENDED)
        if left != wanted and context.run_id:  # the host only wants to read it
            await self._tell("skill_load", wanted, context)
        output = await cap_output(ToolOutput(text=wanted.text), context)
        head = f"[Skill: {wanted.name}]"  # whatever is cut: this line says which skill is followed
        return output if output.text.startswith(head) else replace(output, text=f"{head}\n{output.text}")

    def is_left(self, run: Run) -> bool:
        """Whether nobody has to be told any more that a run which has ended follows no skill now."""
        wanted = self._hooks is not None and self._hooks.wants("skill_unload")
        return not wanted or run in self._left or self._chosen(run) is None

    async def leave(self, run: Run) -> None:
        """A run ends, and with it the skill that it follows; told once."""
        left = None if self.is_left(run) else self._chosen(run)
        if left is not None:
            self._left.add(run)
            await self._tell("skill_unload", left, replace(run.session.tool_context, run_id=run.id))

    async def _tell(self, event: str, skill: Skill, context: ToolContext) -> None:
        if self._hooks is None:
            return
        payload: Mapping[str, Any] = {
            "session_id": context.session_id,
            "run_id": context.run_id,
            "tool_id": context.call_id,
            "skill": skill.name,
            "description": skill.description,
            "allowed_tools": None if skill.allowed is None else list(skill.allowed),
            "path": skill.path,
        }
        await self._hooks.tell(event, payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gone(Skill):
    """A skill that a run follows and whose file cannot be read any more: what it allowed is not known."""


class SkillTool:
    """The tool with which a model takes up a skill."""

    can_reconcile = False

    def __init__(self, skills: Skills) -> None:
        self._skills = skills
        self.check = _shape().check

    @property
    def spec(self) -> ToolSpec:
        """What it is. Its lane makes it a barrier: the calls after it are held to what it says."""
        return _spec()

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Take up a skill, or leave the one that is followed."""
        return await self._skills.take_up(str(arguments["name"]).strip(), context)

    async def reconcile(self, intent: Intent, context: ToolContext) -> ToolOutput | None:
        """Nothing has to be found out: it only reads."""
        return None


def _take_up(name: str) -> None:
    """Take up a skill: the result is its instructions.

    Args:
        name: One of the skills that you were told of; none ends the one that you follow.
    """


@functools.cache
def _shape() -> FunctionTool[..., None]:
    return FunctionTool(_take_up, name=SKILL, effect="read", lane=EXECUTE)


@functools.cache
def _spec() -> ToolSpec:
    return replace(_shape().spec, local=True)


class SkilledSession:
    """What a session says about its skills; a part of `AsyncSession`."""

    skills: Skills

    def skills_available(self) -> list[Skill]:
        """The skills of this session, in order; those that its model is not told of are `hidden`."""
        return list(self.skills.shelf.entries.values())

    def skill_problems(self) -> list[FileProblem]:
        """The files in `skill_dirs` that were left out, and why."""
        return list(self.skills.problems)

    def use_skill(self, name: str | None) -> None:
        """Hold every run of this session to a skill from now on, and tell the model its instructions; None ends that.

        It is not stored: say it right after the session was made, and a run that an earlier process has left is held to
        it, too. The model cannot leave it.
        """
        self.skills.pin(None if name is None else self.skills.get(name))


# ---- what the model is told ----


def listing(about: Iterable[tuple[str, str]], *, most: int) -> str:
    """Names with what they are for, a line each, in about so many characters: what is too long is shortened alike."""
    entries = list(about)
    for room in (1_024, 256, 64):
        if sum(len(name) + min(len(text), room) + 5 for name, text in entries) <= most:
            return "\n".join(f"- {name}: {clip(text, room)}" if text else f"- {name}" for name, text in entries)
    shown, size = 0, 0
    while shown < len(entries) and size + len(entries[shown][0]) + 3 <= most:
        size += len(entries[shown][0]) + 3
        shown += 1
    lines = [f"- {name}" for name, _ in entries[:shown]]
    return "\n".join([*lines, f"- … and {len(entries) - shown:,} more"] if shown < len(entries) else lines)


def _unknown(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name[:100], names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are: {clip(', '.join(names), SHOWN_MAX) or 'none'}"
    return f"there is no skill {clip(name, 100)!r}; {hint}"


# ---- reading ----


def _read(folders: Sequence[str]) -> Shelf[Skill]:
    return read_folders(folders, _skill, setting="skill_dirs", what="skill", nested=FILE) if folders else Shelf()


def _is_inside(folder: str) -> bool:
    """Whether the folder of a skill is no link to somewhere else: beside it, at most."""
    real = os.path.realpath(folder)
    return real == folder or real.startswith(os.path.dirname(folder).rstrip("/") + "/")


def _skill(page: Page) -> Skill:
    name = page.name()
    if name.casefold() == NONE:
        raise FileRefusedError(f"{name!r} cannot be its name: it ends the skill that is followed")
    return Skill(
        name=name,
        description=page.description(),
        instructions=page.body,
        allowed=page.rules("allowed-tools", "allowed_tools"),
        path=page.path,
        hidden=page.flag("disable-model-invocation", "disable_model_invocation"),
    )


def _named_in(one: Round, name: str, before: str = "") -> str:
    """Which skill is followed after a round, or before one of its calls; `name` is the one before the round."""
    for call in one.answer.calls:
        if call.id == before:
            break
        result = one.results.get(call.id) if call.name == SKILL else None
        if result is not None and result.status is ResultStatus.OK:
            found = HEAD.match(result.output)
            # What cannot be read is no skill that anybody knows, and allows nothing.
            name = found[1] if found else "" if result.output.startswith(ENDED) else "?"
    return name


def _refusal(each: Narrows, asked: Asked) -> str:
    """Why a call is not among what something allows; empty if it is."""
    if each.allowed is None:
        return ""
    if isinstance(each, _Gone):
        return f"{each.title} is being followed, and its file cannot be read any more"
    workspace = asked.run.session.workspace if asked.run is not None else ""
    decision = decide(_policy(each.allowed), asked.tool.spec, asked.arguments, workspace=workspace)
    if decision.verdict is Verdict.ALLOW:
        return ""
    return f"{each.title} allows only {clip(', '.join(each.allowed), SHOWN_MAX) or 'no tools'}"


@functools.lru_cache(maxsize=256)
def _policy(allowed: tuple[str, ...]) -> PermissionPolicy:
    return PermissionPolicy(allow=allowed, default_decision="deny")
