"""The reference page of the configuration, as Markdown, made from the declaration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, Final

from laneway.config.declaring import Sub
from laneway.config.files import FORMATS
from laneway.config.outside import SKIPPED, variable_of
from laneway.config.settings import ALSO, QUEUE_SHAPE_DEFAULTS, Settings
from laneway.config.shape import STAR, Declared, Path, settings_of, subs_of

__all__ = ("reference_page",)

NOTICE: Final = "<!-- Written by docs/generate.py from the code: change the code, then run `make docs`. -->"
INTRO: Final = """\
A configuration is a file in YAML 1.2, JSON, JSON5, TOML or HCL ({endings}).
YAML and HCL need the extra `config`: `pip install "path/to/laneway[config]"`. Every key may be written in snake_case,
camelCase or kebab-case, but once in its block. An unknown key is refused with its line and what was probably meant. An
empty file sets nothing.

A relative path in a file (`skill_dirs`, `agent_dirs`, `session_store`, `queue.storage_path`, `cwd` of a server, `path`
of a workspace) is meant from the folder of that file; one in a variable, an option or a text from that of the process.

`laneway config check FILE` finds everything that is wrong with a file, `laneway config explain` says where each value
in force came from, `laneway config schema` prints a JSON Schema for editors.
"""
LAYERS: Final = """\
## Who wins

The stronger one last: default, file, workspace (its block in the file, then the `agent.yaml` of its folder),
environment, `--set` on the command line. A setting of a channel counts before that of the queue, wherever it was set.

A variable is `LANEWAY_` and the path in capitals: `LANEWAY_LANES_MAIN_CONCURRENCY=2`. Names in it become lower case,
unless a file knows the name in another spelling. An empty variable sets nothing, `null` takes a limit away.

A text in a file may refer to the environment: `${NAME}`, `${NAME:-default}`, `env("NAME")`, `env("NAME", "default")`;
`$${` is a plain `${`. A variable that is not set is an error. What it holds is shown in no error and by no `explain`,
and neither are keys, headers and addresses with a password, wherever they came from.

In HCL `env("NAME")` stands without quotes, or in a text as `${env("NAME")}`. The labels of a block are names:
`providers "openai" { … }` is `providers: {openai: {…}}`. Nothing is calculated: other functions, variables, operators
and for-expressions are refused.
"""
SHAPES: Final = """\
## Other places

Files of other gateways load as they are. These places mean the same, and a file uses one of them:
"""
SHAPE_DEFAULTS: Final = """\
A file with `queue` at its top that does not only speak of tools has other defaults: {defaults}. When the main file has
`messages` or `agents`, it decides, and the file of a workspace only overrides values.
"""
PYTHON: Final = """\
## In Python

```python
import os

from laneway.config import inbox_options, lanes_options, load, load_agent

effective = load("laneway.yaml", environ=os.environ, workspace="assistant")
effective.settings.queue.mode
str(effective.origin("queue.mode"))  # laneway.yaml:3:9
inbox = Inbox(answer, **inbox_options(effective.settings))
lanes = Lanes(**lanes_options(effective.settings))
agent = load_agent("agent.hcl", environ=os.environ)  # or the text itself
agent.queue  # a SessionQueueConfig, or None
```

All problems of all files come in one `InvalidConfigError`, a `ConfigError`; its `problems` have file, line, column and
path.
"""


def reference_page(notice: str = NOTICE) -> str:
    """The whole page."""
    blocks = [
        "# Configuration",
        notice,
        INTRO.format(endings=", ".join(f"`{ending}`" for ending in FORMATS)).strip(),
        LAYERS.strip(),
        *_sections(Settings, (), None),
        SHAPES.strip(),
        _table(("place", "means"), ((f"`{also.place}`", f"`{_shown(also.target)}`") for also in ALSO)),
        SHAPE_DEFAULTS.format(defaults=" and ".join(map(_default_of, QUEUE_SHAPE_DEFAULTS))).strip(),
        PYTHON.strip(),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _sections(block: type[Any], path: Path, sub: Sub | None) -> Iterator[str]:
    yield f"## {_shown('.'.join(path))}" if path else "## At the top"
    if sub is not None:
        yield sub.says + (f" A bare value is its `{sub.shorthand}`." if sub.shorthand else "")
    yield _table(
        ("setting", "what it means", "values", "default", "variable"),
        [_row((*path, each.name), each) for each in settings_of(block)],
    )
    for inner in subs_of(block):
        below = (*path, inner.name, STAR) if inner.sub.names else (*path, inner.name)
        yield from _sections(inner.block, below, inner.sub)


def _row(path: Path, declared: Declared) -> tuple[str, ...]:
    setting = declared.setting
    each = ".<name>" if setting.names else ""
    names = ", ".join(f"`{name}{each}`" for name in (declared.name, *setting.aliases))
    usual = _value(declared.default) if declared.default is not None else setting.unset or "none"
    path = (*path, STAR) if setting.names else path
    variable = f"`{_variable(path)}`" if path[0] not in (*SKIPPED, "workspaces") else ""
    return names, setting.says, setting.kind.says.removeprefix("one of "), usual, variable


def _variable(path: Path) -> str:
    text = variable_of(path).replace("___", "_<NAME>_")
    return f"{text.removesuffix('__')}_<NAME>" if text.endswith("__") else text


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, StrEnum):
        return f"`{value.value}`"
    return f"{value:,}" if isinstance(value, int) else (value and f"`{value}`") or "empty"


def _default_of(path: Path) -> str:
    return f"`{'.'.join(path)}` is {_value(QUEUE_SHAPE_DEFAULTS[path])}"


def _shown(path: str) -> str:
    return path.replace(STAR, "<name>")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
