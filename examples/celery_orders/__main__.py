"""Starts nodes and a worker with children, and counts what was charged."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path

from examples._stage import process, stage, until
from examples.worker_queue.ledger import Ledger

NODES, CHILDREN, ORDERS, COPIES = 3, 3, 10, 3
WORKER = f"-q -A examples.celery_orders.tasks worker -P prefork -c {CHILDREN} -l critical"
QUIET = "--without-gossip --without-mingle --without-heartbeat"


def notes(folder: Path) -> Counter[str]:
    """Return what the tasks have noted."""
    file = folder / "notes"
    return Counter(file.read_text().splitlines() if file.exists() else ())


def send(folder: Path) -> None:
    """Put the tasks into the queue, the copies of an order one after the other."""
    for name in ("queue", "control"):
        (folder / name).mkdir()
    from examples.celery_orders.tasks import charge  # reads the environment

    for order in range(ORDERS):
        for _ in range(COPIES):
            charge.delay(order)


async def main() -> int:
    """Run the example and return the exit status."""
    async with stage(NODES) as (folder, nodes):
        os.environ["ASYNCLOCK_NODES"] = ",".join(node.url for node in nodes)
        os.environ["FOLDER"] = str(folder)
        await asyncio.to_thread(send, folder)
        # Celery doesn't like to run as root, as it would in a container.
        environment = {"C_FORCE_ROOT": "1"}
        async with process("celery", *WORKER.split(), *QUIET.split(), environment=environment):
            await until(lambda: notes(folder)["charged"] >= ORDERS // 2, "half of it is done")
            await nodes[0].kill()
            print(f"node {nodes[0].url} is killed", flush=True)
            await until(lambda: ended(folder) == ORDERS * COPIES, "all tasks have ended")
        return report(Ledger(folder / "ledger.sqlite").results(), notes(folder))


def ended(folder: Path) -> int:
    """Return the number of tasks that have come to their end."""
    found = notes(folder)
    return found["charged"] + found["found charged"]


def report(results: list[tuple[str, str]], found: Counter[str]) -> int:
    """Print what happened; return 0 if each order was charged exactly once."""
    charged = Counter(order for order, _ in results)
    shown = ", ".join(f"{count} × {text}" for text, count in sorted(found.items()))
    print(f"{ORDERS * COPIES} tasks: {shown}")
    children = len({child for _, child in results})
    print(f"{len(charged)} of {ORDERS} orders charged by {children} children")
    right = len(charged) == ORDERS == len(results)
    print("right" if right else "WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
