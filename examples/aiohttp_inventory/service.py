"""The service: `python -m examples.aiohttp_inventory.service PORT STOCK-URL NODE…`."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
from collections.abc import AsyncIterator

from aiohttp import web
from redis.asyncio import Redis

from asynclock import Lease
from asynclock.contrib.aiohttp import health, locked, setup
from asynclock.fencing import FencedRedis

TTL = 3.0
STOCK: web.AppKey[Redis] = web.AppKey("stock", Redis)


@locked("items:{item}", timeout=2)
async def reserve(request: web.Request, lease: Lease) -> web.Response:
    """Reserve one piece for one customer, if one is left."""
    redis, key = request.app[STOCK], f"stock:{request.match_info['item']}"
    left, customers = map(str, await redis.hmget(key, ["left", "customers"]))
    await asyncio.sleep(random.uniform(0.001, 0.01))  # thinking
    if int(left) == 0:
        raise web.HTTPGone(text="sold out")
    names = [*json.loads(customers), request.query["customer"]]
    change: dict[str, str | bytes | int | float] = {
        "left": int(left) - 1,
        "customers": json.dumps(names),
    }
    await FencedRedis(redis).hset(lease, key, change)
    return web.json_response({"left": change["left"], "fence": lease.fence})


def make_app(stock: str, nodes: list[str]) -> web.Application:
    """Make the application."""

    async def connect(app: web.Application) -> AsyncIterator[None]:
        async with Redis.from_url(stock, decode_responses=True) as redis:
            app[STOCK] = redis
            yield

    app = web.Application()
    setup(app, *nodes, ttl=TTL, max_ttl=TTL, node_timeout=0.75)
    app.cleanup_ctx.append(connect)
    app.router.add_post("/items/{item}/reserve", reserve)
    app.router.add_get("/health/locks", health)
    return app


if __name__ == "__main__":
    logging.getLogger("asynclock").addHandler(logging.NullHandler())
    port, stock, *nodes = sys.argv[1:]
    app = make_app(stock, nodes)
    web.run_app(app, host="127.0.0.1", port=int(port), print=None, access_log=None)
