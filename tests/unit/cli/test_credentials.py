"""Where the token of a command comes from."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import httpx2
import pytest

from laneway.cli.client import Server, Target
from laneway.cli.credentials import Given, token_of
from laneway.errors import NotAuthenticatedError, UsageError
from laneway.gateway.problems import problem_of


def kept(folder: Path, text: str, mode: int = 0o600) -> str:
    """A file with a token."""
    file = folder / "token"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


@pytest.mark.parametrize(
    ("given", "token"),
    [
        ({}, ""),
        ({"token": ("", False), "token_file": ("", False)}, ""),
        ({"token": ("t1", False)}, "t1"),
        ({"token": ("t1", False), "token_file": ("FILE", False)}, "t1"),
        ({"token": ("t1", False), "token_file": ("FILE", True)}, "kept"),
        ({"token": ("t1", True), "token_file": ("FILE", False)}, "t1"),
        ({"token": ("", True), "token_file": ("FILE", False)}, "kept"),
    ],
)
def test_the_command_line_comes_before_the_environment(tmp_path: Path, given: Mapping[str, Given], token: str) -> None:
    file = kept(tmp_path, "kept\n")
    assert (
        token_of({name: (file if value == "FILE" else value, named) for name, (value, named) in given.items()}) == token
    )


def test_two_tokens_are_refused() -> None:
    with pytest.raises(UsageError, match="two tokens"):
        token_of({"token": ("t1", True), "token_file": ("x", True)})


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o602, 0o777])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(UsageError, match="others may read") as caught:
        token_of({"token_file": (kept(tmp_path, "lw_secret", mode), True)})
    assert "lw_secret" not in str(caught.value)
    assert "chmod 600" in caught.value.hint


@pytest.mark.parametrize("text", ["", "\n", "two words", "two\nlines", "x" * 5_000])
def test_a_file_without_a_token_is_refused_and_not_repeated(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="has no token") as caught:
        token_of({"token_file": (kept(tmp_path, text), True)})
    assert "words" not in str(caught.value)


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_a_file_that_is_none_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        token_of({"token_file": (str(tmp_path / name), True)})


def test_a_dash_takes_one_line_of_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    given = io.StringIO("lw_x\nthe text\n")
    monkeypatch.setattr("sys.stdin", given)
    assert token_of({"token": ("-", True)}) == "lw_x"
    assert given.read() == "the text\n"
    with pytest.raises(UsageError, match="standard input has no token"):
        token_of({"token": ("-", True)})


def refusing(seen: list[str]) -> httpx2.MockTransport:
    """A server that wants the token `good`."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers.get("authorization", ""))
        if seen[-1] == "Bearer good":
            return httpx2.Response(200, json={"items": []})
        refused = problem_of(NotAuthenticatedError("who?"))
        return httpx2.Response(401, content=bytes(refused.body), headers={"content-type": "application/problem+json"})

    return httpx2.MockTransport(answer)


def test_a_request_that_wants_a_token_is_sent_again_with_the_one_that_was_asked_for() -> None:
    seen: list[str] = []
    with Server(Target(), transport=refusing(seen), ask_token=lambda: "good") as server:
        assert server.post("/x", {"a": 1}) == {"items": []}
        assert server.get("/x") == {"items": []}
    assert seen == ["", "Bearer good", "Bearer good"]


def test_nobody_is_asked_twice_or_instead_of_the_token_that_was_given() -> None:
    seen: list[str] = []
    for target in (Target(), Target(token="old")):
        with (
            Server(target, transport=refusing(seen), ask_token=lambda: "bad") as server,
            pytest.raises(NotAuthenticatedError),
        ):
            server.get("/x")
    assert seen == ["", "Bearer bad", "Bearer old"]
