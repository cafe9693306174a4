"""HCL with places, from the parse tree of python-hcl2. Only what stands there is read: nothing is calculated.

Blocks and objects become tables, the labels of a block tables around it: `providers "openai" { … }` is what a YAML file
writes as `providers: {openai: {…}}`, and blocks of one type with different labels share one table. `env("NAME")` and
`env("NAME", "default")` are references to the environment, alone or in a text as `${env("NAME")}`. Other functions,
variables, operators, templates and for-expressions are refused at their place.

The tokens are counted on their way to the parser, so that depth and size are bounded before there is a tree. Two terms
of the library's grammar take time that grows with the square of their length, so such texts are refused before that.
An error never quotes a text or a bare word of the file: a key that lost its quotes would be in it.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from laneway.config.nodes import (
    NOWHERE,
    Entry,
    Items,
    Node,
    Place,
    Scalar,
    Table,
    UnreadableError,
    check_depth,
    check_nodes,
)
from laneway.config.references import Template, Variable, is_variable_name

__all__ = ("read_hcl",)

Part: TypeAlias = str | Variable
DIGITS_MAX: Final = 300
BLANKS_MAX: Final = 500
NUMBERS_MAX: Final = 50
CHAIN: Final = re.compile(rf"(?:-[0-9]){{{NUMBERS_MAX},}}")
BLANKS: Final = re.compile(rf"\s{{{BLANKS_MAX},}}")
QUOTE: Final = "DBLQUOTE"
OPENING: Final = {"LBRACE": "}", "LSQB": "]", "LPAR": ")", "INTERP_START": "}", QUOTE: '"'}
"""What opens something, and the sign that ends it."""

CLOSING: Final = frozenset({"RBRACE", "RSQB", "RPAR"})
UNENDED: Final = "text that does not end on its line"
SHAPE: Final = "a setting is: name = value"
COUNTED: Final = frozenset({"EQ", "COLON", "COMMA", "LBRACE", "LSQB", "INTERP_START"})
VALUE_ENDS: Final = CLOSING | {"NAME", "INT_LITERAL", "FLOAT_LITERAL", "TRUE", "FALSE", "NULL", QUOTE}
NOT_READ: Final = {
    **dict.fromkeys(
        ("PLUS", "ASTERISK", "SLASH", "PERCENT", "NOT", "QMARK", "DOUBLE_AMP", "DOUBLE_PIPE"), "a calculated value"
    ),
    **dict.fromkeys(("DOUBLE_EQ", "NEQ", "LT", "GT", "LEQ", "GEQ"), "a comparison"),
    **dict.fromkeys(("DOT", "ATTR_SPLAT", "FULL_SPLAT_START"), "a reference to another value"),
    **dict.fromkeys(("FOR_OBJECT_ARROW", "ELLIPSIS"), "a for-expression"),
    "DIRECTIVE_START": "a template",
    "COLONS": "a function",
}
AFTER_A_VALUE: Final = {"MINUS": "a calculated value", "LSQB": "a reference to another value"}
NOT_READ_RULES: Final = {
    "for_tuple_expr": "a for-expression",
    "for_object_expr": "a for-expression",
    "conditional": "a calculated value",
    "binary_op": "a calculated value",
    "unary_op": "a calculated value",
    "index_expr_term": "a reference to another value",
    "get_attr_expr_term": "a reference to another value",
}
INSTEAD: Final = 'write the value itself, or env("NAME")'
ESCAPE: Final = re.compile(r'\\(?:([nrt"\\])|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.|\Z))', re.DOTALL)
LETTERS: Final = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}
IN_HEREDOC: Final = re.compile(
    r"""\$\$\{|%%\{|\$\{\s*env\(\s*"(?P<name>[^"\\]*)"\s*(?:,\s*"(?P<default>[^"\\]*)"\s*)?\)\s*\}|(?P<other>[$%]\{)"""
)
HEREDOC: Final = re.compile(r"<<(?P<trim>-?)(?P<mark>[\w.-]+)\r?\n(?P<body>.*)", re.DOTALL)


def read_hcl(text: str) -> Node | None:
    """The document; an empty one is an empty table."""
    library = _library()
    _refuse_slow(text)
    return _Builder().document(_tree(library, text.replace("\r\n", "\n")))


def _library() -> Any:
    try:
        return importlib.import_module("hcl2.parser"), importlib.import_module("lark.exceptions")
    except ImportError:
        raise UnreadableError(
            NOWHERE,
            "reading HCL needs python-hcl2",
            "install laneway with the extra `config`, or use YAML, JSON5 or TOML",
        ) from None


def _refuse_slow(text: str) -> None:
    """Refuse what the grammar's terms for numbers and for heredocs would try in too many ways."""
    chain = CHAIN.search(text)
    blanks = BLANKS.search(text) if "<<" in text else None
    found = chain or blanks
    if found is not None:
        what = f"a file with a heredoc has no {BLANKS_MAX} blanks in a row"
        if chain:
            what = f"a chain of {NUMBERS_MAX} numbers and minus signs"
        before = text[: found.start()]
        raise UnreadableError(Place(before.count("\n") + 1, found.start() - before.rfind("\n")), what)


@dataclass(slots=True)
class _Watch:
    """Counts tokens and what is open while they go to the parser."""

    lines: list[str]
    open: list[Any] = field(default_factory=list)
    count: int = 0
    labels: int = 0
    recent: tuple[str, str] = ("", "")

    def see(self, token: Any) -> None:
        """Refuse what is not read, and what is too deep or too much."""
        place = _place(token)
        kind = token.type
        if kind in NOT_READ or (kind in AFTER_A_VALUE and self.recent[1] in VALUE_ENDS):
            raise self._not_read(kind, place)
        if kind != "STRING_CHARS":
            self.labels = self.labels + 1 if kind in ("NAME", QUOTE) else 0
        check_depth(self.labels // 2, place)  # a label has two quotes
        self.count += kind in COUNTED
        check_nodes(self.count, place)
        if kind == QUOTE and self.open and self.open[-1].type == QUOTE:
            self.open.pop()
        elif kind in OPENING:
            self.open.append(token)
            check_depth(len(self.open), place)
        elif kind in CLOSING and self.open:
            self.open.pop()
        self.recent = (self.recent[1], kind)

    def _not_read(self, kind: str, place: Place) -> UnreadableError:
        if self.rest(place).startswith("/*"):
            return UnreadableError(place, "a comment that does not end")
        if kind == "DOT" and self.recent[0] in ("", "NL_OR_COMMENT", "LBRACE"):
            return UnreadableError(place, "a name has no dots", "write a block: queue { storage_path = … }")
        return UnreadableError(place, f"{NOT_READ.get(kind) or AFTER_A_VALUE[kind]} is not read", INSTEAD)

    def rest(self, place: Place) -> str:
        """What stands from a place to the end of its line."""
        return self.lines[place.line - 1][place.column - 1 :]

    def unexpected(self, place: Place) -> UnreadableError:
        """Say what may stand here. Of the file only a sign is shown: a word may be a secret without its quotes."""
        if self.open and self.open[-1].type == QUOTE and _place(self.open[-1]) != place:
            return UnreadableError(_place(self.open[-1]), UNENDED)
        rest = self.rest(place)
        if rest.startswith("<<"):
            return UnreadableError(place, "a heredoc whose end is missing", "its last line is its mark alone")
        if rest.startswith("/*"):
            return UnreadableError(place, "a comment that does not end")
        if rest.startswith("'"):
            return UnreadableError(place, "text is written in double quotes")
        if re.match(r'"[^"]*"\s*=', rest):
            return UnreadableError(place, "a name in a block has no quotes", 'an object takes them: { "a b" = … }')
        if rest.startswith(":") and not self.open:
            return UnreadableError(place, "a setting is written with an equals sign", "this looks like YAML")
        if not rest:
            return UnreadableError(place, "the line ends too early", SHAPE)
        return UnreadableError(place, "this does not belong here", SHAPE if rest[0].isalnum() else f"found {rest[0]!r}")

    def cut_short(self) -> UnreadableError:
        """Say what is still open at the end."""
        end = Place(len(self.lines), len(self.lines[-1]) + 1)
        if not self.open:
            return UnreadableError(end, "the file ends in the middle of a setting", SHAPE)
        begin = self.open[-1]
        if begin.type == QUOTE:
            return UnreadableError(_place(begin), UNENDED)
        return UnreadableError(
            end, f"{OPENING[begin.type]} is missing at the end of the file", f"opened at line {begin.line}"
        )


def _tree(library: Any, text: str) -> Any:
    parser, exceptions = library
    watch = _Watch(text.split("\n"))
    last: Any = None
    try:
        # The grammar ends lines, so the last one needs an end too.
        parsing = parser.parser().parse_interactive(text + "\n")
        for token in parsing.iter_parse():
            watch.see(token)
            last = token
        return parsing.feed_eof(last)
    except exceptions.UnexpectedCharacters as error:
        raise watch.unexpected(Place(error.line, error.column)) from None
    except exceptions.UnexpectedToken as error:
        raise (watch.cut_short() if error.token.type == "$END" else watch.unexpected(_place(error.token))) from None


def _place(token: Any) -> Place:
    """Where a token begins. The blanks before an equals sign belong to its token."""
    text = str(token)
    blanks = len(text) - len(text.lstrip(" \t"))
    return Place(token.line, token.column + blanks)


def _first(tree: Any) -> Place:
    """Where a piece of the tree begins."""
    while hasattr(tree, "children"):
        tree = tree.children[0]
    return _place(tree)


@dataclass(slots=True)
class _Open:
    """A table that further blocks with the same labels may add to."""

    key: str
    place: Place
    inside: list[_Open | Entry]
    groups: dict[str, _Open] = field(default_factory=dict)

    def closed(self) -> Table:
        """The table as it is now."""
        return Table(tuple(_entry(each) for each in self.inside), self.place)


def _entry(found: _Open | Entry) -> Entry:
    return Entry(found.key, found.place, found.closed()) if isinstance(found, _Open) else found


class _Builder:
    """Makes nodes of the parse tree. Depth was bounded by the brackets, so it may recurse; labels add to it."""

    def document(self, tree: Any) -> Table:
        """The whole file."""
        return self._body(tree.children[0], 1, Place(1, 1))

    def _body(self, tree: Any, depth: int, place: Place) -> Table:
        top = _Open("", place, [])
        for child in tree.children:
            if child.data == "attribute":
                name, _, value = child.children
                key, at = _name(name)
                top.inside.append(Entry(key, at, self._value(value, depth + 1)))
            elif child.data == "block":
                self._block(child, top, depth)
        return top.closed()

    def _block(self, tree: Any, top: _Open, depth: int) -> None:
        body = next(child for child in tree.children if getattr(child, "data", "") == "body")
        brace = next(child for child in tree.children if getattr(child, "type", "") == "LBRACE")
        heads = [child for child in tree.children if getattr(child, "data", "") not in ("body", "new_line_or_comment")]
        names = [self._label(child) for child in heads if hasattr(child, "children")]
        check_depth(depth + len(names), names[-1][1])
        where = top
        for key, place in names[:-1]:
            if key not in where.groups:
                where.groups[key] = _Open(key, place, [])
                where.inside.append(where.groups[key])
            where = where.groups[key]
        key, place = names[-1]
        where.inside.append(Entry(key, place, self._body(body, depth + len(names), _place(brace))))

    def _label(self, tree: Any) -> tuple[str, Place]:
        if tree.data != "string":
            return _name(tree)
        return _plain(self._string(tree), _first(tree), "a label"), _first(tree)

    def _value(self, tree: Any, depth: int) -> Node:
        place = _first(tree)
        check_depth(depth, place)
        if tree.data == "expr_term":
            inner = [child for child in tree.children if getattr(child, "data", "") != "new_line_or_comment"]
            return self._term(inner[0], depth) if len(inner) == 1 else self._value(inner[1], depth)
        if tree.data == "unary_op":
            return self._negative(tree, place)
        raise _not_read(tree, place)

    def _negative(self, tree: Any, place: Place) -> Scalar:
        sign, term = tree.children
        number = term.children[0]
        if str(sign).strip() != "-" or getattr(number, "data", "") not in ("int_lit", "float_lit"):
            raise _not_read(tree, place)
        return Scalar(-_number(number.children[0]), place)

    def _term(self, tree: Any, depth: int) -> Node:
        place = _first(tree)
        match tree.data:
            case "int_lit" | "float_lit":
                return Scalar(_number(tree.children[0]), place)
            case "literal_value":
                return Scalar({"true": True, "false": False, "null": None}[str(tree.children[0])], place)
            case "string":
                return Scalar(_text(self._string(tree)), place)
            case "heredoc_template" | "heredoc_template_trim":
                return Scalar(_text(_heredoc(tree.children[0])), place)
            case "function_call":
                return Scalar(Template((self._call(tree),)), place)
            case "tuple":
                return Items(tuple(self._value(each, depth + 1) for each in _values(tree)), place)
            case "object":
                return self._object(tree, depth, place)
            case "identifier":
                raise UnreadableError(place, "a bare word is no value", f"text needs quotes; or {INSTEAD}")
            case _:
                raise _not_read(tree, place)

    def _object(self, tree: Any, depth: int, place: Place) -> Table:
        entries = []
        for element in _values(tree):
            key, _, value = element.children
            name, at = self._key(key.children[0])
            entries.append(Entry(name, at, self._value(value, depth + 1)))
        return Table(tuple(entries), place)

    def _key(self, tree: Any) -> tuple[str, Place]:
        inner = tree.children[0] if tree.data == "expr_term" and len(tree.children) == 1 else tree
        if getattr(inner, "data", "") in ("identifier", "keyword", "literal_value", "string"):
            return self._label(inner)
        raise UnreadableError(_first(tree), "a key is a name or text in quotes")

    def _string(self, tree: Any) -> list[Part]:
        parts: list[Part] = []
        for piece in tree.children[1:-1]:
            part = piece.children[0]
            if hasattr(part, "children"):
                parts.append(self._interpolation(part))
            else:
                parts.append(_unescaped(part))
        return parts

    def _interpolation(self, tree: Any) -> Variable:
        term = tree.children[1] if tree.data == "interpolation" else tree
        call = term.children[0] if getattr(term, "data", "") == "expr_term" else term
        if getattr(call, "data", "") == "function_call":
            return self._call(call)
        raise UnreadableError(
            _first(tree), "a template is not read", 'only ${env("NAME")} is; $${ stands for a plain ${'
        )

    def _call(self, tree: Any) -> Variable:
        place = _first(tree)
        name = str(tree.children[0].children[0])
        if name != "env":
            raise UnreadableError(place, f"the function {name}() is not read", INSTEAD)
        given = next((child for child in tree.children if getattr(child, "data", "") == "arguments"), None)
        texts = [self._argument(each) for each in _values(given)] if given is not None else []
        if not 1 <= len(texts) <= 2:
            raise UnreadableError(place, 'env("NAME") takes the name of a variable and perhaps a default')
        if not is_variable_name(texts[0]):
            raise UnreadableError(place, 'env("NAME") takes the name of a variable in quotes')
        return Variable(*texts)

    def _argument(self, tree: Any) -> str:
        inner = tree.children[0] if tree.data == "expr_term" else tree
        if getattr(inner, "data", "") != "string":
            raise UnreadableError(_first(tree), "env() takes texts in quotes")
        return _plain(self._string(inner), _first(tree), "what env() takes")


def _values(tree: Any) -> list[Any]:
    """The children that are values: no brackets, commas and comments."""
    return [child for child in tree.children if getattr(child, "data", "new_line_or_comment") != "new_line_or_comment"]


def _name(tree: Any) -> tuple[str, Place]:
    return str(tree.children[0]), _first(tree)


def _not_read(tree: Any, place: Place) -> UnreadableError:
    return UnreadableError(place, f"{NOT_READ_RULES.get(tree.data, 'this')} is not read", INSTEAD)


def _plain(parts: list[Part], place: Place, what: str) -> str:
    if any(isinstance(part, Variable) for part in parts):
        raise UnreadableError(place, f"{what} is plain text")
    return "".join(map(str, parts))


def _text(parts: list[Part]) -> str | Template:
    """Plain text, or a template if there are references in it or something that looks like one."""
    if not any(isinstance(part, Variable) for part in parts):
        text = "".join(map(str, parts))
        if "${" not in text and not text.lstrip().startswith("env("):
            return text
        return Template((text,))
    return Template(tuple(part for part in parts if part))


def _unescaped(token: Any) -> str:
    """A piece of a quoted text with its escapes replaced."""
    text = str(token)
    if "\n" in text:
        raise UnreadableError(_place(token), UNENDED, "a heredoc has many lines: <<EOT")
    if token.type.startswith("ESCAPED_"):
        if '"' in text:
            raise UnreadableError(_place(token), UNENDED, "a } is missing")
        text = text[1:]

    def letter(found: re.Match[str]) -> str:
        code = found[2] or found[3]
        if found[1]:
            return LETTERS[found[1]]
        number = int(code, 16) if code else 0x110000
        if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:  # surrogates are none
            place = Place(token.line, token.column + found.start())
            raise UnreadableError(place, "an escape that names no character")
        return chr(number)

    return ESCAPE.sub(letter, text)


def _number(token: Any) -> int | float:
    text = str(token)
    if "-" in text[1:].replace("e-", "").replace("E-", ""):  # the grammar takes `-1-2.5` for one number
        raise UnreadableError(_place(token), "a calculated value is not read", INSTEAD)
    if re.fullmatch(r"-?[0-9]+", text):
        return int(text) if len(text) <= DIGITS_MAX else float("-inf" if text[0] == "-" else "inf")
    return float(text)


def _heredoc(token: Any) -> list[Part]:
    """The lines of a heredoc. `<<-` takes away the indentation that all of them have."""
    found = HEREDOC.fullmatch(str(token))
    assert found is not None
    lines = found["body"].split("\n")[:-2]  # the last two are the mark and what follows it: nothing
    if found["trim"]:
        filled = [line for line in lines if line.strip()]
        indent = min((len(line) - len(line.lstrip()) for line in filled), default=0)
        lines = [line[indent:] for line in lines]
    else:
        indent = 0
    parts: list[Part] = []
    for number, line in enumerate(lines, start=token.line + 1):
        end = 0
        for part in IN_HEREDOC.finditer(line):
            place = Place(number, indent + part.start() + 1)
            if part["other"] or (part["name"] is not None and not is_variable_name(part["name"])):
                hint = 'only ${env("NAME")} is; $${ stands for a plain ${'
                raise UnreadableError(place, "a template is not read", hint)
            parts.append(line[end : part.start()])
            parts.append(part[0][1:] if part["name"] is None else Variable(part["name"], part["default"]))
            end = part.end()
        parts.append(line[end:] + "\n")
    return parts
