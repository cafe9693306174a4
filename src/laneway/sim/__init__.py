"""The simulator: worlds drawn from one integer, in which everything that can go wrong does.

- `loop`         a deterministic asyncio loop in virtual time
- `world`        what a seed decides before a run: lanes, caps, how likely which fault is
- `workers`      what jobs do, drawn during the run
- `shadow`       the simulator's own record of every job, kept from commands and effects
- `picture`      the kernel counted anew after a step
- `order`        the order inside a lane, two jobs at a time
- `starvation`   the bound on waiting at a shared cap
- `checks`       the laws, held against the kernel after every step
- `actions`      what happens from outside
- `kernel_tier`  tier (a): the kernel in a plain loop
- `tally`        who really runs, counted by the jobs themselves
- `engine_tier`  tier (b): `Lanes` through the users' door, on the simulated loop
- `mail_world`   what a seed decides for the inbox: sessions, people, settings, perils
- `mail_store`   a store that fails in every way, over a disk that stays
- `mail_agents`  what handlers and sub-agents do
- `mail_people`  what senders and operators do
- `mail_books`   the simulator's own record of every message, turn and sub-agent
- `mail_witness` every row that is written: final states stay, each change is legal and told
- `mail_mirror`  memory against what a restart would load
- `mail_checks`  the laws that only the end of a run can tell
- `mail_kernel_tier` tier `mailroom`: the kernel of the inbox in a plain loop
- `mail_tier`    tier `mail`: `Inbox` through the users' door, with crashes
- `agent_world`  what a seed decides for agents: sessions, models, tools, perils
- `agent_tier`   tier `agent`: sessions through the users' door, with crashes
- `campaign`     many seeds for a while
- `trace`        lines, their hash, and a failure that can be replayed
"""
