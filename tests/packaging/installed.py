"""Run by `nox -s package` with the Python of a fresh environment: what a user gets works.

    python -I installed.py bare|demo|oldest

Imports nothing of the test suite, and asynclock only as it was installed.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import subprocess
import sys
from pathlib import Path


def check_surface() -> None:
    import asynclock

    for name in asynclock.__all__:
        assert getattr(asynclock, name) is not None, name
    folder = Path(asynclock.__file__).parent
    assert "site-packages" in folder.parts, f"not the installed one: {folder}"
    assert (folder / "py.typed").is_file()
    assert list(folder.rglob("*.lua")), "the scripts were left out of the package"


def check_help_without_extras() -> None:
    """The command says which extra it lacks, without a traceback."""
    answer = subprocess.run(
        [Path(sys.executable).with_name("asynclock"), "--version"], capture_output=True, text=True
    )
    assert "Traceback" not in answer.stderr, answer.stderr
    assert answer.returncode == 0 or "asynclock[cli]" in answer.stderr, answer


def check_command() -> None:
    program = Path(sys.executable).with_name("asynclock")
    for arguments in (["--version"], ["--help"], ["run", "--help"]):
        subprocess.run([program, *arguments], check=True, capture_output=True)


async def check_locks() -> None:
    """Acquire, extend, refuse, release, on a real server with these versions."""
    import asynclock
    from asynclock.testing import local_servers

    async with local_servers(3) as servers:
        urls = [server.url for server in servers]
        for nodes in (urls[:1], urls):
            async with asynclock.connect(*nodes, restart_guard=False) as locks:
                async with locks.lock("installed", timeout=5.0) as lease:
                    await lease.extend()
                    assert lease.held
                    others = asyncio.create_task(locks.lock("installed").try_acquire())
                    assert await others is None
                second = await locks.lock("installed").acquire(timeout=5.0)
                assert second.fence > lease.fence
                assert await second.release()


def main() -> None:
    mode = sys.argv[1]
    check_surface()
    if mode == "bare":
        check_help_without_extras()
    if mode == "demo":
        check_command()
    if mode in {"demo", "oldest"}:
        asyncio.run(check_locks())
    versions = {name: importlib.metadata.version(name) for name in ("redis", "hiredis", "anyio")}
    print(f"{mode}: asynclock {importlib.metadata.version('asynclock')} with {versions}")


if __name__ == "__main__":
    main()
