"""Laws of the commands in chat: nothing raises, what was written is what is read, order does not matter."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from laneway.kernel.directives import Directive, Inline, Invalid, QueueSet, SendAs, parse, required_right
from laneway.mail import CAP_MAX, Drop, Mode, QueueOptions
from laneway.records import DURATION_MAX_MS

UNITS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
WORDS = st.sampled_from(
    [
        *Mode,
        *("/queue", "/stop", "stop", "/steer", "/followup", "/new", "/approve", "/deny", "/compact", "/status"),
        *("cap:", "cap:5", "cap=0", "debounce:2s", "debounce=", "drop:old", "drop:x", "mode:steer", "foo:bar"),
        *("default", "reset", "clear", "list", "cancel", "m1", "@bot", ":", "=", "\u2028", "\x00", "\n"),
    ]
)
LIKELY = st.lists(st.one_of(WORDS, st.text(max_size=6)), max_size=8).flatmap(
    lambda words: st.sampled_from([" ", "", "\n", "\u3000"]).map(lambda space: space.join(words))
)
ANYTHING = st.one_of(
    LIKELY,
    LIKELY.map("/queue ".__add__),
    st.text(st.characters(), max_size=60),
    st.text(st.characters(categories=["Cs", "Cc", "Cf", "L"]), max_size=20).map("/queue ".__add__),
)
CASES = st.sampled_from([str.upper, str.lower, str.title])


@given(text=ANYTHING)
def test_no_text_raises_and_every_reply_is_one_short_line(text: str) -> None:
    found = parse(text)
    if found is None:
        return
    assert required_right(found) in {None, "queue", "stop", "approve"}
    if isinstance(found, Invalid):
        assert found.reply.startswith("Nothing was changed.")
        assert len(found.reply.splitlines()) == 1
        assert len(found.reply) < 3000


@given(text=ANYTHING)
def test_a_prompt_is_the_end_of_the_message_byte_for_byte(text: str) -> None:
    found = parse(text)
    if isinstance(found, Inline | SendAs):
        assert found.text
        assert text.endswith(found.text)
        assert found.text == found.text.lstrip()
    if isinstance(found, Inline | QueueSet):
        assert not found.options.is_empty


@st.composite
def written(draw: st.DrawFn) -> tuple[list[str], QueueOptions]:
    """Some options as somebody might type them, in any order, and what they mean."""
    words: list[str] = []
    mode = draw(st.one_of(st.none(), st.sampled_from(list(Mode))))
    cap = draw(st.one_of(st.none(), st.integers(1, CAP_MAX)))
    drop = draw(st.one_of(st.none(), st.sampled_from(list(Drop))))
    debounce_ms = None
    sign = st.sampled_from(":=")
    if mode is not None:
        words.append(str(mode))
    if cap is not None:
        words.append(f"cap{draw(sign)}{cap}")
    if drop is not None:
        words.append(f"drop{draw(sign)}{drop}")
    if draw(st.booleans()):
        unit = draw(st.sampled_from(list(UNITS)))
        number = draw(st.integers(0, DURATION_MAX_MS // UNITS[unit]))
        debounce_ms = number * UNITS[unit]
        words.append(f"debounce{draw(sign)}{number}{unit}")
    case = draw(CASES)
    shuffled = draw(st.permutations(words))
    return [case(word) for word in shuffled], QueueOptions(mode=mode, debounce_ms=debounce_ms, cap=cap, drop=drop)


@given(case=written(), space=st.sampled_from([" ", "  ", "\n", "\t"]))
def test_what_was_written_is_what_is_read(case: tuple[list[str], QueueOptions], space: str) -> None:
    words, options = case
    found = parse(space.join(["/queue", *words]))
    if options.is_empty:
        assert not isinstance(found, QueueSet | Inline)
    else:
        assert found == QueueSet(options=options)
        assert parse(space.join(["/queue", *words, "please do it"])) == Inline(options=options, text="please do it")


@given(case=written(), twice=st.integers(0, 3))
def test_an_option_given_twice_changes_nothing(case: tuple[list[str], QueueOptions], twice: int) -> None:
    words, options = case
    if options.is_empty:
        return
    again = words[twice % len(words)]
    found: Directive | None = parse(" ".join(["/queue", *words, again]))
    assert isinstance(found, Invalid)
    assert "given twice" in found.reply


@given(
    number=st.integers(0, 10**6), digits=st.integers(1, 9), part=st.integers(0, 10**9 - 1), unit=st.sampled_from("smh")
)
def test_fractions_are_rounded_to_the_nearest_millisecond(number: int, digits: int, part: int, unit: str) -> None:
    shown = f"{part % 10**digits:0{digits}d}"
    exact = (number * 10**digits + int(shown)) * UNITS[unit]
    nearest, rest = divmod(exact, 10**digits)
    nearest += 2 * rest >= 10**digits
    found = parse(f"/queue debounce:{number}.{shown}{unit}")
    if nearest <= DURATION_MAX_MS:
        assert found == QueueSet(options=QueueOptions(debounce_ms=nearest))
    else:
        assert isinstance(found, Invalid)
