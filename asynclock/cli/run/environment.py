"""The environment of a command that runs under a lock."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from ..._engine.lease import Lease


def environment_under(lease: Lease) -> Mapping[str, str]:
    """Return our caller's environment, and what tells the command of its lease."""
    deadline = time.time() + lease.remaining()
    return {
        **_inherited(),
        "ASYNCLOCK_NAME": lease.name,
        "ASYNCLOCK_FENCE": str(lease.fence),
        "ASYNCLOCK_OWNER": lease.owner,
        "ASYNCLOCK_DEADLINE": f"{deadline:.3f}",
    }


def _inherited() -> dict[str, str]:
    """Return our environment as our caller set it.

    In the C locale Python sets LC_CTYPE (PEP 538), which the command must not see. Only Linux still
    shows the original environment.
    """
    found = dict(os.environ)
    if "LC_CTYPE" in found:
        with contextlib.suppress(OSError):
            first = Path("/proc/self/environ").read_bytes().split(b"\0")
            if not any(one.startswith(b"LC_CTYPE=") for one in first):
                del found["LC_CTYPE"]
    return found
