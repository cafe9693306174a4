"""Every file in `examples/` runs to its end, warns of nothing and says something; each is short enough to read."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LINES_MAX = 60
ELSEWHERE = {
    "ci_fleet": "tests/e2e/test_ci_fleet.py",
    "servers": "examples/agent_mcp.py",
    "skills": "examples/agent_skills.py",
    "worker.mjs": "tests/e2e/test_worker_in_node.py",
}
"""What is no script of its own, and what runs it."""
EXPECTED = {
    "agent_approvals.py": [
        "ada: You may not do that",
        "ok: paid 9 to ada",
        "denied: [Denied: olga did not approve it: not him]",
        "confirmation_timeout: rejected",
        "denied: [Denied: nobody approved it within 500 ms]",
    ],
    "agent_external.py": [
        "bash {'command': 'echo built'} in execute, attempt 1",
        "error: no compiler here",
        "ok): bash ran 'echo built' in a container, attempt 1",
        "ok): bash ran 'echo built' in a container, attempt 2",
        "[('bash', 'failed'), ('bash', 'done'), ('bash', 'done'), ('bash', 'done')]",
    ],
    "agent_hello.py": ["Take a hat: it is sunny in Rome. (2 rounds, 1 call)"],
    "agent_planning.py": ["step 2: Use tokens in auth", "failed: it is Friday", "3 of 4 done", "It is not released"],
    "agent_hooks.py": [
        "denied: [Denied: more than 1,000 needs a signature]",
        "audit: transfer 100 to bob, for olga",
        "[Denied: the hook 'bank' failed: it took longer than 200 ms]",
    ],
    "agent_mcp.py": [
        "mcp__notes__find, ok: It leaks.",
        "mcp__notes__find, error: [Not run: the arguments of mcp__notes__find do not fit: 'title' is missing]",
        "mcp__notes__remove, denied: ",
        "notes is running, 2 tools",
        "gone is failed, 0 tools 'a-program-that-is-not-here' cannot be used: No such file or directory",
        "notes is closed",
    ],
    "agent_resume.py": [
        "the first process ended with -9",
        "tool pay (call-1, ok): paid rent",
        "tool pay (call-2, unknown): [Unknown: the process ended while this call ran",
        "tool pay (call-3, ok): paid water",
        "pay: unknown, then settled by ada",
        "payments: ['rent', 'gas', 'water']",
    ],
    "agent_skills.py": [
        "Skill, ok: [Skill: release-notes]",
        "publish, denied: [Denied: the skill 'release-notes' allows only merged, write(notes/**)",
        "publish, ok: published '2.0'",
    ],
    "agent_subagents.py": [
        "[2. chapter 2: succeeded]\nchapter 2 is about roads",
        "succeeded: done: Make an index",
        "later: done: done: Make an index",
    ],
    "agent_steer.py": [
        "looks in the cellar",
        "heard 'I have found it!'; 2 calls were not made",
        "I heard 2 things, the last one is 'I have found it!'.",
    ],
    "agent_sync.py": [
        "tool_end: 3 pages about rivers",
        "Short: three.",
        "['!'] ['succeeded', 'succeeded', 'succeeded']",
    ],
    "agent_tools.py": [
        "order in 0 ms, denied: [Denied: no policy says that order may be called, and nobody is there to ask]",
        "'boxes' must be a valid integer",
        "ordered 2 boxes of pears",
        "the ledger: ['order done']",
    ],
    "cancel_and_timeouts.py": ["JobCancelledError", "JobAbortedError", "WaitTimeoutError", "JobTimeoutError"],
    "durable_jobs.py": ["paying 42", "whether it had its effect is unknown", "fetched rivers"],
    "gateway_events.py": [
        "202 queued duplicate: True",
        "wait (ok): waited 0.1 s",
        "message.accepted: ",
        "409 ",
    ],
    "hello_lanes.py": ["3 run, 3 wait", "['ROAD', 'RAIL', 'RIVER']"],
    "inbox_approval.py": [
        "it needs the right 'approve'",
        "Deployed main, approved by olga",
        "Not deployed: denied by olga",
    ],
    "inbox_modes.py": ["I heard: by train, in May, no, in June", "superseded", "rejected", "steered    succeeded"],
    "inbox_restart.py": [
        "ended with -9",
        "known already",
        "told to ada: Your message",
        "re: three",
        "retried: re: the long",
    ],
    "inbox_steer.py": [
        "delete logs: [Skipped: user sent new message",
        "I did: read files, list files (steered, succeeded)",
    ],
    "limiter.py": ["Agent: 3/3 (4 queued)", "Agent: 4/4", "2 cancelled", "Agent: 0/4"],
    "nested_jobs.py": ["roads(roads.1(roads.1.1, roads.1.2), roads.2(roads.2.1, roads.2.2))", "refused: "],
    "own_transport.py": ["All is well.", "call-1, ok): process", "call-2, ok): process"],
    "rate_limit.py": ["next token in", "429 from the provider", "question 7 answered"],
    "retry_dead_letters.py": ["after 4 attempts", "dead: ", "0 dead letters left"],
    "sessions.py": ["bob said hello", "session:ada", "blue/execute"],
    "sync_functions.py": ["waits for a thread", "cancelled: enough"],
    "watch_events.py": ["queue.lane.pressure", "queue.command.retry", "4 completed, 1 retried"],
}


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_and_shows_what_it_is_for(path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.docs.steady", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for part in EXPECTED[path.name]:
        assert part in done.stdout


def test_the_table_of_expectations_names_every_example() -> None:
    assert [path.name for path in EXAMPLES] == sorted(EXPECTED)


def test_what_is_no_script_is_run_by_something_else() -> None:
    others = {path.name for path in (ROOT / "examples").iterdir() if path.suffix != ".py" and path.name[0] not in "._"}
    assert others == set(ELSEWHERE)
    for name, runner in ELSEWHERE.items():
        assert name.partition(".")[0] in (ROOT / runner).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < LINES_MAX
