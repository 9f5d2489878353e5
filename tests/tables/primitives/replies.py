"""Plays tables of script calls: what a script replies, and what it leaves behind.

A row is a name and statements, one a line, each with what it replies after `->`:

    a waiter that is refused is told its number
      SET l holder PX TTL
      lock wait t1 floor=9 -> 0 TTL holder 9 0 0
      GET q:#t1 -> 1

A statement is a command of the server, or a script with its operation. Commands for several keys
(`GET a,b`) run once for each key. `wait t1` is an acquire of the owner T1 that waits with the
ticket t1; arguments that all calls have alike are added, and `floor=`, `late=`, `ttl=`, and
`wait=` of a batch change them. In a reply `*` is any word, `...` any
rest, `''` an empty text, `-` nothing, and `!` an error with this text. `now` is the time at which
the row begins. `sleep` moves the clock by milliseconds, `listen` and `quiet KEY` tell whether
clients are told of a change: rows with one of these, or `still`, need a node whose clock stands.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytest

from asynclock._engine import inspection as waiters
from asynclock._nodes.wire import Script
from asynclock._primitives import lock, multi, readwrite
from asynclock._primitives.shared import register
from asynclock.testing import LocalServer, ServerReplyError
from asynclock.testing.memory import MemoryNode
from asynclock.testing.memory.commands import ReplyError

SCRIPTS: dict[str, tuple[Script, str]] = {
    "lock": (lock.SCRIPT, "l c q"),
    "read": (readwrite.READ, "r c q w"),
    "write": (readwrite.WRITE, "w c q r"),
    "multi": (multi.SCRIPT, "a ac b bc"),
    "register": (register.SCRIPT, "x"),
    "waiters": (cast(Script, waiters.question("q", "w").script), "q w"),
}
"""The scripts, and the keys of a call that names none."""
WORDS = {"TTL": 60_000, "DAY": 24 * 3600_000, "MINUTE": 60_000_000, "LATER": 4 * 10**15}
USUAL = {"ttl": "60000", "floor": "5", "late": "0", "keep": str(WORDS["DAY"]), "wait": "0"}
"""What calls are made with, unless a statement says otherwise."""
STILL = ("still", "sleep", "listen", "quiet")
CALL = re.compile(rf"({'|'.join(SCRIPTS)})(?:\((.*?)\))? (.+)")


class Still(MemoryNode):
    """A node whose clock stands, and that remembers which keys were written."""

    def __init__(self) -> None:
        self.written: list[str] = []
        super().__init__(clock=lambda: 1_700_000_000.123)

    def _changed(self, key: bytes) -> None:
        self.written.append(key.decode())
        super()._changed(key)


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    name: str
    statements: tuple[str, ...]

    def __str__(self) -> str:
        return re.sub(r"\W+", "_", self.name)

    @property
    def still(self) -> bool:
        """Whether it needs a node whose clock stands."""
        return any(one.split()[0] in STILL for one in self.statements)


def rows(table: str) -> Iterator[Row]:
    """Read a table; an empty line ends each row."""
    for text in re.split(r"\n\s*\n", table.strip()):
        name, *statements = (line.strip() for line in text.splitlines())
        yield Row(name, tuple(statements))


def played(table: str) -> tuple[Any, Any]:
    """Make the two tests that play a table on a node in memory and on a server.

    If each row needs a node whose clock stands, there is no second one.
    """
    found = [*rows(table)]
    moving = [row for row in found if not row.still]

    @pytest.mark.parametrize("row", found, ids=str)
    async def in_memory(row: Row) -> None:
        await play(row, Still())

    @pytest.mark.parametrize("row", moving, ids=str)
    async def on_a_server(row: Row, asynclock_nodes: list[LocalServer]) -> None:
        await play(row, asynclock_nodes[0])

    return in_memory, on_a_server if moving else None


async def play(row: Row, node: Any) -> None:
    """Run the statements of a row on a node or a server; compare each reply."""
    seconds, micros = await node.command("TIME")
    now = int(seconds) * 1_000_000 + int(micros)
    for line in row.statements:
        statement, compared, wanted = line.partition(" ->")
        try:
            found = shown(await ask(node, valued(statement, now)))
        except (ReplyError, ServerReplyError) as error:
            found = f"!{error}"
        if found[:1] == "!" or wanted[:2] == " !":
            same = found[:1] == "!" == wanted[1:2] and bool(re.search(wanted[2:], found))
        else:
            same = not compared or agree(found, valued(wanted, now), isinstance(node, Still))
        assert same, f"{line}: {found} at {now}"


async def ask(node: Any, statement: str) -> Any:
    """Run one statement; return its reply, that of a script without the clock."""
    if call := CALL.fullmatch(statement):
        script, keys = SCRIPTS[call[1]]
        names = (call[2] or keys).split()
        reply = await node.command("EVAL", script.source, len(names), *names, *arguments(call[3]))
        return reply if call[1] == "waiters" else reply[:-1]
    first, *words = statement.split()
    if first == "sleep":
        node.jump_clock(float(words[0]) / 1000)
    elif first == "listen":
        node.written.clear()
    elif first == "quiet":
        assert words[0] not in node.written
    elif first != "still":
        replies = [await node.command(first, key, *words[1:]) for key in words[0].split(",")]
        return replies if "," in words[0] or not isinstance(replies[0], list) else replies[0]
    return None


def arguments(words: str) -> list[str]:
    """Return the arguments of a call of a script, with those that all calls have alike."""
    op, *given = words.split()
    named = USUAL | dict(one.split("=") for one in given if "=" in one)
    plain = [one for one in given if "=" not in one]
    terms = [named[key] for key in ("ttl", "floor", "late", "keep")]
    if op == "wait":
        ticket, ms, number, *rest = [*plain, *[named["ttl"], "0"][len(plain) - 1 :]]
        return ["acquire", ticket.upper(), *terms, ms, ticket, number, *rest]
    if op == "acquire":
        return [op, plain[0], *terms, *plain[1:]]
    if op == "batch":
        return [op, plain[0], *terms, named["wait"], *plain[1:]]
    if op == "extend":
        return [op, named["ttl"], named["keep"], *plain]
    return [op, *plain, *([named["keep"]] if op == "raise" else [])]


def valued(text: str, now: int) -> str:
    """Put numbers for the words of time, `now` in µs and `ms`, plus or minus some."""
    words = {**WORDS, "now": now, "ms": now // 1000}

    def value(found: re.Match[str]) -> str:
        steps = re.findall(r"([+-])(\w+)", found[2])
        return str(words[found[1]] + sum(int(sign + str(words.get(n, n))) for sign, n in steps))

    return re.sub(rf"\b({'|'.join(words)})\b((?:[+-]\w+)*)", value, text)


def shown(reply: Any) -> str:
    """Return a reply in words, as the tables have them."""

    def word(part: Any) -> str:
        if isinstance(part, list | tuple):
            return f"[ {' '.join(map(word, part))} ]"
        if isinstance(part, Exception):
            return f"!{next(iter(re.findall('[A-Z]{5,}', str(part))), '')}"
        return "-" if part is None else str(part) or "''"

    return word(reply)[2:-2] if isinstance(reply, list | tuple) else word(reply)


def agree(found: str, wanted: str, still: bool) -> bool:
    """Compare replies. Where the clock goes on, times may be shorter, and moments later."""
    words = found.split(), re.sub(r"([\[\]])", r" \1 ", wanted).split()
    if words[1][-1:] == ["..."]:
        words = words[0][: len(words[1]) - 1], words[1][:-1]
    return len(words[0]) == len(words[1]) and all(
        want in (one, "*") or (not still and near(one, want))
        for one, want in zip(*words, strict=True)
    )


def near(found: str, wanted: str) -> bool:
    if not (found.isdigit() and wanted.isdigit() and len(wanted) >= 4):
        return False
    if len(wanted) >= 13:
        return abs(int(found) - int(wanted)) <= 10**8
    return int(wanted) // 2 <= int(found) <= int(wanted)
