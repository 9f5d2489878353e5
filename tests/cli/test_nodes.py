"""`asynclock nodes`: the record, steps, and what `doctor` says of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

import asynclock
from asynclock._rules.nodeset import NodeSet
from asynclock.cli.nodes import say_record
from asynclock.fleet import Fleet, FleetState
from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers

from . import schema
from .conftest import Program, until

FAST: dict[str, Any] = {"ttl": 2.0, "max_ttl": 2.0, "node_timeout": 0.5}


def urls(servers: Sequence[LocalServer]) -> list[str]:
    return [server.url for server in servers]


def name(server: LocalServer) -> str:
    return f"{server.host}:{server.port}"


def fleet(servers: Sequence[LocalServer], **more: Any) -> Fleet:
    return Fleet(*urls(servers), restart_guard=False, **FAST, **more)


async def shown(program: Program) -> dict[str, Any]:
    ended = await program("nodes", "--json")
    assert ended.status == 0, ended.err
    found: dict[str, Any] = json.loads(ended.out)
    schema.check(found, "nodes")
    return found


async def doctors(program: Program) -> set[str]:
    ended = await program("doctor", "--json")
    return {one["code"] for one in json.loads(ended.out)["findings"] if "set-" in one["code"]}


async def test_a_record_that_no_quorum_tells_is_unknown(
    program: Program, asynclock_servers: StartServers
) -> None:
    servers = await asynclock_servers(3)
    program.use(servers, **FAST)
    for server in servers[1:]:
        await server.stop()
    ended = await program("nodes", "show")
    assert ended.status == 69
    assert "the record is unknown: too few nodes answered" in ended.out
    assert "nodes record" not in ended.out


async def test_a_step_from_the_first_record_to_the_end(
    program: Program, asynclock_servers: StartServers
) -> None:
    servers = await asynclock_servers(4)
    program.use(servers[:3], **FAST)
    assert (await shown(program))["record"] is None
    assert await doctors(program) == {"set-unrecorded"}
    ended = await program("nodes", "add", servers[3].url)
    assert ended.status == 64
    assert "nodes record" in ended.err
    assert (await program("nodes", "record")).status == 0
    assert await doctors(program) == set()
    async with asynclock.connect(
        *urls(servers[:3]), label="old one", restart_guard=False, **FAST
    ) as locks:
        await locks.lock("a", timeout=10).acquire()
        ended = await program("nodes", "add", servers[3].url)
        assert ended.status == 0, ended.err
        assert "start all clients with it" in ended.out
        found = await shown(program)
        assert found["record"]["phase"] == "open"
        assert found["clients"] == [{"label": "old-one", "uses": "old"}]
        assert {"set-step", "set-clients"} <= await doctors(program)
        ended = await program("nodes", "finish")
        assert ended.status == 64
        assert "'old-one'" in ended.err
    program.use(servers, **FAST)
    ended = await program("nodes", "finish")
    assert ended.status == 0, ended.err
    assert "waiting" in ended.err
    found = await shown(program)
    assert found["record"] == {
        "epoch": 3,
        "nodes": [name(server) for server in servers],
        "other": [],
        "phase": "settled",
    }
    assert not any(node["lags"] for node in found["nodes"])
    program.use(servers[:3], **FAST)
    assert "set-differs" in await doctors(program)


async def test_who_lags_behind(program: Program, asynclock_servers: StartServers) -> None:
    servers = await asynclock_servers(3)
    program.use(servers, **FAST)
    async with fleet(servers) as one:
        await one.record()
    await servers[1].command("DEL", "asynclock::#set")
    found = await shown(program)
    assert [node["lags"] for node in found["nodes"]] == [False, True, False]
    assert "set-lags" in await doctors(program)
    ended = await program("nodes")
    assert "no record" in ended.out


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (("add",), "takes 1 nodes"),
        (("replace", "redis://a"), "takes 2 nodes"),
        (("show", "redis://a"), "takes 0 nodes"),
        (("remove", "redis://nowhere:1"), "is not one of"),
        (("add", "redis://127.0.0.1:1"), "can't be added"),
        (("finish",), "no step is open"),
        (("back",), "no step is open"),
    ],
)
async def test_what_cannot_be_done(
    program: Program, asynclock_servers: StartServers, arguments: Sequence[str], cause: str
) -> None:
    servers = await asynclock_servers(3)
    program.use(servers, **FAST)
    async with fleet(servers) as one:
        await one.record()
    ended = await program("nodes", *arguments)
    assert ended.status == 64
    assert cause in ended.err


async def test_a_new_node_must_be_another_server(asynclock_servers: StartServers) -> None:
    servers = await asynclock_servers(3)
    async with fleet(servers) as one:
        await one.record()
        with pytest.raises(asynclock.ConfigurationError, match="are the same server"):
            await one.add(servers[0].url.replace("127.0.0.1", "localhost"))


async def test_a_node_of_another_fleet_is_not_added(asynclock_servers: StartServers) -> None:
    servers = await asynclock_servers(6)
    ours, theirs = servers[:3], servers[3:]
    for set_ in (ours, theirs):
        async with fleet(set_) as one:
            await one.record()
    async with fleet(ours) as one:
        with pytest.raises(asynclock.ConfigurationError, match="record of another fleet"):
            await one.add(theirs[0].url)


async def test_one_node_or_a_cluster_has_no_steps(asynclock_servers: StartServers) -> None:
    one, other = await asynclock_servers(2)
    async with fleet([one]) as single:
        await single.record()
        with pytest.raises(asynclock.ConfigurationError, match="at least 3 nodes"):
            await single.add(other.url)
    with pytest.raises(asynclock.UnsupportedDeploymentError):
        Fleet("redis+cluster://a,b")


async def test_of_two_operators_at_once_one_succeeds(asynclock_servers: StartServers) -> None:
    servers = await asynclock_servers(5)
    async with fleet(servers[:3]) as one, fleet(servers[:3]) as other:
        await one.record()
        steps = (one.add(servers[3].url), other.add(servers[4].url))
        ended = await asyncio.gather(*steps, return_exceptions=True)
        (won,) = (result for result in ended if isinstance(result, FleetState))
        (lost,) = (result for result in ended if not isinstance(result, FleetState))
        assert isinstance(lost, asynclock.ConfigurationError)
        assert "another step is open" in str(lost)
        assert won.record is not None
        assert (await one.show()).record == won.record


async def test_an_interrupted_finish_goes_on_or_is_undone(asynclock_servers: StartServers) -> None:
    servers = await asynclock_servers(4)
    waiting = asyncio.Event()
    old = fleet(servers[:3], progress=lambda _text: waiting.set())
    async with old, fleet(servers) as new:
        await old.record()
        await old.add(servers[3].url)
        waiting.clear()
        finishing = asyncio.create_task(old.finish())
        await waiting.wait()
        finishing.cancel()
        record = (await new.show()).record
        assert record is not None
        assert record.phase == "closing"
        undone = (await new.remove(servers[3].url)).record  # old clients may work again
        assert undone is not None
        assert {len(one) for one in undone.usable} == {3, 4}
        ended = (await new.back()).record
        assert ended is not None
        assert (ended.phase, len(ended.nodes)) == ("settled", 4)


async def test_a_step_while_a_node_is_away(asynclock_servers: StartServers) -> None:
    """The node is told by the first client that connects to it."""
    servers = await asynclock_servers(4)
    async with fleet(servers[:3]) as one:
        await one.record()
        await servers[2].kill()
        state = await one.add(servers[3].url)
        assert [node.node for node in state.lagging] == [name(servers[2])]
        await servers[2].start()
        async with asynclock.connect(*urls(servers), restart_guard=False, **FAST) as locks:
            async with locks.lock("a", timeout=10):
                pass
            await until(lambda: _told(one))


async def _told(one: Fleet) -> bool:
    return not (await one.show()).lagging


async def test_replace_adds_first_and_removes_once_that_is_finished(
    program: Program, asynclock_servers: StartServers
) -> None:
    servers = await asynclock_servers(4)
    program.use(servers[:3])
    words = ("nodes", "replace", name(servers[0]), servers[3].url, "--max-ttl", "2")
    async with fleet(servers[:3]) as one, fleet(servers) as four:
        await one.record()
        for _ in "once", "again":
            ended = await program(*words)
            assert ended.status == 0, ended.err
            every = ", ".join(name(server) for server in servers)
            assert f"open step to {{{every}}}: start all clients with it" in ended.out
        await four.finish()
        found = (await four.replace(name(servers[0]), servers[3].url)).record
    assert found is not None
    assert (found.phase, found.other) == ("open", tuple(name(server) for server in servers[1:]))


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (None, "no record: write it with `asynclock nodes record`"),
        (NodeSet(0, ("a", "b")), "clients that differ are only warned"),
        (NodeSet(3, ("a", "b"), ("a",), "open"), "open step to {a}: start all clients with it"),
        (NodeSet(4, ("a",), ("a", "b"), "closing"), "closing step from {a, b}: `asynclock nodes"),
    ],
)
def test_what_can_be_done_next(
    record: NodeSet | None, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    say_record(record)
    assert text in capsys.readouterr().out


async def test_a_stale_operator_changes_nothing(asynclock_servers: StartServers) -> None:
    """Even where the nodes that the operator names still form a majority of an old set."""
    servers = await asynclock_servers(4)
    async with fleet(servers[:3]) as stale, fleet(servers) as four, fleet(servers[1:]) as new:
        await stale.record()
        await stale.add(servers[3].url)
        await four.finish()
        await four.remove(servers[0].url)
        await new.finish()
        before = (await new.show()).newest
        with pytest.raises(asynclock.ConfigurationError, match="the nodes given are"):
            await stale.add(servers[3].url)
        assert (await new.show()).newest == before
