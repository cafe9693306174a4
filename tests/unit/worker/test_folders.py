"""Where a task is done: workspaces of the host, by name or by folder, and folders here that stand for them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import UsageError
from laneway.external import ExternalTask
from laneway.tools.outputs import ToolRefusedError
from laneway.worker import Worker
from laneway.worker.hands import below, here
from tests.worker_stage import outcomes, real_bench


def a_task(workspace: str, name: str = "", **payload: Any) -> ExternalTask:
    return ExternalTask({"workspace": workspace, "workspace_name": name, "payload": payload})


@pytest.mark.parametrize(
    ("folder", "path", "rest"),
    [
        ("/srv/app", "/srv/app", "."),
        ("/srv/app", "/srv/app/", "."),
        ("/srv/app", "/srv/app/src/a.py", "src/a.py"),
        ("/srv/app", "/srv/app/../app/x", "x"),
        ("/srv/app", "/srv/app/../other", None),
        ("/srv/app", "/srv/apple", None),
        ("/srv/app/", "/srv/app/x", "x"),
        ("/", "/etc", "etc"),
        ("/srv", "srv/x", None),
    ],
)
def test_a_path_is_below_a_folder_or_it_is_not(folder: str, path: str, rest: str | None) -> None:
    assert below(folder, path) == rest


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("a/inner", "b", "named", "default"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def mapped(tree: Path, **options: Any) -> Worker:
    mapping = {"/srv": tree / "a", "/srv/inner/deep": tree / "b", "web": tree / "named"}
    return Worker(mapping=mapping, **options)


@pytest.mark.parametrize(
    ("workspace", "name", "folder"),
    [
        ("/srv", "", "a"),
        ("/srv/inner", "", "a/inner"),
        ("/srv/inner/deep", "", "b"),
        ("/srv/elsewhere", "web", "named"),
        ("/home/x", "", "default"),
        ("", "", "default"),
    ],
)
def test_the_name_comes_first_then_the_longest_folder_then_the_workspace(
    tree: Path, workspace: str, name: str, folder: str
) -> None:
    worker = mapped(tree, workspace=tree / "default")
    assert worker.folder_of(a_task(workspace, name)) == str(tree / folder)


def test_a_task_of_an_unmapped_folder_is_refused_if_there_is_no_workspace(tree: Path) -> None:
    with pytest.raises(ToolRefusedError, match="no folder for the workspace 'shop'"):
        mapped(tree).folder_of(a_task("/home/shop", "shop"))


def test_a_folder_of_the_host_leads_out_of_nothing(tree: Path) -> None:
    (tree / "a" / "link").symlink_to("/etc")
    worker = mapped(tree)
    with pytest.raises(ToolRefusedError, match="outside"):
        worker.folder_of(a_task("/srv/link"))
    with pytest.raises(ToolRefusedError, match="no folder"):
        worker.folder_of(a_task("/srv/../etc"))


def test_paths_of_the_host_are_the_same_places_here() -> None:
    found = here(
        a_task("/srv/app", path="/srv/app/src/a.py", working_dir="/srv/app", content="/srv/app/b", other=["/srv/app"])
    )
    assert found == {"path": "src/a.py", "working_dir": ".", "content": "/srv/app/b", "other": ["/srv/app"]}
    assert here(a_task("/srv/app", path="/etc/passwd"))["path"] == "/etc/passwd", "which tools refuse"
    assert here(a_task("", path="/etc/passwd"))["path"] == "/etc/passwd"
    assert here(a_task("/srv/app", path=7)) == {"path": 7}


async def test_tools_work_in_the_folder_that_stands_for_the_hosts(tree: Path) -> None:
    (tree / "a" / "x.txt").write_text("from a")
    async with real_bench() as on:
        worker = Worker(on.line, mapping={"/srv": tree / "a"})
        [nowhere] = await outcomes(on, worker, [("read", {"path": "x.txt"})])
    assert "this worker has no folder for the workspace" in (nowhere.error or "")
    async with real_bench() as on:
        [found] = await outcomes(on, Worker(on.line, workspace=tree / "a"), [("read", {"path": "x.txt"})])
    assert "from a" in found.to_output().text


# ---- workers that are made in steps ----


async def test_handlers_can_be_registered_one_by_one() -> None:
    worker = Worker(name="w")

    @worker.handler("deploy", "rollback")
    def deploy(task: ExternalTask) -> str:
        return f"{task.command_type} done"

    @worker.handler("bash")
    async def bash(task: ExternalTask) -> str:
        return "not a shell"

    assert deploy.__name__ == "deploy", "the function stays what it is"
    async with real_bench() as on:
        worker.connect(on.line)
        done = await outcomes(on, worker, [("deploy", {}), ("rollback", {}), ("bash", {"command": "ls"})])
    assert [each.result for each in done] == ["deploy done", "rollback done", "not a shell"]
    assert worker.commands[:4] == ("deploy", "rollback", "bash", "read"), "it has the built-in tools, too"


@pytest.mark.parametrize("names", [(), ("",), (print,), (7,)])
def test_a_handler_needs_the_name_of_a_tool(names: Any) -> None:
    with pytest.raises(UsageError, match="a handler has the name of a tool"):
        Worker().handler(*names)


async def test_a_worker_that_runs_takes_no_more_handlers() -> None:
    async with real_bench() as on, Worker(on.line) as worker:
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="runs already"):
            worker.handler("late")(print)


async def test_a_worker_without_a_transport_does_not_run() -> None:
    with pytest.raises(UsageError, match="has no transport"):
        await Worker().run()
    async with real_bench() as on:
        worker = Worker(on.line)
        with pytest.raises(UsageError, match="has a transport"):
            worker.connect(on.line)


def test_a_copy_has_the_same_handlers_and_other_settings(tmp_path: Path) -> None:
    worker = Worker(labels=["gpu"], concurrency=2)
    worker.handler("deploy")(print)
    other = worker.copy(concurrency=7, workspace=tmp_path)
    assert (other.labels, "of 7 busy" in repr(other), "deploy" in other.commands) == (("gpu",), True, True)
    other.handler("only-here")(print)
    assert "only-here" not in worker.commands
    with pytest.raises(UsageError, match="no setting colour"):
        worker.copy(colour="red")
