"""A command that asks a server outlives one that hangs up."""

from __future__ import annotations

import signal

import pytest

from laneway.cli.client import Server, Target
from laneway.cli.link import Link


@pytest.mark.parametrize("kind", [Server, Link])
def test_a_connection_that_is_closed_does_not_end_the_process(kind: type[Server] | type[Link]) -> None:
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        kind(Target())
        assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGPIPE, before)
