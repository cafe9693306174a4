"""Write the generated pages and blocks of the documentation: `python -m docs.generate [--check]`.

Pages below `docs/reference/` are written whole. In other pages the text between `<!-- generated:NAME -->` and
`<!-- /generated:NAME -->` is replaced. `<!-- bench:NAME -->` blocks are filled from `bench/results/latest.json`.

`--check` writes nothing and fails if anything is stale. Measured numbers are left out of that, since a benchmark gives
other numbers every time; `--check` only mentions them.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, get_type_hints, is_typeddict

import laneway
from docs import web
from docs.blocks import BLOCKS, modes, rights
from docs.wording import (
    BENCH,
    DOCS,
    ROOT,
    WORDS,
    annotation_of,
    bench_table,
    code,
    comments_of,
    doc_of,
    first_line,
    intro,
    signature_of,
    table,
    value_of,
)
from laneway import agent_events, errors, events, options, policies, records, rows, system
from laneway.errors import UsageError
from laneway.kernel import directives

NOTICE: Final = "<!-- Written by docs/generate.py from the code: change the code, then run `make docs`. -->"


# ---- pages of the reference -------------------------------------------------------------------------------

GROUPS: Final[Mapping[str, list[str]]] = WORDS["api"]
ERRORS: Final = frozenset(
    name
    for name in laneway.__all__
    if isinstance(getattr(laneway, name), type) and issubclass(getattr(laneway, name), Exception)
)


# What nobody makes by hand.
NOT_MADE: Final = frozenset(
    {
        "AgentStream", "AsyncSession", "Child", "DeadLetters", "EventStream", "History", "Job", "LaneScope", "Model",
        "RunStream", "Session", "Slot", "Store", "Subscription", "Tool", "Transport",
        "TransportStage", "Turn",
    }
)  # fmt: skip
# Public for the engine only.
INNER: Final = frozenset(
    {
        "AbortSignal.forget",
        "AbortSignal.listen",
        "AgentStream.push",
        "AsyncAgent.forget",
        "AsyncAgent.keep",
        "AsyncAgent.scratch",
        "AsyncSession.begin_run",
        "AsyncSession.compact_wanted",
        "AsyncSession.emit_event",
        "AsyncSession.follow",
        "AsyncSession.forking",
        "AsyncSession.keep_task",
        "AsyncSession.lane_of",
        "AsyncSession.live_run",
        "AsyncSession.may_run_beside",
        "AsyncSession.relay",
        "AsyncSession.resume_wanted",
        "AsyncSession.run_turn",
        "AsyncSession.settled",
        "AsyncSession.shut",
        "AsyncSession.spec_of",
        "AsyncSession.start",
        "AsyncSession.submit_compaction",
        "AsyncSession.submit_model",
        "AsyncSession.unpaused",
        "DeadLetters.keep",
        "EventStream.push",
        "Job.settle",
        "LaneScope.engine",
        "LedgerEntry.change",
        "LedgerEntry.row_key",
        "LedgerEntry.to_row",
        "MemoryDisk.next_seq",
        "MemoryDisk.owners_of",
        "MemoryDisk.write",
        "Subscription.push",
        "Subscription.wants",
    }
)


def api_page() -> str:
    """Every public name with its signature and docstring."""
    listed = {name for names in GROUPS.values() for name in names} | ERRORS
    if listed != set(laneway.__all__):
        raise SystemExit(f"docs/generate.py: public names in no group, or gone: {listed ^ set(laneway.__all__)}")
    out = ["# API", NOTICE, intro("api")]
    for title, names in GROUPS.items():
        out += [f"## {title}", *(block for name in names for block in class_blocks(name, getattr(laneway, name)))]
    for title, section in WORDS["more"].items():
        out += [f"## {title}", section["says"]]
        for module, names in list(section.items())[1:]:
            there = importlib.import_module(module)
            out += [block for name in names for block in class_blocks(name, getattr(there, name))]
    return page(out)


def class_blocks(name: str, thing: Any) -> Iterator[str]:
    """A class (or function, or type) with everything public in it."""
    yield f"### {name}"
    if not inspect.isclass(thing):
        if inspect.isfunction(thing):
            yield code(signature_of(name, thing, prefix=_def(thing)))
            yield doc_of(thing)
        else:
            yield f"`{name} = NewType({name!r}, {thing.__supertype__.__name__})`: text that identifies a job."
        return
    if issubclass(thing, enum.Enum):
        yield doc_of(thing)
        comments = comments_of(thing)
        rows = [(f"`{member.name}`", f"`{member.value!r}`", comments.get(member.name, "")) for member in thing]
        filled = any(row[2] for row in rows)
        yield table(
            ["member", "value", "meaning"] if filled else ["member", "value"],
            rows if filled else [row[:2] for row in rows],
        )
        for member, value in public_members(thing):
            yield from member_blocks(name, member, value)
        return
    yield doc_of(thing)
    if is_typeddict(thing):
        options = [(f"`{option}`", f"`{annotation_of(kind)}`") for option, kind in thing.__annotations__.items()]
        yield table(["option", "type"], options)
        return
    if dataclasses.is_dataclass(thing) and "__init__" not in _own_source_names(thing):
        yield from field_blocks(thing)
    elif hasattr(thing, "_fields"):
        hints = get_type_hints(thing)
        yield table(["field", "type"], [(f"`{one}`", f"`{annotation_of(hints[one])}`") for one in thing._fields])
    elif issubclass(thing, records.Fields):
        own = [(f"`{one}`", f"`{annotation_of(kind)}`") for one, kind in thing.__annotations__.items()]
        yield table(["field", "type"], own)
    elif name not in NOT_MADE:
        yield code(signature_of(name, thing.__init__, prefix="").replace(" -> None: ...", ""))
    yield from attribute_blocks(name, thing)
    shared = [base.__name__ for base in thing.__bases__ if base.__name__ in laneway.__all__]
    yield from (f"It has everything that [{base}](#{base.lower()}) has, and:" for base in shared)
    for member, value in public_members(thing):
        yield from member_blocks(name, member, value)


def attribute_blocks(name: str, thing: type) -> Iterator[str]:
    """The attributes that an object gets when it is made, where there are words for them."""
    words: dict[str, str] = WORDS["attributes"].get(name, {})
    if not words:
        return
    found = set(
        re.findall(r"^        self\.([a-z]\w*)(?:: [^=\n]+)?(?: = |, )", inspect.getsource(thing), re.MULTILINE)
    )
    if found != set(words):
        raise SystemExit(f"docs/words.toml: {name} has other attributes: {found ^ set(words)}")
    yield table(["attribute", "what it is"], [(f"`{one}`", said) for one, said in words.items()])


def _def(fn: Any) -> str:
    return "async def " if inspect.iscoroutinefunction(fn) else "def "


def _own_source_names(thing: type) -> set[str]:
    return set(re.findall(r"^    (?:async )?def (\w+)", inspect.getsource(thing), re.MULTILINE))


def field_blocks(thing: Any) -> Iterator[str]:
    """The fields of a record."""
    rows = []
    for field in dataclasses.fields(thing):
        default = "" if field.default is dataclasses.MISSING else f"`{value_of(field.default)}`"
        rows.append((f"`{field.name}`", f"`{annotation_of(field.type)}`", default))
    filled = any(row[2] for row in rows)
    yield table(
        ["field", "type", "default"] if filled else ["field", "type"], rows if filled else [row[:2] for row in rows]
    )


def public_members(thing: type) -> Iterator[tuple[str, Any]]:
    """What a class defines and does not hide, in the order of the source; parts that are not public are its own."""
    parts = [base for base in thing.__bases__ if base.__module__.startswith("laneway.") and _is_part(base)]
    defined = dict(vars(thing))
    for part in parts:
        defined |= {member: value for member, value in vars(part).items() if member not in defined}
    for member, value in defined.items():
        unwrapped = getattr(value, "__func__", value)
        if f"{thing.__name__}.{member}" in INNER:
            continue
        if not member.startswith("_") and (
            inspect.isfunction(unwrapped) or isinstance(value, property | cached_property)
        ):
            yield member, value


def _is_part(base: type) -> bool:
    """Whether a base is only a part of what stands on it, and has no section of its own."""
    is_record = dataclasses.is_dataclass(base) or issubclass(base, enum.Enum | dict)
    return base.__name__ not in laneway.__all__ and not is_record


def member_blocks(owner: str, member: str, value: Any) -> Iterator[str]:
    """A method or a property."""
    yield f"#### {owner}.{member}"
    if isinstance(value, property | cached_property):
        getter = value.fget if isinstance(value, property) else value.func
        returns = annotation_of(inspect.signature(getter).return_annotation) if getter else "Any"
        yield code(f"{member}: {returns}")
        yield doc_of(value)
        return
    fn = getattr(value, "__func__", value)
    mark = (
        "@classmethod\n"
        if isinstance(value, classmethod)
        else "@staticmethod\n"
        if isinstance(value, staticmethod)
        else ""
    )
    text = signature_of(member, fn, prefix=_def(fn))
    yield code(mark + re.sub(r"\(cls(, )?", "(", text).replace("    cls,\n", ""))
    yield doc_of(fn)


async def answer(turn: laneway.Turn) -> None:
    """A handler, for settings that need one."""


SETTINGS: Final[Mapping[str, tuple[Any, dict[str, Any]]]] = {
    "Lanes": (laneway.Lanes, {}),
    "Inbox": (laneway.Inbox, {"handler": answer}),
    "QueueOptions": (laneway.QueueOptions, {}),
    "LaneConfig": (records.LaneConfig, {}),
    "Group": (records.Group, {"cap": 1, "lanes": ["a"]}),
    "RetryPolicy": (records.RetryPolicy, {}),
    "RateLimit": (records.RateLimit, {"count": 1, "window_ms": 1}),
    "Boost": (records.Boost, {}),
    "BoostStep": (records.BoostStep, {"remaining_percent": 50, "levels": 1}),
    "LaneHandlerConfig": (options.LaneHandlerConfig, {}),
    "ConfirmationPolicy": (policies.ConfirmationPolicy, {}),
    "HostEnv": (system.HostEnv, {}),
}


def settings_page() -> str:
    """Every setting with its default and its range; the ranges are what the code says when it refuses."""
    words: dict[str, dict[str, str]] = tomllib.loads((DOCS / "settings.toml").read_text(encoding="utf-8"))
    out = ["# Settings", NOTICE, intro("settings")]
    for name, (thing, needed) in SETTINGS.items():
        parameters = dict(inspect.signature(thing.__init__).parameters)
        del parameters["self"]
        if set(parameters) != set(words.get(name, {})):
            raise SystemExit(
                f"docs/settings.toml: {name} has other fields: {set(parameters) ^ set(words.get(name, {}))}"
            )
        rows = [
            (f"`{field}`", default_of(thing, parameter), range_of(thing, parameter, needed), words[name][field])
            for field, parameter in parameters.items()
        ]
        out += [f"## {name}", doc_of(thing), table(["setting", "default", "range", "what it does"], rows)]
    others = "[`SessionOptions`](api.md#sessionoptions): see [build an agent](../howto/build-an-agent.md#settings)"
    out.append(f"Settings of one job are its [`JobOptions`](api.md#joboptions), those of a session {others}.")
    return page(out)


def default_of(thing: Any, parameter: inspect.Parameter) -> str:
    """The default as a table shows it."""
    if parameter.default is inspect.Parameter.empty:
        return "needed"
    for field in dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ():
        if field.name == parameter.name and field.default_factory is not dataclasses.MISSING:
            return "the machine's" if thing is system.HostEnv else f"`{field.default_factory()!r}`"
    if parameter.default == records.DURATION_MAX_MS:
        return "ten years"
    return f"`{value_of(parameter.default)}`"


def range_of(thing: Any, parameter: inspect.Parameter, needed: Mapping[str, Any]) -> str:
    """What the code says when the value is nonsense."""
    try:
        thing(**{**needed, parameter.name: Nonsense()})
    except UsageError as refusal:
        said = refusal.message.partition(", not NONSENSE")[0].replace(f"{records.DURATION_MAX_MS:,}", "ten years")
        if said.startswith("there is no") or said.endswith("cannot be NONSENSE"):
            said = f"{refusal.hint}"
        said = re.sub(r"^.*?(?:must be|must map|maps|is) (?=a |an |True|'|names|lanes|text)", "", said)
        said = re.sub(r"^a (?:whole )?number from ", "", said).replace("'", "`")
        return said if parameter.default is not None or "None" in said else f"{said}, or None"
    except AttributeError:
        return "–"
    return "–"


class Nonsense:
    """A value that no setting can have."""

    def __repr__(self) -> str:
        return "NONSENSE"


EVENT_GROUPS: Final[Mapping[str, type[events.Event]]] = {
    "Messages": events.MessageEvent,
    "Turns": events.TurnEvent,
    "Approvals": events.ApprovalEvent,
    "Sub-agents": events.ChildEvent,
    "Sessions and schedules": events.SessionEvent,
    "Jobs": events.JobEvent,
    "Lanes": events.LaneEvent,
    "The whole": events.Event,
}


def events_page() -> str:
    """Every event with its fields, those that share fields together."""
    left = dict(events.EVENT_TYPES)
    out = ["# Events", NOTICE, intro("events"), f"Every event has {fields_words(events.Event, ())}: the wall clock."]
    session = fields_words(events.SessionEvent, names_of(events.Event))
    out.append(f"Events of an inbox also have {session}. Those with a `seq` are kept, and can be read again.")
    for title, family in EVENT_GROUPS.items():
        kinds = [left.pop(name) for name, kind in list(left.items()) if issubclass(kind, family)]
        known = names_of(events.SessionEvent if issubclass(family, events.SessionEvent) else events.Event)
        more = fields_words(family, known)
        rows = [
            (f"`{kind.type}`", f"`{kind.__name__}`", first_line(kind), fields_words(kind, names_of(family)) or "–")
            for kind in kinds
        ]
        out += [f"## {title}", f"All of them have {more}." if more else ""]
        out.append(table(["type", "class", "what has happened", "more fields"], rows))
    return page(out)


def agent_events_page() -> str:
    """Every event of a run with its fields, and the types that other surfaces have and this one has not."""
    words = WORDS["agent_events"]
    known = names_of(agent_events.AgentEvent)
    rows: list[tuple[str, ...]] = []
    for name, kind in agent_events.AGENT_EVENTS.items():
        fields = fields_words(kind, known) or "–"
        rows.append((f"`{name}`", f"`{kind.__name__}`", doc_of(kind).replace("\n", " "), fields))
    pieces = [f"`{name}`" for name, kind in agent_events.AGENT_EVENTS.items() if kind.ephemeral]
    out = ["# Agent events", NOTICE, intro("agent_events"), words["envelope"].strip(), "## Emitted"]
    out.append(f"Every event has {fields_words(agent_events.AgentEvent, ())}.")
    out.append(table(["`event_type`", "class", "what has happened", "fields of its own"], rows))
    out.append(f"Pieces, which are told and not kept: {', '.join(pieces)}.")
    absent = [(names.split(", "), said) for names, said in words["absent"].items()]
    if clash := [name for names, _ in absent for name in names if name in agent_events.AGENT_EVENTS]:
        raise SystemExit(f"docs/words.toml: said to be absent, and is there: {clash}")
    out += ["## Not carried", words["absent_says"].strip()]
    rows = [(", ".join(f"`{name}`" for name in names), said) for names, said in absent]
    out.append(table(["`event_type`", "instead"], rows))
    return page(out)


def names_of(kind: Any) -> tuple[str, ...]:
    """The names of the fields of a record."""
    return tuple(field.name for field in dataclasses.fields(kind))


def fields_words(kind: Any, without: Iterable[str]) -> str:
    """Fields and their types, in a line."""
    left = [field for field in dataclasses.fields(kind) if field.name not in set(without)]
    return ", ".join(f"`{field.name}` ({annotation_of(field.type)})" for field in left)


def errors_page() -> str:
    """The tree, what to do about each error, and what the outside sees of it."""
    drawn = doc_of(errors).partition("```text\n")[2].partition("```")[0].rstrip()
    drawn_names = set(re.findall(r"^[│├└─ ]*(\w+Error)\b", drawn, re.MULTILINE))
    known = {name for name in ERRORS if issubclass(getattr(laneway, name), errors.LanewayError)}
    if drawn_names != known:
        raise SystemExit(f"the tree in errors.py and laneway.__all__ differ: {drawn_names ^ known}")
    out = [
        "# Errors",
        NOTICE,
        intro("errors"),
        f"```text\n{drawn}\n```",
        "Exceptions of your own functions are not wrapped: `await job` raises them as they are, with a note.",
        "## Reactions",
        "One table says what the outside sees of an error: `laneway.errors.REACTIONS`. The nearest base decides.",
        table(
            ["base", "HTTP status", "exit code"],
            [
                (f"`{base.__name__}`", str(seen.http_status), str(seen.exit_code))
                for base, seen in errors.REACTIONS.items()
            ],
        ),
        "## Each of them",
        table(
            ["error", "code", "facts", "meaning", "HTTP", "exit"],
            [
                error_row(getattr(laneway, name))
                for name in sorted(known, key=lambda name: depth_first(getattr(laneway, name)))
            ],
        ),
        "## Signals",
        intro("signals"),
        table(
            ["signal", "meaning"],
            [
                (
                    f"`{signature_of(name, getattr(laneway, name).__init__, prefix='').replace(' -> None: ...', '')}`",
                    first_line(getattr(laneway, name)),
                )
                for name in sorted(ERRORS - known)
            ],
        ),
    ]
    return page(out)


def depth_first(kind: type[errors.LanewayError]) -> tuple[int, ...]:
    """Where a class stands in the tree: parents before children, in the order of the source."""
    order = [name for name, value in vars(errors).items() if inspect.isclass(value)]
    line = [base.__name__ for base in reversed(kind.__mro__) if issubclass(base, errors.LanewayError)]
    return tuple(order.index(name) for name in line)


def error_row(kind: type[errors.LanewayError]) -> tuple[str, ...]:
    """One line of the table."""
    seen = next(errors.REACTIONS[base] for base in kind.__mro__ if base in errors.REACTIONS)
    facts = sorted(
        set(re.findall(r"self\.(\w+) = ", "".join(map(inspect.getsource, kind.__mro__[:-4])))) - {"message", "hint"}
    )
    words = ", ".join(f"`{fact}`" for fact in facts) or "–"
    return f"`{kind.__name__}`", f"`{kind.code}`", words, first_line(kind), str(seen.http_status), str(seen.exit_code)


def cli_page() -> str | None:
    """The commands and their options; None where the command line is not installed."""
    try:
        app = importlib.import_module("laneway.cli.app").app
        command: Any = importlib.import_module("typer.main").get_command(app)
    except ImportError:
        return None
    shared = [option_row(each) for each in command.commands["status"].params if is_shared(each)]
    out = ["# Command line", NOTICE, intro("cli"), f"## laneway\n\n{command.help}", options_table(command)]
    out += ["## Options of a server", intro("server_options"), table(OPTION_HEAD, shared)]
    for name, each in sorted(command.commands.items()):
        out += command_blocks(f"laneway {name}", each)
    return page([block for block in out if block])


def command_blocks(name: str, command: Any) -> Iterator[str]:
    """A command, or a group of them."""
    yield f"## {name}"
    inner = getattr(command, "commands", {})
    if not inner:
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        shown = "".join(f" {_argument(one)}" for one in arguments)
        yield f"```console\n$ {name} [OPTIONS]{shown}\n```"
    yield inspect.cleandoc(command.help or "").replace("\b\n", "")
    yield options_table(command)
    for verb, each in sorted(inner.items()):
        yield from (block.replace("## ", "### ", 1) for block in command_blocks(f"{name} {verb}", each))


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper() + ("..." if argument.nargs != 1 else "")
    return name if argument.required else f"[{name}]"


OPTION_HEAD: Final = ("option", "what it does", "default", "variable")


def options_table(command: Any) -> str:
    """The options of a command; those that all commands have which ask a server are told once."""
    options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
    own = [option_row(each) for each in options if not is_shared(each)]
    words = []
    if len(own) < len(options):
        reads = any(each.name == "store" for each in options)
        words = [f"It takes the [options of a server](#options-of-a-server){'' if reads else ', but no `--store`'}."]
    if own and not any(row[3] for row in own):
        words.insert(0, table(OPTION_HEAD[:3], [row[:3] for row in own]))
    elif own:
        words.insert(0, table(OPTION_HEAD, own))
    return "\n\n".join(words)


def option_row(option: Any) -> tuple[str, str, str, str]:
    """One option of a command."""
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    default = "" if option.default in (None, False, "") or callable(option.default) else f"`{option.default}`"
    return names, option.help or "", default, f"`{option.envvar}`" if option.envvar else ""


def is_shared(option: Any) -> bool:
    """Whether it is one of the options that every command has which asks a server."""
    return option.param_type_name == "option" and not option.expose_value and option.envvar is not None


def commands_page() -> str:
    """The grammar of the commands in chat, and who may give them."""
    grammar = doc_of(directives).partition("```text\n")[2].partition("```")
    rest = grammar[2].strip()
    out = ["# Commands in chat", NOTICE, intro("commands"), f"```text\n{grammar[0].rstrip()}\n```", rest]
    options = [(f"`{name}`", *words) for name, words in WORDS["queue"].items()]
    out += ["## Options of /queue", table(["option", "values", "meaning"], options), "## Modes", modes()]
    out += ["## Who may give them", intro("rights"), rights()]
    return page(out)


def tables_page() -> str:
    """The tables of a store, from the statements that make them."""
    sql = (ROOT / "src" / "laneway" / "stores" / "sql" / "0001_rows.sql").read_text(encoding="utf-8")
    found = dict(re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", sql, re.DOTALL))
    if set(found) != set(WORDS["tables"]):
        raise SystemExit(f"docs/words.toml: other tables: {set(found) ^ set(WORDS['tables'])}")
    kinds = {"messages": rows.MessageRow, "states": rows.StateRow, "events": rows.EventRow, "entries": rows.EntryRow}
    out = ["# Stored tables", NOTICE, intro("tables")]
    for name, columns in found.items():
        typed = re.findall(r"^    ([a-z]\w*) (TEXT|INTEGER)", columns, re.MULTILINE)
        said = " Key:" + doc_of(kinds[name]).partition("Key:")[2] if name in kinds else ""
        cells = [(f"`{column}`", kind.lower()) for column, kind in typed]
        out += [f"## {name}", WORDS["tables"][name] + said, table(["column", "type"], cells)]
    return page(out)


def config_page() -> str | None:
    """Every setting of a configuration file, from its declaration."""
    return str(importlib.import_module("laneway.config").reference_page())


def http_page() -> str:
    """Every route of the server."""
    return page(["# HTTP", NOTICE, *web.http_blocks()])


def metrics_page() -> str:
    """Every number of the server."""
    return page(["# Metrics", NOTICE, intro("metrics"), web.metrics_table()])


def page(blocks: Iterable[str]) -> str:
    """Blocks with blank lines between them."""
    return "\n\n".join(block for block in blocks if block) + "\n"


# ---- what is written where ---------------------------------------------------------------------------------

PAGES: Final[Mapping[str, Callable[[], str | None]]] = {
    "reference/api.md": api_page,
    "reference/settings.md": settings_page,
    "reference/events.md": events_page,
    "reference/agent-events.md": agent_events_page,
    "reference/errors.md": errors_page,
    "reference/cli.md": cli_page,
    "reference/commands.md": commands_page,
    "reference/tables.md": tables_page,
    "reference/config.md": config_page,
    "reference/http.md": http_page,
    "reference/metrics.md": metrics_page,
}


def marked(kind: str, name: str) -> re.Pattern[str]:
    """A block of a page, marks included."""
    return re.compile(rf"<!-- {kind}:{name} -->\n(.*?)<!-- /{kind}:{name} -->", re.DOTALL)


def with_blocks(text: str) -> str:
    """A page with its generated blocks as they should be."""
    for name in re.findall(r"<!-- generated:([\w-]+) -->", text):
        block = f"<!-- generated:{name} -->\n\n{BLOCKS[name]()}\n\n<!-- /generated:{name} -->"
        before, after = marked("generated", name).split(text)[::2]
        text = before + block + after
    return text


def with_numbers(text: str) -> str:
    """A page with its measured numbers; a quick or partial benchmark does not replace a fuller one."""
    if not BENCH.exists() or json.loads(BENCH.read_text(encoding="utf-8"))["quick"]:
        return text
    for name in ("table", "short"):
        old = marked("bench", name).search(text)
        new = bench_table(short=name == "short")
        if old is not None and new.count("\n| ") >= old[1].count("\n| ") - 1:
            text = text[: old.start(1)] + f"\n{new}\n\n" + text[old.end(1) :]
    return text


# ---- writing ----------------------------------------------------------------------------------------------


def hand_written() -> list[Path]:
    """Pages in which there may be generated blocks."""
    generated = {DOCS / name for name in PAGES}
    return [ROOT / "README.md", *(path for path in sorted(DOCS.rglob("*.md")) if path not in generated)]


def wanted() -> dict[Path, str]:
    """Every page that is generated or has generated blocks, as it should be, measured numbers aside."""
    pages = {DOCS / name: text for name, make in PAGES.items() if (text := make()) is not None}
    return pages | {path: with_blocks(path.read_text(encoding="utf-8")) for path in hand_written()}


def main(arguments: list[str] | None = None) -> int:
    """Write what is stale, or say what is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something is stale")
    check = parser.parse_args(arguments).check
    stale = []
    for path, text in wanted().items():
        now = path.read_text(encoding="utf-8") if path.exists() else ""
        if check and with_numbers(text) != text:
            print(f"{path.relative_to(ROOT)}: newer numbers are in {BENCH.relative_to(ROOT)} (make docs)")
        new = text if check else with_numbers(text)
        if new == now:
            continue
        stale.append(path)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(new, encoding="utf-8")
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'stale: run make docs' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
