"""The application, for `celery -A examples.celery_orders.tasks worker`.

It finds ASYNCLOCK_NODES (redis://…,…) and FOLDER in its environment.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

from asynclock import AcquireTimeoutError, QuorumUnavailableError, blocking
from examples.celery_orders import transport  # noqa: F401 - names folder://
from examples.worker_queue.ledger import Ledger, OvertakenError

TTL = 4.0

folder = Path(os.environ["FOLDER"])
app = Celery("orders", broker="folder://")
app.conf.broker_transport_options = {
    "data_folder_in": str(folder / "queue"),
    "data_folder_out": str(folder / "queue"),
    "control_folder": str(folder / "control"),
}
# No thread and no connection before the first use, so the children may inherit this.
locks = blocking.connect(
    *os.environ["ASYNCLOCK_NODES"].split(","), ttl=TTL, max_ttl=TTL, node_timeout=1.0
)
logging.getLogger("asynclock").addHandler(logging.NullHandler())


@app.task(bind=True, max_retries=None)  # type: ignore[untyped-decorator]  # celery has no types
def charge(self: Any, order: int) -> None:
    """Charge an order, unless another task has done it."""
    try:
        with locks.lock(f"orders:{order}", timeout=0.2) as lease:
            ended = charge_once(order, lease.fence)
    except (AcquireTimeoutError, QuorumUnavailableError, OvertakenError) as error:
        note("again")
        raise self.retry(countdown=min(getattr(error, "retry_after", 1.0), 1.0)) from error
    note(ended)


def charge_once(order: int, fence: int) -> str:
    """Return how the task ended."""
    ledger = Ledger(folder / "ledger.sqlite")
    if not ledger.begin(str(order), fence):
        return "found charged"
    time.sleep(0.3)  # the bank takes its time
    ledger.finish(str(order), f"child {os.getpid()}", fence)
    return "charged"


def note(text: str) -> None:
    """Tell the example what happened."""
    with (folder / "notes").open("a") as file:
        file.write(f"{text}\n")
