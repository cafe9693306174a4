"""The blocks that are generated inside of pages: diagrams and tables, each from the table of the code that decides."""

from __future__ import annotations

import configparser
import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import laneway
from docs import web
from docs.wording import ROOT, WORDS, comments_of, first_line, table
from laneway import dialogue, records
from laneway.external import TaskState
from laneway.kernel import directives
from laneway.kernel.jobs import TRANSITIONS, Trigger
from laneway.kernel.ledger import LEDGER_TRANSITIONS, LedgerState
from laneway.kernel.messages import MESSAGE_TRANSITIONS, Change
from laneway.kernel.rounds import RoundState
from laneway.kernel.task_board import TASK_TRANSITIONS, TaskChange
from laneway.lanes import GATEWAY_LANES, TOOL_LANES
from laneway.mail import MessageState, Mode, TurnState
from laneway.records import JobState, WaitReason

TRIGGERS: Final = {Trigger[name]: words for name, words in WORDS["triggers"].items()}
CHANGES: Final = {Change[name]: words for name, words in WORDS["changes"].items()}


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


def message_states() -> str:
    """The states of a message and the ways between them, from the table that decides."""
    moves: dict[tuple[str, str], list[str]] = {}
    for (state, change), target in MESSAGE_TRANSITIONS.items():
        # Waiting messages can end in the same ways, wherever they wait: one node for them keeps the picture readable.
        waits = target.is_final and state in WAITING and all((one, change) in MESSAGE_TRANSITIONS for one in WAITING)
        moves.setdefault(("waiting" if waits else str(state), str(target)), []).append(_said(change))
    arrows = [f"    {start} --> {end}: {', '.join(dict.fromkeys(words))}" for (start, end), words in moves.items()]
    anywhere = f'    state "{", ".join(WAITING)}" as waiting'
    ends = [f"    {state} --> [*]" for state in MessageState if state.is_final]
    diagram = "\n".join(
        ["```mermaid", "stateDiagram-v2", "    [*] --> queued: submit", *arrows, anywhere, *ends, "```"]
    )
    comments = {**comments_of(MessageState), "QUEUED": "waits for a turn", "RUNNING": "a turn is at work on it"}
    states = []
    for state in MessageState:
        into = dict.fromkeys(_said(change) for (_, change), target in MESSAGE_TRANSITIONS.items() if target is state)
        begun = ["submit"] if state is MessageState.QUEUED else []
        final = "yes" if state.is_final else ""
        states.append((f"`{state}`", final, comments[state.name], ", ".join([*begun, *into])))
    movers = [(_said(change), CHANGES[change]) for change in Change]
    listed = table(["state", "final", "meaning", "reached by"], states)
    return "\n\n".join([diagram, listed, "Who or what moves a message:", table(["change", "who or what"], movers)])


WAITING: Final = (MessageState.QUEUED, MessageState.PARKED, MessageState.HELD)


def _said(change: Change) -> str:
    return change.value.replace("_", " ")


def modes() -> str:
    """Every mode in one line, with its other names."""
    comments = comments_of(Mode)
    names = importlib.import_module("laneway.config.settings").MODE.aliases
    rows = []
    for mode in Mode:
        others = [f"`{name}`" for name in names if Mode.parse(name) is mode]
        rows.append((f"`{mode}`", comments[mode.name], ", ".join(others)))
    return table(["mode", "a message that comes while the session is busy", "also"], rows)


def rights() -> str:
    """Every command with what it does and the right it needs."""
    samples: dict[type[Any], dict[str, Any]] = {
        directives.QueueSet: {"options": laneway.QueueOptions()},
        directives.Inline: {"options": laneway.QueueOptions(), "text": ""},
        directives.SendAs: {"mode": Mode.STEER, "text": ""},
        directives.QueueCancel: {"message_id": ""},
        directives.Approve: {"approval_id": ""},
        directives.Deny: {"approval_id": ""},
    }
    kinds = [kind for kind in directives.Directive.__args__ if kind is not directives.Invalid]
    rows = []
    for kind in kinds:
        typed, _, does = first_line(kind).partition(": ")
        right = directives.required_right(kind(**samples.get(kind, {})))
        rows.append((typed, does.removesuffix("."), f"`{right}`" if right else "anybody"))
    return table(["command", "what it does", "right"], rows)


def turn_states() -> str:
    """The states of a turn."""
    words = WORDS["turn_states"]
    rows = [(f"`{state}`", "yes" if state.is_final else "", words[state.name]) for state in TurnState]
    return table(["state", "final", "meaning"], rows)


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


def round_states() -> str:
    """The states of a round."""
    comments = comments_of(RoundState)
    return table(["state", "meaning"], [(f"`{state}`", comments[state.name]) for state in RoundState])


def result_states() -> str:
    """How a call can end."""
    comments = comments_of(dialogue.ResultStatus)
    return table(["status", "meaning"], [(f"`{one}`", comments[one.name]) for one in dialogue.ResultStatus])


def ledger_states() -> str:
    """The states of an entry of the ledger, and the ways between them."""
    moves: dict[tuple[LedgerState, LedgerState], list[str]] = {}
    for (state, change), target in LEDGER_TRANSITIONS.items():
        moves.setdefault((state, target), []).append(str(change))
    arrows = [f"    {state} --> {target}: {', '.join(words)}" for (state, target), words in moves.items()]
    left = {state for state, _ in LEDGER_TRANSITIONS}
    ends = [f"    {state} --> [*]" for state in LedgerState if state not in left]
    diagram = ["```mermaid", "stateDiagram-v2", "    [*] --> intended: before the call", *arrows, *ends, "```"]
    comments = {"DONE": "it worked", **comments_of(LedgerState)}
    rows = [(f"`{state}`", comments[state.name]) for state in LedgerState]
    return "\n".join(diagram) + "\n\n" + table(["state", "meaning"], rows)


def task_states() -> str:
    """The states of an external task and the ways between them, from the table that decides."""
    live = [state for state in TaskState if not state.is_final]
    moves: dict[tuple[str, str], list[str]] = {}
    for (state, change), target in TASK_TRANSITIONS.items():
        if state is target:
            continue
        # Wherever it is, it can end in the same ways: one node for these keeps the picture readable.
        everywhere = target.is_final and all(TASK_TRANSITIONS.get((one, change)) is target for one in live)
        words = moves.setdefault(("out" if everywhere and state in live else str(state), str(target)), [])
        words.append(change.value.replace("_", " "))
    arrows = [f"    {start} --> {end}: {', '.join(dict.fromkeys(words))}" for (start, end), words in moves.items()]
    out = f'    state "{", ".join(live)}" as out'
    ends = [f"    {state} --> [*]" for state in TaskState if state.is_final]
    diagram = ["```mermaid", "stateDiagram-v2", "    [*] --> pending: the call is on disk", *arrows, out, *ends, "```"]
    meanings = WORDS["task_states"]
    states = [(f"`{state}`", "yes" if state.is_final else "", meanings[state.name]) for state in TaskState]
    movers = [(change.value.replace("_", " "), WORDS["task_changes"][change.name]) for change in TaskChange]
    listed = table(["state", "final", "meaning"], states)
    return "\n\n".join(["\n".join(diagram), listed, "Who or what moves a task:", table(["change", "who"], movers)])


def builtin_tools() -> str:
    """The tools that every agent has, from their own schemas."""
    from laneway import tools

    rows = []
    for each in tools.builtin_tools():
        spec = each.spec
        needed = spec.parameters.get("required", ())
        parts = []
        for name, schema in spec.parameters["properties"].items():
            said = f"`{name}`" if name in needed else f"`{name}={json.dumps(schema.get('default'))}`"
            parts.append(f"{said}: {schema.get('description', '').rstrip('.')}")
        lane = tools.lane_of(spec)
        first = spec.description.partition("\n")[0]
        rows.append((f"`{spec.name}`", f"`{spec.effect}`", f"`{lane}`", first, "<br>".join(parts).replace("\n", " ")))
    return table(["tool", "effect", "lane", "what it does", "arguments"], rows)


BLOCKS: Final[Mapping[str, Callable[[], str]]] = {
    "job-states": job_states,
    "message-states": message_states,
    "modes": modes,
    "turn-states": turn_states,
    "rights": rights,
    "wait-reasons": wait_reasons,
    "presets": presets,
    "round-states": round_states,
    "result-states": result_states,
    "ledger-states": ledger_states,
    "task-states": task_states,
    "builtin-tools": builtin_tools,
    "scopes": web.scopes_table,
    "layers": layers,
    "modules": modules,
}
