"""The pages of a record: steps of a run as the body of a row, with long texts as blobs, and how that is read back.

What is read is held against this shape. Whatever is wrong with a page is one `StoreCorruptError` that names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from laneway.kernel.checkpoints import BLOB_MIN, check_shape, digest_of, read_body, refuse, to_json
from laneway.kernel.histories import Op
from laneway.rows import StateRow

__all__ = ("RECORD", "RECORD_VERSION", "packed", "unpacked")

RECORD: Final = "record"
RECORD_VERSION: Final = 1
TEXT: Final = "$"  # a key that stands for a text elsewhere
_BASE: Final[dict[str, type]] = {
    "c": int,
    "summary": int,
    "after": int,
    "upto": int,
    "without": str,
    "not": list,
    "digest": str,
}


def packed(ops: Sequence[Op]) -> tuple[str, list[tuple[str, str]]]:
    """The body of a page, and its long texts by their hashes."""
    texts: dict[str, str] = {}

    def pack(value: Any) -> Any:
        if isinstance(value, str) and len(value) > BLOB_MIN:
            body = to_json(value)
            texts[digest_of(body)] = body
            return {TEXT: list(texts).index(digest_of(body))}
        if isinstance(value, Mapping):
            found = {name: pack(each) for name, each in value.items()}
            return {TEXT: [found]} if TEXT in found else found
        if isinstance(value, list | tuple):
            return [pack(each) for each in value]
        return value

    steps = [pack(op) for op in ops]
    return to_json({"v": RECORD_VERSION, "b": list(texts), "o": steps}), list(texts.items())


def unpacked(row: StateRow, blobs: Mapping[str, Any]) -> list[Op]:
    """The steps on a page; `blobs` are long texts by their hashes."""
    body = read_body(row, RECORD, RECORD_VERSION)
    check_shape(row, body, {"b": list, "o": list}, {})
    names = body["b"]

    def unpack(value: Any) -> Any:
        if isinstance(value, dict):
            if TEXT in value:
                inner = value[TEXT]
                if isinstance(inner, list):
                    return {name: unpack(each) for name, each in inner[0].items()}
                return blobs[names[inner]]
            return {name: unpack(each) for name, each in value.items()}
        if isinstance(value, list):
            return [unpack(each) for each in value]
        return value

    try:
        steps = [unpack(op) for op in body["o"]]
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError):
        refuse(row, "a step names a text that is not there")
    for step in steps:
        if type(step) is not dict or type(step.get("op")) is not str:
            refuse(row, "a step is none")
        if step["op"] == "base":
            check_shape(row, step, _BASE, {})
    return steps
