"""Helpers of the examples: their own Redis servers, and processes that end with them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

from asynclock.testing import LocalServer, local_servers
from asynclock.testing.servers.process import ReservedPort

PATIENCE = 60.0
"""Maximum seconds to wait for an expected event, even on a very busy machine."""


@contextlib.asynccontextmanager
async def stage(nodes: int) -> AsyncIterator[tuple[Path, list[LocalServer]]]:
    """Start some embedded Redis servers and make a folder; both are removed afterwards."""
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
    """End the process and wait until it has ended."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 10)


async def until(true: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds. Raises TimeoutError with what did not happen."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not true():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise TimeoutError(f"it never happened: {what}") from None


@contextlib.contextmanager
def free_ports(count: int) -> Iterator[list[int]]:
    """Some ports that no other process can take while the block runs."""
    with contextlib.ExitStack() as reserved:
        yield [reserved.enter_context(ReservedPort()) for _ in range(count)]


def percentile(values: list[float], share: float) -> float:
    """Return the value below which this share of `values` lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
