"""HTML as text that a model can read: titles, paragraphs, lists, links, tables; no scripts, styles or markup.

Pages are written by strangers, so the reader takes time in proportion to the length of the page, whatever is in it.
(The parser of the standard library does not, in the versions that are still in use.) It is no browser: what is wrong in
a page comes out as text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import urljoin

__all__ = ("page_text",)

_RAW: Final = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object", "textarea", "math"})
_BLOCKS: Final = frozenset(
    {
        "address", "article", "aside", "blockquote", "body", "dd", "details", "div", "dl", "dt", "fieldset",
        "figcaption", "figure", "footer", "form", "header", "hr", "main", "nav", "p", "section", "summary", "table",
    }
)  # fmt: skip
_HEADINGS: Final = {f"h{n}": "#" * n + " " for n in range(1, 7)}
_NAME: Final = re.compile(r"/?[A-Za-z][A-Za-z0-9:-]{0,30}")
_HREF: Final = re.compile(r"""\bhref\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
_ALT: Final = re.compile(r"""\balt\s*=\s*(?:"([^"]*)"|'([^']*)')""", re.IGNORECASE)
_BLANKS: Final = re.compile(r"[ \t\r\n\f\v\u00a0]+")
_OPEN: Final = re.compile(r"<(?=[/A-Za-z!?])")
_TAG_MAX: Final = 20_000
_LINK_MAX: Final = 500


class _Piece(NamedTuple):
    """Text, or a tag with what stands in it."""

    tag: str  # empty: text; with a slash in front: an end
    text: str


def page_text(page: str, url: str = "") -> str:
    """The text of a page; links become `[text](address)`, addresses are made whole with `url`."""
    writer = _Writer(url)
    for piece in _pieces(page):
        if piece.tag:
            writer.tag(piece.tag, piece.text)
        else:
            writer.text(html.unescape(piece.text))
    return writer.finished()


def _pieces(page: str) -> Iterator[_Piece]:
    """One pass from left to right. What is not closed ends the page: nothing is ever looked for twice."""
    at = 0
    while found := _OPEN.search(page, at):
        start = found.start()
        if start > at:
            yield _Piece("", page[at:start])
        name = _NAME.match(page, start + 1)
        if page.startswith("<!--", start):
            at = _after(page, "-->", start + 4)
        elif page.startswith(("<!", "<?"), start):
            at = _after(page, ">", start + 2)
        elif name is None:
            yield _Piece("", "<")
            at = start + 1
        else:
            end = _tag_end(page, name.end())
            tag = name[0].lower()
            yield _Piece(tag, page[name.end() : end])
            at = end + 1
            if tag in _RAW and not page.endswith("/", 0, end):
                at = _after_raw(page, tag, at)
        if at > len(page):
            return
    yield _Piece("", page[at:])


def _after(page: str, what: str, at: int) -> int:
    found = page.find(what, at)
    return len(page) + 1 if found < 0 else found + len(what)


def _after_raw(page: str, tag: str, at: int) -> int:
    found = re.compile(rf"</{tag}[^>]{{0,100}}>", re.IGNORECASE).search(page, at)
    return len(page) + 1 if found is None else found.end()


def _tag_end(page: str, at: int) -> int:
    """Where a tag ends; a `>` in quotes does not end it, unless the quotes go on for too long to be meant."""
    limit = min(len(page), at + _TAG_MAX)
    quote = ""
    for place in range(at, limit):
        sign = page[place]
        if quote:
            quote = "" if sign == quote else quote
        elif sign == ">":
            return place
        elif sign in "\"'" and page[place - 1] == "=":
            quote = sign
    found = page.find(">", at, limit)
    return limit if found < 0 else found


class _Writer:
    """Puts text together: one blank between words, one empty line between blocks."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lines: list[str] = []
        self._line: list[str] = []
        self._links: list[tuple[str, int]] = []
        self._pre = 0
        self._lists = 0
        self._in_title = False
        self._title: list[str] = []

    def text(self, text: str) -> None:
        if self._in_title:
            self._title.append(text)
        elif self._pre:
            *whole, last = text.split("\n")
            for line in whole:
                self._line.append(line)
                self._end_line(keep=True)
            self._line.append(last)
        else:
            text = _BLANKS.sub(" ", text)
            if not self._line or self._line[-1].endswith(" "):
                text = text.lstrip(" ")
            if text:
                self._line.append(text)

    def tag(self, tag: str, inside: str) -> None:  # one branch for each kind of tag
        name = tag.removeprefix("/")
        is_end = tag.startswith("/")
        self._in_title = name == "title" and not is_end and not self._title
        if name == "a":
            self._end_link() if is_end else self._begin_link(inside)
        elif name == "pre":
            self._end_block()
            self._pre = max(self._pre + (-1 if is_end else 1), 0)
        elif name == "br":
            self._end_line(keep=bool(self._pre))
        elif name in _HEADINGS:
            self._end_block()
            if not is_end:
                self._line.append(_HEADINGS[name])
        elif name == "img" and (found := _ALT.search(inside)):
            self.text(html.unescape(found[1] or found[2] or ""))
        else:
            self._structure(name, is_end=is_end)

    def _structure(self, name: str, *, is_end: bool) -> None:
        if name in ("ul", "ol"):
            self._lists = max(self._lists + (-1 if is_end else 1), 0)
            self._end_line() if self._lists > (not is_end) else self._end_block()
        elif name == "li":
            self._end_line()
            if not is_end:
                self._line.append("  " * min(max(self._lists - 1, 0), 10) + "- ")
        elif name == "tr":
            self._end_line()
        elif name in ("td", "th") and is_end:
            self._line.append(" | ")
        elif name in _BLOCKS:
            self._end_block()

    def _begin_link(self, inside: str) -> None:
        found = _HREF.search(inside)
        target = html.unescape(found[1] or found[2] or found[3] or "").strip() if found else ""
        if len(self._links) < 100:
            self._links.append((target, len(self._line)))

    def _end_link(self) -> None:
        if not self._links:
            return
        target, begin = self._links.pop()
        text = "".join(self._line[begin:]).strip()
        if not text or not target or target.startswith(("#", "javascript:", "data:")) or len(target) > _LINK_MAX:
            return
        try:
            whole = urljoin(self._url, target)
        except ValueError:
            return
        self._line[begin:] = [f"[{text}]({whole})"]

    def _end_line(self, *, keep: bool = False) -> None:
        line = "".join(self._line)
        line = line.rstrip("\r") if keep else line.rstrip().removesuffix(" |")
        self._line = []
        self._links = [(target, 0) for target, _ in self._links]
        if keep or line.strip(" -#"):
            self._lines.append(line)

    def _end_block(self) -> None:
        self._end_line()
        if self._lines and self._lines[-1]:
            self._lines.append("")

    def finished(self) -> str:
        self._end_line()
        body = "\n".join(self._lines).strip("\n")
        title = _BLANKS.sub(" ", html.unescape("".join(self._title))).strip()
        return f"# {title}\n\n{body}".strip() if title and f"# {title}" not in body[: len(title) + 200] else body
