"""Hypothesis profiles; nothing else belongs here.

`ci` is the default and always draws the same examples. Look for new ones with `--hypothesis-profile=explore`.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("ci")
