"""With `prefix=""` a mutex on one node and other libraries' locks on its key exclude each other.

So a fleet can migrate service by service. Tested against the real libraries.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import pytest
import redis.asyncio

import asynclock
from asynclock.testing import LocalServer
from asynclock.testing.plugin import StartServers
from tests import patient
from tests.interop.foreign import Foreign
from tests.waiting import until

HERE = Path(__file__).parent
PACKAGES = ("redlock@5.0.0-beta.2", "redis-semaphore@5.6.2", "ioredis@5.4.1")
TTL = 20


class Peer(Protocol):
    """Another library's lock on one key."""

    async def acquire(self) -> bool: ...

    async def release(self) -> None: ...


class Plain:
    """A user's own script: SET NX PX, and DEL if it is still ours."""

    def __init__(self, client: redis.asyncio.Redis, key: str) -> None:
        self.client, self.key = client, key

    async def acquire(self) -> bool:
        return bool(await self.client.set(self.key, "mine", nx=True, px=TTL * 1000))

    async def release(self) -> None:
        assert await self.client.get(self.key) == b"mine"
        await self.client.delete(self.key)


class RedisPy:
    """redis-py's own Lock."""

    def __init__(self, client: redis.asyncio.Redis, key: str) -> None:
        self.lock = client.lock(key, timeout=TTL)

    async def acquire(self) -> bool:
        return await self.lock.acquire(blocking=False)

    async def release(self) -> None:
        await self.lock.release()


class Node:
    """A library of Node.js, in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, library: str, key: str) -> None:
        self.process, self.library, self.key = process, library, key

    async def _ask(self, op: str) -> bool:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        words = {"library": self.library, "op": op, "key": self.key, "ttl": TTL * 1000}
        self.process.stdin.write(json.dumps(words).encode() + b"\n")
        answer = json.loads(await self.process.stdout.readline())
        if "error" in answer and "quorum" not in answer["error"]:
            raise RuntimeError(answer["error"])
        return bool(answer["ok"])

    async def acquire(self) -> bool:
        return await self._ask("acquire")

    async def release(self) -> None:
        assert await self._ask("release")


@contextlib.asynccontextmanager
async def python_peer(
    kind: Callable[[redis.asyncio.Redis, str], Peer], server: LocalServer, key: str
) -> AsyncIterator[Peer]:
    async with redis.asyncio.Redis.from_url(server.url) as client:
        yield kind(client, key)


@contextlib.asynccontextmanager
async def node_peer(library: str, server: LocalServer, key: str) -> AsyncIterator[Peer]:
    modules = await asyncio.to_thread(installed)
    process = await asyncio.create_subprocess_exec(
        "node",
        str(HERE / "peers.mjs"),
        str(server.port),
        str(modules),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Node(process, library, key)
    finally:
        process.kill()
        await process.wait()


def installed() -> Path:
    """The packages, fetched once for all workers and runs."""
    place = HERE.parents[1] / ".bench" / "interop"
    place.mkdir(parents=True, exist_ok=True)
    stamp = place / "installed"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != repr(PACKAGES):
            # npm gives up and tells why long before the test's own bound.
            patience = [
                "--fetch-timeout=20000",
                "--fetch-retries=2",
                "--fetch-retry-mintimeout=1000",
                "--fetch-retry-maxtimeout=9000",
            ]
            quiet = ["--no-audit", "--no-fund", "--prefer-offline"]
            command = ["npm", "install", *quiet, *patience, "--prefix", str(place), *PACKAGES]
            done = subprocess.run(command, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, done.stderr
            stamp.write_text(repr(PACKAGES))
    return place / "node_modules"


needs_node = pytest.mark.skipif(
    not (shutil.which("node") and shutil.which("npm")), reason="no node and npm on PATH"
)
Opener = Callable[[LocalServer, str], AbstractAsyncContextManager[Peer]]
PEERS: dict[str, Opener] = {
    "SET NX PX": lambda server, key: python_peer(Plain, server, key),
    "redis-py": lambda server, key: python_peer(RedisPy, server, key),
    "redlock": lambda server, key: node_peer("redlock", server, key),
    "redis-semaphore": lambda server, key: node_peer("redis-semaphore", server, key),
}
ON_NODE = {"redlock", "redis-semaphore"}
ALL = [
    pytest.param(name, marks=[needs_node, pytest.mark.timeout(300)] if name in ON_NODE else [])
    for name in PEERS
]
KEY = "mutex:orders:42"  # one of them puts "mutex:" before whatever it is given


@pytest.fixture
async def server(asynclock_servers: StartServers) -> LocalServer:
    (server,) = await asynclock_servers()
    return server


@contextlib.asynccontextmanager
async def ours(server: LocalServer) -> AsyncIterator[asynclock.LockManager]:
    async with patient.connect(server.url, prefix="") as locks:
        yield locks


@pytest.mark.parametrize("name", ALL)
async def test_they_exclude_each_other_and_ours_waits(server: LocalServer, name: str) -> None:
    async with PEERS[name](server, KEY) as peer, ours(server) as locks:
        async with locks.lock(KEY, timeout=20):
            assert not await peer.acquire()
        assert await peer.acquire()
        assert await locks.lock(KEY).try_acquire() is None
        await peer.release()
        lease = await locks.lock(KEY).acquire(timeout=20)
        assert not await peer.acquire()
        assert await lease.release()
        assert await peer.acquire()
        before = locks.statistics().refused
        waiter = asyncio.create_task(_held(locks))
        await until(lambda: locks.statistics().refused > before, "the waiter is refused")
        assert not waiter.done()
        await peer.release()
        await asyncio.wait_for(waiter, TTL / 2)  # long before their ttl
        assert locks.statistics().wakeups["push"] >= 1


async def _held(locks: asynclock.LockManager) -> Any:
    async with locks.lock(KEY, timeout=60) as lease:
        return lease.fence


async def test_a_foreign_lock_without_a_ttl_or_of_another_type(server: LocalServer) -> None:
    async with ours(server) as locks:
        await server.command("SET", "forever", "theirs")
        with pytest.raises(asynclock.AcquireTimeoutError) as caught:
            await locks.lock("forever").acquire(timeout=0.3)
        assert (caught.value.owner, caught.value.remaining) == ("theirs", None)
        assert await server.command("GET", "forever") == "theirs"
        await server.command("LPUSH", "list", "theirs")
        with pytest.raises(asynclock.ConfigurationError, match="WRONGTYPE"):
            await locks.lock("list").try_acquire()


async def test_a_foreign_lock_without_a_value_is_held(server: LocalServer) -> None:
    """An inspection must show what keeps acquires from getting the name."""
    await server.command("SET", "x", "", "PX", 60_000)
    async with ours(server) as locks:
        assert await locks.lock("x").try_acquire() is None
        assert (await locks.inspect("x")).owner == ""


async def test_their_release_after_their_ttl_does_not_touch_ours(server: LocalServer) -> None:
    async with redis.asyncio.Redis.from_url(server.url) as client, ours(server) as locks:
        theirs = client.lock("a", timeout=0.2)
        assert await theirs.acquire(blocking=False)
        async with locks.lock("a", timeout=20) as lease:
            with pytest.raises(redis.exceptions.LockNotOwnedError):
                await theirs.release()
            assert await server.command("GET", "a") == lease.owner


class FirstVersion:
    """A mutex as version 1.0.0 asks for it: the commands of its script, and its arguments."""

    SCRIPT = (HERE / "mutex-1.0.0.lua").read_text()

    def __init__(self, client: redis.asyncio.Redis, name: str) -> None:
        key = f"asynclock:{name}"
        self.client, self.owner = client, "1.0.0:0123456789abcdef"
        self.keys = key, f"{key}:#fence", f"{key}:#queue"

    async def ask(self, operation: str, *args: str | int) -> list[Any]:
        words = (operation, self.owner, *args)
        reply: list[Any] = await self.client.eval(self.SCRIPT, 3, *self.keys, *words)
        return reply

    async def acquire(self) -> int | None:
        """Return the fence, or None if somebody else has the name."""
        ttl, floor, not_after, retention = TTL * 1000, 1, 2**52, 1_070_000
        reply = await self.ask("acquire", ttl, floor, not_after, retention)
        return int(reply[1]) if reply[0] == 1 else None

    async def release(self) -> bool:
        return bool((await self.ask("release"))[0])


async def test_the_first_version_and_this_one_share_a_name(asynclock_servers: StartServers) -> None:
    """All of 1.x may: they exclude each other, wait for each other and see one row of fences."""
    [server] = await asynclock_servers(1)
    async with (
        redis.asyncio.Redis.from_url(server.url) as client,
        asynclock.connect(server.url, restart_guard=False) as locks,
    ):
        first, fences = FirstVersion(client, "shared"), []
        for _ in range(2):
            fence = await first.acquire()
            assert fence is not None
            assert await locks.lock("shared").try_acquire() is None
            assert (await locks.inspect("shared")).owner == first.owner
            waiting = asyncio.create_task(locks.lock("shared", timeout=TTL / 2).acquire())
            await until(lambda: locks.statistics().waiting == 1)
            assert await first.release()
            lease = await waiting
            assert await first.acquire() is None
            assert not await first.release(), "it is not its lease"
            assert await lease.check()
            assert await lease.release()
            fences += [fence, lease.fence]
        assert fences == sorted(set(fences))


# docs/protocol.md

VECTORS = json.loads((HERE / "vectors.json").read_text("utf-8"))


def _source(name: str = "mutex") -> str:
    folder = "_nodes" if name == "own_keys" else "_primitives"
    scripts = Path(asynclock.__file__).parent / folder
    return "\n".join((scripts / file).read_text("utf-8") for file in VECTORS["scripts"][name])


def _fits(reply: object, wanted: object, known: dict[str, int]) -> bool:
    if isinstance(reply, list) and isinstance(wanted, list):
        pairs = zip(reply, wanted, strict=False)
        return len(reply) == len(wanted) and all(_fits(*pair, known) for pair in pairs)
    if wanted == "@left":
        return isinstance(reply, int) and 0 <= reply <= 30_000
    if wanted == "@now":
        return isinstance(reply, int) and known["@floor"] <= reply < known["@floor"] + 60_000_000
    return reply == (known.get(wanted, wanted) if isinstance(wanted, str) else wanted)


async def _clock(server: LocalServer) -> int:
    seconds, micros = await server.command("TIME")
    return int(seconds) * 1_000_000 + int(micros)


@pytest.mark.parametrize("sequence", VECTORS["sequences"], ids=lambda one: one["name"])
async def test_scripts_reply_as_vectors_say(server: LocalServer, sequence: dict[str, Any]) -> None:
    floor = await _clock(server)
    known = {f"@floor+{more}": floor + more for more in range(1, 4)}
    known |= {"@floor": floor, "@floor/1000": floor // 1000, "@late": floor - 1_000_000}
    for step in sequence["steps"]:
        args = [str(known.get(word, word)) for word in step.get("args", ())]
        keys, source = step.get("keys", ()), _source(step.get("script", "mutex"))
        words = step.get("command") or ["EVAL", source, str(len(keys)), *keys, *args]
        reply = await server.command(*words)
        assert _fits(reply, step["reply"], known), (step, reply)


async def test_what_the_vectors_check_is_what_we_send(server: LocalServer) -> None:
    async with (
        patient.connect(server.url) as locks,
        locks.lock("a"),
        locks.rwlock("a").read(),
        locks.rwlock("b").write(),
        locks.multi_lock("b", "c"),
        locks.once("d"),
        locks.election("e").campaign("first"),
    ):
        assert set(VECTORS["scripts"]) == {
            step.get("script", "mutex") for one in VECTORS["sequences"] for step in one["steps"]
        }
        for name in VECTORS["scripts"]:
            sha = hashlib.sha1(_source(name).encode(), usedforsecurity=False).hexdigest()
            assert await server.command("SCRIPT", "EXISTS", sha) == [1], name


async def test_a_client_written_after_the_page_shares_a_name_fairly(server: LocalServer) -> None:
    # Our two tasks may hand the name to each other for 0.1 s before they notice anybody else: that
    # is some forty bodies on a fast machine, far fewer than they have in all.
    inside, rounds, order = 0, 75, list[tuple[int, str]]()

    async def enter(fence: int, who: str) -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        order.append((fence, who))
        await asyncio.sleep(0.002)
        inside -= 1

    async def we(locks: asynclock.LockManager) -> None:
        for _ in range(rounds):
            async with locks.lock("a") as lease:
                await enter(lease.fence, "we")

    async def they(client: redis.asyncio.Redis) -> None:
        lock = Foreign(client, "a", ttl_ms=60_000)
        for _ in range(rounds):
            await enter(await lock.acquire(), "they")
            await lock.release()

    async with (
        redis.asyncio.Redis.from_url(server.url) as client,
        patient.connect(server.url, turn=0) as locks,
        asyncio.timeout(60),
        asyncio.TaskGroup() as group,
    ):
        for _ in range(2):
            group.create_task(we(locks))
            group.create_task(they(client))
    fences = [fence for fence, _ in order]
    assert fences == sorted(set(fences))
    assert len(fences) == 4 * rounds
    # At first our tasks hand on a lease that was taken while nobody waited; in the end, one side
    # has finished. In between each side gets its share.
    turns = [who for _, who in order]
    last = min(len(turns) - 1 - turns[::-1].index(side) for side in ("we", "they"))
    both = turns[turns.index("they") : last + 1]
    assert len(both) > rounds
    assert min(both.count("we"), both.count("they")) >= len(both) // 5, both
