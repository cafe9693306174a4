"""The kernel against the naive model: the same commands start the same jobs, in the same order."""

from __future__ import annotations

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.property.actions import PLAIN, Actions
from tests.property.laws import Laws, wind_down
from tests.property.modelled import ModelledWorld
from tests.property.worlds import SESSIONS, Drawn, draw_one_cap, effort

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # a failing example takes minutes to shrink


class ModelMachine(RuleBasedStateMachine):
    """At most one shared cap, no groups, no lending: here every start and its place can be told beforehand."""

    def __init__(self) -> None:
        super().__init__()
        self.is_sound = False
        self.world: ModelledWorld | None = None

    @initialize(source=st.data())
    def begin(self, source: st.DataObject) -> None:
        setup = draw_one_cap(Drawn(source))
        self.world = ModelledWorld(setup)
        Laws(self.world)
        names = [name for name in setup.lanes if name != "control"]
        # A job may wait for the limit of a lane that it has passed. Whether it then counts as waiting in its last lane
        # (for a shared cap, for a fair share) is not said, so there only the lane that nobody passes is ever closed.
        is_shared = self.world.model.pool is not None or any(lane.fair_by for lane in setup.lanes.values())
        self.actions = Actions(self.world, closable=(names[-1],) if is_shared else (*names, *SESSIONS))
        self.is_sound = True

    @rule(action=st.sampled_from(PLAIN), source=st.data())
    def act(self, action: str, source: st.DataObject) -> None:
        self.is_sound = False
        getattr(self.actions, action)(Drawn(source))
        self.is_sound = True

    def teardown(self) -> None:
        """Whatever has happened, everything can come to its end, in the order that the model says."""
        if self.world is None:
            return
        try:
            if self.is_sound:
                wind_down(self.world)
        finally:
            note(self.world.story())


TestKernelAgreesWithModel = ModelMachine.TestCase
TestKernelAgreesWithModel.settings = effort(220, steps=40)
