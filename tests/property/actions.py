"""What can happen to a world, one random command at a time."""

from __future__ import annotations

from laneway.kernel.protocol import End, Stop
from laneway.records import JobState
from tests.property.worlds import SESSIONS, Choices, Node, World, chance, draw_lanes, draw_spec

ENDS = [End.SUCCEEDED, End.FAILED, End.CANCELLED, End.RETRY_LATER, End.GAVE_UP]


class Actions:
    """Draws the details of a command and gives it; does nothing where there is nothing to do."""

    def __init__(self, world: World, *, closable: tuple[str, ...] | None = None) -> None:
        self.world = world
        self.closable = closable if closable is not None else (*world.setup.lanes, *SESSIONS)

    def submit(self, choices: Choices) -> None:
        """A job from outside."""
        lanes = draw_lanes(choices, self.world.setup)
        self.world.submit(lanes, draw_spec(choices), threaded=chance(choices, 4))

    def submit_many(self, choices: Choices) -> None:
        """Several plain jobs, so that something waits."""
        lanes = draw_lanes(choices, self.world.setup)
        for _ in range(choices.number(2, 4)):
            self.world.submit(lanes, draw_spec(choices))

    def finish(self, choices: Choices) -> None:
        """The code of a job, or the block of a slot, comes to its end."""
        ready = [node for node in self.world.nodes.values() if self.world.can_finish(node)]
        if ready:
            self._finish(choices, choices.pick(ready))

    def finish_early(self, choices: Choices) -> None:
        """A job ends although tasks that it left behind still wait."""
        if begun := self.world.begun():
            self._finish(choices, choices.pick(begun))

    def _finish(self, choices: Choices, node: Node) -> None:
        if node.is_slot:
            self.world.finish(node)
            return
        end = End.SUCCEEDED if chance(choices, 2) else choices.pick(ENDS)
        self.world.finish(node, end, after_ms=choices.number(0, 9), reason="because")

    def finish_late(self, choices: Choices) -> None:
        """An abandoned attempt comes back, or an attempt that never was: nothing but its thread changes."""
        if self.world.zombies:
            self.world.return_thread(choices.pick(sorted(self.world.zombies)))
        elif nodes := list(self.world.nodes.values()):
            node = choices.pick(nodes)
            self.world.do("finish", node.id, node.attempt + 1 if node.state is JobState.RUNNING else node.attempt - 1)
            assert not self.world.started

    def stop(self, choices: Choices) -> None:
        """A job is cancelled or aborted."""
        jobs = [node for node in self.world.nodes.values() if not node.is_slot]
        if jobs:
            self.world.stop(choices.pick(jobs), choices.pick([Stop.CANCEL, Stop.ABORT]))

    def stop_waiting(self, choices: Choices) -> None:
        """Everything that has not begun is cancelled."""
        name = choices.pick([None, *self.world.kernel.registry.lanes])
        self.world.do("stop_waiting", name, "asked")
        for node in self.world.nodes.values():
            assert node.state not in (JobState.QUEUED, JobState.SCHEDULED) or (
                name is not None and name not in node.lanes
            )

    def submit_child(self, choices: Choices) -> None:
        """A job from inside a job, awaited or not."""
        if begun := self.world.begun():
            up = choices.pick(begun)
            lanes = draw_lanes(choices, self.world.setup)
            child = self.world.submit(lanes, draw_spec(choices), up=up, threaded=chance(choices, 5))
            if child is not None and not child.ended and not up.ended and chance(choices, 2):
                self.world.begin_wait(up, child)

    def open_slot(self, choices: Choices) -> None:
        """A slot inside a job, or on its own."""
        begun: list[Node | None] = list(self.world.begun())
        up = choices.pick([*begun, *begun, None])
        self.world.open_slot(draw_lanes(choices, self.world.setup), draw_spec(choices), up)

    def begin_wait(self, choices: Choices) -> None:
        """A job waits for any other job."""
        begun = self.world.begun()
        targets = [node for node in self.world.nodes.values() if not node.is_slot]
        if begun and targets:
            self.world.begin_wait(choices.pick(begun), choices.pick(targets))

    def cancel_wait(self, choices: Choices) -> None:
        """The task that waits is cancelled."""
        if self.world.waits:
            self.world.cancel_wait(choices.pick(sorted(self.world.waits)))

    def resize(self, choices: Choices) -> None:
        """Another width, and perhaps another depth."""
        name = self._lane(choices)
        most = 1 if name.startswith("session:") else 3
        depth = choices.number(0, 3) if chance(choices, 5) else None
        self.world.do("resize", name, choices.number(0, most), depth)

    def pause(self, choices: Choices) -> None:
        """A lane is paused."""
        self.world.do("pause", self._lane(choices))

    def resume(self, choices: Choices) -> None:
        """A lane is resumed."""
        self.world.do("resume", choices.pick(list(self.world.kernel.registry.lanes)))

    def close_lane(self, choices: Choices) -> None:
        """A limit is closed for a while."""
        for_ms = choices.number(1, 30)
        self.world.do("close_lane", choices.pick(self.closable), for_ms, self.world.now + for_ms, "busy")

    def reopen_lane(self, choices: Choices) -> None:
        """A limit is opened."""
        self.world.do("reopen_lane", choices.pick(list(self.world.kernel.registry.lanes)))

    def pass_time(self, choices: Choices) -> None:
        """Time passes in one step."""
        self.world.pass_time(choices.pick([1, 2, 5, 10, 30, 100]))

    def be_on_time(self, choices: Choices) -> None:
        """Time passes to the next moment at which there is something to do."""
        due = self.world.kernel.next_due()
        if due is not None and due > self.world.now:
            self.world.pass_time(due - self.world.now)
        else:
            self.world.pass_time(choices.number(0, 3))

    def be_late(self, choices: Choices) -> None:
        """Time passes and the timer of the engine has not fired yet."""
        self.world.pass_time(choices.pick([1, 5, 30]), tick=False)

    def drain(self, choices: Choices) -> None:
        """No new work, or new work again."""
        if self.world.kernel.draining is None and chance(choices, 2):
            self.world.do("drain", "stop")
        else:
            self.world.do("reopen")

    def _lane(self, choices: Choices) -> str:
        return choices.pick([*self.world.setup.lanes, *SESSIONS])


PLAIN = (
    ["submit"] * 6
    + ["submit_many"] * 4
    + ["finish"] * 9
    + ["be_on_time"] * 4
    + ["pass_time"] * 3
    + ["stop", "resize", "pause", "resume", "resume", "close_lane", "reopen_lane"]
    + ["finish_late", "stop_waiting", "drain"]
)
WEIGHTED = (
    ["submit"] * 6
    + ["submit_many"] * 3
    + ["finish"] * 8
    + ["submit_child"] * 5
    + ["open_slot"] * 4
    + ["begin_wait"] * 3
    + ["cancel_wait"] * 2
    + ["be_on_time"] * 4
    + ["pass_time"] * 3
    + ["stop"] * 2
    + ["resize", "pause", "resume", "resume", "close_lane", "reopen_lane", "be_late", "finish_early", "finish_late"]
    + ["stop_waiting", "drain"]
)

LENDING = (
    ["submit"] * 4
    + ["submit_child"] * 8
    + ["open_slot"] * 7
    + ["begin_wait"] * 5
    + ["cancel_wait"] * 4
    + ["finish"] * 8
    + ["stop"] * 2
    + ["pause", "resume", "resume", "resize", "finish_early", "be_on_time", "pass_time", "stop_waiting"]
)
