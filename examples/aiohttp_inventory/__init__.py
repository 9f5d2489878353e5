"""An inventory in aiohttp: stock in Redis, reserved under a lock, guarded by its fence.

    python -m examples.aiohttp_inventory

Two processes sell five items; stock is a plain hash in Redis. A reservation reads the stock, thinks
for a moment and writes what is left: two at once would sell the same piece twice. The handler runs
under `locked("items:{item}")`, and what it writes goes through `FencedRedis`, which refuses the
late word of a holder that was overtaken. Customers ask for more than there is; half-way one of the
three nodes is killed. Exit status 0 says that exactly the stock was reserved.

    service.py   the application
    __main__.py  starts it, sends the customers and counts
"""
