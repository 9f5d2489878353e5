"""Mutants of Lua, from a small tokenizer: the same operators as for Python."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from lupa.lua51 import LuaRuntime, LuaSyntaxError

from tests.mutation.mutant import Mutant, Place

TOKEN = re.compile(
    rb"""(?P<comment>--\[\[.*?\]\]|--[^\n]*)|(?P<space>[ \t\r]+)|(?P<line>\n)"""
    rb"""|(?P<text>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|(?P<number>\d+(?:\.\d+)?)"""
    rb"""|(?P<word>[A-Za-z_]\w*)|(?P<sign>\.\.\.|\.\.|[~<>=]=|.)""",
    re.DOTALL,
)
COMPARISONS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "~=", "~=": "=="}
OTHERS = {"and": "or", "or": "and", "true": "false", "false": "true"}
ENDS = {"if": "then", "elseif": "then", "while": "do"}
OPENING, CLOSING = frozenset("([{"), frozenset(")]}")
BEGINS_STATEMENT = frozenset(("then", "do", "else", "repeat"))
ENDS_STATEMENT = frozenset(("end", "else", "elseif", "until"))
JOINS = frozenset("and or .. + - * / % ^ == ~= < > <= >= = , ( [ { not".split())
"""What a statement goes on behind, or with, in the next line."""
KEYWORDS = BEGINS_STATEMENT | ENDS_STATEMENT | {"if", "while", "for", "function", "local"}


@dataclass(frozen=True)
class Token:
    """A word or sign of the file, and whether a line ends before it."""

    kind: str
    text: str
    start: int
    end: int
    after_line: bool


def tokens(source: bytes) -> list[Token]:
    """Return the tokens of a file, without its comments."""
    found, after_line = [], True
    for one in TOKEN.finditer(source):
        kind = one.lastgroup or ""
        if kind == "line":
            after_line = True
        elif kind not in ("space", "comment"):
            found.append(Token(kind, one[0].decode(), one.start(), one.end(), after_line))
            after_line = False
    return found


def mutants(file: str, source: bytes) -> Iterator[Mutant]:
    """Return the mutants of a script's file; few of them do not compile."""
    for operator, start, end, new in _changes(tokens(source)):
        line = source.count(b"\n", 0, start) + 1
        heads = re.findall(rb"^(?:local function (\w+)|end)", source[:start], re.MULTILINE)
        function = heads[-1].decode() if heads else ""
        place = Place(function, range(line, line + 1), runs_at_import=True)
        yield Mutant(file, operator, start, end, source[start:end].decode(), new, line, place)


def compiles(source: bytes) -> bool:
    """Return whether Lua can read this."""
    try:
        LuaRuntime(encoding=None).compile(source)
    except LuaSyntaxError:
        return False
    return True


def _changes(found: list[Token]) -> Iterator[tuple[str, int, int, str]]:
    for at, token in enumerate(found):
        text, start, end = token.text, token.start, token.end
        if text in ENDS:
            last = next(n for n in range(at, len(found)) if found[n].text == ENDS[text])
            for new in ("true", "false"):
                yield "condition", found[at + 1].start, found[last - 1].end, new
        if text in COMPARISONS:
            yield "comparison", start, end, COMPARISONS[text]
        elif text in OTHERS:
            yield "constant" if text in ("true", "false") else "boolean", start, end, OTHERS[text]
        elif text == "not":
            yield "boolean", start, end, ""
        elif token.kind == "number":
            yield "constant", start, end, str(float(text) + 1).removesuffix(".0")
        elif token.kind == "text" and " " not in text:
            yield "constant", start, end, "''" if len(text) > len("''") else "'x'"
        elif text == "-" and found[at - 1].text in JOINS | {"return"}:
            yield "part", start, end, ""
        elif text in (",", "..", "+", "-", "*", "/"):
            yield "part", start, found[_operand(found, at + 1)].end, ""
        if text in ("and", "or"):
            yield "part", start, found[_operand(found, at + 1)].end, ""
        if ending := _statement(found, at):
            yield "statement", start, ending, ""


def _close(found: list[Token], at: int) -> int:
    """Return where the bracket that opens at `at` closes."""
    depth = 0
    for number in range(at, len(found)):
        depth += (found[number].text in OPENING) - (found[number].text in CLOSING)
        if not depth:
            return number
    return at


def _operand(found: list[Token], at: int) -> int:
    """Return the last token of the operand that begins at `at`."""
    if found[at].text in ("-", "#", "not"):
        return _operand(found, at + 1)
    last = _close(found, at) if found[at].text in OPENING else at
    while last + 1 < len(found) and found[last + 1].text in ("(", "[", "."):
        follows = found[last + 1].text
        last = last + 2 if follows == "." else _close(found, last + 1)
    return last


def _statement(found: list[Token], at: int) -> int | None:
    """Return the end of a statement that begins at `at`, if it may be dropped."""
    token, before = found[at], found[at - 1].text if at else "do"
    begins = before in BEGINS_STATEMENT or (token.after_line and before not in JOINS)
    if not begins or token.kind != "word" or token.text in KEYWORDS:
        return None
    last = at
    while last + 1 < len(found):
        following = found[last + 1]
        if following.text == "function" or following.text in ENDS_STATEMENT:
            break
        if following.after_line and not {found[last].text, following.text} & JOINS:
            break
        last += 1
        if following.text in OPENING:
            last = _close(found, last)
    return found[last].end
