"""What each primitive asks the engine for: its keys, its queues, and when to ask again."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from asynclock._engine.spec import LockSpec
from asynclock._engine.ticket import PATIENCE
from asynclock._keys import lock_key
from asynclock._primitives import lock, multi, readwrite
from asynclock._primitives.semaphore import WINDOW
from tests.engine.virtual_nodes import Nodes, virtual_single

KEY = "asynclock:a"
NO_CHOICE = ("script", "choose_slot", "all_keys", "waits")


def asked(spec: LockSpec) -> dict[str, Any]:
    """What the spec says, apart from what follows from the rest and what is not set."""
    said = {one.name: getattr(spec, one.name) for one in fields(spec)}
    usual = {"permits": 1, "queue_key": None}
    return {
        name: value
        for name, value in said.items()
        if name not in NO_CHOICE and (value != usual[name] if name in usual else value)
    }


def keys(end: str) -> tuple[str, str]:
    return f"{KEY}:#{end}", f"{KEY}:#{end}:#fence"


@virtual_single
async def test_a_mutex_has_a_local_queue_and_goes_to_a_node_with_others(on: Nodes) -> None:
    for mutex in (on.locks.lock("a"), on.locks.reentrant_lock("a")):
        assert mutex._spec.script is lock.SCRIPT
        assert asked(mutex._spec) == {
            "name": "a",
            "keys": (KEY, f"{KEY}:#fence"),
            "queue_key": KEY,
            "watched": (KEY,),
            "batched": True,
            "queue": f"{KEY}:#queue",
            "ticket_ttl": PATIENCE,
        }


@virtual_single
async def test_a_fair_lock_has_no_local_queue(on: Nodes) -> None:
    assert asked(on.locks.fair_lock("a")._spec) == {
        "name": "a",
        "keys": keys("fair"),
        "watched": keys("fair")[:1],
        "queue": f"{KEY}:#waiters",
        "ticket_ttl": PATIENCE,
    }


@virtual_single
async def test_candidates_of_a_process_wait_in_one_local_queue(on: Nodes) -> None:
    assert asked(on.locks.election("a")._spec) == {
        "name": "a",
        "keys": keys("leader"),
        "queue_key": keys("leader")[0],
        "watched": keys("leader")[:1],
        "part": "leader",
        "queue": f"{KEY}:#candidates",
        "ticket_ttl": PATIENCE,
    }


@virtual_single
async def test_both_sides_of_a_read_write_lock_are_in_one_queue_of_the_nodes(on: Nodes) -> None:
    """Writers of a process wait for each other first; readers have nothing to wait for there."""
    rwlock = on.locks.rwlock("a")
    (writer, fence), readers = keys("write"), f"{KEY}:#readers"
    both = {"name": "a", "queue": f"{KEY}:#phases", "phased": True, "ticket_ttl": PATIENCE}
    assert rwlock._write.script is readwrite.WRITE
    assert asked(rwlock._write) == {
        **both,
        "keys": (writer, fence),
        "queue_key": writer,
        "part": "write",
        "neighbours": (readers,),
        "shared": readers,
    }
    assert rwlock._read.script is readwrite.READ
    assert asked(rwlock._read) == {
        **both,
        "keys": (readers, fence),
        "part": "read",
        "neighbours": (writer,),
    }


@virtual_single
async def test_upgrades_wait_in_a_queue_of_their_own(on: Nodes) -> None:
    assert asked(on.locks.rwlock("a")._gate) == {
        "name": "a",
        "keys": keys("upgrade"),
        "watched": keys("upgrade")[:1],
        "part": "upgrade",
        "queue": f"{KEY}:#upgraders",
        "ticket_ttl": PATIENCE,
    }


@virtual_single
async def test_a_slot_of_a_semaphore_looks_at_the_slots_behind_it(on: Nodes) -> None:
    for permits, slot, others in (
        (1, 0, ()),
        (3, 1, (2, 0)),
        (100, 90, (*range(91, 100), *range(WINDOW - 10))),
    ):
        spec = on.locks.semaphore("a", permits)._slot("a", slot)
        neighbours = tuple(f"{KEY}:#{other}" for other in others)
        assert asked(spec) == {
            "name": "a",
            "keys": keys(str(slot)),
            "queue_key": (KEY, permits),
            **({"permits": permits} if permits > 1 else {}),
            "watched": (keys(str(slot))[0], *neighbours),
            "part": str(slot),
            **({"neighbours": neighbours} if neighbours else {}),
            "queue": f"{KEY}:#slots",
            "ticket_ttl": PATIENCE,
        }


@virtual_single
async def test_collectors_of_a_semaphore_wait_in_a_queue_of_their_own(on: Nodes) -> None:
    assert asked(on.locks.semaphore("a", 3).several(2)._gate) == {
        "name": "a",
        "keys": keys("several"),
        "queue_key": keys("several")[0],
        "watched": keys("several")[:1],
        "part": "several",
        "queue": f"{KEY}:#collectors",
        "ticket_ttl": PATIENCE,
    }


@virtual_single
async def test_several_names_have_a_local_queue_and_no_place_in_those_of_the_nodes(
    on: Nodes,
) -> None:
    both = on.locks.multi_lock("b", "a", "b")
    (whole,) = both._specs
    assert whole.script is multi.SCRIPT
    whole_keys = tuple(lock_key("asynclock:", name) for name in "ab")
    assert asked(whole) == {
        "name": "a, b",
        "keys": tuple(key for one in whole_keys for key in (one, f"{one}:#fence")),
        "queue_key": whole_keys,
        "watched": whole_keys,
        "ticket_ttl": 2.0,  # after a split vote
    }
    assert both._parts == [lock.spec("asynclock:", name) for name in "ab"]
