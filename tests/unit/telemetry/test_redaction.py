"""Secrets that are known by their shape never come through; ordinary text always does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.telemetry.redaction import HIDDEN, redact, redact_tree

TOKEN = "lw_0123456789ab_" + "Zx9-_" * 8
SECRETS = [
    f"the token {TOKEN} was made",
    f"Authorization: Bearer {TOKEN}",
    f"{{'authorization': 'Bearer {TOKEN}'}}",
    'headers={"Authorization": "Basic dXNlcjpaeDktX1p4OS1f"}',
    "authorization=Zx9-_Zx9",
    "Cookie: session=Zx9-_; other=Zx9-_",
    "postgresql://laneway:Zx9-_Zx9@db/laneway",
    "https://Zx9-_Zx9@example.org/x",
    "GET /v1/events?token=Zx9-_Zx9&x=1",
    "https://example.org/?key=Zx9-_Zx9",
    "sk-proj-Zx9-_Zx9-_Zx9-_Zx9-_",
    "xoxb-Zx9-_Zx9-_Zx9-",
    "123456789:AAZx9-_Zx9-_Zx9-_Zx9-_Zx9-_Zx9-_",
    "OPENAI_API_KEY=Zx9-_Zx9",
    '{"api_key": "Zx9-_Zx9", "x": 1}',
    "password: 'Zx9-_ Zx9'",
    "my_password=Zx9-_Zx9",
    "my" * 50 + "_password=Zx9-_Zx9",
    "my-" * 50 + "password=Zx9-_Zx9",
    "--client-secret=Zx9-_Zx9",
    "eyJZx9-_Zx9.eyJZx9-_Zx9.Zx9-_Zx9",
    "-----BEGIN RSA PRIVATE KEY-----\nZx9-_Zx9\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\nZx9-_Zx9 (cut off",
]
HARMLESS = [
    "",
    "queued for 12 ms",
    "the token bucket of lane query is empty",
    "tokens: 1200 in, 30 out",
    "input_tokens=1200",
    "the key telegram:123456 has 3 messages",
    "session key: main",
    "http://127.0.0.1:8420/v1/sessions/main/messages?workspace=default",
    "mail to ada@example.org",
    "the password is wrong",
    "a risk-based decision, task-12345",
    "übergröße 日本語 🙂",
]


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_is_hidden(text: str) -> None:
    assert "Zx9" not in redact(text)
    assert HIDDEN in redact(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("text", SECRETS)
def test_redacting_twice_changes_nothing(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@given(st.text(), st.text())
def test_a_token_is_hidden_wherever_it_stands(before: str, after: str) -> None:
    assert TOKEN not in redact(f"{before} {TOKEN} {after}")


def test_the_user_of_an_address_is_hidden_and_its_host_is_not() -> None:
    assert redact("postgresql://ada:x1y2z3@db:5432/laneway") == f"postgresql://{HIDDEN}@db:5432/laneway"


def test_a_tree_is_redacted_by_names_and_by_shapes() -> None:
    tree = {"api_key": "short", "note": [f"uses {TOKEN}"], "count": 3, "token": "", "deep": {"password": "pw"}}
    assert redact_tree(tree) == {
        "api_key": HIDDEN,
        "note": [f"uses {HIDDEN}"],
        "count": 3,
        "token": "",
        "deep": {"password": HIDDEN},
    }


def test_a_tree_that_never_ends_is_cut() -> None:
    tree: dict[str, object] = {}
    tree["again"] = tree
    assert HIDDEN in str(redact_tree(tree))


def test_a_long_text_that_is_nearly_a_secret_takes_no_long_time() -> None:
    text = "token" * 2_000 + "a-" * 2_000 + "http://" + "x" * 5_000
    assert redact(text) == text


def test_texts_of_a_tree_can_be_cut_before_they_are_looked_at() -> None:
    tree = {"a": ["x" * 50, {"b": "y" * 5}], "password": "z" * 50}
    assert redact_tree(tree, text_max=10) == {"a": ["x" * 10, {"b": "y" * 5}], "password": HIDDEN}
