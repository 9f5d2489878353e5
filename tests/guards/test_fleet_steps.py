"""What the steps of a fleet refuse, what they may be asked again, and whom they name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import asynclock
from asynclock import _clock
from asynclock._nodes.set_guard import digest
from asynclock._rules.nodeset import CLOSING, OPEN, SETTLED, NodeSet
from asynclock._rules.validity import quarantine
from asynclock.fleet import Fleet, FleetState, _name
from asynclock.testing.memory import MemoryEndpoint, MemoryNode
from asynclock.testing.memory.keyspace import ReplyError
from tests.engine.virtual_nodes import TTL, Way
from tests.guards.test_fleet_in_time import Pushing, named, pushed
from tests.guards.test_set_in_time import SETTINGS
from tests.waiting import in_virtual_time, until

ABC = tuple(f"memory://{name}" for name in "abc")
ABCD = (*ABC, "memory://d")
RECORD = "asynclock::#set"
LATER = 2**52
"""The number of a change, which nodes count in microseconds since 1970, of many years from now."""


def set_of(state: FleetState) -> NodeSet:
    assert state.record is not None
    return state.record


def digest_of(names: tuple[str, ...]) -> str:
    """Return what names the connections of a client of these nodes."""
    return f"{digest(names)}:host:7"


# ---- steps that are asked for again --------------------------------------------------------------


@in_virtual_time
async def test_a_node_is_replaced_in_two_steps_that_may_be_asked_for_again() -> None:
    _, nodes = pushed("abcd")
    async with Fleet(*nodes[:3], **SETTINGS) as fleet:
        await fleet.record()
        added = set_of(await fleet.add(nodes[3]))
        assert added == NodeSet(2, ABC, ABCD, OPEN)
        assert set_of(await fleet.add(nodes[3])) == added, "an interrupted call is made again"
        await fleet.finish()
    async with Fleet(*nodes, **SETTINGS) as fleet:
        for _ in range(2):
            record = set_of(await fleet.replace("memory://a", "memory://d"))
            assert record == NodeSet(4, ABCD, ABCD[1:], OPEN)


@in_virtual_time
async def test_a_replacement_begins_with_the_new_node_and_waits_for_the_end_of_that_step() -> None:
    async with Fleet(*ABC, **SETTINGS) as fleet:
        await fleet.record()
        for _ in range(2):
            record = set_of(await fleet.replace("memory://a", "memory://d"))
            assert record == NodeSet(2, ABC, ABCD, OPEN)


@in_virtual_time
async def test_a_step_that_is_closing_is_finished_again_under_clients_that_it_refused() -> None:
    """They were refused by the first call, and may still be connected."""
    servers, nodes = pushed("abcd")
    async with Fleet(*nodes[:3], **SETTINGS) as fleet:
        await fleet.record()
        await fleet.add(nodes[3])
        closing = asyncio.create_task(fleet.finish())
        async with Fleet(*nodes[:3], **SETTINGS) as other:
            await until(lambda: _phase_is(other, CLOSING))
            closing.cancel()
            for server in servers:
                server.clients = named(digest_of(ABC))
            assert set_of(await other.finish()) == NodeSet(3, ABCD)


async def _phase_is(fleet: Fleet, phase: str) -> bool:
    return set_of(await fleet.show()).phase == phase


@in_virtual_time
async def test_a_step_that_was_begun_anew_is_not_ended_by_the_call_before() -> None:
    """Clients of the other set may hold leases again."""
    _, nodes = pushed("abcd")
    async with Fleet(*nodes[:3], **SETTINGS) as fleet, Fleet(*nodes[:3], **SETTINGS) as other:
        await fleet.record()
        await fleet.add(nodes[3])
        closing = asyncio.create_task(fleet.finish())
        await until(lambda: _phase_is(other, CLOSING))
        await other.remove("memory://d")
        with pytest.raises(asynclock.ConfigurationError, match="was begun anew while this call"):
            await closing
        assert set_of(await other.show()) == NodeSet(4, ABCD, ABC, OPEN)


# ---- what is refused -----------------------------------------------------------------------------

CALLS: dict[str, Callable[[Fleet], Awaitable[FleetState]]] = {
    "add": lambda fleet: fleet.add("memory://d"),
    "remove": lambda fleet: fleet.remove("memory://a"),
    "replace": lambda fleet: fleet.replace("memory://a", "memory://d"),
    "finish": lambda fleet: fleet.finish(),
    "back": lambda fleet: fleet.back(),
}


@pytest.mark.parametrize("call", CALLS)
@in_virtual_time
async def test_without_a_record_there_are_no_steps(call: str) -> None:
    async with Fleet(*ABC, **SETTINGS) as fleet:
        with pytest.raises(asynclock.ConfigurationError, match="asynclock nodes record"):
            await CALLS[call](fleet)
        assert (await fleet.show()).record is None


@in_virtual_time
async def test_a_record_of_another_version_is_not_written_over() -> None:
    servers, nodes = pushed("abc")
    for server in servers:
        await server.command("HSET", RECORD, "accepted", 1, "value", "later", "promised", 1)
    async with Fleet(*nodes, **SETTINGS) as fleet:
        with pytest.raises(asynclock.ConfigurationError, match="not one of this version: 'later'"):
            await fleet.record()
    for server in servers:
        assert await server.command("HMGET", RECORD, "value") == ["later"]


@in_virtual_time
async def test_one_server_under_two_addresses_is_not_added() -> None:
    servers, nodes = pushed("abc")
    again: Any = MemoryEndpoint("again", servers[1], Way())
    async with Fleet(*nodes, **SETTINGS) as fleet:
        await fleet.record()
        with pytest.raises(
            asynclock.ConfigurationError, match="memory://again and memory://b are the same server"
        ):
            await fleet.add(again)


@in_virtual_time
async def test_servers_that_do_not_say_who_they_are_are_not_taken_for_one() -> None:
    servers, nodes = pushed("abcd")
    for server in (servers[0], servers[3]):
        server.instead[b"INFO"] = lambda _words: ReplyError("NOPERM no right")
    async with Fleet(*nodes[:3], **SETTINGS) as fleet:
        await fleet.record()
        assert set_of(await fleet.add(nodes[3])).phase == OPEN


@pytest.mark.parametrize("prefix", ["asynclock:", "app:"])
@in_virtual_time
async def test_a_node_with_a_later_record_belongs_to_another_fleet(prefix: str) -> None:
    _, nodes = pushed("abc")
    (new,), (place,) = pushed("d")
    key = f"{prefix}:#set"
    value = NodeSet(9, ABC).text()
    await new.command("HSET", key, "accepted", LATER, "value", value, "promised", LATER)
    async with Fleet(*nodes, **SETTINGS, prefix=prefix) as fleet:
        await fleet.record()
        with pytest.raises(asynclock.ConfigurationError, match="another fleet") as caught:
            await fleet.add(place)
        assert f"redis-cli DEL '{key}'" in str(caught.value)
        await new.command("DEL", key)
        assert set_of(await fleet.add(place)).phase == OPEN


@in_virtual_time
async def test_where_nobody_may_list_clients_only_force_ends_a_step() -> None:
    servers, nodes = pushed("abcd")
    async with Fleet(*nodes[:3], **SETTINGS) as fleet:
        await fleet.record()
        await fleet.add(nodes[3])
        for server in servers:
            server.clients = ReplyError("NOPERM no right")  # type: ignore[assignment]
        with pytest.raises(asynclock.ConfigurationError, match=r"\(CLIENT LIST\).* or use force"):
            await fleet.finish()
        assert set_of(await fleet.show()).phase == OPEN
        assert set_of(await fleet.finish(force=True)).phase == SETTLED


@in_virtual_time
async def test_of_many_clients_that_use_other_nodes_the_first_are_named() -> None:
    servers, nodes = pushed("abc")
    for server in servers:
        server.clients = named(*(f"x:host:{number:02}" for number in range(25)))
    async with Fleet(*nodes, **SETTINGS) as fleet:
        with pytest.raises(asynclock.ConfigurationError, match=r"^25 connected clients") as caught:
            await fleet.record()
        assert "'host:19'; start them" in str(caught.value)
        assert "host:20" not in str(caught.value)
        assert set_of(await fleet.record(force=True)) == NodeSet(1, ABC)


@in_virtual_time
async def test_tools_that_hold_no_lock_stop_no_step() -> None:
    servers, nodes = pushed("abc")
    tools = [f"x:host:7:{tool}" for tool in ("serve", "top", "inspect")]
    async with Fleet(*nodes, **SETTINGS) as fleet:
        for server in servers:
            server.clients = named(*tools, "x:host:7:served")
        with pytest.raises(asynclock.ConfigurationError, match=r"^1 connected .* \(--force\)"):
            await fleet.record()
        for server in servers:
            server.clients = named(*tools)
        assert set_of(await fleet.record()) == NodeSet(1, ABC)


# ---- how long the steps take ---------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False])
@in_virtual_time
async def test_a_young_node_with_the_disk_of_before_is_added_at_once(*, kept: bool) -> None:
    """The restart guard of the fleet's clients says whether disks are kept."""
    said: list[str] = []
    _, nodes = pushed("abc")
    young = MemoryNode("d", durable=True)
    place: Any = MemoryEndpoint("d", young, Way())
    settings = {**SETTINGS, "restart_guard": "disk" if kept else True}
    async with Fleet(*nodes, **settings, progress=said.append) as fleet:
        await fleet.record()
        young.born_ago(0)
        began = _clock.now()
        await fleet.add(place)
        assert (_clock.now() - began < 1.0) is kept
        assert bool(said) is not kept


@in_virtual_time
async def test_a_step_waits_at_least_a_second_for_clients_that_look_at_their_timers() -> None:
    """However short the timeout of a node is."""
    _, nodes = pushed("abcd")
    settings = {**SETTINGS, "node_timeout": 0.1}
    async with Fleet(*nodes[:3], **settings) as fleet:
        await fleet.record()
        await fleet.add(nodes[3])
        began = _clock.now()
        await fleet.back()
        assert _clock.now() - began >= quarantine(TTL) + TTL / 3 + 1.0 + 0.1


# ---- names and connections -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("redis://user:secret@h:7/1", "h:7"),
        ("valkey://h:7", "h:7"),
        (" rediss://h:7 ", "h:7"),
        ("h:7", "h:7"),
        ("odd name", "odd name"),
    ],
)
def test_a_node_is_given_by_its_url_or_its_name(given: str, name: str) -> None:
    assert _name(given).split("/")[0] == name


@in_virtual_time
async def test_nothing_stays_connected() -> None:
    servers, nodes = pushed("abcd")

    def connected(some: list[Pushing]) -> list[int]:
        return [server.connections for server in some]

    async with Fleet(*nodes[:3], **SETTINGS) as fleet:
        await fleet.record()
        await fleet.add(nodes[3])
        await until(lambda: connected(servers) == [1, 1, 1, 0])
    await until(lambda: connected(servers) == [0] * 4)
    with pytest.raises(asynclock.ConfigurationError, match="is not one of"):
        async with Fleet(*nodes, **SETTINGS) as fleet:
            await until(lambda: connected(servers) == [1] * 4)
            await fleet.remove("nobody:1")
    await until(lambda: connected(servers) == [0] * 4)
