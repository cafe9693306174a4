"""A worker: takes external tasks over a transport, does them in a workspace of its own, and says what became of them.

```python
worker = Worker(transport, workspace="/srv/checkout", concurrency=4)       # the built-in tools
worker = Worker(transport, handlers={"bash": run_in_container})            # functions of one's own
await worker.run()                                                         # until somebody calls stop()
```

A worker asks only for what it can do, and leaves the rest to others. Nothing is begun before the host has answered that
it may begin. While it works, a worker shows a sign of life three times within each lease, and by the answer it learns
that nobody wants the task any more: then it stops the work. When the host cannot be reached it goes on with what it has
begun, asks again after 0.1 to 5 seconds, and delivers what it has found when the host is back.

```text
Worker      takes tasks, as many as it has room for; starts and stops     worker.py
├─ HostLine what it says to its host, and when it says it again           host_line.py
├─ Work     one task, from the lease to the last word about it            work.py
└─ Hands    what does the tasks: handlers, tools, folders                 hands.py
```
"""

from laneway.worker.settings import WorkerLimits
from laneway.worker.worker import THREADS, Worker, WorkerNews, WorkerStats

__all__ = ("THREADS", "Worker", "WorkerLimits", "WorkerNews", "WorkerStats")
