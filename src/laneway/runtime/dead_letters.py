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


class DeadLetters:
    """At most `dlq_max_size` of them; the oldest goes when there is one too many, and is counted in `dropped`."""

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
        letters = [self._find(job_id).letter for job_id in dict.fromkeys(job_ids)] if job_ids else self.list()
        for letter in letters:
            del self._kept[letter.id]
        return len(letters)

    def keep(self, letter: DeadLetter, again: Callable[[DeadLetter], Job[Any]]) -> None:
        """Keep one more; the oldest goes if there are too many."""
        self._kept[letter.id] = _Kept(letter, again)
        while len(self._kept) > self._max_size:
            del self._kept[next(iter(self._kept))]
            self.dropped += 1

    def _find(self, job_id: str) -> _Kept:
        kept = self._kept.get(JobId(job_id))
        if kept is None:
            raise UnknownJobError(job_id=job_id, hint="it is not among the dead letters")
        return kept
