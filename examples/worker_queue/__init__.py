"""A job queue in Redis: workers that may die or freeze, and jobs that are done exactly once.

    python -m examples.worker_queue

Jobs are in a Redis list. A worker moves one to a second list (LMOVE, so that a job is never only in
a worker's memory), locks the job, does the work and writes the result together with the lock's
fence. One worker is killed in the middle of a job. Another is frozen for longer than its lease
lives, and then goes on as if nothing had happened. Workers find unfinished jobs by their free
locks. The frozen worker's late result is rejected, because another worker has written with a higher
fence. Exit status 0 means that each job was done exactly once.

    worker.py    a worker process
    ledger.py    the results, in SQLite, with the fence check
    __main__.py  starts it all, kills, freezes and counts
"""
