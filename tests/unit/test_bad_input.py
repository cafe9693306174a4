"""Garbage in: a typed error with the way out, and nothing has changed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from laneway import (
    AbortSignal,
    Boost,
    BoostStep,
    ClosedError,
    ConfigError,
    DuplicateJobError,
    Effect,
    Group,
    InvalidJobError,
    JobAbortedError,
    LaneConfig,
    LaneFullError,
    Lanes,
    LanewayError,
    RateLimit,
    RetryPolicy,
    UnknownJobError,
    UnknownLaneError,
    UsageError,
    WrongThreadError,
)
from laneway.testing import fake_host
from tests.stage import Diary, never, new_lanes, passing, seen, simulated, value

NOT_WIDTHS: list[Any] = [float("nan"), -1, 1.5, True, False, None, "3", 10**9, 1_000_001, [], object(), float("inf")]
NOT_CALLABLE: list[Any] = [None, 5, "fetch", [], {}]
NOT_TEXT: list[Any] = [5, None, b"x", ["x"], object()]
NOT_NAMES: list[Any] = ["", " ", " x", "x ", "x\ny", "x\x00", "\x1b[31m", "x" * 513, "a//b", "/a", "a/", "\u202eevil"]


async def check_refused(
    lanes: Lanes, call: Callable[[], object], kind: type[LanewayError], *words: str
) -> LanewayError:
    """The call raises this error, whose text has these words, and changes nothing."""
    before = seen(lanes)

    async def made() -> None:
        answer = call()
        if asyncio.iscoroutine(answer):
            await answer

    with pytest.raises(kind) as caught:
        await made()
    error = caught.value
    assert seen(lanes) == before
    for word in words:
        assert word in str(error), str(error)
    assert error.code != "laneway"
    return error


# ---- widths and names ----


@pytest.mark.parametrize("width", NOT_WIDTHS)
@simulated
async def test_absurd_widths_are_refused_everywhere(width: Any) -> None:
    async with new_lanes({"lane": 3}) as lanes:
        await check_refused(lanes, lambda: lanes.resize("lane", width), ConfigError, repr(width), "lane", "1,000,000")
        assert lanes.stats().lanes["lane"].max_concurrent == 3
        await check_refused(lanes, lambda: lanes.scope("w", {"x": width}), ConfigError, repr(width), "'x'")
    for call in (
        lambda: LaneConfig(concurrency=width),
        lambda: Lanes({"lane": width}),
        lambda: Group(cap=width, lanes=["a"]),
        lambda: Group(cap=5, lanes=["a"], reserve={"a": width}),
    ):
        with pytest.raises(ConfigError, match="whole number"):
            call()
    if width is not None:
        with pytest.raises(ConfigError, match="max_concurrent"):
            Lanes(max_concurrent=width)


@pytest.mark.parametrize("name", NOT_NAMES)
@simulated
async def test_odd_lane_names_are_refused_even_where_names_are_created(name: str) -> None:
    async with new_lanes({"lane": 1}, unknown="create") as lanes:
        for call in (
            lambda: lanes.submit(name, never),
            lambda: lanes.submit(["lane", name], never),
            lambda: lanes.slot(name).acquire(),
            lambda: lanes.resize(name, 1),
            lambda: lanes.pause(name),
            lambda: lanes.close_until(name, 0),
        ):
            await check_refused(lanes, call, UsageError, repr(name))
    with pytest.raises(ConfigError):
        Lanes({name: 1})


@pytest.mark.parametrize("name", NOT_TEXT)
@simulated
async def test_lane_names_that_are_not_text_are_refused(name: Any) -> None:
    async with new_lanes({"lane": 1}) as lanes:
        calls: list[Callable[[], object]] = [
            lambda: lanes.submit([name], never),
            lambda: lanes.resize(name, 1),
            lambda: lanes.pause(name),
            lambda: lanes.resume(name),
            lambda: lanes.close_until(name, 0),
            lambda: lanes.subscribe(name),
        ]
        if name is not None:
            calls += [lambda: lanes.cancel_waiting(name), lambda: lanes.jobs(name), lambda: lanes.reopen(name)]
        if not isinstance(name, list):
            calls += [lambda: lanes.submit(name, never), lambda: lanes.slot(name)]
        for call in calls:
            await check_refused(lanes, call, UsageError)
    if not isinstance(name, list):
        with pytest.raises(ConfigError):
            Lanes({name: 1})


@simulated
async def test_an_unknown_lane_is_named_with_a_suggestion_by_every_call() -> None:
    async with new_lanes({"execute": 1, "query": 4}) as lanes:
        for call in (
            lambda: lanes.submit("exekute", never),
            lambda: lanes.run("exekute", never),
            lambda: lanes.slot("exekute").acquire(),
            lambda: lanes.resize("exekute", 2),
            lambda: lanes.pause("exekute"),
            lambda: lanes.resume("exekute"),
            lambda: lanes.close_until("exekute", 0),
            lambda: lanes.reopen("exekute"),
            lambda: lanes.jobs("exekute"),
            lambda: lanes.cancel_waiting("exekute"),
        ):
            await check_refused(lanes, call, UnknownLaneError, "'exekute'", "did you mean 'execute'?")
        await check_refused(lanes, lambda: lanes.submit("zzz", never), UnknownLaneError, "execute, query")
        await check_refused(lanes, lambda: lanes.submit("session:", never), UsageError)


# ---- what is submitted ----


@simulated
async def test_what_cannot_be_called_is_refused() -> None:
    async with new_lanes({"one": 1}) as lanes:
        for wrong in NOT_CALLABLE:
            await check_refused(lanes, partial(lanes.submit, "one", wrong), InvalidJobError, "not callable")
            await check_refused(lanes, partial(lanes.run, "one", wrong), InvalidJobError, "not callable")
        coroutine: Any = value()
        error = await check_refused(lanes, lambda: lanes.submit("one", coroutine), InvalidJobError)
        assert "the function itself" in error.hint
        coroutine.close()


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        *[("priority", wrong) for wrong in (None, "USER", 7, -1, 1.5, object())],
        *[("effect", wrong) for wrong in (None, "delete", 1, ["read"])],
        *[("retry", wrong) for wrong in (3, "exponential", True, {"max_retries": 1})],
        *[("weight", wrong) for wrong in (0, -1, float("nan"), float("inf"), None, "3")],
        *[("key", wrong) for wrong in (5, b"k", ["k"])],
        *[("label", wrong) for wrong in (5, b"k", ["k"])],
        *[("tenant", wrong) for wrong in (5, None, b"k")],
        *[("timeout_ms", wrong) for wrong in (0, -1, 1.5, True, "5", float("nan"), 10**18)],
        *[("wait_timeout_ms", wrong) for wrong in (0, -1, 1.5, True, "5")],
        *[("deadline_ms", wrong) for wrong in (0, -1, 1.5, True, "5")],
        *[("delay_ms", wrong) for wrong in (-1, 1.5, True, "5", 10**18)],
        *[("signal", wrong) for wrong in (5, "stop", object())],
    ],
)
@simulated
async def test_wrong_options_of_a_job_are_refused(option: str, wrong: Any) -> None:
    async with new_lanes({"one": 1}) as lanes:
        options: Mapping[str, Any] = {option: wrong}
        await check_refused(lanes, lambda: lanes.submit("one", never, **options), UsageError, option)


@pytest.mark.parametrize("wrong", [None, 5, [], [None], ["a", 5], b"ab", {}])
@simulated
async def test_a_lane_is_a_name_or_a_sequence_of_names(wrong: Any) -> None:
    async with new_lanes({"a": 1}) as lanes:
        await check_refused(lanes, lambda: lanes.submit(wrong, never), UsageError, "lane")


@pytest.mark.parametrize(
    "order",
    [["b", "a"], ["a", "a"], ["a", "session:s"], ["session:s", "session:t"], ["a", "c", "b"], ["session:s", "b", "a"]],
)
@simulated
async def test_several_lanes_are_named_in_the_order_of_their_configuration(order: list[str]) -> None:
    async with new_lanes({"a": 1, "b": 1, "c": 1}) as lanes:
        await check_refused(lanes, lambda: lanes.submit(order, never), ConfigError, "lane")
        await check_refused(lanes, lambda: lanes.slot(order).acquire(), ConfigError, "lane")


@simulated
async def test_an_unknown_lane_among_several_leaves_no_lane_behind() -> None:
    async with new_lanes({"a": 1}) as lanes:
        await check_refused(lanes, lambda: lanes.submit(["session:s", "nope"], never), UnknownLaneError)
        await check_refused(lanes, lambda: lanes.submit(["session:s", " "], never), UsageError)
        assert list(lanes.stats().lanes) == ["a"]


@simulated
async def test_a_fired_signal_and_a_taken_key_change_nothing() -> None:
    diary = Diary()
    signal = AbortSignal()
    signal.abort("over")
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", diary.hold, "a", key="k")
        await check_refused(lanes, lambda: lanes.submit("one", never, key="k"), DuplicateJobError, "'k'", job.id)
        error = await check_refused(lanes, lambda: lanes.submit("one", never, signal=signal), JobAbortedError, "over")
        assert "'one'" in str(error)
        diary.let_go("a")


@simulated
async def test_unknown_ids_are_refused() -> None:
    async with new_lanes({"one": 1}) as lanes:
        ended = lanes.submit("one", value)
        await ended
        unknown: list[Any] = ["job-99", ended.id, "", None, 5]
        for wrong in unknown:
            await check_refused(lanes, partial(lanes.cancel, wrong), UnknownJobError, repr(wrong))
            await check_refused(lanes, partial(lanes.explain, wrong), UnknownJobError, repr(wrong))


# ---- when and where ----


def test_calls_before_opening_are_refused() -> None:
    lanes = Lanes({"one": 1})
    for call in (
        lambda: lanes.submit("one", never),
        lambda: lanes.pause("one"),
        lambda: lanes.resize("one", 2),
        lambda: lanes.cancel_waiting(),
        lambda: lanes.cancel("job-1"),
        lambda: lanes.subscribe(),
    ):
        with pytest.raises(ClosedError, match="async with") as caught:
            call()
        assert not caught.value.opened


@simulated
async def test_calls_after_closing_are_refused() -> None:
    lanes = new_lanes({"one": 1})
    async with lanes:
        slot = lanes.slot("one")
    for call in (
        lambda: lanes.submit("one", never),
        lambda: lanes.run("one", never),
        slot.acquire,
        lambda: lanes.drain(),
        lambda: lanes.resume("one"),
        lambda: lanes.subscribe(),
        lambda: lanes.reopen(),
    ):
        await check_refused(lanes, call, ClosedError, "closed")


def test_calls_from_another_thread_are_refused() -> None:
    errors: list[BaseException] = []

    async def main() -> None:
        async with Lanes({"one": 1}) as lanes:
            job = lanes.submit("one", passing)
            before = seen(lanes)[1]

            def elsewhere() -> None:
                for call in (
                    lambda: lanes.submit("one", never),
                    lambda: lanes.resize("one", 5),
                    lambda: lanes.cancel(job.id),
                    lambda: lanes.cancel_waiting(),
                    lambda: lanes.subscribe(),
                    lambda: job.cancel(),
                ):
                    try:
                        call()
                    except UsageError as error:
                        errors.append(error)

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
            assert [info.id for info in lanes.jobs()] == [info.id for info in before]

    asyncio.run(main())
    assert [type(error) for error in errors] == [WrongThreadError] * 6
    assert all("threadsafe" in str(error) for error in errors)


@pytest.mark.slow
@simulated
async def test_a_hundred_thousand_jobs_do_not_fit_into_a_bounded_lane() -> None:
    async with new_lanes({"one": LaneConfig(queued_max=100)}) as lanes:
        lanes.pause("one")
        refused = 0
        for _ in range(100_000 // 6):  # the test runs six times
            try:
                lanes.submit("one", never)
            except LaneFullError:
                refused += 1
        assert refused == 100_000 // 6 - 100
        assert lanes.stats().waiting == len(lanes.jobs()) == 100
        assert lanes.cancel_waiting() == 100


# ---- settings ----


@pytest.mark.parametrize(
    ("setting", "wrong"),
    [
        *[("priority", wrong) for wrong in (-1, 10, 1.5, True, None, "1")],
        *[("queued_max", wrong) for wrong in (-1, 1.5, True, "1", float("nan"))],
        *[("timeout_ms", wrong) for wrong in (0, -1, 1.5, True, "1", 10**18)],
        *[("wait_timeout_ms", wrong) for wrong in (0, -1, 1.5, True, "1")],
        *[("cancel_grace_ms", wrong) for wrong in (-1, 1.5, True, "1")],
        *[("ageing_ms", wrong) for wrong in (0, -1, 1.5, True, "1")],
        *[("pressure_threshold", wrong) for wrong in (0, -1, 1.5, True, "1")],
        *[("alert_warning", wrong) for wrong in (0, -1, 1.5, True, "1")],
        *[("alert_critical", wrong) for wrong in (0, -1, 1.5, True, "1")],
        *[("retry", wrong) for wrong in (3, "none", RateLimit.per_second(1))],
        *[("rate_limit", wrong) for wrong in (3, "1/s", RetryPolicy.none())],
        *[("boost", wrong) for wrong in (3, "standard", True)],
        *[("fair_by", wrong) for wrong in ("user", 1, True, ["tenant"])],
        *[("exclusive", wrong) for wrong in ("no", 1, None)],
        *[("abandon_threads", wrong) for wrong in ("yes", 1, None)],
    ],
)
def test_garbage_in_a_lane_config_is_refused(setting: str, wrong: Any) -> None:
    options: dict[str, Any] = {setting: wrong}
    with pytest.raises(ConfigError, match=setting.partition("_")[0]) as caught:
        LaneConfig(**options)
    assert caught.value.setting


@pytest.mark.parametrize(
    "make",
    [
        lambda: LaneConfig(exclusive=True, concurrency=2),
        lambda: LaneConfig(alert_warning=9, alert_critical=3),
        lambda: RateLimit.per_second(0),
        lambda: RateLimit.per_minute(-1),
        lambda: RateLimit.per_hour(1.5),  # type: ignore[arg-type]
        lambda: RateLimit.per_second(True),
        lambda: RateLimit(count=1, window_ms=0),
        lambda: RetryPolicy.fixed(-1, 5),
        lambda: RetryPolicy.fixed(1, -5),
        lambda: RetryPolicy.fixed(True, 5),
        lambda: RetryPolicy.fixed(1, None),  # type: ignore[arg-type]
        lambda: RetryPolicy.exponential(1, factor=0.5),
        lambda: RetryPolicy.exponential(1, factor="2"),  # type: ignore[arg-type]
        lambda: RetryPolicy.exponential(1, factor=float("nan")),
        lambda: RetryPolicy.exponential(1, jitter=2),
        lambda: RetryPolicy.exponential(1, jitter=None),  # type: ignore[arg-type]
        lambda: RetryPolicy.exponential(1, max_delay_ms=None),  # type: ignore[arg-type]
        lambda: Boost.standard(0),
        lambda: Boost.standard("soon"),  # type: ignore[arg-type]
        lambda: Boost.aggressive(True),
        lambda: Boost(steps=5),  # type: ignore[arg-type]
        lambda: Boost(steps=("x",)),  # type: ignore[arg-type]
        lambda: Boost(steps=(BoostStep(remaining_percent=10, levels=9),)),
        lambda: Boost(steps=(BoostStep(remaining_percent=0, levels=1),)),
        lambda: Boost(steps=(BoostStep(remaining_percent="x", levels=1),)),  # type: ignore[arg-type]
        lambda: Boost(steps=(BoostStep(remaining_percent=10, levels=1), BoostStep(remaining_percent=20, levels=2))),
        lambda: Group(cap=1, lanes="execute"),
        lambda: Group(cap=1, lanes=5),  # type: ignore[arg-type]
        lambda: Group(cap=1, lanes=[5]),  # type: ignore[list-item]
        lambda: Group(cap=1, lanes=["a"], reserve=[1]),  # type: ignore[arg-type]
        lambda: Group(cap=1, lanes=["a", "b"], reserve={"a": 1, "b": 1}),
        lambda: Lanes([("a", 1)]),  # type: ignore[arg-type]
        lambda: Lanes("a"),  # type: ignore[arg-type]
        lambda: Lanes({"a": "wide"}),  # type: ignore[dict-item]
        lambda: Lanes({"session:s": 2}),
        lambda: Lanes({"a": 1}, groups="g"),  # type: ignore[arg-type]
        lambda: Lanes({"a": 1}, groups={"g": 3}),  # type: ignore[dict-item]
        lambda: Lanes({"a": 1}, groups={"g": Group(1, ["a"]), "h": Group(1, ["*"])}),
        lambda: Lanes({"a": 1}, groups={"g": Group(1, ["a"], reserve={"b": 1})}),
        lambda: Lanes({"a": 1}, unknown="maybe"),  # type: ignore[arg-type]
        lambda: Lanes({"a": 1}, dlq_max_size=-1),
        lambda: Lanes({"a": 1}, threads_max=0),
        lambda: Lanes({"a": 1}, close_timeout_ms=-1),
        lambda: Lanes({"a": 1}, host="here"),  # type: ignore[arg-type]
    ],
)
def test_garbage_in_settings_is_a_config_error(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value)


@simulated
async def test_the_width_of_an_exclusive_lane_stays_one() -> None:
    async with new_lanes({"x": LaneConfig(exclusive=True)}) as lanes:
        for name in ("x", "session:s"):
            await check_refused(lanes, partial(lanes.resize, name, 2), ConfigError, repr(name), "exclusive")


@simulated
async def test_a_lane_in_two_groups_is_refused_when_it_would_appear() -> None:
    groups = {"g": Group(1, ["w*/a"]), "h": Group(1, ["*/a"])}
    async with new_lanes({"a": 1}, groups=groups) as lanes:
        await check_refused(lanes, lambda: lanes.scope("w1").submit("a", never), ConfigError, "g, h", "'w1/a'")
        assert await lanes.scope("x").run("a", value, 1) == 1


@simulated
async def test_wrong_questions_and_ends_are_refused() -> None:
    async with new_lanes({"one": 1}) as lanes:
        await check_refused(lanes, lambda: lanes.jobs(state="asleep"), ConfigError, "'asleep'", "queued")
        await check_refused(lanes, lambda: lanes.subscribe(buffer_max=0), ConfigError, "buffer_max")
        await check_refused(lanes, lambda: lanes.drain(-1), ConfigError, "timeout_ms")
        await check_refused(lanes, lambda: lanes.drain(purpose="fun"), ConfigError, "'fun'")  # type: ignore[arg-type]
        await check_refused(lanes, lambda: lanes.close_until("one", 1.5), ConfigError, "wall_ms")  # type: ignore[arg-type]
        await check_refused(lanes, lambda: lanes.on_change("not callable"), UsageError)  # type: ignore[arg-type]
        assert await lanes.run("one", value, "still open") == "still open"


def test_an_effect_may_be_given_as_text_but_a_priority_is_not_a_number() -> None:
    """Numbers are priorities of lanes, where 0 is first; of a job 0 would be last."""

    async def main() -> None:
        async with Lanes({"one": 1}, host=fake_host()) as lanes:
            await lanes.run("one", value, effect="read")
            assert lanes.stats().lanes["one"].completed == 1
            with pytest.raises(InvalidJobError, match="priority must be a Priority, not 0"):
                lanes.submit("one", value, None, priority=0)  # type: ignore[call-overload]
            with pytest.raises(InvalidJobError, match=r"did you mean 'timeout_ms'\? .*functools.partial"):
                lanes.submit("one", value, None, timeout=3)  # type: ignore[call-overload]
            with pytest.raises(ConfigError, match="decades ago"):
                lanes.close_until("one", 1_700_000_000)

    asyncio.run(main())
    assert Effect("read") is Effect.READ


def test_drain_and_close_inside_a_job_are_refused() -> None:
    async def main() -> None:
        async with Lanes({"one": 1}, host=fake_host()) as lanes:
            with pytest.raises(UsageError, match="outside the jobs"):
                await lanes.run("one", lanes.drain)
            with pytest.raises(UsageError, match="outside the jobs"):
                await lanes.run("one", lanes.close)
            assert lanes.stats().lanes["one"].failed == 2

    asyncio.run(main())
