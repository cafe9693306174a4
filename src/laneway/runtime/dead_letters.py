"""Dead letters: jobs whose retries were used up, kept for a person to look at, mend and send again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from laneway.errors import UnknownJobError
from laneway.records import DeadLetter, JobId

if TYPE_CHECKING:
    from laneway.runtime.handles import Job

    Letters = list[DeadLetter]
    Jobs = list[Job[Any]]

__all__ = ("DeadLetters",)


@dataclass(frozen=True, slots=True)
class _Kept:
    letter: DeadLetter
    again: Callable[[DeadLetter], Job[Any]]
    changed: Callable[[DeadLetter | None], None] | None


class DeadLetters:
    """At most `dlq_max_size` of them; the oldest goes when there is one too many, and is counted in `dropped`.

    Those of durable jobs are kept in the store, and what is done to them here is stored too. Their one argument is the
    payload.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._kept: dict[JobId, _Kept] = {}
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._kept)

    def list(self, lane: str | None = None) -> Letters:
        """All of them, oldest first, or those of one lane."""
        return [kept.letter for kept in self._kept.values() if lane is None or lane in kept.letter.lanes]

    def show(self, job_id: str) -> DeadLetter:
        """One of them."""
        return self._find(job_id).letter

    def edit(
        self,
        job_id: str,
        *,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> DeadLetter:
        """Change what it will be called with when it is retried."""
        kept = self._find(job_id)
        letter = replace(
            kept.letter,
            args=kept.letter.args if args is None else tuple(args),
            kwargs=kept.letter.kwargs if kwargs is None else dict(kwargs),
        )
        if kept.changed is not None:
            kept.changed(letter)
        self._kept[letter.id] = replace(kept, letter=letter)
        return letter

    def retry(self, *job_ids: str) -> Jobs:
        """Submit these again as new jobs (all of them without ids); they leave the dead letters."""
        letters = [self._find(job_id) for job_id in dict.fromkeys(job_ids)] if job_ids else [*self._kept.values()]
        jobs = []
        for kept in letters:
            jobs.append(kept.again(kept.letter))
            del self._kept[kept.letter.id]
        return jobs

    def purge(self, *job_ids: str) -> int:
        """Forget these (all of them without ids); says how many."""
        found = [self._find(job_id) for job_id in dict.fromkeys(job_ids)] if job_ids else [*self._kept.values()]
        for kept in found:
            self._drop(kept)
        return len(found)

    def keep(
        self,
        letter: DeadLetter,
        again: Callable[[DeadLetter], Job[Any]],
        changed: Callable[[DeadLetter | None], None] | None = None,
    ) -> None:
        """Keep one more; the oldest goes if there are too many.

        `again` submits it as a new job. `changed` hears what it was edited to (and may refuse), and None when it goes.
        """
        self._kept[letter.id] = _Kept(letter, again, changed)
        while len(self._kept) > self._max_size:
            self._drop(next(iter(self._kept.values())))
            self.dropped += 1

    def _drop(self, kept: _Kept) -> None:
        if kept.changed is not None:
            kept.changed(None)
        del self._kept[kept.letter.id]

    def _find(self, job_id: str) -> _Kept:
        kept = self._kept.get(JobId(job_id))
        if kept is None:
            raise UnknownJobError(job_id=job_id, hint="it is not among the dead letters")
        return kept
