"""`laneway serve` below its options: the listener, the signals, and the order in which things begin and end.

Standard output gets one line, when everything is ready; all else goes to standard error. The first SIGTERM or SIGINT
ends streams, closes the door and gives runs their time; what has not ended by then goes on with the next start. A
second one takes that time away.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import shutil
import signal
import socket
import ssl
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NoReturn, TextIO

import uvicorn

from laneway.errors import ConfigError, UnavailableError
from laneway.gateway.access import Scope
from laneway.gateway.app import create_app
from laneway.gateway.channels import start_channels
from laneway.gateway.connections import protocol_of, raise_file_limit
from laneway.gateway.draining import drain
from laneway.gateway.launch import Launch
from laneway.gateway.secrets import hide_process, take_secrets
from laneway.gateway.service import Gateway
from laneway.gateway.settings import GatewaySettings
from laneway.gateway.tokens import Token, TokenBook
from laneway.ports import Clock
from laneway.stores import open_store
from laneway.system import HostEnv
from laneway.telemetry.logs import set_up_logs

__all__ = ("Server", "bind", "run", "url_of")

_log = logging.getLogger("laneway.gateway")

BACKLOG: Final = 2048
COLLECT_AFTER: Final = (20_000, 20, 20)
"""When garbage is looked for: with thousands of sessions in memory, the usual pace takes much of the time."""
QUICK_S: Final = 0.5  # requests that are answered at once get this long before the gateway closes
SPARE_S: Final = 1.0
SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
WHY_NOT: Final = {
    errno.EADDRINUSE: ("it is in use", "end what listens there, or take another: --port 0 picks a free one"),
    errno.EACCES: ("this user may not use it", "take a port above 1023"),
    errno.EPERM: ("this user may not use it", "take a port above 1023"),
    errno.EADDRNOTAVAIL: ("this machine has no such address", "--host 127.0.0.1 is always there"),
}


def run(launch: Launch, *, out: TextIO | None = None, err: TextIO | None = None) -> None:
    """Serve until a signal comes. Raises `LanewayError` if that cannot begin, with nothing left open."""
    take_secrets()
    hide_process()
    raise_file_limit()
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a client that hangs up must not end the server
    out = out or sys.stdout
    err = err or sys.stderr
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_serve(launch, out, err))


async def _serve(launch: Launch, out: TextIO, err: TextIO) -> None:
    env = HostEnv()
    with contextlib.closing(bind(launch.settings)) as listener:
        settings = replace(launch.settings, port=listener.getsockname()[1])
        await _check_public(settings, env.clock)
        gateway = Gateway(settings, launch.workspaces, env=env)
        set_up_logs(settings.log_format, settings.log_level, stream=err)
        with _Stop(gateway, err) as stop:
            async with gateway, _channels(gateway):
                stop.server = Server(_config(gateway), gateway, lambda: _greet(gateway, launch, out, err))
                if not stop.is_asked:
                    await stop.server.serve(sockets=[listener])


class Server(uvicorn.Server):
    """Says when it is ready, leaves signals to its owner, and closes the gateway while the last answers go out."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._on_ready = on_ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The owner of the process has them."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; then say so."""
        await super().startup(sockets)
        gc.collect()
        gc.freeze()  # what is there by now stays: the collector need not look at it again and again
        gc.set_threshold(*COLLECT_AFTER)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing more. Whoever waits for a run that ends in time gets its answer."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._close_gateway())
            await super().shutdown(sockets)

    async def _close_gateway(self) -> None:
        gateway = self._gateway
        if self.server_state.tasks:
            await asyncio.wait(list(self.server_state.tasks), timeout=QUICK_S)
        await drain(gateway, gateway.settings.drain_ms)
        await gateway.close()


class _Stop:
    """The signals of the process: the first one asks to stop, the second one to hurry."""

    def __init__(self, gateway: Gateway, err: TextIO) -> None:
        self._gateway = gateway
        self._err = err
        self.server: Server | None = None
        self.is_asked = False

    def __enter__(self) -> _Stop:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self.is_asked:
            _tell(self._gateway, self._err, "Stopped at once: what was going on goes on with the next start.")
            end_at_once()
        self.is_asked = True
        seconds = self._gateway.settings.drain_ms / 1000
        words = f"Stopping: runs have {seconds:g} s; what has not ended goes on with the next start."
        _tell(self._gateway, self._err, words)
        self._gateway.begin_stop()
        if self.server is not None:
            self.server.should_exit = True


def end_at_once() -> NoReturn:
    """End the process as a crash would, so that nothing is taken for cancelled; but take its tools along."""
    me = os.getpid()
    for children in Path(f"/proc/{me}/task").glob("*/children"):  # none where there is no such place
        with contextlib.suppress(OSError):
            for pid in children.read_text().split():
                with contextlib.suppress(OSError):
                    os.killpg(int(pid), signal.SIGKILL)  # every tool has a session of its own
    os._exit(0)


# ---- the address ----


def bind(settings: GatewaySettings) -> socket.socket:
    """A socket on the address, or an error that says what is wrong with it."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"there is no address {settings.host!r}: {getattr(error, 'strerror', None) or error}",
            setting="gateway.host",
            value=settings.host,
            hint="--host 127.0.0.1 is this machine alone, --host 0.0.0.0 all of its addresses",
        ) from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        why, hint = WHY_NOT.get(error.errno or 0, (error.strerror or str(error), ""))
        where = f"{settings.host}:{settings.port}"
        raise UnavailableError(f"cannot listen on {where}: {why}", hint=hint, host=settings.host) from error
    return listener


def url_of(settings: GatewaySettings) -> str:
    """The address as one writes it into a browser."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_certificate else 'http'}://{host}:{settings.port}"


async def _check_public(settings: GatewaySettings, clock: Clock) -> None:
    """Whoever can be reached from elsewhere needs tokens. Looked up before anything is started."""
    if settings.is_loopback:
        return
    store = open_store(settings.store)
    await store.open()
    try:
        tokens = TokenBook(store, clock)
        await tokens.load()
    finally:
        await store.close()
    if not any(_counts(token, clock) for token in tokens.tokens()):
        raise ConfigError(
            f"{settings.host} can be reached from other machines, and there are no tokens",
            setting="gateway.host",
            value=settings.host,
            hint=f"make one first: laneway token create NAME --scope chat --store {settings.store}; "
            "or listen on 127.0.0.1",
        )


def _counts(token: Token, clock: Clock) -> bool:
    return token.seq > 0 and token.counts(clock.wall_ms())


def _config(gateway: Gateway) -> uvicorn.Config:
    settings = gateway.settings
    config = uvicorn.Config(
        create_app(gateway),
        http=protocol_of(settings),
        ws_max_size=settings.body_max,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=int(settings.drain_ms / 1000 + QUICK_S + SPARE_S) + 1,
        ssl_certfile=os.path.expanduser(settings.tls_certificate) or None,
        ssl_keyfile=os.path.expanduser(settings.tls_key) or None,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS cannot be set up: {error}", setting="gateway.tls_certificate") from error
    return config


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


# ---- what is said ----


def _greet(gateway: Gateway, launch: Launch, out: TextIO, err: TextIO) -> None:
    for note in launch.notes:
        _tell(gateway, err, note)
    for line in _about_tokens(gateway, is_terminal=err.isatty()):
        _tell(gateway, err, line)
    _say(out, f"Laneway is listening on {url_of(gateway.settings)}")
    if err.isatty():
        _say(
            err,
            _folded(f"  Ctrl-C stops it. In another terminal: {_command()} chat"),
        )


def _about_tokens(gateway: Gateway, *, is_terminal: bool) -> Iterator[str]:
    """Whether requests need one; and an operator token that ends with the process, shown to a person and to nothing
    that keeps what it reads."""
    if is_terminal and gateway.settings.is_loopback and not gateway.tokens.is_empty:
        yield "There are tokens: every request needs one, the dashboard and the commands on this machine, too."
    operators = [token for token in gateway.tokens.tokens() if token.caller().may(Scope.OPERATE)]
    clock = gateway.env.clock
    if any(_counts(token, clock) for token in operators):
        return
    if not is_terminal:
        where = gateway.settings.store
        way = f"{_command()} token create NAME --scope operate --tenant '*' --store {where}"
        yield f"Nobody can approve calls yet. Stop this server, then: {way}"
        return
    secret = gateway.tokens.create_for_now("operator", (Scope.ADMIN,))
    yield f"Operator token, until this server ends: {secret}"
    approve = f"{_command()} approve ID"
    yield f"  To approve a call: {approve}, which asks for the token; or on the dashboard."
    yield f"  The dashboard with it: {url_of(gateway.settings)}/#token={secret}"


def _tell(gateway: Gateway, err: TextIO, line: str) -> None:
    """A line for whoever started it; a line of the log where a program reads that."""
    if gateway.settings.log_format == "json" and not err.isatty():
        _log.warning("%s", line.strip())
    else:
        _say(err, _folded(line) if err.isatty() else line)


def _folded(line: str) -> str:
    """A line between words, as a terminal has room."""
    width = max(40, shutil.get_terminal_size().columns)
    return textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _command() -> str:
    """What to type for `laneway` here: who has just installed it into `.venv` need not have that on the path."""
    if shutil.which("laneway"):
        return "laneway"
    return sys.argv[0] if Path(sys.argv[0]).name == "laneway" else "python -m laneway"


def _say(stream: TextIO, line: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody listens any more
        stream.write(f"{line}\n")
        stream.flush()


# ---- channels ----


@contextlib.asynccontextmanager
async def _channels(gateway: Gateway) -> AsyncIterator[None]:
    """The channels that are set up, from before the first request until the gateway closes."""
    started = await start_channels(gateway)
    try:
        yield
    finally:
        for channel in reversed(started):
            await channel.stop()
