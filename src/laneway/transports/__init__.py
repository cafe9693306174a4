"""Transports: how workers reach the desk of a host.

`local` is in this process, `http` reaches a gateway; `wire` has the frames for all others.

To bring your own: carry the text of a frame to the host, give it to `serve`, and carry the answer back.

```python
transport = FrameTransport(exchange)        # on the worker: `await exchange(frame)` returns the answer, as text
answer = await serve(desk, frame)           # on the host; a frame that makes no sense is answered, too
```

It is finished when `laneway.testing.transports.check_transport` passes.
"""

from __future__ import annotations

from laneway.transports.http import HttpTransport
from laneway.transports.local import LocalTransport
from laneway.transports.wire import FRAME_MAX, Desk, FrameTransport, serve

__all__ = ("FRAME_MAX", "Desk", "FrameTransport", "HttpTransport", "LocalTransport", "serve")
