"""What operators see of external tasks and workers on the command line, and what they say of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from laneway.cli.task import ID_LENGTH
from laneway.errors import LeaseLostError
from laneway.external import ExternalTaskResult, Progress
from laneway.models import ScriptedModel, call, say
from laneway.runtime.task_hall import Guest
from tests.cli_stage import CliStage, cli_stage
from tests.gateway_stage import spec_of
from tests.routes_stage import EXTERNAL, ended, post, until

HEARD = r"(now|\S+ s ago)"  # the latter on a slow machine
ABOUT = {"instance": "i-1", "concurrency": 4, "host": "box", "version": "1"}


@contextlib.asynccontextmanager
async def waiting(folder: Path) -> AsyncIterator[tuple[CliStage, str, str]]:
    """A server with a task that waits, its id, and the message that waits for it."""
    script = [[call("read", path="a.txt")], [say("done")]]
    async with cli_stage(folder, script=script, text=EXTERNAL) as cli:
        sent = await post(cli.server, "s1", "go")
        desk = cli.server.gateway.default.host.desk
        await until(desk.tasks)
        yield cli, desk.tasks()[0].task_id, sent["message_id"]


@contextlib.asynccontextmanager
async def two_workspaces(folder: Path) -> AsyncIterator[CliStage]:
    """A server with two workspaces, each with a task that waits."""
    specs = []
    for name in ("shop", "lab"):
        (folder / name).mkdir()
        model = ScriptedModel([[call("read", path="a.txt")], [say("done")]])
        specs.append(spec_of(folder / name, name=name, text=EXTERNAL, model=model))
    async with cli_stage(folder, specs=specs) as cli:
        for each in specs:
            sent = await cli.server.client.post(
                "/v1/sessions/s1/messages", json={"text": "go"}, params={"workspace": each.name}
            )
            assert sent.status_code == 202
            await until(cli.server.gateway.workspaces[each.name].host.desk.tasks)
        yield cli


async def ids_in(cli: CliStage, *words: str) -> list[tuple[str, str]]:
    """The tasks that are listed, and where they are."""
    return [(each["task_id"], each["workspace"]) for each in (await cli.json("task", "ls", *words))["items"]]


async def result_in(cli: CliStage, message_id: str) -> str:
    """What the model was told of the call."""
    await ended(cli.server, message_id)
    model = cli.server.gateway.default.spec.model
    assert isinstance(model, ScriptedModel)
    return str(model.requests[-1])


async def test_a_task_that_waits_says_why_and_one_that_runs_how_far_it_is(tmp_path: Path) -> None:
    async with waiting(tmp_path) as (cli, task, _):
        shown = (await cli.run("task", "ls")).stdout
        assert "no worker has asked for tasks lately" in shown
        assert "no worker has asked for tasks lately" in (await cli.run("task", "show", task)).stdout
        hall = cli.server.gateway.hall
        (lease,) = await hall.claim("w1", about=ABOUT)
        await hall.start(task, lease.token)
        await hall.heartbeat(task, lease.token, Progress("half of it", 50))
        for words in (("task", "ls"), ("task", "show", task)):
            shown = (await cli.run(*words)).stdout
            assert "50 % half of it" in shown
            assert "w1" in shown
        for words, count in (
            (("--lane", "query"), 1),
            (("--lane", "execute"), 0),
            (("--worker", "w1"), 1),
            (("--tool", "bash"), 0),
            (("--session", "s1"), 1),
            (("--run", lease.task["run_id"]), 1),
            (("--state", "started"), 1),
            (("--state", "completed"), 0),
        ):
            assert len((await cli.json("task", "ls", *words))["items"]) == count, words
        assert (await cli.run("task", "ls", "--state", "odd")).exit_code == 2


async def test_workers_are_listed_with_their_health(tmp_path: Path) -> None:
    async with waiting(tmp_path) as (cli, task, _):
        assert "No worker has asked for tasks lately" in (await cli.run("worker", "ls")).stdout
        hall = cli.server.gateway.hall
        await hall.claim("w1", about=ABOUT, labels=["gpu"], lanes=["query"], guest=Guest("fleet"))
        idle = asyncio.ensure_future(hall.claim("w2", wait_ms=60_000, commands=["bash"]))
        await asyncio.sleep(0)
        items = (await cli.json("worker", "ls"))["items"]
        assert [(each["name"], each["health"], each["tasks"]) for each in items] == [
            ("w1", "working", [task]),
            ("w2", "waiting", []),
        ]
        line = next(each for each in (await cli.run("worker", "ls")).stdout.splitlines() if each.startswith("w1"))
        assert re.fullmatch(rf"w1 working {HEARD} 1/4 query all gpu box", " ".join(line.split()))
        assert [each.split()[-1] for each in (await cli.run("worker", "ls")).stdout.splitlines() if "w2" in each] == [
            "bash"
        ]
        assert "2 workers: 1 working, 1 waiting" in (await cli.run("status")).stdout
        idle.cancel()
        await asyncio.gather(idle, return_exceptions=True)


async def test_a_worker_that_takes_a_part_of_the_tasks_says_which(tmp_path: Path) -> None:
    async with cli_stage(tmp_path, text=EXTERNAL) as cli:
        hall = cli.server.gateway.hall
        await hall.claim("w1")
        assert (await cli.run("worker", "ls")).stdout.splitlines()[0].split() == [
            "worker", "health", "heard", "tasks", "done", "failed", "lost", "lanes",
        ]  # fmt: skip
        await hall.claim("w2", workspaces=["default"], commands=[f"tool{number}" for number in range(9)])
        head, *lines = (line.split() for line in (await cli.run("worker", "ls")).stdout.splitlines())
        assert head[-3:] == ["lanes", "tools", "workspaces"]
        assert [line[-3:] for line in lines] == [
            ["all", "all", "all"],
            ["all", "tool0,tool1,tool2,tool3,tool4,tool5,+3", "default"],
        ]


async def test_one_worker_is_shown_with_its_tasks(tmp_path: Path) -> None:
    async with waiting(tmp_path) as (cli, task, _):
        await cli.server.gateway.hall.claim("w/1", about={**ABOUT, "pid": 7}, labels=["gpu"], guest=Guest("fleet"))
        shown = [line.split(maxsplit=1) for line in (await cli.run("worker", "show", "w/1")).stdout.splitlines()]
        assert re.fullmatch(rf"Worker w/1: working, heard of {HEARD}", " ".join(shown[0]))
        facts = {line[0]: line[1].strip() for line in shown[1:] if len(line) == 2}
        assert (facts["where"], facts["token"], facts["tools"], facts["labels"]) == (
            "box, process 7", "fleet", "all", "gpu",
        )  # fmt: skip
        assert facts["has"] == task
        assert (await cli.json("worker", "show", "w/1"))["instance"] == "i-1"
        none = await cli.run("worker", "show", "w2")
        assert none.stderr == (
            "laneway: there is no worker 'w2' (`laneway worker ls` lists those that were heard of lately)\n"
        )


async def test_tasks_of_all_workspaces_are_listed_unless_one_is_named(tmp_path: Path) -> None:
    async with two_workspaces(tmp_path) as cli:
        assert len(await ids_in(cli)) == 2
        assert [place for _, place in await ids_in(cli)] == ["shop", "lab"]
        assert [place for _, place in await ids_in(cli, "--workspace", "lab")] == ["lab"]
        head, *lines = (await cli.run("task", "ls")).stdout.splitlines()
        assert "workspace" in head
        assert [("shop" in line, "lab" in line) for line in lines] == [(True, False), (False, True)]
        assert [place for _, place in await ids_in(cli, "--limit", "1")] == ["shop"]
        task = (await ids_in(cli))[1][0]
        await cli.run("task", "complete", task, "--result", "x")
        assert await ids_in(cli, "--state", "completed") == [(task, "lab")]


async def test_a_lane_is_changed_in_the_workspace_that_is_named(tmp_path: Path) -> None:
    async with two_workspaces(tmp_path) as cli:
        said = (await cli.run("lane", "set", "query", "--mode", "internal", "--workspace", "lab")).stdout
        assert said.startswith("Lane query of workspace lab was changed: ")
        assert "differs from workspace to workspace" in (await cli.run("lane", "ls")).stderr
        for name, mode in (("shop", "external"), ("lab", "internal")):
            lanes = (await cli.json("lane", "ls", "--workspace", name))["items"]
            assert [each["mode"] for each in lanes if each["name"] == "query"] == [mode]


async def test_a_task_is_found_by_as_much_of_its_id_as_no_other_has(tmp_path: Path) -> None:
    async with two_workspaces(tmp_path) as cli:
        (task, _), (other, _) = await ids_in(cli)
        assert len(task) == ID_LENGTH
        short = next(task[:length] for length in range(6, ID_LENGTH) if not other.startswith(task[:length]))
        assert (await cli.json("task", "show", short))["task_id"] == task
        several = await cli.run("task", "show", "task-")
        assert (several.exit_code, several.stdout) == (2, "")
        assert "2 tasks begin with 'task-'" in several.stderr
        assert task in several.stderr
        done = await cli.run("task", "complete", short, "--result", "by hand")
        assert done.stdout == f"Task {task} has ended: it is completed.\n"
        assert (await cli.json("task", "show", short))["result"] == "by hand"
        none = await cli.run("task", "show", "task-nobody")
        assert none.exit_code == 2
        assert none.stderr == "laneway: there is no task 'task-nobody' (`laneway task ls` lists them)\n"


async def test_an_operator_completes_a_task_in_the_place_of_a_worker(tmp_path: Path) -> None:
    async with waiting(tmp_path) as (cli, task, message):
        (lease,) = await cli.server.gateway.hall.claim("w1")
        done = await cli.run("task", "complete", task, "--result", "found by hand", "--reason", "the worker is gone")
        assert (done.exit_code, done.stdout) == (0, f"Task {task} has ended: it is completed.\n")
        assert "found by hand" in await result_in(cli, message)
        shown = (await cli.run("task", "show", task)).stdout
        assert "found by hand" in shown
        assert "completed" in shown
        (entry,) = await cli.server.gateway.audit.entries("default")
        assert (entry.action, entry.target, entry.reason) == ("task.complete", task, "the worker is gone")
        with pytest.raises(LeaseLostError):
            await cli.server.gateway.hall.heartbeat(task, lease.token)
        for words in (("--error", "no"), ("--result", "another")):
            again = await cli.run("task", "complete", task, *words)
            assert again.stdout == f"Task {task} had ended before, and this changes nothing: it is completed.\n"
        assert (await cli.json("task", "show", task))["result"] == "found by hand"
        (listed,) = (await cli.json("task", "ls", "--state", "completed"))["items"]
        assert (listed["task_id"], listed["worker"]) == (task, "host")
        (stored,) = (await cli.json("task", "ls", "--state", "completed", "--store", cli.store))["items"]
        assert stored == listed
        assert (await cli.json("task", "show", task, "--store", cli.store))["result"] == "found by hand"


async def test_a_run_that_has_ended_still_says_who_made_its_calls_and_what_became_of_them(tmp_path: Path) -> None:
    async with waiting(tmp_path) as (cli, task, message):
        hall = cli.server.gateway.hall
        (lease,) = await hall.claim("w1")
        await hall.start(task, lease.token)
        await hall.complete(task, lease.token, ExternalTaskResult(success=False, error="no disk"))
        await ended(cli.server, message)
        run_id = lease.task["run_id"]
        line = f"  {task}  read by w1, failed: no disk"
        for words in ((), ("--store", cli.store)):
            said = (await cli.run("run", "explain", run_id, *words)).stdout.splitlines()
            assert said[1:3] == ["Calls that somebody else made:", line], words


async def test_an_operator_says_that_a_task_did_not_work(tmp_path: Path) -> None:
    async with waiting(tmp_path) as (cli, task, message):
        failed = await cli.run("task", "complete", task, "--error", "there is no such file")
        assert failed.stdout == f"Task {task} has ended: it is failed.\n"
        assert "there is no such file" in await result_in(cli, message)


async def test_a_result_comes_from_a_file_or_from_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    for name, content, said in (("result.json", '{"output": "of a file"}', "of a file"), ("-", "typed", "typed")):
        folder = tmp_path / said.replace(" ", "-")
        folder.mkdir()
        async with waiting(folder) as (cli, task, message):
            file.write_text(content)
            source = str(file) if name != "-" else "-"
            assert (await cli.json("task", "complete", task, "--result-file", source, given=content)) == {
                "accepted": True
            }
            assert said in await result_in(cli, message)


async def test_what_cannot_be_a_result_is_refused_and_nothing_is_said(tmp_path: Path) -> None:
    async with waiting(tmp_path) as (cli, task, _):
        (tmp_path / "odd.json").write_text("{")
        (tmp_path / "odd.bin").write_bytes(b"\xff\xfe")
        for words, said in (
            (("--result", "x", "--error", "y"), "only one of"),
            ((), "nothing says what became of it"),
            (("--result-file", str(tmp_path / "none")), "cannot be read"),
            (("--result-file", str(tmp_path / "odd.json")), "is no JSON"),
            (("--result-file", str(tmp_path / "odd.bin")), "is no text"),
        ):
            refused = await cli.run("task", "complete", task, *words)
            assert (refused.exit_code, refused.stdout) == (2, "")
            assert said in refused.stderr
        assert (await cli.json("task", "show", task))["state"] == "pending"


async def test_who_makes_the_calls_of_a_lane_is_set_and_shown(tmp_path: Path) -> None:
    async with cli_stage(tmp_path, text=EXTERNAL) as cli:
        await cli.server.send("s1", "hello")
        words = (
            "--label",
            "gpu",
            "--label",
            "os=linux",
            "--sticky",
            "session",
            "--sticky-ms",
            "9",
            "--lease-ms",
            "7000",
        )
        more = ("--fallback", "--no-ordered", "--background-after-ms", "0")
        changed = await cli.json("lane", "set", "query", *words, *more)
        assert (changed["mode"], changed["labels"]) == ("external", ["gpu", "os=linux"])
        session = cli.server.gateway.default.live_session("default", "s1")
        assert session is not None
        assert session.lanes is not None
        handler = session.lanes.handler_of("query")
        assert (handler.sticky, handler.sticky_ms, handler.lease_ms) == ("session", 9, 7_000)
        assert (handler.fallback, handler.ordered, handler.background_after_ms) == (True, False, 0)
        await cli.json("lane", "set", "query", "--label", "", "--sticky", "none", "--background-after-ms", "never")
        handler = session.lanes.handler_of("query")
        assert (handler.labels, handler.sticky, handler.background_after_ms) == ((), "", None)
        shown = await cli.run("lane", "ls")
        assert "open, external" in shown.stdout
        assert "query: its calls are made elsewhere (external)" in shown.stderr
        said = (await cli.run("lane", "set", "query", *words)).stdout.splitlines()
        assert said[1] == (
            "Its calls are made elsewhere (external), within 1 min; a worker may be silent for 7.0 s; it must have "
            "gpu, os=linux; those of a session wait 9 ms for the same worker; neighbouring ones go out together; "
            "what nobody takes in time runs here"
        )
        assert "(hybrid)" in (await cli.run("lane", "set", "query", "--mode", "hybrid")).stdout
        assert "(internal)" in (await cli.run("lane", "set", "query", "--mode", "internal")).stdout
        assert len((await cli.run("lane", "set", "query", "--concurrency", "3")).stdout.splitlines()) == 1
        odd = await cli.run("lane", "set", "qerry", "--mode", "external")
        assert odd.stderr == "laneway: there is no lane 'qerry' (did you mean 'query'?)\n"
        for text in ("-1", "soon", "1.5"):
            refused = await cli.run("lane", "set", "query", f"--background-after-ms={text}")
            assert refused.exit_code == 2, text


async def test_the_doctor_asks_the_server_who_takes_the_tasks_of_its_lanes(tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(EXTERNAL)
    async with cli_stage(tmp_path, text=EXTERNAL) as cli:
        words = ("doctor", "--workspace", str(tmp_path), "--store", cli.store, "--url", cli.server.url)

        async def said(token: str = cli.token) -> tuple[str, str]:
            found = json.loads((await cli.run(*words, "--json", TOKEN=token)).stdout)["checks"]
            (finding,) = [each for each in found if each["check"] == "workers"]
            return finding["state"], finding["says"]

        assert (await said())[0] == "warn"
        await cli.server.gateway.hall.claim("w1", lanes=["query"])
        state, says = await said()
        assert state == "ok"
        assert says.endswith("has 1: w1")
        own = (await cli.server.token("chat", tenant="acme"))["Authorization"].removeprefix("Bearer ")
        state, says = await said(own)
        assert state == "ok"
        assert "is seen with a token" in says
