"""Keys that `top` reads from a terminal, and the end of the terminal."""

import asyncio
import os
import pty
import sys
import termios

import pytest

from asynclock.cli.top import pressed

from .conftest import until


async def test_keys_and_the_end_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, read = [b""], os.read

    def noted(fd: int, size: int) -> bytes:
        seen.append(read(fd, size))
        return seen[-1]

    monkeypatch.setattr(os, "read", noted)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        before = termios.tcgetattr(stdin)
        with pressed() as keys:

            async def after(typed: str) -> str:
                os.write(ours, typed.encode())
                return await asyncio.wait_for(keys.get(), 30)

            assert await after("s") == "s"
            assert await after("\x1b[5~") == "page up"
            assert await after("\x1b[F") == "end"
            assert await after("\x1b") == "\x1b", "Escape itself"
            os.write(ours, b"\x1b[Z")  # Shift-Tab, which nothing here knows
            await until(lambda: b"\x1b[Z" in seen, "it is read")
            assert await after("r") == "r", "no letters of a sequence"
        assert termios.tcgetattr(stdin) == before
        with pressed() as keys:
            os.close(ours)
            assert await asyncio.wait_for(keys.get(), 30) == "q"
            monkeypatch.setattr(termios, "tcsetattr", lambda *_: None)  # it has no mode any more
