"""Orders sold by a Django project: plain views, `asynclock.blocking`, a thread per request.

    python -m examples.django_orders

Two processes of Django's own threaded server sell 20 orders to 60 buyers, who ask at the same time;
half-way one of the three nodes is killed. Exit status 0 means that each order was sold exactly
once.

    project.py   a Django project in one file: settings, views, addresses, a server
    __main__.py  starts it, and sends the buyers of `examples/threaded_orders`

The sales are in the store of `examples/fastapi_orders`. Needs `pip install django`.
"""
