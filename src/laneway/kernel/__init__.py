"""The kernel: every decision, and nothing else.

Theory of operation. The kernel is a value that changes only when one of its handlers is called. A handler gets a
command (submit, finish, stop …) and the time, decides, and returns effects (start this, settle that) for the engine
to carry out. It never waits, reads no clock, draws no random number and imports nothing that does, so a run is
determined by its commands: it can be simulated, replayed and checked against a naive model.

How the files hang together, from the inside out:

- `protocol`    commands in, effects out
- `jobs`        one job: its states and the table of transitions
- `queues`      the order inside one lane
- `histograms`  durations in constant memory
- `lanes`       lanes, and the caps that lanes share
- `timers`      when there is something to do
- `lending`     jobs that wait for jobs
- `registry`    which lanes there are
- `admission`   how a job that waits comes to run
- `endings`     how attempts and jobs end
- `scheduler`   the handlers
- `explain`     why a job is where it is, and what is going on
"""
