"""Two deployments at once, and a third one that does not want to wait."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from examples._stage import PATIENCE, end, stage

BUSY = 75
"""The exit status of `asynclock run` if another holder has the lock (EX_TEMPFAIL)."""


def enough(file: Path) -> Path:
    """Once this file exists, the migration ends."""
    return file.with_suffix(".enough")


class Deployment:
    """One `asynclock run … -- python -m examples.migrate_with_cli.migration …`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        assert process.stdout
        self.out = process.stdout

    @classmethod
    async def start(cls, url: str, file: Path, *options: str) -> Deployment:
        """Start the deployment."""
        # A busy machine may need more than the usual node timeout.
        patient = ("--node", url, "--node-timeout", "2")
        run = ("-m", "asynclock", "run", "migrate:shop", *patient, *options, "--")
        migration = (sys.executable, "-m", "examples.migrate_with_cli.migration")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *run,
            *migration,
            str(file),
            str(enough(file)),
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        return cls(process)

    async def ended(self) -> tuple[int, str]:
        """Return the exit status and the output of the migration."""
        async with asyncio.timeout(PATIENCE):
            said = (await self.out.read()).decode().strip()
            return await self.process.wait(), said


async def main() -> int:
    """Run the example and return the exit status."""
    async with stage(1) as (folder, (server,)):
        file = folder / "shop.sqlite"
        with closing(sqlite3.connect(file)) as db, db:
            db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
            db.execute("CREATE TABLE migrations (version INTEGER, fence INTEGER)")
        both = [await Deployment.start(server.url, file, "--timeout", "60") for _ in range(2)]
        try:
            return await play(server.url, file, both)
        finally:
            for one in both:
                await end(one.process)


async def play(url: str, file: Path, both: list[Deployment]) -> int:
    """Watch the deployments; return 0 if everything went as it should."""
    readers = [asyncio.ensure_future(one.out.readline()) for one in both]
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
    third = await Deployment.start(url, file, "--no-wait")
    busy, _ = await third.ended()
    enough(file).touch()
    async with asyncio.timeout(PATIENCE):
        said = sorted([(await reader).decode().strip() for reader in readers])
    ends = [await one.ended() for one in both]
    with closing(sqlite3.connect(file)) as db:
        rows = db.execute("SELECT version, fence FROM migrations").fetchall()
    print(f"two deployments said {said} and ended with {[status for status, _ in ends]}")
    print(f"a third one, that did not wait, ended with {busy}; migrations and fences: {rows}")
    right = said == ["migrating", "the database is up to date"] and busy == BUSY
    right = right and len(rows) == 1 and [status for status, _ in ends] == [0, 0]
    print("right" if right else "WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
