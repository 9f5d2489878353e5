"""`asynclock inspect` and `release`: who holds what, and taking it away."""

import asyncio
import json
import re

import pytest

import asynclock
from asynclock.testing import LocalServer
from tests import patient
from tests.contrib.apps import client_for
from tests.waiting import until

from .conftest import Program
from .schema import check
from .terminal import Session

KEYS_PER_SCAN = 250
"""What one step asks for."""


def locks_of(nodes: list[LocalServer], label: str = "web-1:77") -> asynclock.LockManager:
    return patient.connect(
        *(node.url for node in nodes), restart_guard=False, label=label, ttl=60.0, max_ttl=60.0
    )


async def test_too_few_nodes_to_tell(program: Program) -> None:
    program.use(program.nodes, node_timeout=0.5)
    await program.nodes[0].kill()
    await program.nodes[1].freeze()
    one, all_, top, release = await program.each(
        ("inspect", "x"),
        ("inspect", "--all"),
        ("top", "--once"),
        ("release", "x", "--force", "--yes"),
    )
    assert (one.status, all_.status, release.status) == (69, 69, 69)
    assert "0 held, but only 1 of 3 nodes answered" in all_.out
    assert "0 held, 0 waiting, but only 1 of 3 nodes answered" in top.out
    assert "nobody is known to wait, but only 1 of 3 nodes answered" in one.out
    for ended in (one, all_, top, release):  # no line of the library's log as it is
        assert all(line.startswith("asynclock: ") for line in ended.err.splitlines())


async def test_nodes_out_of_memory_are_read_and_run_names_the_cause(program: Program) -> None:
    async with locks_of(program.nodes) as locks:
        lease = await locks.lock("report").acquire()
        for node in program.nodes[:2]:
            await node.command("SET", "large", "x" * 3_000_000)
            await node.command("CONFIG", "SET", "maxmemory", "1mb")
        one, all_ = await program.each(
            ("inspect", "report", "--json"), ("inspect", "--all", "--json")
        )
        run = await program("run", "other", "--no-wait", "--", "true")
        assert lease.held
    found = json.loads(one.out)
    assert (one.status, found["held"], found["owner"]) == (0, True, lease.owner)
    assert [view["error"] for view in found["nodes"]] == [None, None, None]
    assert [listed["name"] for listed in json.loads(all_.out)["locks"]] == ["report"]
    assert run.status == 69
    for node in program.nodes[:2]:
        assert f"{node.host}:{node.port}: OOM command not allowed" in run.err


async def test_thousands_of_locks_in_small_pages(program: Program) -> None:
    script = (
        "for i = 1, 2000 do local key = 'asynclock:bulk:' .. i "
        "redis.call('SET', key, string.rep('0', 32) .. ':h:1', 'PX', 600000) "
        "redis.call('SET', key .. ':#fence', i, 'PX', 600000) end"
    )
    for node in program.nodes:
        await node.command("EVAL", script, 0)
        await node.command("CONFIG", "RESETSTAT")
    ended = await program("inspect", "--all")
    _, *rows, last = ended.out.splitlines()
    assert [row.split()[0] for row in rows] == sorted(f"bulk:{n}" for n in range(1, 2001))
    assert last == "2000 held"
    node = program.nodes[0]
    stats = await node.command("INFO", "commandstats")
    calls = {name: int(n) for name, n in re.findall(r"(\w+):calls=(\d+)", stats)}
    assert "cmdstat_keys" not in calls
    # The table of 4,000 keys has at most 8,192 buckets; a page has three batches at most.
    assert 2_000 / KEYS_PER_SCAN <= calls["cmdstat_scan"] <= 2 * 8_192 / KEYS_PER_SCAN
    assert calls["cmdstat_evalsha"] <= 3 * 8_192 / KEYS_PER_SCAN


async def test_every_kind(program: Program) -> None:
    program.use(program.nodes[:1])
    node = program.nodes[:1]
    async with locks_of(node) as locks, locks_of(node) as other:
        term = await locks.election("crown").campaign("http://10.0.0.1:8000\x1b")
        held = [
            await locks.semaphore("pool", 2).acquire(),
            await locks.rwlock("book").read().acquire(),
            await locks.rwlock("book").read().acquire(),
            await locks.rwlock("page").write().acquire(),
            await locks.fair_lock("line").acquire(),
            term.lease,
            await locks.semaphore("pool", 2).acquire(),
            await locks.semaphore("pond", 2).acquire(),
        ]
        await locks.event("bell").set()
        waiter = asyncio.ensure_future(locks.fair_lock("line").acquire())
        writer = asyncio.ensure_future(locks.rwlock("book").write().acquire())
        third = asyncio.ensure_future(other.semaphore("pool", 2).acquire())
        try:
            await _tells(program.nodes[0], "asynclock:line:#waiters")
            await _tells(program.nodes[0], "asynclock:pool:#slots")
            await _tells(program.nodes[0], "asynclock:crown:#leader:#message")
            await _tells(program.nodes[0], "asynclock:book:#phases")
            all_, line, book = await program.each(
                ("inspect", "--all", "--json"), ("inspect", "line"), ("inspect", "book", "--json")
            )
            pool, crown, pond = await program.each(
                ("inspect", "pool"), ("inspect", "crown"), ("inspect", "pond")
            )
            done = await program("release", "book", "--force", "--yes")
        finally:
            waiter.cancel()
            writer.cancel()
            third.cancel()
        assert all(lease.lost_reason is None for lease in held[3:5])
        readers = await program.nodes[0].command("ZCARD", "asynclock:book:#readers")
    found = json.loads(all_.out)
    assert len(found["locks"]) == 8
    waiting = {name: [one["label"] for one in queue] for name, queue in found["waiting"].items()}
    assert waiting == {name: ["web-1:77"] for name in ("book", "line", "pool")}
    assert pool.out.startswith("pool [semaphore]: 2 of 2 permits taken\n")
    assert pond.out.startswith("pond [semaphore]: 1 permits taken\n"), "of how many isn't known"
    assert "\npublishes 'http://10.0.0.1:8000\\x1b'\n" in crown.out
    assert "1 waiting" in line.out
    assert [one["label"] for one in json.loads(book.out)["waiting"]] == ["web-1:77"]
    assert len(json.loads(book.out)["parts"]) == 2
    assert (done.status, done.out.count("released")) == (0, 2)
    assert readers == 0


async def _tells(node: LocalServer, key: str) -> None:
    await until(lambda: node.command("EXISTS", key), f"{key} is there")


@pytest.mark.parametrize("words", [("inspect", "zähler→"), ("inspect", "--all"), ("top", "--once")])
async def test_a_terminal_that_lacks_letters_of_a_name_shows_them_as_escapes(
    program: Program, words: tuple[str, ...]
) -> None:
    key = "asynclock:zähler→".encode()
    await program.nodes[0].command("SET", key, "0" * 32 + ":h:1", "PX", 60000)
    program.use(program.nodes[:1])
    found = program.inside(*words, encoding="ascii")
    assert found.status == 0, found.err
    assert r"z\xe4hler\u2192" in found.out


# ---- schemas, and terminals of any size ----------------------------------------------------------
LONG = "orders:shipping:eu-central-1:customer-0042:invoice"


async def test_every_json_output_keeps_to_its_schema(program: Program) -> None:
    async with locks_of(program.nodes) as locks:
        lease = await locks.lock("a").acquire()
        slot = await locks.semaphore("pool", 2).acquire()
        await locks.event("bell").set()
        await locks.latch("done", 3).count_down()
        await program.nodes[2].kill()
        all_, one, free, pool, bell, doctor, nothing = await program.each(
            ("inspect", "--all", "--json"),
            ("inspect", "a", "--json"),
            ("inspect", "free", "--json"),
            ("inspect", "pool", "--json"),
            ("inspect", "bell", "--json"),
            ("doctor", "--json", "--watch", "0.2"),
            ("release", "gone", "--force", "--yes", "--json"),
        )
        released = await program("release", "a", "--force", "--yes", "--json")
        bench = await program(
            "bench", "--json", "--seconds", "0.05", "--rounds", "1", "--tasks", "2"
        )
        async with client_for(locks, "http://localhost") as client:
            page = (await client.get("/state")).json()
        await slot.release()
        await lease.release()
    check(json.loads(all_.out), "inspect --all")
    for shown in (one, free, pool, bell):
        check(json.loads(shown.out), "inspect")
    check(json.loads(doctor.out), "doctor")
    check(json.loads(nothing.out), "release")
    check(json.loads(released.out), "release")
    loads = json.loads(bench.out)
    check(loads, "bench")
    assert [row["errors"] for row in loads["loads"]] == [{}] * 3
    assert all(0 < row["p50"] <= row["p99"] <= row["p999"] for row in loads["loads"])
    names = await program.nodes[0].command("KEYS", "asynclock:bench:*")
    assert [
        left for key in names if (left := await program.nodes[0].command("PTTL", key)) < 0
    ] == []
    check(page, "page")


async def test_what_is_cut_ends_with_an_ellipsis(program: Program) -> None:
    label = "worker-eu-central-1a.production.example.org:31337:ship"
    async with locks_of(program.nodes, label) as locks:
        lease = await locks.lock(LONG).acquire()
        for width in ("40", "80", "200"):
            terminal = {"FORCE_COLOR": "1", "COLUMNS": width, "NO_COLOR": "1"}
            for words in (("inspect", "--all"), ("top", "--once"), ("inspect", LONG)):
                shown = (await program(*words, env={**program.settings, **terminal})).out
                whole = LONG in shown.replace("\n", "") and label in shown
                assert ("…" in shown, whole) == (width == "80", width != "80"), shown
                assert max(map(len, shown.splitlines())) <= max(int(width), 67)
                assert LONG[:29] in shown or width == "40"
                assert ("fence" in shown) == (width != "80" or LONG in words)
                if words == ("inspect", LONG) and width == "80":
                    sentence = " by process 31337 on worker-eu-central-1a.production.example.org, "
                    assert sentence in shown.replace(" \n", " "), "lines end between two words"
        session = Session(program, "inspect", "--all", size=(24, 80))  # a real one
        try:
            assert await session.end() == 0
        finally:
            session.close()
        assert "…" in session.screen
        await lease.release()
