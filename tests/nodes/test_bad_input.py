"""Whatever is wrong with an address or a setting is said at the earliest moment, in our words."""

import math
import subprocess
import sys
from typing import Any

import pytest
import redis
import redis.asyncio

import asynclock
from asynclock.testing.plugin import StartServers

URL = "redis://127.0.0.1:1"
THREE = ("redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3")


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ((), "at least one node"),
        (THREE[:2], "two nodes"),
        ((*THREE[:2], THREE[0]), "given twice"),
        (("http://localhost",), r"not a Redis address.*redis\+sentinel://"),
        (("localhost:6379",), "not a Redis address.*write redis://localhost:6379$"),
        (("localhost", 6379), "write redis://localhost:6379$"),
        (("canary@localhost", 6379), "write redis://localhost:6379$"),
        ((6379,), "write redis://localhost:6379$"),
        ((["redis://a", "redis://b", "redis://c"],), r"write connect\(\*nodes\)"),
        (("redis://h:port",), r"^'redis://h:\*\*\*' is not .*the port is not a number"),
        (("redis://u:canary",), "the port is not a number"),
        (("rediss://u:canary@h:port",), "the port is not a number"),
        (("redis+cluster://h:canary,b",), "the port is not a number"),
        (("redis://h?foo=canary",), "unknown setting 'foo' in the URL$"),
        (("memory:/a",), "memory://$"),
        (("redis://a,b",), "several hosts"),
        ((None,), "not NoneType"),
        ((redis.Redis(),), "redis.asyncio.Redis"),
        (("redis://h:99999999",), "not a Redis address|wrong setting|port"),
        (("redis://h:0",), "^'redis://h:0' is not a Redis address: no server has port 0$"),
        (("redis+cluster://u:canary@h:7000,h:00",), "no server has port 0$"),
        (("redis://u:canary@\ud800",), "^a node's URL can't be written as UTF-8$"),
        (("",), "^an empty text is not a Redis address: it must begin with redis://"),
        (("redis:/u:canary@h",), r"^redis:… is not a Redis address: it must begin with redis://"),
        (("redis://h/notadb",), "number of a database, not 'notadb'"),
        (("redis://user:abc/canary",), r"in a password, write / as %2F"),
        (("redis+cluster://a#b",), "is not a Redis address"),
        (("//a,b",), "is not a Redis address"),
        (("redis+cluster://a:0",), "no server has port 0"),
        (("redis+cluster://u@",), "names no host"),
        (("redis+cluster://,",), "names no host"),
        *(
            (("redis+sentinel://h1,h2" + path,), "name of one service")
            for path in ("", "/", "/a/b")
        ),
        (("redis+sentinel:///a",), "names no host"),
        (("redis+sentinel://@/a",), "names no host"),
        ((redis.asyncio.RedisCluster(host="localhost"),), "pass a Cluster by its URL"),
        (({"redis://a"},), r"connect\(\*nodes\)"),
        ((frozenset({"redis://a"}),), r"connect\(\*nodes\)"),
        ((("redis://a",),), r"connect\(\*nodes\)"),
        (("a", "b", 6379), "write redis://localhost:6379$"),
        (("h", 7), "write redis://h:7$"),
        ((("h", 7), "b"), r"connect\(\*nodes\)"),
        (("rediss://u:canary@h:6380/1/2?ssl_cert_reqs=none",), "number of a database, not '1/2'"),
    ],
)
def test_addresses(nodes: tuple[Any, ...], said: str) -> None:
    with pytest.raises(asynclock.ConfigurationError, match=said) as caught:
        asynclock.connect(*nodes)
    assert "canary" not in str(caught.value)


def test_plain_addresses_need_no_redis_py() -> None:
    """Importing it takes longer than everything else of a short run."""
    script = (
        "import sys, asynclock\n"
        "asynclock.connect('redis://u:p@a:1/2', 'redis://b', 'redis://[::1]:7')\n"
        "assert 'redis' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ttl": 0}, "ttl"),
        ({"ttl": -1}, "ttl"),
        *(({"ttl": ttl}, "ttl") for ttl in (math.nan, math.inf, "10", True)),
        ({"ttl": 30_000}, r"is 8\.3 hours: .* give max_ttl=30000 as well"),
        ({"ttl": 10**400}, "ttl must be at most 1e"),
        ({"ttl": 1e308}, "ttl must be at most 1e"),
        ({"max_ttl": 1e30}, "max_ttl must be at most 1e"),
        ({"node_timeout": 0}, "node_timeout"),
        ({"ttl": 1, "node_timeout": 1}, "ttl=1 must be longer than node_timeout=1"),
        ({"node_timeout": 3}, "node_timeout=3 must be at most a quarter of max_ttl=10"),
        ({"ttl": 20, "max_ttl": 10}, "ttl=20 is longer than max_ttl=10"),
        ({"prefix": None}, "prefix must be a str, not NoneType"),
        ({"prefix": "\ud800"}, "prefix can't be written as UTF-8"),
        ({"prefix": "a:#b"}, "prefix must not contain ':#'"),
        ({"label": 7}, "label"),
        ({"turn": -0.1}, "turn"),
        ({"label": "a\0b"}, "label must not contain the character NUL"),
        ({"acks": -1}, "acks"),
        *(({"acks": acks}, "acks must be") for acks in ("most", 1.5, True, False, None)),
    ],
)
def test_settings(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(asynclock.ConfigurationError, match=said):
        asynclock.connect(URL, **settings)


async def test_a_timeout_at_the_call_is_checked_too() -> None:
    locks = asynclock.connect(URL)
    with pytest.raises(asynclock.ConfigurationError, match="timeout"):
        locks.lock("a").acquire(timeout=-1)


async def test_a_client_gives_settings_and_is_left_alone(asynclock_servers: StartServers) -> None:
    (server,) = await asynclock_servers(1, password="right")
    client = redis.asyncio.Redis(host="127.0.0.1", port=server.port, password="right", db=3)
    async with asynclock.connect(client) as locks, locks.lock("a") as lease:
        assert await client.get("asynclock:a") == lease.owner.encode()
    assert await client.ping()
    await client.aclose()
