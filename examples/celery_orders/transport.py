"""Celery's queue in a folder, whose messages are read only once they are written as a whole."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, filesystem

TRANSPORT_ALIASES["folder"] = f"{__name__}:Transport"


@contextmanager
def alone() -> Iterator[None]:
    """Keep all other processes out."""
    with (Path(os.environ["FOLDER"]) / "alone").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


_OURS: Any = filesystem.Channel  # kombu's types don't fit each other


class Channel(_OURS):  # type: ignore[misc]
    """kombu's own creates a message's file before it writes it."""

    def _put(self, *arguments: Any, **options: Any) -> None:
        with alone():
            super()._put(*arguments, **options)

    def _get(self, *arguments: Any, **options: Any) -> Any:
        with alone():
            return super()._get(*arguments, **options)


class Transport(filesystem.Transport):
    """kombu's own, with that channel."""

    Channel: Any = Channel
