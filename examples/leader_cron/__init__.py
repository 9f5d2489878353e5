"""A cron job on several machines: the leader runs it, somebody else takes over when it dies.

    python -m examples.leader_cron

Three processes campaign for `election("cron")`. The one that leads writes an entry for every tick
into a journal, together with its term; the journal refuses the entries of older terms, so that a
leader that slept through its own end cannot write behind its successor's back. Two leaders are
killed, one after the other. Exit status 0 says that the work went on, that terms never went back
and that each had one leader.

    candidate.py  one process
    journal.py    the journal, in SQLite, with the check of the term
    __main__.py   starts three, kills two leaders, reads the journal
"""
