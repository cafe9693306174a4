"""The switch that forbids real models: who said it last counts, and this machine is always allowed."""

from __future__ import annotations

import pytest

from laneway.errors import RealModelForbiddenError
from laneway.models import forbid_real_models, real_models
from laneway.models.switch import VARIABLE, check_allowed, is_loopback

REAL = "https://api.example.com/v1"


@pytest.mark.parametrize(
    "url",
    ["http://localhost:1/v1", "http://127.0.0.1:80", "http://127.9.9.9", "http://[::1]:5/v1", "https://LOCALHOST"],
)
def test_an_address_of_this_machine_is_loopback(url: str) -> None:
    assert is_loopback(url)
    with real_models(allowed=False):
        check_allowed(model="m", url=url)


@pytest.mark.parametrize(
    "url",
    [
        REAL,
        "",
        "http://localhost.example.com",
        "http://127.0.0.1.example.com",
        "http://user:127.0.0.1@example.com",
        "http://10.0.0.1",
        "http://0.0.0.0",
        "http://[::",
        "127.0.0.1",
    ],
)
def test_any_other_address_is_not_and_is_refused(url: str) -> None:
    assert not is_loopback(url)
    with real_models(allowed=False), pytest.raises(RealModelForbiddenError, match="'m'"):
        check_allowed(model="m", url=url)


@pytest.mark.parametrize("value", ["0", "false", "No", " off "])
def test_the_environment_forbids(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr("laneway.models.switch._switch.allowed", None)
    monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(RealModelForbiddenError):
        check_allowed(model="m", url=REAL)
    with real_models(allowed=True):
        check_allowed(model="m", url=REAL)


@pytest.mark.parametrize("value", ["", "1", "yes"])
def test_without_a_word_real_models_are_allowed(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr("laneway.models.switch._switch.allowed", None)
    monkeypatch.setenv(VARIABLE, value)
    check_allowed(model="m", url=REAL)
    assert not is_loopback(REAL)


def test_forbidding_holds_from_then_on_and_a_block_gives_back_what_was() -> None:
    with real_models(allowed=True):
        check_allowed(model="m", url=REAL)
        forbid_real_models()
        with real_models(allowed=True):
            check_allowed(model="m", url=REAL)
        with pytest.raises(RealModelForbiddenError) as caught:
            check_allowed(model="m", url=REAL)
    assert VARIABLE in caught.value.hint
