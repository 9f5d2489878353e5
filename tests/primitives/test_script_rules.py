"""What the scripts reply and leave behind, call by call."""

from __future__ import annotations

from typing import Any

import pytest

from asynclock._primitives import election, lock, multi, register
from tests.primitives.script_server import DAY, TTL, Server

KEYS = "l c q"


@pytest.fixture
async def server() -> Server:
    return Server()


# ---- a mutex -------------------------------------------------------------------------------------


async def test_a_renewal_of_several_locks_renews_those_that_are_ours(server: Server) -> None:
    for name in "ab":
        await server.acquire(lock.SCRIPT, f"{name} {name}c {name}q", f"owner of {name}")
        await server.node.command("PEXPIRE", name, 5)
        await server.node.command("PEXPIRE", f"{name}c", 5)
    for owners, marks in (
        (("owner of a", "you"), "10"),
        (("you", "owner of b"), "01"),
        (("owner of a", "owner of b"), "11"),
    ):
        for key in ("a", "ac", "b", "bc"):
            await server.node.command("PEXPIRE", key, 5)
        assert await server.call(lock.SCRIPT, "a ac b bc", "extend", TTL, DAY, *owners) == [marks]
        for mark, name in zip(marks, "ab", strict=True):
            assert await server.left(name) == (TTL if mark == "1" else 5)
            assert await server.left(f"{name}c") == (DAY if mark == "1" else 5)


async def test_an_owner_that_asks_again_gets_the_whole_ttl(server: Server) -> None:
    for _ in range(2):
        assert (await server.acquire(lock.SCRIPT, KEYS, "me"))[0] == 1
        assert await server.left("l") == TTL
        await server.node.command("PEXPIRE", "l", 5)


async def test_inspect_tells_the_owner_the_time_and_the_counter(server: Server) -> None:
    await server.acquire(lock.SCRIPT, KEYS, "me", floor=server.now())
    assert await server.call(lock.SCRIPT, "l c", "inspect") == ["me", TTL, server.now()]


async def test_a_tool_that_knows_no_queue_releases(server: Server) -> None:
    await server.acquire(lock.SCRIPT, KEYS, "me")
    assert await server.call(lock.SCRIPT, "l c", "release", "you") == [0, ""]
    assert await server.call(lock.SCRIPT, "l c", "release", "me") == [1, ""]
    assert await server.get("l") is None


# ---- the queue of a mutex ------------------------------------------------------------------------


async def wait(server: Server, ticket: str, *, ms: int = TTL, number: int = 0, **at: int) -> Any:
    """Ask for the lock l as a waiter with this ticket."""
    return await server.acquire(lock.SCRIPT, KEYS, f"owner {ticket}", ms, ticket, number, **at)


async def held(server: Server, *keys: str) -> None:
    for key in keys or ("l",):
        await server.node.command("SET", key, "holder", "PX", TTL)


async def test_a_waiter_that_is_refused_learns_its_number_and_its_rank(server: Server) -> None:
    await held(server)
    assert await wait(server, "t1", floor=9) == [0, TTL, "holder", 9, 0, 0]
    assert await wait(server, "t2", floor=9) == [0, TTL, "holder", 10, 1, 0]
    assert await wait(server, "t3", floor=30) == [0, TTL, "holder", 30, 2, 0]
    assert await wait(server, "t2", floor=50) == [0, TTL, "holder", 10, 1, 0]
    assert await server.order() == ["t1", "t2", "t3"]
    assert await wait(server, "t1", number=20, floor=50) == [0, TTL, "holder", 20, 1, 0]
    assert await server.order() == ["t2", "t1", "t3"]
    assert await wait(server, "t0", ms=0, floor=5) == [0, TTL, "holder", 0, 0, 0]
    assert await server.order() == ["t2", "t1", "t3"]


async def test_a_queue_lives_as_long_as_its_tickets(server: Server) -> None:
    await held(server)
    await wait(server, "t1", ms=1000)
    assert (await server.left("q"), await server.left("q:#t1")) == (1000, 1000)
    await wait(server, "t2", ms=3000)
    assert (await server.left("q"), await server.left("q:#t2")) == (3000, 3000)
    server.node.jump_clock(0.5)
    await wait(server, "t1", ms=2000)
    assert await server.left("q:#t1") == 2000


async def test_a_waiter_that_is_woken_is_told_once_and_may_still_die(server: Server) -> None:
    await held(server)
    for ticket, ms in (("t1", 1000), ("t2", TTL)):
        await wait(server, ticket, ms=ms)
    assert await server.call(lock.SCRIPT, KEYS, "release", "holder") == [1, "t1"]
    assert await server.get("q:#t1") == "go"
    assert await server.left("q:#t1") == 1000
    server.node.written.clear()
    assert await server.call(lock.SCRIPT, KEYS, "pass") == [1, "t1"]
    assert (await wait(server, "t3"))[5] == 1
    assert "q:#t1" not in server.node.written
    server.node.jump_clock(1.5)
    assert await server.call(lock.SCRIPT, KEYS, "pass") == [1, "t2"]
    assert await server.order() == ["t2", "t3"], "the dead one is forgotten"
    assert await server.get("q:#t2") == "go"
    assert (await wait(server, "t2", ms=0))[0] == 1
    assert await server.order() == ["t3"]
    assert await server.get("q:#t2") is None


async def test_a_waiter_that_was_woken_and_asks_in_vain_waits_again(server: Server) -> None:
    await held(server)
    await wait(server, "t1")
    await server.call(lock.SCRIPT, KEYS, "release", "holder")
    await held(server)  # by a client that knows no queue
    assert (await wait(server, "t1"))[0] == 0
    assert await server.get("q:#t1") == "1"


async def test_a_newcomer_at_a_name_that_is_left_to_another_wakes_that_one(server: Server) -> None:
    """The holder's key has expired, so nobody else has woken it."""
    await held(server)
    await wait(server, "t1", ms=9000)
    await server.node.command("DEL", "l")
    for _ in range(2):
        assert await wait(server, "t2", floor=99) == [0, 9000, "t1", 99, 1, 1]
        assert await server.get("q:#t1") == "go"
    assert await wait(server, "t3", ms=0) == [0, 9000, "t1", 0, 0, 1]


async def test_a_waiter_keeps_its_place_on_a_node_that_forgot_it(server: Server) -> None:
    await held(server)
    await wait(server, "t2", floor=9)
    await server.node.command("DEL", "l")
    reply = await wait(server, "t1", number=5)
    assert reply[0] == 1, "it has settled on a lower number"
    assert reply[2] == "t2"
    assert await server.order() == ["t2"]
    assert await server.get("q:#t2") == "1", "nothing is free"


async def test_leaving_wakes_the_next_where_the_name_is_free(server: Server) -> None:
    await held(server)
    for ticket in ("t1", "t2", "t3"):
        await wait(server, ticket)
    assert await server.call(lock.SCRIPT, KEYS, "leave", "t2") == [0, ""]
    assert await server.order() == ["t1", "t3"]
    assert await server.get("q:#t2") is None
    assert await server.call(lock.SCRIPT, KEYS, "leave", "t1") == [0, ""]
    assert await server.get("q:#t3") == "1", "the name is taken"
    await server.node.command("DEL", "l")
    assert await server.call(lock.SCRIPT, KEYS, "leave", "another") == [1, "t3"]
    assert await server.get("q:#t3") == "go"


async def test_a_release_says_what_becomes_of_its_ticket(server: Server) -> None:
    """Within a turn it wakes nobody; of a failed attempt the ticket goes on waiting."""
    await server.acquire(lock.SCRIPT, KEYS, "me")
    await wait(server, "t1", floor=9)
    assert await server.call(lock.SCRIPT, KEYS, "release", "me", 1) == [1, ""]
    assert await server.get("q:#t1") == "1"
    await server.call(lock.SCRIPT, KEYS, "leave", "t1")
    await server.acquire(lock.SCRIPT, KEYS, "me")
    assert await server.call(lock.SCRIPT, KEYS, "release", "me", 0, "mine", 2000, 5) == [1, "mine"]
    assert await server.node.command("ZRANGE", "q", 0, -1, "WITHSCORES") == ["mine", "5"]
    assert await server.left("q:#mine") == 2000


async def test_a_process_in_its_turn_goes_first_and_is_told_who_waits(server: Server) -> None:
    await held(server)
    await wait(server, "t1")
    await wait(server, "t2")
    await server.node.command("DEL", "l")
    server.node.written.clear()
    reply = await server.acquire(lock.SCRIPT, KEYS, "me", TTL, "t2", 0, 1, floor=server.now())
    assert reply == [1, server.now(), "t1"]
    assert await server.order() == ["t1"], "its own ticket waits no more"
    assert await server.get("q:#t2") is None
    assert await server.get("q:#t1") == "1"
    assert "q:#t1" not in server.node.written


# ---- slots ---------------------------------------------------------------------------------------


async def slot(server: Server, ticket: str, *more: Any, of: str = "n0 n1") -> Any:
    return await server.acquire(lock.SCRIPT, f"l c q {of}", f"owner {ticket}", TTL, ticket, *more)


async def test_a_refusal_tells_of_other_slots_and_when_the_first_is_free(server: Server) -> None:
    await server.node.command("SET", "l", "holder", "PX", 5000)
    await server.node.command("SET", "n0", "other", "PX", 3000)
    assert await slot(server, "t1") == [0, 3000, "holder", 0, 0, 0, "10"]
    assert await server.order() == [], "the other slot is its for the asking"
    await server.node.command("SET", "n1", "without a ttl")
    reply = await slot(server, "t1")
    assert reply[:3] == [0, 3000, "holder"]
    assert reply[3] > 0
    assert reply[6] == "11"
    assert await server.get("q:#t1") == "3", "slots that it asks about"
    await server.node.command("SET", "n0", "other", "PX", 8000)
    assert (await slot(server, "t1"))[1] == 5000
    for times in ((3000, 4000), (4000, 3000)):
        for key, ms in zip(("n0", "n1"), times, strict=True):
            await server.node.command("SET", key, "other", "PX", ms)
        assert (await slot(server, "t1"))[1] == 3000


async def test_a_free_slot_is_left_to_the_first_waiter(server: Server) -> None:
    await held(server, "l", "n0", "n1")
    await slot(server, "t1")
    await server.node.command("DEL", "n1")
    reply = await slot(server, "t2")
    assert [reply[0], *reply[2:3], *reply[4:]] == [0, "t1", 1, 1, "11"]
    assert await server.get("q:#t1") == "go"
    assert (await slot(server, "t1"))[6] == "10", "the first one sees it"


async def test_a_slot_is_taken_in_a_turn_and_the_first_waiter_woken_for_another(
    server: Server,
) -> None:
    for slots in ("n0 n1", ""):  # which the waiter asks about: users may have fewer permits
        await held(server, "l", "n0", "n1")
        await slot(server, "t1", of=slots)
        await server.node.command("DEL", "l", "n1")
        assert (await slot(server, "t9", 0, 1))[::2] == [1, "t1"]
        assert await server.get("q:#t1") == "go"


async def test_a_waiter_that_leaves_wakes_the_next_for_any_free_slot(server: Server) -> None:
    for free, woken in (("l", True), ("n1", True), ("", False)):
        await held(server, "l", "n0", "n1")
        await slot(server, "t1")
        await slot(server, "t2")
        await server.node.command("DEL", free)
        reply = await server.call(lock.SCRIPT, "l c q n0 n1", "leave", "t1")
        assert reply == [int(woken), "t2" if woken else ""]
        await server.call(lock.SCRIPT, "l c q n0 n1", "leave", "t2")


async def test_a_waiter_that_leaves_from_behind_wakes_nobody(server: Server) -> None:
    await held(server, "l", "n0", "n1")
    await slot(server, "t1", of="")
    await slot(server, "t2")
    assert await server.call(lock.SCRIPT, "l c q n0 n1", "leave", "t2") == [0, ""]
    assert await server.get("q:#t1") == "1"


# ---- batches -------------------------------------------------------------------------------------


async def batch(server: Server, keys: str, releases: int, *owners: str, ms: int = 0) -> Any:
    words = ("batch", releases, TTL, server.now(), 0, DAY, ms)
    return await server.call(lock.SCRIPT, keys, *words, *owners)


async def test_a_batch_replies_plainly_unless_somebody_waits_or_others_hold(server: Server) -> None:
    now = server.now()
    await server.node.command("SET", "a", "me", "PX", TTL)
    assert await batch(server, "a aq bq b bc", 1, "me", "you") == [0, [1, now]]
    assert (await server.get("a"), await server.get("b")) == (None, "you")
    assert (await server.left("b"), await server.left("bc")) == (TTL, DAY)
    odd, replies = await batch(server, "a aq", 1, "me")
    assert (odd, replies[0][:2]) == (1, [0, ""])
    odd, replies = await batch(server, "bq b bc", 0, "me", ms=5000)
    assert (odd, replies[0][:3]) == (1, [0, TTL, "you"])
    assert await server.order("bq") == ["me"]
    assert await server.left("bq:#me") == 5000
    assert await server.get("bq:#me") == "1"
    odd, replies = await batch(server, "b bq cq c cc", 1, "you", "you")
    assert (odd, replies[0][:2], replies[1]) == (1, [1, "me"], now)
    assert await server.get("bq:#me") == "go"
    odd, replies = await batch(server, "bq dq b d bc dc", 0, "fourth", "fifth", ms=5000)
    assert (odd, replies[1]) == (1, now)
    assert await server.get("bq:#fourth") == "1", "it asks about one slot"
    odd, replies = await batch(server, "bq b bc", 0, "third")
    assert (odd, replies[0][:3]) == (1, [0, 5000, "me"])


async def test_the_acquires_of_a_batch_that_comes_late_are_not_made(server: Server) -> None:
    await server.node.command("SET", "a", "me", "PX", TTL)
    words = ("batch", 1, TTL, server.now(), server.now() - 1, DAY, 0, "me", "you")
    odd, replies = await server.call(lock.SCRIPT, "a aq bq b bc", *words)
    assert (odd, replies[0], replies[1][0]) == (1, 1, -1)
    assert await server.get("a") is None, "a release is never too late"
    assert await server.get("b") is None


# ---- registers and elections ---------------------------------------------------------------------


async def test_a_register_keeps_what_it_accepted_for_as_long_as_the_change_says(
    server: Server,
) -> None:
    call, script = server.call, register.SCRIPT
    assert await call(script, "x", "prepare", 5, "me", 5000, 0) == [1, 0, None]
    assert await server.left("x") == 5000
    assert await call(script, "x", "prepare", 5, "you", 5000, 0) == [0, 5]
    assert await call(script, "x", "prepare", 5, "me", 5000, 0) == [1, 0, None]
    for number, ms in ((5, TTL), (6, 1000)):
        assert await call(script, "x", "accept", number, "me", ms, 0, "value") == [1]
        assert await call(script, "x", "read") == [1, number, "value", ms]
        assert await call(script, "x", "prepare", number - 1, "me", ms, 0) == [0, number]
        assert await call(script, "x", "accept", number, "you", ms, 0, "other") == [0, number]
    assert await call(script, "x", "prepare", 7, "you", 5000, 0) == [1, 6, "value"]


async def test_a_value_is_published_by_the_leader_and_expires(server: Server) -> None:
    await server.acquire(lock.SCRIPT, KEYS, "me", floor=server.now())
    assert await server.call(election.SCRIPT, "l v", "publish", "you", "theirs", 9000) == [0]
    assert await server.get("v") is None
    assert await server.call(election.SCRIPT, "l v", "publish", "me", "mine", 9000) == [1]
    assert await server.left("v") == 9000
    seen = await server.call(election.SCRIPT, "l v c", "observe")
    assert seen == ["me", TTL, server.now(), "mine"]


# ---- several names -------------------------------------------------------------------------------


async def test_several_names_have_one_fence_and_each_is_renewed(server: Server) -> None:
    now = server.now()
    await server.node.command("SET", "ac", now + 7, "PX", TTL)
    keys = "a ac b bc"
    for _ in range(2):
        reply = await server.acquire(multi.SCRIPT, keys, "me", floor=now)
        assert reply[0] == 1
        assert [await server.get(key) for key in ("ac", "bc")] == [str(reply[1])] * 2
        assert [await server.left(key) for key in "ab"] == [TTL, TTL]
        await server.node.command("PEXPIRE", "b", 5)
    fence = reply[1] + 3
    assert await server.call(multi.SCRIPT, keys, "raise", "me", fence, DAY) == [1, reply[1]]
    assert [await server.get(key) for key in ("ac", "bc")] == [str(fence)] * 2
    assert await server.call(multi.SCRIPT, keys, "raise", "me", fence, DAY) == [1, fence]
    for key in ("a", "b", "ac", "bc"):
        await server.node.command("PEXPIRE", key, 5)
    assert await server.call(multi.SCRIPT, keys, "extend", TTL, DAY, "me") == ["1"]
    assert [await server.left(key) for key in "ab"] == [TTL, TTL]
    assert [await server.left(key) for key in ("ac", "bc")] == [DAY, DAY]


async def test_the_owner_of_some_names_does_not_have_all(server: Server) -> None:
    keys = "a ac b bc"
    await server.acquire(multi.SCRIPT, keys, "me")
    await server.node.command("DEL", "a")
    assert await server.call(multi.SCRIPT, keys, "check", "me") == [0]
    assert await server.call(multi.SCRIPT, keys, "extend", TTL, DAY, "me") == ["0"]
    assert (await server.call(multi.SCRIPT, keys, "raise", "me", 999, DAY))[0] == 0
    assert await server.call(multi.SCRIPT, keys, "release", "me") == [0, []]
    assert await server.get("b") is None


async def test_a_raise_of_several_names_looks_at_each_counter(server: Server) -> None:
    keys = "a ac b bc"
    for higher in ("ac", "bc"):
        await server.acquire(multi.SCRIPT, keys, "me")
        await server.node.command("SET", "ac", 5)
        await server.node.command("SET", "bc", 5)
        await server.node.command("SET", higher, 9)
        assert await server.call(multi.SCRIPT, keys, "raise", "me", 7, DAY) == [0, 9]
