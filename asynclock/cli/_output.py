"""What a command tells its caller: texts, tables and JSON, and an exit status.

Anyone with access to Redis can write names, owners and labels. Control characters would move the
cursor or set the window's title, and bidirectional marks would reorder a line. So texts are shown
with escapes in place of all of them, and are never read as rich's markup.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import compress
from typing import TYPE_CHECKING, Any

from .. import _clock
from .._inspect.views import seconds as seconds
from .._nodes.wire import NO_RIGHT
from ..errors import (
    AsyncLockError,
    ConfigurationError,
    LeaseLostError,
    NotAcquiredError,
    QuorumUnavailableError,
)

# ---- The exit status -----------------------------------------------------------------------------


class Status(IntEnum):
    """The program's exit status, unless `asynclock run` passes on that of its command."""

    OK = 0
    USAGE = 64
    """The arguments or settings are wrong: fix them."""
    UNREACHABLE = 69
    """Too few nodes answered, or may vote."""
    LOST = 70
    """The lease was lost, and the command was ended."""
    OUTPUT = 74
    """The output can't be written."""
    NOT_ACQUIRED = 75
    """Another holder has the lock: try again later."""
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    INTERRUPTED = 130
    """128 + 2, for Ctrl-C."""


_MEANING: tuple[tuple[type[Exception], Status], ...] = (
    (ConfigurationError, Status.USAGE),
    (NotAcquiredError, Status.NOT_ACQUIRED),
    (QuorumUnavailableError, Status.UNREACHABLE),
    (LeaseLostError, Status.LOST),
)


def lines_of(error: AsyncLockError) -> Iterator[str]:
    """Return the error as text for people; for an outage with a line per node."""
    if isinstance(error, QuorumUnavailableError) and error.nodes:
        causes = [f"{node}: {cause}" for node, cause in error.nodes.items()]
        yield str(error).removesuffix(": " + "; ".join(causes))
        yield from (f"  {cause}" for cause in causes)
    else:
        yield str(error)
        if NO_RIGHT in str(error):
            yield "`asynclock doctor` lists the missing rights"


# ---- Texts ---------------------------------------------------------------------------------------


# Cc control, Cf format (bidi marks, zero-width), Cs lone surrogates, Zl/Zp line separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def clean(text: object) -> str:
    r"""Return `text` on one line, with special characters as escapes such as `\x1b` or `\u202e`."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(
        one.encode("unicode_escape").decode("ascii")
        if unicodedata.category(one) in _UNSAFE
        else one
        for one in text
    )


def ago(moment: float | None) -> str:
    """Return the time since a moment by the clocks of the nodes; "" for None."""
    return seconds(None if moment is None else max(0.0, _clock.wall() - moment))


def say(message: object) -> None:
    """Print a cleaned line on stderr, after the program's name.

    A closed stderr is ignored: it must not end a command or lose a lock.
    """
    with contextlib.suppress(OSError):
        print(f"asynclock: {clean(message)}", file=sys.stderr, flush=True)


class _ToStderr(logging.Handler):
    last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()
        say(self.last)


def log_to_nobody() -> None:
    """Print no warnings of the library: the command itself shows the health of the nodes."""
    logging.getLogger("asynclock").addHandler(logging.NullHandler())


def log_to_stderr() -> None:
    """Print the library's warnings in the same form as ours."""
    logger = logging.getLogger("asynclock")
    logger.handlers = [_ToStderr(logging.WARNING)]
    logger.propagate = False


# ---- Tables and JSON -----------------------------------------------------------------------------


# rich is imported where it is needed: not for JSON, and its measures of width not for ASCII.
if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

VERSION = 1
"""Version of the JSON output; it rises when a program that reads it could break."""
NARROW = 8
"""Minimum width of a table's column, in characters."""
NAME, OTHER = 30, 12
"""Minimum widths of a name, and of the other columns, while a spare column can go."""
SPARE = ("fence", "nodes", "message", "note")
"""The columns of a list of locks that go before a name is cut below that, the first one first."""
WIDTH = 160
"""Width in characters without a terminal: logs and pipes need no line breaks."""


def console() -> Console:
    """Return the console to write to; without colours unless it is a terminal (or FORCE_COLOR)."""
    from rich.console import Console

    made = Console(highlight=False, markup=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = WIDTH
    return made


def print_json(value: Mapping[str, Any]) -> None:
    """Print `value` as JSON on stdout, with the version of its schema (docs/json.md).

    The output is ASCII, so that it contains no control characters for a terminal. Long lists get
    one line per element, because full indentation takes Python ten times as long.
    """
    lines = [f'  "version": {VERSION}']
    for key, part in value.items():
        if isinstance(part, list) and part:
            inner = ",\n".join(f"    {json.dumps(one)}" for one in part)
            lines.append(f"  {json.dumps(key)}: [\n{inner}\n  ]")
        else:
            lines.append(f"  {json.dumps(key)}: {json.dumps(part)}")
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")


def print_text(text: str) -> None:
    """Print a sentence, which ends a line between two words if the terminal is too narrow."""
    out = console()
    out.print(clean(text), soft_wrap=not out.is_terminal)


def print_table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str] = ()
) -> None:
    """Print rows of untrusted text under titles, at most as wide as the terminal.

    This doesn't use rich's table, which takes seconds for ten thousand rows.
    """
    out = console()
    bold, end = ("\x1b[1m", "\x1b[0m") if out.is_terminal and not out.no_color else ("", "")
    if out.is_terminal and out.width < _least(titles, rows, spare):
        _print_records(titles, rows, bold, end)
        return
    head, *lines = lines_of_table(titles, rows, out.width if out.is_terminal else None, spare)
    sys.stdout.write("\n".join([f"{bold}{head}{end}", *lines]) + "\n")


def lines_of_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None,
    spare: Sequence[str] = (),
) -> list[str]:
    """Return the lines of a table, titles first, at most `width` characters wide if possible.

    A table that is too wide has no columns without a text, and then none of the `spare` ones, until
    the rest fits: the first of them goes first.
    """
    cleaned: list[Sequence[str]] = list(map(_cleaned, rows))
    widths = _widths(titles, cleaned)
    if width is not None and _total(widths) > width:
        kept = [any(cells) for cells in zip(*cleaned, strict=True)] or [True] * len(titles)
        least = _floors(titles, widths, spare)
        for one in spare:
            if one in titles and _total(list(compress(least, kept))) > width:
                kept[titles.index(one)] = False
        titles = tuple(compress(titles, kept))
        cleaned = [tuple(compress(row, kept)) for row in cleaned]
        widths, least = list(compress(widths, kept)), list(compress(least, kept))
    if width is None:  # one long name must not pad each row to its own length
        widths = [min(one, WIDTH // 2) for one in widths]
    whole = sum(widths)
    if width is not None and _total(widths) > width:
        _squeeze(widths, least, width)
        _squeeze(widths, [min(one, NARROW) for one in widths], width)
    if sum(widths) == whole and all(map(_is_ascii, cleaned)):  # by far the fastest way
        line = "  ".join(f"%-{width}s" for width in widths)
        return [(line % tuple(row)).rstrip() for row in (titles, *cleaned)]
    return [_line(row, widths, cut=width is not None) for row in (titles, *cleaned)]


def wrapped(parts: Sequence[str], width: int, style: str = "", gap: str = "   ") -> list[Text]:
    """Return the lines of parts that stand side by side and may have several lines each."""
    from rich.cells import cell_len
    from rich.text import Text

    lines = [""]
    for part in map(clean, parts):
        longer = f"{lines[-1]}{gap}{part}" if lines[-1] else part
        if cell_len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(part)
    return [Text(fitted(line, min(width, cell_len(line))), style, no_wrap=True) for line in lines]


def _cleaned(row: Sequence[str]) -> Sequence[str]:
    return row if all(map(str.isprintable, row)) else list(map(clean, row))


def _is_ascii(row: Sequence[str]) -> bool:
    return all(map(str.isascii, row))


def _widths(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    columns = list(zip(titles, *rows, strict=True))
    if all(map(_is_ascii, columns)):
        return [max(map(len, column)) for column in columns]
    from rich.cells import cell_len

    return [max(map(cell_len, column)) for column in columns]


def _least(titles: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str]) -> int:
    widths = _widths(titles, list(map(_cleaned, rows)))
    least = _floors(titles, widths, spare)
    return _total(list(compress(least, (title not in spare for title in titles))))


def _floors(titles: Sequence[str], widths: Sequence[int], spare: Sequence[str]) -> list[int]:
    """Return the widths below which no column is cut while one of the `spare` ones can go."""
    usual = [NAME, *[OTHER] * len(titles)] if spare else [NARROW] * len(titles)
    return [
        width if title == "fence" else min(width, least)  # a part of a number is of no use
        for title, width, least in zip(titles, widths, usual, strict=False)
    ]


def _squeeze(widths: list[int], least: Sequence[int], width: int) -> None:
    # Shrink the widest column first, but the first one, the name, only when others are short.
    while _total(widths) > width:
        wide = [at for at, one in enumerate(widths) if one > least[at]]
        if not wide:
            return
        long = [at for at in wide if at and widths[at] > 2 * NARROW]
        widths[max(long or wide, key=widths.__getitem__)] -= 1


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _line(row: Sequence[str], widths: Sequence[int], *, cut: bool) -> str:
    from rich.cells import cell_len

    return "  ".join(
        fitted(one, width if cut else max(width, cell_len(one)))
        for one, width in zip(row, widths, strict=True)
    ).rstrip()


def fitted(text: str, width: int) -> str:
    """Return `text` in `width` characters; an ellipsis marks an omission."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, max(0, width - 1)) + "…"


def _print_records(
    titles: Sequence[str], rows: Sequence[Sequence[str]], start: str, end: str
) -> None:
    """Print a block per row, for a terminal that is too narrow for a table."""
    room = max(map(len, titles))
    for first, *others in ([clean(one) for one in row] for row in rows):
        sys.stdout.write(f"{start}{first}{end}\n")
        for title, text in zip(titles[1:], others, strict=True):
            if text:
                sys.stdout.write(f"  {title:{room}}  {text}\n")


# ---- The end of the program ----------------------------------------------------------------------


def guarded(call: Callable[[], object]) -> int:
    """Return the exit status of `call()`: its own, or the one that its error means."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name may have letters that a terminal lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        answer = call()
        sys.stdout.flush()
    except AsyncLockError as error:
        # The library has logged why it refuses a set of nodes, and raises the same text.
        logged = [getattr(one, "last", "") for one in logging.getLogger("asynclock").handlers]
        for line in lines_of(error):
            if line not in logged:
                say(line)
        return next((status for kind, status in _MEANING if isinstance(error, kind)), Status.LOST)
    except KeyboardInterrupt:
        return Status.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output (head, less) has closed it; Python must not flush into it again.
        _forget_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        _forget_output()
        say(f"can't write the output: {error.strerror or error}")
        return Status.OUTPUT
    return answer if isinstance(answer, int) else Status.OK


def raise_on_ctrl_c() -> None:
    """Raise KeyboardInterrupt on Ctrl-C from now on, unless our caller has us ignore Ctrl-C."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _forget_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
