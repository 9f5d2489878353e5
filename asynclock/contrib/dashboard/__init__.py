"""A small live page of held locks, waiters and the health of the nodes (extra `[dashboard]`).

    app.mount("/locks", dashboard(locks, token=os.environ["LOCKS_TOKEN"]))

The page changes nothing. Data is shown only with the token, and only to viewers on this machine
unless `public` is set. `asynclock serve` shows the same page without an application.
"""

from __future__ import annotations

from .app import dashboard

__all__ = ["dashboard"]
