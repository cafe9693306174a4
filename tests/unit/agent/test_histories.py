"""Runs that are written down, made again, compared, and gone on with from a step."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from laneway import replay
from laneway.agent import AsyncAgent, AsyncSession
from laneway.agent.forking import forked_from
from laneway.errors import HistoryError, ModelUnavailableError, ReplayDivergedError, UnknownRunError, UsageError
from laneway.models import ScriptedModel, fail, say
from laneway.replay import RunHistory
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.system import FixedClock, HostEnv, SequentialIdGenerator
from tests.agent_stage import ALLOW, Bench, opened, use
from tests.stage import simulated


def ops(history: RunHistory) -> list[str]:
    return [step["op"] for step in history.steps if step["op"] != "event"]


def step_of(history: RunHistory, op: str, number: int = 1) -> int:
    """The number of the step that is the n-th of its kind."""
    return [at for at, step in enumerate(history.steps, 1) if step["op"] == op][number - 1]


def recorded(script: list[Any], bench: Bench, **more: Any) -> Any:
    options = {"session_store": MemoryStore(), "session_id": "s", "record": True, "system": "Be brief.", **more}
    return opened(ScriptedModel(script), bench, **options)


async def history_of(session: AsyncSession, text: str = "go") -> RunHistory:
    return await session.run_history((await session.send(text)).run_id)


@simulated
async def test_a_run_replays_to_the_same_bytes() -> None:
    async with recorded([use("look", "a", "b"), use("act", "c"), [say("done")]], Bench(), queue=True) as session:
        history = await history_of(session)
        text = replay.dump(history)
        again = replay.run(replay.loads(text))
        assert replay.dump(again.history) == text
        assert again.text == "done"
        assert (await session.replay(history)).text == "done"
        acts = [step["calls"] for step in history.steps if step["op"] == "act"]
        assert acts == [["a", "b"], ["c"]]


@simulated
async def test_what_was_said_before_is_in_the_history() -> None:
    async with recorded([[say("one")], [say("two")]], Bench()) as session:
        await session.send("first")
        history = await history_of(session, "second")
        (base,) = [step for step in history.steps if step["op"] == "base"]
        assert base["said"] == [{"prompt": "first"}, {"answer": {"text": "one", **_told(base)}}]
        assert replay.run(history).text == "two"


def _told(base: dict[str, Any]) -> dict[str, Any]:
    answer = base["said"][1]["answer"]
    return {name: answer[name] for name in ("model", "usage")}


@simulated
async def test_a_long_text_is_kept_once_and_comes_back_whole() -> None:
    long = "x" * 20_000
    async with recorded([[say(long)]], Bench()) as session:
        history = await history_of(session)
        assert replay.run(history).text == long


@simulated
async def test_faults_of_the_model_are_steps() -> None:
    async with recorded([[fail(ModelUnavailableError("away"))], [say("done")]], Bench()) as session:
        history = await history_of(session)
        assert [each for each in ops(history) if each in ("ask", "failed")] == ["ask", "failed", "ask"]
        assert replay.run(history).text == "done"


@simulated
async def test_another_system_prompt_is_named() -> None:
    store = MemoryStore()
    async with recorded([[say("done")]], Bench(), session_store=store) as session:
        history = await history_of(session)
    async with recorded([], Bench(), session_id="t", system="Be long.") as other:
        with pytest.raises(ReplayDivergedError, match="the system prompt is another one") as error:
            await other.replay(history)
    assert vars(error.value)["step"] == step_of(history, "ask")


@simulated
async def test_another_tool_is_named() -> None:
    async with recorded([[say("done")]], Bench()) as session:
        history = await history_of(session)
    bench = Bench()
    bench.tools = [tool for tool in bench.tools if tool.spec.name != "nail"]
    async with recorded([], bench, session_id="t") as other:
        with pytest.raises(ReplayDivergedError, match="tool 'nail': recorded was there, now is not there"):
            await other.replay(history)


@simulated
async def test_a_step_that_was_changed_is_the_first_that_differs() -> None:
    async with recorded([use("act", "c"), [say("done")]], Bench()) as session:
        history = await history_of(session)
    at = step_of(history, "result")
    steps = [dict(step) for step in history.steps]
    steps[at - 1]["output"] = "something else"
    changed = history.with_steps(steps)
    with pytest.raises(ReplayDivergedError) as error:
        replay.run(changed)
    assert vars(error.value)["step"] == step_of(history, "close")
    found = replay.diff(history, changed)
    assert found is not None
    assert (found.step, found.recorded, found.now) == (at, "result of c", "something else")
    assert replay.diff(history, history) is None


@simulated
async def test_of_two_histories_one_may_go_on() -> None:
    async with recorded([use("act", "c"), [say("done")]], Bench()) as session:
        history = await history_of(session)
    shorter = history.with_steps(history.steps[:-1])
    found = replay.diff(history, shorter)
    assert found is not None
    assert (found.op, found.now) == ("finish", None)


@simulated
async def test_a_run_that_was_not_recorded_is_told_by_its_rounds() -> None:
    async with recorded([use("act", "c"), [say("done")]], Bench(), record=False) as session:
        history = await history_of(session)
        assert not history.is_recorded
        assert ops(history) == ["machine", "base", "round", "round"]
        assert replay.run(history).text == "done"


@simulated
async def test_a_fork_goes_on_live_and_does_nothing_again() -> None:
    bench = Bench()
    script = [use("act", "c"), [say("done")], use("act", "d"), [say("otherwise")]]
    async with recorded(script, bench) as session:
        history = await history_of(session)
        before = await session.history()
        fork = await session.fork(history.run_id, step_of(history, "ask", 2))
        await fork.wait_idle()
        assert bench.ended == ["c", "d"]
        assert [str(each) for each in await fork.history()][-1] == "assistant: otherwise"
        assert await session.history() == before
        assert (await forked_from(fork)).from_run == history.run_id
        with pytest.raises(UnknownRunError, match="is no fork"):
            await forked_from(session)


@simulated
async def test_a_fork_within_a_round_makes_what_is_open() -> None:
    bench = Bench()
    script = [[*use("act", "a"), *use("put", "b")], [say("done")], [say("otherwise")]]
    async with recorded(script, bench) as session:
        history = await history_of(session)
        fork = await session.fork(history.run_id, step_of(history, "act", 2))
        await fork.wait_idle()
        assert bench.ended == ["a", "b", "b"]


@simulated
async def test_a_fork_at_its_beginning_asks_anew() -> None:
    async with recorded([[say("one")], [say("two")], [say("three")]], Bench()) as session:
        await session.send("first")
        history = await history_of(session, "second")
        fork = await session.fork(history, step_of(history, "ask"), session_id="mine")
        await fork.wait_idle()
        said = [str(each) for each in await fork.history()]
        assert said == ["user: first", "assistant: one", "user: second", "assistant: three"]
        assert fork.session_id == "mine"


@simulated
async def test_a_fork_at_the_end_needs_a_prompt() -> None:
    async with recorded([[say("one")], [say("two")]], Bench()) as session:
        history = await history_of(session)
        with pytest.raises(UsageError, match="there is nothing to go on with"):
            await session.fork(history)
        fork = await session.fork(history, prompt="and now?")
        await fork.wait_idle()
        assert [str(each) for each in await fork.history()][-2:] == ["user: and now?", "assistant: two"]


@simulated
async def test_a_step_that_is_not_there_is_refused() -> None:
    async with recorded([[say("one")]], Bench()) as session:
        history = await history_of(session)
        for step in (0, len(history.steps) + 2, True):
            with pytest.raises(UsageError, match="has no step"):
                await session.fork(history, step)


@simulated
async def test_a_fork_into_a_session_with_a_past_is_refused() -> None:
    async with recorded([[say("one")], [say("two")]], Bench()) as session:
        history = await history_of(session)
        fork = await session.fork(history, prompt="more", session_id="mine")
        await fork.wait_idle()
        await fork.close()
        with pytest.raises(UsageError, match="has a past already"):
            await session.fork(history, prompt="more", session_id="mine")


# ---- files ----


@pytest.fixture
def text() -> str:
    steps = ({"op": "machine", "limits": [1, 1], "c": 0, "from": "", "first": 1, "plan": None}, {"op": "code", "x": 1})
    return replay.dump(RunHistory(about={"run_id": "r"}, steps=steps))


def test_a_file_that_ends_anywhere_is_refused(text: str) -> None:
    for at in range(len(text) - 1):
        with pytest.raises(HistoryError) as error:
            replay.loads(text[:at])
        assert vars(error.value)["problem"] in ("foreign", "damaged", "cut off")
    assert replay.loads(text[:-1]) == replay.loads(text)


def test_a_changed_letter_is_found_with_its_line(text: str) -> None:
    lines = text.splitlines()
    for number in range(len(lines)):
        changed = lines.copy()
        changed[number] = changed[number].replace("1", "2", 1) if "1" in changed[number] else "{}"
        with pytest.raises(HistoryError):
            replay.loads("\n".join(changed))


def test_lines_that_were_swapped_or_added_are_found(text: str) -> None:
    first, second, third, last = text.splitlines()
    for lines in (
        [first, third, second, last],
        [first, second, second, third, last],
        [first, second, third, last, last],
    ):
        with pytest.raises(HistoryError, match=r"damaged: (line|it goes on)"):
            replay.loads("\n".join(lines))


@pytest.mark.parametrize("foreign", ["", "{}", "[]", "hello", '{"kind":"else","d":""}', "\x00\x01", "[" * 100_000])
def test_a_foreign_file_is_refused(foreign: str) -> None:
    with pytest.raises(HistoryError, match="is no history of a run"):
        replay.loads(foreign)


def test_a_newer_file_is_refused(text: str) -> None:
    head, _, rest = text.partition("\n")
    newer = json.dumps({**json.loads(head), "v": 99})
    with pytest.raises(HistoryError, match="is newer: it has version 99, this Laneway knows 1"):
        replay.loads(f"{newer}\n{rest}")


def test_files_are_written_whole(tmp_path: Any, text: str) -> None:
    path = tmp_path / "run.jsonl"
    history = replay.loads(text)
    replay.save(history, path)
    assert replay.load(path) == history
    assert [each.name for each in tmp_path.iterdir()] == ["run.jsonl"]
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(HistoryError, match="it is no text"):
        replay.load(path)
    with pytest.raises(HistoryError, match="cannot be read"):
        replay.load(tmp_path / "nothing")


@pytest.mark.parametrize(
    "step",
    [{"op": "nonsense"}, {"op": "say"}, {"op": "answered", "answer": [], "t": 0}, {"op": "base"}, {"op": "cut"}],
)
def test_steps_that_nobody_wrote_are_refused(text: str, step: dict[str, Any]) -> None:
    history = replay.loads(text)
    with pytest.raises((HistoryError, ReplayDivergedError)):
        replay.run(history.with_steps([history.steps[0], step]))


# ---- the same host ----


async def test_with_the_same_host_two_runs_write_the_same_file() -> None:
    def host() -> HostEnv:
        clock, ids = FixedClock(1_700_000_000_000), SequentialIdGenerator()
        return HostEnv(clock=clock, ids=ids, random=random.Random(1))

    async def told() -> str:
        script: list[Any] = [use("look", "a"), use("act", "c"), [say("done")]]
        options: dict[str, Any] = {"record": True, "permission_policy": ALLOW, "session_store": MemoryStore()}
        model = ScriptedModel(script)
        async with AsyncAgent(model, tools=Bench().tools, builtin_tools=False, host=host(), **options) as agent:
            return replay.dump(await history_of(agent.session(".", session_id="s")))

    assert await told() == await told()


@simulated
async def test_a_record_grows_as_the_conversation_does() -> None:
    disk = MemoryDisk()
    bench = Bench()
    script = [answer for at in range(40) for answer in (use("act", f"c{at}"), [say(f"answer {at}")])]
    async with recorded(script, bench, session_store=MemoryStore(disk)) as session:
        sizes = []
        for _ in range(40):
            await session.send("go on")
            sizes.append(sum(len(row.body) for row in disk.states.values() if row.kind == "record"))
    first, last = sizes[9], sizes[39]
    assert last / first < 4.5  # four times as many turns
