"""What the examples share: Redis servers of their own, and processes that end with them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from asynclock.testing import LocalServer, local_servers

PATIENCE = 60.0
"""Seconds until something that has not happened yet never will, on a very busy machine."""


@contextlib.asynccontextmanager
async def stage(nodes: int) -> AsyncIterator[tuple[Path, list[LocalServer]]]:
    """A folder and some embedded Redis servers, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="asynclock-example-") as folder:
        async with local_servers(nodes) as servers:
            yield Path(folder), servers


@contextlib.asynccontextmanager
async def process(
    module: str, *arguments: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m module arguments…`, ended by SIGTERM (by SIGKILL if that is not enough)."""
    root = str(Path(__file__).parents[1])
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        env={**os.environ, "PYTHONPATH": root, **(environment or {})},
    )
    try:
        yield started
    finally:
        await end(started)


async def end(process: asyncio.subprocess.Process) -> None:
    """End it and wait until it has ended."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 10)


async def until(true: Callable[[], bool], what: str) -> None:
    """Wait for something to happen; TimeoutError names what did not."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not true():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise TimeoutError(f"it never happened: {what}") from None


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def percentile(values: list[float], share: float) -> float:
    """The value below which so large a share of `values` lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
