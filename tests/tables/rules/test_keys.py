"""No two different things share a key, whatever prefixes and names people choose."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

import asynclock
from asynclock._keys import PRIMARY, SEEN, counter, derived, lock_key, split
from asynclock._nodes.cluster import shards as cluster_slots
from asynclock._nodes.cluster.shards import mark_key
from asynclock._nodes.replicated.acks import MARK_KEY
from asynclock._primitives.semaphore import slot

# Pieces that meet in every way: the marker and its halves, kinds, braces, and plain letters.
PIECES = (":", "#", ":#", "{", "}", "a", "0", "fence", "seen", "write", "event", "primary")
TEXT = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)
PREFIXES = TEXT | TEXT.map(lambda text: text.replace("{", "") + "{")

Thing = tuple[str, ...]

calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine may draw slowly."""


def keys_of(locks: asynclock.LockManager, prefix: str, name: str) -> Iterator[tuple[str, Thing]]:
    """Every key that primitives on `name` use, and what it stands for."""
    key = lock_key(prefix, name)
    yield from spec_keys(locks.lock(name)._spec, ("lock", key))
    for number in range(3):
        yield from spec_keys(slot(key, name, 3, number), ("slot", key, str(number)))
    both = locks.rwlock(name)
    yield from spec_keys(both._write, ("writer", key))
    yield both._read.keys[0], ("readers", key)
    yield both._write.queue, ("phases", key)
    yield from spec_keys(locks.fair_lock(name)._spec, ("fair", key))
    for one in locks.fair_lock(name)._spec.neighbours:
        yield one, ("queue or waiters", key, one)
    election = locks.election(name)
    yield from spec_keys(election._spec, ("leader", key))
    yield from ((one, ("message", one)) for one in election._spec.read_beside().keys)
    yield locks.event(name)._register.key, ("event", key)
    yield locks.latch(name, 2)._register.key, ("latch", key)
    yield locks.once(name)._register.key, ("once", key)
    yield locks.barrier(name, 2)._register.key, ("barrier", key)
    yield derived(key, SEEN), ("record", key)


def spec_keys(spec: Any, thing: Thing) -> Iterator[tuple[str, Thing]]:
    lock, fences = spec.keys
    yield lock, thing
    yield fences, ("counter", *thing)


def layout(prefix: str, name: str) -> dict[str, Thing]:
    """All keys of one name, the mark of its primaries included; {} if it is refused."""
    found: dict[str, Thing] = {}
    with contextlib.suppress(asynclock.ConfigurationError):
        locks = asynclock.connect("redis://127.0.0.1:1", prefix=prefix)
        pairs = [*keys_of(locks, prefix, name), (prefix + MARK_KEY, ("mark", prefix))]
        for key, thing in pairs:
            assert found.setdefault(key, thing) == thing, f"{key!r} is {found[key]} and {thing}"
    return found


@calm
@given(PREFIXES, TEXT, PREFIXES, TEXT)
@example("app:", "x", "app:x:", "fence")
@example("app:", "x", "app:x:", "#fence")
@example("a:", "#0", "a", "b")
@example("", "seen:orders:42", "seen:", "orders:42")
@example("app", "a", "", "app:fence")
def test_no_two_things_share_a_key(
    prefix: str, name: str, other_prefix: str, other_name: str
) -> None:
    first, second = layout(prefix, name), layout(other_prefix, other_name)
    for key in first.keys() & second.keys():
        assert first[key] == second[key], f"{key!r} is {first[key]} and {second[key]}"


@calm
@given(PREFIXES, TEXT, st.lists(st.sampled_from(["0", "write", "fence", SEEN]), max_size=2))
def test_a_key_tells_its_name_and_kinds(prefix: str, name: str, kinds: list[str]) -> None:
    try:
        key = lock_key(prefix, name)
    except asynclock.ConfigurationError:
        return
    for kind in kinds:
        key = derived(key, kind)
    assert split(prefix, key) == ((name, tuple(kinds)) if name else None)


@calm
@given(TEXT.map(lambda text: text.replace("{", "") + "{"), TEXT)
@example("asynclock:{", "a{b}c")
@example("asynclock:{", "{}")
def test_on_a_cluster_a_names_keys_share_a_slot(prefix: str, name: str) -> None:
    # The manager checks that the prefix of a Cluster has no brace of its own.
    found = layout(prefix, name) if name and not name.startswith("}") else {}
    found.pop(prefix + MARK_KEY, None)
    assert len({key_slot(key.encode()) for key in found}) <= 1


@calm
@given(st.text("{}ab\u00e9").map(str.encode))
@example(b"foo{}{bar}")
@example(b"foo{{bar}}zap")
def test_the_slot_is_that_of_redis_py(key: bytes) -> None:
    assert cluster_slots.key_slot(key) == key_slot(key)


@pytest.mark.parametrize("slot", [0, 1, 5000, 16383])
def test_the_mark_of_a_slot_is_in_it(slot: int) -> None:
    key = mark_key("a:", slot)
    assert key_slot(key.encode()) == slot
    name, kinds = split("a:{", key) or ("", ())
    assert (name.isdigit(), kinds) == (True, (PRIMARY,))
    assert counter(lock_key("a:{", name)) != key


@pytest.mark.parametrize(
    ("prefix", "key"),
    [("app:", "other:a"), ("app:", "app:"), ("app:{", "app:{a"), ("app:{", "app:a")],
)
def test_a_key_of_others_belongs_to_no_name(prefix: str, key: str) -> None:
    assert split(prefix, key) is None
