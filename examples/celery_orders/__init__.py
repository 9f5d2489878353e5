"""Celery tasks that arrive several times, and orders that are charged exactly once.

    python -m examples.celery_orders

Each order is in Celery's queue three times: a user has clicked twice, and a broker has delivered a
task again. A worker with forked children takes them, so several children often have the same order.
A task locks its order by `asynclock.blocking`, looks whether the order is charged, charges it and
writes the result with the fence. If the order is locked, the task is retried later. Half-way one of
the three nodes is killed. Exit status 0 means that each order was charged once and each task came
to its end. The queue is a folder, so the example needs no broker (needs celery).

    tasks.py     the task; the manager is made before the fork and used after it
    transport.py keeps the queue in a folder
    __main__.py  starts it all and counts

The results are in the ledger of `examples/worker_queue`.
"""
