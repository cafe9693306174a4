"""The checks of `laneway doctor`: each looks at one part of a set-up and says how it is and what to do about it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sqlite3
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from laneway.errors import DeniedError, LanewayError, StoreUnavailableError

if TYPE_CHECKING:
    import httpx2

    from laneway.gateway.launch import Launch, ServeOptions
    from laneway.gateway.settings import GatewaySettings

__all__ = ("CHECKS", "EXTRAS", "Check", "Finding", "Patient", "State", "examine")

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "agent": ("anyio", "httpcore2", "jsonschema", "pydantic", "yaml"),
    "cli": ("httpx2", "prompt_toolkit", "rich", "typer"),
    "config": ("hcl2", "yaml"),
    "gateway": ("fastapi", "httptools", "prometheus_client", "uvicorn", "websockets"),
    "mcp": ("mcp",),
    "models": ("genai_prices", "pydantic_ai"),
    "otel": ("opentelemetry",),
    "telegram": ("aiogram",),
    "worker": ("aiohttp", "anyio", "httpx2", "jsonschema", "typer"),
}
"""The extras and the modules that show whether they are there."""

TESTED_LAST: Final = (3, 14)
NEEDED: Final = ("agent", "cli", "config", "gateway")
SQLITE_LEAST: Final = (3, 37, 0)
SLOW_FSYNC_MS: Final = 100
SPACE_LEAST: Final = 100 * 1024 * 1024
SPACE_WANTED: Final = 1024 * 1024 * 1024
SKEW_MAX_S: Final = 5.0
TIMEOUT_S: Final = 5.0
ONLINE_S: Final = 30.0
ASPECTS: Final = ("operator", "soon")  # of tokens that count
SOON_MS: Final = 7 * 86_400_000


class State(StrEnum):
    """How something is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check has found; `hint` says what to do."""

    check: str
    state: State
    says: str
    hint: str = ""


@dataclass(slots=True, kw_only=True)
class Patient:
    """What is looked at. `launch` is filled in by the check of the configuration. `must_answer`: the server at `url`
    was asked about, and not only named by the environment."""

    options: ServeOptions
    environ: Mapping[str, str]
    url: str = ""
    ca: str = ""
    must_answer: bool = True
    is_online: bool = False
    launch: Launch | None = None

    @property
    def settings(self) -> GatewaySettings:
        """How a server would be started here."""
        from laneway.gateway.settings import GatewaySettings

        return self.launch.settings if self.launch is not None else GatewaySettings()

    @property
    def store_path(self) -> Path | None:
        """The file of the store, if it is one."""
        from laneway.stores import sqlite_path

        address = self.settings.store
        return Path(sqlite_path(address)).absolute() if address.startswith("sqlite:") else None


Found = Iterator[tuple[State, str, str]]
Check = Callable[[Patient], Found]


def examine(patient: Patient, on_begin: Callable[[str], None] = lambda _: None) -> Iterator[Finding]:
    """Make every check, one after another; one that fails to look is a failure of its own, not of the others."""
    for name, check in CHECKS.items():
        on_begin(name)
        try:
            for state, says, hint in check(patient):
                yield Finding(check=name, state=state, says=says, hint=hint)
        except LanewayError as error:
            yield Finding(check=name, state=State.FAIL, says=error.message, hint=error.hint)
        except Exception as error:  # noqa: BLE001 - the other checks are made all the same
            yield Finding(check=name, state=State.FAIL, says=f"could not be checked: {type(error).__name__}: {error}")


# ---- the machine ----


def _python(_: Patient) -> Found:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] <= TESTED_LAST:  # an older one than needed cannot even read this file
        yield State.OK, f"{version} at {sys.executable}", ""
    else:
        yield State.WARN, f"{version} is newer than what Laneway was tested with", "if something is odd, use 3.14"


def _extras(_: Patient) -> Found:
    lacking = {extra: [name for name in modules if not _is_installed(name)] for extra, modules in EXTRAS.items()}
    there = [extra for extra, names in lacking.items() if not names]
    absent = [extra for extra, names in lacking.items() if names == list(EXTRAS[extra]) and extra not in NEEDED]
    more = f"; not installed, and not needed here: {', '.join(absent)}" if absent else ""
    yield State.OK, f"installed: {', '.join(there) or 'none'}{more}", ""
    for extra, names in lacking.items():
        if names and extra not in absent:  # what the configuration needs of those is told by its own checks
            hint = f"install laneway again with the extra `{extra}`"
            state = State.FAIL if extra in NEEDED else State.WARN
            yield state, f"the extra `{extra}` lacks {', '.join(names)}", hint


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _sqlite(patient: Patient) -> Found:
    if sqlite3.sqlite_version_info < SQLITE_LEAST:
        hint = "use a Python that was built with a newer one"
        yield (
            State.FAIL,
            f"SQLite {sqlite3.sqlite_version} is too old, {SQLITE_LEAST[0]}.{SQLITE_LEAST[1]} is needed",
            hint,
        )
    else:
        yield State.OK, f"SQLite {sqlite3.sqlite_version}", ""
    path = patient.store_path
    if path is None:
        return
    try:
        took_ms = _fsync_ms(path.parent)
    except OSError as error:
        hint = "make the folder, or let this user write to it; or name another store with --store"
        yield State.FAIL, f"{path.parent} cannot be written: {error.strerror or error}", hint
        return
    state = State.WARN if took_ms > SLOW_FSYNC_MS else State.OK
    hint = "every message waits for that; a local disk is faster" if state is State.WARN else ""
    yield state, f"what is written to {path.parent} reaches the disk in {took_ms:.1f} ms", hint


def _fsync_ms(folder: Path) -> float:
    with tempfile.TemporaryFile(dir=folder) as file:
        took: list[float] = []
        for _ in range(5):
            file.write(b"x" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return sorted(took)[2]


# ---- the configuration ----


def _config(patient: Patient) -> Found:
    from laneway.config import InvalidConfigError
    from laneway.gateway.launch import prepare

    try:
        patient.launch = launch = prepare(patient.options, patient.environ)
    except InvalidConfigError as error:
        for problem in error.problems:
            yield State.FAIL, str(problem), ""
        return
    files = ", ".join(launch.files) or "no file: the defaults"
    yield State.OK, f"good ({files})", ""
    for spec in launch.workspaces:
        yield State.OK, f"workspace {spec.name!r}: {spec.folder}, model {spec.agent.default_model}", ""


def _models(patient: Patient) -> Found:
    from laneway.gateway.launch import SCRIPTED

    if patient.launch is None:
        return
    for spec in patient.launch.workspaces:
        name = spec.agent.default_model or SCRIPTED
        if name.partition("/")[0] == SCRIPTED:
            hint = "--model openai/gpt-5, or default_model in agent.yaml, and its key in the environment"
            yield State.WARN, f"workspace {spec.name!r} has the scripted model, which thinks nothing", hint
        elif not patient.is_online:
            yield State.OK, f"{name} has a key (--online asks it something)", ""
        else:
            yield _asked(name, spec.agent, patient.environ)


def _asked(name: str, agent: Any, environ: Mapping[str, str]) -> tuple[State, str, str]:
    """Whether a model answers. It costs a few tokens."""
    import asyncio

    from laneway.agent.files import arguments_of
    from laneway.dialogue import ModelRequest, Prompt
    from laneway.models import model_from

    async def ask() -> None:
        model = model_from(name, arguments_of(agent, environ)["providers"])
        async with asyncio.timeout(ONLINE_S):
            async for _ in model.stream(ModelRequest(conversation=(Prompt(text="Answer with the word ok."),))):
                pass

    began = time.perf_counter()
    try:
        asyncio.run(ask())
    except TimeoutError:
        return (
            State.FAIL,
            f"{name} has not answered in {ONLINE_S:g} s",
            "look at the network and at the provider's status",
        )
    except LanewayError as error:
        return State.FAIL, f"{name} does not answer: {error.message}", error.hint
    return State.OK, f"{name} answers, in {time.perf_counter() - began:.1f} s", ""


def _servers_of_tools(patient: Patient) -> Found:
    if patient.launch is None:
        return
    for spec in patient.launch.workspaces:
        for name, server in spec.agent.mcp_servers.items():
            if not server.enabled or not server.command:
                continue
            path = shutil.which(server.command, path=patient.environ.get("PATH"))
            if path is None:
                yield (
                    State.FAIL,
                    f"server {name!r}: there is no program {server.command!r}",
                    "install it, or fix its path",
                )
            else:
                yield State.OK, f"server {name!r}: {path}", ""


# ---- the store ----


def _store(patient: Patient) -> Found:
    from laneway.stores.sqlite import BUSY_MS
    from laneway.stores.sqlite_file import CHECKED_BYTES_MAX, check_file

    path = patient.store_path
    if path is None:
        yield State.WARN, f"{patient.settings.store} keeps nothing over a restart", "--store sqlite:///laneway.db"
        return
    if not path.exists():
        yield State.OK, f"{path} is made by the first start", ""
        return
    if path.stat().st_size > CHECKED_BYTES_MAX:
        yield State.OK, f"{path} is too large to be read now", "laneway store check reads all of it"
    else:
        report = check_file(str(path), busy_ms=BUSY_MS)
        if not report.is_sound:
            raise StoreUnavailableError(
                f"{path} is damaged: {report.problems[0]}", hint="keep a copy of it, then go back to a backup"
            )
        use = f"in use by process {report.in_use_by}" if report.in_use_by else "not in use"
        yield State.OK, f"{path} is sound, {use}", ""
    yield from _permissions(path)


def _permissions(path: Path) -> Found:
    mode = stat.S_IMODE(path.stat().st_mode)
    if not os.access(path, os.W_OK):
        yield State.FAIL, f"{path} cannot be written by this user", f"chown or chmod u+w {path}"
    elif mode & 0o022:
        yield State.FAIL, f"others may change {path} (mode {mode:o})", f"chmod 600 {path}"
    elif mode & 0o044:
        yield State.WARN, f"others on this machine may read {path} (mode {mode:o})", f"chmod 600 {path}"


def _space(patient: Patient) -> Found:
    path = patient.store_path
    if path is None or not path.parent.is_dir():
        return
    free = shutil.disk_usage(path.parent).free
    says = f"{free / 1024**3:.1f} GiB free for the store"
    if free < SPACE_LEAST:
        yield State.FAIL, says, "make room: nothing is taken when the disk is full"
    elif free < SPACE_WANTED:
        yield State.WARN, says, "make room soon"
    else:
        yield State.OK, says, ""


def _tokens(patient: Patient) -> Found:
    counts = _token_counts(patient)
    valid = counts.get("valid", 0)
    way = f"laneway token create NAME --scope operate --tenant '*' --store {patient.settings.store}"
    if valid:
        total = sum(count for state, count in counts.items() if state not in ASPECTS)
        yield State.OK, f"{valid} of {total} tokens count", ""
        if not counts.get("operator"):
            yield State.WARN, "none of them has the scope operate for all tenants: nobody can look after lanes", way
    elif not patient.settings.is_loopback:
        hint = f"laneway token create NAME --scope chat --store {patient.settings.store}"
        yield State.FAIL, f"{patient.settings.host} can be reached from elsewhere, and no token counts", hint
    else:
        hint = f"{way} makes one that is kept"
        yield State.OK, "none: whoever is on this machine may talk, and the server makes an operator token", hint
    for state, says in (("expired", "have expired"), ("soon", "expire within a week"), ("damaged", "are damaged")):
        if counts.get(state):
            yield State.WARN, f"{counts[state]} tokens {says}", "laneway token ls; laneway token create"


def _token_counts(patient: Patient) -> dict[str, int]:
    """How many tokens of each state the store has; looked at without opening it."""
    path = patient.store_path
    if path is None or not path.exists():
        return {}
    from laneway.gateway.tokens import GATEWAY, KIND
    from laneway.stores.sqlite import BUSY_MS
    from laneway.stores.sqlite_file import connect

    connection = connect(str(path), busy_ms=BUSY_MS, read_only=True)
    try:
        query = "SELECT body FROM states WHERE kind = ? AND workspace = ?"
        rows = [row[0] for row in connection.execute(query, (KIND, GATEWAY))]
    except sqlite3.OperationalError:
        return {}  # a store without tables yet
    finally:
        connection.close()
    now_ms = time.time_ns() // 1_000_000
    counts: dict[str, int] = {}
    for body in rows:
        for state in _token_states(body, now_ms):
            counts[state] = counts.get(state, 0) + 1
    return counts


def _token_states(body: str, now_ms: int) -> Iterator[str]:
    try:
        token = json.loads(body)
        expires, revoked = token.get("expires_ms"), token.get("revoked_ms")
    except (ValueError, AttributeError):
        yield "damaged"
        return
    if revoked is not None:
        yield "revoked"
    elif expires is not None and expires <= now_ms:
        yield "expired"
    else:
        yield "valid"
        if token.get("tenant") == "*" and {"operate", "admin"} & set(token.get("scopes") or ()):
            yield "operator"
        if expires is not None and expires - now_ms < SOON_MS:
            yield "soon"


# ---- the server ----


def _port(patient: Patient) -> Found:
    from dataclasses import replace

    from laneway.errors import UnavailableError
    from laneway.gateway.server import bind

    settings = patient.settings
    if settings.port == 0:
        yield State.OK, "a free one is picked at the start", ""
        return
    where = f"{settings.host}:{settings.port}"
    try:
        bind(replace(settings)).close()
    except UnavailableError as error:
        answer = _ready(patient)
        if not isinstance(answer, LanewayError) and answer.status_code in (200, 503):
            yield State.OK, f"{where} is taken by a server that answers", ""
        else:
            yield State.FAIL, error.message, error.hint
    else:
        yield State.OK, f"{where} is free", ""


def _server(patient: Patient) -> Found:
    url = _url(patient)
    answer = _ready(patient)
    if isinstance(answer, LanewayError):
        is_somebody = getattr(answer, "is_doubted", False) or not patient.must_answer
        state = State.FAIL if patient.url and patient.must_answer else State.WARN if is_somebody else State.OK
        yield state, answer.message, answer.hint
        return
    if answer.status_code == 200:
        yield State.OK, f"the server at {url} is ready", ""
    else:
        hint = f"curl {url}/readyz says why"
        yield State.FAIL, f"the server at {url} is not ready (status {answer.status_code}): {answer.text[:300]}", hint
    sent = answer.headers.get("date")
    skew_s = 0.0 if sent is None else parsedate_to_datetime(sent).timestamp() - time.time()
    if abs(skew_s) > SKEW_MAX_S:
        hint = "set both clocks by a time server: expiry of tokens and of messages goes by them"
        yield State.WARN, f"its clock and that of this machine are {abs(skew_s):.0f} s apart", hint


def _url(patient: Patient) -> str:
    from laneway.gateway.server import url_of

    return patient.url.rstrip("/") or url_of(patient.settings)


def _ready(patient: Patient) -> httpx2.Response | LanewayError:
    """What /readyz answers, or why nothing does."""
    import httpx2

    from laneway.cli.client import Target, translated

    target = Target(url=_url(patient), ca=patient.ca)
    try:
        options = target.options()
        return httpx2.get(
            f"{target.root}/readyz", timeout=TIMEOUT_S, trust_env=options["trust_env"], verify=options["verify"]
        )
    except httpx2.HTTPError as error:
        return translated(error, target.url)
    except LanewayError as error:
        return error


def _workers(patient: Patient) -> Found:
    """Whether somebody takes the tasks of the lanes whose calls are made elsewhere."""
    if patient.launch is None:
        return
    outside = [
        (spec.name, lane, handler)
        for spec in patient.launch.workspaces
        for lane, handler in (spec.agent.queue.lane_handlers.items() if spec.agent.queue is not None else ())
        if handler.mode == "external"
    ]
    if not outside:
        return
    url = _url(patient)
    workers, why = _workers_at(patient, url)
    for workspace, lane, handler in outside:
        where = f"lane {lane!r} of workspace {workspace!r}"
        labels = "".join(f" --label {label}" for label in handler.labels)
        way = f"laneway worker --connect {url} --lanes {lane}{labels}, with a token of the scope worker"
        if workers is None:
            yield State.OK, f"{where} needs workers ({way}); {why}", ""
            continue
        able = [each["name"] for each in workers if _could_take(each, workspace, lane, handler.labels)]
        if able:
            yield State.OK, f"{where} has {len(able)}: {', '.join(sorted(set(able))[:5])}", ""
        else:
            then = f"wait {handler.timeout_ms:,} ms, and then they {'run here' if handler.fallback else 'fail'}"
            yield State.WARN, f"no worker takes the tasks of {where}: its calls {then}", f"{way}; or mode = internal"


def _could_take(worker: Mapping[str, Any], workspace: str, lane: str, labels: Iterable[str]) -> bool:
    return (
        worker["health"] != "quiet"
        and (not worker["lanes"] or lane in worker["lanes"])
        and (not worker["workspaces"] or workspace in worker["workspaces"])
        and set(labels) <= set(worker["labels"])
    )


def _workers_at(patient: Patient, url: str) -> tuple[list[dict[str, Any]] | None, str]:
    """The workers that a server knows; None and why, if it does not say."""
    import httpx2

    from laneway.cli.client import Server, Target
    from laneway.cli.credentials import ASK

    said = patient.environ.get("LANEWAY_TOKEN", "")
    try:
        target = Target(url=url, token=said if said != ASK else "", ca=patient.ca)
        with Server(target, timeout=httpx2.Timeout(TIMEOUT_S)) as server:
            server.get("/lanes", limit=1)  # whoever sees one tenant only does not see the workers of all
            return list(server.items("/workers")), ""
    except DeniedError:
        return None, "who works for the server at this moment is seen with a token: LANEWAY_TOKEN"
    except LanewayError:  # the check of the server says it
        return None, "no server says who works for it"


CHECKS: Final[Mapping[str, Check]] = {
    "python": _python,
    "extras": _extras,
    "configuration": _config,
    "sqlite": _sqlite,
    "store": _store,
    "space": _space,
    "models": _models,
    "tools": _servers_of_tools,
    "tokens": _tokens,
    "port": _port,
    "server": _server,
    "workers": _workers,
}
"""The checks in their order: the configuration says where the store is and what the port is."""
