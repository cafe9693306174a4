"""Which tasks a worker takes: so many of each lane, those it has the labels for, those of its workspaces."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.errors import ConfigError
from laneway.external import ExternalTask, ExternalTaskResult, Lease
from laneway.testing import fake_host
from laneway.worker import Worker
from tests.inbox_stage import staged
from tests.stage import passing
from tests.worker_stage import Shaky, bench


@staged
async def test_each_lane_has_a_width_of_its_own() -> None:
    async with bench() as on, on.worker(concurrency={"execute": 1, "query": 3}) as worker:
        await on.put(*(f"x{number}" for number in range(3)), lane="execute")
        await on.put(*(f"q{number}" for number in range(5)), lane="query")
        await on.put("g", lane="generate")
        await passing(10)
        assert sorted(on.began) == ["q0", "q1", "q2", "x0"]
        assert worker.stats.running == 4
        on.gate.set()
        for name in ("x0", "x1", "x2", "q0", "q1", "q2", "q3", "q4"):
            assert (await on.end(name)).state == "completed"
        assert await on.stage.state("g") == "pending", "nobody asked for its lane"


@staged
async def test_a_lane_that_is_full_does_not_hold_up_another() -> None:
    async with bench() as on, on.worker(concurrency={"execute": 1, "query": 1}):
        await on.put("x0", "x1", lane="execute")
        await passing(10)
        assert on.began == ["x0"]
        await on.put("q0", lane="query")
        await passing(10)
        assert on.began == ["x0", "q0"]


class Picky(Shaky):
    """A host that refuses one of the lanes for good."""

    async def claim(self, worker: str, *, limit: int = 1, **wanted: Any) -> list[Lease]:
        """No."""
        if wanted["lanes"] == ("query",):
            raise ConfigError("no such lane")
        return await super().claim(worker, limit=limit, **wanted)


@staged
async def test_what_ends_one_lane_ends_the_worker() -> None:
    async with bench() as on:
        on.line = Picky(on.line)
        with pytest.raises(ConfigError, match="no such lane"):
            await on.worker(concurrency={"execute": 1, "query": 1}).run()
        await on.put("t")
        await passing(1_000)
        assert on.began == [], "the other lane does not go on in secret"


class Asked(Shaky):
    """Keeps every word of a claim."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.words: list[dict[str, Any]] = []

    async def claim(self, worker: str, *, limit: int = 1, **wanted: Any) -> list[Lease]:
        """Keep it."""
        self.words.append(wanted)
        return await super().claim(worker, limit=limit, **wanted)


@staged
async def test_a_worker_says_what_it_has_and_only_what_there_is_to_say() -> None:
    async with bench() as on:
        on.line = Asked(on.line)
        async with on.worker():
            await passing(1)
        assert sorted(on.line.words[0]) == ["about", "commands", "lanes", "wait_ms"]
        about = on.line.words[0]["about"]
        assert (about["concurrency"], sorted(about)) == (4, ["concurrency", "host", "instance", "pid", "version"])
        async with on.worker(labels=["os=linux", "gpu"], workspaces=["app"], lease_ms=5_000):
            await passing(1)
        words = on.line.words[-1]
        assert (words["labels"], words["workspaces"], words["lease_ms"]) == (("gpu", "os=linux"), ("app",), 5_000)


@staged
async def test_a_task_goes_only_to_a_worker_that_has_its_labels() -> None:
    async with bench() as on:
        await on.put("t", labels=("gpu",))
        async with on.worker():
            await passing(1_000)
            assert on.began == []
        async with on.worker(labels=["gpu", "big"]):
            await passing(10)
            assert on.began == ["t"]


class Plain:
    """A transport of others, from before there were labels."""

    def __init__(self) -> None:
        self.claims = 0

    async def claim(
        self, worker: str, *, lanes: Any = (), limit: int = 1, wait_ms: int = 0, commands: Any = ()
    ) -> list[Lease]:
        """Nothing, ever."""
        self.claims += 1
        await passing(wait_ms)
        return []

    async def start(self, task_id: str, token: str) -> None:
        """Begin."""

    async def heartbeat(self, task_id: str, token: str) -> bool:
        """A sign of life."""
        return True

    async def complete(self, task_id: str, token: str, result: ExternalTaskResult) -> bool:
        """The end."""
        return True

    async def release(self, task_id: str, token: str, reason: str = "") -> None:
        """Give back."""

    async def close(self) -> None:
        """Nothing to close."""


def do(task: ExternalTask) -> str:
    return "done"


@staged
async def test_a_transport_that_knows_no_new_words_hears_none() -> None:
    line: Any = Plain()
    async with Worker(line, handlers={"bash": do}, host=fake_host()):
        await passing(100)
    assert line.claims == 2


def test_a_transport_that_cannot_carry_what_a_worker_needs_is_refused() -> None:
    line: Any = Plain()
    with pytest.raises(ConfigError, match="cannot tell the host of labels"):
        Worker(line, handlers={"bash": do}, labels=["gpu"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": {}}, "there is none"),
        ({"concurrency": {"exec": 1}}, "did you mean 'execute'"),
        ({"concurrency": {"execute": 0}}, "concurrency.execute"),
        ({"concurrency": {"execute": 1}, "lanes": ["query"]}, "do not name the same lanes: execute, query"),
        ({"concurrency": {"execute": 1}, "lanes": ["execute", "query"]}, "do not name the same lanes: query"),
        ({"concurrency": "4"}, "concurrency"),
        ({"labels": "gpu"}, "labels must be a list"),
        ({"labels": ["a b"]}, "no label"),
        ({"workspaces": "app"}, "workspaces must be a list of names"),
        ({"workspaces": [""]}, "workspaces must be a list of names"),
        ({"lease_ms": 0}, "lease_ms"),
        ({"lease_ms": 3_600_001}, "lease_ms"),
        ({"limits": {"cpu_s": 1}}, "limits must be WorkerLimits"),
        ({"sandbox": "yes"}, "sandbox is True, False or a Sandbox"),
        ({"mapping": ["/a=/b"]}, "mapping has folders here"),
        ({"mapping": {"": "."}}, "which is no folder"),
        ({"mapping": {"/a": __file__}}, "is not a folder"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Worker(handlers={"bash": do}, **options)


def test_lanes_may_be_named_twice_if_they_are_the_same() -> None:
    worker = Worker(handlers={"bash": do}, concurrency={"execute": 1, "query": 2}, lanes=["query", "execute"])
    assert "of 3 busy" in repr(worker)


@staged
async def test_a_worker_begins_no_more_than_it_has_room_for_whatever_a_host_gives() -> None:
    async with bench() as on:
        await on.put(*(f"t{number}" for number in range(9)))
        on.line.overrides = {"limit": 6}
        async with on.worker(concurrency=2) as worker:
            await passing(10)
            assert (sorted(on.began), worker.stats.running) == (["t0", "t1"], 2)
            assert await on.stage.state("t2") == "pending", "it was given back"
            on.line.overrides = {}
            on.gate.set()
            for number in range(9):
                assert (await on.end(f"t{number}")).state == "completed"
        assert on.peak == 2


@staged
async def test_a_host_that_does_not_wait_is_not_asked_all_the_time() -> None:
    async with bench() as on:
        on.line.overrides = {"wait_ms": 0}
        async with on.worker():
            await passing(10_000)
            assert 8 <= len(on.line.asked_at) <= 30
            await on.put("t")
            on.gate.set()
            await passing(1_100)
            assert (await on.end()).state == "completed", "it is asked every second all the same"


@staged
async def test_a_host_that_waits_is_asked_again_at_once() -> None:
    async with bench() as on, on.worker(wait_ms=500):
        await passing(10_000)
        assert len(on.line.asked_at) in (20, 21, 22)
