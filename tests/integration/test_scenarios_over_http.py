"""Workers over HTTP as real processes: who dies when, restarts of either side, and what is never done twice."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from laneway.cli.worker_run import ONE_SIGNAL_S
from tests.server_process import until
from tests.stalling_proxy import StallingProxy
from tests.worker_process import Plant

pytestmark = pytest.mark.slow


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    """A gateway whose lanes are external, whose ends are waited for."""
    with Plant(tmp_path) as made:
        made.serve()
        yield made


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Plant]:
    """The same, with leases so long that nothing here waits for the end of one."""
    with Plant(tmp_path, lease_ms=600_000) as made:
        made.serve()
        yield made


# ---- a worker dies ----


def test_a_write_whose_worker_dies_after_its_start_is_unknown_and_nobody_runs_it_again(plant: Plant) -> None:
    first = plant.worker("w1").ready()
    message = plant.ask("run deploy")
    plant.wait_for("begun deploy w1")
    plant.worker("w2").ready()
    first.kill()
    plant.open()
    answer = plant.answer(message)
    assert "bash (unknown)" in answer
    assert plant.ledger() == ["unknown"]
    assert plant.answer(plant.ask("run next")) == "Done: 1 call.\nbash (ok): next by w2", "others go on"
    assert plant.begun() == ["deploy w1 1", "next w2 1"]
    assert plant.tasks() == []


@pytest.mark.parametrize(("words", "tool"), [("read notes", "read"), ("wait 7", "wait")], ids=["read", "idempotent"])
def test_what_may_be_repeated_is_run_by_another_worker_when_the_first_dies(plant: Plant, words: str, tool: str) -> None:
    label = words.split()[1]
    first = plant.worker("w1").ready()
    message = plant.ask(words)
    plant.wait_for(f"begun {label} w1")
    plant.worker("w2").ready()
    first.kill()
    plant.wait_for(f"begun {label} w2")
    plant.open()
    assert plant.answer(message) == f"Done: 1 call.\n{tool} (ok): {label} by w2"
    assert plant.begun() == [f"{label} w1 1", f"{label} w2 2"]


@pytest.mark.parametrize("words", ["run deploy", "read notes"], ids=["write", "read"])
def test_a_task_whose_worker_dies_before_its_start_goes_back_whatever_it_does(plant: Plant, words: str) -> None:
    tool, label = {"run": "bash", "read": "read"}[words.split()[0]], words.split()[1]
    message = plant.ask(words)
    claimer, lease = plant.claimer("w1", starts=False)
    plant.open()
    plant.worker("w2").ready()
    claimer.kill()
    assert plant.answer(message) == f"Done: 1 call.\n{tool} (ok): {label} by w2"
    assert plant.begun() == [f"{label} w2 1"]
    status, problem = plant.complete(lease, "I was here first")
    assert (status, problem["code"]) == (409, "lease_lost"), "who has lost a lease has no say"


# ---- the gateway is killed ----


@pytest.mark.parametrize("words", ["run deploy", "wait 7"], ids=["write", "idempotent"])
def test_a_result_of_before_a_kill_of_the_gateway_is_accepted_once_after_it(patient: Plant, words: str) -> None:
    tool = {"run": "bash", "wait": "wait"}[words.split()[0]]
    message = patient.ask(words)
    _, lease = patient.claimer("w1", starts=True)
    patient.server.stop(signal.SIGKILL)
    patient.serve()
    assert patient.complete(lease, "shipped") == (200, {"accepted": True})
    assert patient.complete(lease, "shipped") == (200, {"accepted": True}), "said again, it is answered the same"
    assert patient.complete(lease, "something else")[0] in (200, 409)
    assert patient.answer(message) == f"Done: 1 call.\n{tool} (ok): shipped"
    assert patient.ledger() == ["done"]
    assert patient.tasks() == []


def test_a_task_that_nobody_had_taken_when_the_gateway_was_killed_is_run_once_after_it(patient: Plant) -> None:
    patient.open()
    message = patient.ask("run deploy")
    until(patient.tasks, "the task")
    patient.server.stop(signal.SIGKILL)
    patient.worker("w1")
    patient.serve()
    assert patient.answer(message) == "Done: 1 call.\nbash (ok): deploy by w1"
    assert patient.begun() == ["deploy w1 1"]


def test_a_worker_that_works_through_a_restart_of_the_gateway_delivers(patient: Plant) -> None:
    worker = patient.worker("w1").ready()
    patient.worker("w2").ready()
    message = patient.ask("run deploy")
    until(patient.begun, "a start")
    patient.server.stop(signal.SIGKILL)
    patient.serve()
    patient.open()
    by = patient.begun()[0].split()[1]
    assert patient.answer(message) == f"Done: 1 call.\nbash (ok): deploy by {by}"
    assert patient.begun() == [f"deploy {by} 1"]
    assert patient.ledger() == ["done"]
    assert worker.process.poll() is None


def test_a_result_that_is_found_while_the_gateway_is_down_for_ten_seconds_waits_for_it(patient: Plant) -> None:
    worker = patient.worker("w1").ready()
    message = patient.ask("run deploy")
    patient.wait_for("begun deploy")
    patient.server.stop(signal.SIGKILL)
    patient.open()
    patient.wait_for("ended deploy")
    worker.says("the host does not answer")
    time.sleep(10)
    patient.serve()
    assert patient.answer(message) == "Done: 1 call.\nbash (ok): deploy by w1"
    worker.says("the host answers again")
    assert patient.answer(patient.ask("run next")) == "Done: 1 call.\nbash (ok): next by w1"
    assert patient.begun() == ["deploy w1 1", "next w1 1"]
    assert sum("the host does not answer" in line for line in worker.lines) == 1, "it is said once"


def test_a_gateway_that_is_asked_to_stop_leaves_a_task_to_the_next_one(patient: Plant) -> None:
    patient.worker("w1").ready()
    message = patient.ask("run deploy")
    patient.wait_for("begun deploy")
    assert patient.server.stop() == 0
    patient.serve()
    patient.open()
    assert patient.answer(message) == "Done: 1 call.\nbash (ok): deploy by w1"
    assert patient.begun() == ["deploy w1 1"]


def test_a_worker_may_start_before_its_gateway(tmp_path: Path) -> None:
    with Plant(tmp_path) as plant:
        plant.open()
        worker = plant.worker("w1")
        worker.says("the host does not answer")
        plant.serve()
        assert plant.answer(plant.ask("run deploy")) == "Done: 1 call.\nbash (ok): deploy by w1"
        worker.ready()


# ---- a worker is asked to stop ----


def test_a_worker_that_is_asked_to_stop_finishes_what_it_has_and_takes_nothing_more(patient: Plant) -> None:
    worker = patient.worker("w1").ready()
    first = patient.ask("run deploy")
    patient.wait_for("begun deploy")
    worker.send(signal.SIGTERM)
    worker.says("stops")
    second = patient.ask("run next", "s2")
    until(lambda: len(patient.tasks()) == 2, "the second task")
    patient.open()
    assert worker.wait() == 0
    assert patient.answer(first) == "Done: 1 call.\nbash (ok): deploy by w1"
    patient.worker("w2").ready()
    assert patient.answer(second) == "Done: 1 call.\nbash (ok): next by w2"
    assert patient.begun() == ["deploy w1 1", "next w2 1"]


def test_a_worker_that_cannot_finish_hands_a_read_to_another_one_at_once(patient: Plant) -> None:
    worker = patient.worker("w1", "--drain-ms", "300").ready()
    message = patient.ask("read notes")
    patient.wait_for("begun notes w1")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    patient.open()
    patient.worker("w2").ready()
    assert patient.answer(message) == "Done: 1 call.\nread (ok): notes by w2"
    assert patient.begun() == ["notes w1 1", "notes w2 2"]


def test_a_worker_that_cannot_finish_a_write_says_so_at_once_and_nobody_repeats_it(patient: Plant) -> None:
    worker = patient.worker("w1", "--drain-ms", "300").ready()
    patient.worker("w2", "--lanes", "query").ready()
    message = patient.ask("run deploy")
    patient.wait_for("begun deploy w1")
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    assert "bash (unknown)" in patient.answer(message)
    assert patient.ledger() == ["unknown"]
    patient.open()
    patient.worker("w3").ready()
    assert patient.answer(patient.ask("run next")) == "Done: 1 call.\nbash (ok): next by w3"
    assert patient.begun() == ["deploy w1 1", "next w3 1"]


def test_a_second_signal_stops_a_worker_at_once(patient: Plant) -> None:
    worker = patient.worker("w1", "--drain-ms", "600000").ready()
    message = patient.ask("read notes")
    patient.wait_for("begun notes w1")
    worker.send(signal.SIGTERM)
    worker.send(signal.SIGTERM)  # one signal may come twice: that is no second one
    worker.says("stops")
    time.sleep(2 * ONE_SIGNAL_S)
    assert worker.process.poll() is None
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    patient.open()
    patient.worker("w2").ready()
    assert patient.answer(message) == "Done: 1 call.\nread (ok): notes by w2"


# ---- the network forgets ----


async def test_a_connection_that_was_forgotten_on_the_way_costs_no_lease(tmp_path: Path) -> None:
    with Plant(tmp_path, lease_ms=10_000) as plant:
        await asyncio.to_thread(plant.serve)
        async with StallingProxy(plant.port) as proxy:
            plant.url = f"http://127.0.0.1:{proxy.port}"
            worker = plant.worker("w1")
            await asyncio.to_thread(worker.ready)
            message = await asyncio.to_thread(plant.ask, "run deploy")
            await asyncio.to_thread(plant.wait_for, "begun deploy")
            await asyncio.sleep(4)  # a sign of life has gone by: the next one takes the same connection
            proxy.forget()
            await asyncio.sleep(11)  # longer than a lease
            plant.open()
            answer = await asyncio.to_thread(plant.answer, message)
            ledger = await asyncio.to_thread(plant.ledger)
    assert answer == "Done: 1 call.\nbash (ok): deploy by w1"
    assert ledger == ["done"]
