"""`run` and `top` on a terminal."""

import sys
from pathlib import Path

import pytest

from .conftest import Program
from .terminal import Session


async def test_ctrl_z_fg_and_ctrl_c_in_a_shell(program: Program) -> None:
    program.use(program.nodes, ttl=60.0)
    session = Session(program, command=("bash", "--norc", "--noprofile", "-i"))
    try:
        await session.shows("shell> ")
        script = "echo ready-$((1 + 1)); exec cat"
        session.type(f"{sys.executable} -m asynclock run j -- sh -c '{script}'\r")
        here = await session.shows("ready-2")
        session.type("first\r")
        # The terminal's own echo, and cat's answer.
        here = await session.shows("first", await session.shows("first", here))
        session.type("\x1a")
        here = await session.shows("Stopped", here)
        here = await session.shows("shell> ", here)
        session.type("echo alive-$((20 + 3))\r")
        here = await session.shows("alive-23", here)
        session.type("fg\r")
        here = await session.shows("exec cat", here)
        session.type("second\r")
        here = await session.shows("second", await session.shows("second", here))
        session.type("\x03")
        here = await session.shows("shell> ", here)
        session.type("echo status-$?\r")
        await session.shows("status-130", here)
        session.type("exit\r")
        assert await session.end() == 0
    finally:
        session.close()


LATE_PARENT = """
import sys, termios, time
from asynclock.__main__ import main
from asynclock.cli.child import Terminal
lend = Terminal.lend
Terminal.lend = lambda *given: (time.sleep(1.0), lend(*given))
try:
    main()
finally:
    modes = termios.tcgetattr(sys.stdin)[3]
    print("echo:", bool(modes & termios.ECHO), "ours:", Terminal().ours)
"""
"""`asynclock` that continues late after it has started a command."""


@pytest.mark.parametrize(
    ("command", "status", "shown"),
    [
        # One that reads keys would be stopped in the background.
        (
            (sys.executable, "-c", "import os; print('front:', os.tcgetpgrp(0) == os.getpgrp())"),
            0,
            "front: True",
        ),
        (
            (sys.executable, "-c", "import os, tty; tty.setraw(0); os.kill(os.getpid(), 9)"),
            137,
            "echo: True ours: True",
        ),
        # As without us: `stty` under a lock has its effect.
        (("sh", "-c", "stty -echo; exit 3"), 3, "echo: False ours: True"),
        (("{broken}",), 126, "echo: True ours: True"),
    ],
    ids=["begins in the foreground", "is killed", "ends by itself", "can not start"],
)
async def test_a_command_and_the_terminal(
    program: Program, tmp_path: Path, command: tuple[str, ...], status: int, shown: str
) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF")  # it can be executed, but has no known format
    broken.chmod(0o755)
    words = [str(broken) if word == "{broken}" else word for word in command]
    ours = (sys.executable, "-c", LATE_PARENT, "run", "j", "--")
    session = Session(program, command=(*ours, *words))
    try:
        assert await session.end() == status
        assert shown in session.screen
    finally:
        session.close()


async def test_a_pipeline_does_not_lose_its_terminal(program: Program) -> None:
    """Beside others in a pipeline the command gets the terminal when it reads from it."""
    session = Session(program, command=("bash", "--norc", "--noprofile", "-i"))
    try:
        await session.shows("shell> ")
        script = "echo ready-$((1 + 1)); read x; echo got-$x"
        session.type(f"{sys.executable} -m asynclock run j -- sh -c '{script}' | cat\r")
        await session.shows("ready-2")
        session.type("word\r")
        await session.shows("got-word")
        session.type("exit\r")
        assert await session.end() == 0
    finally:
        session.close()
