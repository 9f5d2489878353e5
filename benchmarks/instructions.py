"""Instructions of one cycle, counted by callgrind: a regression shows without a quiet machine.

The same program runs twice under valgrind with different numbers of cycles; the difference is the
cycles alone, without import and connect. One task, one node, a fixed hash seed and a ttl that no
renewal interrupts: two counts differ by a fraction of a percent, whatever else the machine does.
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
import tempfile
from pathlib import Path

import asynclock
from asynclock.testing import local_servers

RECORD = Path(__file__).parent / "instructions.json"
TOLERANCE = 0.05
"""Above the noise of the count and of patch releases of Python, below anything worth a look."""
FEW, MANY = 50, 550


async def cycles(url: str, count: int) -> None:
    """The program that is counted."""
    async with asynclock.connect(url, ttl=60.0) as locks:
        lock = locks.lock("instructions")
        for _ in range(count):
            async with lock:
                pass


async def measure() -> int:
    """Instructions per cycle in this interpreter. LookupError without valgrind."""
    if not shutil.which("valgrind"):
        raise LookupError("valgrind is not on PATH")
    async with local_servers(1) as (server,):
        few, many = await asyncio.gather(_count(server.url, FEW), _count(server.url, MANY))
    return round((many - few) / (MANY - FEW))


async def _count(url: str, count: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        valgrind = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out")
        program = (sys.executable, "-m", "benchmarks.instructions", url, str(count))
        process = await asyncio.create_subprocess_exec(
            *valgrind,
            *program,
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(RECORD.parent.parent)},
            stderr=subprocess.PIPE,
        )
        _, errors = await process.communicate()
    text = errors.decode(errors="replace")
    if process.returncode or not (total := re.search(r"Collected : (\d+)", text)):
        raise RuntimeError(f"valgrind failed: {text[-500:]}")
    return int(total[1])


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
    before = known.get(version())
    if before is None:
        print(f"{measured:,} instructions per cycle; no record for Python {version()}")
        return 0
    change = measured / before - 1
    print(f"{measured:,} instructions per cycle, recorded {before:,}: {change:+.1%}")
    return 0 if record or change <= TOLERANCE else 1


if __name__ == "__main__":
    asyncio.run(cycles(sys.argv[1], int(sys.argv[2])))
