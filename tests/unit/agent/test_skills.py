"""Skills: which files count, what a model is told of them, and what is refused while one is followed."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from laneway.agent.session import AsyncSession
from laneway.agent.skills import FILE, SKILL, Skill, Skills, listing
from laneway.dialogue import Answer, ModelRequest, ResultStatus, ToolCall, ToolResult
from laneway.errors import ConfigError, RunCancelledError, UsageError
from laneway.kernel.turn_machine import Limits, TurnMachine
from laneway.models import ScriptedModel, call, say
from laneway.options import LaneHandlerConfig, PermissionPolicy, SessionQueueConfig
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.tools import FunctionTool
from laneway.tools.markdown_files import FILE_BYTES_MAX, FILES_MAX, HEAD_MAX, Shelf, read_folders
from tests.agent_stage import Bench, agent_of, one, opened, results, sending, session_of, statuses
from tests.stage import passing

GOOD = "---\nname: {name}\ndescription: About {name}.\n---\nDo {name}.\n"


def put(folder: Path, name: str, text: str | bytes, *, nested: bool = False) -> Path:
    """A file of a skill."""
    path = folder / name / FILE if nested else folder / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def narrow(folder: Path, name: str, tools: str) -> Path:
    """A skill that allows some tools only."""
    return put(folder, name, f"---\nname: {name}\ndescription: {name}\nallowed-tools: {tools}\n---\nDo {name}.\n")


def skills_in(*folders: Path) -> Skills:
    """The skills in some folders."""
    from laneway.agent.settings import SessionSettings

    return Skills(SessionSettings(skill_dirs=tuple(map(str, folders))))


def reasons(skills: Skills) -> dict[str, str]:
    """Why each file was left out."""
    return {os.path.basename(each.path): each.reason for each in skills.problems}


def take(name: str, key: str = "take") -> Any:
    """A call of `Skill`."""
    return call(SKILL, name=name).with_id(key)


# ---- files ----


def test_skills_are_files_and_folders_with_front_matter(tmp_path: Path) -> None:
    put(tmp_path, "notes", "---\nname: notes\ndescription: |\n  Write\n  notes.\nlicense: MIT\n---\n\n# How\nSo.\n")
    put(tmp_path, "release", GOOD.format(name="release"), nested=True)
    (tmp_path / "release" / "script.sh").write_text("echo")
    (tmp_path / "assets").mkdir()
    (tmp_path / "README.md").write_text("no skill")
    (tmp_path / ".hidden.md").write_text("no skill")
    (tmp_path / "picture.png").write_bytes(b"\x89")
    skills = skills_in(tmp_path)
    assert list(skills.shelf.entries) == ["notes", "release"]
    notes = skills.get("notes")
    assert (notes.description, notes.instructions, notes.allowed) == ("Write notes.", "# How\nSo.", None)
    assert f"[Files that it names are in {tmp_path / 'release'}]" in skills.get("release").text
    assert skills.problems == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "does not begin with front matter"),
        ("# Just text", "does not begin with front matter"),
        ("\n---\nname: x\n---\n", "does not begin with front matter"),
        ("---\nname: x\n", "has no end"),
        ("---\n---\nbody", "has no fields"),
        ("---\n- name\n---\n", "has no fields"),
        ("---\njust text\n---\n", "has no fields"),
        ("---\nname: [\n---\n", "line "),
        ("---\nname: a: b\n---\n", "line 2"),
        ("---\nname: x\nname: y\n---\n", "line 3: 'name' stands there twice"),
        ("---\ndescription: x\n---\n", "it has no name"),
        ("---\nname: ''\n---\n", "it has no name"),
        ("---\nname:\n---\n", "it has no name"),
        ("---\nname: 5\n---\n", "name is text, not 5"),
        ("---\nname: [x]\n---\n", "name is text"),
        ("---\nname: two words\n---\n", "cannot be a name"),
        ("---\nname: ../x\n---\n", "cannot be a name"),
        (f"---\nname: {'x' * 65}\n---\n", "cannot be a name"),
        ("---\nname: None\n---\n", "it ends the skill that is followed"),
        ("---\nname: x\ndescription: 5\n---\n", "description is text, not 5"),
        ("---\nname: x\nallowed-tools:\n---\n", "allowed-tools is a list of tools"),
        ("---\nname: x\nallowed-tools: 5\n---\n", "allowed-tools is a list of tools"),
        ("---\nname: x\nallowed-tools: {a: b}\n---\n", "allowed-tools is a list of tools"),
        ("---\nname: x\nallowed-tools: [1]\n---\n", "allowed-tools is a list of tools"),
        ("---\nname: x\nallowed-tools: bash(git\n---\n", "its bracket is not closed"),
        ("---\nname: x\nallowed-tools: ['']\n---\n", "a rule is 1 to"),
        ("---\nname: x\nallowed-tools: read, (x)\n---\n", "does not begin with the name of a tool"),
        ("---\nname: x\nallowed-tools: read\nallowed_tools: write\n---\n", "are the same"),
        ("---\nname: x\ndisable-model-invocation: 1\n---\n", "is true or false, not 1"),
        ("---\nname: x\ndisable-model-invocation: yes\n---\n", "is true or false, not 'yes'"),
        (f"---\nname: x\nallowed-tools: {' '.join(f't{n}' for n in range(1001))}\n---\n", "1,001 rules"),
        (b"---\nname: x\n---\n\xff", "not UTF-8 (at byte 16)"),
        (b"---\nname: x\n---\n" + b"x" * FILE_BYTES_MAX, "more than 1,048,576 bytes"),
        (b"---\n" + b"#" * (HEAD_MAX + 1) + b"\n---\n", "more than 16,384 characters"),
    ],
)
def test_a_broken_file_is_left_out_with_its_reason(
    tmp_path: Path, text: str | bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "broken", text)
    put(tmp_path, "fine", GOOD.format(name="fine"))
    with caplog.at_level(logging.WARNING, "laneway"):
        skills = skills_in(tmp_path)
    assert list(skills.shelf.entries) == ["fine"]
    assert reason in reasons(skills)["broken.md"]
    assert [record.getMessage() for record in caplog.records] == [
        f"the skill {tmp_path / 'broken.md'} is left out: {reasons(skills)['broken.md']}"
    ]


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    folder = tmp_path / "skills"
    folder.mkdir()
    secret = put(outside, "secret", GOOD.format(name="secret"))
    put(outside, "away", GOOD.format(name="away"), nested=True)
    (folder / "link.md").symlink_to(secret)
    (folder / "away").symlink_to(outside / "away")
    (folder / "lost.md").symlink_to(folder / "nowhere")
    (folder / "loop.md").symlink_to(folder / "loop.md")
    os.mkfifo(folder / "pipe.md")
    put(folder, "inside", GOOD.format(name="inside"))
    (folder / "z.md").symlink_to(folder / "inside.md")
    skills = skills_in(folder)
    assert list(skills.shelf.entries) == ["inside"]
    assert {name: reason.partition(":")[0] for name, reason in reasons(skills).items()} == {
        "link.md": "it is a link that leads out of its folder",
        "SKILL.md": "it is a link that leads out of its folder",
        "lost.md": "it cannot be read",
        "loop.md": "it cannot be read",
        "pipe.md": "it is not a plain file",
        "z.md": f"there is one of the name 'inside' already, in {folder / 'inside.md'}",
    }


def test_a_folder_in_the_place_of_a_file_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "deep" / FILE).mkdir(parents=True)
    assert "not a plain file" in reasons(skills_in(tmp_path))[FILE]


def test_of_two_with_one_name_the_first_counts_whatever_the_case(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    put(first, "x", GOOD.format(name="Deploy"))
    put(second, "y", GOOD.format(name="deploy"))
    skills = skills_in(first, second, first)
    assert [each.path for each in skills.shelf.entries.values()] == [str(first / "x.md")]
    assert list(reasons(skills)) == ["y.md"]


def test_a_mark_of_order_windows_lines_and_nul_do_no_harm(tmp_path: Path) -> None:
    put(tmp_path, "x", b"\xef\xbb\xbf---\r\nname: x\r\n--- \r\na\r\nb\x00\r\n---\r\n")
    assert skills_in(tmp_path).get("x").instructions == "a\nb\u2400\n---"


@pytest.mark.parametrize(
    ("said", "rules"),
    [
        ("read, grep", ("read", "grep")),
        ("read grep  bash(git *)", ("read", "grep", "bash(git *)")),
        ("Bash(git log:*), Bash(echo (a), b),read", ("Bash(git log:*)", "Bash(echo (a), b)", "read")),
        ("[read, 'bash(git *)', read]", ("read", "bash(git *)")),
        ("\n  - read\n  - mcp__x__*", ("read", "mcp__x__*")),
        ("[]", ()),
        ("''", ()),
        ("'*'", ("*",)),
    ],
)
def test_tools_are_a_list_or_a_text(tmp_path: Path, said: str, rules: tuple[str, ...]) -> None:
    put(tmp_path, "x", f"---\nname: x\nallowed-tools: {said}\n---\n")
    put(tmp_path, "y", f"---\nname: y\nallowed_tools: {said}\n---\n")
    skills = skills_in(tmp_path)
    assert (skills.get("x").allowed, skills.get("y").allowed) == (rules, rules)


@pytest.mark.parametrize("field", ["allowed_tool", "Allowed-Tools", "allowd-tools", "tools", "allowedTools"])
def test_a_misspelled_list_of_tools_does_not_allow_all(tmp_path: Path, field: str) -> None:
    put(tmp_path, "x", f"---\nname: x\n{field}: read\n---\n")
    skills = skills_in(tmp_path)
    assert "x" not in skills.shelf.entries
    assert "did you mean 'allowed-tools'?" in reasons(skills)["x.md"]


def test_an_alias_bomb_is_left_out(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    put(tmp_path, "bomb", "\n".join(["---", "name: bomb", *lines, "---"]))
    assert "more than 20,000 values" in reasons(skills_in(tmp_path))["bomb.md"]


def test_more_files_than_the_bound_are_left_out_with_one_problem(tmp_path: Path) -> None:
    def make(page: Any) -> Skill:
        return Skill(name=page.path.rpartition("/")[2])

    first = put(tmp_path, "s", "---\nname: x\n---\n")
    for number in range(FILES_MAX + 2):
        os.link(first, tmp_path / f"s{number:05}.md")
    shelf: Shelf[Skill] = read_folders([str(tmp_path)], make, setting="skill_dirs", what="skill")
    assert len(shelf.entries) == FILES_MAX
    assert [each.reason for each in shelf.problems] == [
        "there are 1,000 already; nothing more is read from this folder"
    ]


@pytest.mark.parametrize("what", ["nothing", "file"])
async def test_a_folder_that_is_not_there_is_a_config_error(tmp_path: Path, what: str) -> None:
    (tmp_path / "file").write_text("x")
    agent = agent_of(ScriptedModel([]))
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        agent.session(str(tmp_path), skill_dirs=[tmp_path / what])
    assert caught.value.setting == "skill_dirs"
    assert agent.sessions() == []
    await agent.close()


# ---- what the model is told ----


def test_a_listing_stays_within_its_bound_and_shortens_all_alike() -> None:
    assert listing([("a", "x"), ("b", "")], most=100) == "- a: x\n- b"
    long = listing([(f"name{n:02}", "word " * 200) for n in range(10)], most=1_000)
    assert len(long) <= 1_000
    assert {len(line) for line in long.split("\n")} == {74}
    names = listing([(f"name{n:04}", "word " * 200) for n in range(1_000)], most=15_000)
    assert names.split("\n")[-1] == "- name0999"
    some = listing([(f"name{n:04}", "word " * 200) for n in range(1_000)], most=500)
    assert len(some) <= 520
    assert some.endswith("- … and 955 more")


async def test_without_skills_there_is_no_tool_and_no_text(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    model = ScriptedModel([[say("a")], [say("b")]])
    async with agent_of(model, system="Be kind.") as agent:
        await session_of(agent).send("x")
        await session_of(agent, skill_dirs=[tmp_path / "empty"]).send("x")
    assert [(request.system, request.tools) for request in model.requests] == [("Be kind.", ())] * 2


async def test_the_model_is_told_names_and_what_they_are_for(tmp_path: Path) -> None:
    put(tmp_path, "notes", GOOD.format(name="notes"))
    put(tmp_path, "secret", "---\nname: secret\ndisable-model-invocation: true\n---\n")
    model = ScriptedModel([[take("secret")], [take("notse")], [take("notes")], [say("done")]])
    async with agent_of(model, system="Be kind.") as agent:
        session = session_of(agent, skill_dirs=[tmp_path])
        await session.send("x")
        assert [(each.name, each.hidden) for each in session.skills_available()] == [("notes", False), ("secret", True)]
        assert session.skill_problems() == []
    system = model.requests[0].system
    assert system.startswith("Be kind.\n\nSkills are instructions")
    assert system.endswith("\n- notes: About notes.")
    spec = model.requests[0].tools[-1]
    assert (spec.name, spec.effect, spec.lane, spec.local) == (SKILL, "read", "execute", True)
    assert list(spec.parameters["properties"]) == ["name"]
    told = [each.output for each in results(model.requests[-1])]
    assert told == [
        "[Not taken up: there is no skill 'secret'; there are: notes]",
        "[Not taken up: there is no skill 'notse'; did you mean 'notes'?]",
        "[Skill: notes]\nDo notes.",
    ]


async def test_a_tool_of_ones_own_of_that_name_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "notes", GOOD.format(name="notes"))
    mine = FunctionTool(lambda: "mine", name=SKILL, description="mine")
    async with agent_of(ScriptedModel([[call(SKILL)], [say("done")]]), [mine]) as agent:
        assert (await session_of(agent).send("x")).text == "done"
        with pytest.raises(ConfigError, match="two tools 'Skill'"):
            session_of(agent, skill_dirs=[tmp_path])


# ---- the gate ----


def denials(request: ModelRequest) -> dict[str, str]:
    """What was refused, and why."""
    return {each.call_id: each.output for each in results(request) if each.status.value == "denied"}


@pytest.mark.parametrize("queue", [False, True])
async def test_while_a_skill_is_followed_other_tools_are_refused(tmp_path: Path, queue: bool) -> None:
    narrow(tmp_path, "look", "look")
    bench = Bench()
    script = [
        [one("act", "before")],
        [take("look"), one("look", "same-answer"), one("act", "refused-1")],
        [one("look", "fine"), one("act", "refused-2")],
        [take("none", "leave"), one("act", "after")],
        [take("look", "again"), take("", "away"), one("act", "after-2")],
        [say("done")],
    ]
    model = ScriptedModel(script)
    async with opened(model, bench, queue=queue, skill_dirs=[tmp_path]) as session:
        await session.send("x")
    assert bench.began == ["before", "same-answer", "fine", "after", "after-2"]
    assert denials(model.requests[-1]) == dict.fromkeys(
        ("refused-1", "refused-2"),
        "[Denied: the skill 'look' allows only look; Skill with the name none ends it]",
    )


async def test_a_call_before_the_skill_in_the_same_answer_is_not_held_to_it(tmp_path: Path) -> None:
    narrow(tmp_path, "look", "look")
    bench = Bench()
    model = ScriptedModel([[one("act", "first"), take("look"), one("act", "second")], [say("done")]])
    async with opened(model, bench, queue=True, skill_dirs=[tmp_path]) as session:
        await session.send("x")
    assert bench.began == ["first"]
    assert list(denials(model.requests[-1])) == ["second"]


async def test_a_skill_ends_with_its_run(tmp_path: Path) -> None:
    narrow(tmp_path, "look", "look")
    bench = Bench()
    model = ScriptedModel([[take("look")], [say("one")], [one("act", "next-run")], [say("two")]])
    async with opened(model, bench, skill_dirs=[tmp_path]) as session:
        await session.send("x")
        await session.send("y")
    assert bench.began == ["next-run"]


async def test_a_skill_without_tools_refuses_nothing_and_one_with_none_everything(tmp_path: Path) -> None:
    put(tmp_path, "free", GOOD.format(name="free"))
    narrow(tmp_path, "closed", "[]")
    bench = Bench()
    model = ScriptedModel(
        [[take("closed")], [one("look", "a")], [take("free", "take-2")], [one("act", "b")], [say("done")]]
    )
    async with opened(model, bench, skill_dirs=[tmp_path]) as session:
        await session.send("x")
    assert bench.began == ["b"]
    assert denials(model.requests[-1])["a"].startswith("[Denied: the skill 'closed' allows only no tools;")


async def test_a_skill_that_could_not_be_taken_up_changes_nothing(tmp_path: Path) -> None:
    narrow(tmp_path, "look", "look")
    bench = Bench()
    model = ScriptedModel(
        [[take("look")], [take("nosuch", "wrong"), call(SKILL).with_id("empty")], [one("act", "a")], [say("done")]]
    )
    async with opened(model, bench, skill_dirs=[tmp_path]) as session:
        await session.send("x")
    assert bench.began == []
    assert [status for _, status in statuses(model.requests[-1])] == ["ok", "error", "error", "denied"]


async def test_rules_are_those_of_the_permissions(tmp_path: Path) -> None:
    narrow(tmp_path, "git", "Bash(git *), read(docs/**), nosuchtool")
    ran: list[Mapping[str, str]] = []
    tools = [
        FunctionTool(lambda command: ran.append({"bash": command}), name="bash", description="b"),
        FunctionTool(lambda path: ran.append({"read": path}), name="read", description="r", effect="read"),
    ]
    calls = [
        call("bash", command="git status"),
        call("bash", command="git status && rm -r x"),
        call("bash", command="git $(rm x)"),
        call("read", path="docs/a.md"),
        call("read", path="docs/../secret.md"),
    ]
    model = ScriptedModel([[take("git")], calls, [say("done")]])
    async with opened(model, tools, skill_dirs=[tmp_path]) as session:
        await session.send("x")
    assert ran == [{"bash": "git status"}, {"read": "docs/a.md"}]


async def test_a_skill_never_allows_what_the_permissions_forbid(tmp_path: Path) -> None:
    narrow(tmp_path, "act", "act")
    bench = Bench()
    model = ScriptedModel([[take("act")], [one("act", "a")], [say("done")]])
    policy = PermissionPolicy(allow=["Skill"], deny=["act"])
    async with opened(model, bench, skill_dirs=[tmp_path], permission_policy=policy) as session:
        await session.send("x")
    assert bench.began == []
    assert "the rule 'act' forbids" in denials(model.requests[-1])["a"]


async def test_permissions_decide_about_the_skill_itself(tmp_path: Path) -> None:
    narrow(tmp_path, "look", "look")
    model = ScriptedModel([[take("look")], [say("done")]])
    policy = PermissionPolicy(allow=["*"], deny=['Skill(*"look"*)'])
    async with opened(model, Bench(), skill_dirs=[tmp_path], permission_policy=policy) as session:
        await session.send("x")
    assert [status for _, status in statuses(model.requests[-1])] == ["denied"]


async def test_a_hook_that_names_another_skill_is_believed(tmp_path: Path) -> None:
    """What counts is what the tool has answered, not what the model wanted."""
    narrow(tmp_path, "look", "look")
    narrow(tmp_path, "act", "act")
    bench = Bench()
    model = ScriptedModel([[take("act")], [one("act", "a"), one("look", "b")], [say("done")]])
    async with opened(model, bench, skill_dirs=[tmp_path]) as session:
        changed = {"action": "continue", "args": {"name": "look"}}
        session.register_hook("h", "pre_tool_use", {"tool": SKILL}, None, lambda _: changed)
        await session.send("x")
    assert bench.began == ["b"]


@pytest.mark.parametrize("lanes", ["query", "unordered"])
async def test_a_call_beside_the_skill_does_not_slip_through(tmp_path: Path, lanes: str) -> None:
    """A configuration may take the barrier away; then what comes after it is refused, not let through."""
    narrow(tmp_path, "look", "look")
    bench = Bench()
    config = SessionQueueConfig()
    options: dict[str, Any] = {"tool_lanes": {SKILL: "query", "act": "query"}}
    if lanes == "unordered":
        config.lane_handlers = {"execute": LaneHandlerConfig("hybrid", ordered=False)}
        options = {}
    model = ScriptedModel([[take("look"), one("act", "beside")], [say("done")]])
    async with opened(model, bench, queue=config, skill_dirs=[tmp_path], **options) as session:
        await session.send("x")
    assert bench.began == []
    assert list(denials(model.requests[-1])) == ["beside"]


async def test_a_skill_is_taken_up_here_whoever_runs_the_calls_of_its_lane(tmp_path: Path) -> None:
    narrow(tmp_path, "look", "look")
    config = SessionQueueConfig(lane_handlers={"execute": LaneHandlerConfig("external", ordered=False)})
    model = ScriptedModel([[take("look"), one("act", "beside")], [say("done")]])
    async with opened(model, Bench(), queue=config, skill_dirs=[tmp_path]) as session:
        await session.send("x")
        assert await session.pending_external_tasks() == []
    assert statuses(model.requests[-1]) == [("take", "ok"), ("beside", "denied")]


async def test_long_instructions_are_cut_and_the_skill_is_followed_all_the_same(tmp_path: Path) -> None:
    put(tmp_path, "long", f"---\nname: long\nallowed-tools: look\n---\n{'word ' * 2_000}")
    bench = Bench()
    model = ScriptedModel([[take("long")], [one("act", "a")], [say("done")]])
    async with opened(model, bench, skill_dirs=[tmp_path], output_max=50) as session:
        await session.send("x")
    assert bench.began == []
    assert results(model.requests[-1])[0].output.startswith("[Skill: long]\n")
    assert len(results(model.requests[-1])[0].output) < 300


async def test_the_newest_of_many_rounds_counts(tmp_path: Path) -> None:
    narrow(tmp_path, "look", "look")
    narrow(tmp_path, "act", "act")
    bench = Bench()
    script: list[Any] = []
    for number in range(10):
        script += [[take("look" if number % 2 else "act", f"take{number}")], [one("act", f"a{number}")]]
        script += [[one("look", f"l{number}")]]
    model = ScriptedModel([*script, [say("done")]])
    async with opened(model, bench, skill_dirs=[tmp_path]) as session:
        await session.send("x")
    assert bench.began == [f"{'l' if number % 2 else 'a'}{number}" for number in range(10)]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_remembered_of_older_rounds_changes_no_answer(tmp_path: Path, seed: int) -> None:
    """Whoever asks now and then is told the same as somebody who reads all rounds for the first time."""
    narrow(tmp_path, "look", "look")
    narrow(tmp_path, "act", "act")
    draw = random.Random(seed)
    machine = TurnMachine("r", limits=Limits(max_tool_rounds=1_000), may_run_beside=lambda _: False)
    run: Any = SimpleNamespace(id="r", origin="r", machine=machine)
    skills = skills_in(tmp_path)
    newest: str | None = None
    outputs = {"look": "[Skill: look]\nDo it.", "act": "[Skill: act]", None: "[Skill ended]"}
    for _ in range(30):
        calls = tuple(ToolCall(id=f"c{n}", name=draw.choice(["Skill", "look"])) for n in range(draw.randint(1, 3)))
        round_ = machine.answered(Answer(calls=calls))
        for each in calls:
            name, status = draw.choice(list(outputs)), draw.choice([ResultStatus.OK, ResultStatus.ERROR])
            machine.result(ToolResult(call_id=each.id, name=each.name, output=outputs[name], status=status))
            newest = name if each.name == SKILL and status is ResultStatus.OK else newest
            if draw.random() < 0.5:
                found, fresh = skills.active(run), skills_in(tmp_path).active(run)
                assert found == fresh
                assert (found.name if found else None) == newest
        machine.close(round_)


# ---- the host ----


async def test_the_host_follows_no_skill_and_may_read_one(tmp_path: Path) -> None:
    narrow(tmp_path, "look", "look")
    bench = Bench("held")
    model = ScriptedModel([[take("look")], [one("look", "held")], [say("done")]])
    async with opened(model, bench, skill_dirs=[tmp_path]) as session:
        task = sending(session, "x")
        await bench.begun("held").wait()
        assert (await session.tool("act", {"key": "mine"})).text == "result of mine"
        assert (await session.tool(SKILL, {"name": "look"})).text.startswith("[Skill: look]\n")
        bench.let_go()
        await task
    assert bench.ended == ["mine", "held"]


async def test_the_host_may_hold_a_session_to_a_skill_that_the_model_cannot_leave(tmp_path: Path) -> None:
    put(tmp_path, "hush", "---\nname: hush\nallowed-tools: look\ndisable-model-invocation: true\n---\nBe quiet.\n")
    narrow(tmp_path, "act", "act")
    bench = Bench()
    model = ScriptedModel(
        [
            [one("act", "a"), take("none", "n"), one("act", "b"), take("act", "t"), one("act", "c"), one("look", "d")],
            [say("done")],
            [one("act", "e")],
            [say("done")],
        ]
    )
    async with opened(model, bench, skill_dirs=[tmp_path]) as session:
        with pytest.raises(UsageError, match="did you mean 'hush'"):
            session.use_skill("hus")
        session.use_skill("hush")
        await session.send("x")
        assert denials(model.requests[1]) == {
            **dict.fromkeys("abc", "[Denied: the skill 'hush' allows only look]"),
            "d": "[Denied: the skill 'act' allows only act; Skill with the name none ends it]",
        }
        session.use_skill(None)
        await session.send("y")
    assert bench.began == ["e"]
    assert "Follow this skill in all that you do here.\n[Skill: hush]" in model.requests[0].system
    assert "Be quiet." not in model.requests[-1].system


async def test_what_is_inherited_holds_for_every_call_and_cannot_be_left(tmp_path: Path) -> None:
    narrow(tmp_path, "act", "act, put")
    bench = Bench()
    model = ScriptedModel([[take("act"), one("act", "a"), one("put", "b"), one("look", "c")], [say("done")]])
    async with opened(model, bench, skill_dirs=[tmp_path]) as session:
        session.skills.inherit(Skill(name="parent", allowed=("act", "look")), None, Skill(name="free"))
        await session.send("x")
        with pytest.raises(Exception, match="the skill 'parent' allows only act, look"):
            await session.tool("put", {"key": "x"})
    assert bench.began == ["a"]
    assert list(denials(model.requests[-1])) == ["b", "c"]


async def test_a_sub_agent_gets_all_that_its_parent_is_held_to(tmp_path: Path) -> None:
    narrow(tmp_path, "look", "look")
    bench = Bench("held")
    model = ScriptedModel([[take("look")], [one("look", "held")], [say("done")]])
    async with opened(model, bench, skill_dirs=[tmp_path]) as session:
        session.skills.inherit(parent := Skill(name="parent", allowed=("*",)))
        assert session.skills.followed(None) == (parent,)
        task = sending(session, "x")
        await bench.begun("held").wait()
        run = _run_of(session)
        look = session.skills.get("look")
        assert session.skills.active(run) is look
        assert session.skills.followed(run) == (parent, look)
        child = Skills(session.settings, shelf=session.skills.shelf)
        assert child.shelf is session.skills.shelf
        bench.let_go()
        await task


def _run_of(session: AsyncSession) -> Any:
    run = session._run  # noqa: SLF001 - what the session itself hands to its skills
    assert run is not None
    return run


# ---- after a crash ----


async def held_run(disk: MemoryDisk, folder: Path, *before: Any) -> str:
    """A run that has taken up a skill, or several, and was ended while a call ran: its id."""
    bench = Bench("held")
    model = ScriptedModel([*before, [one("look", "held")]])
    async with agent_of(model, bench) as agent:
        session = session_of(agent, session_id="s", session_store=MemoryStore(disk), skill_dirs=[folder])
        task = sending(session, "x")
        await bench.begun("held").wait()
        run_id: str = _run_of(session).id
        await session.cancel()
        with pytest.raises(RunCancelledError):
            await task
        await passing()
    return run_id


async def resumed(disk: MemoryDisk, folder: Path | None, run_id: str, *script: Any) -> tuple[Bench, ModelRequest]:
    """What another process does with that run."""
    bench = Bench()
    model = ScriptedModel([*script, [say("done")]])
    async with agent_of(model, bench) as agent:
        dirs = [] if folder is None else [folder]
        session = session_of(agent, session_id="s", session_store=MemoryStore(disk), skill_dirs=dirs)
        await session.resume_run(run_id)
    return bench, model.requests[-1]


async def test_a_resumed_run_is_held_to_the_same_skill(tmp_path: Path) -> None:
    narrow(tmp_path, "look", "look")
    narrow(tmp_path, "act", "act")
    disk = MemoryDisk()
    run_id = await held_run(disk, tmp_path, [take("act", "t1")], [take("look", "t2")])
    bench, last = await resumed(disk, tmp_path, run_id, [one("act", "a"), one("look", "b")], [one("act", "c")])
    assert bench.began == ["b"]
    assert list(denials(last)) == ["a", "c"]


async def test_a_round_that_is_taken_over_in_its_middle_is_held_to_its_skill(tmp_path: Path) -> None:
    narrow(tmp_path, "look", "look")
    disk = MemoryDisk()
    bench = Bench("held")
    calls = [take("look"), one("look", "held"), one("act", "refused"), take("none", "leave"), one("act", "allowed")]
    async with agent_of(ScriptedModel([calls]), bench) as agent:
        session = session_of(agent, session_id="s", session_store=MemoryStore(disk), skill_dirs=[tmp_path])
        sending(session, "x")
        await bench.begun("held").wait()
        await session.close()
    after = Bench()
    model = ScriptedModel([[say("done")]])
    async with agent_of(model, after) as agent:
        session = session_of(agent, session_id="s", session_store=MemoryStore(disk), skill_dirs=[tmp_path])
        await session.wait_idle()
    assert after.began == ["held", "allowed"]
    assert list(denials(model.requests[-1])) == ["refused"]


async def test_a_skill_that_was_left_does_not_come_back(tmp_path: Path) -> None:
    narrow(tmp_path, "look", "look")
    disk = MemoryDisk()
    run_id = await held_run(disk, tmp_path, [take("look", "t1")], [take("none", "t2")])
    bench, _ = await resumed(disk, tmp_path, run_id, [one("act", "a")])
    assert bench.began == ["a"]


async def test_a_skill_whose_file_is_gone_allows_nothing_until_it_is_left(tmp_path: Path) -> None:
    gone = narrow(tmp_path, "look", "look")
    narrow(tmp_path, "other", "act")
    disk = MemoryDisk()
    run_id = await held_run(disk, tmp_path, [take("look")])
    gone.unlink()
    bench, last = await resumed(disk, tmp_path, run_id, [one("look", "a")], [take("none"), one("act", "b")])
    assert bench.began == ["b"]
    assert "the skill 'look' is being followed, and its file cannot be read any more; Skill with" in denials(last)["a"]


async def test_a_session_without_skills_is_held_to_none(tmp_path: Path) -> None:
    narrow(tmp_path, "look", "look")
    disk = MemoryDisk()
    run_id = await held_run(disk, tmp_path, [take("look")])
    bench, _ = await resumed(disk, None, run_id, [one("act", "a")])
    assert bench.began == ["a"]


async def test_the_next_run_of_a_session_is_not_held_to_the_skill_of_a_cut_one(tmp_path: Path) -> None:
    narrow(tmp_path, "look", "look")
    disk = MemoryDisk()
    await held_run(disk, tmp_path, [take("look")])
    bench = Bench()
    async with agent_of(ScriptedModel([[one("act", "a")], [say("done")]]), bench) as agent:
        session = session_of(agent, session_id="s", session_store=MemoryStore(disk), skill_dirs=[tmp_path])
        await session.send("y")
    assert bench.began == ["a"]


# ---- hooks ----


async def test_hooks_are_told_what_is_taken_up_and_left(tmp_path: Path) -> None:
    narrow(tmp_path, "look", "look")
    put(tmp_path, "free", GOOD.format(name="free"))
    told: list[tuple[str, str, Any]] = []

    async def hear(event: Mapping[str, Any]) -> None:
        payload = event["payload"]
        told.append((event["event_type"], payload["skill"], payload["allowed_tools"]))

    script = [[take("look", "1")], [take("look", "2")], [take("free", "3")], [take("", "4")], [take("", "5")]]
    async with opened(ScriptedModel([*script, [say("done")]]), Bench(), skill_dirs=[tmp_path]) as session:
        session.register_hook("load", "skill_load", None, None, hear)
        session.register_hook("unload", "skill_unload", None, None, hear)
        await session.send("x")
        await session.tool(SKILL, {"name": "free"})
    assert told == [
        ("skill_load", "look", ["look"]),
        ("skill_unload", "look", ["look"]),
        ("skill_load", "free", None),
        ("skill_unload", "free", None),
    ]


@pytest.mark.parametrize("end", ["answer", "cancel"])
async def test_the_end_of_a_run_leaves_its_skill(tmp_path: Path, end: str) -> None:
    put(tmp_path, "free", GOOD.format(name="free"))
    bench = Bench("held")
    told: list[Mapping[str, Any]] = []

    async def hear(event: Mapping[str, Any]) -> None:
        told.append(event["payload"])

    model = ScriptedModel([[take("free")], [one("look", "held")], [say("done")]])
    async with opened(model, bench, skill_dirs=[tmp_path]) as session:
        session.register_hook("unload", "skill_unload", {"skill": "free"}, None, hear)
        task = sending(session, "x")
        await bench.begun("held").wait()
        run = _run_of(session)
        assert told == []
        if end == "answer":
            bench.let_go()
            await task
        else:
            await session.cancel()
        await session.wait_idle()
        await passing()
        assert [(each["skill"], each["run_id"]) for each in told] == [("free", run.id)]
