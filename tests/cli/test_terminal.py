"""`run` and `top` on a terminal."""

import sys

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
