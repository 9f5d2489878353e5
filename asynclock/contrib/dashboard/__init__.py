"""A small live page: who holds what, who waits, how the nodes are (extra `[dashboard]`).

    app.mount("/locks", dashboard(locks, token=os.environ["LOCKS_TOKEN"]))

It changes nothing. Nobody sees data without the token, and nobody who is not on this machine
unless `public` says so. `asynclock serve` is the same page for people without an application.
"""

from __future__ import annotations

from .app import dashboard

__all__ = ["dashboard"]
