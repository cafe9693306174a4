"""What the generator of the documentation says about code and numbers: names, signatures, tables."""

from __future__ import annotations

import enum
import inspect
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
BENCH: Final = ROOT / "bench" / "results" / "latest.json"
WORDS: Final[dict[str, Any]] = tomllib.loads((DOCS / "words.toml").read_text(encoding="utf-8"))
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
    if inspect.isfunction(value):
        return "…"
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
    annotation = getattr(annotation, "__forward_arg__", annotation)
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


def intro(name: str) -> str:
    """The first words of a page."""
    return str(WORDS["intros"][name]).strip()


def comments_of(kind: type[enum.Enum]) -> dict[str, str]:
    """What the code says beside each member of an enum."""
    found = re.findall(r"^    (\w+) = .*?  # (.*)$", inspect.getsource(kind), re.MULTILINE)
    return dict(found)


# ---- measured numbers -------------------------------------------------------------------------------------


def bench_table(*, short: bool = False) -> str:
    """The ratios of the last full benchmark, and where they come from; `short`: those that say most."""
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
    for workload, name, words in WORDS["measured"]["rows"]:
        if (workload, name) in found and (not short or [workload, name] in WORDS["measured"]["short"]):
            one = found[workload, name]
            value = one["value"]
            digits = 0 if value >= 100 or value == 0 else 2
            rows.append((words, f"{value:,.{digits}f}{one['unit'].replace('×', ' ×')}"))
    machine = measured["machine"]
    said = f"{machine['implementation']} {machine['python']}, {machine['cores']} cores, {machine['at'][:10]}"
    return table(["measured", "value"], rows) + f"\n\nBest of the rounds, {said}. `make bench` measures your machine."
