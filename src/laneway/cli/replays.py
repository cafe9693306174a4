"""`laneway run export|replay|diff|fork`: runs as files, made again, compared, gone on with."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from laneway.cli.client import path_of
from laneway.cli.completion import complete_run
from laneway.cli.reach import Asking, JsonOption, Reading, asking, named_store, read
from laneway.cli.tables import console, line, print_json, say, table
from laneway.cli.target_files import target_file
from laneway.errors import ConfigError, ReplayDivergedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from laneway.replay import Difference, Replay, RunHistory

__all__ = ("COMMANDS", "diff", "export", "fork", "replay")

RunArgument = Annotated[str, typer.Argument(help="The run.", autocompletion=complete_run)]
Source = Annotated[str, typer.Argument(help="A run, or a file that `run export` wrote.", autocompletion=complete_run)]


def export(
    ctx: typer.Context,
    run: RunArgument,
    output: Annotated[str, typer.Option("--output", "-o", help="Into this file.", metavar="FILE")] = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Into a file that is there already.")] = False,
) -> None:
    """Write everything that went into a run as one file, which replays on any machine."""
    from laneway import replay as histories

    history = _fetched(ctx, run)
    if not output:
        sys.stdout.write(histories.dump(history))
        return
    with target_file(Path(output), overwrite=overwrite) as file:
        file.write(histories.dump(history).encode())
    told = "" if history.is_recorded else ", told from checkpoints (`record` was off)"
    say(f"{run}: {len(history.steps):,} steps in {output}{told}")


def replay(
    ctx: typer.Context,
    run: Source,
    agent: Annotated[
        str, typer.Option("--agent", help="With the tools, prompts and settings of this agent file.", metavar="FILE")
    ] = "",
    today: Annotated[bool, typer.Option("--today", help="With what the server has now for its session.")] = False,
    upto: Annotated[int | None, typer.Option("--upto", min=1, help="Only what is before this step.")] = None,
    steps: Annotated[bool, typer.Option("--steps", help="Show every step.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a run again without a model and without a tool, and say where it would go another way.

    Prompts, tools and settings are those that are written in the run. With --today they are those of the server, with
    --agent those of a file: this is how to ask whether a change would have changed the run. Exit code 3 if it would.
    """
    from laneway import replay as histories
    from laneway.kernel.history_words import tell_steps

    if today:
        _today(ctx, run, as_json=as_json, others={"--agent": agent, "--upto": upto, "--steps": steps})
        return
    history = _history(ctx, run)
    try:
        again = asyncio.run(_with_agent(history, agent, upto)) if agent else histories.run(history, upto=upto)
    except ReplayDivergedError as error:
        facts = {name: vars(error)[name] for name in PARTS}
        if as_json:
            print_json({"run_id": history.run_id, "same": False, **facts})
            raise typer.Exit(3) from None
        _parted(history.run_id, facts["step"], facts["where"], facts["recorded"], facts["now"])
    if as_json:
        print_json({"run_id": history.run_id, "same": True, "steps": len(again.history.steps), "text": again.text})
        return
    if steps:
        told = zip(again.history.steps, tell_steps(again.history.steps), strict=True)
        rows = [(number, step["op"], line(words)) for number, (step, words) in enumerate(told, 1)]
        console().print(table((">step", "what", "*"), rows))
    known = "" if history.is_recorded else " (told from checkpoints: what the model was sent is not known)"
    whose = f"those of {agent}" if agent else "its own; --today takes those of the server"
    say(f"{history.run_id} goes the same way: {len(again.history.steps):,} steps{known}")
    say(f"(prompts, tools and settings: {whose})", style="dim")


PARTS = ("step", "op", "where", "recorded", "now")


async def _with_agent(history: RunHistory, file: str, upto: int | None) -> Replay:
    """A run with the prompts and tools of a file; where it goes another way, these are told as texts."""
    from laneway import replay as histories
    from laneway.agent import AsyncAgent
    from laneway.agent.replays import SessionCode
    from laneway.kernel.history_words import behind_hashes

    async with AsyncAgent.create(file, session_store=None) as agent:
        session = agent.session(".")
        await session.ready()
        try:
            return histories.run(history, SessionCode(session), upto=upto)
        except ReplayDivergedError as error:
            told = vars(error)
            known = behind_hashes(history, told["step"], SessionCode(session))
            for name in ("recorded", "now"):
                setattr(error, name, known.get(str(told[name]), told[name]))
            raise


def _today(ctx: typer.Context, run: str, *, as_json: bool, others: Mapping[str, object]) -> None:
    """What the server says of a run with the prompts and tools of today."""
    option = next((name for name, given in others.items() if given), "")
    if option:
        raise ConfigError("--today asks the server", hint=f"leave {option} away", setting=option, value=others[option])
    if _is_file(run) or named_store(ctx):
        what = run if _is_file(run) else named_store(ctx)
        hint = "name a run of a server; --agent FILE takes prompts and tools of a file"
        raise ConfigError(f"{what} has no server to ask for today", hint=hint, setting="--today", value=run)
    with asking(ctx) as server:
        found = server.get(path_of("runs", run, "replay"))
    if as_json:
        print_json(found)
        if not found["same"]:
            raise typer.Exit(3)
        return
    if not found["same"]:
        _parted(run, found["step"], found["where"], found["then"], found["now"])
    if found["recorded"]:
        say(f"{run} would go the same way today: {found['steps']:,} steps")
    else:
        say(f"{run} would have the same rounds today: {found['steps']:,} steps")
        say("What its model was sent is not known (`record` was off), so prompts and tools were not compared.")


def _parted(run: str, step: int, where: str, then: Any, now: Any) -> NoReturn:
    """A run would go another way: both texts, and the error that says so."""
    for title, value in (("Then", then), ("Now", now)):
        say(f"{title}:", style="bold")
        say(_text_of(value) or "(nothing)")
    raise ReplayDivergedError(
        f"run {run} goes another way now: step {step:,}: {where}",
        hint="code, tools, prompts or settings are not those of the run; a fork goes on from that step with today's",
    )


def _text_of(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, default=str)


def diff(ctx: typer.Context, one: Source, other: Source, as_json: JsonOption = False) -> None:
    """Say where two runs part; a run and its fork are compared from the fork on. Exit code 3 if they part."""
    from laneway import replay as histories

    left, right = _history(ctx, one), _history(ctx, other)
    found = histories.diff(left, right)
    if as_json:
        print_json({"same": found is None, "difference": None if found is None else _facts(found)})
    elif found is None:
        say("They are the same, step by step.")
    else:
        if found.fork_step:
            run, fork = (one, other) if left.forked_at(right) else (other, one)
            say(line(f"{fork} goes on from step {found.fork_step:,} of {run}: up to there they are the same."))
        if found.told:
            say(line(f"It is told: {found.told}"))
        say(line(found.words(one, other)))
        say(line(f"(step {found.step:,} of {one}, step {found.other_step:,} of {other})"), style="dim")
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
    """Go on live from a step of a run, in a new session; the run stays as it is.

    Calls that had not begun before the step are made: a fork from an `act` makes its calls again. A write that had
    begun is not made: it keeps the result that is known by now, or is `unknown`. Reads and idempotent calls without a
    result are made again.
    """
    if _is_file(run):
        raise ConfigError(
            f"{run} is a file, and a fork goes on from a run that a server has",
            hint="name the run: `laneway run ls SESSION` lists them; in Python, session.fork(history) takes a file too",
            setting="RUN",
            value=run,
        )
    body = {"step": step, "prompt": prompt, "session_key": session or None}
    with asking(ctx) as server:
        found = server.post(path_of("runs", run, "fork"), {name: value for name, value in body.items() if value})
    if as_json:
        print_json(found)
    else:
        say(f"{found['session_key']} goes on from step {found['step']} of {run}")


def _history(ctx: typer.Context, source: str) -> RunHistory:
    """A file, if there is one of that name or it can be none but a file; else a run."""
    from laneway import replay as histories

    return histories.load(source) if _is_file(source) else _fetched(ctx, source)


def _is_file(source: str) -> bool:
    is_path = os.sep in source or source.endswith(".jsonl")  # no id of a run is
    return is_path or os.path.lexists(source)


def _fetched(ctx: typer.Context, run: str) -> RunHistory:
    from laneway import replay as histories

    path = path_of("runs", run, "history")
    text = read(ctx, lambda source: "\n".join(source.lines(path)))
    return histories.loads(f"{text}\n", name=f"what the server sent of run {run}")


def _facts(found: Difference) -> dict[str, Any]:
    facts = {name: getattr(found, name) for name in (*PARTS, "other_step")}
    return {**facts, "fork_step": found.fork_step or None, "told": found.told}


COMMANDS = (
    ("export", export, Reading),
    ("replay", replay, Reading),
    ("diff", diff, Reading),
    ("fork", fork, Asking),
)
"""What is added to `laneway run`."""
