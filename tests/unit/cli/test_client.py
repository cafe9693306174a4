"""What a server answers, as errors of Laneway: the exit code is that of the error the server met."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from laneway.cli.client import Server, Target, path_of, translated
from laneway.errors import (
    ConflictError,
    InternalError,
    LanewayError,
    MailboxFullError,
    MessageStateError,
    NotAuthenticatedError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    RateLimitedError,
    TransportUnavailableError,
    UnavailableError,
    UnknownLaneError,
    UnknownMessageError,
    UnknownRunError,
    UsageError,
    reaction_to,
)
from laneway.gateway.problems import problem_of

Handler = Callable[[httpx2.Request], httpx2.Response]


def asked(handler: Handler, path: str = "/sessions", **target: Any) -> Any:
    with Server(Target(**target), transport=httpx2.MockTransport(handler)) as server:
        return server.get(path)


def answering(status: int, body: Any, *, kind: str = "application/json") -> Handler:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return lambda request: httpx2.Response(status, content=content, headers={"content-type": kind})


ERRORS = [
    UnknownMessageError(message_id="msg-1"),
    UnknownRunError("there is no run 'x'"),
    UnknownLaneError(lane="qeury", suggestion="query"),
    NotFoundError(what="session", name="s1"),
    MessageStateError(message_id="msg-1", state="ran", call="hold"),
    MailboxFullError(session_key="s1", cap=3),
    RateLimitedError("too fast", retry_after_ms=500),
    OverloadedError("too much", retry_after_ms=500),
    NotAuthenticatedError("who?"),
    PermissionDeniedError("no", right="operate"),
    ConflictError("not now", hint="later"),
    InternalError("slots do not add up"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_problem_becomes_the_error_it_was_made_from(error: LanewayError) -> None:
    sent = problem_of(error)
    with pytest.raises(type(error)) as caught:
        asked(answering(sent.status_code, bytes(sent.body), kind="application/problem+json"))
    assert str(caught.value) == str(error)
    assert reaction_to(caught.value).exit_code == reaction_to(error).exit_code


def test_the_facts_of_a_problem_are_attributes() -> None:
    sent = problem_of(MailboxFullError(session_key="s1", cap=3))
    with pytest.raises(MailboxFullError) as caught:
        asked(answering(sent.status_code, bytes(sent.body)))
    assert (caught.value.session_key, caught.value.cap) == ("s1", 3)


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("GET /v1/tasks lists them", "`laneway task ls` lists them"),
        ("lanes here: those of GET /v1/lanes", "lanes here: those of `laneway lane ls`"),
        ("GET /v1/dead-letters lists them", "`laneway dlq ls` lists them"),
        ("look at it: GET /v1/approvals/a-1", "look at it: GET /v1/approvals/a-1"),
        ("GET /v1/limits lists them", "GET /v1/limits lists them"),
        ("wait", "wait"),
    ],
)
def test_a_way_out_names_a_command_where_there_is_one(hint: str, said: str) -> None:
    sent = problem_of(NotFoundError(what="task", name="t1", hint=hint))
    with pytest.raises(NotFoundError) as caught:
        asked(answering(sent.status_code, bytes(sent.body)))
    assert caught.value.hint == said


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, UsageError),
        (401, NotAuthenticatedError),
        (403, PermissionDeniedError),
        (404, NotFoundError),
        (405, UsageError),
        (409, ConflictError),
        (413, UsageError),
        (422, UsageError),
        (429, RateLimitedError),
        (500, InternalError),
        (503, UnavailableError),
    ],
)
def test_a_problem_with_a_new_code_is_known_by_its_status(status: int, kind: type[LanewayError]) -> None:
    with pytest.raises(kind, match="of tomorrow"):
        asked(answering(status, {"detail": "a thing of tomorrow", "code": "tomorrow", "status": status}))


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b'"no"', b"[]", b"{}", b"\xff"])
def test_what_is_not_from_laneway_is_said_to_be_so(body: bytes) -> None:
    with pytest.raises(TransportUnavailableError, match="not from Laneway"):
        asked(answering(502, body))


def test_a_page_that_answers_everything_is_no_laneway() -> None:
    with pytest.raises(TransportUnavailableError, match="not from Laneway"):
        asked(answering(200, b"<html>Welcome</html>", kind="text/html"))


def refuse(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("Connection refused", request=request)


def hang(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ReadTimeout("slow", request=request)


def cut(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ReadError("", request=request)


@pytest.mark.parametrize(
    ("handler", "said"), [(refuse, "laneway serve"), (hang, "did not answer in time"), (cut, "ReadError")]
)
def test_trouble_on_the_way_names_the_address_and_the_way_out(handler: Handler, said: str) -> None:
    with pytest.raises(TransportUnavailableError) as caught:
        asked(handler, url="http://127.0.0.1:8420")
    assert "http://127.0.0.1:8420" in str(caught.value)
    assert said in str(caught.value)
    assert reaction_to(caught.value).exit_code == 4


@pytest.mark.parametrize(
    ("doubt", "said", "hint"),
    [
        ("unable to get local issuer certificate", "its certificate is not known here", "--ca FILE"),
        ("self-signed certificate in certificate chain", "its certificate is not known here", "--ca FILE"),
        ("self signed certificate", "its certificate is not known here", "--ca FILE"),
        ("Hostname mismatch, certificate is not valid for 'x'.", "a certificate of another name", "--url"),
        ("IP address mismatch, certificate is not valid for '::1'.", "a certificate of another name", "--url"),
        ("certificate has expired", "its certificate is not good", "renew"),
        ("", "its certificate is not good", "renew"),
    ],
)
def test_a_server_that_is_not_believed_is_one_that_answers(doubt: str, said: str, hint: str) -> None:
    failed = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"
    told = httpx2.ConnectError(f"{failed}: {doubt} (_ssl.c:1006)" if doubt else failed)
    error = translated(told, "https://lanes.example")
    assert isinstance(error, TransportUnavailableError)
    assert "https://lanes.example answers" in error.message
    assert said in error.message
    assert doubt in error.message
    assert "_ssl.c" not in error.message
    assert hint in error.hint
    assert not getattr(error, "is_refused", False)


def test_who_takes_http_for_https_or_the_other_way_round_is_asked_whether_it_is() -> None:
    no_tls = translated(httpx2.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong version number"), "https://x")
    assert "is it http://?" in no_tls.hint
    cut_off = httpx2.RemoteProtocolError("Server disconnected without sending a response.")
    assert "is it https://?" in translated(cut_off, "http://x").hint
    assert translated(cut_off, "https://x").hint == "try again"


def test_a_file_of_an_authority_that_is_none_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd.pem").write_text("odd")
    for name in ("none.pem", "odd.pem", ""):
        with pytest.raises(UsageError, match=r"--ca .* cannot be read"):
            Target(url="https://x", ca=str(tmp_path / name)).options()
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(UsageError, match="SSL_CERT_FILE"):
        Target(url="https://127.0.0.1").options()
    assert Target(url="http://127.0.0.1", ca="none.pem").options()  # nobody's certificate is looked at


@pytest.mark.parametrize("url", ["", "nonsense", "ftp://x", "http://", "http://[::1", "http://a:b"])
def test_what_is_no_address_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError):
        asked(answering(200, {}), url=url)


@pytest.mark.parametrize("field", ["token", "tenant"])
@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "schlüssel", "a\x00b", "\x1b[31m"])
def test_nothing_but_plain_characters_goes_into_a_header(field: str, value: str) -> None:
    with pytest.raises(UsageError, match="plain characters"):
        asked(answering(200, {}), **{field: value})


def test_a_request_says_who_asks_and_about_what() -> None:
    seen: list[httpx2.Request] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json={"items": []})

    target = Target(url="http://127.0.0.1:8420/", token="t0", workspace="büro", tenant="ada")
    with Server(target, transport=httpx2.MockTransport(handler)) as server:
        server.get(path_of("sessions", "a/b ?#ü"), limit=3, after=None)
    request = seen[0]
    assert request.headers["authorization"] == "Bearer t0"
    assert request.headers["laneway-tenant"] == "ada"
    assert request.url.raw_path == b"/v1/sessions/a%2Fb%20%3F%23%C3%BC?workspace=b%C3%BCro&limit=3"


def test_no_proxy_stands_between_a_command_and_this_machine() -> None:
    assert Target(url="http://127.0.0.1:8420").options()["trust_env"] is False
    assert Target(url="http://[::1]:8420").options()["trust_env"] is False
    assert Target(url="http://localhost:8420").options()["trust_env"] is False
    assert Target(url="https://lanes.example").options()["trust_env"] is True


def test_a_list_is_read_page_by_page_until_there_is_enough() -> None:
    asked_for: list[str] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        after = int(request.url.params.get("after") or 0)
        limit = int(request.url.params["limit"])
        asked_for.append(f"{after}+{limit}")
        numbers = list(range(after + 1, min(after + limit, 2_450) + 1))
        items = [{"number": number} for number in numbers]
        return httpx2.Response(200, json={"items": items, "next": str(numbers[-1]) if numbers[-1] < 2_450 else None})

    with Server(Target(), transport=httpx2.MockTransport(handler)) as server:
        found = server.page("/runs", limit=1_250)["items"]
        assert [each["number"] for each in found] == list(range(1, 1_251))
        assert server.page("/runs", limit=1_250)["next"] == "1250"
        assert [each["number"] for each in server.items("/runs")] == list(range(1, 2_451))
    assert asked_for[:2] == ["0+1000", "1000+250"]


def test_readiness_is_told_with_every_check() -> None:
    problem = {
        "status": 503,
        "detail": "store: gone",
        "code": "not_ready",
        "server": "ok",
        "store": "gone",
        "work": "ok",
    }
    with Server(Target(), transport=httpx2.MockTransport(answering(503, problem))) as server:
        assert server.ready() == {"status": "not ready", "server": "ok", "store": "gone", "work": "ok"}
    fine = {"status": "ready", "server": "ok"}
    with Server(Target(), transport=httpx2.MockTransport(answering(200, fine))) as server:
        assert server.ready() == fine


@pytest.mark.parametrize("url", ["http://x", "http://x/", "http://x/v1", "http://x/v1/"])
def test_an_address_as_clients_of_other_shapes_take_it_is_the_same_server(url: str) -> None:
    seen: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(str(request.url))
        return httpx2.Response(200, json={"status": "ready"})

    with Server(Target(url=url), transport=httpx2.MockTransport(answer)) as server:
        server.get("/sessions")
        server.ready()
    assert seen == ["http://x/v1/sessions", "http://x/readyz"]


def test_all_tenants_are_no_tenant() -> None:
    with pytest.raises(UsageError, match="names one tenant"):
        Target(tenant="*").options()


# ---- what is no Laneway, or another version of it ----


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"null", b"5", b'"x"', b"<html>", b"[" * 100_000, b'{"a":' * 100_000, b'{"items": null}',
        b'{"items": {}}', b'{"items": [null]}', b'{"items": [5, {}]}',
    ],
)  # fmt: skip
def test_what_no_server_of_ours_says_is_one_line_about_the_address(body: bytes) -> None:
    with pytest.raises(TransportUnavailableError, match="is not from Laneway"):
        asked(answering(200, body))


def test_a_server_that_leads_elsewhere_is_not_followed() -> None:
    seen: list[str] = []

    def redirect(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.url.host)
        return httpx2.Response(302, headers={"location": "http://evil.example/v1/sessions"})

    with pytest.raises(TransportUnavailableError, match="answered 302"):
        asked(redirect, token="t")
    assert seen == ["127.0.0.1"]


def test_a_field_that_a_server_leaves_out_is_named() -> None:
    found = asked(answering(200, {"items": [{"a": {"b": 1}}], "next": None}))
    with pytest.raises(TransportUnavailableError, match="left 'state' out") as caught:
        found["items"][0]["a"]["state"]
    assert "of the same version" in caught.value.hint
    assert found.get("state") is None


def test_a_list_that_never_ends_is_not_read_for_ever() -> None:
    body = {"items": [{"a": 1}], "next": "x"}
    with Server(Target(), transport=httpx2.MockTransport(answering(200, body))) as server:
        with pytest.raises(TransportUnavailableError, match="the same page"):
            list(server.items("/sessions"))
        with pytest.raises(TransportUnavailableError, match="the same page"):
            server.page("/sessions", limit=10)


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_only_a_line_feed_ends_a_line(size: int) -> None:
    text = '{"a":"b\u2028c\u2029d\x85e\x0bf\x1cg"}\n\n{"last":"é\r"}\n'

    def handler(request: httpx2.Request) -> httpx2.Response:
        data = text.encode()
        return httpx2.Response(200, content=iter([data[at : at + size] for at in range(0, len(data), size)]))

    with Server(Target(), transport=httpx2.MockTransport(handler)) as server:
        assert list(server.lines("/runs/r/history")) == text.removesuffix("\n").split("\n")
