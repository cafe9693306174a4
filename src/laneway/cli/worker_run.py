"""How `laneway worker` runs: from its options to a Worker, a transport, signals, and a good end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from laneway.cli.pipes import survive_hang_ups
from laneway.cli.worker_handlers import found_in
from laneway.cli.worker_screen import WorkerScreen
from laneway.errors import ConfigError, LanewayError, reaction_to
from laneway.telemetry.logs import set_up_logs
from laneway.tools.sandbox import Sandbox
from laneway.transports.http import HttpTransport
from laneway.worker import THREADS, Worker, WorkerLimits
from laneway.worker.work import FACTS

__all__ = ("Choice", "Limits", "Reach", "made_worker", "run_worker")

_log = logging.getLogger("laneway")

PATIENCE_S = 1.0
ONE_SIGNAL_S = 0.5  # whoever starts processes for others may pass one signal on twice


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Where the server is, and who asks."""

    url: str
    token: str = field(default="", repr=False)
    tenant: str = ""
    ca: str = ""
    cert: str = ""
    key: str = ""
    token_file: str = ""

    def transport(self) -> HttpTransport:
        """The way there."""
        return HttpTransport(
            self.url,
            token=self.token or None,
            verify=self.ca or True,
            certificate=self.cert or None,
            key=self.key or None,
            tenant=self.tenant,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which tasks it takes, and what does them."""

    name: str | None = None
    lanes: Sequence[str] = ()
    concurrency: str | None = None
    labels: Sequence[str] = ()
    serve: Sequence[str] = ()
    allow: Sequence[str] = ()
    handlers: str = ""
    builtin_tools: bool = False
    lease_ms: int | None = None
    workspace: str | None = None
    maps: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What its commands may use, and how long it may take to stop."""

    sandbox: bool | None = None
    network: bool = False
    sizes: Mapping[str, int | None] = field(default_factory=dict)
    drain_ms: int = 30_000


def run_worker(
    reach: Reach, choice: Choice, limits: Limits, *, log_level: str = "info", as_json: bool = False, quiet: bool = False
) -> None:
    """Run until a signal, or until the server refuses for good."""
    survive_hang_ups()
    os.environ.pop("LANEWAY_TOKEN", None)  # it was read; modules of others need not find it
    undo = set_up_logs("json" if as_json else "console", log_level)
    if as_json:
        for handler in logging.getLogger().handlers:
            handler.addFilter(_with_facts)
    try:
        worker = made_worker(choice, limits, hidden=[each for each in (reach.token_file, reach.key) if each])
        transport = reach.transport()
        worker.connect(transport)
        screen = WorkerScreen(worker.name, reach.url, as_json=as_json, has_bars=False if quiet or as_json else None)
        if screen.log_stream is not None:
            undo()
            undo = set_up_logs("console", log_level, stream=screen.log_stream)  # type: ignore[arg-type] # it writes
        worker.watch(screen.hear)
        try:
            with screen.open():
                asyncio.run(_until_a_signal(worker, transport, limits.drain_ms))
        except LanewayError as error:
            if _is_held_up():
                _leave(error)
            raise
        if _is_held_up():
            _leave(None)
    finally:
        undo()


def _with_facts(record: logging.LogRecord) -> bool:
    """What a line is about, as fields of it."""
    vars(record).update(vars(record).get(FACTS, {}))
    return True


async def _until_a_signal(worker: Worker, transport: HttpTransport, drain_ms: int) -> None:
    loop = asyncio.get_running_loop()
    stops: list[asyncio.Task[None]] = []
    begun_at = 0.0

    def stop() -> None:
        nonlocal begun_at
        is_first = not stops
        if not is_first and loop.time() - begun_at < ONE_SIGNAL_S:
            return
        if is_first:
            begun_at = loop.time()
            said = "worker %s stops: what runs (%s) has %s ms to end; another signal stops it at once"
            _log.warning(said, worker.name, worker.stats.running, drain_ms)
        elif len(stops) == 1:
            _log.warning("worker %s stops at once", worker.name)
        stops.append(loop.create_task(worker.stop(timeout_ms=drain_ms if is_first else 0), name="laneway-stop"))

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await worker.run()
        if stops:
            await asyncio.wait(stops)
    finally:
        await transport.close()


def _is_held_up() -> bool:
    """Whether a thread is still at work: one that has nothing to do ends in a moment."""
    own = [each for each in threading.enumerate() if each.name.startswith(THREADS)]
    for each in own:
        each.join(PATIENCE_S / len(own))
    return any(each.is_alive() for each in own)


def _leave(error: LanewayError | None) -> NoReturn:
    """End although a thread does not: Python would wait for it for ever."""
    if error is not None:
        sys.stderr.write(f"laneway: {error}\n")
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0 if error is None else reaction_to(error).exit_code)


# ---- from options to a worker ----


def made_worker(choice: Choice, limits: Limits, *, hidden: Sequence[str] = ()) -> Worker:
    """The worker that the options mean; what they do not say is as the module of `--handlers` has it."""
    found = found_in(choice.handlers) if choice.handlers else Worker()
    options = _options(choice)
    if hidden:
        options["hidden"] = tuple(hidden)
    if isinstance(found, Worker):
        return _like(found, options, limits)
    if limits.sandbox:
        options["sandbox"] = Sandbox(network=limits.network)
    built_in = _built_in(options.get("sandbox")) if choice.builtin_tools else []
    given: dict[str, Any] = {"handlers": found} if isinstance(found, dict) else {"tools": [*built_in, *found]}
    if isinstance(found, dict) and built_in:
        given["tools"] = built_in
    return Worker(**given, **options, limits=_limits(None, limits))


def _like(found: Worker, options: dict[str, Any], limits: Limits) -> Worker:
    given = found.given
    options["hidden"] = (*given["hidden"], *options.pop("hidden", ()))
    options["labels"] = (*found.labels, *options.pop("labels", ()))
    options["limits"] = _limits(given["limits"], limits)
    sandbox = given["sandbox"] if limits.sandbox is None else limits.sandbox
    if sandbox:
        own = sandbox if isinstance(sandbox, Sandbox) else given["sandbox"]
        own = own if isinstance(own, Sandbox) else Sandbox()
        sandbox = replace(own, network=own.network or limits.network)
    return found.copy(**options, sandbox=sandbox)


def _built_in(sandbox: Sandbox | None) -> list[Any]:
    from laneway.worker.settings import built_in_tools

    return built_in_tools(sandbox)


def _limits(own: WorkerLimits | None, limits: Limits) -> WorkerLimits | None:
    sizes = {name: value for name, value in limits.sizes.items() if value is not None}
    return replace(own or WorkerLimits(), **sizes) if sizes else own


def _options(choice: Choice) -> dict[str, Any]:
    """The settings that were given."""
    found: dict[str, Any] = {
        "name": choice.name or None,
        "lanes": _words(choice.lanes),
        "concurrency": _concurrency(choice.concurrency),
        "labels": _words(choice.labels),
        "workspaces": _words(choice.serve),
        "commands": _words(choice.allow),
        "lease_ms": choice.lease_ms,
        "workspace": choice.workspace or None,
        "mapping": _mapping(choice.maps),
    }
    names = tuple(each for each in found["mapping"] if not each.startswith("/"))
    if names and len(names) == len(found["mapping"]) and not choice.workspace and not choice.serve:
        found["workspaces"] = names  # it has folders for these only: the tasks of others it could but spoil
    return {name: value for name, value in found.items() if value or value == 0}


def _words(given: Sequence[str]) -> tuple[str, ...]:
    """A list, one by one or with commas."""
    return tuple(word for each in given for part in each.split(",") if (word := part.strip()))


def _concurrency(given: str | None) -> int | dict[str, int] | None:
    if not given:
        return None
    try:
        if "=" not in given:
            return int(given)
        pairs = (each.split("=", 1) for each in _words([given]))
        return {lane.strip(): int(width) for lane, width in pairs}
    except ValueError:
        said = f"{given!r} is no concurrency"
        raise ConfigError(said, setting="concurrency", value=given, hint="8, or execute=2,query=8") from None


def _mapping(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for each in given:
        there, equals, here = each.partition("=")
        if not equals or not there.strip() or not here.strip():
            said = f"{each!r} maps nothing"
            raise ConfigError(said, setting="map", value=each, hint="--map /srv/app=/home/ci/app, or --map app=.")
        found[there.strip()] = here.strip()
    return found
