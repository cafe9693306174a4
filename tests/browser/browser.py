"""A browser for the tests of the dashboard: `python -m tests.browser.browser` gets one if there is none.

Debian's own `chromium` if this user may install it (root, or sudo without a password), else the one of Playwright. If
neither can be had it says so and ends with 1; the tests that need a browser fail then, they are not left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

__all__ = ("NAMES", "find", "main")

NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
PLAYWRIGHT: Final = (sys.executable, "-m", "playwright", "install", "chromium")


def find() -> str | None:
    """A browser of this machine, if it has one."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def _own() -> str | None:
    """Playwright's own browser, if it was fetched."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def _by_debian() -> list[str] | None:
    """What comes before `apt-get`, if this user may install something; None if not."""
    if not shutil.which("apt-get"):
        return None
    if os.geteuid() == 0:
        return []
    if (
        shutil.which("sudo")
        and subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0
    ):
        return ["sudo", "-n"]
    return None


def _run(command: list[str] | tuple[str, ...]) -> bool:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        _say(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.returncode == 0


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> int:
    """Make sure that there is a browser; 0 if there is."""
    if find() or _own():
        return 0
    before = _by_debian()
    if before is not None:
        _say("Installing chromium for the tests of the dashboard (a minute, the first time)")
        apt = [*before, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-y"]
        _run([*apt, "update"])
        if _run([*apt, "install", "--no-install-recommends", "chromium"]) and find():
            return 0
    _say("Fetching a browser for the tests of the dashboard (a minute, the first time)")
    if _run(PLAYWRIGHT) and _own():
        return 0
    _say("There is no browser, and none can be had: the tests of the dashboard will fail. Install chromium.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
