"""Stamps hold valid values only, and the errors keep their evidence."""

from __future__ import annotations

import copy
import pickle

import pytest

import asynclock
import asynclock.fencing
from asynclock.errors import AsyncLockError, ConfigurationError
from asynclock.fencing import FenceHeaderError, FenceStamp, MemoryFenceStore, StaleFenceError


@pytest.mark.parametrize("fence", [1, 2**53 - 1])
def test_a_stamp_takes_every_fence(fence: int) -> None:
    assert FenceStamp("orders:42", fence).fence == fence


@pytest.mark.parametrize("fence", [0, -1, 2**53, True, 1.0, "7", None])
def test_a_stamp_refuses_what_is_no_fence(fence: object) -> None:
    with pytest.raises(ConfigurationError, match="a fence"):
        FenceStamp("orders:42", fence)  # type: ignore[arg-type]  # what a caller may do wrong


@pytest.mark.parametrize("name", ["", None, b"orders", "half a pair: \ud800"])
def test_a_stamp_refuses_what_is_no_name(name: object) -> None:
    with pytest.raises(ConfigurationError, match="a lock's name"):
        FenceStamp(name, 1)  # type: ignore[arg-type]  # what a caller may do wrong


@pytest.mark.parametrize("permits", [0, 1, 2])
async def test_a_lease_on_several_names_has_no_single_stamp(permits: int) -> None:
    """Of a multi_lock, or on permits: on one as well, whose part nobody would expect."""
    async with asynclock.connect("memory://") as locks:
        both, semaphore = locks.multi_lock("a", "b"), locks.semaphore("a", 3)
        async with semaphore.several(permits) if permits else both as lease:
            with pytest.raises(ConfigurationError, match=r"lease\.fences\[name\]"):
                FenceStamp.of(lease)


@pytest.mark.parametrize(
    "error",
    [
        StaleFenceError("stale", name="n", fence=3, highest=5),
        StaleFenceError("from elsewhere"),
        FenceHeaderError("missing", name="n", header="X-Lock-Fence", missing=True),
    ],
)
def test_errors_can_be_sent(error: AsyncLockError) -> None:
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is type(error)
        assert (str(twin), vars(twin)) == (str(error), vars(error))


async def test_memory_store_keeps_the_highest_fence_of_each_name() -> None:
    store = MemoryFenceStore()
    for fence in (5, 5, 7):
        await store.claim(FenceStamp("a", fence))
    await store.claim(FenceStamp("b", 1))
    with pytest.raises(StaleFenceError) as caught:
        await store.claim(FenceStamp("a", 6))
    assert (caught.value.name, caught.value.fence, caught.value.highest) == ("a", 6, 7)


@pytest.mark.parametrize("part", ["Write", "a:b", "-", "1" * 17, 1, None])
def test_a_stamp_refuses_what_is_no_part(part: object) -> None:
    with pytest.raises(ConfigurationError, match="a part"):
        FenceStamp("orders:42", 1, part)  # type: ignore[arg-type]  # what a caller may do wrong


async def test_memory_store_is_bounded_and_forgets_the_longest_unused() -> None:
    store = MemoryFenceStore(max_names=2)
    for name in ("old", "used", "old", "new"):
        await store.claim(FenceStamp(name, 9))
    with pytest.raises(StaleFenceError):
        await store.claim(FenceStamp("old", 8))  # used later than "used"
    await store.claim(FenceStamp("used", 8))
    with pytest.raises(ConfigurationError, match="max_names"):
        MemoryFenceStore(max_names=0)


def test_every_public_name_is_there() -> None:
    for name in asynclock.fencing.__all__:
        assert hasattr(asynclock.fencing, name)
