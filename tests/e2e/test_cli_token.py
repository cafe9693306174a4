"""`laneway token`: through a server, on a store, and never in a tool of an agent."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from laneway.gateway.access import Scope
from laneway.tools.processes import MARK
from tests.cli_stage import NOWHERE, CliStage, cli_stage, run
from tests.gateway_stage import serving

pytestmark = pytest.mark.slow

DAY_MS = 86_400_000


def admin_of(stage: CliStage) -> str:
    """The secret of an administrator whose token is not kept."""
    return stage.server.operator(scopes=(Scope.ADMIN,))["Authorization"].removeprefix("Bearer ")


# ---- on a store ----


def test_a_token_is_made_listed_and_revoked_on_a_store_that_nobody_has_open(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/x.db"
    made = run(
        "token", "create", "phone", "--scope", "chat", "--scope", "operate", "--tenant", "acme", "--store", store
    )
    assert made.exit_code == 0, made.output
    secret = made.stdout.strip()
    assert secret.startswith("lw_")
    assert secret not in made.stderr
    listed = run("token", "ls", "--store", store)
    assert "phone" in listed.stdout
    assert "chat, operate" in listed.stdout
    assert secret not in listed.stdout
    (item,) = json.loads(run("token", "ls", "--json", "--store", store).stdout)["items"]
    assert (item["tenant"], item["state"], item["expires_ms"]) == ("acme", "valid", None)
    gone = run("token", "revoke", item["id"], "--store", store, "--json", "--reason", "lost")
    assert json.loads(gone.stdout)["state"] == "revoked"
    assert "There are no tokens." in run("token", "ls", "--store", store).stdout
    assert "revoked" in run("token", "ls", "--all", "--store", store).stdout


def test_whoever_makes_the_first_token_hears_what_follows_from_it(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/x.db"
    said = [run("token", "create", name, "--store", store).stderr for name in ("a", "b")]
    assert ["every request needs one" in each for each in said] == [True, False]


def test_a_token_for_a_worker_closes_nothing_and_does_not_say_so(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/x.db"
    said = [run("token", "create", "w", "--scope", "worker", "--store", store).stderr for _ in range(2)]
    said.append(run("token", "create", "phone", "--store", store).stderr)
    assert ["every request needs one" in each for each in said] == [False, False, True]


def test_a_token_ends_when_it_was_told_to(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/x.db"
    made = json.loads(run("token", "create", "phone", "--expires", "30d", "--store", store, "--json").stdout)
    assert made["expires_ms"] - made["created_ms"] in range(30 * DAY_MS - 60_000, 30 * DAY_MS + 1)
    assert made["scopes"] == ["chat"]


@pytest.mark.parametrize(
    "words",
    [
        ("create",),
        ("create", "a/b"),
        ("create", "x", "--scope", "root"),
        ("create", "x", "--expires", "soon"),
        ("create", "x", "--expires", "0d"),
        ("create", "x", "--tenant", "a/b"),
        ("create", "x" * 200),
        ("revoke", "nobody"),
    ],
)
def test_what_makes_no_sense_ends_with_2_and_makes_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    store = f"sqlite:///{tmp_path}/x.db"
    done = run("token", *words, "--store", store)
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    assert json.loads(run("token", "ls", "--all", "--json", "--store", store).stdout)["items"] == []


def test_a_store_that_forgets_is_refused() -> None:
    done = run("token", "create", "x", "--store", "memory://")
    assert done.exit_code == 2
    assert "keeps nothing" in done.stderr


def test_without_a_server_no_store_is_made_that_nobody_has_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("token", "create", "x", URL=NOWHERE)
    assert done.exit_code == 4
    assert "--store sqlite:///laneway.db" in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert run("token", "create", "x", "--store", "sqlite:///laneway.db").exit_code == 0
    assert run("token", "create", "y", URL=NOWHERE).exit_code == 0
    assert len(json.loads(run("token", "ls", "--json", URL=NOWHERE).stdout)["items"]) == 2


def test_a_tool_of_an_agent_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "1-1")
    store = f"sqlite:///{tmp_path}/x.db"
    for words in (("create", "x"), ("ls",), ("revoke", "x")):
        done = run("token", *words, "--store", store)
        assert done.exit_code == 5, done.output
    assert not (tmp_path / "x.db").exists()


# ---- through a server ----


async def test_a_running_server_makes_lists_and_revokes(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as stage:
        admin = admin_of(stage)
        worker = await stage.run("token", "create", "w", "--scope", "worker", TOKEN=admin)
        assert "every request needs one" not in worker.stderr
        first = await stage.run("token", "create", "first", TOKEN=admin)
        assert "every request needs one" in first.stderr
        made = await stage.json("token", "create", "phone", "--expires", "1h", "--reason", "new", TOKEN=admin)
        assert stage.server.gateway.tokens.find(made["secret"]) is not None
        listed = await stage.run("token", "ls", TOKEN=admin)
        assert "phone" in listed.stdout
        assert "with the server" in listed.stdout  # the administrator's own
        gone = await stage.run("token", "revoke", made["id"], TOKEN=admin)
        assert gone.stdout.strip() == f"{made['id']} (phone) is revoked"
        assert stage.server.gateway.tokens.find(made["secret"]) is None


async def test_a_store_that_a_server_has_open_is_left_to_it(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as stage:
        done = await stage.process("token", "create", "x", "--store", stage.store)
        assert done.exit_code == 3
        assert "--url and --token" in done.stderr
        assert stage.server.gateway.tokens.is_empty


async def test_who_is_no_administrator_makes_no_tokens(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as stage:
        assert (await stage.run("token", "create", "x")).exit_code == 5
        assert (await stage.run("token", "create", "x", TOKEN="lw_x_y")).exit_code == 5
        assert (await stage.run("token", "ls", TOKEN=None)).exit_code == 5
        assert stage.server.gateway.tokens.is_empty


async def test_what_is_made_on_a_store_opens_the_server_that_is_started_on_it(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/laneway.db"
    made = await asyncio.to_thread(run, "token", "create", "phone", "--store", store, "--json")
    headers = {"Authorization": f"Bearer {json.loads(made.stdout)['secret']}"}
    async with serving(tmp_path) as stage:
        body = {"text": "x"}
        assert (await stage.client.post("/v1/sessions/s/messages", json=body, headers=headers)).status_code == 202
        assert (await stage.client.post("/v1/sessions/s/messages", json=body)).status_code == 401
        operator = stage.operator(tenant="*")
        log = (await stage.client.get("/v1/audit", headers=operator)).json()["items"]
        assert [(each["actor"], each["action"], each["target"]) for each in log] == [
            ("command line", "token.create", "phone")
        ]
