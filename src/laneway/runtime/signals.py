"""AbortSignal: one switch that ends any number of jobs, from any thread."""

from __future__ import annotations

from collections.abc import Callable

from laneway.errors import text_of

__all__ = ("AbortSignal",)


class AbortSignal:
    """Fires once. Give it to jobs with `signal=`; those that wait leave, those that run are cancelled.

    A sync function that runs in a thread cannot be cancelled; it can look at `aborted` and return.
    """

    __slots__ = ("_listeners", "_reason")

    def __init__(self) -> None:
        self._listeners: dict[int, Callable[[str], None]] = {}
        self._reason: str | None = None

    @property
    def aborted(self) -> bool:
        """Whether it has fired."""
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        """Why it has fired; None before."""
        return self._reason

    def abort(self, reason: str = "aborted") -> None:
        """Fire; a second time changes nothing."""
        if self._reason is not None:
            return
        self._reason = text = text_of(reason)
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            listener(text)

    def listen(self, key: int, listener: Callable[[str], None]) -> None:
        """Be told when it fires; `key` is for `forget`."""
        self._listeners[key] = listener
        reason = self._reason
        if reason is not None:  # it fired on another thread while we came: nobody else would say so
            self._listeners.pop(key, None)
            listener(reason)

    def forget(self, key: int) -> None:
        """Do not tell that listener any more."""
        self._listeners.pop(key, None)
