"""The benchmark of Laneway: `python -m bench`. Ratios first; absolute numbers belong to the machine.

Every sample runs in a fresh process with the same imports and Python's default garbage collection. The cases of a
workload take turns, round by round, in alternating order, so that a noisy moment hits all of them; the best sample of
each case counts (the worst for memory and wake-ups). Time in which other processes had the cores is taken off where
the system tells it (Linux).
"""
