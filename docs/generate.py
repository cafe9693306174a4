"""Write the generated pages and blocks of the documentation: `python docs/generate.py [--check]`.

Pages below `docs/reference/` are written whole. In other pages the text between `<!-- generated:NAME -->` and
`<!-- /generated:NAME -->` is replaced. `<!-- bench:NAME -->` blocks are filled from `bench/results/latest.json`.

`--check` writes nothing and fails if anything is stale. Measured numbers are left out of that, since a benchmark gives
other numbers every time; `--check` only mentions them.
"""

from __future__ import annotations

import argparse
import configparser
import dataclasses
import enum
import importlib
import inspect
import json
import pkgutil
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, is_typeddict

import laneway
from laneway import errors, events, records, system
from laneway.errors import ConfigError
from laneway.kernel.jobs import TRANSITIONS, Trigger
from laneway.lanes import GATEWAY_LANES, TOOL_LANES
from laneway.records import JobState, WaitReason

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
BENCH: Final = ROOT / "bench" / "results" / "latest.json"
NOTICE: Final = "<!-- Written by docs/generate.py from the code: change the code, then run `make docs`. -->"
SIGNATURE_MAX: Final = 100
ALIASES: Final = {"Jobs": "list[Job[Any]]", "Letters": "list[DeadLetter]"}  # where `list` is the name of a method


# ---- words about code -------------------------------------------------------------------------------------


def doc_of(thing: object) -> str:
    """The docstring, as Markdown."""
    return inspect.cleandoc(getattr(thing, "__doc__", None) or "").strip()


def first_line(thing: object) -> str:
    """The contract: the first line of a docstring."""
    return doc_of(thing).partition("\n")[0]


def value_of(value: object) -> str:
    """A default as one would type it."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if type(value) is int and abs(value) >= 10_000:
        return f"{value:_}"
    return repr(value)


def parts_of(signature: inspect.Signature) -> Iterator[str]:
    """Each parameter as it is written, with the marks between the kinds."""
    kinds = inspect.Parameter
    starred = seen_positional_only = False
    for parameter in signature.parameters.values():
        if seen_positional_only and parameter.kind is not kinds.POSITIONAL_ONLY:
            yield "/"
            seen_positional_only = False
        if parameter.kind is kinds.POSITIONAL_ONLY:
            seen_positional_only = parameter.name != "self"
        if parameter.kind is kinds.KEYWORD_ONLY and not starred:
            yield "*"
            starred = True
        starred = starred or parameter.kind is kinds.VAR_POSITIONAL
        mark = "*" if parameter.kind is kinds.VAR_POSITIONAL else "**" if parameter.kind is kinds.VAR_KEYWORD else ""
        typed = "" if parameter.annotation is kinds.empty else f": {annotation_of(parameter.annotation)}"
        equals = " = " if typed else "="
        default = "" if parameter.default is kinds.empty else f"{equals}{value_of(parameter.default)}"
        yield f"{mark}{parameter.name}{typed}{default}"
    if seen_positional_only:
        yield "/"


def annotation_of(annotation: object) -> str:
    """A type as it is written in the code."""
    if isinstance(annotation, str):
        return ALIASES.get(annotation, annotation.replace("'", '"'))
    return getattr(annotation, "__name__", str(annotation))


def signature_of(name: str, fn: Callable[..., Any], *, prefix: str = "def ") -> str:
    """A signature as Python code, one parameter a line when it is long."""
    signature = inspect.signature(fn)
    parts = [part for part in parts_of(signature) if part != "self"]
    returns = signature.return_annotation
    arrow = "" if returns is inspect.Signature.empty else f" -> {annotation_of(returns)}"
    line = f"{prefix}{name}({', '.join(parts)}){arrow}: ..."
    if len(line) <= SIGNATURE_MAX:
        return line
    inner = "".join(f"    {part},\n" for part in parts)
    return f"{prefix}{name}(\n{inner}){arrow}: ..."


def code(text: str) -> str:
    """A Python block."""
    return f"```python\n{text}\n```"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    names = list(head)
    lines = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def comments_of(kind: type[enum.Enum]) -> dict[str, str]:
    """What the code says beside each member of an enum."""
    found = re.findall(r"^    (\w+) = .*?  # (.*)$", inspect.getsource(kind), re.MULTILINE)
    return dict(found)


API_INTRO: Final = (
    "Everything here is imported from `laneway`. Events are in `laneway.events` ([events](events.md)), fakes for your "
    "tests in `laneway.testing` (below). The exceptions have [a page of their own](errors.md), and so have the "
    "[settings](settings.md)."
)
SETTINGS_INTRO: Final = (
    "Settings check themselves when they are made. A value out of range is refused with `ConfigError`, and what was in "
    "force stays in force. Times are whole milliseconds; the longest is ten years. `True`, `1.0`, NaN and text are not "
    "whole numbers."
)
EVENTS_INTRO: Final = (
    "Events come from `lanes.subscribe(…)`; see [watch](../howto/watch.md). Their classes are in `laneway.events`. A "
    "`type` never changes its meaning."
)
ERRORS_INTRO: Final = (
    "Every exception of Laneway is a `LanewayError`. Its class says who has to do something about it. It has a stable "
    "`code`, a `message`, a `hint` that names the way out, and the facts as attributes."
)
CLI_INTRO: Final = (
    'The command line is an extra: `pip install "laneway[cli]"`. Errors are one line on standard error; the exit code '
    "says [whose turn it is](errors.md#reactions)."
)


# ---- pages of the reference -------------------------------------------------------------------------------

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Lanes": ("Lanes", "LaneScope", "JobOptions"),
    "What you hold": ("Job", "Slot", "AbortSignal", "Subscription", "DeadLetters"),
    "Settings": ("LaneConfig", "Group", "RetryPolicy", "RateLimit", "Boost", "BoostStep"),
    "Words": ("Priority", "Effect", "JobState", "WaitReason", "JobId"),
    "Answers": (
        "Explanation",
        "JobInfo",
        "Stats",
        "LaneStats",
        "LaneMetrics",
        "HistogramStats",
        "Snapshot",
        "DeadLetter",
        "DrainReport",
    ),
    "Host": ("HostEnv", "FixedClock", "SequentialIdGenerator"),
}
ERRORS: Final = frozenset(
    name
    for name in laneway.__all__
    if isinstance(getattr(laneway, name), type) and issubclass(getattr(laneway, name), Exception)
)


# Public for the engine only.
INNER: Final = frozenset(
    {
        "AbortSignal.forget",
        "AbortSignal.listen",
        "DeadLetters.keep",
        "Job.settle",
        "Subscription.push",
        "Subscription.wants",
    }
)


def api_page() -> str:
    """Every public name with its signature and docstring."""
    listed = {name for names in GROUPS.values() for name in names} | ERRORS
    if listed != set(laneway.__all__):
        raise SystemExit(f"docs/generate.py: public names in no group, or gone: {listed ^ set(laneway.__all__)}")
    out = [
        "# API",
        NOTICE,
        API_INTRO,
    ]
    for title, names in GROUPS.items():
        out += [f"## {title}", *(block for name in names for block in class_blocks(name, getattr(laneway, name)))]
    out.append("## Testing")
    out.append("From `laneway.testing` and `laneway.sim.loop`; see [test your code](../howto/test-your-code.md).")
    testing = importlib.import_module("laneway.testing")
    for name in testing.__all__:
        out += class_blocks(name, getattr(testing, name))
    out += class_blocks("run_sim", importlib.import_module("laneway.sim.loop").run_sim)
    return page(out)


def class_blocks(name: str, thing: Any) -> Iterator[str]:
    """A class (or function, or type) with everything public in it."""
    yield f"### {name}"
    if not inspect.isclass(thing):
        if inspect.isfunction(thing):
            yield code(signature_of(name, thing))
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
        return
    yield doc_of(thing)
    if is_typeddict(thing):
        options = [(f"`{option}`", f"`{annotation_of(kind)}`") for option, kind in thing.__annotations__.items()]
        yield table(["option", "type"], options)
        return
    if dataclasses.is_dataclass(thing) and "__init__" not in _own_source_names(thing):
        yield from field_blocks(thing)
    elif name not in {"Job", "Slot", "Subscription", "DeadLetters", "LaneScope"}:
        yield code(signature_of(name, thing.__init__, prefix="").replace(" -> None: ...", ""))
    shared = [base.__name__ for base in thing.__bases__ if base.__name__ in laneway.__all__]
    yield from (f"It has everything that [{base}](#{base.lower()}) has, and:" for base in shared)
    for member, value in public_members(thing):
        yield from member_blocks(name, member, value)


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
    """What a class itself defines and does not hide, in the order of the source."""
    for member, value in vars(thing).items():
        unwrapped = getattr(value, "__func__", value)
        if f"{thing.__name__}.{member}" in INNER:
            continue
        if not member.startswith("_") and (inspect.isfunction(unwrapped) or isinstance(value, property)):
            yield member, value


def member_blocks(owner: str, member: str, value: Any) -> Iterator[str]:
    """A method or a property."""
    yield f"#### {owner}.{member}"
    if isinstance(value, property):
        returns = annotation_of(inspect.signature(value.fget).return_annotation) if value.fget else "Any"
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
    text = signature_of(member, fn, prefix="async def " if inspect.iscoroutinefunction(fn) else "def ")
    yield code(mark + re.sub(r"\(cls(, )?", "(", text).replace("    cls,\n", ""))
    yield doc_of(fn)


SETTINGS: Final[Mapping[str, tuple[Any, dict[str, Any]]]] = {
    "Lanes": (laneway.Lanes, {}),
    "LaneConfig": (records.LaneConfig, {}),
    "Group": (records.Group, {"cap": 1, "lanes": ["a"]}),
    "RetryPolicy": (records.RetryPolicy, {}),
    "RateLimit": (records.RateLimit, {"count": 1, "window_ms": 1}),
    "Boost": (records.Boost, {}),
    "BoostStep": (records.BoostStep, {"remaining_percent": 50, "levels": 1}),
    "HostEnv": (system.HostEnv, {}),
}


def settings_page() -> str:
    """Every setting with its default and its range; the ranges are what the code says when it refuses."""
    words: dict[str, dict[str, str]] = tomllib.loads((DOCS / "settings.toml").read_text(encoding="utf-8"))
    out = [
        "# Settings",
        NOTICE,
        SETTINGS_INTRO,
    ]
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
    out += ["Settings of one job are its [`JobOptions`](api.md#joboptions)."]
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
    except ConfigError as refusal:
        said = refusal.message.partition(", not NONSENSE")[0].replace(f"{records.DURATION_MAX_MS:,}", "ten years")
        said = re.sub(r"^.*?(?:must be|must map|maps|is) (?=a |an |True|'|names|lanes)", "", said)
        said = re.sub(r"^a (?:whole )?number from ", "", said).replace("'", "`")
        return said if parameter.default is not None or "None" in said else f"{said}, or None"
    return "–"


class Nonsense:
    """A value that no setting can have."""

    def __repr__(self) -> str:
        return "NONSENSE"


def events_page() -> str:
    """Every event with its fields."""
    stamp = names_of(events.Event)
    shared = (
        f"Every event has {fields_words(events.Event, ())}, the time of the wall clock. Events of jobs also have "
        f"{fields_words(events.JobEvent, stamp)}. Events of lanes also have {fields_words(events.LaneEvent, stamp)}."
    )
    out = [
        "# Events",
        NOTICE,
        EVENTS_INTRO,
        shared,
        table(
            ["type", "class", "what has happened", "more fields"],
            [
                (f"`{kind.type}`", f"`{kind.__name__}`", first_line(kind), fields_words(kind, common_to(kind)) or "–")
                for kind in events.EVENT_TYPES.values()
            ],
        ),
    ]
    return page(out)


def names_of(kind: Any) -> tuple[str, ...]:
    """The names of the fields of a record."""
    return tuple(field.name for field in dataclasses.fields(kind))


def common_to(kind: type[events.Event]) -> tuple[str, ...]:
    """The fields that an event shares with its relatives."""
    return next(
        names_of(known) for known in (events.JobEvent, events.LaneEvent, events.Event) if issubclass(kind, known)
    )


def fields_words(kind: Any, without: Iterable[str]) -> str:
    """Fields and their types, in a line."""
    left = [field for field in dataclasses.fields(kind) if field.name not in set(without)]
    return ", ".join(f"`{field.name}` ({annotation_of(field.type)})" for field in left)


def errors_page() -> str:
    """The tree, what to do about each error, and what the outside sees of it."""
    drawn = doc_of(errors).partition("```text\n")[2].partition("```")[0].rstrip()
    drawn_names = set(re.findall(r"^[│├└─ ]*(\w+Error)\b", drawn, re.MULTILINE))
    known = {name for name in ERRORS if name.endswith("Error")}
    if drawn_names != known:
        raise SystemExit(f"the tree in errors.py and laneway.__all__ differ: {drawn_names ^ known}")
    out = [
        "# Errors",
        NOTICE,
        ERRORS_INTRO,
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
        "Not errors: a job raises them to steer itself. See [retry](../howto/retry-and-dead-letters.md).",
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
    out = [
        "# Command line",
        NOTICE,
        CLI_INTRO,
        f"## laneway\n\n{command.help}",
        options_table(command),
    ]
    for name, each in sorted(command.commands.items()):
        arguments = "".join(
            f" {one.make_metavar(_context(each))}" for one in each.params if one.param_type_name == "argument"
        )
        out += [f"## laneway {name}", f"```console\n$ laneway {name} [OPTIONS]{arguments}\n```"]
        out += [inspect.cleandoc(each.help or "").replace("\b\n", ""), options_table(each)]
    return page([block for block in out if block])


def _context(command: Any) -> Any:
    return command.context_class(command)


def options_table(command: Any) -> str:
    """The options of a command."""
    rows = []
    for option in command.params:
        if option.param_type_name != "option" or getattr(option, "hidden", False):
            continue
        names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
        default = "" if option.default in (None, False) or callable(option.default) else f"`{option.default}`"
        rows.append((names, option.help or "", default))
    return table(["option", "what it does", "default"], rows) if rows else ""


def page(blocks: Iterable[str]) -> str:
    """Blocks with blank lines between them."""
    return "\n\n".join(block for block in blocks if block) + "\n"


# ---- blocks inside pages ----------------------------------------------------------------------------------

TRIGGERS: Final[Mapping[Trigger, str]] = {
    Trigger.BECOME_DUE: "the clock: its delay or its back-off is over",
    Trigger.START: "the scheduler: a slot and everything else it needs is free",
    Trigger.LEND: "the job itself: it waits for another job or slot",
    Trigger.TAKE_BACK: "the scheduler: the wait is over and everything lent can be had",
    Trigger.SUCCEED: "its function returned",
    Trigger.FAIL: "its function raised and there is no retry policy",
    Trigger.CANCEL: "a caller, an `AbortSignal`, a drain, or closing",
    Trigger.TIME_OUT: "the clock: `wait_timeout_ms` or `timeout_ms`",
    Trigger.RETRY: "its function raised and has attempts left, or it raised `RetryLater`",
    Trigger.DIE: "its retries are used up, or it raised `GiveUp`",
}


def job_states() -> str:
    """The diagram and the table of the states of a job."""
    begins = ["    [*] --> queued: submit", "    [*] --> scheduled: submit with a delay"]
    moves: dict[tuple[JobState, JobState], list[str]] = {}
    for (state, trigger), target in TRANSITIONS.items():
        moves.setdefault((state, target), []).append(str(trigger))
    arrows = [f"    {state} --> {target}: {', '.join(triggers)}" for (state, target), triggers in moves.items()]
    ends = [f"    {state} --> [*]" for state in JobState if state.is_final]
    diagram = "\n".join(["```mermaid", "stateDiagram-v2", *begins, *arrows, *ends, "```"])
    comments = comments_of(JobState)
    rows = []
    for state in JobState:
        into = sorted({str(trigger) for (_, trigger), target in TRANSITIONS.items() if target is state})
        begun = ["submit"] if state in (JobState.QUEUED, JobState.SCHEDULED) else []
        meaning = "final" if state.is_final else comments[state.name]
        rows.append((f"`{state}`", meaning, ", ".join([*begun, *into])))
    movers = [(str(trigger), TRIGGERS[trigger]) for trigger in Trigger]
    states = table(["state", "meaning", "reached by"], rows)
    return "\n\n".join([diagram, states, "Who moves a job:", table(["change", "who or what"], movers)])


def wait_reasons() -> str:
    """Why a job may have to wait."""
    comments = comments_of(WaitReason)
    return table(["`reason`", "means"], [(f"`{reason}`", comments[reason.name]) for reason in WaitReason])


def presets() -> str:
    """The lanes of the presets."""
    rows = []
    for preset, lanes in (("Lanes.for_tools()", TOOL_LANES), ("Lanes.for_gateway()", GATEWAY_LANES)):
        rows += [
            (f"`{preset}`", f"`{name}`", f"P{lane.priority}", str(lane.concurrency)) for name, lane in lanes.items()
        ]
    rows.append(("`Lanes.limiter(n)`", "`agent`", f"P{records.LaneConfig().priority}", "n, 1 to 10; 10 n may wait"))
    return table(["preset", "lane", "priority", "width"], rows)


def layers() -> str:
    """Who may import whom, from the contract that is enforced."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter", encoding="utf-8")
    lines = parser["importlinter:contract:layers"]["layers"].split("\n")
    there = [[name.strip() for name in line.split("|") if "(" not in name] for line in lines if line.strip()]
    rows = [names for names in there if names]
    nodes = [f'    L{number}["{" · ".join(names)}"]' for number, names in enumerate(rows)]
    arrows = [f"    L{number} --> L{number + 1}" for number in range(len(rows) - 1)]
    return "\n".join(["```mermaid", "flowchart TD", *nodes, *arrows, "```"])


def modules() -> str:
    """Every module and the first line of what it says of itself."""
    rows = []
    for found in sorted(pkgutil.walk_packages([str(ROOT / "src" / "laneway")], "laneway."), key=lambda one: one.name):
        path = ROOT / "src" / Path(*found.name.split("."))
        file = path / "__init__.py" if found.ispkg else path.with_suffix(".py")
        said = re.match(r'"""(.*?)(?:\n\n|"""|\n(?=```))', file.read_text(encoding="utf-8"), re.DOTALL)
        if said and not found.name.endswith("__main__"):
            rows.append((f"`{found.name.removeprefix('laneway.')}`", " ".join(said[1].split())))
    return table(["module", "what it is"], rows)


BLOCKS: Final[Mapping[str, Callable[[], str]]] = {
    "job-states": job_states,
    "wait-reasons": wait_reasons,
    "presets": presets,
    "layers": layers,
    "modules": modules,
}
PAGES: Final[Mapping[str, Callable[[], str | None]]] = {
    "reference/api.md": api_page,
    "reference/settings.md": settings_page,
    "reference/events.md": events_page,
    "reference/errors.md": errors_page,
    "reference/cli.md": cli_page,
}


# ---- measured numbers -------------------------------------------------------------------------------------

MEASURED: Final[tuple[tuple[str, str, str], ...]] = (
    (
        "floor",
        "of the floor",
        "Speed of no-op jobs against the least code that could do it (a heap, a counter, a task)",
    ),
    ("floor", "of a semaphore", "The same against a bare `asyncio.Semaphore`, which has no order, states or reasons"),
    ("depth", "cost at 1M queued, of 10k", "Cost of a job with 1,000,000 queued against 10,000 queued"),
    ("lanes", "cost with 10,000 lanes, of 10", "Cost of a job with 10,000 lanes against 10 lanes"),
    ("cancel", "cost of a cancel at 100k, of 1k", "Cost of a cancel with 100,000 queued against 1,000 queued"),
    ("memory", "bytes per queued job", "Memory of a queued job with its handle"),
    ("idle", "wake-ups when idle", "Wake-ups while there is nothing to do"),
)


def bench_table() -> str:
    """The ratios of the last full benchmark, and where they come from."""
    measured = json.loads(BENCH.read_text(encoding="utf-8"))
    found = {(one["workload"], one["name"]): one for result in measured["results"] for one in result["outcomes"]}
    speeds = {result["workload"]: result["best"] for result in measured["results"]}
    rows = []
    if "floor" in speeds:
        rate = round(1 / speeds["floor"]["lanes"]["seconds_per_job"], -3)
        rows.append(("No-op jobs a second, one lane of width 8", f"{rate:,.0f}"))
    if "pickup" in speeds:
        rows.append(
            ("From submit to the first line of the job, idle (p50)", f"{speeds['pickup']['lanes']['p50_us']:.0f} µs")
        )
    for workload, name, words in MEASURED:
        if (workload, name) in found:
            one = found[workload, name]
            value = one["value"]
            digits = 0 if value >= 100 or value == 0 else 2
            rows.append((words, f"{value:,.{digits}f}{one['unit'].replace('×', ' ×')}"))
    machine = measured["machine"]
    said = f"{machine['implementation']} {machine['python']}, {machine['cores']} cores, {machine['at'][:10]}"
    return table(["measured", "value"], rows) + f"\n\nBest of the rounds, {said}. `make bench` measures your machine."


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
    pattern = marked("bench", "table")
    old = pattern.search(text)
    new = bench_table()
    if old is None or new.count("\n| ") < old[1].count("\n| ") - 1:
        return text
    return text[: old.start(1)] + f"\n{new}\n\n" + text[old.end(1) :]


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
