r"""A database migration that two deployments start at the same moment: `asynclock run` lets one in.

    python -m examples.migrate_with_cli

Each deployment calls

    asynclock run migrate:shop --node redis://… -- \
        python -m examples.migrate_with_cli.migration FILE

The migration itself knows nothing of locks. Two at the same time would break the database: each
reads the version, works for a while, and adds a column. Under the lock the second one finds the
work done. The migration gets the fence as ASYNCLOCK_FENCE in its environment and stores it in the
database. A third call, with `--no-wait`, comes while the lock is held and exits with 75. Exit
status 0 means that all of this happened.

    migration.py  the script, as any other
    __main__.py   the deployments
"""
