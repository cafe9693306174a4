"""Lists of seeds that found something once: a seed and what it found on each line, comments after `#`."""

from __future__ import annotations

from pathlib import Path

__all__ = ("regressions",)


def regressions(name: str) -> list[tuple[int, str]]:
    """What a list beside this module says."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return [(int(seed), what) for seed, what in (line.split(maxsplit=1) for line in lines if line and line[0] != "#")]
