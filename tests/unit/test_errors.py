"""The error tree: one root, causes as bases, codes, hints, one table of reactions."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Iterator

import pytest

from laneway import errors
from laneway.errors import (
    REACTIONS,
    ClosedError,
    ConfigError,
    ConflictError,
    DrainingError,
    DuplicateJobError,
    GiveUp,
    InternalError,
    InvalidTransitionError,
    JobFailedError,
    JobTimeoutError,
    LaneCycleError,
    LaneFullError,
    LanewayError,
    RetryLater,
    UnknownJobError,
    UnknownLaneError,
    UsageError,
    WrongThreadError,
    reaction_to,
)

EXAMPLES: list[LanewayError] = [
    ConfigError("concurrency must be …", setting="concurrency", value=-1),
    UnknownLaneError(lane="exekute", suggestion="execute", known=("execute",)),
    UnknownLaneError(lane="zzz", known=("execute", "query")),
    UnknownJobError(job_id="job-1"),
    LaneCycleError(job_id="job-1", target_id="job-2", path=("job-1", "job-2", "job-1")),
    WrongThreadError(call="submit"),
    InvalidTransitionError(job_id="job-1", state="running", trigger="start"),
    DuplicateJobError(key="k", job_id="job-1"),
    LaneFullError(lane="execute", queued_max=10, waiting=10),
    DrainingError(purpose="restart"),
    DrainingError(purpose="stop"),
    ClosedError(opened=True),
    ClosedError(opened=False),
    JobTimeoutError("job job-1 timed out", job_id="job-1", lane="execute", reason="ran 5 ms"),
    InternalError("a slot was freed twice"),
]


def error_classes() -> Iterator[type[LanewayError]]:
    for _, cls in inspect.getmembers(errors, inspect.isclass):
        if issubclass(cls, LanewayError):
            yield cls


def test_every_class_has_a_code_of_its_own_and_stands_in_the_picture() -> None:
    classes = list(error_classes())
    codes = [cls.code for cls in classes]
    assert len(set(codes)) == len(codes)
    assert all(cls.__name__ in (errors.__doc__ or "") for cls in classes)
    assert all(cls.__doc__ for cls in classes)
    assert {cls.__name__ for cls in classes} <= set(errors.__all__)


def test_the_tree_is_the_one_in_the_design() -> None:
    bases = {base.__name__ for base in LanewayError.__subclasses__()}
    expected = {"UsageError", "ConflictError", "UnavailableError", "DeniedError", "JobFailedError", "InternalError"}
    assert bases == expected
    usage = {"ConfigError", "InvalidJobError", "UnknownLaneError", "UnknownJobError", "LaneCycleError"}
    assert usage <= {cls.__name__ for cls in UsageError.__subclasses__()}
    conflict = {"InvalidTransitionError", "DuplicateJobError", "LaneFullError", "DrainingError", "ClosedError"}
    assert conflict <= {cls.__name__ for cls in ConflictError.__subclasses__()}
    ends = [
        "JobAbortedError",
        "JobCancelledError",
        "JobTimeoutError",
        "RunFailedError",
        "ToolFailedError",
        "WaitTimeoutError",
    ]
    assert sorted(cls.__name__ for cls in JobFailedError.__subclasses__()) == ends
    assert [cls.__name__ for end in JobFailedError.__subclasses__() for cls in end.__subclasses__()] == [
        "RunCancelledError"
    ]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_shows_its_hint_and_survives_copies_and_processes(error: LanewayError) -> None:
    assert str(error).startswith(error.message)
    assert error.hint in str(error)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):  # noqa: S301 - our own bytes
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)


def test_an_error_names_the_thing_its_state_and_the_way_out() -> None:
    full = LaneFullError(lane="execute", queued_max=10, waiting=10)
    assert all(word in str(full) for word in ("'execute'", "10 wait", "at most 10", "raise queued_max"))
    closed = ClosedError(opened=False)
    assert "async with" in closed.hint
    cycle = LaneCycleError(job_id="a", target_id="b", path=("a", "b", "a"))
    assert "a waits for b waits for a" in str(cycle)
    assert cycle.hint
    moved = InvalidTransitionError(job_id="job-1", state="running", trigger="start")
    assert all(word in str(moved) for word in ("job-1", "running", "start"))
    assert "report" in InternalError("x").hint


def test_one_table_maps_every_error_to_a_status_and_an_exit_code() -> None:
    assert {cls: reaction_to(cls.__new__(cls)) for cls in REACTIONS} == REACTIONS
    for error in EXAMPLES:
        reaction = reaction_to(error)
        assert 400 <= reaction.http_status < 600
        assert 0 < reaction.exit_code < 128
    assert reaction_to(EXAMPLES[0]) == REACTIONS[UsageError]
    assert reaction_to(LanewayError("unheard of")) == REACTIONS[LanewayError]


def test_signals_are_not_errors_of_ours() -> None:
    assert not issubclass(RetryLater, LanewayError)
    assert not issubclass(GiveUp, LanewayError)
    later = RetryLater(1_000, "quota")
    assert (later.after_ms, later.reason, str(later)) == (1_000, "quota", "quota")
    assert "500 ms" in str(RetryLater(500))
    assert GiveUp("closed").reason == "closed"
