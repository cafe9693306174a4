"""What model calls have used: added up once, read on from there, by day, session, model, workspace and run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from laneway.dialogue import Usage
from laneway.errors import StoreUnavailableError
from laneway.gateway.settings import WorkspaceSpec
from laneway.gateway.usage import HOUR_MS, UsageBook, call_of
from laneway.models import ScriptedModel, say
from laneway.rows import Batch, Owner, StateRow
from laneway.stores.memory import MemoryStore
from laneway.testing import FakeClock
from tests.gateway_stage import SIMPLE, gateway_stage, spec_of
from tests.routes_stage import body_of, refusal

OWNER = Owner("acme", "default")
DAY = 86_400_000
NOON = 1_700_006_400_000 - 1_700_006_400_000 % DAY + DAY // 2


def round_of(store: MemoryStore, run: str, *, session: str = "s1", at_ms: int = NOON, **more: Any) -> StateRow:
    """The row of a round, as the book of a session writes it."""
    answer = {"x": "hello", "m": more.get("model", "openai/small"), "u": more.get("usage", [100, 20, 5, 1, 0.25])}
    body = {"v": 1, "t": at_ms, "a": answer}
    number = more.get("number", 1)
    row_id = f"{run}/{number:06d}"
    return StateRow("round", row_id, "acme", "default", session, store.next_seq(), 0, "final", json.dumps(body))


async def keep(store: MemoryStore, *rows: StateRow) -> None:
    """Write rows."""
    for row in rows:
        owner = Owner(row.tenant, row.workspace, row.session)
        (result,) = await store.commit([Batch(owner, store.epoch, (row,))])
        assert result.error is None


def priced(folder: Path, text: str = SIMPLE) -> WorkspaceSpec:
    """A workspace whose model says what every answer costs."""
    usage = Usage(input_tokens=1_000, output_tokens=50, cost=0.5)
    return spec_of(folder, text=text, model=ScriptedModel([[say("one")]] * 5, usage=usage))


class CountingStore(MemoryStore):
    """A store that counts what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0
        plain = self.history.states

        async def states(*args: Any, **more: Any) -> list[StateRow]:
            rows = await plain(*args, **more)
            self.read += len(rows)
            return rows

        self.history.states = states  # type: ignore[method-assign]


async def test_calls_are_added_up_by_hour_session_model_and_run() -> None:
    store, clock = MemoryStore(), FakeClock()
    await store.open()
    await keep(
        store,
        round_of(store, "t1"),
        round_of(store, "t1", number=2, at_ms=NOON + HOUR_MS, usage=[10, 300, 0, 0, None]),
        round_of(store, "t2", session="s1~0123456789ab", model="other/big"),
        round_of(store, "t3", session="s2", at_ms=NOON + DAY),
    )
    book = UsageBook(store, clock, OWNER)
    await book.refresh()
    keys = {(key.session, key.model): found.tokens for key, found in book.hours(NOON, NOON + HOUR_MS)}
    assert keys == {("s1", "openai/small"): 120, ("s1", "other/big"): 120}
    runs = dict(book.runs())
    assert (runs["t1"].calls, runs["t1"].tokens, runs["t1"].cost, runs["t1"].priced) == (2, 430, 0.25, 1)
    assert (runs["t1"].most_output, runs["t1"].most_input) == (300, 100)
    assert runs["t2"].session == "s1~0123456789ab"
    assert [name for name, _ in book.runs(NOON + DAY)] == ["t3"]
    await store.close()


async def test_what_was_read_is_not_read_again_when_it_cannot_change() -> None:
    store, clock = CountingStore(), FakeClock()
    await store.open()
    await keep(store, *(round_of(store, f"t{number}") for number in range(50)))
    book = UsageBook(store, clock, OWNER)
    await book.refresh()
    assert store.read == 50
    await book.refresh()
    assert store.read == 50  # a second look right after the first
    clock.advance(2_000)
    await book.refresh()
    assert store.read == 100  # these could have others before them still
    clock.advance(200_000)
    await book.refresh()
    clock.advance(2_000)
    store.read = 0
    await keep(store, round_of(store, "new"))
    await book.refresh()
    assert store.read == 1
    assert len(dict(book.runs())) == 51
    assert sum(found.calls for _, found in book.hours()) == 51
    await store.close()


async def test_a_row_that_appears_behind_one_that_was_read_counts_once() -> None:
    store, clock = MemoryStore(), FakeClock()
    await store.open()
    book = UsageBook(store, clock, OWNER)
    early, late = round_of(store, "early"), round_of(store, "late", session="s2")
    await keep(store, late)
    for step in (2_000, 2_000, 300_000, 2_000):
        await book.refresh()
        clock.advance(step)
        if step == 2_000:
            await keep(store, early)
    await book.refresh()
    assert {name: found.calls for name, found in book.runs()} == {"early": 1, "late": 1}
    await store.close()


async def test_what_an_earlier_process_has_left_is_read_once() -> None:
    store, clock = CountingStore(), FakeClock()
    await store.open()
    await keep(store, *(round_of(store, f"t{number}") for number in range(50)))
    book = UsageBook(store, clock, OWNER, past_seq=store.next_seq())
    await book.refresh()
    clock.advance(60_000)
    await keep(store, round_of(store, "t49", number=2))
    await book.refresh()
    assert store.read == 51
    runs = dict(book.runs())
    assert (len(runs), runs["t49"].calls, runs["t48"].calls) == (50, 2, 1)
    await store.close()


async def test_a_store_that_fails_in_the_middle_is_read_on_and_nothing_counts_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("laneway.gateway.usage.PAGE", 10)
    store, clock = CountingStore(), FakeClock()
    await store.open()
    await keep(store, *(round_of(store, f"t{number}") for number in range(35)))
    book = UsageBook(store, clock, OWNER, past_seq=store.next_seq())
    working = store.history.states

    async def failing(*args: Any, **more: Any) -> list[StateRow]:
        if more["after_seq"] > 15:
            raise StoreUnavailableError("the disk is gone")
        return await working(*args, **more)

    monkeypatch.setattr(store.history, "states", failing)
    with pytest.raises(StoreUnavailableError):
        await book.refresh()
    monkeypatch.setattr(store.history, "states", working)
    await book.refresh()
    assert sum(found.calls for _, found in book.hours()) == 35
    assert store.read == 35
    await store.close()


@pytest.mark.parametrize("body", ["", "{", "[]", "{}", '{"a": 7}', '{"a": {"u": ["x"]}}', '{"a": {"u": [1]}}', "null"])
def test_a_round_without_a_call_and_a_damaged_one_count_for_nothing(body: str) -> None:
    assert call_of(StateRow("round", "t1/000001", "acme", "default", "s1", 1, 0, "cut", body)) is None


async def test_usage_is_shown_in_every_grouping(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, specs=[priced(tmp_path)]) as stage:
        for key in ("s1", "s1", "s2"):
            await stage.send(key, "hello")

        async def usage(group: str, **more: Any) -> dict[str, Any]:
            return dict(await body_of(await stage.client.get("/v1/usage", params={"group": group, **more})))

        days = await usage("day", timezone="Europe/Berlin")
        assert (days["total"]["calls"], days["total"]["cost"], days["total"]["priced_calls"]) == (3, 1.5, 3)
        assert sum(each["input_tokens"] for each in days["items"]) == 3_000
        sessions = await usage("session")
        assert [each["key"] for each in sessions["items"]] == ["s1", "s2"]
        assert [each["cost"] for each in sessions["items"]] == [1.0, 0.5]
        assert [each["key"] for each in (await usage("model"))["items"]] == ["scripted"]
        assert [each["key"] for each in (await usage("workspace"))["items"]] == ["default"]
        runs = await usage("run", limit=1)
        assert (runs["items"][0]["cost"], runs["left_out"]) == (0.5, 2)
        assert runs["items"][0]["workspace"] == "default"
        assert (await usage("session", to_ms=1))["items"] == []
        wrong = await stage.client.get("/v1/usage", params={"timezone": "Nowhere"})
        assert refusal(wrong) == (400, "config")
        assert refusal(await stage.client.get("/v1/usage?group=odd"))[0] == 422


async def test_usage_of_another_tenant_is_not_shown(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        mine, theirs = await stage.token("chat"), await stage.token("chat", tenant="acme")
        await stage.send("s1", "hello", headers=mine)
        for group in ("day", "session", "model", "workspace", "run"):
            found = await body_of(await stage.client.get("/v1/usage", params={"group": group}, headers=theirs))
            assert (found["items"], found["total"]["calls"]) == ([], 0)


async def test_it_is_shown_how_close_runs_have_come_to_their_limits(tmp_path: Path) -> None:
    text = "default_model: scripted\nmax_tool_rounds: 7\nmax_execution_time_ms: 60000\n"
    async with gateway_stage(tmp_path, specs=[priced(tmp_path, text)]) as stage:
        await stage.send("s1", "hello")
        found = await body_of(await stage.client.get("/v1/usage/limits"))
        limits = {each["name"]: each for each in found["items"]}
        rounds = limits["max_tool_rounds"]
        assert (rounds["limit"], rounds["used"], rounds["session_key"]) == (7, 1, "s1")
        assert limits["max_output_tokens"]["used"] == 50
        assert limits["max_calls_per_answer"]["limit"] == 64  # what holds where nobody says anything
        assert (limits["max_execution_time_ms"]["limit"], limits["max_execution_time_ms"]["used"]) == (60_000, None)
