"""What somebody's own module gives to `laneway worker`: a Worker, a dict of handlers, or a list of tools."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from laneway.errors import ConfigError, LanewayError, describe
from laneway.worker import Worker

__all__ = ("Found", "found_in")

Found = Worker | dict[str, Any] | list[Any]
NAMES: Final = ("worker", "handlers", "tools")
"""What is looked for when nobody says it."""
WHAT: Final = 'worker = Worker() with @worker.handler("bash"), handlers = {"bash": run}, or tools = [my_tool]'


def found_in(place: str) -> Found:
    """What `module:name` or `file.py:name` means."""
    where, name = _parts(place)
    module = _from_file(where) if where.endswith(".py") else _from_name(where)
    return _named(module, where, name)


def _parts(place: str) -> tuple[str, str]:
    where, colon, name = place.rpartition(":")
    if not colon:
        where, name = place, ""
    if not where.strip() or (colon and not name.strip()):
        raise ConfigError(
            f"{place!r} names no handlers", setting="handlers", value=place, hint="--handlers my_module:worker"
        )
    return where, name


def _from_file(where: str) -> ModuleType:
    path = Path(where).expanduser().resolve()
    if not path.is_file():
        raise ConfigError(
            f"there is no file {where} with handlers",
            setting="handlers",
            value=where,
            hint="the path begins at the current folder",
        )
    _look_in(str(path.parent))  # what lies beside it can be imported
    name = f"laneway_handlers_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as an import would: dataclasses look there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _broken(where, error) from error
    return module


def _from_name(where: str) -> ModuleType:
    _look_in(os.getcwd())
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is not None and (where == error.name or where.startswith(f"{error.name}.")):
            hint = f"it is looked for in {os.getcwd()} and where Python looks; a file is named with its .py"
            raise ConfigError(f"there is no module {where}", setting="handlers", value=where, hint=hint) from None
        raise _broken(where, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(where, error) from error


def _look_in(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _broken(where: str, error: BaseException) -> ConfigError:
    said = str(error) if isinstance(error, LanewayError) else describe(error)
    return ConfigError(
        f"{where} could not be loaded: {said}", setting="handlers", value=where, hint="laneway --debug shows where"
    )


def _named(module: ModuleType, where: str, name: str) -> Found:
    names = [name] if name else [each for each in NAMES if hasattr(module, each)]
    if not names:
        raise ConfigError(f"{where} has neither {', '.join(NAMES[:-1])} nor {NAMES[-1]}", setting="handlers", hint=WHAT)
    if not hasattr(module, names[0]):
        there = [each for each in vars(module) if not each.startswith("_")]
        close = difflib.get_close_matches(name, there, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(there[:20]) or 'nothing'}"
        raise ConfigError(f"{where} has no {name!r}", setting="handlers", value=name, hint=hint)
    found = getattr(module, names[0])
    if isinstance(found, Worker):
        return found
    if isinstance(found, Mapping):
        return dict(found)
    if isinstance(found, list | tuple):
        return list(found)
    said = f"{names[0]!r} of {where} is {type(found).__name__}, and no Worker, dict of handlers or list of tools"
    raise ConfigError(said, setting="handlers", value=found, hint=WHAT)
