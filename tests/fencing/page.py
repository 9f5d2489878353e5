"""The code of docs/fencing.md, by the test that shows it, and the lock that it is about."""

from typing import Any

from asynclock.fencing import FenceStamp
from tests.docs import blocks

PAGE = blocks.ROOT / "docs" / "fencing.md"

run_block = blocks.run


def stamp(fence: int) -> FenceStamp:
    return FenceStamp("orders:42", fence)


def blocks_shown_by(test: str) -> list[blocks.Block]:
    """The blocks that say they are shown by this test, in the order of the page."""
    found = [block for block in blocks.python_blocks(PAGE) if block.shown_by == test]
    assert found, f"{PAGE} has no block shown by {test}"
    return found


async def run(shown_by: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Run all of them in one namespace, and return it."""
    for block in blocks_shown_by(shown_by):
        await run_block(block, namespace)
    return namespace
