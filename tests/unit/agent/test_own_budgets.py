"""Budgets that single sessions bring along: they come and go with their sessions."""

from __future__ import annotations

from laneway import AsyncAgent, Budget, BudgetScope, MemorySessionStore
from laneway.models import ScriptedModel


async def test_budgets_of_closed_sessions_are_not_in_memory_and_what_was_spent_of_them_stays_spent() -> None:
    own = Budget(name="own", scope=BudgetScope.SESSION, tokens=1_000_000)
    async with AsyncAgent(model=ScriptedModel(), session_store=MemorySessionStore()) as agent:
        kept = agent.session(".", session_id="kept")
        await kept.ready()
        desk, spent = kept.host.budgets, 0
        for _ in range(3):
            session = agent.session(".", session_id="s", budgets=[own])
            await session.send("hello")
            (count,) = desk.budgets.counts.values()
            assert (count.spent.tokens > spent, count.lost.tokens) == (True, 0)
            spent = count.spent.tokens
            await session.close()
            assert (desk.is_idle, desk.budgets.own, desk.budgets.counts) == (True, {}, {})
