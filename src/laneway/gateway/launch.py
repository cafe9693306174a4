"""From options, files and folders to what a gateway is made of. Nothing is opened here, and all problems come at once.

Which workspaces there are: those of `--workspace`; else those that the main file lists; else the folder of the main
file; else the current folder. A workspace that says nothing of approvals gets the safe way: reads are made, everything
else waits for an operator. A workspace without a model gets the one that a key in the environment is for, or the
scripted one, which needs no key. What was chosen so is in `Launch.notes`, for the person who starts it.
"""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from laneway.agent.files import arguments_of
from laneway.config import AgentSettings, Effective, InvalidConfigError, Layer, Problem, Settings, agent_settings, load
from laneway.config.files import WORKSPACE_FILES, find_workspace_file
from laneway.config.problems import Problems
from laneway.errors import ConfigError, InvalidMessageError
from laneway.gateway.channels import channel_problems
from laneway.gateway.settings import GatewaySettings, WorkspaceSpec
from laneway.models import model_from
from laneway.models.providers import TRY
from laneway.policies import ConfirmationPolicy
from laneway.runtime.envelope import check_key

__all__ = ("KEYS", "SCRIPTED", "Launch", "ServeOptions", "gateway_settings", "model_of", "prepare")

T = TypeVar("T")
SCRIPTED: Final = "scripted"
DEFAULT_NAME: Final = "default"
REAL_MODELS: Final = "LANEWAY_REAL_MODELS"
ANSWER_WITHIN_MS: Final = 600_000
"""How long a call waits for an operator where the file does not say: people are not always at the screen."""

KEYS: Final = (
    ("OPENAI_API_KEY", "openai/gpt-5"),
    ("ANTHROPIC_API_KEY", "anthropic/claude-sonnet-4-5"),
    ("GOOGLE_API_KEY", "google/gemini-2.5-pro"),
    ("GEMINI_API_KEY", "google/gemini-2.5-pro"),
)
"""The variables with keys of providers, and the model that is taken if nobody names one."""

FLAGS: Final = {
    "--set default_model": "--model",
    **{f"--set gateway.{name}": f"--{name.replace('_', '-')}" for name in GatewaySettings.__dataclass_fields__},
}
"""What an option is called that comes in as a `--set`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What the command line says. `overrides` are `path=value`; `folder` is where it was called."""

    config: str | None = None
    workspaces: Sequence[str] = ()
    model: str | None = None
    overrides: Sequence[str] = ()
    folder: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a gateway is made of, the lines for whoever starts it, and the files that were read."""

    settings: GatewaySettings
    workspaces: tuple[WorkspaceSpec, ...]
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A workspace before its settings are read; `wanted` is its name or its folder, as `load` takes it."""

    name: str
    folder: Path
    wanted: str | None = None
    main: str | None = None


class _Found:
    """The problems of everything that is read, each once."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, message: str, *, source: str, setting: str = "", hint: str = "") -> None:
        """Note one."""
        self._note(Problem(source=source, message=message, setting=setting, hint=hint))

    def _note(self, problem: Problem) -> None:
        problem = replace(problem, source=FLAGS.get(problem.source, problem.source))
        if problem not in self.problems:
            self.problems.append(problem)

    def extend(self, problems: Iterable[Problem]) -> None:
        """Note several."""
        for each in problems:
            self._note(each)

    def reading(self, read: Callable[[], T]) -> T | None:
        """What was read, or None and its problems noted."""
        try:
            return read()
        except InvalidConfigError as error:
            for each in error.problems:
                self._note(each)
        except (ConfigError, InvalidMessageError) as error:
            setting = getattr(error, "setting", "")
            hint = error.hint.replace(TRY, f"--model {SCRIPTED}")  # for whoever types, not for whoever programs
            self.add(error.message, source=setting or "the configuration", setting=setting, hint=hint)
        return None

    def check(self) -> None:
        """Refuse, if there are any."""
        if self.problems:
            raise InvalidConfigError(self.problems)


def prepare(options: ServeOptions, environ: Mapping[str, str]) -> Launch:
    """Read everything. Raises `InvalidConfigError` with all problems of all files."""
    found = _Found()
    overrides = list(options.overrides)
    if options.model is not None:
        overrides.append(f"default_model={options.model}")
    main = options.config or _own_file(options, found)
    first = found.reading(lambda: load(main, environ=environ, overrides=overrides))
    found.check()
    assert first is not None
    settings = gateway_settings(first.settings)
    _check_tls(settings, found)
    specs: list[WorkspaceSpec] = []
    notes: list[str] = []
    files = list(first.files)
    for place in _places(options, main, first.settings, found):
        spec = found.reading(functools.partial(_spec, place, environ, overrides, notes, files))
        if spec is not None:
            specs.append(spec)
    _check_names(specs, found)
    found.extend(channel_problems(first, [spec.name for spec in specs]))
    found.check()
    read = tuple(dict.fromkeys(files))
    of_others = [str(spec.folder / name) for spec in specs for name in WORKSPACE_FILES]  # they may be made later
    workspaces = tuple(replace(spec, files=(*read, *of_others)) for spec in specs)
    return Launch(settings=settings, workspaces=workspaces, notes=tuple(notes), files=read)


def gateway_settings(settings: Settings) -> GatewaySettings:
    """The block of the server as the gateway takes it."""
    block = settings.gateway
    given = {name: getattr(block, name) for name in GatewaySettings.__dataclass_fields__}
    return GatewaySettings(**{**given, "channels": {name: dict(each) for name, each in block.channels.items()}})


def model_of(agent: AgentSettings, environ: Mapping[str, str]) -> tuple[str, str]:
    """The model of an agent, and why it is this one; the reason is empty if its settings name it."""
    if agent.default_model is not None:
        return agent.default_model, ""
    if environ.get(REAL_MODELS) != "0":
        for variable, model in KEYS:
            if environ.get(variable):
                return model, f"{variable} is set"
    return SCRIPTED, "no model is named and no key is set"


# ---- which workspaces ----


def _own_file(options: ServeOptions, found: _Found) -> str | None:
    """The file of the one folder that is served, which may have the block of the server, too."""
    folders = [str(_at(options.folder, each)) for each in options.workspaces] or [str(options.folder)]
    if len(folders) != 1:
        return None
    problems = Problems(folders[0])
    file = find_workspace_file(folders[0], problems)
    found.problems += problems.found
    return None if file is None else str(file)


def _places(options: ServeOptions, main: str | None, settings: Settings, found: _Found) -> Iterator[_Place]:
    listed = settings.workspaces
    above = Path(main).absolute().parent if main is not None else options.folder
    if options.workspaces:
        for wanted in options.workspaces:
            if wanted in listed:
                yield _listed(wanted, listed[wanted].path, above, main)
                continue
            folder = _at(options.folder, wanted)
            names = [name for name, each in listed.items() if each.path and _at(above, each.path) == folder]
            if names:
                yield _listed(names[0], listed[names[0]].path, above, main)
            elif not folder.is_dir():
                hint = f"the main file lists: {', '.join(listed)}" if listed else "a workspace is a folder"
                found.add("there is no such folder", source=f"--workspace {wanted}", hint=hint)
            else:
                yield _single(folder, main)
    elif listed:
        for name, each in listed.items():
            yield _listed(name, each.path, above, main)
    else:
        yield _single(above, main, name=DEFAULT_NAME)


def _listed(name: str, path: str, above: Path, main: str | None) -> _Place:
    return _Place(name=name, folder=_at(above, path), wanted=name, main=main)


def _single(folder: Path, main: str | None, name: str = "") -> _Place:
    """A folder that no main file lists; its own file is not read a second time if that is the main one."""
    is_main = main is not None and Path(main).absolute().parent == folder and Path(main).stem == "agent"
    return _Place(name=name, folder=folder, wanted=None if is_main else str(folder), main=main)


def _at(above: Path, path: str) -> Path:
    return Path(os.path.abspath(above / Path(path).expanduser()))


# ---- one workspace ----


def _spec(
    place: _Place, environ: Mapping[str, str], overrides: Sequence[str], notes: list[str], files: list[str]
) -> WorkspaceSpec:
    effective = load(place.main, environ=environ, workspace=place.wanted, overrides=overrides)
    files += effective.files
    name = place.name if place.wanted == place.name else effective.settings.name or place.name or place.folder.name
    spec, said = workspace_of(effective, name=name or DEFAULT_NAME, folder=place.folder, environ=environ)
    notes += said
    return spec


def workspace_of(
    effective: Effective, *, name: str, folder: Path, environ: Mapping[str, str]
) -> tuple[WorkspaceSpec, list[str]]:
    """A workspace from its settings, with what they leave open filled in, and what to say of that."""
    check_key(name, "name of a workspace")
    if not folder.is_dir():
        raise ConfigError(f"the folder {folder} of workspace {name!r} is not there", setting=f"workspaces.{name}")
    agent = agent_settings(effective)
    model, why = model_of(agent, environ)
    notes = [f"workspace {name!r}: {folder}, model {model}{f' ({why})' if why else ''}"]
    if model.partition("/")[0] == SCRIPTED:
        keys = " or ".join(dict.fromkeys(key for key, _ in KEYS[:2]))
        notes.append(
            f"  THE MODEL IS SCRIPTED: it repeats what you write and thinks nothing. For a real one: "
            f"--model openai/gpt-5, default_model in agent.yaml, or set {keys}."
        )
    if agent.confirmation is None:
        agent = replace(agent, confirmation=ConfirmationPolicy(default_timeout_ms=ANSWER_WITHIN_MS))
        if agent.permissions is None:
            notes.append("  No permissions are set: reading is allowed, everything else asks an operator.")
    width = effective.value("lanes.main.concurrency")
    if width.value == 1 and width.origin.layer is Layer.DEFAULT:
        notes.append(
            "  One run at a time: that is the width of lane `main` for a file with a `queue` block. "
            "For more, set lanes.main, for example `lanes: {main: 4}`."
        )
    agent = replace(agent, default_model=model)
    given = arguments_of(agent, environ)  # what this or the model refuses is told with the other problems
    model_from(model, given["providers"])
    return WorkspaceSpec(name=name, folder=folder, agent=agent, effective=effective), notes


# ---- what belongs together ----


def _check_names(specs: Sequence[WorkspaceSpec], found: _Found) -> None:
    seen: dict[str, Path] = {}
    for spec in specs:
        before = seen.setdefault(spec.name, spec.folder)
        if before is not spec.folder:
            found.add(
                f"{before} and {spec.folder} are both called {spec.name!r}",
                source="workspaces",
                hint="give one of them another `name` in its agent file",
            )


def _check_tls(settings: GatewaySettings, found: _Found) -> None:
    files = {"gateway.tls_certificate": settings.tls_certificate, "gateway.tls_key": settings.tls_key}
    given = {name: path for name, path in files.items() if path}
    if len(given) == 1:
        other = next(name for name in files if name not in given)
        found.add(f"{next(iter(given))} needs {other}", source="gateway", setting=other)
    missing = {name: path for name, path in given.items() if not os.access(os.path.expanduser(path), os.R_OK)}
    for name, path in missing.items():
        found.add(f"there is no file {path} that can be read", source=name, setting=name)
    if len(given) == len(files) and not missing:
        _load_tls(settings, found)


def _load_tls(settings: GatewaySettings, found: _Found) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate, key = os.path.expanduser(settings.tls_certificate), os.path.expanduser(settings.tls_key)
    try:
        context.load_cert_chain(certificate, key, password="")  # an encrypted key is refused, never asked about
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or "it is not a certificate with its key"
        hint = "both are PEM files, and the key has no password"
        found.add(f"TLS cannot be set up: {str(reason).lower()}", source=settings.tls_certificate, hint=hint)
