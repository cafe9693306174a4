"""`laneway chat`: talk with a session. What is typed while it works steers it, or waits, as its mode says."""

from __future__ import annotations

import asyncio
import signal
import sys
import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from laneway.cli.chat_words import Words
from laneway.cli.client import path_of
from laneway.cli.completion import complete_session
from laneway.cli.conversation import Conversation
from laneway.cli.link import Link
from laneway.cli.reach import target_of
from laneway.cli.send import failure_of, wait_for
from laneway.cli.tables import clean, errors, line, say
from laneway.errors import LanewayError, NotFoundError, TransportUnavailableError, UsageError, reaction_to
from laneway.mail import Mode

if TYPE_CHECKING:
    from laneway.cli.chat_screen import ChatScreen

__all__ = ("chat",)

PAST: Final = 6
LEAVE: Final = frozenset({"/quit", "/exit"})


def chat(
    ctx: typer.Context,
    session: Annotated[str, typer.Argument(help="The session.", autocompletion=complete_session)] = "chat",
    mode: Annotated[
        Mode | None,
        typer.Option("--mode", "-m", help="What a message does while it works.", case_sensitive=False),
    ] = None,
) -> None:
    """Talk with a session: the answer streams in, and you can type while it works.

    Commands such as `/queue steer`, `/status`, `/approve ID` go to the server. Ctrl-C cancels the run, twice leaves;
    a run that goes on goes on without you. With input from a pipe each line is a message, and answers are plain text.
    """
    if sys.stdin.isatty() and sys.stdout.isatty():
        asyncio.run(_talk(ctx, session, mode))
    else:
        code = asyncio.run(_read_lines(ctx, session, mode))
        if code:
            raise typer.Exit(code)


# ---- from a pipe ----


async def _read_lines(ctx: typer.Context, session: str, mode: Mode | None) -> int:
    """Each line a message, one after the other; the exit code of the first that was not answered."""
    code = 0
    async with Link(target_of(ctx)) as link:
        while text := await asyncio.to_thread(sys.stdin.readline):
            if not text.strip():
                continue
            try:
                await _one_line(link, session, text.rstrip("\n"), mode)
            except TransportUnavailableError:
                raise
            except LanewayError as error:
                say(f"laneway: {error}", style="red", to=errors())
                code = code or reaction_to(error).exit_code
    return code


async def _one_line(link: Link, session: str, text: str, mode: Mode | None) -> None:
    receipt = await link.send(path_of("sessions", session), _body(text, mode), key=str(uuid.uuid4()))
    message_id = receipt.get("sent") or receipt["message_id"]
    if receipt.get("reply"):
        _out(receipt["reply"])
    if receipt["disposition"] == "command" and not receipt.get("sent"):
        return
    final = await wait_for(link, session, message_id)
    if final.get("answer"):
        _out(final["answer"])
    error = failure_of(final)
    if error is not None:
        raise error


def _out(text: str) -> None:
    sys.stdout.write(f"{clean(text)}\n")
    sys.stdout.flush()


def _body(text: str, mode: Mode | None) -> dict[str, Any]:
    return {"text": text} if mode is None or text.startswith("/") else {"text": text, "mode": mode.value}


# ---- on a terminal ----


async def _talk(ctx: typer.Context, session: str, mode: Mode | None) -> None:
    screen = _screen(session)
    talk, words = Conversation(screen), Words()
    trouble: list[LanewayError] = []
    async with Link(target_of(ctx)) as link:
        await _show_past(link, session, screen)
        async with asyncio.TaskGroup() as group:
            outbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
            tasks = [
                group.create_task(_listen(link, session, talk, screen, trouble)),
                group.create_task(_say_all(link, session, talk, screen, outbox)),
            ]
            screen.status = lambda: _state(talk)
            screen.on_cancel = lambda: _cancel_soon(group, link, talk, screen)
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, screen.interrupt)
            while (text := await screen.read()) is not None and text.strip() not in LEAVE:
                if said := words.answer(text):
                    screen.note(said, "cyan")
                    screen.flush()
                elif text.strip():
                    outbox.put_nowait(_body(text, mode))
            await outbox.join()
            for each in tasks:
                each.cancel()
        screen.end_text()
        screen.flush()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever leaves with one Ctrl-C too many has left all the same
    if trouble:
        raise trouble[0]
    if talk.is_working:
        say(f"The run goes on; `laneway chat {line(session)}` shows it again.", style="dim")


def _screen(session: str) -> ChatScreen:
    try:
        from laneway.cli.chat_screen import ChatScreen  # prompt_toolkit takes its time; only this command needs it
    except ImportError as error:
        hint = "install laneway with the extra `cli`"
        raise UsageError(f"to chat on a terminal needs {error.name}", hint=hint) from None
    return ChatScreen(clean(session))


async def _listen(
    link: Link, session: str, talk: Conversation, screen: ChatScreen, trouble: list[LanewayError]
) -> None:
    """Show what happens, until the stream ends; then there is nobody to talk with."""
    try:
        async with aclosing(link.events(path_of("sessions", session, "events"))) as events:
            async for told in events:
                talk.hear(told)
                screen.flush()
        trouble.append(TransportUnavailableError("the server has ended this conversation", hint="is the token good?"))
    except LanewayError as error:
        trouble.append(error)
    finally:
        screen.leave()


async def _say_all(
    link: Link, session: str, talk: Conversation, screen: ChatScreen, outbox: asyncio.Queue[dict[str, Any]]
) -> None:
    """Send what was typed, in order; the next line can be typed meanwhile."""
    while True:
        body = await outbox.get()
        try:
            talk.sent(await link.send(path_of("sessions", session), body, key=str(uuid.uuid4())))
        except LanewayError as error:
            screen.note(clean(str(error)), "red")
        finally:
            outbox.task_done()
        screen.flush()


async def _show_past(link: Link, session: str, screen: ChatScreen) -> None:
    """The last lines of the conversation, so that one knows where one is."""
    try:
        past = await link.ask("GET", path_of("sessions", session, "history"), params={"limit": PAST})
    except NotFoundError:
        screen.note(f"A new session: {clean(session)}")
    else:
        for entry in past["items"][-PAST:]:
            mark = "> " if entry["role"] == "user" else ""
            screen.note(f"{mark}{line(entry['text'])}")
    screen.note("Ctrl-C cancels a run, twice leaves. /help lists the commands.")
    screen.flush()


def _state(talk: Conversation) -> tuple[str, int, int]:
    waiting = len(talk.waiting)
    return ("works" if talk.is_working else "is idle", talk.began_ms if talk.is_working else 0, waiting)


def _cancel_soon(group: asyncio.TaskGroup, link: Link, talk: Conversation, screen: ChatScreen) -> bool:
    """Cancel the run that goes on; False if there is none."""
    run_id = talk.run_id
    if not run_id:
        return False

    async def cancel() -> None:
        try:
            await link.ask("POST", path_of("runs", run_id, "cancel"), body={"reason": "cancelled in chat"})
        except LanewayError as error:
            screen.note(clean(str(error)), "red")
            screen.flush()

    group.create_task(cancel())
    return True
