"""A cron job on several machines: the leader runs it, and another takes over when it dies.

    python -m examples.leader_cron

Three processes campaign for `election("cron")`. The one that leads writes an entry for every tick
into a journal, together with its term. The journal rejects entries of older terms, so a leader that
froze and lost its term can't write after its successor. Two leaders are killed, one after the
other. Exit status 0 means that the work went on, that terms never went back and that each term had
one leader.

    candidate.py  one process
    journal.py    the journal, in SQLite, with the check of the term
    __main__.py   starts three, kills two leaders, reads the journal
"""
