"""What the script of several names does with names that others have, or wait for."""

from __future__ import annotations

import pytest

from asynclock._primitives import lock, multi, readwrite
from tests.primitives.script_server import DAY, TTL, Server

TWO = "a ac b bc"


@pytest.fixture
async def server() -> Server:
    return Server()


async def wait(server: Server, name: str, ticket: str) -> None:
    """Wait for one name; its queue's key is the one that the script of several names derives."""
    await server.acquire(lock.SCRIPT, f"{name} {name}c {name}:#queue", "other", TTL, ticket, 0)


@pytest.mark.parametrize("longest", ["a", "b", "c"])
async def test_a_refusal_names_who_has_the_first_name_and_when_all_are_free(
    server: Server, longest: str
) -> None:
    for name in "abc":
        ms = 9000 if name == longest else 1000
        await server.node.command("SET", name, f"holder of {name}", "PX", ms)
    reply = await server.acquire(multi.SCRIPT, "a ac b bc c cc", "me")
    assert reply == [0, 9000, "holder of a", 0, 0, 0, []]


async def test_who_takes_places_in_several_queues_has_one_number_and_goes_in_order(
    server: Server,
) -> None:
    """And is let in only where it is the first in each queue."""
    queues = ["a:#queue", "b:#queue"]
    await server.node.command("SET", "b", "holder", "PX", TTL)
    await server.acquire(lock.SCRIPT, "b bc b:#queue", "one", TTL, "t1", 0, floor=70)
    reply = await server.acquire(multi.SCRIPT, TWO, "me", TTL, "mine", -1, floor=9)
    assert reply == [0, TTL, "holder", 71, 0, 0, []], "taken, and not only waited for"
    assert [await server.order(queue) for queue in queues] == [["mine"], ["t1", "mine"]]
    await server.node.command("DEL", "b")
    reply = await server.acquire(multi.SCRIPT, TWO, "me", TTL, "mine", 71)
    assert reply == [0, TTL, "t1", 71, 0, 1, ["b:#queue:#t1"]]
    assert await server.get("b:#queue:#t1") == "go"
    reply = await server.acquire(multi.SCRIPT, TWO, "me", TTL, "mine", 40)
    assert reply[0] == 1, "its own number brings it to the front"
    assert [await server.order(queue) for queue in queues] == [[], ["t1"]]
    assert await server.call(multi.SCRIPT, TWO, "release", "me", 0, "mine", TTL, 99) == [
        1,
        ["a:#queue:#mine", "b:#queue:#t1"],
    ]
    assert [await server.order(queue) for queue in queues] == [["mine"], ["t1", "mine"]]
    await server.acquire(lock.SCRIPT, "a ac a:#queue", "other", TTL, "t2", 100)
    left = await server.call(multi.SCRIPT, TWO, "leave", "mine")
    assert left == [1, ["a:#queue:#t2", "b:#queue:#t1"]]
    assert [await server.order(queue) for queue in queues] == [["t2"], ["t1"]]


@pytest.mark.parametrize("what", ["acquire", "leave"])
async def test_a_queue_of_another_type_is_named_by_who_takes_a_place(
    server: Server, what: str
) -> None:
    await server.node.command("SET", "b:#queue", "text")
    with pytest.raises(Exception, match=r"WRONGTYPE b:#queue must be a sorted set"):
        if what == "acquire":
            await server.acquire(multi.SCRIPT, TWO, "me", TTL, "mine", -1)
        else:
            await server.call(multi.SCRIPT, TWO, "leave", "mine")
    assert [await server.get(name) for name in "ab"] == [None, None]


async def test_the_counters_below_the_fence_are_kept_as_long_as_the_others(server: Server) -> None:
    await server.node.command("SET", "ac", server.now() + 7, "PX", TTL)
    reply = await server.acquire(multi.SCRIPT, TWO, "me", floor=server.now())
    assert reply == [1, server.now() + 8]
    assert [await server.left(key) for key in ("ac", "bc")] == [DAY + 1, DAY + 1]


@pytest.mark.parametrize("names", [1, 2])
async def test_each_group_is_renewed_for_its_own_owner(server: Server, names: int) -> None:
    groups = [[f"{group}{n}" for n in range(names)] for group in "abc"]
    keys = [" ".join(f"{name} {name}c" for name in group) for group in groups]
    for owner, of in zip("abc", keys, strict=True):
        await server.acquire(multi.SCRIPT, of, f"owner {owner}")
    for marks in ("111", "110", "011", "101"):
        for key in " ".join(keys).split():
            await server.node.command("PEXPIRE", key, 5)
        owners = [f"owner {o}" if m == "1" else "you" for o, m in zip("abc", marks, strict=True)]
        reply = await server.call(multi.SCRIPT, " ".join(keys), "extend", TTL, DAY, *owners)
        assert reply == [marks]
        for mark, group in zip(marks, groups, strict=True):
            for name in group:
                assert await server.left(name) == (TTL if mark == "1" else 5)
                assert await server.left(f"{name}c") == (DAY if mark == "1" else 5)


async def test_each_reader_is_renewed_for_its_own_owner(server: Server) -> None:
    for name in "ab":
        keys = f"{name} {name}c {name}q {name}w"
        await server.call(readwrite.READ, keys, "acquire", f"owner {name}", 5000, 5, 0, DAY)
    for owners, marks in (
        (("owner a", "you"), "10"),
        (("you", "owner b"), "01"),
        (("owner a", "owner b"), "11"),
    ):
        for key in ("ac", "bc"):
            await server.node.command("PEXPIRE", key, 5)
        reply = await server.call(readwrite.READ, "a ac b bc", "extend", TTL, DAY, *owners)
        assert reply == [marks]
        for mark, name in zip(marks, "ab", strict=True):
            assert await server.left(f"{name}c") == (DAY if mark == "1" else 5)
    for name in "ab":
        readers, _ = await server.call(readwrite.READ, f"{name} {name}c", "inspect")
        assert readers == [f"owner {name}", str(server.now() // 1000 + TTL)]


@pytest.mark.parametrize("lost", ["a", "b"])
async def test_whoever_lacks_one_of_the_names_has_not_all(server: Server, lost: str) -> None:
    await server.acquire(multi.SCRIPT, TWO, "me")
    await server.node.command("SET", lost, "you", "PX", TTL)
    assert await server.call(multi.SCRIPT, TWO, "check", "me") == [0]
    assert await server.call(multi.SCRIPT, TWO, "release", "me") == [0, []]
    assert await server.get(lost) == "you"


async def test_a_release_wakes_the_first_waiter_of_each_name_that_it_had(server: Server) -> None:
    await server.acquire(multi.SCRIPT, TWO, "me")
    for name in "ab":
        await wait(server, name, "t1")
        await wait(server, name, "t2")
    await server.node.command("SET", "b", "you", "PX", TTL)
    assert await server.call(multi.SCRIPT, TWO, "release", "me") == [0, ["a:#queue:#t1"]]
    assert await server.get("a:#queue:#t1") == "go"
    for key in ("a:#queue:#t2", "b:#queue:#t1"):
        assert await server.get(key) == "1", "nothing is free for it"


@pytest.mark.parametrize("wrong", ["a", "b"])
async def test_a_queue_that_is_none_keeps_no_name_and_no_other_waiter(
    server: Server, wrong: str
) -> None:
    other = "b" if wrong == "a" else "a"
    await server.acquire(multi.SCRIPT, TWO, "me")
    await wait(server, other, "t")
    await server.node.command("SET", f"{wrong}:#queue", "text")
    with pytest.raises(Exception, match=f"WRONGTYPE {wrong}:#queue must be a sorted set"):
        await server.call(multi.SCRIPT, TWO, "release", "me")
    assert [await server.get(name) for name in "ab"] == [None, None]
    assert await server.get(f"{other}:#queue:#t") == "go"
