"""What callers and handlers should not do, and do: it is refused with a name, or costs its own message only."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import pytest

from laneway import (
    ConfigError,
    Inbox,
    InvalidMessageError,
    MessageState,
    Outcome,
    Sender,
    Turn,
    UsageError,
)
from laneway.sim.loop import SimLoop, run_sim
from tests.inbox_stage import (
    Agent,
    Log,
    S,
    busy,
    finals,
    new_inbox,
    send,
    staged,
    stepping_inbox,
    waiting,
)
from tests.stage import now_ms, passing

State = MessageState
LONE = "half \ud83d"


# ---- what is sent ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", " ", "\n\t\u2003", None, 7, b"bytes", bytearray(b"x"), ["list"], LONE, "\udc00", "x" * 1_001]
)
@staged
async def test_a_text_that_is_none_is_refused_and_nothing_is_stored(text: Any) -> None:
    agent = Agent()
    async with new_inbox(agent, text_max=1_000) as inbox, Log(inbox) as log:
        with pytest.raises(InvalidMessageError) as caught:
            await inbox.submit(S, text)
        assert str(caught.value)
        assert waiting(inbox) == []
        await passing(100)
    assert agent.prompts == []
    assert log.events == []


ODD_TEXTS = [
    "\x00",
    "nul \x00 in it",
    "\x1b[31mred\x07",
    "\u202eright to left\u202c עברית العربية",
    "e\u0301\u0301\u0301 n\u0303",
    "z" + "\u0300" * 5_000,
    "\N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}",
    "\U0001f1e9\U0001f1ea" * 100,
    "a\u2028\u2029\x85\x0b\x0cb",
    "a\r\nb\rc\n",
    "\ufeffbom",
    "\uffff\ufffe",
    "💥" * 10_000,
    "line\n" * 5_000,
    "'; DROP TABLE messages; --",
    '{"text": "json"}',
    "%s %d {0} ${x} \\n",
    "x" * 1_000_000,
]


@pytest.mark.parametrize("text", ODD_TEXTS, ids=range(len(ODD_TEXTS)))
@staged
async def test_any_other_text_comes_through_byte_for_byte(text: str) -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        (end,) = await finals(inbox, await send(inbox, text))
        assert end.outcome is Outcome.SUCCEEDED
        assert [entry.text for entry in await inbox.history(S)] == [text, f"re: {agent.prompts[0]}"]
    assert agent.turns[0].messages[0].text == text


@pytest.mark.parametrize("text", ODD_TEXTS[:-1], ids=range(len(ODD_TEXTS) - 1))
@staged
async def test_any_text_can_be_summarized_listed_and_explained(text: str) -> None:
    agent = Agent()
    async with new_inbox(agent, cap=1) as inbox:
        await busy(inbox, agent)
        ids = await send(inbox, text, text, sender=Sender(id="a", name=text[:500]))
        assert await inbox.command(S, "/queue list")
        assert str(await inbox.explain(ids[0]))
        agent.let_go()
        assert (await inbox.wait(ids[1])).outcome is Outcome.SUCCEEDED
    lines = agent.prompts[1].splitlines()
    assert len(lines) == 3
    assert len(lines[2]) <= 162
    assert agent.turns[2].messages[0].text == text


@pytest.mark.parametrize(
    "key",
    [
        "telegram:123456",
        "session:x",
        "a b",
        "*",
        "[x]?",
        "%7e",
        "%",
        "...",
        ".a",
        "'; --",
        "日本語",
        "\N{MAN}\u200d\N{WOMAN}",
        "no\u00a0break",
        "\u202b\u05e2\u05d1\u05e8",
        "x" * 400,
        "🎉" * 400,
        "A",
        " leading",
        "trailing ",
    ],
)
@staged
async def test_a_session_key_is_any_text_without_slashes_and_control_characters(key: str) -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        receipt = await inbox.submit(key, "hello")
        final = await inbox.wait(receipt.message_id)
        assert (final.outcome, final.session_key) == (Outcome.SUCCEEDED, key)
        assert [entry.text for entry in await inbox.history(key)] == ["hello", "re: hello"]
        assert await inbox.command(key, "/status")
    assert agent.turns[0].session_key == key


@staged
async def test_keys_that_look_alike_are_different_sessions() -> None:
    agent = Agent()
    keys = ["x", "X", "x ", " x", "x%20", "e\u0301", "\u00e9", "x" * 399, "x" * 400]
    async with new_inbox(agent, concurrency=100) as inbox:
        for key in keys:
            await inbox.submit(key, "hold")
        await passing(10)
        assert agent.running == len(keys)
        agent.let_go()


@staged
async def test_a_key_that_looks_like_that_of_a_sub_agent_is_refused_as_it_would_be_deleted_with_another() -> None:
    async with new_inbox(Agent()) as inbox:
        with pytest.raises(InvalidMessageError, match="'chat~0123456789ab' is that of a sub-agent"):
            await inbox.submit("chat~0123456789ab", "hello")
        for key in ("~0123456789ab", "chat~0123456789AB", "chat~0123456789abc"):
            await inbox.wait((await inbox.submit(key, "hello")).message_id)


@pytest.mark.parametrize(
    "key", ["", " ", ".", "..", "a/b", "/", "a\nb", "\x00", "tab\t", LONE, "x" * 401, None, 7, b"x"]
)
@staged
async def test_a_session_key_that_is_none_is_refused_everywhere(key: Any) -> None:
    async with new_inbox() as inbox:
        calls: list[Any] = [
            lambda: inbox.submit(key, "hello"),
            lambda: inbox.submit(S, "hello", tenant=key),
            lambda: inbox.command(key, "/queue"),
            lambda: inbox.stop(key),
            lambda: inbox.history(key),
            lambda: inbox.schedule(key, "x", every_ms=1_000),
        ]
        for call in calls:
            with pytest.raises(InvalidMessageError):
                await call()
        with pytest.raises(InvalidMessageError):
            inbox.pending(key)


@pytest.mark.parametrize(
    "options",
    [
        {"channel": None},
        {"channel": LONE},
        {"thread": 1.5},
        {"thread": True},
        {"account": "x" * 513},
        {"chat_type": b"x"},
        {"message_id": ""},
        {"message_id": 1.5},
        {"message_id": LONE},
        {"sender": ""},
        {"sender": 7},
        {"sender": LONE},
        {"sender": {"name": "no id"}},
        {"sender": {"id": "a", "admin": True}},
        {"sender": {"id": "a", "owner": "yes"}},
        {"sender": {"id": "a", "rights": "queue"}},
        {"sender": Sender(id="a", name=LONE)},
        {"sender": Sender(id="a", rights=(LONE,))},
        {"kind": "robot"},
        {"kind": None},
        {"attachments": "text"},
        {"attachments": b"bytes"},
        {"attachments": {"a": 1}},
        {"attachments": [object()]},
        {"attachments": [float("nan")]},
        {"attachments": [{"name": LONE}]},
        {"attachments": ["x" * (17 * 1024 * 1024)]},
    ],
)
@staged
async def test_a_part_of_a_message_that_is_none_is_refused(options: dict[str, Any]) -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        with pytest.raises(InvalidMessageError) as caught:
            await inbox.submit(S, "hello", **options)
        assert len(str(caught.value)) < 1_000
        assert waiting(inbox) == []
        (end,) = await finals(inbox, await send(inbox, "fine"))
        assert end.outcome is Outcome.SUCCEEDED
    assert agent.prompts == ["fine"]


@pytest.mark.parametrize("mode", ["sideways", "", 7, None])
@staged
async def test_a_mode_that_is_none_is_refused(mode: Any) -> None:
    async with new_inbox() as inbox:
        if mode is None:
            assert (await inbox.submit(S, "hello", mode=mode)).disposition is State.QUEUED
        else:
            with pytest.raises(ConfigError):
                await inbox.submit(S, "hello", mode=mode)


@pytest.mark.parametrize("what", ["reason", "actor", "by", "deny"])
@pytest.mark.parametrize("word", [LONE, 7, None, "x" * 20_000])
@staged
async def test_the_words_of_an_operator_are_checked_before_anything_changes(what: str, word: Any) -> None:
    async def work(turn: Turn) -> str:
        return str((await turn.ask_approval("go")).state)

    agent = Agent(work=work)
    async with new_inbox(agent) as inbox:
        first = await busy(inbox, agent, "work")
        (one,) = await send(inbox, "one", mode="followup")
        (asked,) = inbox.approvals(S)
        calls: dict[str, Any] = {
            "reason": lambda: inbox.withdraw(one, word),
            "actor": lambda: inbox.hold(one, actor=word),
            "by": lambda: inbox.approve(asked.id, by=word),
            "deny": lambda: inbox.deny(asked.id, word),
        }
        with pytest.raises(InvalidMessageError):
            await calls[what]()
        assert [entry.state for entry in inbox.pending(S)] == [State.QUEUED]
        assert await inbox.approve(asked.id)
        assert (await inbox.wait(first)).answer == "approved"


# ---- too much ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "drop"), [("collect", "summarize"), ("followup", "old"), ("steer", "summarize")])
def test_ten_thousand_messages_in_a_burst_stay_bounded(mode: str, drop: str) -> None:
    agent = Agent()

    async def main() -> None:
        async with new_inbox(agent, mode=mode, drop=drop, cap=20) as inbox:
            await busy(inbox, agent, sender="ada")
            receipts = await asyncio.gather(*(inbox.submit(S, f"m{n}", sender="ada") for n in range(10_000)))
            assert len({receipt.message_id for receipt in receipts}) == 10_000
            assert len(inbox.pending(S)) == 20
            kernel = inbox._engine.kernel  # noqa: SLF001 - what a flood costs is the question
            assert len(kernel.items) <= 41
            agent.let_go()
            await passing(60_000)
            assert kernel.items == {}
            states = [(await inbox.status(receipt.message_id)).disposition for receipt in receipts]
            assert all(state.is_final for state in states)
            assert sum(state in (State.RAN, State.MERGED) for state in states) == 20

    run_sim(main(), seed=0, shuffle=False)
    overflow = [prompt for prompt in agent.prompts if prompt.startswith("[Queue overflow]")]
    assert len(overflow) == (1 if drop == "summarize" else 0)
    assert all("Dropped 9980 messages" in prompt and len(prompt.splitlines()) == 23 for prompt in overflow)


@pytest.mark.slow
def test_three_thousand_waiting_messages_run_in_order() -> None:
    agent = Agent()

    async def main() -> None:
        async with new_inbox(agent, mode="followup", cap=100_000) as inbox:
            await busy(inbox, agent)
            for number in range(3_000):
                await inbox.submit(S, str(number))
            agent.let_go()
            await passing(1_000)

    run_sim(main(), seed=0, shuffle=False)
    assert agent.prompts[1:] == [str(number) for number in range(3_000)]


# ---- what handlers do --------------------------------------------------------------------------------------------


class UnprintableError(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("plain"),
        ValueError(LONE),
        ValueError("x" * 1_000_000),
        ValueError("\x00\x1b"),
        UnprintableError(),
        StopIteration("odd"),
        StopAsyncIteration(),
        TimeoutError(),
        ExceptionGroup("many", [ValueError("a"), KeyError("b")]),
        RecursionError("deep"),
        InvalidMessageError("one of ours"),
    ],
    ids=lambda error: f"{type(error).__name__}-{str(error.args)[:10]}",
)
@staged
async def test_a_handler_that_raises_fails_its_turn_and_nothing_else(error: BaseException) -> None:
    async def raises(turn: Turn) -> str:
        raise error

    agent = Agent(raises=raises)
    async with new_inbox(agent, mode="followup") as inbox, Log(inbox) as log:
        bad, good = await finals(inbox, await send(inbox, "raises", "next"))
        assert (bad.disposition, bad.answer) == (State.RAN, None)
        assert bad.outcome in (Outcome.FAILED, Outcome.INTERRUPTED)
        assert bad.reason
        assert good.outcome is Outcome.SUCCEEDED
        assert str(await inbox.explain(bad.message_id))
        await passing()
    assert log.answers() == ["re: next"]


@pytest.mark.parametrize("value", [7, 0, False, True, b"bytes", ["list"], {"a": 1}, object(), 1.5, LONE])
@staged
async def test_a_handler_that_returns_garbage_fails_its_turn_and_says_so(value: Any) -> None:
    async def returns(turn: Turn) -> Any:
        return value

    agent = Agent(returns=returns)
    async with new_inbox(agent, mode="followup") as inbox, Log(inbox) as log:
        bad, good = await finals(inbox, await send(inbox, "returns", "next"))
        await passing()
    assert (bad.outcome, bad.answer) == (Outcome.FAILED, None)
    assert bad.reason
    assert good.outcome is Outcome.SUCCEEDED
    assert log.answers() == ["re: next"]


@staged
async def test_a_handler_that_hangs_holds_up_its_own_session_only() -> None:
    agent = Agent()
    async with new_inbox(agent, mode="followup") as inbox:
        await busy(inbox, agent)
        (one,) = await send(inbox, "one")
        await passing(86_400_000)
        other = await inbox.submit("other", "hello")
        assert (await inbox.wait(other.message_id)).outcome is Outcome.SUCCEEDED
        (entry,) = inbox.pending(S)
        assert "86400" in entry.reason
        agent.let_go()
        assert (await inbox.wait(one)).outcome is Outcome.SUCCEEDED


class OddAnswer(str):
    """Text of a class of its own."""

    __slots__ = ()


@staged
async def test_text_of_another_class_is_text() -> None:
    async def returns(turn: Turn) -> str:
        await turn.reply(OddAnswer("part"))
        return OddAnswer("answer")

    async with new_inbox(returns) as inbox:
        (end,) = await finals(inbox, await send(inbox, "hello"))
        assert end.answer == "answer"
        assert [entry.text for entry in await inbox.history(S)] == ["hello", "part", "answer"]


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_is_meant_for_the_process_goes_on_its_way_and_is_reported_after_the_restart(
    error: type[BaseException],
) -> None:
    async def quits(turn: Turn) -> str:
        raise error

    async def main() -> None:
        async with new_inbox(quits) as inbox:
            await inbox.submit(S, "quit")
            await passing(10)

    with pytest.raises(error):
        run_sim(main(), seed=0)


class OddError(BaseException):
    """Neither an Exception nor anything that asyncio knows."""


@pytest.mark.parametrize("error", [OddError, GeneratorExit])
@staged
async def test_any_other_base_exception_fails_its_turn_and_the_session_lives(error: type[BaseException]) -> None:
    async def odd(turn: Turn) -> str:
        raise error

    async with new_inbox(Agent(odd=odd), mode="followup") as inbox:
        ids = await send(inbox, "odd", "next")
        ends = await finals(inbox, ids)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    loop.exceptions.clear()  # it goes on its way, as asyncio has it
    assert [end.outcome for end in ends] == [Outcome.FAILED, Outcome.SUCCEEDED]


@staged
async def test_a_handler_that_floods_its_own_session_is_held_to_the_cap() -> None:
    async def floods(turn: Turn) -> str:
        for number in range(50):
            await inbox.submit(S, f"more {number}")
        return "flooded"

    agent = Agent(floods=floods)
    inbox: Inbox = new_inbox(agent, mode="followup", cap=5, drop="old")
    async with inbox:
        await finals(inbox, await send(inbox, "floods"))
        await passing(100)
    assert agent.prompts == ["floods"] + [f"more {number}" for number in range(45, 50)]


@staged
async def test_a_handler_that_waits_for_its_own_session_is_refused() -> None:
    async def waits(turn: Turn) -> str:
        receipt = await inbox.submit(S, "later", mode="followup")
        await inbox.wait(receipt.message_id)
        return "never"

    agent = Agent(waits=waits)
    inbox: Inbox = new_inbox(agent)
    async with inbox:
        first = await inbox.submit(S, "waits")
        final = await inbox.wait(first.message_id)
        assert final.outcome is Outcome.FAILED
        assert "waits for turn-" in final.reason
        await passing(10)
    assert agent.prompts == ["waits", "later"]


class Unequal:
    def __eq__(self, other: object) -> bool:
        raise ValueError("compared")

    def __hash__(self) -> int:
        return 0


class OddText(str):
    __slots__ = ()

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        raise ValueError("encoded")


@pytest.mark.parametrize(("kind", "outcome"), [(Unequal, Outcome.FAILED), (OddText, Outcome.SUCCEEDED)])
@staged
async def test_an_answer_with_methods_of_its_own_ends_the_turn_all_the_same(kind: Any, outcome: Outcome) -> None:
    async def odd(turn: Turn) -> Any:
        return (kind("odd") if kind is OddText else kind()) if turn.prompt == "odd" else "fine"

    async with new_inbox(odd) as inbox:
        (end,) = await finals(inbox, await send(inbox, "odd"))
        assert end.outcome is outcome
        (after,) = await finals(inbox, await send(inbox, "after"))
        assert after.answer == "fine"


def test_callables_that_are_async_in_another_way_are_taken() -> None:
    class Answers:
        async def __call__(self, turn: Turn) -> str:
            return "object"

        async def method(self, turn: Turn) -> str:
            return "method"

    async def named(prefix: str, turn: Turn) -> str:
        return prefix

    async def main() -> list[str | None]:
        answers: list[str | None] = []
        for handler in (Answers(), Answers().method, functools.partial(named, "partial")):
            async with new_inbox(handler) as inbox:
                answers += [end.answer for end in await finals(inbox, await send(inbox, "x"))]
        return answers

    assert run_sim(main(), seed=0) == ["object", "method", "partial"]


@pytest.mark.parametrize("tokens", [-1, 1.5, "7", None, True])
@staged
async def test_tokens_that_are_none_are_refused(tokens: Any) -> None:
    async def counts(turn: Turn) -> str:
        with pytest.raises(UsageError):
            turn.add_usage(tokens)
        return "counted"

    async with new_inbox(counts) as inbox:
        (end,) = await finals(inbox, await send(inbox, "x"))
    assert end.answer == "counted"


# ---- clocks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jumps", [[-86_400_000], [86_400_000], [3_600_000, -7_200_000, 3_600_000] * 3])
@staged
async def test_a_wall_clock_that_jumps_both_ways_changes_no_order_and_no_wait(jumps: list[int]) -> None:
    agent = Agent()
    inbox, clock = stepping_inbox(agent, mode="followup", interrupt_grace_ms=1_000, expires_ms=60_000, cap=50)
    async with inbox:
        await busy(inbox, agent)
        ids = []
        for number, jump in enumerate(jumps * 3):
            ids += await send(inbox, str(number))
            clock.jump_wall(jump)
        await passing(100)
        assert [entry.waited_ms for entry in inbox.pending(S)] == [100] * len(ids)
        agent.let_go()
        ends = await finals(inbox, ids)
        at = now_ms()
        await busy(inbox, agent, "cling")
        await send(inbox, "cut", mode="interrupt")
        clock.jump_wall(jumps[0])
        await passing(1_001)
        assert agent.prompts[-1] == "cut"
        assert agent.began_at[-1] == at + 1 + 1_000
        agent.let_go()
    assert agent.prompts[1:-2] == [str(number) for number in range(len(ids))]
    assert {end.outcome for end in ends} == {Outcome.SUCCEEDED}
