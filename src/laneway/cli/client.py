"""A client of a running server: where it is, what it answers, and its errors as errors of Laneway.

Problem details become the error they were made from, by their `code`, so that a command ends with the same exit code
whether the server refuses something or the command itself does.
"""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import IO, Any, Final, Self
from urllib.parse import quote

import httpx2

from laneway.checked import is_loopback
from laneway.cli.pipes import survive_hang_ups
from laneway.errors import (
    ConflictError,
    DeniedError,
    InternalError,
    LanewayError,
    NotAuthenticatedError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitedError,
    TransportUnavailableError,
    UnavailableError,
    UsageError,
)

__all__ = ("URL", "Server", "Target", "error_of", "lines_of", "path_of", "translated", "trust_of")

URL: Final = "http://127.0.0.1:8420"
TIMEOUT: Final = httpx2.Timeout(30, connect=5)
PAGE: Final = 1_000
CERTIFICATE: Final = re.compile(r"certificate verify failed:? *(.*?)(?: \(_ssl\.c:\d+\)|$)", re.IGNORECASE)
LISTS: Final = re.compile(r"GET /v1/([a-z-]+)(?![a-z/-])")
COMMANDS: Final = {
    "approvals": "approve",
    "budgets": "budget ls",
    "dead-letters": "dlq ls",
    "lanes": "lane ls",
    "ledger": "ledger ls",
    "schedules": "cron ls",
    "tasks": "task ls",
    "workers": "worker ls",
}
STANDARD: Final = frozenset({"type", "title", "status", "detail", "code", "hint", "instance"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which server is meant, and who asks."""

    url: str = URL
    token: str = ""
    workspace: str = ""
    tenant: str = ""
    ca: str = ""

    @property
    def root(self) -> str:
        """The address without a path: clients of OpenAI's shapes are given it with `/v1`, and so are we."""
        return self.url.rstrip("/").removesuffix("/v1").rstrip("/")

    def options(self) -> dict[str, Any]:
        """The arguments of an HTTP client for it."""
        try:
            address = httpx2.URL(self.url)
        except httpx2.InvalidURL as error:
            raise UsageError(f"{self.url!r} is no address: {error}", hint=f"for example {URL}") from None
        if address.scheme not in ("http", "https") or not address.host:
            raise UsageError(f"{self.url!r} is no address of a server", hint=f"for example {URL}")
        return {
            "base_url": f"{self.root}/v1",
            "headers": self.headers(),
            "params": {"workspace": self.workspace} if self.workspace else None,
            "trust_env": not is_loopback(address.host),  # a proxy would ask its own loopback
            "verify": trust_of(address, self.ca),
        }

    def headers(self) -> dict[str, str]:
        """What every request says of the one who asks."""
        if self.tenant == "*":
            raise UsageError("--tenant names one tenant, not all", hint="laneway status lists those with work")
        headers = {"Accept": "application/json"}
        for name, value, what in (
            ("Authorization", f"Bearer {self.token}" if self.token else "", "token"),
            ("Laneway-Tenant", self.tenant, "tenant"),
        ):
            if value and not (value.isascii() and value.isprintable()):
                raise UsageError(f"a {what} has only plain characters", hint="look at what was pasted")
            if value:
                headers[name] = value
        return headers


def trust_of(address: httpx2.URL, ca: str = "") -> ssl.SSLContext | bool:
    """Whose certificates are believed: those of the authority in the file `ca`, or of the authorities that this
    machine knows, to which `SSL_CERT_FILE` and `SSL_CERT_DIR` belong, for servers on this machine, too."""
    if address.scheme != "https":
        # Nobody's certificate is looked at on the way to this machine: reading those of all authorities takes 50 ms.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_loopback(address.host) else True
    try:
        if not ca:
            return httpx2.create_ssl_context()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(os.path.expanduser(ca))
        return context
    except (OSError, ValueError) as error:  # what is wrong with a certificate is an OSError, too
        where = f"--ca {ca}" if ca else "what SSL_CERT_FILE or SSL_CERT_DIR names"
        said = (isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.strerror) or str(error)
        raise UsageError(f"{where} cannot be read: {said}", hint="a file of certificates in PEM format") from None


def path_of(*parts: object) -> str:
    """The path of a thing below `/v1`; names in it may hold any character."""
    return "/" + "/".join(quote(str(part), safe="") for part in parts)


class Server:
    """A running server, as a command asks it: one request after the other."""

    def __init__(
        self,
        target: Target,
        *,
        transport: httpx2.BaseTransport | None = None,
        timeout: httpx2.Timeout = TIMEOUT,
        ask_token: Callable[[], str] | None = None,
    ) -> None:
        survive_hang_ups()
        self.target = target
        self._ask_token = None if target.token else ask_token
        self._http = httpx2.Client(**target.options(), timeout=timeout, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **params: Any) -> Any:
        """What is at a path; parameters that are None are left out."""
        return self.ask("GET", path, params=params)

    def post(self, path: str, body: Mapping[str, Any] | None = None, **headers: str) -> Any:
        """Do something; headers are named with underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", path, body=body, headers=named)

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        """Change something."""
        return self.ask("PATCH", path, body=body)

    def delete(self, path: str, **params: Any) -> Any:
        """Take something away."""
        return self.ask("DELETE", path, params=params)

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """One request; its answer as JSON values, or the error that it means."""
        wanted = {name: value for name, value in (params or {}).items() if value is not None}
        while True:
            try:
                response = self._http.request(method, path, params=wanted or None, json=body, headers=headers)
            except httpx2.HTTPError as error:
                raise translated(error, self.target.url) from error
            if response.status_code != 401 or self._ask_token is None:
                return answer_of(response)
            self.target, self._ask_token = replace(self.target, token=self._ask_token()), None  # asked once
            self._http.headers.update(self.target.headers())

    def ready(self) -> dict[str, Any]:
        """Every check of the server by its name, and `status`: `ready`, or something else."""
        try:
            response = self._http.get(f"{self.target.root}/readyz")
        except httpx2.HTTPError as error:
            raise translated(error, self.target.url) from error
        found = _object_of(response)
        checks = {name: str(value) for name, value in found.items() if name not in STANDARD}
        is_ready = response.status_code < 400 and found.get("status") == "ready"
        return {"status": "ready" if is_ready else "not ready", **checks}

    def lines(self, path: str) -> Iterator[str]:
        """An answer that is read line by line, while it comes."""
        try:
            with self._http.stream("GET", path) as response:
                if response.status_code >= 400:
                    response.read()
                    raise error_of(response)
                yield from lines_of(response.iter_text())
        except httpx2.HTTPError as error:
            raise translated(error, self.target.url) from error

    def chunks(self, path: str) -> Iterator[bytes]:
        """An answer that is a file, piece by piece while it comes."""
        try:
            with self._http.stream("GET", path) as response:
                if response.status_code >= 400:
                    response.read()
                    raise error_of(response)
                yield from response.iter_bytes()
        except httpx2.HTTPError as error:
            raise translated(error, self.target.url) from error

    def upload(self, path: str, file: IO[bytes], **params: Any) -> Any:
        """Send a file; the answer as JSON values."""
        wanted = {name: value for name, value in params.items() if value is not None}
        try:
            return answer_of(self._http.request("POST", path, params=wanted or None, content=file))
        except httpx2.HTTPError as error:
            raise translated(error, self.target.url) from error

    def page(self, path: str, *, limit: int, **params: Any) -> dict[str, Any]:
        """The first `limit` things of a list, from as many pages as it takes; `next` is where the rest begins."""
        items: list[Any] = []
        cursor: Any = params.pop("after", None)
        while True:
            found = self.get(path, limit=min(PAGE, limit - len(items)), after=cursor, **params)
            items += found["items"]
            cursor = _next_of(found, cursor, self.target.url)
            if not cursor or len(items) >= limit:
                return {**found, "items": items, "next": cursor}

    def items(self, path: str, **params: Any) -> Iterator[Any]:
        """All things of a list."""
        cursor: Any = None
        while True:
            found = self.get(path, limit=PAGE, after=cursor, **params)
            yield from found["items"]
            cursor = _next_of(found, cursor, self.target.url)
            if not cursor:
                return


def lines_of(pieces: Iterable[str]) -> Iterator[str]:
    """The lines of a text that comes in pieces. Only a line feed ends one: within JSON there are other line ends."""
    open_line: list[str] = []
    for piece in pieces:
        first, *more = piece.split("\n")
        open_line.append(first)
        if more:
            yield "".join(open_line)
            *whole, last = more
            yield from whole
            open_line = [last]
    if rest := "".join(open_line):
        yield rest


def answer_of(response: httpx2.Response) -> Any:
    """The JSON values of an answer; raises the error that it carries."""
    if response.status_code >= 400:
        raise error_of(response)
    if response.status_code >= 300:  # nothing of ours leads elsewhere, and a token does not follow
        raise _no_laneway(response)
    if response.status_code == 204:
        return {}
    return _object_of(response)


class Answer(dict[str, Any]):
    """An object in an answer. What it lacks is not our mistake: the server is of another version, or no Laneway."""

    def __missing__(self, name: str) -> Any:
        raise TransportUnavailableError(
            f"the server left {name!r} out of its answer", hint="is it a Laneway server, and of the same version?"
        )


def _object_of(response: httpx2.Response) -> Answer:
    """Everything that a server of ours says is an object."""
    try:
        found = json.loads(response.content, object_hook=Answer)
    except (ValueError, RecursionError):
        raise _no_laneway(response) from None
    items = found.get("items", []) if isinstance(found, Answer) else None
    if not isinstance(items, list) or not all(isinstance(each, Answer) for each in items):
        raise _no_laneway(response)
    return Answer(found)


def _next_of(found: Answer, cursor: Any, url: str) -> Any:
    """Where the list goes on, if it does."""
    after = found.get("next")
    if after and after == cursor:
        raise TransportUnavailableError(f"{url} answers with the same page again and again")
    return after


def error_of(response: httpx2.Response) -> LanewayError:
    """The error that an answer means: the one it was made from, or the nearest for its status."""
    try:
        body = response.json()
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict) or "detail" not in body:
        return _no_laneway(response)
    code, detail, hint = str(body.get("code", "")), str(body["detail"]), _as_command(str(body.get("hint", "")))
    kind = _kinds().get(code) or _nearest(response.status_code)
    error = kind.__new__(kind)
    error.args = (detail,)
    facts = {name: value for name, value in body.items() if name not in STANDARD and name.isidentifier()}
    error.__dict__.update({**facts, "message": detail, "hint": hint, "status": response.status_code})
    return error


def _as_command(hint: str) -> str:
    """A way out as whoever sits at a command line takes it: the server names its routes."""
    said = LISTS.sub(lambda found: f"`laneway {COMMANDS[found[1]]}`" if found[1] in COMMANDS else found[0], hint)
    return said.replace("shared=true", "--shared").replace("shared=false", "--own")


def _kinds() -> dict[str, type[LanewayError]]:
    found: dict[str, type[LanewayError]] = {}
    waiting: list[type[LanewayError]] = [LanewayError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if "code" in vars(kind):
            found.setdefault(kind.code, kind)
    return found


def _nearest(status: int) -> type[LanewayError]:
    exact = {
        401: NotAuthenticatedError,
        403: PermissionDeniedError,
        404: NotFoundError,
        409: ConflictError,
        429: RateLimitedError,
        451: DeniedError,
        500: InternalError,
    }
    return exact.get(status) or (UnavailableError if status >= 500 else UsageError)


def _no_laneway(response: httpx2.Response) -> LanewayError:
    return TransportUnavailableError(
        f"{response.request.url} answered {response.status_code} with something that is not from Laneway",
        hint="is --url the address of a Laneway server?",
        status=response.status_code,
    )


def translated(error: httpx2.HTTPError, url: str) -> LanewayError:
    """What an error on the way to a server means."""
    if isinstance(error, httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
        return UsageError(f"{url!r} cannot be asked: {error}", hint=f"for example {URL}")
    if isinstance(error, httpx2.ConnectError) and (doubt := CERTIFICATE.search(str(error))):
        return _not_believed(url, doubt[1])
    if isinstance(error, httpx2.ConnectError) and "[SSL" in str(error):
        return TransportUnavailableError(f"{url} does not speak TLS as it should ({error})", hint="is it http://?")
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
        return TransportUnavailableError(
            f"no server answers at {url} ({error})",
            hint="start one with `laneway serve`, or name another with --url",
            is_refused=True,
        )
    if isinstance(error, httpx2.TimeoutException):
        return TransportUnavailableError(f"{url} did not answer in time", hint="look at its log, then try again")
    is_odd = isinstance(error, httpx2.RemoteProtocolError) and url.startswith("http:")
    return TransportUnavailableError(
        f"the connection to {url} broke: {str(error) or type(error).__name__}",
        hint="is it https://? If not, try again" if is_odd else "try again",
    )


def _not_believed(url: str, doubt: str) -> LanewayError:
    """A server answers, and its certificate is none that is believed here."""
    if "issuer" in doubt or "self-signed" in doubt or "self signed" in doubt:
        said, hint = f"{url} answers, but its certificate is not known here", "name its authority with --ca FILE"
    elif "not valid for" in doubt:
        said, hint = f"{url} answers with a certificate of another name", "is --url written as in the certificate?"
    else:
        said, hint = f"{url} answers, but its certificate is not good", "whoever runs the server has to renew it"
    return TransportUnavailableError(f"{said} ({doubt})", hint=hint, is_doubted=True)
