"""The synchronous agents and whole processes: programs that end without closing, and programs that fork."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

PATIENCE_S = 55.0  # of a wait that only a bug makes long
FORKED = "this agent was opened before the process was forked (make a new Agent in the child process)"
PROLOGUE = """
import asyncio, os, sys, threading, warnings
from laneway.errors import UsageError
from laneway.models import ScriptedModel, call, say
from laneway.sync import Agent
from laneway.sync.background import Portal

async def thread_name():
    return threading.current_thread().name

def portal(name="it"):
    async def close():
        print("closed", name, flush=True)
    return Portal(close)
"""

Run = Callable[[str], "subprocess.CompletedProcess[str]"]

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a program in which every warning is an error."""

    def run(source: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(PROLOGUE + textwrap.dedent(source), encoding="utf-8")
        command = [sys.executable, "-W", "error", str(script)]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd=tmp_path)

    return run


# ---- portals ----


def test_what_nobody_closes_is_closed_when_the_interpreter_exits(run: Run) -> None:
    done = run("""
        one, two = portal("one"), portal("two")
        print(one.wait("name()", thread_name), two.wait("name()", thread_name))
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split("\n")) == ["", "closed one", "closed two", "laneway-sync laneway-sync"]


def test_a_program_ends_although_something_goes_on_in_the_background(run: Run) -> None:
    done = run("""
        one = portal()
        async def for_ever():
            await asyncio.Event().wait()
        threading.Thread(target=one.wait, args=("for_ever()", for_ever), daemon=True).start()
        one.wait("name()", thread_name)
    """)
    assert (done.returncode, done.stdout) == (0, "closed it\n")


def test_other_threads_may_go_on_calling_after_the_main_thread_has_ended(run: Run) -> None:
    done = run("""
        one = portal()
        main = threading.main_thread()
        def work():
            main.join()
            print(one.wait("name()", thread_name), flush=True)
        threading.Thread(target=work).start()
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "laneway-sync\nclosed it\n"


def test_a_forked_child_refuses_what_its_parent_opened_and_gets_a_loop_of_its_own(run: Run) -> None:
    done = run("""
        parent = portal("of the parent")
        parent.wait("name()", thread_name)
        warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks
        child = os.fork()
        if not child:
            try:
                parent.wait("Session.send()", thread_name)
            except UsageError as error:
                print("refused:", error, flush=True)
            parent.close()  # the parent's
            own = portal("of the child")
            print(own.wait("name()", thread_name), flush=True)
            sys.exit()
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        print(parent.wait("name()", thread_name), "of the parent lives", flush=True)
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"refused: Session.send(): {FORKED}",
        "laneway-sync",
        "closed of the child",
        "0",
        "laneway-sync of the parent lives",
        "closed of the parent",
    ]


def test_a_fork_while_other_threads_call_does_not_lock_the_child(run: Run) -> None:
    done = run("""
        parent, going = portal(), True
        def call():
            while going:
                parent.wait("name()", thread_name)
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads: thread.start()
        warnings.simplefilter("ignore", DeprecationWarning)
        codes = []
        for _ in range(10):
            child = os.fork()
            if not child:
                own = portal()
                own.wait("name()", thread_name)
                os._exit(7)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        going = False
        for thread in threads: thread.join()
        print(codes == [7] * 10, flush=True)
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "True\nclosed it\n"


# ---- agents ----


def test_a_program_that_closes_nothing_ends_cleanly_and_its_session_is_in_the_store(run: Run) -> None:
    for expected in (2, 4):
        done = run("""
            agent = Agent("scripted", session_store="sqlite:///sessions.db", builtin_tools=False)
            session = agent.session(".", session_id="s1")
            session.send("hello")
            print(len(session.history()))
        """)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{expected}\n")


def test_a_program_may_end_while_a_run_goes_on(run: Run) -> None:
    done = run("""
        import asyncio
        model = ScriptedModel([[asyncio.Event().wait]])
        session = Agent(model, builtin_tools=False).session(".")
        for event in session.stream("go"):
            break
        print(event.event_type)
    """)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "start\n")


def test_a_forked_child_makes_an_agent_of_its_own(run: Run) -> None:
    done = run("""
        agent = Agent("scripted", builtin_tools=False)
        session = agent.session(".")
        session.send("hello")
        warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks
        child = os.fork()
        if not child:
            try:
                session.send("hello")
            except UsageError as error:
                print(error, flush=True)
            with Agent("scripted", builtin_tools=False) as own:
                print(own.session(".").send("child").text, flush=True)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print(session.send("parent").text)
    """)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1:] == ["You said: child", "You said: parent"]
    assert "before the process was forked" in done.stdout
