"""Reads keys from the terminal, one at a time, without waiting for Enter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Iterator

SEQUENCES = {
    **dict.fromkeys(("\x1b[A", "\x1bOA"), "up"),
    **dict.fromkeys(("\x1b[B", "\x1bOB"), "down"),
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    **dict.fromkeys(("\x1b[H", "\x1bOH", "\x1b[1~"), "home"),
    **dict.fromkeys(("\x1b[F", "\x1bOF", "\x1b[4~"), "end"),
}
"""The sequences that terminals send for the arrow and page keys."""


@contextlib.contextmanager
def pressed() -> Iterator[asyncio.Queue[str]]:
    """Yield a queue of the pressed keys, and restore the terminal's mode afterwards."""
    fd = sys.stdin.fileno()
    keys: asyncio.Queue[str] = asyncio.Queue()
    before = termios.tcgetattr(fd)
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = os.read(fd, 1024).decode("utf-8", "replace")
        if not data:  # the terminal is gone
            loop.remove_reader(fd)
            keys.put_nowait("q")
        # An arrow or function key sends a sequence, which must not count as Escape and letters.
        elif data.startswith("\x1b") and len(data) > 1:
            if data in SEQUENCES:
                keys.put_nowait(SEQUENCES[data])
            return
        for key in data:
            keys.put_nowait(key)

    tty.setcbreak(fd)
    loop.add_reader(fd, read)
    try:
        yield keys
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
