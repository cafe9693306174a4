"""Retries with back-off, a job that asks to come back later, and the dead letters: look, mend, send again."""

from __future__ import annotations

import asyncio

from laneway import GiveUp, JobFailedError, Lanes, RetryLater, RetryPolicy


class Server:
    """Answers the third time."""

    def __init__(self) -> None:
        self.calls = 0
        self.rested = False

    async def fetch(self, path: str) -> str:
        self.calls += 1
        if path.startswith("ftp:"):
            raise GiveUp("only https is served here")
        if not self.rested:
            self.rested = True
            raise RetryLater(30, "the server asked for a rest")
        if self.calls < 4:
            raise ConnectionError("no answer")
        return f"200 {path}"


async def main() -> None:
    server = Server()
    policy = RetryPolicy.exponential(3, initial_delay_ms=20)
    async with Lanes({"query": 2}) as lanes:
        job = lanes.submit("query", server.fetch, "https://example.org/", retry=policy)
        print(f"{await job} after {job.attempt} attempts")

        dead = lanes.submit("query", server.fetch, "ftp://example.org/", retry=policy, label="the old address")
        try:
            await dead
        except JobFailedError as error:
            print(f"{dead.state}: {error}")

        for letter in lanes.dead_letters.list():
            print(f"dead letter {letter.label!r}: {letter.handler}{letter.args} died of {letter.reason!r}")
            lanes.dead_letters.edit(letter.id, args=["https://example.org/new"])
        (again,) = lanes.dead_letters.retry()
        print(f"{await again}, {len(lanes.dead_letters)} dead letters left")


if __name__ == "__main__":
    asyncio.run(main())
