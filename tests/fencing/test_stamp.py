"""Stamps hold valid values only, errors keep their evidence, and what one process remembers."""

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import pytest

import asynclock
import asynclock.fencing
from asynclock.errors import AsyncLockError, ConfigurationError
from asynclock.fencing import FenceHeaderError, FenceStamp, MemoryFenceStore, StaleFenceError

NO_NAME = "a lock's name is a non-empty str, not %r"
NO_INT = "a fence is an int, not %r"
NO_FENCE = "a fence must be between 1 and 2**53 - 1, not %r"
NO_PART = "a part is up to 16 small letters and digits, not %r"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        *(((one, 1), NO_NAME % (one,)) for one in ("", 7, None, b"orders")),
        *((("a", one), NO_INT % (one,)) for one in ("7", True, 1.0, None)),
        *((("a", one), NO_FENCE % one) for one in (0, -1, 2**53)),
        *((("a", 1, one), NO_PART % (one,)) for one in ("A", "Write", "a:b", "-", "a\n", "1" * 17)),
        *((("a", 1, one), NO_PART % (one,)) for one in (1, None)),
    ],
)
def test_a_stamp_says_what_is_wrong_with_a_value(values: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        FenceStamp(*values)
    assert str(caught.value) == words


def test_a_stamp_is_a_value() -> None:
    """It is a key of a dict, and nobody changes the fence that was checked."""
    stamp = FenceStamp("a", 2**53 - 1, "read")
    assert {stamp: 1} == {FenceStamp("a", 2**53 - 1, "read"): 1}
    with pytest.raises(AttributeError):
        stamp.fence = 2  # type: ignore[misc]  # what a caller may do wrong
    with pytest.raises(ConfigurationError, match="a lock's name"):
        FenceStamp("half a pair: \ud800", 1)


@pytest.mark.parametrize("permits", [0, 1, 2])
async def test_a_lease_on_several_names_has_no_single_stamp(permits: int) -> None:
    """Of a multi_lock, or on permits: on one as well, whose part nobody would expect."""
    async with asynclock.connect("memory://") as locks:
        both, semaphore = locks.multi_lock("a", "b"), locks.semaphore("a", 3)
        async with semaphore.several(permits) if permits else both as lease:
            with pytest.raises(ConfigurationError) as caught:
                FenceStamp.of(lease)
            assert str(caught.value) == (
                f"{lease!r} has a fence for each of its parts: check each on its own, for example "
                "FenceStamp(name, lease.fences[name]) for a name of a multi_lock, and "
                "FenceStamp(lease.name, lease.fences[slot], slot) for a permit"
            )


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


def test_every_public_name_is_there() -> None:
    for name in asynclock.fencing.__all__:
        assert hasattr(asynclock.fencing, name)


# ---- the store in memory -------------------------------------------------------------------------
@dataclass
class Message:
    """A message of a queue, with the lock and the fence of its sender, and without a part."""

    name: str
    fence: int


async def test_a_store_keeps_the_highest_fence_of_each_name() -> None:
    store = MemoryFenceStore()
    for fence in (5, 5, 7):
        await store.claim(FenceStamp("a", fence))
    for name in ("b", "b", "c"):  # the lowest fence is one for any name
        for part in ("", "read", "write"):
            await store.claim(FenceStamp(name, 1, part))
    with pytest.raises(StaleFenceError) as caught:
        await store.claim(FenceStamp("a", 6))
    assert (caught.value.name, caught.value.fence, caught.value.highest) == ("a", 6, 7)
    assert FenceStamp.of(Message("a", 8)) == FenceStamp("a", 8)
    await store.claim(Message("a", 8))
    with pytest.raises(StaleFenceError):
        await store.claim(FenceStamp("a", 7))


@pytest.mark.parametrize(
    ("most", "used", "kept"),
    [
        (1, "a", "a"),
        (2, "abac", "ac"),  # "b" was used longest ago
        (3, "abc", "abc"),
        (3, "abcad", "acd"),
        (None, [str(number) for number in range(1000)], [str(number) for number in range(1000)]),
    ],
)
async def test_a_store_forgets_the_longest_unused_names(
    most: int | None, used: Any, kept: Any
) -> None:
    """A name that is forgotten lets a stale holder in: by default it holds as many as a service."""
    store = MemoryFenceStore() if most is None else MemoryFenceStore(max_names=most)
    for name in used:
        await store.claim(FenceStamp(name, 9))
    for name in kept:
        with pytest.raises(StaleFenceError):
            await store.claim(FenceStamp(name, 8))
    for name in set(used) - set(kept):
        await store.claim(FenceStamp(name, 8))


@pytest.mark.parametrize("number", [0, -1])
def test_a_store_of_no_names_is_refused_with_the_number(number: int) -> None:
    with pytest.raises(ConfigurationError) as caught:
        MemoryFenceStore(max_names=number)
    assert str(caught.value) == f"max_names must be at least 1, not {number}"
