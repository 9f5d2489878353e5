"""The demo: what it sells and shows, and that nothing of it is left, however it ends."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from .conftest import PATIENCE, Program, until
from .terminal import Session


async def test_on_a_terminal_it_draws_a_bar_for_each_act(bare: Program) -> None:
    session = Session(bare, "demo", "--orders", "6")
    try:
        here = await session.shows("starting five Redis servers")
        for act in ("1  no lock", "2  asyncio.Lock per process", "3  asynclock, 5 masters"):
            here = await session.shows(act, here)
        await session.shows("\x1b[1;31m killed")
        await session.shows("\x1b[1;36m frozen")
        await session.shows("every order was sold exactly once", here)
        assert await session.end() == 0
    finally:
        session.close()


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (signal.SIGINT, 130, ""),
        (signal.SIGTERM, 143, "asynclock: stopped; servers and services are gone\n"),
    ],
)
async def test_it_cleans_up_after_a_signal(
    bare: Program, tmp_path: Path, number: int, status: int, said: str
) -> None:
    process = await begun(bare, tmp_path)
    process.send_signal(number)
    ended = await bare.finish(process)
    assert (ended.status, ended.err) == (status, said)
    await nothing_left(tmp_path)


async def test_it_says_that_a_service_has_died(bare: Program, tmp_path: Path) -> None:
    process = await begun(bare, tmp_path)
    (service,) = using(tmp_path, "orders-a")
    os.kill(service, signal.SIGKILL)
    ended = await bare.finish(process)
    assert ended.status == 1
    assert "asynclock: orders-a ended unexpectedly" in ended.err
    await nothing_left(tmp_path)


async def begun(program: Program, folder: Path) -> asyncio.subprocess.Process:
    """Start a long demo, and wait for its first act."""
    env = {"TMPDIR": str(folder), "PYTHONUNBUFFERED": ""}
    process = await program.start("demo", "--orders", "10000", env=env)
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        while b"act 1" not in await process.stdout.readline():
            pass
    assert using(folder, "/asynclock-demo-")
    return process


async def nothing_left(folder: Path) -> None:
    await until(lambda: not using(folder), "the end of servers and services")
    assert not list(folder.glob("asynclock-demo-*"))  # noqa: ASYNC240 - a moment


def using(folder: Path, word: str = "") -> list[int]:
    """Processes of which this folder is known: servers run in it, services are told of it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in words and word.encode() in words:
            found.append(int(entry.name))
    return found
