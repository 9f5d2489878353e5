"""Orders sold by servers with a thread per request: no asyncio, `asynclock.blocking`.

    python -m examples.threaded_orders

Two processes of Python's own threaded HTTP server sell 20 orders to 60 buyers, who ask at the same
time. Each sale checks that the order is free, charges a card (which takes a moment) and writes the
sale with its fence. Half-way one of the three nodes is killed. Django, Flask and each other server
with threads can use locks in the same way. Exit status 0 means that each order was sold exactly
once.

    service.py   the server: one manager for all threads, and an answer for each error
    __main__.py  starts it, sends the buyers and counts

The sales are in the store of `examples/fastapi_orders`.
"""
