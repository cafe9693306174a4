"""How many connections a server lets in, by what the system lets it open."""

from __future__ import annotations

import subprocess
import sys

import pytest

from laneway.gateway.connections import room_of
from laneway.gateway.settings import GatewaySettings


@pytest.mark.parametrize(
    ("files", "room"),
    [
        (None, (20_000, 5_000)),
        (65_536, (20_000, 5_000)),
        (21_024, (20_000, 5_000)),
        (21_023, (19_999, 5_000)),
        (1_024, (768, 384)),
        (80, (16, 8)),
        (10, (8, 4)),
    ],
)
def test_some_files_are_left_for_the_store_and_for_tools(files: int | None, room: tuple[int, int]) -> None:
    assert room_of(GatewaySettings(), files) == room


def test_what_is_asked_for_is_never_exceeded() -> None:
    settings = GatewaySettings(connections_max=10, connections_per_address=3)
    assert room_of(settings, 80) == (10, 3)
    assert room_of(GatewaySettings(connections_per_address=3), 80) == (16, 3)


@pytest.mark.slow
def test_a_server_opens_as_many_files_as_the_system_lets_it_and_says_so_if_they_are_few() -> None:
    code = """
import logging, resource
logging.basicConfig()
from laneway.gateway.connections import protocol_of, raise_file_limit
from laneway.gateway.settings import GatewaySettings
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 400))
raise_file_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
doors = protocol_of(GatewaySettings()).doors
print(sum(doors.enter(f"10.0.0.{number % 4}") is None for number in range(500)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["(400, 400)", "300"], done.stderr
    assert "at most 300 connections, 150 from one address" in done.stderr
