"""The service, for `uvicorn examples.fastapi_orders.service:app`.

It finds ASYNCLOCK_NODES (redis://…,…) and DATABASE in its environment. There is
no `from __future__ import annotations` here: FastAPI reads the annotations.
"""

import asyncio
import logging
import os
import random
from typing import Annotated

from fastapi import FastAPI, HTTPException

from asynclock import Lease
from asynclock.contrib.fastapi import Locked, health, setup
from examples.fastapi_orders.store import StaleError, open_store

TTL = 4.0
"""Seconds for which a crashed service blocks an order. Restarted nodes wait a little longer before
they vote, because they might have forgotten a lease of that age."""

app = FastAPI()
store = open_store(os.environ["DATABASE"])
setup(app, *os.environ["ASYNCLOCK_NODES"].split(","), ttl=TTL, max_ttl=TTL, node_timeout=1.0)
app.add_api_route("/health/locks", health)
# Nodes fail on purpose here; the library's warnings about them would only clutter the screen.
logging.getLogger("asynclock").addHandler(logging.NullHandler())


@app.post("/orders/{order}/buy", status_code=201)
async def buy(
    order: int, buyer: str, lease: Annotated[Lease, Locked("orders:{order}", timeout=2)]
) -> dict[str, int]:
    """Sell the order to the first buyer."""
    if await asyncio.to_thread(store.sold, order):
        raise HTTPException(410, "sold")
    await asyncio.sleep(random.uniform(0.001, 0.01))  # a card is charged
    try:
        await asyncio.to_thread(store.sell, order, buyer, lease.fence)
    except StaleError as error:
        raise HTTPException(412, str(error)) from error
    return {"order": order, "fence": lease.fence}
