"""What the scripts of a read-write lock reply and leave behind, call by call."""

from __future__ import annotations

from typing import Any

import pytest

from asynclock._primitives import readwrite
from tests.primitives.script_server import DAY, TTL, Server

READ, WRITE = (readwrite.READ, "r c q w"), (readwrite.WRITE, "w c q r")
READY, AHEAD, LATER = -1, 1, 4 * 10**15


@pytest.fixture
async def server() -> Server:
    return Server()


async def read(server: Server, owner: str, ms: int = TTL, *more: Any) -> Any:
    return await server.acquire(*READ, owner, ms, f"{owner}'s", 0, *more)


async def write(server: Server, owner: str, ms: int = TTL, *more: Any, **at: int) -> Any:
    number, *rest = more or (0,)
    return await server.acquire(*WRITE, owner, ms, f"{owner}'s", number, *rest, **at)


async def scores(server: Server) -> dict[str, int]:
    found = iter(await server.node.command("ZRANGE", "q", 0, -1, "WITHSCORES"))
    return {ticket: int(float(score)) for ticket, score in zip(found, found, strict=True)}


async def free(server: Server) -> None:
    """The writer's key expires: nobody is told."""
    await server.node.command("DEL", "w")


# ---- readers -------------------------------------------------------------------------------------


async def test_readers_and_for_how_long(server: Server) -> None:
    ms = server.now() // 1000
    assert (await read(server, "one"))[0] == 1
    await server.call(*READ, "acquire", "two", 1000, 5, 0, DAY)
    found, counter = await server.call(readwrite.READ, "r c", "inspect")
    pairs = dict(zip(found[::2], map(float, found[1::2]), strict=True))
    assert pairs == {"one": ms + TTL, "two": ms + 1000}
    assert str(counter) == await server.get("c")
    assert await server.left("r") == TTL
    server.node.jump_clock(1.5)
    assert (await server.call(readwrite.READ, "r c", "inspect"))[0][::2] == ["one"]
    for owner, reads in (("one", 1), ("two", 0)):
        assert await server.call(readwrite.READ, "r c", "check", owner) == [reads]
        assert await server.call(readwrite.READ, "r c", "extend", TTL, DAY, owner) == [str(reads)]
    assert await server.call(*READ, "release", "two") == [0, []]
    assert await server.node.command("ZCARD", "r") == 1
    assert (await server.call(readwrite.READ, "r c", "inspect"))[0][1] == str(ms + 1500 + TTL)


async def test_a_reader_that_a_writer_keeps_out_waits_or_only_asks(server: Server) -> None:
    await write(server, "writer")
    for _ in range(2):
        assert await read(server, "one", 0) == [0, TTL, "writer", 0, 0, 0, []]
    assert await scores(server) == {}
    assert await read(server, "one", 2000) == [0, TTL, "writer", 1, 0, 0, []]
    (place,) = (await scores(server)).values()
    assert place >= LATER
    assert await server.left("q:#one's") == 2000
    server.node.jump_clock(0.5)
    await read(server, "one", 2000)
    assert list((await scores(server)).values()) == [place]


async def test_a_reader_that_finds_a_free_name_wakes_the_writer_that_goes_first(
    server: Server,
) -> None:
    await write(server, "first")
    await write(server, "second", 9000)
    await free(server)
    assert await read(server, "one") == [0, 9000, "second's", 1, 0, 1, ["second's"]]
    assert await server.get("q:#second's") == "go"
    assert await server.left("q:#second's") == 9000
    server.node.written.clear()
    again = await read(server, "one")
    assert (again[1], again[6]) == (9000, ["second's"])
    assert "q:#second's" not in server.node.written, "it was told already"


async def test_a_reader_keeps_its_turn_until_it_has_read(server: Server) -> None:
    await write(server, "first")
    await read(server, "one")
    await write(server, "second")
    assert await server.call(*WRITE, "release", "first", 1) == [1, []]
    assert (await scores(server))["one's"] == READY
    assert (await write(server, "first", TTL, 0, 1))[0] == 1, "within its turn"
    assert (await read(server, "one"))[0] == 0
    assert (await scores(server))["one's"] == READY
    assert await server.call(*WRITE, "release", "first") == [1, ["one's"]]
    assert (await read(server, "one"))[0] == 1
    assert list(await scores(server)) == ["second's"], "it waits no more"
    assert await server.get("q:#one's") is None


async def test_all_readers_that_waited_for_a_writer_have_their_turn(server: Server) -> None:
    await write(server, "first")
    for owner in ("one", "two", "three"):
        await read(server, owner, 5000)
    await write(server, "second", floor=9000)
    await write(server, "third", floor=9000)
    released = await server.call(*WRITE, "release", "first")
    assert [released[0], sorted(released[1])] == [1, ["one's", "three's", "two's"]]
    found = await scores(server)
    assert [found[f"{owner}'s"] for owner in ("one", "two", "three")] == [READY] * 3
    assert (found["second's"], found["third's"]) == (9, 10)
    assert await server.left("q:#one's") == 5000, "it may still die"
    server.node.written.clear()
    again = await server.call(*WRITE, "pass")
    assert sorted(again[1]) == ["one's", "three's", "two's"]
    assert not [key for key in server.node.written if key.startswith("q:#")]
    await server.node.command("DEL", "q:#two's", "q:#three's")
    assert await server.call(*WRITE, "pass") == [1, ["one's"]]
    assert list(await scores(server)) == ["one's", "second's", "third's"], "no dead ones"
    assert (await read(server, "new", 0))[2:] == ["second's", 0, 0, 0, ["one's"]]
    assert await server.call(*READ, "leave", "one's") == [1, ["second's"]]


async def test_readers_wait_in_the_order_in_which_they_asked(server: Server) -> None:
    await write(server, "writer")
    for owner in ("b", "c", "a"):
        await read(server, owner)
        server.node.jump_clock(0.001)
    assert list(await scores(server)) == ["b's", "c's", "a's"]


async def test_a_writer_that_is_refused_beside_a_reader_tells_whom_it_woke(server: Server) -> None:
    await write(server, "first")
    for owner in ("one", "two"):
        await read(server, owner)
    await server.call(*WRITE, "release", "first", 1)
    assert (await read(server, "one"))[0] == 1
    reply = await write(server, "second")
    assert (reply[2], reply[6]) == ("one", ["two's"])
    assert await server.get("q:#two's") == "go"


async def test_a_writer_waits_for_no_reader_that_goes_after_it(server: Server) -> None:
    await write(server, "first")
    await read(server, "one")
    await free(server)
    assert (await write(server, "second"))[::2] == [1, "one's"]


async def test_a_release_by_another_changes_nothing(server: Server) -> None:
    await write(server, "me")
    await read(server, "one")
    assert await server.call(*WRITE, "release", "you") == [0, []]
    assert (await server.get("w"), await server.get("q:#one's")) == ("me", "1")


async def test_a_reader_that_is_put_back_waits_for_no_ticket(server: Server) -> None:
    await read(server, "one")
    await write(server, "writer")
    assert (await read(server, "two"))[0] == 0
    assert (await read(server, "three", 0, 1))[0] == 1


async def test_without_writers_all_readers_are_woken(server: Server) -> None:
    await write(server, "writer")
    for owner in ("one", "two"):
        await read(server, owner)
    await free(server)
    passed = await server.call(*WRITE, "pass")
    assert sorted(passed[1]) == ["one's", "two's"]
    assert await server.call(*READ, "leave", "one's") == [1, ["two's"]]
    assert await server.get("q:#one's") is None


async def test_nobody_is_woken_while_a_writer_writes(server: Server) -> None:
    await write(server, "writer")
    for owner in ("one", "two"):
        await read(server, owner)
    await write(server, "second")
    for script, keys in (READ, WRITE):
        assert await server.call(script, keys, "leave", "another") == [1, []]
    assert await server.call(*READ, "leave", "two's") == [1, []]
    assert await server.get("q:#one's") == "1"


async def test_a_readers_attempt_that_failed_elsewhere_goes_on_waiting(server: Server) -> None:
    await read(server, "one")
    await read(server, "two")
    await write(server, "writer")
    assert await server.call(*READ, "release", "one", 0, "one's", 3000, 1) == [1, []]
    assert (await scores(server))["one's"] >= LATER
    assert await server.left("q:#one's") == 3000
    assert await server.call(*READ, "release", "two") == [1, ["writer's"]]


async def test_a_downgrade_goes_before_all_who_wait(server: Server) -> None:
    await write(server, "me")
    await write(server, "second")
    await read(server, "one")
    assert (await read(server, "mine", TTL, 0, "me"))[0] == 1
    assert await server.get("w") == "me"
    assert (await read(server, "theirs", TTL, 0, "another"))[2] == "me"
    # The same where the node has forgotten the writer.
    await free(server)
    assert (await read(server, "again", TTL, 0, "me"))[0] == 1


# ---- writers -------------------------------------------------------------------------------------


async def test_writers_have_numbers_of_their_own(server: Server) -> None:
    await write(server, "holder")
    assert await write(server, "w1", floor=0) == [0, TTL, "holder", 2, 0, 0, []]
    assert (await write(server, "w2", floor=0))[3] == 3
    assert (await write(server, "w3", floor=90_999))[3] == 90
    await read(server, "reader")
    assert (await write(server, "w4", floor=9000))[3] == 91, "readers' numbers are no writers'"
    assert (await write(server, "w2", floor=95_000))[3] == 3
    assert (await write(server, "w2", TTL, 50, floor=95_000))[3] == 50
    assert list(await scores(server)) == ["w1's", "w2's", "w3's", "w4's", "reader's"]
    assert (await write(server, "w5", floor=LATER))[3] == LATER // 1000, "in the year 2096"
    assert (await write(server, "w6", floor=LATER))[3] == LATER // 1000 + 1
    assert list(await scores(server))[-3:] == ["w5's", "w6's", "reader's"]
    assert await server.call(*WRITE, "leave", "w6's") == [1, []]
    assert await write(server, "w6", 0) == [0, TTL, "holder", 0, 0, 0, []]
    assert "w6's" not in await scores(server)


async def test_a_writer_learns_who_reads_and_for_how_long(server: Server) -> None:
    await server.call(*READ, "acquire", "short", 1000, 5, 0, DAY)
    await server.call(*READ, "acquire", "long", 9000, 5, 0, DAY)
    reply = await write(server, "writer")
    assert (reply[0], reply[2], reply[5]) == (0, "short", 0), "all nodes name the same one"
    assert 8998 <= reply[1] <= 9001
    server.node.jump_clock(10)
    assert (await write(server, "writer"))[0] == 1


async def test_a_writer_at_a_name_that_is_left_to_another_wakes_that_one(server: Server) -> None:
    await write(server, "holder")
    await write(server, "first", 9000, floor=9000)
    await free(server)
    assert await write(server, "second") == [0, 9000, "first's", 10, 0, 1, ["first's"]]
    assert await server.get("q:#first's") == "go"
    reply = await write(server, "first")
    assert (reply[0], reply[2]) == (1, "second's")
    assert list(await scores(server)) == ["second's"]
    assert await server.get("q:#first's") is None
    await free(server)
    assert (await write(server, "second"))[::2] == [1, ""]


async def test_a_writer_never_wakes_itself(server: Server) -> None:
    await read(server, "reader")
    for _ in range(2):
        assert (await write(server, "writer"))[6] == []
    assert await server.get("q:#writer's") == "1"


async def test_a_writer_keeps_its_place_on_a_node_that_forgot_it(server: Server) -> None:
    await write(server, "holder")
    await write(server, "second", floor=9000)
    await free(server)
    reply = await write(server, "first", TTL, 5)
    assert (reply[0], reply[2]) == (1, "second's")
    await free(server)
    assert (await write(server, "third", TTL, 20))[0] == 0


async def test_a_writer_that_asks_again_and_one_in_its_turn_go_first(server: Server) -> None:
    await write(server, "me")
    await write(server, "second")
    assert (await write(server, "me"))[0] == 1
    assert await server.left("w") == TTL
    await free(server)
    assert (await write(server, "third"))[0] == 0
    assert (await write(server, "third", TTL, 0, 1))[::2] == [1, "second's"]


async def test_an_upgrade_goes_before_writers_and_after_other_readers(server: Server) -> None:
    await read(server, "mine")
    await read(server, "other")
    await write(server, "writer")
    reply = await write(server, "me", TTL, 0, 0, "mine")
    assert (reply[0], reply[2], reply[3]) == (0, "other", AHEAD)
    assert list(await scores(server)) == ["me's", "writer's"]
    newcomer = await read(server, "new")
    assert (newcomer[0], newcomer[2]) == (0, "me's")
    assert await server.call(*READ, "release", "other") == [1, ["me's"]], "its own reader stays"
    assert (await write(server, "me", TTL, 1, 0, "mine"))[::2] == [1, "writer's"]
    assert "me's" not in await scores(server)
    assert await server.call(*WRITE, "release", "me") == [1, ["new's"]]


async def test_readers_that_come_later_wait_for_an_upgrade(server: Server) -> None:
    """Also if no writer waits: otherwise readers could follow each other without end."""
    await read(server, "mine")
    await read(server, "other")
    await write(server, "me", TTL, 0, 0, "mine")
    newcomer = await read(server, "new")
    assert (newcomer[0], newcomer[2]) == (0, "me's")


async def test_an_upgrade_is_granted_at_once_beside_its_own_reader(server: Server) -> None:
    await read(server, "mine")
    await write(server, "writer")
    assert (await write(server, "me", TTL, 0, 0, "mine"))[::2] == [1, "writer's"]


async def test_a_writer_that_leaves_lets_the_next_go(server: Server) -> None:
    await read(server, "reader")
    await write(server, "w1", floor=9)
    await write(server, "w2", floor=9)
    await read(server, "late")
    assert await server.call(*WRITE, "leave", "w1's") == [1, []], "somebody reads"
    assert list(await scores(server)) == ["w2's", "late's"]
    assert await server.get("q:#w1's") is None
    assert await server.call(*WRITE, "leave", "w2's") == [1, ["late's"]]


async def test_a_writers_ticket_that_has_expired_keeps_no_reader_out(server: Server) -> None:
    await write(server, "holder")
    await read(server, "waiting")
    await write(server, "dead", 1000)
    server.node.jump_clock(1.5)
    await free(server)
    assert (await read(server, "one"))[0] == 1
    # The same behind a reader whose turn it is, where nobody has removed the ticket.
    await server.call(*READ, "release", "one")
    await write(server, "holder")
    await read(server, "waiting")
    await write(server, "dead", 1000)
    await server.call(*WRITE, "release", "holder")
    assert (await read(server, "one"))[0] == 0
    server.node.jump_clock(1.5)
    assert (await read(server, "one"))[0] == 1


async def test_a_writers_attempt_that_failed_elsewhere_keeps_its_place(server: Server) -> None:
    await write(server, "me")
    await read(server, "one")
    await write(server, "second", floor=9000)
    reply = await server.call(*WRITE, "release", "me", 0, "me's", 3000, 5)
    assert reply == [1, ["me's"]]
    assert list(await scores(server)) == ["me's", "second's", "one's"], "and no turn has ended"
    assert await server.left("q:#me's") == 3000


async def test_a_queue_of_another_type_is_named(server: Server) -> None:
    await server.node.command("SET", "q", "text")
    for script, keys in (READ, WRITE):
        for call in (("acquire", "me", TTL, 5, 0, DAY), ("leave", "t")):
            with pytest.raises(Exception, match="WRONGTYPE q must be a sorted set"):
                await server.call(script, keys, *call)
    await server.node.command("SET", "w", "me", "PX", TTL)
    with pytest.raises(Exception, match="WRONGTYPE q must be a sorted set"):
        await server.call(*WRITE, "release", "me")
    assert await server.get("w") is None, "it is released all the same"
