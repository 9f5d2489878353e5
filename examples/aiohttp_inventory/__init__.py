"""An inventory in aiohttp: stock in Redis, reserved under a lock, guarded by its fence.

    python -m examples.aiohttp_inventory

Two processes sell five items; the stock is a plain hash in Redis. A reservation reads the stock,
waits for a moment and writes the rest: two at the same time would sell the same piece twice. The
handler runs under `locked("items:{item}")` and writes through `FencedRedis`, which rejects the late
write of an earlier holder. Customers ask for more than the stock, and half-way one of the three
nodes is killed. Exit status 0 means that exactly the stock was reserved.

    service.py   the application
    __main__.py  starts it, sends the customers and counts
"""
