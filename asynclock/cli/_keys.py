"""Keys of the terminal, one at a time, without waiting for Enter."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Iterator


@contextlib.contextmanager
def pressed() -> Iterator[asyncio.Queue[str]]:
    """A queue of the keys that are pressed; the terminal is as before afterwards."""
    fd = sys.stdin.fileno()
    keys: asyncio.Queue[str] = asyncio.Queue()
    before = termios.tcgetattr(fd)
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = os.read(fd, 1024).decode("utf-8", "replace")
        if not data:  # the terminal is gone
            loop.remove_reader(fd)
            keys.put_nowait("q")
        # An arrow or function key is a sequence: not a word of ours, and no Escape either.
        elif data.startswith("\x1b") and len(data) > 1:
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
