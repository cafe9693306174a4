"""Definitions of agents: markdown files that say who a sub-agent is, and which of the tools it may use.

The front matter has `name`, `description`, `tools` (names or rules; nothing: all tools of the parent), `model` and
`max_tool_rounds`; the body is its system text. A definition only narrows: what the parent may not do, no sub-agent may.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from laneway.agent.skills import listing
from laneway.kernel.permissions import parse_rule
from laneway.tools.markdown_files import FileProblem, Page, Shelf, read_folders

__all__ = ("Definition", "Definitions")

ROUNDS_MAX: Final = 1_000_000
TEXT_MAX: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One kind of agent. `tools` are rules as permissions have them; None: whatever the parent has."""

    name: str
    description: str = ""
    system: str = ""
    tools: tuple[str, ...] | None = None
    model: str | None = None
    max_tool_rounds: int | None = None
    path: str = ""

    @property
    def title(self) -> str:
        """What a refusal calls it."""
        return f"the agent {self.name!r}"

    @property
    def allowed(self) -> tuple[str, ...] | None:
        """The rules that its calls are held against (`Skills.inherit`); None: none."""
        return self.tools

    def offers(self, tool: str) -> bool:
        """Whether any call of a tool may be allowed; the others need not even be shown to its model."""
        return self.tools is None or any(parse_rule(rule).is_for(tool) for rule in self.tools)


class Definitions:
    """The definitions in some folders. Broken files are left out; a folder that is not there is a `ConfigError`."""

    def __init__(self, folders: Sequence[str] = ()) -> None:
        self._shelf: Shelf[Definition] = (
            read_folders(folders, _definition, setting="agent_dirs", what="agent") if folders else Shelf()
        )

    def __len__(self) -> int:
        return len(self._shelf.entries)

    def get(self, name: str) -> Definition | None:
        """A definition by its name."""
        return self._shelf.entries.get(name)

    def names(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(self._shelf.entries)

    @property
    def problems(self) -> tuple[FileProblem, ...]:
        """The files that were left out, and why."""
        return self._shelf.problems

    def unknown(self, name: str) -> str:
        """What is said of a name that there is no definition of."""
        close = difflib.get_close_matches(name, self.names(), n=1)
        known = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(self.names()[:50]) or 'none'}"
        return f"there is no agent {name!r:.100}; {known}"

    def system_text(self) -> str:
        """What a model is told about the agents that it may hand work to; empty if there are none."""
        if not self._shelf.entries:
            return ""
        about = ((each.name, each.description) for each in self._shelf.entries.values())
        return f"Agents that you can hand a task to, by name:\n{listing(about, most=TEXT_MAX)}"


def _definition(page: Page) -> Definition:
    return Definition(
        name=page.name(),
        description=page.description(),
        system=page.body,
        tools=page.rules("tools"),
        model=page.word("model"),
        max_tool_rounds=page.count("max_tool_rounds", most=ROUNDS_MAX),
        path=page.path,
    )
