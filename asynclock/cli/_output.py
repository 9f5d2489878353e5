"""What reaches the terminal: nothing from outside goes there raw.

Names, owners and labels are whatever somebody wrote into Redis. Control characters would move the
cursor or set the window's title, `[…]` would be markup to rich, bidirectional marks would reorder
a line. All of them are shown as escapes.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

WIDTH = 160
"""Columns where there is no terminal: a log or a pipe breaks no lines."""

# Cc control, Cf format (bidi marks, zero-width), Cs lone surrogates, Zl/Zp line separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def clean(text: object) -> str:
    r"""`text` on one line, with everything that a terminal might obey as `\x1b` or `\u202e`."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(
        one.encode("unicode_escape").decode("ascii")
        if unicodedata.category(one) in _UNSAFE
        else one
        for one in text
    )


def cell(text: object, style: str = "") -> Text:
    """`text` from outside, for a table: cleaned, and never read as markup."""
    return Text(clean(text), style=style)


def console(*, stderr: bool = False) -> Console:
    """Where to write; without colours unless it is a terminal (or FORCE_COLOR says so)."""
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = WIDTH
    return made


def say(message: object) -> None:
    """A line on stderr, as programs do: prefixed, cleaned."""
    print(f"asynclock: {clean(message)}", file=sys.stderr, flush=True)


def print_json(value: Any) -> None:
    """`value` as JSON on stdout; ASCII only, so that no terminal obeys what stands in it."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=True) + "\n")


class _ToStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


def log_to_stderr(level: int = logging.WARNING) -> None:
    """Let the library's own warnings read like ours."""
    logger = logging.getLogger("asynclock")
    logger.addHandler(_ToStderr(level))
    logger.propagate = False


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows of text from outside under titles; as wide as they are, or as the terminal is.

    Not rich's table: that takes seconds for ten thousand rows.
    """
    out = console()
    cleaned = [[clean(one) for one in row] for row in rows]
    widths = [
        max(cell_len(title), *(cell_len(row[i]) for row in cleaned)) if cleaned else cell_len(title)
        for i, title in enumerate(titles)
    ]
    if out.is_terminal:
        _squeeze(widths, out.width)
    start, end = ("\x1b[1m", "\x1b[0m") if out.is_terminal and not out.no_color else ("", "")
    lines = [f"{start}{_line(titles, widths)}{end}", *(_line(row, widths) for row in cleaned)]
    sys.stdout.write("\n".join(lines) + "\n")


def _squeeze(widths: list[int], width: int) -> None:
    # The widest column gives way first.
    while sum(widths) + 2 * (len(widths) - 1) > width and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        set_cell_size(one, width) for one, width in zip(row, widths, strict=True)
    ).rstrip()
