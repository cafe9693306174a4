"""The files beside a SKILL.md: who may read them, that nobody changes them, and which folders count."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laneway.agent import AsyncAgent
from laneway.agent.settings import SessionSettings
from laneway.agent.skills import FILE, Skills
from laneway.dialogue import Results, ToolContext, ToolOutput
from laneway.kernel.permissions import hides
from laneway.models import ScriptedModel, call, say
from laneway.options import PermissionPolicy
from laneway.ports import Tool
from laneway.tools import workspace as tools

HEAD = "---\nname: {name}\ndescription: About {name}.\n{more}---\nSee style.md.\n"


def put(folder: Path, name: str = "tidy", more: str = "") -> Path:
    """A skill that is a folder, with a file beside it."""
    home = folder / name
    (home / "inner").mkdir(parents=True)
    (home / FILE).write_text(HEAD.format(name=name, more=more))
    (home / "style.md").write_text("Two blanks.\n")
    (home / "inner" / "deep.txt").write_text("deep blanks\n")
    return home


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a workspace, skills, and something that is nobody's business."""
    real = Path(os.path.realpath(tmp_path))
    (real / "work").mkdir()
    (real / "secret.txt").write_text("secret")
    put(real / "skills")
    return real


def skills_in(*folders: Path) -> Skills:
    return Skills(SessionSettings(skill_dirs=tuple(map(str, folders))))


def context_of(place: Path, skills: Skills, policy: PermissionPolicy | None = None) -> ToolContext:
    """As a session has it."""
    work = str(place / "work")
    return ToolContext(workspace=work, extra={"readable": skills.readable, "hides": hides(policy, work)})


@pytest.fixture
def context(place: Path) -> ToolContext:
    return context_of(place, skills_in(place / "skills"))


async def use(item: Tool, context: ToolContext, **arguments: Any) -> ToolOutput:
    return await item.run(item.check(json.dumps(arguments)), context)


async def refused(item: Tool, context: ToolContext, **arguments: Any) -> str:
    output = await use(item, context, **arguments)
    assert output.is_error, output.text
    return output.text


# ---- reading ----


async def test_the_files_of_a_skill_can_be_read_listed_and_searched(place: Path, context: ToolContext) -> None:
    home = str(place / "skills" / "tidy")
    assert (await use(tools.read, context, path=f"{home}/style.md")).text == "Two blanks.\n"
    assert (await use(tools.read, context, path=f"{home}/inner/../style.md")).text == "Two blanks.\n"
    assert "style.md" in (await use(tools.ls, context, path=home)).text
    # What is found is called so that it can be read.
    assert (await use(tools.glob, context, pattern="**/*.txt", path=home)).text == f"{home}/inner/deep.txt"
    assert (await use(tools.grep, context, pattern="deep", path=home)).text == f"{home}/inner/deep.txt:1: deep blanks"
    assert "does not exist" in await refused(tools.read, context, path=f"{home}/no.md")


async def test_nothing_in_the_folder_of_a_skill_is_changed(place: Path, context: ToolContext) -> None:
    home = place / "skills" / "tidy"
    path = str(home / "style.md")
    diff = "@@ -1 +1 @@\n-Two blanks.\n+Tabs.\n"
    said = [
        await refused(tools.write, context, path=path, content="x"),
        await refused(tools.write, context, path=str(home / "new" / "x.md"), content="x"),
        await refused(tools.edit, context, path=path, old="Two", new="Four"),
        await refused(tools.patch, context, path=path, diff=diff),
    ]
    assert all("it can be read, but not changed" in each for each in said)
    assert (home / "style.md").read_text() == "Two blanks.\n"
    assert not (home / "new").exists()


@pytest.mark.parametrize("where", ["skills", "skills/other", "skills/tidy2/x.md", "secret.txt", "skills/tidy/../x.md"])
async def test_only_the_folder_of_the_skill_itself_can_be_read(place: Path, context: ToolContext, where: str) -> None:
    put(place / "skills", "tidy2", "bad: [\n")
    (place / "skills" / "tidy2" / "x.md").write_text("secret")
    (place / "skills" / "x.md").write_text("secret")
    for item in (tools.read, tools.ls):
        assert "outside of the workspace" in await refused(item, context, path=f"{place}/{where}")


async def test_a_link_in_the_folder_of_a_skill_does_not_lead_out_of_it(place: Path, context: ToolContext) -> None:
    home = place / "skills" / "tidy"
    (home / "file").symlink_to("../../secret.txt")
    (home / "folder").symlink_to("../..")
    (home / "own").symlink_to("inner/deep.txt")
    for path in ("file", "folder/secret.txt"):
        assert "is a link out of" in await refused(tools.read, context, path=str(home / path))
        assert "is a link out of" in await refused(tools.grep, context, pattern="e", path=str(home / path))
    found = (await use(tools.grep, context, pattern="secret|deep", path=str(home))).text
    assert found == f"{home}/inner/deep.txt:1: deep blanks"
    assert (await use(tools.read, context, path=str(home / "own"))).text == "deep blanks\n"


async def test_a_link_or_a_relative_path_of_the_workspace_is_no_way_to_a_skill(
    place: Path, context: ToolContext
) -> None:
    (place / "work" / "way").symlink_to("../skills/tidy")
    for path in ("way/style.md", f"{place}/work/way/style.md", "../skills/tidy/style.md"):
        assert "outside of the workspace" in await refused(tools.read, context, path=path)


@pytest.mark.parametrize("path", ["/\0", "/" + "x" * 5000])
async def test_a_path_that_is_none_is_refused_as_ever(context: ToolContext, path: str) -> None:
    assert await refused(tools.read, context, path=path)


# ---- permissions ----


@pytest.mark.parametrize("rule", ["read(**/style.md)", "read(style.md)", "*(**/tidy/**)"])
async def test_what_the_permissions_forbid_is_hidden_in_the_folder_of_a_skill_too(place: Path, rule: str) -> None:
    context = context_of(place, skills_in(place / "skills"), PermissionPolicy(deny=(rule,)))
    home = str(place / "skills" / "tidy")
    assert "forbid" in await refused(tools.read, context, path=f"{home}/style.md")
    assert "style.md" not in (await use(tools.glob, context, pattern="**/style.md", path=home)).text.replace("**", "")
    assert "blanks." not in (await use(tools.grep, context, pattern="Two", path=home)).text


async def test_a_session_reads_what_its_skill_names_and_a_rule_still_decides(place: Path) -> None:
    path = str(place / "skills" / "tidy" / "style.md")
    for rule, status in (("read", "ok"), (f"read({place}/skills/**)", "ok"), ("read(src/**)", "denied")):
        model = ScriptedModel([[call("Skill", name="tidy")], [call("read", path=path)], [say("done")]])
        policy = PermissionPolicy(allow=["Skill", rule], default_decision="deny")
        async with AsyncAgent(model, skill_dirs=[place / "skills"], permission_policy=policy) as agent:
            session = agent.session(place / "work")
            await session.send("tidy up")
            said = [each for each in await session.history() if isinstance(each, Results)]
            taken, read = (result for each in said for result in each.results)
        assert f"[Files that it names are in {place}/skills/tidy]" in taken.output
        assert read.status.value == status, read.output


# ---- which folders ----


def test_a_skill_in_one_file_makes_nothing_readable(place: Path) -> None:
    (place / "skills" / "flat.md").write_text(HEAD.format(name="flat", more=""))
    assert skills_in(place / "skills").readable() == [str(place / "skills" / "tidy")]


def test_a_hidden_skill_is_readable_while_the_session_is_held_to_it(place: Path) -> None:
    put(place / "more", "quiet", "disable-model-invocation: true\n")
    skills = skills_in(place / "more")
    assert skills.readable() == []
    skills.pin(skills.get("quiet"))
    assert skills.readable() == [str(place / "more" / "quiet")]
    skills.pin(None)
    assert skills.readable() == []


def test_a_folder_that_is_a_link_to_elsewhere_is_not_readable(place: Path) -> None:
    away = place / "away"
    away.mkdir()
    (place / "skills" / "flat.md").write_text(HEAD.format(name="flat", more=""))
    (away / FILE).symlink_to(place / "skills" / "flat.md")  # the file leads back in, what is beside it does not
    (place / "skills" / "trap").symlink_to(away)
    skills = skills_in(place / "skills")
    assert str(place / "skills" / "trap") not in skills.readable()


async def test_a_skill_inside_the_workspace_is_a_part_of_the_workspace(place: Path) -> None:
    home = put(place / "work" / "skills", "own")
    context = context_of(place, skills_in(place / "work" / "skills"))
    assert (await use(tools.read, context, path=str(home / "style.md"))).text == "Two blanks.\n"
    assert not (await use(tools.write, context, path=str(home / "style.md"), content="x")).is_error


async def test_without_skills_nothing_outside_can_be_read(place: Path, context: ToolContext) -> None:
    bare = replace(context, extra={})
    text = await refused(tools.read, bare, path=str(place / "skills" / "tidy" / "style.md"))
    assert "outside of the workspace" in text


# ---- a folder of skills that is one skill ----


def test_files_beside_the_skill_file_of_a_named_folder_are_no_broken_skills(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "laneway"):
        skills = skills_in(place / "skills" / "tidy")
    assert (list(skills.shelf.entries), skills.problems, caplog.records) == (["tidy"], (), [])
    assert skills.readable() == [str(place / "skills" / "tidy")]


def test_what_wants_to_be_a_skill_beside_it_is_one_and_what_is_broken_is_told(place: Path) -> None:
    home = place / "skills" / "tidy"
    (home / "more.md").write_text(HEAD.format(name="more", more=""))
    (home / "bad.md").write_text("---\nname: [\n---\n")
    skills = skills_in(home)
    assert list(skills.shelf.entries) == ["tidy", "more"]
    assert [os.path.basename(each.path) for each in skills.problems] == ["bad.md"]


def test_a_skill_file_without_front_matter_is_told_wherever_it_is(place: Path) -> None:
    home = place / "skills" / "tidy"
    (home / FILE).write_text("no front matter")
    assert [os.path.basename(each.path) for each in skills_in(home).problems] == [FILE]
