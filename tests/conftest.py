"""What holds for every test: Hypothesis profiles, and that no test ever calls a real model.

`ci` is the default and always draws the same examples. Look for new ones with `--hypothesis-profile=explore`.
"""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

from laneway.models import forbid_real_models

settings.register_profile(
    "ci", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("ci")

forbid_real_models()  # but for servers on this machine
os.environ["LANEWAY_REAL_MODELS"] = "0"  # for the processes that tests start

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # a shell that runs the tests in the background has them ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)
