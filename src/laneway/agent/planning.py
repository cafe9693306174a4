"""Planning: a run first asks its model for a plan, then does it step by step, on the same road as any other run.

`laneway.kernel.plans` decides. This asks the hooks, and tells whoever watches what has changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laneway.agent_events import PlanningEndEvent, PlanningStartEvent, StepEndEvent, StepStartEvent, TaskUpdatedEvent
from laneway.errors import RunCancelledError, text_of
from laneway.kernel.hooks import HookAction
from laneway.kernel.plans import Course, Phase, Plan, PlanStep, StepStatus, plan_tools, replay

if TYPE_CHECKING:
    from laneway.agent.book import Book
    from laneway.agent.loop import Run
    from laneway.dialogue import Prompt, ToolSpec
    from laneway.kernel.rounds import Round

__all__ = ("Planner",)


class Planner:
    """The plan of one run, as far as others see it."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.course: Course | None = None
        self.due: tuple[Prompt, ...] = ()  # what the model of a run that goes on has to be told
        self._asks = False  # a plan has been announced, and is not there yet
        self._told: Plan | None = None
        self._is_over = False

    # ---- at the beginning ----

    async def begin(self, prompt: str) -> None:
        """Ask for a plan first, if the session wants one and no hook says no."""
        settings = self._run.session.settings
        if not settings.planning:
            return
        course = Course(settings.max_plan_steps)
        reason = await self._refusal(prompt)
        self._run.emit(PlanningStartEvent(prompt=prompt))
        if reason:
            self._run.emit(PlanningEndEvent(steps=0, reason=reason))
            return
        self.course = course
        self._asks = True
        self._run.machine.begin_plan(course)

    async def _refusal(self, prompt: str) -> str:
        """Why there is to be no plan; empty if nobody minds."""
        session = self._run.session
        if not session.hooks.wants("pre_planning"):
            return ""
        verdict = await session.hooks.decide("pre_planning", self._payload(prompt=prompt), wait=session.host.wait)
        return "" if verdict.action is HookAction.CONTINUE else verdict.reason

    def _payload(self, **more: Any) -> dict[str, Any]:
        return {"session_id": self._run.session.session_id, "run_id": self._run.id, **more}

    def resume(self, book: Book, last: Round) -> None:
        """Go on with the plan of the runs that end with this round, as their rounds tell it."""
        line = _line_of(book, last.run_id)
        found = replay(line)
        if found is not None:
            self._run.recording.goes_on_for(line)
            self.course, self.due = found

    def resumed(self) -> None:
        """It goes on: whoever watches is told where it is."""
        if self.course is not None and self.course.phase is Phase.PLANNING:
            self._asks = True
            self._run.emit(PlanningStartEvent(prompt=self._run.turn.prompt))
        self.tell()

    # ---- while it runs ----

    def tools(self) -> tuple[ToolSpec, ...]:
        """What the model may call now."""
        return plan_tools(self.course, self._run.session.tool_specs)

    def answered(self, one: Round) -> None:
        """Tell of the calls that were about the plan: they have ended already."""
        course = self.course
        if course is None:
            return
        for call in filter(course.takes, one.answer.calls):
            self._run.calls_made += 1
            if course.phase is not Phase.PLANNING:  # of which other events tell
                self._run.calls.tell_end(one.results[call.id], 0)

    async def closed(self) -> None:
        """A round is on disk: tell what it has changed."""
        asked = self._asks
        self.tell()
        hooks = self._run.session.hooks
        if asked and not self._asks and hooks.wants("post_planning"):
            assert self.course is not None
            plan = self.course.plan
            steps = [] if plan is None else [step.to_task() for step in plan.steps]
            goal = "" if plan is None else plan.goal
            await hooks.tell("post_planning", self._payload(goal=goal, steps=steps, reason=self.course.reason))

    def finished(self, one: Round) -> None:
        """The answer of the run is on disk: it may be that of its only step."""
        if self.course is not None:
            self.course.heard(one)
            self.tell()

    def ended(self, error: BaseException) -> None:
        """The run has ended before its time, and so has its step. Only the first time counts."""
        if self.course is None or self._is_over or self._run.goes_on_later:
            return
        self.tell()
        self._is_over = True
        if self._asks:
            self._asks = False
            self._run.emit(PlanningEndEvent(steps=0, reason=text_of(error)))
        plan = self._told
        step = None if plan is None else plan.current
        if plan is None or step is None:
            return
        status = "cancelled" if isinstance(error, RunCancelledError) else StepStatus.FAILED.value
        end = {"status": status, "result": text_of(error)}
        self._tell_end(plan, step, **end)
        self._run.emit(
            TaskUpdatedEvent(tasks=tuple(each.to_task() | (end if each is step else {}) for each in plan.steps))
        )

    def outline(self) -> str:
        """What a summary of the conversation must not lose; empty without a plan."""
        plan = None if self.course is None else self.course.plan
        return "" if plan is None else f"\n{plan.outline()}"

    # ---- telling ----

    def tell(self) -> None:
        """Tell what has changed since the last time."""
        course = self.course
        if course is None or self._is_over or course.phase is Phase.PLANNING:
            return
        plan, told = course.plan, self._told
        if self._asks:
            self._asks = False
            self._run.emit(PlanningEndEvent(steps=0 if plan is None else len(plan.steps), reason=course.reason))
        if plan is None or plan is told:
            return
        self._told = plan
        before = None if told is None else told.current
        after = plan.current
        if before is not None and (after is None or after.id != before.id):
            ended = plan.find(before.id)
            assert ended is not None
            self._tell_end(plan, ended, status=ended.status.value, result=ended.result)
        self._run.emit(TaskUpdatedEvent(tasks=tuple(step.to_task() for step in plan.steps)))
        if after is not None and (before is None or after.id != before.id):
            number, total = plan.number(after.id), len(plan.steps)
            self._run.emit(
                StepStartEvent(step_id=after.id, step_number=number, total_steps=total, description=after.content)
            )

    def _tell_end(self, plan: Plan, step: PlanStep, *, status: str, result: str) -> None:
        number, total = plan.number(step.id), len(plan.steps)
        self._run.emit(StepEndEvent(step_id=step.id, step_number=number, total_steps=total, status=status, text=result))


def _line_of(book: Book, run_id: str) -> list[Round]:
    """The rounds of a run and of those that it goes on for, in order; what it has taken over is its own."""
    line: list[Round] = []
    while run_id:
        rounds = book.run(run_id)
        line = [one for one in rounds if not line or one.number < line[0].number] + line
        run_id = book.lineage.get(run_id, "")
    return line
