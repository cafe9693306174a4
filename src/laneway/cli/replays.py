"""`laneway run export|replay|diff|fork`: runs as files, made again, compared, gone on with."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from laneway import replay as histories
from laneway.cli.client import path_of
from laneway.cli.completion import complete_run
from laneway.cli.reach import Asking, JsonOption, Reading, asking, read
from laneway.cli.tables import console, line, print_json, say, table
from laneway.errors import ConfigError, ReplayDivergedError
from laneway.replay import Difference, Replay, RunHistory

__all__ = ("COMMANDS", "diff", "export", "fork", "replay")

SHOWN = 100
RunArgument = Annotated[str, typer.Argument(help="The run.", autocompletion=complete_run)]
Source = Annotated[str, typer.Argument(help="A run, or a file that `run export` wrote.", autocompletion=complete_run)]


def export(
    ctx: typer.Context,
    run: RunArgument,
    output: Annotated[str, typer.Option("--output", "-o", help="Into this file.", metavar="FILE")] = "",
) -> None:
    """Write everything that went into a run as one file, which replays on any machine."""
    history = _fetched(ctx, run)
    if not output:
        sys.stdout.write(histories.dump(history))
        return
    try:
        histories.save(history, output)
    except OSError as error:
        raise ConfigError(
            f"{output} cannot be written: {error.strerror or error}", setting="--output", value=output
        ) from error
    told = "" if history.is_recorded else ", told from checkpoints (`record` was off)"
    say(f"{run}: {len(history.steps):,} steps in {output}{told}")


def replay(
    ctx: typer.Context,
    run: Source,
    agent: Annotated[
        str, typer.Option("--agent", help="With the tools and prompts of this agent file.", metavar="FILE")
    ] = "",
    upto: Annotated[int | None, typer.Option("--upto", min=1, help="Only what is before this step.")] = None,
    steps: Annotated[bool, typer.Option("--steps", help="Show every step.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a run again without a model and without a tool, and say where it would go another way."""
    history = _history(ctx, run)
    try:
        again = asyncio.run(_with_agent(history, agent)) if agent else histories.run(history, upto=upto)
    except ReplayDivergedError as error:
        if as_json:
            facts = vars(error)
            print_json({"run_id": history.run_id, "same": False, **{name: facts[name] for name in PARTS}})
            raise typer.Exit(3) from None
        raise
    if as_json:
        print_json({"run_id": history.run_id, "same": True, "steps": len(again.history.steps), "text": again.text})
        return
    if steps:
        rows = [(number, step["op"], _told(step)) for number, step in enumerate(again.history.steps, 1)]
        console().print(table((">step", "what", "*"), rows))
    told = "" if history.is_recorded else " (told from checkpoints: what the model was sent is not known)"
    say(f"{history.run_id} goes the same way: {len(again.history.steps):,} steps{told}")


PARTS = ("step", "op", "where", "recorded", "now")


async def _with_agent(history: RunHistory, file: str) -> Replay:
    from laneway.agent import AsyncAgent

    async with AsyncAgent.create(file, session_store=None) as agent:
        return await agent.session(".").replay(history)


def diff(ctx: typer.Context, one: Source, other: Source, as_json: JsonOption = False) -> None:
    """Say where two runs part. Exit code 3 if they do."""
    found = histories.diff(_history(ctx, one), _history(ctx, other))
    if as_json:
        print_json({"same": found is None, "difference": None if found is None else _facts(found)})
    elif found is None:
        say("They are the same, step by step.")
    else:
        say(line(str(found).replace(": recorded ", f": {one} ", 1)))
    if found is not None:
        raise typer.Exit(3)


def fork(
    ctx: typer.Context,
    run: RunArgument,
    step: Annotated[int | None, typer.Option("--step", min=1, help="Keep what is before it; else all.")] = None,
    prompt: Annotated[str, typer.Option("--prompt", help="What it is told then.")] = "",
    session: Annotated[str, typer.Option("--session", help="The name of the new session.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Go on live from a step of a run, in a new session; the run stays as it is, and nothing is done twice."""
    body = {"step": step, "prompt": prompt, "session_key": session or None}
    with asking(ctx) as server:
        found = server.post(path_of("runs", run, "fork"), {name: value for name, value in body.items() if value})
    if as_json:
        print_json(found)
    else:
        say(f"{found['session_key']} goes on from step {found['step']} of {run}")


def _history(ctx: typer.Context, source: str) -> RunHistory:
    """A file, if there is one of that name; else a run."""
    return histories.load(source) if Path(source).is_file() else _fetched(ctx, source)


def _fetched(ctx: typer.Context, run: str) -> RunHistory:
    path = path_of("runs", run, "history")
    text = read(ctx, lambda source: "\n".join(source.lines(path)))
    return histories.loads(f"{text}\n", name=f"what the server sent of run {run}")


def _facts(found: Difference) -> dict[str, Any]:
    return {name: getattr(found, name) for name in PARTS}


def _told(step: dict[str, Any]) -> str:
    """A step in a line."""
    told = {name: value for name, value in step.items() if name not in ("op", "t", "digest") and value not in ("", [])}
    text = line(", ".join(f"{name} {value}" for name, value in told.items()))
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


COMMANDS = (
    ("export", export, Reading),
    ("replay", replay, Reading),
    ("diff", diff, Reading),
    ("fork", fork, Asking),
)
"""What is added to `laneway run`."""
