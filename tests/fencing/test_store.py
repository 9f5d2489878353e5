"""What one process remembers of fences."""

from __future__ import annotations

import pytest

from asynclock.fencing import FenceStamp, MemoryFenceStore, StaleFenceError


async def test_a_holder_that_is_older_by_one_is_refused() -> None:
    store = MemoryFenceStore()
    await store.claim(FenceStamp("a", 7))
    await store.claim(FenceStamp("a", 7))
    with pytest.raises(StaleFenceError):
        await store.claim(FenceStamp("a", 6))


async def test_the_names_that_were_used_longest_ago_are_forgotten() -> None:
    store = MemoryFenceStore(max_names=2)
    for name in ("a", "b", "a", "c"):
        await store.claim(FenceStamp(name, 7))
    with pytest.raises(StaleFenceError):
        await store.claim(FenceStamp("a", 6))
    await store.claim(FenceStamp("b", 6))  # it was forgotten
