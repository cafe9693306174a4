"""A world with the naive model beside the kernel: after every command both have started the same, in the same order."""

from __future__ import annotations

from typing import Any

from laneway.errors import DrainingError, LaneFullError
from laneway.kernel.protocol import Effect, End
from laneway.records import JobId
from tests.property.model import Model, Refused
from tests.property.worlds import Setup, World


class ModelledWorld(World):
    """Every command goes to the kernel and to the model."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        capped = setup.max_concurrent is not None
        self.model = Model(
            setup.lanes,
            max_concurrent=setup.max_concurrent,
            threads_max=None if capped or setup.threads_max >= 1000 else setup.threads_max,
        )
        self.model.arrival_order = self._arrival_order
        self.after.append(self._mirror)
        self._command: tuple[str, tuple[Any, ...], dict[str, Any]] = ("", (), {})

    def do(self, handler: str, *args: Any, **kwargs: Any) -> list[Effect]:
        """Call a handler of the kernel, then the same of the model, and compare."""
        self._command = (handler, args, kwargs)
        try:
            return super().do(handler, *args, **kwargs)
        except (LaneFullError, DrainingError) as refusal:
            expected = "full" if isinstance(refusal, LaneFullError) else "draining"
            found = self._refusal_of_model()
            if found != expected:
                raise AssertionError(f"the kernel says {expected}, the model {found or 'takes it'}") from refusal
            raise

    def _refusal_of_model(self) -> str:
        try:
            self._tell_model()
        except Refused as refused:
            return str(refused)
        return ""

    def _arrival_order(self, job_id: str) -> int:
        """Two jobs that come to a lane in one command: no law says which is first, so ask the kernel."""
        entry = self.kernel.jobs.get(JobId(job_id))
        places = entry.places if entry is not None else None
        stage = self.model.jobs[job_id].stage + 1
        return places[stage] if places is not None and len(places) > stage else 1 << 60

    def _mirror(self) -> None:
        try:
            self._tell_model()
        except Refused as refused:
            raise AssertionError(f"the model says {refused}, the kernel took it") from None
        model = self.model
        kernel_states = {job_id: str(node.state) for job_id, node in self.nodes.items()}
        model_states = {job_id: str(job.state) for job_id, job in model.jobs.items()}
        assert sorted(self.started) == sorted(model.started), f"started {self.started}, the model {model.started}"
        assert kernel_states == model_states
        assert {str(job_id): state for job_id, state in self.final.items()} == model.ended
        for name in {node.lanes[-1] for node in self.nodes.values()}:
            assert self._started_in(name, self.started) == self._started_in(name, model.started)
        if model.pool is not None:
            shared = [j for j in self.started if model.needs_pool(model.jobs[j])]
            expected = [j for j in model.started if model.needs_pool(model.jobs[j])]
            assert shared == expected, f"order {shared}, the model {expected}"

    def _started_in(self, name: str, started: list[Any]) -> list[Any]:
        return [job_id for job_id in started if self.nodes[job_id].lanes[-1] == name]

    def _tell_model(self) -> None:
        model = self.model
        model.started = []
        handler, args, kwargs = self._command
        if handler == "tick":
            model.tick(self.now)
            return
        model.now = self.now
        match handler:
            case "submit":
                model.submit(args[0], args[1], args[2], threaded=kwargs["threaded"])
            case "finish":
                end = args[2] if len(args) > 2 else End.SUCCEEDED
                model.finish(args[0], args[1], end, after_ms=kwargs.get("after_ms", 0))
            case "stop":
                model.stop(args[0], args[1])
            case "stop_waiting" | "pause" | "resume" | "reopen_lane":
                getattr(model, handler)(args[0])
            case "close_lane":
                model.close_lane(args[0], args[1])
            case "resize":
                model.resize(*args)
            case "drain" | "reopen":
                model.draining = handler == "drain"
            case _:
                raise AssertionError(handler)
