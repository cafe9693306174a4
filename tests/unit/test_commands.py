"""Commands in chat, carried out: settings and their levels, stop, new, status, and who may say what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from laneway import (
    Drop,
    InvalidMessageError,
    MessageState,
    Mode,
    Outcome,
    QueueOptions,
    Sender,
    Turn,
)
from laneway.rows import Lookup, MessageRow
from laneway.stores.memory import MemoryStore
from tests.inbox_stage import (
    GUEST,
    OWNER,
    Agent,
    CutStore,
    Log,
    S,
    busy,
    dispositions,
    finals,
    kill,
    new_inbox,
    send,
    staged,
    waiting,
)
from tests.stage import passing

State = MessageState
STOPPER = Sender(id="sam", rights=("stop",))
QUEUER = Sender(id="quinn", rights=("queue",))


# ---- when a text is a command --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["/queue", "/status", "/stop", "stop", "Stop!", "/queue steer", "/queue nonsense"])
@staged
async def test_a_command_is_answered_and_never_queues(text: str) -> None:
    agent = Agent()
    async with new_inbox(agent, commands=True) as inbox, Log(inbox) as log:
        first = await busy(inbox, agent)
        receipt = await inbox.submit(S, text)
        assert (receipt.disposition, receipt.position) == (State.COMMAND, None)
        assert receipt.reply
        assert waiting(inbox) == []
        final = await inbox.wait(receipt.message_id)
        assert (final.disposition, final.outcome, final.turn_id) == (State.COMMAND, None, None)
        agent.let_go()
        await inbox.wait(first)
        assert text not in [entry.text for entry in await inbox.history(S)]
    assert agent.prompts == ["hold"]
    (ended,) = log.about(receipt.message_id)
    assert (ended.type, ended.state) == ("message.ended", State.COMMAND)


@pytest.mark.parametrize("text", ["/stop", "stop", "/queue steer", "/new"])
@staged
async def test_without_commands_every_text_is_a_message(text: str) -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        (end,) = await finals(inbox, await send(inbox, text))
    assert end.disposition is State.RAN
    assert agent.prompts == [text]


@pytest.mark.parametrize("text", ["hello", "/unknown thing", "stop the car", " /", "the /stop"])
@staged
async def test_what_is_no_command_goes_to_the_agent(text: str) -> None:
    agent = Agent()
    async with new_inbox(agent, commands=True) as inbox:
        (end,) = await finals(inbox, await send(inbox, text))
        assert await inbox.command(S, text) is None
    assert end.disposition is State.RAN
    assert agent.prompts == [text]


@pytest.mark.parametrize("kind", ["system", "heartbeat"])
@staged
async def test_only_users_give_commands(kind: Any) -> None:
    agent = Agent()
    async with new_inbox(agent, commands=True) as inbox:
        (end,) = await finals(inbox, await send(inbox, "/stop", kind=kind))
    assert end.disposition is State.RAN
    assert agent.prompts == ["/stop"]


@pytest.mark.parametrize("text", ["", " ", b"/stop", None, "/stop \ud83d"])
@staged
async def test_a_command_that_is_no_text_is_refused(text: Any) -> None:
    async with new_inbox() as inbox:
        with pytest.raises(InvalidMessageError):
            await inbox.command(S, text)


# ---- /queue ----------------------------------------------------------------------------------------------------


@staged
async def test_queue_alone_tells_the_settings_in_ms_and_how_many_wait() -> None:
    agent = Agent()
    async with new_inbox(agent, debounce_ms=2_000, cap=7, drop="old", mode="followup") as inbox:
        await busy(inbox, agent)
        await send(inbox, "a", "b")
        reply = await inbox.command(S, "/queue") or ""
    for part in ("mode=followup", "debounce=2000ms", "max_wait=20000ms", "cap=7", "drop=old", "2 messages wait"):
        assert part in reply


@staged
async def test_settings_of_a_session_act_on_the_next_message() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent)
        (before,) = await send(inbox, "before")
        assert await inbox.command(S, "/queue followup debounce:0 cap:2 drop:new")
        (after,) = await send(inbox, "after")
        assert [entry.message.mode for entry in inbox.pending(S)] == [Mode.COLLECT, Mode.FOLLOWUP]
        assert agent.turns[0].mode is Mode.COLLECT
        other = await inbox.submit("other", "elsewhere")
        await inbox.wait(other.message_id)
        assert "mode=collect" in (await inbox.command("other", "/queue") or "")
        agent.let_go()
        assert await dispositions(inbox, [before, after]) == [State.RAN, State.RAN]


@staged
async def test_a_second_queue_command_adds_to_the_first_and_reset_takes_all_back() -> None:
    async with new_inbox(mode="followup") as inbox, Log(inbox) as log:
        await inbox.command(S, "/queue steer", sender=OWNER)
        await inbox.command(S, "/queue cap:5", sender=OWNER)
        both = await inbox.command(S, "/queue") or ""
        assert "mode=steer" in both
        assert "cap=5" in both
        await inbox.command(S, "/queue default", sender=OWNER)
        reset = await inbox.command(S, "/queue") or ""
        assert "mode=followup" in reset
        assert "cap=20" in reset
    changed = log.of("session.settings_changed")
    assert [event.actor for event in changed] == ["olga"] * 3
    assert [event.settings for event in changed][-1] == "{}"


@pytest.mark.parametrize(
    "text", ["/queue steer cap:0", "/queue cap:1.5 drop:sometimes", "/queue sideways", "/queue debounce:-1s"]
)
@staged
async def test_a_wrong_part_applies_nothing(text: str) -> None:
    async with new_inbox() as inbox, Log(inbox) as log:
        before = await inbox.command(S, "/queue")
        reply = await inbox.command(S, text) or ""
        assert "Nothing was changed" in reply
        assert await inbox.command(S, "/queue") == before
    assert log.of("session.settings_changed") == []


@staged
async def test_settings_of_a_session_survive_a_restart_and_so_does_their_reset() -> None:
    store = CutStore()
    first = new_inbox(Agent(), store=store)
    await first.__aenter__()
    await first.command(S, "/queue steer-backlog debounce:1.5s cap:25 drop:new")
    await first.command("reset", "/queue steer")
    await first.command("reset", "/queue reset")
    told = await first.command(S, "/queue")
    async with new_inbox(Agent(), store=MemoryStore(kill(first, store))) as second:
        assert await second.command(S, "/queue") == told
        assert "mode=collect" in (await second.command("reset", "/queue") or "")


@staged
async def test_options_inside_a_message_count_for_that_message_only() -> None:
    agent = Agent()
    async with new_inbox(agent, commands=True) as inbox:
        await busy(inbox, agent)
        ids = await send(inbox, "/queue followup debounce:0 do this", "then that")
        assert waiting(inbox) == ["do this", "then that"]
        assert [entry.message.mode for entry in inbox.pending(S)] == [Mode.FOLLOWUP, Mode.COLLECT]
        agent.let_go()
        await finals(inbox, ids)
    assert agent.prompts == ["hold", "do this", "then that"]


@pytest.mark.parametrize(("text", "mode"), [("/steer look here", Mode.STEER), ("/followup look here", Mode.FOLLOWUP)])
@staged
async def test_steer_and_followup_choose_the_mode_of_one_message(text: str, mode: Mode) -> None:
    agent = Agent()
    async with new_inbox(agent, commands=True) as inbox:
        await busy(inbox, agent)
        await send(inbox, text, "next")
        first, second = inbox.pending(S)
        assert (first.text, first.message.mode) == ("look here", mode)
        assert (second.text, second.message.mode) == ("next", Mode.COLLECT)


@staged
async def test_command_keeps_every_option_inside_a_message() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent)
        reply = await inbox.command(S, "/queue collect debounce:5s hello")
        assert reply
        agent.let_go()
        await passing(4_000)
        assert agent.prompts == ["hold"]
        await passing(1_500)
    assert agent.prompts == ["hold", "hello"]


@staged
async def test_clear_empties_the_mailbox_and_says_how_many() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        first = await busy(inbox, agent)
        ids = await send(inbox, "a", "b", mode="steer")
        ids += await send(inbox, "c")
        await inbox.hold(ids[2])
        assert "3" in (await inbox.command(S, "/queue clear") or "")
        assert await dispositions(inbox, ids) == [State.WITHDRAWN] * 3
        agent.let_go()
        assert (await inbox.wait(first)).outcome is Outcome.SUCCEEDED
        assert await inbox.command(S, "/queue clear")
    assert agent.prompts == ["hold"]


@staged
async def test_list_shows_what_waits_and_cancel_takes_one_back() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        running = await busy(inbox, agent)
        one, two = await send(inbox, "first thing", "second thing", mode="followup")
        listed = await inbox.command(S, "/queue list") or ""
        assert listed.index("first thing") < listed.index("second thing")
        assert one in listed
        assert one in (await inbox.command(S, f"/queue cancel {one}", sender=OWNER) or "")
        final = await inbox.wait(one)
        assert (final.disposition, waiting(inbox)) == (State.WITHDRAWN, ["second thing"])
        for other in ("nix", running, one):
            assert await inbox.command(S, f"/queue cancel {other}")
        assert await inbox.command("elsewhere", f"/queue cancel {two}")
        assert waiting(inbox) == ["second thing"]
        assert (await inbox.status(running)).disposition is State.RUNNING
        story = await inbox.explain(one)
        assert story.steps[-1].actor == "olga"


# ---- levels ----------------------------------------------------------------------------------------------------


LEVELS = ("inline", "session", "channel", "workspace", "global", "default")


@pytest.mark.parametrize("top", range(6))
@staged
async def test_each_level_goes_before_those_after_it(top: int) -> None:
    """The mode of a message comes from the strongest level that sets one."""
    modes = ("interrupt", "steer", "followup", "steer-backlog", "rollback", "collect")
    options: dict[str, Any] = {}
    if top <= 4:
        options["mode"] = modes[4]
    if top <= 3:
        options["workspace_options"] = QueueOptions(mode=Mode.parse(modes[3]))
    if top <= 2:
        options["by_channel"] = {"slack": modes[2]}
    agent = Agent()
    async with new_inbox(agent, **options) as inbox:
        await busy(inbox, agent, "cling")
        if top <= 1:
            await inbox.command(S, f"/queue {modes[1]}")
        await inbox.submit(S, "x", channel="slack", mode=modes[0] if top == 0 else None)
        assert inbox.pending(S)[0].message.mode == modes[top]
        agent.let_go()


@pytest.mark.parametrize("option", ["debounce_ms", "cap", "drop"])
@staged
async def test_each_option_has_its_own_precedence(option: str) -> None:
    values: dict[str, Any] = {"debounce_ms": 250, "cap": 3, "drop": Drop.NEW}
    channel: dict[str, Any] = {option: values[option]}
    agent = Agent()
    async with new_inbox(
        agent, debounce_ms=4_000, cap=9, drop="old", by_channel={"slack": QueueOptions(**channel)}
    ) as inbox:
        owner = inbox._owner(S, "default")  # noqa: SLF001 - what is in force for a channel cannot be asked otherwise
        settings = inbox._level_settings(owner, "slack", QueueOptions())  # noqa: SLF001 - as above
        assert settings.origins == {
            "mode": "default",
            "debounce_ms": "global",
            "cap": "global",
            "drop": "global",
            "max_wait_ms": "channel" if option == "debounce_ms" else "global",
            option: "channel",
        }
        assert settings.max_wait_ms == settings.debounce_ms * 10


@staged
async def test_a_callable_mode_stands_where_the_global_mode_stands() -> None:
    agent = Agent()
    async with new_inbox(agent, mode=lambda view: "steer", by_channel={"slack": "followup"}) as inbox:
        await busy(inbox, agent)
        await inbox.submit(S, "x", channel="slack")
        await inbox.submit(S, "y", channel="tg")
        assert [entry.message.mode for entry in inbox.pending(S)] == [Mode.FOLLOWUP, Mode.STEER]
        await inbox.command(S, "/queue collect")
        await inbox.submit(S, "z", channel="tg")
        assert inbox.pending(S)[-1].message.mode is Mode.COLLECT


# ---- /stop, /new, /status ----------------------------------------------------------------------------------------


@staged
async def test_stop_with_nothing_to_stop_says_so() -> None:
    async with new_inbox() as inbox:
        reply = await inbox.command(S, "/stop") or ""
        assert reply
        assert (await inbox.stop(S)) == (0, 0, 0, 0, 0)


@staged
async def test_a_stopped_session_runs_the_next_message() -> None:
    agent = Agent()
    async with new_inbox(agent, interrupt_grace_ms=2_000) as inbox:
        first = await busy(inbox, agent, "cling")
        await inbox.command(S, "/stop")
        (end,) = await finals(inbox, await send(inbox, "next"))
        assert end.outcome is Outcome.SUCCEEDED
        assert (await inbox.wait(first)).outcome is Outcome.INTERRUPTED
        agent.let_go()
    assert agent.prompts == ["cling", "next"]


@staged
async def test_what_a_stopped_turn_had_taken_in_does_not_come_back() -> None:
    async def work(turn: Turn) -> str:
        while not await turn.boundary():
            await passing(10)
        await asyncio.Event().wait()
        return ""

    agent = Agent(work=work)
    async with new_inbox(agent, mode="steer") as inbox:
        await busy(inbox, agent, "work")
        (steer,) = await send(inbox, "steer")
        await passing(50)
        await inbox.command(S, "/stop")
        assert (await inbox.wait(steer)).disposition is State.WITHDRAWN
        await passing(5_000)
    assert agent.prompts == ["work"]


@staged
async def test_stop_touches_no_other_session() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent)
        await inbox.submit("other", "hold other")
        await passing()
        await inbox.submit("other", "next")
        await inbox.command(S, "/stop")
        await passing(10)
        assert agent.cancelled == ["hold"]
        assert waiting(inbox, "other") == ["next"]


@staged
async def test_new_begins_a_conversation_with_its_text() -> None:
    agent = Agent()
    async with new_inbox(agent, commands=True) as inbox, Log(inbox) as log:
        await finals(inbox, await send(inbox, "old"))
        receipt = await inbox.submit(S, "/new fresh start", sender=OWNER)
        assert receipt.disposition is State.COMMAND
        await passing(10)
        assert agent.prompts == ["old", "fresh start"]
        assert [entry.text for entry in await inbox.history(S)] == ["fresh start", "re: fresh start"]
        assert [turn.conversation for turn in agent.turns] == [0, 1]
        assert [entry.text for entry in await inbox.history(S, conversation=0)] == ["old", "re: old"]
    (reset,) = log.of("session.reset")
    assert (reset.conversation, reset.actor) == (1, "olga")


@staged
async def test_an_older_conversation_can_be_read_whatever_came_after_it() -> None:
    async with new_inbox(mode="followup") as inbox:
        await finals(inbox, await send(inbox, "old"))
        await inbox.command(S, "/new")
        await finals(inbox, await send(inbox, "a", "b", "c"))
        assert [entry.text for entry in await inbox.history(S, conversation=0, limit=2)] == ["old", "re: old"]
        assert [entry.text for entry in await inbox.history(S, limit=2)] == ["c", "re: c"]


@staged
async def test_a_conversation_is_remembered_across_a_restart() -> None:
    store = CutStore()
    first = new_inbox(Agent(), store=store)
    await first.__aenter__()
    await finals(first, await send(first, "old"))
    await first.command(S, "/new")
    async with new_inbox(Agent(), store=MemoryStore(kill(first, store))) as second:
        await finals(second, await send(second, "fresh"))
        assert [entry.text for entry in await second.history(S)] == ["fresh", "re: fresh"]


@staged
async def test_an_answer_that_is_delivered_after_new_belongs_to_the_old_conversation() -> None:
    gate = asyncio.Event()

    async def work(turn: Turn) -> str:
        async with turn.phase("delivering"):
            await gate.wait()
        return "old answer"

    agent = Agent(work=work)
    async with new_inbox(agent, commands=True) as inbox:
        await busy(inbox, agent, "work")
        await inbox.submit(S, "/new")
        gate.set()
        await passing(10)
        assert await inbox.history(S) == []
        assert [entry.text for entry in await inbox.history(S, conversation=0)] == ["work", "old answer"]


@staged
async def test_status_tells_state_mode_depth_times_and_tokens() -> None:
    async def work(turn: Turn) -> str:
        turn.add_usage(1_200)
        turn.add_usage(34)
        async with turn.phase("acting"):
            await asyncio.Event().wait()
        return ""

    agent = Agent(work=work)
    async with new_inbox(agent, mode="followup") as inbox:
        idle = await inbox.command(S, "/status") or ""
        assert "idle" in idle
        await busy(inbox, agent, "work")
        await send(inbox, "a", "b")
        await passing(249)
        reply = await inbox.command(S, "/status", sender=GUEST) or ""
    for part in ("acting", "for 250ms", "mode: followup", "waiting: 2", "oldest 249ms", "1,234"):
        assert part in reply


# ---- rights ----------------------------------------------------------------------------------------------------


RIGHTS = {
    "/queue steer": "queue",
    "/queue reset": "queue",
    "/queue clear": "queue",
    "/queue cancel {one}": "queue",
    "/queue interrupt hello": "queue",
    "/steer hello": "queue",
    "/followup hello": "queue",
    "/queue cap:100000 hello": "queue",
    "/stop": "stop",
    "stop": "stop",
    "/new": "stop",
    "/approve a1": "approve",
    "/deny a1": "approve",
}


@pytest.mark.parametrize("text", RIGHTS)
@pytest.mark.parametrize("way", ["submit", "command"])
@staged
async def test_a_sender_without_the_right_changes_nothing_and_is_told(text: str, way: str) -> None:
    agent = Agent()
    right = RIGHTS[text]
    others = Sender(id="o", rights=tuple({"queue", "stop", "approve"} - {right}))
    async with new_inbox(agent, commands=True) as inbox, Log(inbox) as log:
        await busy(inbox, agent)
        (one,) = await send(inbox, "waits")
        text = text.replace("{one}", one)
        before = await inbox.command(S, "/queue")
        for sender in (GUEST, others):
            if way == "submit":
                receipt = await inbox.submit(S, text, sender=sender)
                assert receipt.disposition is State.COMMAND
                reply = receipt.reply
            else:
                reply = await inbox.command(S, text, sender=sender)
            assert f"'{right}'" in (reply or "")
        assert waiting(inbox) == ["waits"]
        assert agent.cancelled == []
        assert await inbox.command(S, "/queue") == before
    assert log.of("session.stopped", "session.reset", "session.settings_changed", "turn.cancelling") == []


@pytest.mark.parametrize(
    ("text", "sender"),
    [
        ("/queue steer", QUEUER),
        ("/queue steer", OWNER),
        ("/queue steer", None),
        ("/stop", STOPPER),
        ("/stop", OWNER),
        ("/stop", None),
        ("/new", STOPPER),
        ("/status", GUEST),
        ("/queue", GUEST),
    ],
)
@staged
async def test_the_right_an_owner_and_the_host_are_enough(text: str, sender: Sender | None) -> None:
    agent = Agent()
    async with new_inbox(agent, commands=True) as inbox:
        await busy(inbox, agent)
        receipt = await inbox.submit(S, text, sender=sender)
        assert "may not" not in (receipt.reply or "")
        await passing(10)
        assert agent.cancelled == (["hold"] if text in ("/stop", "/new") else [])


@staged
async def test_a_display_name_is_not_a_right() -> None:
    agent = Agent()
    impostor = Sender(id="gus", name="olga (owner)", rights=())
    async with new_inbox(agent, commands=True) as inbox:
        await busy(inbox, agent)
        receipt = await inbox.submit(S, "/stop", sender=impostor)
        assert "right" in (receipt.reply or "")
        assert agent.cancelled == []


# ---- telling ---------------------------------------------------------------------------------------------------


@staged
async def test_typing_is_told_at_once_and_a_long_wait_after_two_seconds() -> None:
    agent = Agent()
    async with new_inbox(agent, mode="followup") as inbox, Log(inbox) as log:
        await busy(inbox, agent)
        one, two = await send(inbox, "one", "two")
        await passing(1_999)
        assert [event.message_id for event in log.of("session.typing")][-2:] == [one, two]
        assert log.of("message.waited") == []
        await passing(2)
        waited = log.of("message.waited")
        assert [(event.message_id, event.position) for event in waited] == [(one, 1), (two, 2)]
        assert all(event.reason and event.notice and event.wait_ms >= 2_000 for event in waited)
        await passing(10_000)
        assert len(log.of("message.waited")) == 2
        agent.let_go()
        await finals(inbox, [one, two])


@staged
async def test_what_does_not_wait_is_not_told_to_wait() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        await busy(inbox, agent)
        (one,) = await send(inbox, "one")
        await inbox.withdraw(one)
        await passing(10_000)
    assert log.of("message.waited") == []


@pytest.mark.parametrize("command", ["/stop", "/new", "/queue clear"])
@staged
async def test_a_command_does_not_overtake_a_message_that_came_before_it(command: str) -> None:
    class SlowFind(MemoryStore):
        async def find(self, lookups: Sequence[Lookup]) -> list[MessageRow | None]:
            await passing(20)
            return await super().find(lookups)

    agent = Agent()
    async with new_inbox(agent, store=SlowFind(), commands=True, mode="followup") as inbox:
        await busy(inbox, agent)
        old = asyncio.get_running_loop().create_task(inbox.submit(S, "old", message_id="m1"))
        await passing(5)
        await inbox.submit(S, command)
        assert (await inbox.wait((await old).message_id)).disposition is State.WITHDRAWN
        agent.let_go()
        await passing(100)
    assert agent.prompts == ["hold"]
