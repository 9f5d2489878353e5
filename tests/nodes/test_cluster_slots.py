"""Hash slots, redirects and views, as the servers of a Cluster write them."""

from __future__ import annotations

import pytest
from redis.crc import key_slot as slot_by_redis_py

from asynclock._nodes.cluster.slots import SLOTS, key_slot, read_redirect, read_view

ASKED = ("asked", 7000)


@pytest.mark.parametrize(
    "key", ["a", "{a}b", "b{a}", "{a}{b}", "{}a", "a{}{b}", "a{b", "a}b{c", "}{a}", "{{a}}", ""]
)
def test_a_key_lies_in_the_slot_that_other_clients_compute(key: str) -> None:
    assert key_slot(key.encode()) == slot_by_redis_py(key.encode())


@pytest.mark.parametrize(
    ("cause", "address"),
    [
        ("MOVED 3999 10.0.0.2:7001", ("10.0.0.2", 7001)),
        ("ASK 3999 redis.example:7001", ("redis.example", 7001)),
        ("MOVED 3999 [fd00::2]:7001", ("fd00::2", 7001)),
        ("MOVED 3999 fd00::2:7001", ("fd00::2", 7001)),
        ("MOVED 3999 :7001", ("asked", 7001)),
        ("MOVED 3999 10.0.0.2", None),
        ("MOVED 3999 10.0.0.2:", None),
        ("MOVED 3999 10.0.0.2:port", None),
        ("MOVED 3999", None),
        ("MOVED", None),
    ],
)
def test_a_redirect_names_a_server_or_nothing(cause: str, address: tuple[str, int] | None) -> None:
    assert read_redirect(cause, ASKED) == address


def test_the_mark_of_a_server_lies_in_its_first_slot() -> None:
    """So slots that it gets later change nothing, and all clients find the same mark."""
    first, second = [b"a", 1], [b"b", 1]
    slots = [[0, 99, first, [b"c", 1]], [100, 199, second], [200, SLOTS - 1, first]]
    view = read_view(ASKED, slots, b"cluster_current_epoch:1\r\n")
    assert view is not None
    assert {address: shard.slot for address, shard in view.shards.items()} == {
        ("a", 1): 0,
        ("b", 1): 100,
    }
    assert view.shards["a", 1].replicas == 1


def test_a_server_with_slots_of_its_own_is_no_replica() -> None:
    """A view that was read in the middle of a change may list it twice."""
    first, second = [b"a", 1], [b"b", 1]
    view = read_view(ASKED, [[0, 99, first, second], [100, SLOTS - 1, second, [b"c", 1]]], b"")
    assert view is not None
    assert view.others == {("c", 1)}
