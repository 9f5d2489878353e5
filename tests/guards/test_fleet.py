"""The steps of a fleet: what they wait for, refuse, leave at the nodes and tell. Virtual time."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import asynclock
from asynclock._rules.nodeset import CLOSING, OPEN, SETTLED, NodeSet
from asynclock._rules.validity import quarantine
from asynclock.fleet import Fleet, FleetState
from asynclock.testing.memory import MemoryNode, memory_node
from asynclock.testing.memory.commands import ReplyError
from tests.engine.virtual_nodes import NODE_TIMEOUT, TTL, instead
from tests.guards.nodes import (
    ABC,
    ABCD,
    RECORD,
    SETTINGS,
    Place,
    Server,
    digest,
    far_nodes,
    keep,
    kept,
    named,
    pushed,
)
from tests.tables.inside import now
from tests.waiting import go_through, in_virtual_time, until

POLL = TTL / 3 + 4 * NODE_TIMEOUT
"""Maximum seconds until a client without pushes has asked: it looks at its timer that often."""
LATER = 2**52
"""The number of a change, which nodes count in microseconds since 1970, of many years from now."""
HELD = "waiting {} s until no client of the other set holds a lease"
Refused = asynclock.ConfigurationError


def fleet_of(nodes: list[Any], **settings: Any) -> Fleet:
    return Fleet(*nodes, **{**SETTINGS, **settings})


@contextlib.asynccontextmanager
async def recorded(nodes: list[Any], **settings: Any) -> AsyncIterator[Fleet]:
    """Such a fleet, which has a record."""
    async with fleet_of(nodes, **settings) as fleet:
        await fleet.record()
        yield fleet


def set_of(state: FleetState) -> NodeSet:
    assert state.record is not None
    return state.record


async def set_in(fleet: Fleet) -> NodeSet:
    return set_of(await fleet.show())


async def names_and_sets(servers: list[Server]) -> list[tuple[NodeSet | None, str | None]]:
    return [(record, name) for _, record, name in [await kept(one) for one in servers]]


def listed(servers: list[Server], *uses: str) -> None:
    """Let all nodes list these clients."""
    for server in servers:
        server.clients = named(*uses)


# ---- what the steps leave at the nodes -----------------------------------------------------------
@pytest.mark.parametrize("odd", ["nothing", "a node misses a change", "calls are repeated"])
@in_virtual_time
async def test_each_node_keeps_the_record_and_its_own_name_after_each_step(odd: str) -> None:
    """A node that missed a change is told before the call ends; a repeated call changes nothing."""
    servers, nodes = pushed("abcd")
    if "misses" in odd:
        servers[2].instead[b"EVALSHA"] = lambda _words: ReplyError("ERR no script, this time")
    async with fleet_of(nodes[:3]) as fleet:
        for call, record in (
            (fleet.record, NodeSet(1, ABC)),
            (lambda: fleet.add(nodes[3]), NodeSet(2, ABC, ABCD, OPEN)),
            (fleet.finish, NodeSet(3, ABCD)),
        ):
            state = await call()
            assert (state.record, state.lagging) == (record, ())
            assert [node.named for node in state.nodes] == [True] * 3
            assert await names_and_sets(servers[:3]) == [(record, name) for name in ABC]
            if record.epoch == 2:
                assert await names_and_sets(servers[3:]) == [(record, "memory://d")]
            if "repeated" in odd and record.epoch < 3:
                assert set_of(await fleet.record()) == record
    if "repeated" in odd:
        async with fleet_of(nodes) as fleet:
            assert set_of(await fleet.record()) == NodeSet(3, ABCD)


@in_virtual_time
async def test_a_node_that_lost_the_record_is_told_it_by_a_call_that_changes_nothing() -> None:
    servers, nodes = pushed("abc")
    async with recorded(nodes) as fleet:
        await servers[2].command("DEL", RECORD)
        state = await fleet.record()
        assert (state.record, state.lagging) == (NodeSet(1, ABC), ())
        assert await names_and_sets(servers) == [(NodeSet(1, ABC), name) for name in ABC]


@in_virtual_time
async def test_a_node_may_be_given_by_its_url_in_each_call() -> None:
    """The record has names without a login, and no message shows the login."""
    servers, nodes = pushed("abcd")
    names = ("h:1", "h:2", "h:3", "h:4")
    for server, name in zip(servers, names, strict=True):
        await keep(server, NodeSet(1, names), 1, "name", name)
    removing = NodeSet(2, names, names[1:], OPEN)
    async with fleet_of(nodes) as fleet:
        with pytest.raises(Refused) as caught:
            await fleet.remove("redis://user:secret@h:5")
        assert str(caught.value) == "h:5 is not one of {h:1, h:2, h:3, h:4}"
        for old in ("redis://user:secret@h:1", "valkey://h:1", " rediss://h:1 ", "h:1"):
            assert set_of(await fleet.replace(old, "redis://user:secret@h:4/0")) == removing
        assert set_of(await fleet.remove("redis://user:secret@h:1/0")) == removing


@in_virtual_time
async def test_nothing_stays_connected() -> None:
    servers, nodes = pushed("abcd")

    async def connected(*wanted: int) -> None:
        await until(lambda: [server.connections for server in servers] == list(wanted))

    async with recorded(nodes[:3]) as fleet:
        await fleet.add(nodes[3])
        await connected(1, 1, 1, 0)
    await connected(0, 0, 0, 0)
    with pytest.raises(Refused, match="is not one of"):
        async with fleet_of(nodes) as fleet:
            await connected(1, 1, 1, 1)
            await fleet.remove("nobody:1")
    await connected(0, 0, 0, 0)


# ---- steps that are asked for again --------------------------------------------------------------
@in_virtual_time
async def test_a_node_is_replaced_in_two_steps_that_may_be_asked_for_again() -> None:
    _, nodes = pushed("abcd")
    async with recorded(nodes[:3]) as fleet:
        added = set_of(await fleet.add(nodes[3]))
        assert added == NodeSet(2, ABC, ABCD, OPEN)
        assert set_of(await fleet.add(nodes[3])) == added, "an interrupted call is made again"
        await fleet.finish()
    async with fleet_of(nodes) as fleet:
        for _ in range(2):
            record = set_of(await fleet.replace("memory://a", "memory://d"))
            assert record == NodeSet(4, ABCD, ABCD[1:], OPEN)


@in_virtual_time
async def test_a_replacement_begins_with_the_new_node_and_waits_for_the_end_of_that_step() -> None:
    used = b"id=1 name=asynclock:x:host:7 flags=N\nid=8 addr=h:9 name= flags=t"
    instead(memory_node("d"), lambda words: used if words[1:2] == (b"LIST",) else None)
    async with recorded(list(ABC)) as fleet:
        with pytest.raises(Refused, match="host:7"):
            await fleet.replace("memory://a", "memory://d")
        for _ in range(2):
            record = set_of(await fleet.replace("memory://a", "memory://d", force=True))
            assert record == NodeSet(2, ABC, ABCD, OPEN)


@pytest.mark.parametrize("anew", [False, True])
@in_virtual_time
async def test_a_step_that_is_closing_is_finished_again_or_begun_anew(anew: bool) -> None:
    """Under clients that the first call refused, which may still be connected.

    A step that was begun anew is not ended by the call before: clients may hold leases again.
    """
    servers, nodes = pushed("abcd")
    async with fleet_of(nodes[:3]) as fleet, fleet_of(nodes[:3]) as other:
        await fleet.record()
        await fleet.add(nodes[3])
        closing = asyncio.create_task(fleet.finish())

        async def is_closing() -> bool:
            return (await set_in(other)).phase == CLOSING

        await until(is_closing)
        if anew:
            await other.remove("memory://d")
            with pytest.raises(Refused, match="was begun anew while this call"):
                await closing
            assert await set_in(other) == NodeSet(4, ABCD, ABC, OPEN)
        else:
            closing.cancel()
            listed(servers, f"{digest(ABC)}:host:7")
            assert set_of(await other.finish()) == NodeSet(3, ABCD)


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
    async with fleet_of(list(ABC)) as fleet:
        with pytest.raises(Refused, match="asynclock nodes record"):
            await CALLS[call](fleet)
        assert (await fleet.show()).record is None


@in_virtual_time
async def test_a_record_of_another_version_is_not_written_over() -> None:
    servers, nodes = pushed("abc")
    for server in servers:
        await server.command("HSET", RECORD, "accepted", 1, "value", "later", "promised", 1)
    async with fleet_of(nodes) as fleet:
        with pytest.raises(Refused, match="not one of this version: 'later'"):
            await fleet.record()
    for server in servers:
        assert await server.command("HMGET", RECORD, "value") == ["later"]


@in_virtual_time
async def test_a_set_that_only_one_node_knows_of_yet_is_not_overlooked() -> None:
    """An operator with the nodes of before must not begin a step from there."""
    servers, nodes = pushed("abc")
    nodes[2].way.seconds = 0.3
    newer = NodeSet(7, ("memory://c", "memory://x", "memory://y"))
    async with recorded(nodes) as fleet:
        await servers[2].command(
            "HSET", RECORD, "accepted", LATER, "value", newer.text(), "promised", 1
        )
        with pytest.raises(Refused, match=r"the record \(epoch 7\) has"):
            await fleet.record()
    assert await names_and_sets(servers[:2]) == [(NodeSet(1, ABC), name) for name in ABC[:2]]


async def is_down(new: Server) -> None:
    new.kill()


async def is_a_replica(new: Server) -> None:
    new.info["role"] = "slave"


async def has_a_later_record(new: Server) -> None:
    await keep(new, NodeSet(9, ABC), LATER)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (is_down, "can't be added: .*down"),
        (is_a_replica, "can't be added: it is a replica"),
        (has_a_later_record, f"another fleet.*redis-cli DEL '{RECORD}'"),
    ],
)
@in_virtual_time
async def test_a_node_that_cannot_vote_or_belongs_to_another_fleet_is_not_added(
    fault: Callable[[Server], Awaitable[None]], cause: str
) -> None:
    (*_, new), nodes = pushed("abcd")
    async with recorded(nodes[:3]) as fleet:
        await fault(new)
        with pytest.raises(Refused, match=cause):
            await fleet.add(nodes[3])
        assert await set_in(fleet) == NodeSet(1, ABC)
        if fault is has_a_later_record:
            await new.command("DEL", RECORD)
            assert set_of(await fleet.add(nodes[3])).phase == OPEN


@in_virtual_time
async def test_the_key_of_a_record_begins_with_the_prefix() -> None:
    (*_, new), nodes = pushed("abcd")
    async with recorded(nodes[:3], prefix="app:") as fleet:
        await new.command("HSET", "app::#set", "accepted", LATER, "value", NodeSet(9, ABC).text())
        with pytest.raises(Refused, match="redis-cli DEL 'app::#set'"):
            await fleet.add(nodes[3])


@pytest.mark.parametrize("silent", [False, True])
@in_virtual_time
async def test_one_server_under_two_addresses_is_not_added(silent: bool) -> None:
    """Servers that don't say who they are are not taken for one."""
    servers, nodes = pushed("abcd")
    for server in (servers[0], servers[3]) if silent else ():
        server.instead[b"INFO"] = lambda _words: ReplyError("NOPERM no right")
    async with recorded(nodes[:3]) as fleet:
        if silent:
            assert set_of(await fleet.add(nodes[3])).phase == OPEN
        else:
            why = "memory://again and memory://b are the same server"
            with pytest.raises(Refused, match=why):
                await fleet.add(Place(servers[1], name="again"))  # type: ignore[arg-type]


@in_virtual_time
async def test_a_dead_node_is_removed_by_its_name() -> None:
    servers, nodes = pushed("abcd")
    async with recorded(nodes) as fleet:
        servers[3].kill()
        with pytest.raises(Refused, match="is not one of"):
            await fleet.remove("redis://127.0.0.1:7")
        state = await fleet.remove("memory://d")
        assert set_of(state).other == ABC
        assert [node.node for node in state.lagging] == ["memory://d"]


@pytest.mark.parametrize(
    "nodes", [("redis+cluster://a:1",), ("redis://a:1", "redis+cluster://b:1")]
)
def test_a_cluster_has_no_set_that_steps_could_change(nodes: tuple[str, ...]) -> None:
    with pytest.raises(asynclock.UnsupportedDeploymentError, match="a Cluster keeps no record"):
        Fleet(*nodes)


@in_virtual_time
async def test_an_operator_may_look_at_any_nodes_and_change_only_the_fleets() -> None:
    """The guard is off for the tool itself, which would be refused like any client."""
    _, nodes = pushed("abcd")
    await go_through(recorded(nodes[:3]))
    async with fleet_of(nodes, set_guard=True) as other:
        state = await other.show()
        assert state.record is not None
        assert len(state.names) == 4
        for call in (other.record, lambda: other.remove("memory://d")):
            with pytest.raises(Refused, match="the record"):
                await call()


# ---- clients that are connected ------------------------------------------------------------------
@in_virtual_time
async def test_connected_clients_of_another_set_are_not_refused_by_surprise() -> None:
    servers, nodes = pushed("abcd")
    same, other = (f"{digest(names)}:host:7" for names in (ABC, ABCD))

    async def refused(call: Any) -> NodeSet:
        with pytest.raises(Refused, match=r"^1 connected .*'host:7'.* \(--force\)"):
            await call
        return await set_in(fleet)

    async with fleet_of(nodes[:3]) as fleet:
        listed(servers, other)
        assert await refused(fleet.record()) == NodeSet(0, ABC), "who differs is warned only"
        listed(servers, same)
        assert set_of(await fleet.record()) == NodeSet(1, ABC)
        await fleet.add(nodes[3])
        assert (await refused(fleet.finish())).phase == OPEN
        listed(servers, other)
        assert (await refused(fleet.back())).phase == OPEN
        assert set_of(await fleet.back(force=True)) == NodeSet(3, ABC)


@pytest.mark.parametrize(
    ("before", "stops"),
    [
        (b"id=1 addr=h:4 name= flags=t\n", "'h:4'"),
        (b"id=1 name= flags=t\n", "'\\?'"),
        (b"id=1 name=asynclock:x:host:7 flags=N\n", "'host:7'"),
        (f"id=1 name=asynclock:{digest(ABCD)}:host:7 flags=t\n".encode(), ""),
        (b"id=1 name=asynclock:x:host:7:top flags=t\nid=2 name= flags=N\n", ""),
    ],
    ids=["knows no record", "at no address", "of another set", "of the new set", "holds no lock"],
)
@in_virtual_time
async def test_a_node_that_others_use_is_not_added_by_surprise(before: bytes, stops: str) -> None:
    (*_, new), nodes = pushed("abcd")
    new.clients = before + b"id=8 addr=h:9 name= flags=t"  # the call's own connection
    async with recorded(nodes[:3]) as fleet:
        if stops:
            with pytest.raises(Refused, match=rf"^1 connected .*: {stops}; .* \(--force\)"):
                await fleet.add(nodes[3])
            assert (await set_in(fleet), (await kept(new))[1]) == (NodeSet(1, ABC), None)
        assert set_of(await fleet.add(nodes[3], force=bool(stops))).phase == OPEN


@in_virtual_time
async def test_where_nobody_may_list_clients_only_force_ends_a_step() -> None:
    servers, nodes = pushed("abcd")
    async with recorded(nodes[:3]) as fleet:
        await fleet.add(nodes[3])
        for server in servers:
            server.clients = ReplyError("NOPERM no right")
        with pytest.raises(Refused, match=r"\(CLIENT LIST\).* or use force"):
            await fleet.finish()
        assert (await set_in(fleet)).phase == OPEN
        assert set_of(await fleet.finish(force=True)).phase == SETTLED


@in_virtual_time
async def test_of_many_clients_that_use_other_nodes_the_first_are_named() -> None:
    servers, nodes = pushed("abc")
    listed(servers, *(f"x:host:{number:02}" for number in range(25)))
    async with fleet_of(nodes) as fleet:
        with pytest.raises(Refused, match=r"^25 connected clients") as caught:
            await fleet.record()
        assert "'host:19'; start them" in str(caught.value)
        assert "host:20" not in str(caught.value)
        assert set_of(await fleet.record(force=True)) == NodeSet(1, ABC)


@in_virtual_time
async def test_tools_that_hold_no_lock_stop_no_step() -> None:
    servers, nodes = pushed("abc")
    tools = [f"x:host:7:{tool}" for tool in ("serve", "top", "inspect")]
    async with fleet_of(nodes) as fleet:
        listed(servers, *tools, "x:host:7:served")
        with pytest.raises(Refused, match=r"^1 connected .* \(--force\)"):
            await fleet.record()
        listed(servers, *tools)
        assert set_of(await fleet.record()) == NodeSet(1, ABC)


@pytest.mark.parametrize(
    ("record", "uses"),
    [
        (None, ["other"] * 3),
        (NodeSet(1, ABC), ["same", "other", "other"]),
        (NodeSet(2, ABC, ABCD, OPEN), ["old", "new", "other"]),
        (NodeSet(3, ABCD, ABC, CLOSING), ["old", "same", "other"]),
        (NodeSet(3, ABC, ABCD, CLOSING), ["same", "old", "other"]),
    ],
)
@in_virtual_time
async def test_which_set_a_client_uses(record: NodeSet | None, uses: list[str]) -> None:
    """Each client once, though it has a connection to each node, in the order of the labels."""
    servers, nodes = pushed("abc")
    names = [f"{digest(one)}:host:{n}" for n, one in enumerate((ABC, ABCD, ("x", "y", "z")))]
    servers[0].clients = ReplyError("NOPERM no right")
    servers[1].clients, servers[2].clients = named(*names), named(*names[::-1])
    for server in servers if record else ():
        await keep(server, record)
    async with fleet_of(nodes) as fleet:
        clients = (await fleet.show()).clients
    assert clients is not None
    found = [(one.label, one.uses) for one in clients if one.label.startswith("host:")]
    assert found == [(f"host:{n}", one) for n, one in enumerate(uses)]


@pytest.mark.parametrize(
    ("line", "labels"),
    [
        pytest.param(b"id=1 name=asynclock:x:h=7:1 flags=t", ["h=7:1"], id="a mark in the label"),
        pytest.param(b"id=1 name=asynclock:x:\xff flags=t", ["\ufffd"], id="no text"),
        pytest.param(b"id=1 name=my-asynclock:x:h:1 flags=t", [], id="of another program"),
        pytest.param(b"id=1 name=asynclock:x:h:1 odd flags=t", ["h:1"], id="a word without value"),
        pytest.param(b"", [], id="nobody"),
        pytest.param(ReplyError("NOPERM no right"), None, id="nobody knows"),
    ],
)
@in_virtual_time
async def test_names_of_connections_are_untrusted(line: Any, labels: list[str] | None) -> None:
    servers, nodes = pushed("abc")
    for server in servers:
        server.clients = line
    async with fleet_of(nodes) as fleet:
        clients = (await fleet.show()).clients
    assert (None if clients is None else [one.label for one in clients]) == labels
    assert clients is None or {one.uses for one in clients} <= {"other"}


@in_virtual_time
async def test_the_state_of_each_node() -> None:
    servers, nodes = pushed("pqrs")
    await keep(servers[0], NodeSet(4, ABC), 8, "name", "a")
    await keep(servers[1], NodeSet(3, ABCD), 7)
    servers[3].kill()
    async with fleet_of(nodes) as fleet:
        state = await fleet.show()
        silent = {}
        for name in ("", "asynclock:0f:web", "sentinel-3d7f1b0b-cmd"):
            servers[0].clients = f"id=1 name={name} flags=N".encode()
            silent[name] = (await fleet.show()).silent
        assert silent == {"": True, "asynclock:0f:web": True, "sentinel-3d7f1b0b-cmd": False}
    assert [(one.node[9:], one.name, one.epoch, one.number, one.named) for one in state.nodes] == [
        ("p", "a", 4, 8, True),
        ("q", "memory://q", 3, 7, False),
        ("r", "memory://r", None, 0, False),
        ("s", "memory://s", None, 0, False),
    ]
    assert [bool(one.cause) for one in state.nodes] == [False, False, False, True]
    assert state.record == NodeSet(4, ABC)
    assert (state.newest.number, state.newest.text) == (8, NodeSet(4, ABC).text())
    assert state.names == ("a", "memory://q", "memory://r", "memory://s")
    assert [node.node[9:] for node in state.lagging] == ["q", "r", "s"]
    assert not state.silent


# ---- how long the steps take ---------------------------------------------------------------------
@in_virtual_time
async def test_clients_get_a_second_to_read_the_first_record() -> None:
    """Where some get no pushes, until each has asked."""
    for nodes, longest in ((pushed("abc")[1], 0.0), (far_nodes("abc")[1], POLL)):
        async with fleet_of(nodes) as fleet:
            began = now()
            state = await fleet.record()
            assert 1.0 + longest <= now() - began < 1.0 + longest + 4
            assert state.silent is bool(longest)
            assert (set_of(state).epoch, set_of(state).phase) == (1, SETTLED)


@pytest.mark.parametrize("end", ["finish", "back"])
@pytest.mark.parametrize("timeout", [NODE_TIMEOUT, 0.1])
@in_virtual_time
async def test_a_step_ends_when_no_client_of_the_other_set_holds(end: str, timeout: float) -> None:
    """Clients get a second to look at their timers, however short the timeout of a node is."""
    progress: list[str] = []
    _, nodes = pushed("abcd")
    async with recorded(nodes[:3], node_timeout=timeout, progress=progress.append) as fleet:
        await fleet.add(nodes[3])
        began = now()
        record = set_of(await (fleet.finish() if end == "finish" else fleet.back()))
        # A lease of the other set may have begun when the last client had read the change.
        longest = quarantine(TTL) + TTL / 3 + max(1.0, 4 * timeout) + timeout
        assert longest <= now() - began < longest + 2
        assert record == NodeSet(3, ABCD if end == "finish" else ABC)
        assert progress.pop(0) == HELD.format(round(longest))
        left = f"memory://d still refuses clients .* `redis-cli DEL '{RECORD}'`"
        assert [bool(re.match(left, one)) for one in progress] == [True] * (end == "back")


@pytest.mark.parametrize(
    ("age", "settings", "waits", "told"),
    [
        pytest.param(
            *(0.0, {}, quarantine(TTL), ["waiting 10 s until memory://d can vote"]), id="new"
        ),
        pytest.param(
            *(TTL + 2, {}, quarantine(TTL) - TTL, ["waiting 0 s until memory://d can vote"]),
            id="less than a second, because its age is told in whole seconds",
        ),
        pytest.param(0.0, {"restart_guard": "disk"}, 0.0, [], id="with the disk of before"),
    ],
)
@in_virtual_time
async def test_a_young_node_is_added_once_it_can_vote(
    age: float, settings: dict[str, Any], waits: float, told: list[str]
) -> None:
    """And it is told the record and its name at once, before any client meets it."""
    progress: list[str] = []
    _, nodes = pushed("abc")
    young = MemoryNode("d", durable=bool(settings))
    async with recorded(nodes, **settings, progress=progress.append) as fleet:
        young.born_ago(age)
        began = now()
        record = set_of(await fleet.add(Place(young)))  # type: ignore[arg-type]
        assert now() - began == pytest.approx(waits, abs=0.001 if age else 0.2)
        assert record == NodeSet(2, ABC, ABCD, OPEN)
    assert progress == told
    assert (await kept(young))[1:] == (record, "memory://d")
