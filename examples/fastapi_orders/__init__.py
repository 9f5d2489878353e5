"""Order grabbing over HTTP: two FastAPI processes, five Redis masters, one of which dies.

    python -m examples.fastapi_orders

200 buyers want 50 orders at the same time, at two services that don't know of each other. Each sale
checks that the order is free, charges a card (which takes a moment) and writes the sale: without a
lock, an order would be sold several times. Half-way one of the five nodes is killed. Exit status 0
means that each order was sold exactly once and that every refusal was an expected one.

    service.py   the application: `setup`, one `Locked` dependency, one handler
    store.py     the store, SQLite or PostgreSQL, which refuses a stale fence
    buyers.py    the load, by httpx
    __main__.py  starts it all and counts

With `DATABASE=postgresql://…` the sales go to PostgreSQL (needs psycopg), else to an SQLite file.
"""
