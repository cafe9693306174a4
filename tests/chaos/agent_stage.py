"""The stage of the crash tables: plays scenes in processes of their own, one after the other, without starting Python
each time.

`python -m tests.chaos.agent_stage MODULE` reads scenes from its standard input, one JSON object per line, forks a
process for each, in which the module's `live` plays it, and answers with its exit code (negative: the signal that ended
it). It has neither threads nor an event loop, so that it may fork. `Stage` is the other end.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Self

__all__ = ("Stage",)

ROOT = Path(__file__).resolve().parents[2]


class Stage:
    """A stage as seen by a test: `stage.play({...})` is the exit code of one life."""

    def __init__(self, module: str = "tests.chaos.agent_scene") -> None:
        command = [sys.executable, "-m", "tests.chaos.agent_stage", module]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def play(self, scene: dict[str, Any]) -> int:
        """Play a scene in a new process and wait for its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(scene)}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the stage itself has ended"
        return int(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes its input: it ends by itself
            pass


def main() -> None:
    """Play what is asked for, until there is no more."""
    scene = importlib.import_module(sys.argv[1])
    scene.warm_up()
    for line in sys.stdin:
        facts = json.loads(line)
        child = os.fork()
        if not child:
            code = 70
            try:
                code = scene.live(facts)
            except BaseException:  # noqa: BLE001 - nothing of the parent may run in the child, whatever happens
                with (Path(facts["folder"]) / "log").open("a", encoding="utf-8") as log:
                    traceback.print_exc(file=log)
            finally:
                os._exit(code)
        status = os.waitpid(child, 0)[1]
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
