"""Locks and waiters on servers that have been there for a while, as of real clients."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from asynclock.testing import LocalServer

HOSTS = ("web-1", "web-2", "worker-eu-1", "worker-eu-2", "worker-us-1")
PLANT = """
for _, one in ipairs(cjson.decode(ARGV[1])) do
  local key, now = 'asynclock:' .. one.name, redis.call('TIME')
  now = now[1] * 1000000 + now[2]
  redis.call('SET', key, one.owner, 'PX', one.left * 1000)
  redis.call('SET', key .. ':#fence', string.format('%.0f', now - one.held * 1000000), 'PX', 900000)
  for place, waited in ipairs(one.waited) do
    local ticket = string.format('%032x:%s', place, one.waiters[place])
    local queue = key .. ':#queue'
    redis.call('ZADD', queue, string.format('%.0f', now - waited * 1000000), ticket)
    redis.call('SET', queue .. ':#' .. ticket, '1', 'PX', 900000)
  end
end
"""
"""Writes locks and waiters that have been there for a while, as real clients would have."""
LONG = "orders:shipping:eu-central-1:customer-0042:invoice"


@dataclass
class Planted:
    """A lock on the nodes, and those who wait for it; times in seconds."""

    name: str
    owner: str
    held: float
    left: float
    """Seconds until it ends without a renewal."""
    waited: Sequence[float] = ()
    waiters: Sequence[str] = ()


async def plant(servers: Sequence[LocalServer], locks: Sequence[Planted]) -> None:
    """Write locks to all servers."""
    for at in range(0, len(locks), 1000):
        text = json.dumps([asdict(one) for one in locks[at : at + 1000]])
        await asyncio.gather(*(server.command("EVAL", PLANT, 0, text) for server in servers))


def planted(number: int, waiters: int = 0, *, name: str = "", left: float = 0) -> Planted:
    """Make a lock with some waiters."""
    kind = ("cart", "shipment", "refund", "stock")[number % 4]
    label = f"{HOSTS[number % 5]}.example.org:{4000 + number % 97}"
    return Planted(
        name or f"orders:eu-west-1:{kind}:{77000 + 7 * number}",
        f"{number:032x}:{label}",
        0.4 + number**2 % 4000 / 13 if not waiters else 20.0 * waiters + 11,
        left or 52 + number % 71 / 10,
        [(0.9 if waiters == 1 else 19.7) * waiters / (place + 1) for place in range(waiters)],
        [f"{HOSTS[(number + place) % 5]}.example.org:{4100 + place}" for place in range(waiters)],
    )


def bulk(count: int) -> list[Planted]:
    """Make this many locks, and one more with a long name and a long holder."""
    many = [Planted(f"bulk:{n:06d}", f"{'0' * 32}:h:{n}", 1.0, 600) for n in range(1, count + 1)]
    holder = f"{'a' * 32}:worker-eu-central-1a.production.example.org:31337:ship"
    return [*many, Planted(LONG, holder, 400.0, 600)]
