"""Reads configuration texts for the tests, without files where none is needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from laneway.config.effective import Effective, load
from laneway.config.files import parse_text
from laneway.config.nodes import Node
from laneway.config.origins import Assignment, Layer
from laneway.config.problems import InvalidConfigError, Problem, Problems
from laneway.config.reading import Reading
from laneway.config.shape import root

SEED_001 = """\
{
  messages: {
    queue: {
      mode: "collect",
      debounceMs: 1000,
      cap: 20,
      drop: "summarize",
      byChannel: { discord: "collect" },
    },
  },
}
"""
SEED_003 = """\
queue:
  mode: collect
  debounce_ms: 1000
  lanes:
    main:
      concurrency: 1
    subagent:
      concurrency: 8
    cron:
      concurrency: 3
"""
SEED_003_WORKSPACE = """\
# agent_workspaces/assistant/agent.yaml
name: Assistant
description: Helpful assistant

queue:
  mode: steer  # Override to steer mode for this workspace
"""


def nodes(text: str, ending: str) -> tuple[Node | None, list[Problem]]:
    """What a format makes of a text."""
    problems = Problems(f"laneway{ending}")
    node = parse_text(text, ending, problems)
    return node, problems.found


def read(
    text: str, ending: str = ".yaml", environ: Mapping[str, str] | None = None
) -> tuple[list[Assignment], list[Problem]]:
    """What a main file with this text sets, and what is wrong with it."""
    problems = Problems(f"laneway{ending}")
    reading = Reading(layer=Layer.FILE, environ=environ or {}, problems=problems)
    reading.read(parse_text(text, ending, problems), root())
    return reading.assignments, problems.found


def values_of(text: str, ending: str = ".yaml", environ: Mapping[str, str] | None = None) -> dict[str, object]:
    """What a good file sets."""
    assignments, problems = read(text, ending, environ)
    assert problems == []
    return {".".join(each.path): each.value for each in assignments}


def lines_of(text: str, ending: str = ".yaml", environ: Mapping[str, str] | None = None) -> list[str]:
    """The problems of a file, as a user sees them."""
    return [str(problem) for problem in read(text, ending, environ)[1]]


def load_text(folder: Path, text: str, name: str = "laneway.yaml", **environ: str) -> Effective:
    """Load a main file with this text."""
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return load(file, environ=environ)


def problems_of(error: InvalidConfigError) -> list[str]:
    """The problems of an error without the folder of the test."""
    return [str(problem).replace(str(Path(problem.source).parent) + "/", "") for problem in error.problems]
