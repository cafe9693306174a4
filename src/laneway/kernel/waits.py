"""Which sessions wait for the end of messages of which others: turns that wait for each other in a ring never end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from laneway.rows import Owner

__all__ = ("Waits",)


class Waits:
    """The waits of turns at this moment. A wait counts as long as its turn runs: who is free can answer."""

    def __init__(self, is_running: Callable[[Owner, str], bool]) -> None:
        self._is_running = is_running
        self._on: dict[Owner, Counter[tuple[str, Owner]]] = {}

    def ring(self, who: Owner, whom: Owner) -> list[Owner]:
        """The sessions by which `whom` waits for `who` already, both ends included; empty: it does not."""
        paths = [[whom]]
        seen = {whom}
        for path in paths:
            if path[-1] == who:
                return path
            for turn_id, each in self._on.get(path[-1], ()):
                if each not in seen and self._is_running(path[-1], turn_id):
                    seen.add(each)
                    paths.append([*path, each])
        return []

    def begin(self, turns: Mapping[Owner, str], whom: Owner) -> None:
        """These turns, by their sessions, wait for a message of another session."""
        for owner, turn_id in turns.items():
            self._on.setdefault(owner, Counter())[turn_id, whom] += 1

    def end(self, turns: Mapping[Owner, str], whom: Owner) -> None:
        """They wait no more."""
        for owner, turn_id in turns.items():
            left = self._on[owner]
            left[turn_id, whom] -= 1
            if not left[turn_id, whom]:
                del left[turn_id, whom]
            if not left:
                del self._on[owner]
