"""Instructions of one cycle, counted by callgrind: a regression shows without a quiet machine.

The count is switched on after import, connect and some warm cycles. One task, one node, a fixed
hash seed and a ttl that no renewal interrupts: two counts differ by about one percent, whatever
else the machine does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import asynclock

RECORD = Path(__file__).parent / "instructions.json"
TOLERANCE = 0.05
"""Allowed increase: above the noise of the count and of patch releases of Python."""
COUNT = 400
PATIENCE = 300.0


async def counted(url: str) -> None:
    """The program that runs under valgrind; it ends at once, so that its own end is not counted."""
    locks = await asynclock.connect(url, ttl=60.0).__aenter__()
    await _cycles(locks, 20)
    _switch_on()
    await _cycles(locks, COUNT)
    os._exit(0)


def _switch_on() -> None:
    """Make valgrind count from here; it only accepts commands while this process wakes at times."""
    switch = subprocess.Popen(["vgdb", f"--pid={os.getpid()}", "instrumentation", "on"])
    while switch.poll() is None:
        time.sleep(0.02)


async def _cycles(locks: asynclock.LockManager, count: int) -> None:
    lock = locks.lock("instructions")
    for _ in range(count):
        async with lock:
            pass


async def measure() -> int:
    """Count the instructions per cycle here. Raises LookupError without valgrind."""
    from asynclock.testing import local_servers

    if not shutil.which("valgrind"):
        raise LookupError("valgrind is not on PATH")
    tool = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=/dev/null")
    env = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(RECORD.parent.parent)}
    async with local_servers(1) as (server,), asyncio.timeout(PATIENCE):
        program = (sys.executable, "-m", "benchmarks.instructions", server.url)
        process = await asyncio.create_subprocess_exec(
            *tool, *program, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        try:
            _, errors = await process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    text = errors.decode(errors="replace")
    if process.returncode or not (total := re.search(r"Collected : (\d+)", text)):
        raise RuntimeError(f"valgrind failed: {text[-500:]}")
    return int(total[1]) // COUNT


def version() -> str:
    return "{}.{}".format(*sys.version_info[:2])


def check(record: bool = False) -> int:
    """Compare with the record of this Python; return 1 if it is exceeded."""
    measured = asyncio.run(measure())
    known: dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError):
        known = json.loads(RECORD.read_text())
    if record:
        RECORD.write_text(json.dumps(known | {version(): measured}, indent=1) + "\n")
        print(f"{measured:,} instructions per cycle are now the record of Python {version()}")
        return 0
    before = known.get(version())
    if before is None:
        print(f"{measured:,} instructions per cycle; no record for Python {version()}")
        return 0
    change = measured / before - 1
    print(f"{measured:,} instructions per cycle, recorded {before:,}: {change:+.1%}")
    return 0 if change <= TOLERANCE else 1


if __name__ == "__main__":
    asyncio.run(counted(sys.argv[1]))
