"""`laneway send`: give a session a message, and wait for its end if that is wanted."""

from __future__ import annotations

import asyncio
import sys
import uuid
from contextlib import aclosing, nullcontext
from typing import Annotated, Any, Final

import typer

from laneway.cli.client import path_of
from laneway.cli.completion import complete_session
from laneway.cli.link import OPEN, Link
from laneway.cli.reach import JsonOption, target_of
from laneway.cli.tables import clean, errors, ordinal, print_json, say, sentence
from laneway.errors import ConflictError, LanewayError, RunCancelledError, RunFailedError, UsageError
from laneway.mail import WAITING_STATES, MessageState, Mode, Outcome

__all__ = ("failure_of", "is_final", "send", "wait_for")

PATIENCE_S: Final = 2.0  # whoever has waited so long wants to know why
ANSWERED: Final = frozenset({"ran", "merged", "steered"})


def send(
    ctx: typer.Context,
    session: Annotated[str, typer.Argument(help="The session.", autocompletion=complete_session)],
    text: Annotated[list[str], typer.Argument(help="What to say; `-` reads it from standard input.", metavar="TEXT")],
    mode: Annotated[
        Mode | None, typer.Option("--mode", "-m", help="What it does if the session is busy.", case_sensitive=False)
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for the answer and print it.")] = False,
    key: Annotated[
        str | None, typer.Option("--key", help="An idempotency key: the same message is taken once.", metavar="KEY")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send a message to a session.

    It is on disk when this returns. With `--wait` the exit code is that of its outcome: 0 if it was answered, 3 if it
    never ran (dropped, rejected, withdrawn …), 6 if its run failed or was cancelled.
    """
    target_of(ctx)  # a token on standard input comes before the text
    asyncio.run(_send(ctx, session, _text(text), mode=mode, wait=wait, key=key, as_json=as_json))


def _text(words: list[str]) -> str:
    if words != ["-"]:
        return " ".join(words)
    text = sys.stdin.read()
    if not text.strip():
        raise UsageError("there is nothing on standard input", hint="give the text as an argument")
    return text.rstrip("\n")


async def _send(
    ctx: typer.Context, session: str, text: str, *, mode: Mode | None, wait: bool, key: str | None, as_json: bool
) -> None:
    body: dict[str, Any] = {"text": text}
    if mode is not None:
        body["mode"] = mode.value
    async with Link(target_of(ctx)) as link:
        receipt = await link.send(path_of("sessions", session), body, key=key or str(uuid.uuid4()))
        if not wait or receipt["disposition"] == MessageState.COMMAND:
            _show_receipt(receipt, as_json)
            return
        quiet = as_json or not sys.stderr.isatty()
        with nullcontext() if quiet else errors().status(f"{clean(session)} works"):
            final = await wait_for(link, session, receipt["message_id"])
    if as_json:
        print_json(final)
    elif final.get("answer"):
        sys.stdout.write(f"{clean(final['answer'])}\n")
    error = failure_of(final)
    if error is not None:
        raise error


def _show_receipt(receipt: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(receipt)
    elif receipt.get("reply"):
        say(receipt["reply"])
    else:
        place = f", {ordinal(receipt['position'])} in line" if receipt.get("position") else ""
        reason = f": {sentence(receipt['reason'])}" if receipt.get("reason") else ""
        again = " (seen before)" if receipt.get("duplicate") else ""
        say(f"{receipt['message_id']} {receipt['disposition']}{place}{reason}{again}")


async def wait_for(link: Link, session: str, message_id: str) -> dict[str, Any]:
    """A message when it is final. A stream tells when to look, so nothing is asked again and again."""
    where = path_of("messages", message_id)
    telling = asyncio.create_task(_tell_why(link, where))
    try:
        return await _final_of(link, session, message_id, telling)
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


async def _tell_why(link: Link, where: str) -> None:
    """Say once what a message, or its run, waits for, if it takes a while."""
    await asyncio.sleep(PATIENCE_S)
    found = await link.ask("GET", where)
    reason = found.get("reason") or "" if found["disposition"] in WAITING_STATES else ""
    if found.get("run_id") and not reason and not is_final(found):
        reason = (await link.ask("GET", path_of("runs", found["run_id"]))).get("waits_for") or ""
    if reason:
        say(f"It waits: {sentence(reason)}", to=errors())


async def _final_of(link: Link, session: str, message_id: str, telling: asyncio.Task[None]) -> dict[str, Any]:
    where = path_of("messages", message_id)
    async with aclosing(link.events(path_of("sessions", session, "events"))) as events:
        async for told in events:
            if told.event == "run_waiting":
                telling.cancel()  # this says it
                say(f"It waits: {sentence(told.payload.get('reason', ''))}", to=errors())
            is_its_end = told.event == "message.ended" and told.data.get("message_id") == message_id
            if told.event == OPEN or is_its_end:
                found: dict[str, Any] = await link.ask("GET", where)
                if is_final(found):
                    return found
    last: dict[str, Any] = await link.ask("GET", where)
    return last


def is_final(message: dict[str, Any]) -> bool:
    """Whether nothing more will become of a message."""
    try:
        return MessageState(message["disposition"]).is_final
    except ValueError:
        return False


def failure_of(message: dict[str, Any]) -> LanewayError | None:
    """What a message that was not answered means for a command."""
    disposition, outcome = message["disposition"], message.get("outcome")
    reason = sentence(message.get("reason") or "")
    if disposition == MessageState.COMMAND or (disposition in ANSWERED and outcome == Outcome.SUCCEEDED):
        return None
    run_id = message.get("run_id") or ""
    if disposition in ANSWERED and outcome == Outcome.FAILED:
        return RunFailedError(f"the run failed: {reason or 'no reason is known'}", run_id=run_id, reason=reason)
    if disposition in ANSWERED:
        said = f"the run was {outcome or 'not ended'}: {reason or 'no reason is known'}"
        return RunCancelledError(
            said, run_id=run_id, reason=reason, hint=f"laneway run explain {run_id}" if run_id else ""
        )
    if disposition == MessageState.DEAD_LETTERED:
        hint = f"laneway dlq retry {message['message_id']}"
        return RunFailedError(f"its run could not be begun: {reason}", reason=reason, hint=hint)
    return ConflictError(f"the message did not run, it was {disposition}: {reason or 'no reason is known'}")
