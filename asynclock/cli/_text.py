"""Makes untrusted text safe for a terminal.

Anyone with access to Redis can write names, owners and labels. Control characters would move the
cursor or set the window's title, and bidirectional marks would reorder a line. All of them are
shown as escapes.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import unicodedata

from .. import _clock
from .._engine.inspection import Inspection
from .._inspect.views import seconds as seconds

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


def held_for(found: Inspection, seen: float = 0.0) -> str:
    """Return how long a lease has been held, at least for as long as it was `seen`."""
    return ago(found.since) or (f"over {seconds(seen)}" if seen else "")


def say(message: object) -> None:
    """Print a cleaned line on stderr, after the program's name.

    A closed stderr is ignored: it must not end a command or lose a lock.
    """
    with contextlib.suppress(OSError):
        print(f"asynclock: {clean(message)}", file=sys.stderr, flush=True)


class _ToStderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


def log_to_nobody() -> None:
    """Print no warnings of the library: the command itself shows the health of the nodes."""
    logging.getLogger("asynclock").addHandler(logging.NullHandler())


def log_to_stderr(level: int = logging.WARNING) -> None:
    """Print the library's warnings in the same form as ours."""
    logger = logging.getLogger("asynclock")
    logger.addHandler(_ToStderr(level))
    logger.propagate = False
