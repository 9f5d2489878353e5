"""Waiting for what this process itself will see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], what: str, *, timeout: float = 20.0) -> None:
    """Look until `condition` holds. Raises TimeoutError, saying what never happened."""
    try:
        async with asyncio.timeout(timeout):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise TimeoutError(f"not within {timeout} s: {what}") from None
