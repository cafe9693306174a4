"""`laneway worker`: from options and modules of one's own to a worker, and what is said when they make no sense."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.main import get_group
from typer.testing import CliRunner

from laneway.cli import worker_screen
from laneway.cli.app import app
from laneway.cli.worker import worker_app
from laneway.cli.worker_handlers import found_in
from laneway.cli.worker_run import Choice, Limits, Reach, made_worker
from laneway.errors import ConfigError, LanewayError
from laneway.external import ExternalTask, Progress
from laneway.tools.sandbox import Sandbox
from laneway.worker import Worker, WorkerLimits, WorkerNews

MODULE = '''
from laneway import Worker, tool

worker = Worker(labels=["gpu"], concurrency=2)

@worker.handler("deploy")
def deploy(task):
    return "done"

handlers = {"ship": deploy}

@tool(effect="read")
def look(text: str) -> str:
    """Look."""
    return text

tools = [look]
number = 7
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / f"mine_{abs(hash(str(tmp_path)))}.py"
    path.write_text(MODULE)
    return path


# ---- modules of one's own ----


def test_a_module_or_a_file_gives_a_worker_handlers_or_tools(module: Path) -> None:
    for place in (module.stem, str(module), module.name):
        worker = found_in(place)
        assert isinstance(worker, Worker)
        assert worker.commands[0] == "deploy"
        handlers, tools = found_in(f"{place}:handlers"), found_in(f"{place}:tools")
        assert isinstance(handlers, dict)
        assert isinstance(tools, list)
        assert (list(handlers), len(tools)) == (["ship"], 1)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("no_such_module", "there is no module no_such_module .*it is looked for in"),
        ("no_such.module", "there is no module no_such.module"),
        ("nothing.py", "there is no file nothing.py"),
        ("{0}:wroker", "has no 'wroker' .did you mean 'worker'"),
        ("{0}:number", "'number' of .* is int, and no Worker, dict of handlers or list of tools"),
        ("{0}:", "names no handlers"),
        (":worker", "names no handlers"),
    ],
)
def test_what_is_not_there_is_said_with_a_way_out(module: Path, place: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        found_in(place.format(module.name))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("1 / 0", "could not be loaded: ZeroDivisionError"),
        ("import sys; sys.exit(3)", "could not be loaded: SystemExit: 3"),
        ("import no_such_thing", "could not be loaded: ModuleNotFoundError"),
        ("def broken(:", "could not be loaded: SyntaxError"),
        ("from laneway import Worker\nworker = Worker(concurrency=0)", "could not be loaded: concurrency"),
        ("x = 1", "has neither worker, handlers nor tools"),
    ],
)
@pytest.mark.parametrize("is_file", [True, False])
def test_a_module_that_cannot_be_used_is_said_to_be_so(module: Path, content: str, said: str, is_file: bool) -> None:
    module.write_text(content)
    with pytest.raises(ConfigError, match=said):
        found_in(str(module) if is_file else module.stem)


# ---- from options to a worker ----


def test_options_become_settings(tmp_path: Path) -> None:
    choice = Choice(
        name="w",
        concurrency="execute=2, query=8",
        labels=["gpu,os=linux", "big"],
        serve=["app"],
        allow=["bash,read"],
        lease_ms=5_000,
        maps=[f"/srv={tmp_path}", f"web={tmp_path}"],
    )
    worker = made_worker(choice, Limits(sizes={"cpu_s": 3, "memory_mb": None}))
    assert (worker.name, worker.commands, worker.labels) == ("w", ("bash", "read"), ("big", "gpu", "os=linux"))
    assert worker.given["concurrency"] == {"execute": 2, "query": 8}
    assert worker.given["limits"] == WorkerLimits(cpu_s=3)
    assert worker.given["mapping"] == {"/srv": str(tmp_path), "web": str(tmp_path)}
    assert made_worker(Choice(concurrency="9"), Limits()).given["concurrency"] == 9


def test_without_options_it_has_the_built_in_tools() -> None:
    worker = made_worker(Choice(), Limits())
    assert {"bash", "read", "web_fetch"} <= set(worker.commands)
    assert (worker.given["limits"], worker.given["sandbox"]) == (None, False)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"concurrency": "many"}, "'many' is no concurrency"),
        ({"concurrency": "execute=two"}, "is no concurrency"),
        ({"concurrency": "0"}, "concurrency"),
        ({"maps": ["/srv"]}, "'/srv' maps nothing"),
        ({"maps": ["=x"]}, "maps nothing"),
        ({"lanes": ["exec"]}, "did you mean 'execute'"),
        ({"allow": ["bsah"]}, "did you mean 'bash'"),
    ],
)
def test_options_that_make_no_sense_are_refused(choice: dict[str, Any], said: str) -> None:
    with pytest.raises(LanewayError, match=said):
        _ = made_worker(Choice(**choice), Limits()).commands


def test_a_worker_of_a_module_keeps_what_the_options_do_not_say(module: Path) -> None:
    worker = made_worker(Choice(handlers=f"{module}:worker", labels=["more"]), Limits(sizes={"cpu_s": 1}))
    assert (worker.labels, worker.given["concurrency"]) == (("gpu", "more"), 2)
    assert {"deploy", "bash"} <= set(worker.commands)
    assert worker.given["limits"] == WorkerLimits(cpu_s=1)


def test_a_dict_or_a_list_stands_alone_unless_the_built_in_tools_are_wanted(module: Path) -> None:
    for name, own in (("handlers", "ship"), ("tools", "look")):
        alone = made_worker(Choice(handlers=f"{module}:{name}"), Limits())
        both = made_worker(Choice(handlers=f"{module}:{name}", builtin_tools=True), Limits())
        assert alone.commands == (own,)
        assert {own, "bash", "read"} <= set(both.commands)


def test_the_sandbox_hides_the_file_of_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Sandbox] = []
    monkeypatch.setattr(Sandbox, "check", lambda self, folder: seen.append(self))
    monkeypatch.chdir(tmp_path)
    worker = made_worker(Choice(), Limits(sandbox=True, network=True), hidden=["/x/token"])
    assert worker.given["sandbox"] == Sandbox(network=True)
    assert worker.given["hidden"] == ("/x/token",)
    assert seen == [Sandbox(network=True, hidden=("/x/token",))]


def test_a_sandbox_of_the_module_can_be_left_out(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sandbox, "check", lambda self, folder: None)
    module.write_text("from laneway import Worker\nworker = Worker(sandbox=True)")
    assert made_worker(Choice(handlers=str(module)), Limits()).given["sandbox"] == Sandbox()
    assert made_worker(Choice(handlers=str(module)), Limits(sandbox=False)).given["sandbox"] is False


# ---- the command ----


def test_every_flag_has_a_variable() -> None:
    options = [each for each in get_group(worker_app).params if each.param_type_name == "option"]
    assert len(options) > 20
    assert all(str(each.envvar).startswith("LANEWAY_") for each in options if each.name != "help")


def test_the_token_is_not_shown_by_what_holds_it() -> None:
    assert "lw_secret" not in repr(Reach(url="http://x", token="lw_secret"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--connect", "ftp://x"], "ftp://x"),
        (["--handlers", "no_such_module"], "there is no module"),
        (["--concurrency", "x"], "no concurrency"),
        (["--workspace", __file__], "is not a folder"),
        (["--token", "a", "--token-file", "b"], "two tokens are given"),
        (["--token-file", "/no/such/file"], "cannot be read"),
        (["--ca", "/no/such/file", "--connect", "https://127.0.0.1:1"], "/no/such/file"),
    ],
)
def test_a_command_line_that_makes_no_sense_ends_with_a_line_and_its_code(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["worker", *arguments], env={"COLUMNS": "300"})
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in " ".join(result.stderr.split())


# ---- the screen ----


def a_task(task_id: str = "t1") -> ExternalTask:
    return ExternalTask({"task_id": task_id, "command_type": "bash"})


def test_the_line_is_written_when_the_worker_is_ready(capsys: pytest.CaptureFixture[str]) -> None:
    worker_screen.WorkerScreen("w\x1b[31m", "http://h", has_bars=False).hear(WorkerNews(kind="ready"))
    worker_screen.WorkerScreen("w", "http://h", as_json=True, has_bars=False).hear(WorkerNews(kind="ready"))
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["Worker w␛[31m takes tasks of http://h", '{"worker": "w", "url": "http://h", "ready": true}']


def test_bars_come_and_go_with_the_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(force_terminal=True, width=120, record=True, file=io.StringIO())
    monkeypatch.setattr(worker_screen, "errors", lambda: console)
    screen = worker_screen.WorkerScreen("w", "http://h")
    with screen.open():
        for number in range(30):
            screen.hear(WorkerNews(kind="began", task=a_task(f"t{number}")))
        progress = Progress("half \x1b[2J", 50)
        screen.hear(WorkerNews(kind="progress", task=a_task("t1"), progress=progress, text=progress.text))
        screen.hear(WorkerNews(kind="progress", task=a_task("t29"), progress=progress, text=progress.text))
        assert len(screen.bars.tasks) == 20
        [moved] = [each for each in screen.bars.tasks if each.completed]
        assert (moved.completed, moved.fields["said"]) == (50, "half ␛[2J")
        assert screen.log_stream is not None
        screen.log_stream.write("a line of log\n")
        for number in range(30):
            screen.hear(WorkerNews(kind="ended", task=a_task(f"t{number}")))
        assert screen.bars.tasks == []
    assert "a line of log" in console.export_text()


def test_a_worker_with_folders_for_some_workspaces_alone_asks_for_no_others(tmp_path: Path) -> None:
    maps = [f"app={tmp_path}", f"site={tmp_path}"]
    assert made_worker(Choice(maps=maps), Limits()).given["workspaces"] == ("app", "site")
    assert made_worker(Choice(maps=maps, workspace=str(tmp_path)), Limits()).given["workspaces"] == ()
    assert made_worker(Choice(maps=[*maps, f"/srv/x={tmp_path}"]), Limits()).given["workspaces"] == ()
