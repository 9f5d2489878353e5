"""`asynclock doctor` finds what was planted, and nothing on healthy nodes."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from asynclock._nodes.acks import Acks
from asynclock._nodes.endpoint import Endpoint
from asynclock._nodes.handshake import greet
from asynclock.cli import doctor
from asynclock.cli._output import console
from asynclock.cli.doctor import counters
from asynclock.cli.doctor.command import _print_finding
from asynclock.cli.doctor.findings import TEXTS, Finding, Severity
from asynclock.cli.doctor.identity import OPTIONAL, role
from asynclock.cli.doctor.probe import NullListener, Probe, Purpose
from asynclock.cli.doctor.state import clock
from asynclock.cli.doctor.state import counters as weigh
from asynclock.cli.doctor.trial import USES
from asynclock.testing import (
    FaultProxy,
    LocalServer,
    RedisCluster,
    SentinelGroup,
)
from asynclock.testing.plugin import StartServers
from asynclock.testing.topology import REPLICATION, follow, in_sync
from tests.able_servers import need_clock_jumps
from tests.docs.blocks import ROOT

from .conftest import PATIENCE, Program


def codes(out: str) -> dict[str | None, set[str]]:
    """Node (None: the set) → codes of what was found."""
    found: dict[str | None, set[str]] = defaultdict(set)
    for finding in json.loads(out)["findings"]:
        assert finding["what"]
        assert finding["why"]
        assert finding["fix"]
        found[finding["node"]].add(finding["code"])
    return found


def at(server: LocalServer) -> str:
    return f"{server.host}:{server.port}"


async def test_nothing_on_a_healthy_set(program: Program, asynclock_servers: StartServers) -> None:
    servers = await asynclock_servers(3, aof=True)
    program.use(servers)
    ended = await program("doctor", "--json")
    assert ended.status == 0, ended.out
    # A fresh server might have been another process a moment ago, which said nothing of its disk.
    assert all(found <= {"young", "set-unrecorded"} for found in codes(ended.out).values())
    program.use(servers, restart_guard="disk")  # a promise that settles that question
    assert codes((await program("doctor", "--json")).out) == {None: {"set-unrecorded"}}
    program.use(servers[:1])  # whose first contact is free
    ended = await program("doctor")
    assert "all is well" in ended.out


async def _evicts(server: LocalServer) -> None:
    await server.command("CONFIG", "SET", "maxmemory", "100mb")
    await server.command("CONFIG", "SET", "maxmemory-policy", "volatile-lru")


async def _fsync(server: LocalServer) -> None:
    await server.command("CONFIG", "SET", "appendfsync", "everysec")


async def _no_aof(server: LocalServer) -> None:
    await server.command("CONFIG", "SET", "appendonly", "no")


async def _no_replicas(server: LocalServer) -> None:
    await server.command("CONFIG", "SET", "min-replicas-to-write", "2")


async def _idle(server: LocalServer) -> None:
    await server.command("CONFIG", "SET", "timeout", "30")


async def _no_tracking(server: LocalServer) -> None:
    await server.command("ACL", "SETUSER", "default", "-client", "+client|id")


async def _no_words(server: LocalServer) -> None:
    await server.command("ACL", "SETUSER", "default", "-pexpire", "-scan", "-config", "-info")


async def _full(server: LocalServer) -> None:
    await server.command("CONFIG", "SET", "maxmemory", "100kb")


PLANTS: dict[str, tuple[Callable[[LocalServer], Awaitable[None]], set[str]]] = {
    "evicts": (_evicts, {"evicts"}),
    "fsync": (_fsync, {"fsync"}),
    "persistence": (_no_aof, {"no-persistence"}),
    "min-replicas": (_no_replicas, {"min-replicas", "refuses-writes"}),
    "idle": (_idle, {"idle-timeout"}),
    "tracking": (_no_tracking, {"tracking"}),
    "rights": (_no_words, {"rights", "rights-scan", "rights-info", "rights-config-get"}),
    "memory": (_full, {"memory", "refuses-writes"}),
}


async def test_planted_misconfigurations(program: Program, asynclock_servers: StartServers) -> None:
    servers = await asynclock_servers(len(PLANTS) + 4, aof=True, args=REPLICATION)
    for server, (plant, _) in zip(servers, PLANTS.values(), strict=False):
        await plant(server)
    master, replica, frozen, refusing = servers[len(PLANTS) :]
    await follow(replica, master)
    await in_sync(master, [replica])
    await frozen.freeze()
    await refusing.command("CONFIG", "SET", "requirepass", "secret")
    async with AsyncExitStack() as stack:
        old = await stack.enter_async_context(rewriting(servers[0]))
        slow = await stack.enter_async_context(FaultProxy(servers[1]))
        slow.delay(0.6)
        web = await stack.enter_async_context(speaks_http())
        nodes = [*(server.url for server in servers), "redis://127.0.0.1:1", old, slow.url, web]
        program.use(nodes)
        ended = await program("doctor", "--json", "--watch", "0.5")
    assert ended.status == Severity.ERROR
    found = codes(ended.out)
    for server, (_, wanted) in zip(servers, PLANTS.values(), strict=False):
        assert wanted <= found[at(server)], (wanted, found[at(server)])
    assert "replica" in found[at(replica)]
    assert "min-replicas-unset" in found[at(master)]
    assert found[at(frozen)] == {"unreachable"}
    assert found["127.0.0.1:1"] == {"unreachable"}
    assert found[at(refusing)] == {"login"}
    assert found[_host(web)] == {"not-redis"}
    assert {"version", "duplicate"} <= found[_host(old)]
    assert {"slow", "duplicate"} <= found[_host(slow.url)]
    assert "even-number" in found[None]


async def test_two_nodes(program: Program, asynclock_servers: StartServers) -> None:
    program.use(await asynclock_servers(2, aof=True))
    ended = await program("doctor", "--json")
    assert ended.status == Severity.ERROR
    assert "two-nodes" in codes(ended.out)[None]


async def test_clocks(program: Program, asynclock_servers: StartServers) -> None:
    need_clock_jumps()
    off, racing, still = await asynclock_servers(3, aof=True, clock=True)
    off.jump_clock(120.0)
    program.use([off, racing, still])

    async def race() -> None:
        while True:
            racing.jump_clock(0.02)
            await asyncio.sleep(0.05)

    pace = asyncio.ensure_future(race())
    try:
        ended = await program("doctor", "--json", "--watch", "2")
    finally:
        pace.cancel()
    found = codes(ended.out)
    assert "clock-offset" in found[at(off)]
    assert "clock-rate" in found[at(racing)]
    assert not found[at(still)] & {"clock-offset", "clock-rate", "clock-jumped"}


def test_a_jump_of_the_clock_is_no_rate() -> None:
    server = Probe(Endpoint.from_url("redis://h"), "redis://h", False, jumped=1.5)
    purpose = Purpose(3, 10.0, 0.25, "asynclock:", Acks(), 1.0)
    assert [finding.code for finding in clock(server, purpose)] == ["clock-jumped"]


async def test_sentinels(program: Program) -> None:
    async with SentinelGroup(replicas=1, sentinels=3) as group:
        program.use(group.addresses, acks=1)
        healthy = codes((await program("doctor", "--json")).out)
        await group.sentinels[0].kill()
        shown = codes((await program("doctor", "--json")).out)
    sentinels = {at(sentinel) for sentinel in group.sentinels}
    assert not {node for node in healthy if node in sentinels}
    assert shown[at(group.sentinels[0])] == {"sentinel-down"}


async def test_a_sentinel_or_cluster_node_taken_for_a_server(program: Program) -> None:
    async with (
        SentinelGroup(replicas=0, sentinels=1) as group,
        RedisCluster(primaries=3, replicas=0) as cluster,
    ):
        part = cluster.servers[0]
        program.use([group.sentinels[0], part])
        found = codes((await program("doctor", "--json")).out)
    assert "sentinel" in found[at(group.sentinels[0])]
    assert "cluster" in found[at(part)]


@pytest.mark.parametrize("word", ["redis_mode", "server_mode"])  # Valkey 9 has only the second
def test_a_sentinel_is_known_by_either_word(word: str) -> None:
    server = Probe(Endpoint.from_url("redis://h"), "redis://h", False, info={word: "sentinel"})
    purpose = Purpose(3, 10.0, 0.25, "asynclock:", Acks(), 1.0)
    assert [finding.code for finding in role(server, purpose)] == ["sentinel"]


async def test_counters_are_counted_and_weighed(
    program: Program, asynclock_servers: StartServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (server,) = await asynclock_servers(1, aof=True)
    program.use([server])
    script = "for i = 1, 3000 do redis.call('SET', 'asynclock:' .. i .. ':#fence', 1) end"
    await server.command("EVAL", script, 0)
    await server.command("SET", "another:#fence", 1)
    (node,) = json.loads((await program("doctor", "--json")).out)["nodes"]
    assert node["counters"] == 3000
    size = await server.command("MEMORY", "USAGE", "asynclock:1234:#fence")
    assert node["counters_bytes"] == pytest.approx(3000 * int(size), rel=0.1)
    monkeypatch.setattr(counters, "PAGES", 1)
    link = await greet(Endpoint.of(server.url), NullListener(), 2, 2)
    found = await counters.count_counters(link, "asynclock:")
    link.close("done")
    assert found is not None
    assert found.count == pytest.approx(3000, rel=0.01), "a sample of a thousand keys"
    heavy = Probe(Endpoint.of(server.url), server.url, login=False)
    heavy.counters = counters.Counters(1_000_000, 142_000_000)
    (note,) = weigh(heavy, Purpose(1, 10, 0.25, "asynclock:", Acks(0), 1.0))
    assert "1,000,000 (142.0 MB)" in note.what


async def test_for_people(program: Program, asynclock_servers: StartServers) -> None:
    servers = await asynclock_servers(1, aof=True)
    await servers[0].command("CONFIG", "SET", "requirepass", "secret")
    program.use(servers)
    ended = await program("doctor")
    assert ended.status == Severity.ERROR
    assert "why:" in ended.out
    assert "fix:" in ended.out
    assert "\x1b" not in ended.out


def _host(url: str) -> str:
    return url.partition("://")[2]


@asynccontextmanager
async def rewriting(server: LocalServer) -> AsyncIterator[str]:
    """A real server that claims to be older: the figure in its INFO is changed on the way."""

    def older(data: bytes) -> bytes:
        return re.sub(rb"redis_version:\d\.\d", b"redis_version:6.0", data)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, there = await asyncio.open_connection(server.host, server.port)
        with suppress(asyncio.CancelledError, OSError):
            await asyncio.gather(_pump(reader, there, bytes), _pump(back, writer, older))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        yield f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}"


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[Any], bytes]
) -> None:
    try:
        while data := await reader.read(1 << 20):
            writer.write(change(data))
    finally:
        writer.close()


@asynccontextmanager
async def speaks_http() -> AsyncIterator[str]:
    """Something that is no Redis."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        yield f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}"


def _findings_in_code() -> Iterator[tuple[str, set[str]]]:
    """Texts that the checks name, and the facts that they pass."""
    for file in Path(doctor.__path__[0]).glob("*.py"):
        for call in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            names = [str(one.value) for one in call.args if isinstance(one, ast.Constant)]
            if call.func.id in ("about", "finding") and names:
                facts = {word.arg for word in call.keywords if word.arg}
                yield names[0], facts | ({"call", "set"} if call.func.id == "about" else set())


def test_each_text_of_a_finding_is_used_and_gets_its_facts() -> None:
    used = set()
    for text, facts in _findings_in_code():
        used.add(text)
        row = TEXTS[text]
        for words in (row["what"], row["why"], row["fix"]):
            wanted = {name for _, name, spec, _ in Formatter().parse(words) if name}
            nested = [spec or "" for _, _, spec, _ in Formatter().parse(words)]
            wanted |= {name for one in nested for _, name, *_ in Formatter().parse(one) if name}
            assert wanted <= facts, (text, wanted - facts)
    tls = {text for text in TEXTS if text.startswith("tls-")}  # named by tls.py, without facts
    assert used | tls == TEXTS.keys()


def test_the_table_of_the_page_has_every_finding_and_no_other() -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    table = page.partition("| about | findings |")[2].partition("\n\n")[0]
    listed = re.findall(r"`([\w-]+)`", table)
    codes = set(TEXTS) - {"cannot-use", "rights-optional"}  # texts of several findings
    codes |= {f"cannot-{use.replace('_', '-')}" for use in USES}
    codes |= {f"rights-{command.lower().replace(' ', '-')}" for command in OPTIONAL}
    assert sorted(listed) == sorted(codes)


def test_a_line_for_a_file_is_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    what = "word " * 100 + "end"
    _print_finding(console(), Finding("code", Severity.ERROR, "a:1", what, "why", "fix"))
    assert f"a:1: {what}  [code]" in capsys.readouterr().out.splitlines()[1]
