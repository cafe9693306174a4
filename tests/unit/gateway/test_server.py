"""The listener and what is said at the start: addresses, tokens for a screen only, and runs that may end."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest

from laneway.errors import ConfigError, UnavailableError
from laneway.gateway.access import Scope
from laneway.gateway.draining import drain
from laneway.gateway.launch import Launch
from laneway.gateway.server import _check_public, _greet, bind, url_of
from laneway.gateway.settings import GatewaySettings
from laneway.models import ScriptedModel
from laneway.models.scripted import call, say
from laneway.system import HostEnv
from tests.gateway_stage import SIMPLE, gateway_in, gateway_stage, spec_of

ASKING = (
    SIMPLE + "permissions:\n  allow: [wait]\n  default_decision: ask\nconfirmation:\n  default_timeout_ms: 100000000\n"
)


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


# ---- the address ----


def test_port_0_is_a_free_one() -> None:
    with bind(GatewaySettings(port=0)) as listener:
        assert listener.getsockname()[1] > 0


def test_a_port_in_use_says_so_and_names_the_way_out() -> None:
    with bind(GatewaySettings(port=0)) as taken, pytest.raises(UnavailableError) as refused:
        bind(GatewaySettings(port=taken.getsockname()[1]))
    assert "it is in use" in refused.value.message
    assert "--port 0" in refused.value.hint


@pytest.mark.parametrize("host", ["192.0.2.1"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(UnavailableError, match="no such address"):
        bind(GatewaySettings(host=host, port=0))


@pytest.mark.parametrize("host", ["a b", "\ud800", "." * 300])
def test_a_host_that_is_none_is_a_wrong_setting(host: str) -> None:
    with pytest.raises(ConfigError, match="there is no address"):
        bind(GatewaySettings(host=host, port=0))


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        (GatewaySettings(), "http://127.0.0.1:8420"),
        (GatewaySettings(host="::1", port=1), "http://[::1]:1"),
        (GatewaySettings(tls_certificate="x", tls_key="y"), "https://127.0.0.1:8420"),
    ],
)
def test_the_address_is_written_as_a_browser_takes_it(settings: GatewaySettings, url: str) -> None:
    assert url_of(settings) == url


# ---- a public address ----


async def test_a_public_address_needs_a_token_that_counts(tmp_path: Path) -> None:
    public = GatewaySettings(host="0.0.0.0", store=f"sqlite:///{tmp_path}/laneway.db")  # noqa: S104 - the subject
    clock = HostEnv().clock
    with pytest.raises(ConfigError, match="there are no tokens"):
        await _check_public(public, clock)
    async with gateway_in(tmp_path) as gateway:
        token, _ = await gateway.tokens.create("old", [Scope.CHAT])
        await gateway.tokens.revoke(token.id)
    with pytest.raises(ConfigError, match="there are no tokens"):
        await _check_public(public, clock)
    async with gateway_in(tmp_path) as gateway:
        await gateway.tokens.create("new", [Scope.CHAT])
    await _check_public(public, clock)


async def test_this_machine_alone_needs_none(tmp_path: Path) -> None:
    await _check_public(GatewaySettings(store=f"sqlite:///{tmp_path}/none.db"), HostEnv().clock)
    assert not (tmp_path / "none.db").exists()


# ---- what is said ----


async def test_standard_output_gets_one_line_and_the_screen_a_token(tmp_path: Path) -> None:
    async with gateway_in(tmp_path) as gateway:
        out, screen = io.StringIO(), Screen()
        launch = Launch(settings=gateway.settings, workspaces=(), notes=("a note",))
        _greet(gateway, launch, out, screen)
        assert out.getvalue() == "Laneway is listening on http://127.0.0.1:8420\n"
        assert screen.getvalue().startswith("a note\n")
        assert "Ctrl-C stops it" in screen.getvalue()
        secret = screen.getvalue().partition("ends:")[2].split()[0]
        found = gateway.tokens.find(secret)
        assert found is not None
        assert found.caller().may(Scope.OPERATE)
        assert f"http://127.0.0.1:8420/#token={secret}" in screen.getvalue()  # opens the dashboard with what it needs
        assert gateway.tokens.is_empty  # it is not kept, and nobody else needs one


async def test_a_file_or_a_pipe_is_told_how_to_make_a_token_and_gets_none(tmp_path: Path) -> None:
    async with gateway_in(tmp_path) as gateway:
        pipe = io.StringIO()
        _greet(gateway, Launch(settings=gateway.settings, workspaces=()), io.StringIO(), pipe)
        assert "laneway token create" in pipe.getvalue()
        assert "lw_" not in pipe.getvalue()
        assert gateway.tokens.tokens() == []


async def test_with_an_operator_token_that_is_kept_none_is_made(tmp_path: Path) -> None:
    async with gateway_in(tmp_path) as gateway:
        await gateway.tokens.create("me", [Scope.OPERATE])
        screen = Screen()
        _greet(gateway, Launch(settings=gateway.settings, workspaces=()), io.StringIO(), screen)
        assert "lw_" not in screen.getvalue()
        assert len(gateway.tokens.tokens()) == 1


async def test_with_a_token_that_is_kept_the_screen_says_that_every_request_needs_one(tmp_path: Path) -> None:
    async with gateway_in(tmp_path) as gateway:
        screens = []
        for _ in range(2):
            screens.append(Screen())
            _greet(gateway, Launch(settings=gateway.settings, workspaces=()), io.StringIO(), screens[-1])
            await gateway.tokens.create("me", [Scope.OPERATE])
        assert ["every request needs one" in each.getvalue() for each in screens] == [False, True]


async def test_on_a_screen_lines_are_folded_between_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    async with gateway_in(tmp_path) as gateway:
        screen, pipe = Screen(), io.StringIO()
        launch = Launch(settings=gateway.settings, workspaces=(), notes=("word " * 30,))
        for each in (screen, pipe):
            _greet(gateway, launch, io.StringIO(), each)
        assert all(
            len(line) <= 50 or line.strip().startswith(("lw_", "http")) for line in screen.getvalue().splitlines()
        )
        assert "word " * 30 in pipe.getvalue()


async def test_who_has_no_laneway_on_the_path_is_told_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", [".venv/bin/laneway", "serve"])
    async with gateway_in(tmp_path) as gateway:
        screen = Screen()
        _greet(gateway, Launch(settings=gateway.settings, workspaces=()), io.StringIO(), screen)
        assert ".venv/bin/laneway chat" in screen.getvalue()


# ---- runs that may end ----


@pytest.mark.parametrize("name", ["default", "shop"])
async def test_a_drain_waits_for_what_runs_and_begins_nothing_more(tmp_path: Path, name: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    model = ScriptedModel([[begun.set, go_on.wait, say("first")], [say("second")]])
    async with gateway_stage(tmp_path, specs=[spec_of(tmp_path, name=name, model=model)]) as stage:
        inbox = stage.gateway.default.inbox
        first = await inbox.submit("a", "one")
        await begun.wait()
        second = await inbox.submit("b", "two")
        draining = asyncio.create_task(drain(stage.gateway, 10_000))
        await asyncio.sleep(0)
        assert not draining.done()
        go_on.set()
        assert await draining is True
        assert (await inbox.wait(first.message_id)).outcome == "succeeded"
        assert (await inbox.status(second.message_id)).disposition == "queued"


async def test_a_drain_ends_when_its_time_is_up(tmp_path: Path) -> None:
    begun, never = asyncio.Event(), asyncio.Event()
    async with gateway_stage(tmp_path, script=[[begun.set, never.wait]], drain_ms=0) as stage:
        await stage.gateway.default.inbox.submit("a", "one")
        await begun.wait()
        assert await drain(stage.gateway, 1) is False


async def test_a_run_that_comes_to_wait_for_an_approval_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    script = [[begun.set, go_on.wait, call("bash", command="true")], [say("done")]]
    async with gateway_stage(tmp_path, script=script, text=ASKING) as stage:
        inbox = stage.gateway.default.inbox
        receipt = await inbox.submit("a", "one")
        await begun.wait()
        draining = asyncio.create_task(drain(stage.gateway, 30_000))
        await asyncio.sleep(0)
        assert not draining.done()
        later = await inbox.submit("b", "two")
        go_on.set()
        assert await draining is True
        assert (await inbox.status(later.message_id)).disposition == "queued"
        assert [each.action for each in inbox.approvals()] == ["bash"]
        assert (await inbox.status(receipt.message_id)).disposition == "running"


async def test_a_drain_of_nothing_is_over_at_once(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        assert await drain(stage.gateway, 10_000) is True
